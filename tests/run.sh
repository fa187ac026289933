#!/bin/bash
# Build everything and pass every test; ends with 'N passed, N failed, N skipped'.
#   --yes       no question before sudo apt-get
#   --packages  print the packages this needs, one a line, and stop
#   --long      also what takes long: the whole kill matrix, more seeds, longer fuzzing
#   --only RE   only tests whose name matches the regular expression
set -euo pipefail
cd "$(dirname "$0")/.."
. examples/packages.sh
yes=0 runner=()
while [ $# -gt 0 ]; do
    case $1 in
    --yes) yes=1 ;;
    --packages) packages_list build test; exit 0 ;;
    --long) runner+=(--long) ;;
    --only) runner+=(--only "$2"); shift ;;
    -h | --help) sed -n '2,6s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "run.sh: unknown option '$1'; see --help" >&2; exit 2 ;;
    esac
    shift
done
# shellcheck disable=SC2086 # a list of words
packages_install $yes $(packages_list build test)
exec /usr/bin/python3 tests/runner.py "${runner[@]}"
