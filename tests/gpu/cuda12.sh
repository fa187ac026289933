#!/bin/bash
# cuda12.sh [--toolkit DIR] [--mirror URL]: build the CUDA library for every card with the oldest toolkit that is supported, 12.4, and
# link it; what its compiler warns about is an error. DIR is an installed 12.4 (its bin/nvcc is used). Without it the packages of
# Debian 13 are unpacked to build/cuda12, 1.2 GB to load once and 3 GB on disk, from URL, else from the first archive of Debian in
# this host's apt sources. Needs no GPU.
set -euo pipefail
cd "$(dirname "$0")/../.."
. tests/mirror.sh
archive='' suite=trixie toolkit=''
while [ $# -gt 0 ]; do
    case $1 in
    --toolkit) toolkit=${2:?cuda12.sh: --toolkit needs a folder}; shift ;;
    --mirror) archive=${2:?cuda12.sh: --mirror needs a URL}; shift ;;
    -h | --help) sed -n '2,5s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "cuda12.sh: unknown option '$1'; see --help" >&2; exit 2 ;;
    esac
    shift
done

# Debian spreads the toolkit over the system; nvcc finds its parts when they lie as NVIDIA's installer lays them.
unpack() {
    local to=$1 parts=$1/parts bin=$1/bin package file
    archive=${archive:-$(archive_find Debian)}
    archive=${archive%/}
    [ -n "$archive" ] || { echo "cuda12.sh: no archive of Debian is in this host's apt sources; give one with --mirror, or a toolkit with --toolkit" >&2; exit 1; }
    rm -rf "$to"
    mkdir -p "$parts" "$to/nvvm/bin"
    curl -fsS --max-time 120 "$archive/dists/$suite/non-free/binary-amd64/Packages.xz" | xz -dc >"$to/packages"
    for package in nvidia-cuda-toolkit nvidia-cuda-dev libcublas12 libcublaslt12 libcudart12; do
        file=$(awk -v p=$package '/^Package: /{q=$2} /^Filename: /{if (q == p) print $2}' "$to/packages")
        [ -n "$file" ] || { echo "cuda12.sh: $archive has no package $package in $suite non-free; name a toolkit with --toolkit" >&2; exit 1; }
        echo "loading $package"
        curl -fsS --max-time 1800 -o "$to/package.deb" "$archive/$file"
        dpkg-deb -x "$to/package.deb" "$parts"
    done
    rm "$to/package.deb"
    cp -r "$parts/usr/bin" "$bin"
    cp -r "$parts/usr/lib/nvidia-cuda-toolkit/bin/"{nvcc,crt} "$bin/"
    cp "$parts/usr/lib/nvidia-cuda-toolkit/bin/cicc" "$to/nvvm/bin/"
    cp -r "$parts/usr/lib/nvidia-cuda-toolkit/libdevice" "$to/nvvm/"
    ln -s parts/usr/include "$to/include"
    ln -s parts/usr/lib/x86_64-linux-gnu "$to/lib64"
    cat >"$bin/nvcc.profile" <<'END'
TOP = $(_HERE_)/..
NVVMIR_LIBRARY_DIR = $(TOP)/nvvm/libdevice
PATH += $(TOP)/nvvm/bin:$(_HERE_):
INCLUDES += "-I$(TOP)/include" $(_SPACE_)
LIBRARIES =+ $(_SPACE_) "-L$(TOP)/lib64/stubs" "-L$(TOP)/lib64"
END
    touch "$to/whole"
}
if [ -z "$toolkit" ]; then
    toolkit=$PWD/build/cuda12
    [ -e "$toolkit/whole" ] || unpack "$toolkit"
fi
[ -x "$toolkit/bin/nvcc" ] || { echo "cuda12.sh: there is no '$toolkit/bin/nvcc'" >&2; exit 1; }
version=$("$toolkit/bin/nvcc" --version | sed -n 's/.*release \([0-9.]*\),.*/\1/p')
[ "$version" = 12.4 ] || { echo "cuda12.sh: $toolkit/bin/nvcc is of CUDA $version, not 12.4" >&2; exit 1; }
log=build/cuda12.log
rm -rf build/cuda12-build
cmake -S . -B build/cuda12-build -G Ninja -DCMAKE_BUILD_TYPE=Release -DRC_CUDA=ON -DCMAKE_CUDA_COMPILER="$toolkit/bin/nvcc" >"$log"
cmake --build build/cuda12-build --target rollcall_cuda 2>&1 | tee -a "$log"
if grep -nE 'warning|Potential Performance Loss' "$log"; then
    echo "cuda12.sh: CUDA 12.4 warns, see $log" >&2
    exit 1
fi
echo "built with CUDA 12.4: $(sed -n 's/^-- machine code .*: //p' "$log"), $(stat -c %s build/cuda12-build/librollcall_cuda.so) bytes"
