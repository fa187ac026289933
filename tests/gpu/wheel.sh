#!/bin/bash
# wheel.sh WHEEL [PACKAGES]: seconds from 'pip install' to the first trained step on a GPU, in a new environment. WHEEL: the package of
# examples/wheel/make.sh. PACKAGES: a folder with NVIDIA's packages of the extra 'cuda' ("pip download 'WHEEL[cuda]' -d PACKAGES" on a machine
# with a network); only these two are read. Without it such packages are made, before the clock starts, of the libraries of this machine's
# toolkit, which then is no longer in the loader's reach.
#   DEVICE=cpu:0          try this script without a GPU
#   MODEL=DIR DATA=FILE   train this instead of the quickstart's model, with 64 prompts of 8 answers
# Prints: s_install, s_first_step (since 'pip install' began, until the journal holds step 1), where each library was found, the device.
set -euo pipefail
wheel=$(readlink -f "${1:?wheel.sh: name the package, build/wheel/rollcall-VERSION-....whl}")
packages=${2:+$(readlink -f "$2")}
[ -f "$wheel" ] || { echo "wheel.sh: there is no '$wheel'" >&2; exit 2; }
work=$(mktemp -d "${TMPDIR:-/tmp}/rc-wheel-XXXXXX")
hide=()
trap 'rm -rf "$work"' EXIT

# package NAME VERSION FILE FOLDER: one of NVIDIA's layout, site-packages/nvidia/FOLDER/lib, of a library that lies here.
package() {
    python3 - "$@" "$packages" <<'END'
import os, sys, zipfile
name, version, path, folder, out = sys.argv[1:]
base = f"{name.replace('-', '_')}-{version}"
with zipfile.ZipFile(f"{out}/{base}-py3-none-manylinux_2_27_x86_64.whl", "w") as z:
    inner = f"nvidia/{folder}/lib/{os.path.basename(path)}"
    z.write(os.path.realpath(path), inner)
    z.writestr(f"{base}.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    z.writestr(f"{base}.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-manylinux_2_27_x86_64\n")
    z.writestr(f"{base}.dist-info/RECORD", "".join(f"{n},,\n" for n in (inner, f"{base}.dist-info/METADATA", f"{base}.dist-info/WHEEL", f"{base}.dist-info/RECORD")))
END
}
major=$(unzip -p "$wheel" '*/METADATA' 2>/dev/null | sed -n 's/^Requires-Dist: nvidia-nccl-cu\([0-9]*\).*/\1/p' ||
    python3 -c 'import re, sys, zipfile; z = zipfile.ZipFile(sys.argv[1]); print(re.search(rb"nvidia-nccl-cu(\d+)", z.read([n for n in z.namelist() if n.endswith("/METADATA")][0]))[1].decode())' "$wheel")
if [ -z "$packages" ]; then
    packages=$work/packages
    mkdir "$packages"
    for dir in "${CUDA_HOME:-/usr/local/cuda}"/{lib64,lib,targets/x86_64-linux/lib} /usr/lib/x86_64-linux-gnu; do
        [ -e "$dir/libcublasLt.so.$major" ] || continue
        name=nvidia-cublas
        [ "$major" -ge 13 ] || name=nvidia-cublas-cu$major
        package $name "$major.0.1" "$dir/libcublasLt.so.$major" "cu$major"
        for nccl in "$dir/libnccl.so.2" /usr/lib/x86_64-linux-gnu/libnccl.so.2 /usr/local/lib/libnccl.so.2; do
            [ ! -e "$nccl" ] || { package "nvidia-nccl-cu$major" 2.0 "$nccl" nccl; break; }
        done
        break
    done
    ls "$packages"/*cublas* >/dev/null 2>&1 || { echo "wheel.sh: no libcublasLt.so.$major here; give a folder with NVIDIA's packages" >&2; exit 2; }
    # a toolkit that the loader knows would hide whether the packages are found: it is covered in a name space of our own
    for dir in $(ldconfig -p | sed -n 's|.*libcublasLt\.so.* => \(.*\)/[^/]*$|\1|p' | sort -u) /usr/local/cuda/lib64; do
        case $(readlink -f "$dir") in /usr/local/* | /opt/*) hide+=("$(readlink -f "$dir")") ;; esac
    done
fi
unset LD_LIBRARY_PATH RC_NCCL
wanted=("$wheel[cuda]")
if ! ls "$packages"/*nccl* >/dev/null 2>&1; then
    echo "note: there is no NCCL in $packages: the extra is installed in parts, without it"
    wanted=("$wheel" "$(ls "$packages"/*cublas*.whl)")
fi
printf '%s\n' "${wanted[@]}" >"$work/wanted"
cat >"$work/inner.sh" <<'END'
set -euo pipefail
work=$1 packages=$2
shift 2
for dir in "$@"; do mount -t tmpfs none "$dir" 2>/dev/null || echo "note: $dir stays in the loader's reach"; done
cd "$work"
python3 -m venv env 2>/dev/null || python3 -m virtualenv -q env
export XDG_CACHE_HOME=$work/cache    # as on a machine that has never run rollcall
mkdir cache
now() { date +%s.%N; }
from=$(now)
env/bin/pip install -q --no-index --no-cache-dir --find-links "$packages" $(cat wanted)
installed=$(now)
PATH=$work/env/bin:$PATH
words=(quickstart/arithmetic.yaml)
rollcall quickstart >/dev/null
if [ -n "${MODEL:-}" ]; then
    printf 'model: %s\ndataset: %s\nreward_type: boxed\nnum_generations: 8\ninference_batch_size: 64\ntrain_batch_size: 64\nmax_new_tokens: 256\n' \
        "$MODEL" "$DATA" >run.yaml
    words=(run.yaml)
fi
: >out.jsonl
rollcall train "${words[@]}" --devices "${DEVICE:-cuda:0}" --batch --format jsonl --max_steps 2 --eval_interval 0 --save_interval 0 >out.jsonl 2>err.txt &
pid=$!
first=''
while [ -z "$first" ]; do
    if grep -q -E '"step": ?[1-9]' out.jsonl; then first=$(now)
    elif ! kill -0 $pid 2>/dev/null; then grep -q -E '"step": ?[1-9]' out.jsonl && first=$(now) || { cat err.txt out.jsonl | tail -n 20; exit 1; }
    else read -r -t 0.05 <>"$work/never" || true    # looked at every 50 ms
    fi
done
wait $pid
awk -v a="$from" -v b="$installed" -v c="$first" 'BEGIN { printf "s_install %.2f\ns_first_step %.2f\n", b - a, c - a }'
rollcall doctor | grep -E 'cuda:|back end|cuBLAS|NCCL|NVML'
END
mkfifo "$work/never"
if [ ${#hide[@]} -gt 0 ] && unshare --mount true 2>/dev/null; then
    unshare --mount --propagation private bash "$work/inner.sh" "$work" "$packages" "${hide[@]}"
else
    bash "$work/inner.sh" "$work" "$packages"
fi
