#!/bin/bash
# Press random keys and paste random texts into the console of a live simulated run; the run must stay as it is.
#   tests/tui/monkey.sh [KEYS [SEED]]     100000 keys; the tests press 3000
set -euo pipefail
cd "$(dirname "$0")/../.."
rollcall=${ROLLCALL:-build/release/rollcall}
monkey=build/release/tests/tui_monkey
[ -x "$monkey" ] && [ -x "$rollcall" ] || { echo "monkey.sh: build first: cmake --build --preset release" >&2; exit 1; }
dir=$(mktemp -d)
"$rollcall" simulate --agents 2 --gpus 2 --steps 1000000 --step-seconds 5 --run "$dir/run" </dev/null >"$dir/out" &
served=$!
trap 'kill "$served" 2>/dev/null || true; wait "$served" 2>/dev/null || true; rm -rf "$dir"' EXIT
for _ in $(seq 600); do
    grep -q live "$dir/out" && break
    sleep 0.1
done
"$monkey" "$dir/run" "${1:-100000}" "${2:-1}" "$rollcall"
