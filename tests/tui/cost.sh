#!/bin/bash
# Print what the console costs: processor share, bytes per second, time to answer a key. Figures, no pass or fail.
#   tests/tui/cost.sh [RUN_DIR]     on a live run; without one on a simulated run with a step every 0.25 s
set -euo pipefail
cd "$(dirname "$0")/../.."
rollcall=${ROLLCALL:-build/release/rollcall}
meter=build/release/tests/tui_meter
[ -x "$meter" ] && [ -x "$rollcall" ] || { echo "cost.sh: build first: cmake --build --preset release" >&2; exit 1; }
command=("$rollcall" simulate --step-seconds 0.25 --steps 100000)
[ $# -gt 0 ] && command=("$rollcall" console "$1")
for size in 80x24 160x50 250x70; do
    "$meter" "$size" "${SECONDS_EACH:-10}" "${command[@]}"
done
