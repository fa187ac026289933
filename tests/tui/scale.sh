#!/bin/bash
# Print what a large fleet and a long history cost the console. Figures, no pass or fail; a busy machine shows in them.
#   tests/tui/scale.sh [AGENTS [GPUS [RATE]]]     1000 agents, 8 GPUs each, a report per second each
set -euo pipefail
cd "$(dirname "$0")/../.."
agents=${1:-1000} gpus=${2:-8} rate=${3:-1}
rollcall=${ROLLCALL:-build/release/rollcall}
tests=build/release/tests
[ -x "$tests/tui_meter" ] && [ -x "$tests/tui_scale" ] && [ -x "$rollcall" ] || { echo "scale.sh: build first: cmake --build --preset release" >&2; exit 1; }
dir=$(mktemp -d)
served=
finish() {
    [ -z "$served" ] || { kill "$served" 2>/dev/null || true; wait "$served" 2>/dev/null || true; }
    rm -rf "$dir"
}
trap finish EXIT
serve() {    # NAME OPTIONS...: a simulated run in $dir/NAME
    local name=$1
    shift
    "$rollcall" simulate --run "$dir/$name" "$@" </dev/null >"$dir/$name.out" &
    served=$!
    for _ in $(seq 600); do
        grep -q live "$dir/$name.out" && return
        sleep 0.1
    done
    echo "scale.sh: the simulated run has not come up" >&2
    exit 1
}
echo "== $agents agents with $gpus GPUs each, $rate reports per second"
serve fleet --agents "$agents" --gpus "$gpus" --rate "$rate" --steps 100000
"$tests/tui_scale" fleet "$dir/fleet" "${SECONDS_EACH:-10}"
"$tests/tui_meter" 200x60 "${SECONDS_EACH:-10}" "$rollcall" console "$dir/fleet"
for _ in $(seq 10); do
    "$rollcall" ctl --run "$dir/fleet" pause
    "$rollcall" ctl --run "$dir/fleet" resume
done | sed 's/.*; //' | sort -n -t' ' -k7 | sed -n '1s/^/fastest: /p; 10s/^/median of 20: /p; 20s/^/slowest: /p'
finish_served() { kill "$served"; wait "$served" 2>/dev/null || true; served=; }
finish_served
echo "== 1,000,000 steps"
"$tests/tui_scale" history 1000000
serve long --agents 1 --gpus 1 --steps 1100000 --done 1000000
"$tests/tui_scale" load "$dir/long"
