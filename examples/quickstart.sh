#!/bin/bash
# From a fresh clone to a model that learns: packages, build, a small starter model, GRPO with the console open.
#   --yes       no question before sudo apt-get
#   --packages  print the packages this needs, one per line, and stop
#   --prepare   stop before training
#   --batch     progress lines and a closing table instead of the console (also without a terminal)
#   -- ...      what follows goes to 'rollcall train'
set -euo pipefail
cd "$(dirname "$0")/.."
. examples/packages.sh
yes=0 prepare=0 batch=0
while [ $# -gt 0 ]; do
    case $1 in
    --yes) yes=1 ;;
    --packages) packages_list build; exit 0 ;;
    --prepare) prepare=1 ;;
    --batch) batch=1 ;;
    --) shift; break ;;
    -h | --help) sed -n '2,7s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "quickstart.sh: unknown option '$1'; see --help" >&2; exit 2 ;;
    esac
    shift
done
# shellcheck disable=SC2086 # a list of words
packages_install $yes $(packages_list build)
[ -t 0 ] && [ -t 1 ] || batch=1

echo "building ..." >&2
gpu=-DRC_CUDA=OFF    # for this machine alone; a package has code for every card
nvidia-smi -L >/dev/null 2>&1 && gpu=-DRC_CUDA_ARCH=native
cmake --preset release $gpu >build-log.tmp 2>&1 && cmake --build --preset release >>build-log.tmp 2>&1 || {
    tail -30 build-log.tmp >&2
    echo "the build failed; the whole log is in build-log.tmp" >&2
    exit 1
}
rm -f build-log.tmp
if [ ! -e build/starter/config.json ]; then
    echo "making the starter model (build/starter) and its data (build/data) ..." >&2
    examples/make_starter.sh
fi
[ $prepare = 1 ] && exit 0
if [ $batch = 1 ]; then
    exec build/release/rollcall train examples/arithmetic.yaml --batch "$@"
fi
exec build/release/rollcall train examples/arithmetic.yaml "$@"
