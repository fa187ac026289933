# packages.sh - sourced by examples/quickstart.sh and tests/run.sh: which packages are needed here, and getting them
#
# packages_list NEED...: prints what this distribution calls the packages that building (build) and testing (test) need, one a
# line.
# packages_install YES NAME...: prints the one apt line for what is missing and runs it when root, else asks to run it with
# sudo (YES=1: no question). Nothing to do when all is there.

# Need, distributions as ID-VERSION_ID of /etc/os-release, packages. 'all' are these four and whatever else there is; what is
# not among the four is taken for newer. FLINT 3 holds Arb itself. python3-minimal lacks what the sandbox of code rewards imports (ctypes).
packages_table='
build | all                                    | cmake gcc libc6-dev libcurl4-openssl-dev libflint-dev libfyaml-dev libgmp-dev
build | all                                    | libjansson-dev libmpfr-dev libncurses-dev libnng-dev
build | all                                    | libpcre2-dev libseccomp-dev libsnappy-dev libsqlite3-dev libutf8proc-dev libzstd-dev
build | all                                    | ninja-build pkg-config
build | all                                    | libssl-dev python3 zlib1g-dev
build | debian-12 ubuntu-22.04                 | libflint-arb-dev
build | debian-12 ubuntu-22.04 ubuntu-24.04    | libmsgpack-dev
build | debian-13 newer                        | libmsgpack-c-dev
test  | all                                    | bubblewrap clang git libcmocka-dev libvterm-dev procps tmux valgrind
test  | debian-12 debian-13 ubuntu-24.04 newer | libclang-rt-dev
test  | ubuntu-22.04                           | libclang-common-14-dev
test  | debian-12 ubuntu-22.04 ubuntu-24.04    | clang-format-14
'

packages_list() {
    local here need where names
    # shellcheck source=/dev/null
    here=$(. "${PACKAGES_OS_RELEASE:-/etc/os-release}" && echo "${ID:-}-${VERSION_ID:-}")
    [[ $packages_table =~ \ $here\  ]] || here=newer
    while IFS='|' read -r need where names; do
        if [[ " $* " == *" ${need%% *} "* && " $where " =~ \ (all|$here)\  ]]; then
            # shellcheck disable=SC2086 # a list of words
            printf '%s\n' $names
        fi
    done <<<"$packages_table"
}

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
