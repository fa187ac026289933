#!/bin/bash
# Press random keys and paste random texts into the console of a live run; the run must stay as it is.
#   tests/tui/monkey.sh [KEYS [SEED [train]]]     100000 keys, on a simulated run; train: on one that trains the starter model (build/starter)
set -euo pipefail
cd "$(dirname "$0")/../.."
rollcall=${ROLLCALL:-build/release/rollcall}
monkey=build/release/tests/tui_monkey
[ -x "$monkey" ] && [ -x "$rollcall" ] || { echo "monkey.sh: build first: cmake --build --preset release" >&2; exit 1; }
dir=$(mktemp -d)
if [ "${3:-}" = train ]; then
    [ -e build/starter/config.json ] || { echo "monkey.sh: run examples/make_starter.sh first" >&2; exit 1; }
    "$rollcall" train examples/arithmetic.yaml --batch --runs-dir "$dir" --name run --max-steps 1000000 </dev/null >"$dir/out" 2>&1 &
    ready='step'
else
    "$rollcall" simulate --agents 2 --gpus 2 --steps 1000000 --step-seconds 5 --run "$dir/run" </dev/null >"$dir/out" &
    ready=live
fi
served=$!
trap 'kill "$served" 2>/dev/null || true; wait "$served" 2>/dev/null || true; rm -rf "$dir"' EXIT
for _ in $(seq 600); do
    grep -q "$ready" "$dir/out" && break
    sleep 0.1
done
"$monkey" "$dir/run" "${1:-100000}" "${2:-1}" "$rollcall"
