#!/bin/bash
# Try a fresh clone on other distributions, from nothing: a minimal system, the quickstart, the tests, the .deb. Needs root,
# debootstrap and a network; ends with a line for each suite. What is committed is tried, and compilers' warnings are errors.
#   SUITE ...       as debootstrap calls them: bookworm, trixie; with a mirror of Ubuntu: jammy, noble
#   --quick         of the tests only the unit tests of the release build
#   --only RE       of the tests only these (see tests/run.sh)
#   --mirror URL    where packages come from (else: the first archive of that distribution in this host's apt sources)
#   --keyring FILE  whose signatures count (else: debootstrap's choice)
#   --keep          leave the systems in $TMPDIR or build/distros; the logs stay in any case
set -euo pipefail
cd "$(dirname "$0")/.."
. tests/mirror.sh
. tests/roots.sh
LIMIT_S=5400    # of each stage: two busy cores need about 25 minutes for all tests

suites=() quick=0 only='' mirror='' keyring='' keep=0
while [ $# -gt 0 ]; do
    case $1 in
    --quick) quick=1 ;;
    --only) only=$2; shift ;;
    --mirror) mirror=$2; shift ;;
    --keyring) keyring=$2; shift ;;
    --keep) keep=1 ;;
    -h | --help) sed -n '2,10s/^# \{0,1\}//p' "$0"; exit 0 ;;
    -*) echo "distros.sh: unknown option '$1'; see --help" >&2; exit 2 ;;
    *) suites+=("$1") ;;
    esac
    shift
done
[ ${#suites[@]} -gt 0 ] || { echo "distros.sh: name a suite, such as trixie; see --help" >&2; exit 2; }
[ "$(id -u)" = 0 ] || { echo "distros.sh: a system in a folder can only be made and entered by root; run it with sudo" >&2; exit 1; }
command -v debootstrap >/dev/null || { echo "distros.sh: 'debootstrap' is not there; install the package debootstrap" >&2; exit 1; }

work=${TMPDIR:-$PWD/build}/distros logs=$PWD/build/distros
mkdir -p "$work" "$logs"
root=''
clean() { [ $keep = 1 ] || [ -z "$root" ] || rm -rf --one-file-system "$root"; }
trap clean EXIT
trap 'exit 130' INT TERM

# enter COMMAND...: run it in $root and its /src.
enter() {
    local cache='' binds=()
    command -v ccache >/dev/null && cache=$(ccache --get-config cache_dir) && mkdir -p "$cache" && binds=("$cache:/var/cache/ccache")
    ROOT_LIMIT_S=$LIMIT_S root_enter "$root" "${binds[@]}" -- env -C /src CCACHE_DIR=/var/cache/ccache CMAKE_C_COMPILER_LAUNCHER=ccache \
        CFLAGS=-Werror "$@"
}

# stage NAME COMMAND...: with a log, whose end is shown on failure.
stage() {
    local name=$1 log=$logs/$suite-$1.log start=$SECONDS
    shift
    if "$@" >"$log" 2>&1 </dev/null; then
        echo "ok      $suite: $name ($((SECONDS - start)) s)$(sed -n '$s/\(.* passed, .*\)/: \1/p' "$log")"
    else
        echo "FAILED  $suite: $name ($((SECONDS - start)) s); the whole log is in ${log#"$PWD"/}"
        tail -n 30 "$log" | sed 's/^/        | /'
        return 1
    fi
}

system_make() {
    local from=$mirror origin=Debian script='' components=main
    case $suite in jammy | noble | resolute) origin=Ubuntu ;; esac
    from=${from:-$(archive_find $origin)}
    [ -n "$from" ] || { echo "no archive of $suite's distribution is in this host's apt sources; give one with --mirror"; return 1; }
    case $suite in jammy | noble | resolute) components=main,universe script=jammy ;; esac
    # A debootstrap older than the suite has no script for it; scripts of neighbours do.
    [ ! -e "/usr/share/debootstrap/scripts/$suite" ] || script=''
    debootstrap --variant=minbase --components=$components ${keyring:+--keyring="$keyring"} --include=ca-certificates,ccache \
        "$suite" "$root" "$from" ${script:+"/usr/share/debootstrap/scripts/$script"}
    git clone --quiet --no-hardlinks . "$root/src"
}

try() {
    local tests=(tests/run.sh --yes)
    if [ $quick = 1 ]; then
        tests+=(--only '^unit/')
    elif [ -n "$only" ]; then
        tests+=(--only "$only")
    fi
    stage system system_make || return 1
    stage quickstart enter examples/quickstart.sh --yes --batch -- --max_steps 3 || return 1
    stage tests enter "${tests[@]}" || return 1
    stage package enter bash -euxc "
        apt-get install -y --no-install-recommends dpkg-dev file
        cmake --build --preset release --target package
        apt-get install -y --no-install-recommends ./build/release/rollcall_*.deb
        cd /tmp
        rollcall --version
        rollcall doctor
        rollcall train /src/examples/arithmetic.yaml --batch --max_steps 2
        apt-get remove -y rollcall
        if dpkg -L rollcall; then exit 1; fi
        test ! -e /usr/bin/rollcall" || return 1
}

status=0
for suite in "${suites[@]}"; do
    root=$work/$suite
    [ ! -e "$root" ] || { echo "distros.sh: '$root' is there already; remove it first" >&2; exit 1; }
    if try; then echo "ok      $suite"; else echo "FAILED  $suite"; status=1; fi
    clean
    root=''
done
exit $status
