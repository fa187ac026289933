#!/bin/bash
# Builds the package for pip, build/wheel/rollcall-VERSION-py3-none-manylinux_2_NN_x86_64.whl: in a minimal Debian 11, so that it runs with
# its C library and later ones, and with all other libraries linked in. The CUDA back end is in it where this system has a toolkit.
# Needs root, debootstrap and a network (Debian's packages, and PyPI for a newer cmake). 20 to 40 minutes on two cores, the next time less.
#   --arch LIST   the cards of its machine code, as RC_CUDA_ARCH (default below); others newer than the last run its PTX
#   --no-cuda     leave the CUDA back end out
#   --mirror URL  where packages come from (else: the first archive of Debian in this host's apt sources)
#   --jobs N      compilers at a time (default: one for each processor)
#   --clean       forget the system and what is built in it
set -euo pipefail
cd "$(dirname "$0")/../.."
. tests/mirror.sh
. tests/roots.sh
suite=bullseye sources=bookworm    # sources: the libraries that bullseye lacks or has too old are built from that suite's
arch='80-real;86-real;89-real;90a-real;90-virtual' cuda=1 mirror='' jobs=$(nproc)
root=$PWD/build/wheel/$suite
while [ $# -gt 0 ]; do
    case $1 in
    --arch) arch=$2; shift ;;
    --no-cuda) cuda=0 ;;
    --mirror) mirror=$2; shift ;;
    --jobs) jobs=$2; shift ;;
    --clean) rm -rf --one-file-system "$root" ;;
    -h | --help) sed -n '2,9s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "make.sh: unknown option '$1'; see --help" >&2; exit 2 ;;
    esac
    shift
done
[ "$(id -u)" = 0 ] || { echo "make.sh: a system in a folder can only be made and entered by root; run it with sudo" >&2; exit 1; }
command -v debootstrap >/dev/null || { echo "make.sh: 'debootstrap' is not there; install the package debootstrap" >&2; exit 1; }
mirror=${mirror:-$(archive_find Debian)}
[ -n "$mirror" ] || { echo "make.sh: no archive of Debian is in this host's apt sources; give one with --mirror" >&2; exit 1; }

binds=("$PWD:/src")
if [ $cuda = 1 ] && nvcc=$(command -v nvcc || ls /usr/local/cuda/bin/nvcc 2>/dev/null); then
    binds+=("$(dirname "$(dirname "$(readlink -f "$nvcc")")"):/usr/local/cuda")
else
    arch=none
fi
if [ ! -e "$root/whole" ]; then
    rm -rf --one-file-system "$root"
    debootstrap --variant=minbase --include=ca-certificates "$suite" "$root" "$mirror"
    printf 'deb %s %s main\ndeb-src %s %s main\n' "$mirror" "$suite" "$mirror" "$sources" >"$root/etc/apt/sources.list"
    touch "$root/whole"
fi
# what this host trusts counts there too: a network's own certificates may be needed for PyPI
[ ! -e /etc/ssl/certs/ca-certificates.crt ] || cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
ROOT_LIMIT_S=14400 root_enter "$root" "${binds[@]}" -- bash /src/examples/wheel/inside.sh "$arch" "$jobs"
ls -l build/wheel/rollcall-*.whl
