#!/bin/bash
# pack.sh [DIR]: put what a GPU machine without our libraries needs into DIR (default .gpu): the executable, the CUDA library, the
# test programs, and the shared libraries they use beyond the C library. tests/gpu/run.sh finds it there.
set -eu
cd "$(dirname "$0")/../.."
dir=${1:-.gpu} build=build/release
rm -rf "$dir"
mkdir -p "$dir/lib"
cp "$build/rollcall" "$build/librollcall_cuda.so" "$dir/"
for name in ops_test agreement_test model_golden_test generator_test model_dump; do
    [ ! -x "$build/tests/$name" ] || cp "$build/tests/$name" "$dir/"
done
find "$dir" -maxdepth 1 -type f ! -name '*.so' -exec strip {} +
find "$dir" -maxdepth 1 -type f ! -name '*.so' -exec ldd {} \; | awk '$3 ~ /^\// { print $3 }' | sort -u |
    grep -v -E '/(libc|libm|libdl|libpthread|librt|libstdc\+\+|libgcc_s)\.so' | while read -r lib; do cp -L "$lib" "$dir/lib/"; done
du -sh "$dir"
