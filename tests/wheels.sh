#!/bin/bash
# Try the package for pip in minimal systems that have pip and nothing else: install, doctor, the first run, removal. Needs root,
# debootstrap and a network; no compiler is installed in them. Make the package first: examples/wheel/make.sh.
#   SUITE ...       as debootstrap calls them (default: bullseye bookworm trixie)
#   --wheel FILE    the package (default: the one in build/wheel)
#   --mirror URL    where Debian's packages come from (else: the first archive of Debian in this host's apt sources)
#   --steps N       of the first run (default 5)
set -euo pipefail
cd "$(dirname "$0")/.."
. tests/mirror.sh
. tests/roots.sh
suites=() mirror='' steps=5 wheel=''
while [ $# -gt 0 ]; do
    case $1 in
    --wheel) wheel=$2; shift ;;
    --mirror) mirror=$2; shift ;;
    --steps) steps=$2; shift ;;
    -h | --help) sed -n '2,7s/^# \{0,1\}//p' "$0"; exit 0 ;;
    -*) echo "wheels.sh: unknown option '$1'; see --help" >&2; exit 2 ;;
    *) suites+=("$1") ;;
    esac
    shift
done
[ ${#suites[@]} -gt 0 ] || suites=(bullseye bookworm trixie)
wheel=${wheel:-$(ls build/wheel/rollcall-*.whl 2>/dev/null | head -n 1)}
[ -f "$wheel" ] || { echo "wheels.sh: there is no package '$wheel'; make it with examples/wheel/make.sh" >&2; exit 2; }
[ "$(id -u)" = 0 ] || { echo "wheels.sh: a system in a folder can only be made and entered by root; run it with sudo" >&2; exit 1; }
command -v debootstrap >/dev/null || { echo "wheels.sh: 'debootstrap' is not there; install the package debootstrap" >&2; exit 1; }
mirror=${mirror:-$(archive_find Debian)}
[ -n "$mirror" ] || { echo "wheels.sh: no archive of Debian is in this host's apt sources; give one with --mirror" >&2; exit 1; }

work=${TMPDIR:-$PWD/build}/wheels logs=$PWD/build/wheels-logs root=''
mkdir -p "$work" "$logs"
clean() { [ -z "$root" ] || rm -rf --one-file-system "$root"; }
trap clean EXIT
trap 'exit 130' INT TERM

try() {
    local log=$logs/$suite.log
    {
        debootstrap --variant=minbase --include=python3-pip,python3-venv "$suite" "$root" "$mirror" &&
            printf 'deb %s %s main\n' "$mirror" "$suite" >"$root/etc/apt/sources.list" && mkdir -p "$root/wheel" && cp "$wheel" "$root/wheel/"
    } >"$log" 2>&1 || { tail -n 5 "$log"; return 1; }
    # shellcheck disable=SC2016 # expanded inside
    ROOT_LIMIT_S=1200 root_enter "$root" -- bash -euc '
        say() { echo "        $*"; }
        cd /root
        say "$(. /etc/os-release && echo "$PRETTY_NAME"), $(python3 --version), glibc $(getconf GNU_LIBC_VERSION | cut -d" " -f2)," \
            "$(command -v gcc || echo no compiler)"
        python3 -m venv env
        from=$(date +%s%N)
        env/bin/pip install -q --no-index /wheel/*.whl
        say "pip install: $((($(date +%s%N) - from) / 1000000)) ms"
        PATH=/root/env/bin:$PATH
        rollcall --version | sed "s/^/        /"
        ! ldd env/bin/rollcall | grep "not found"
        rollcall doctor | sed "s/^/        /"
        rollcall quickstart
        rollcall train quickstart/arithmetic.yaml --batch --max_steps '"$steps"' 2>&1 | grep -E "^ *[0-9]+ |step" | tail -n 4 | sed "s/^/        /"
        ls runs/*/checkpoints | sed "s/^/        kept: /"
        apt-get update -qq && apt-get install -y -qq --no-install-recommends bubblewrap >/dev/null 2>&1
        rollcall doctor | grep -E "sandbox|code rewards" | sed "s/^/        with bubblewrap: /"
        env/bin/pip uninstall -q -y rollcall
        left=$(find env -path "*rollcall*" -type f)    # pip leaves empty folders
        [ -z "$left" ] || { say "pip uninstall left $left"; exit 1; }
        say "pip uninstall left no file"
    ' 2>&1 | tee -a "$log"
}

status=0
for suite in "${suites[@]}"; do
    root=$work/$suite start=$SECONDS
    rm -rf --one-file-system "$root"
    if try; then echo "ok      $suite ($((SECONDS - start)) s)"; else echo "FAILED  $suite; the log is in ${logs#"$PWD"/}/$suite.log"; status=1; fi
    clean
    root=''
done
exit $status
