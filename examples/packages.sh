# packages.sh - sourced by examples/quickstart.sh and tests/run.sh: which Debian packages are needed, and getting them
#
# packages_install YES NAME...: prints the one apt line for what is missing and runs it when root, else asks to run it with
# sudo (YES=1: no question). Nothing to do when all is there.

packages_build="cmake gcc libarb-dev libc6-dev libcurl4-openssl-dev libflint-dev libfyaml-dev libgmp-dev libjansson-dev
libmpfr-dev libmsgpack-dev libncurses-dev libnng-dev libpcre2-dev libseccomp-dev libsqlite3-dev libutf8proc-dev
libzstd-dev ninja-build pkg-config python3-minimal zlib1g-dev"
# Debian 12 names Arb's headers libflint-arb-dev; FLINT 3 (later releases) holds Arb itself.
packages_build=${packages_build/libarb-dev/libflint-arb-dev}

packages_install() {
    local yes=$1 missing=() p
    shift
    for p in "$@"; do
        dpkg-query -W -f='${Status}\n' "$p" 2>/dev/null | grep -q '^install ok installed$' || missing+=("$p")
    done
    [ ${#missing[@]} -eq 0 ] && return 0
    local line="apt-get install -y --no-install-recommends ${missing[*]}"
    if [ "$(id -u)" = 0 ]; then
        echo "missing packages; running: $line" >&2
    else
        echo "missing packages; needed: sudo $line" >&2
        if [ "$yes" != 1 ]; then
            [ -t 0 ] || { echo "run that line, or this script again with --yes" >&2; return 1; }
            read -r -p "run it now with sudo? [y/N] " p
            [ "$p" = y ] || [ "$p" = Y ] || return 1
        fi
        line="sudo $line"
    fi
    local update=apt-get
    [ "$(id -u)" = 0 ] || update="sudo apt-get"
    # shellcheck disable=SC2086 # words on purpose
    $update update -qq >&2 && DEBIAN_FRONTEND=noninteractive $line >&2 || {
        echo "the packages could not be installed; see apt's message above" >&2
        return 1
    }
}
