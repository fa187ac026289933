#!/bin/bash
# pack.sh [DIR]: put what a GPU machine without our libraries needs into DIR (default .gpu): the executable, the CUDA library, the
# test programs, and the shared libraries they use beyond the C library. tests/gpu/run.sh finds it there. PACK_NCCL=FILE: take this
# libnccl.so.2 along (200 MiB), for a machine that has none.
set -eu
cd "$(dirname "$0")/../.."
dir=${1:-.gpu} build=build/release
cmake --build "$build" --target rollcall_cuda >/dev/null || { echo "pack.sh: $build is not configured with CUDA (-DRC_CUDA=AUTO)" >&2; exit 1; }    # what lies there may be old
rm -rf "$dir"
mkdir -p "$dir/lib" "$dir/tests"
cp "$build/rollcall" "$build/librollcall_cuda.so" "$dir/"
cp "$build/tests/link" "$build/tests/bench" "$dir/tests/"    # for tests/net/weights.sh
for name in ops_test experts_test delta_rule_test collective_test team_test agreement_test model_golden_test lora_test generator_test model_dump bench publish_test; do
    [ ! -x "$build/tests/$name" ] || cp "$build/tests/$name" "$dir/"
done
find "$dir" -maxdepth 1 -type f ! -name '*.so' -exec strip {} +
find "$dir" -maxdepth 1 -type f ! -name '*.so' -exec ldd {} \; | awk '$3 ~ /^\// { print $3 }' | sort -u |
    grep -v -E '/(libc|libm|libdl|libpthread|librt|libstdc\+\+|libgcc_s)\.so' | while read -r lib; do cp -L "$lib" "$dir/lib/"; done
[ -z "${PACK_NCCL:-}" ] || cp -L "$PACK_NCCL" "$dir/lib/libnccl.so.2"
# for other programs that start ours: they must not see our libraries
for name in rollcall model_dump; do
    cat >"$dir/$name.sh" <<'END'
#!/bin/bash
here=$(dirname "$(readlink -f "$0")")
export LD_LIBRARY_PATH=$here/lib:/usr/local/cuda/lib64:/usr/local/cuda/lib
exec "${0%.sh}" "$@"
END
    chmod +x "$dir/$name.sh"
done
du -sh "$dir"
