#!/bin/bash
# What an operator must see, in tmux, on runs of the starter model (examples/make_starter.sh). About two minutes; exit 1 at what is not so.
#   tests/tui/journeys.sh [paste|boxes|rewind|over]...     all of them
set -euo pipefail
cd "$(dirname "$0")/../.."
rollcall=${ROLLCALL:-build/release/rollcall}
[ -x "$rollcall" ] || { echo "journeys.sh: build first: cmake --build --preset release" >&2; exit 1; }
[ -e build/starter/config.json ] && [ -e build/data/train.jsonl ] || { echo "journeys.sh: run examples/make_starter.sh first" >&2; exit 1; }
command -v tmux >/dev/null || { echo "journeys.sh: tmux is needed" >&2; exit 1; }
dir=$(mktemp -d)
export TMUX_TMPDIR=$dir
runs=()
finish() {
    tmux kill-server 2>/dev/null || true
    for pid in "${runs[@]}"; do kill "$pid" 2>/dev/null || true; done
    for pid in "${runs[@]}"; do wait "$pid" 2>/dev/null || true; done
    rm -rf "$dir"
}
trap finish EXIT
fail() { echo "journeys.sh: $1" >&2; tmux capture-pane -p >&2 2>/dev/null || true; exit 1; }
begin() {    # NAME OPTIONS...: a run in $dir/NAME
    local name=$1
    shift
    "$rollcall" train examples/arithmetic.yaml --batch --runs-dir "$dir" --name "$name" "$@" </dev/null >"$dir/$name.out" 2>&1 &
    runs+=($!)
}
look() {    # COLS ROWS RUN: a console
    tmux kill-server 2>/dev/null || true
    tmux new-session -d -x "$1" -y "$2" "$rollcall console '$dir/$3'"
}
shows() {    # SECONDS WORDS: within so long
    for _ in $(seq $(($1 * 5))); do
        tmux capture-pane -p | grep -qF -- "$2" && return
        sleep 0.2
    done
    fail "'$2' is not shown within $1 s"
}
ctl() { "$rollcall" ctl --run "$dir/$1" "${@:2}"; }
live() {    # RUN: until it trains
    for _ in $(seq 300); do
        [ -e "$dir/$1/sock/agent" ] && ctl "$1" status 2>/dev/null | grep -q running && return
        sleep 0.2
    done
    fail "$1 does not train: $(tail -3 "$dir/$1.out")"
}

paste() {    # 2 kB of prose into every pane: the run is as it was
    begin paste --max-steps 100000
    live paste
    look 120 36 paste
    shows 20 RUNNING
    python3 -c 'print(("Yes: stop it, please, and quit. set learning_rate=1\n" * 60)[:2048])' >"$dir/prose"
    tmux load-buffer "$dir/prose"
    local before
    before=$(ctl paste status --json | python3 -c 'import json,sys; s=json.load(sys.stdin); print(s["state"], s["knobs"])')
    for pane in 1 2 3 4 5 6 7 8 9 D V O; do
        tmux send-keys "$pane"
        tmux paste-buffer -p
        shows 5 "pasted text"
        tmux send-keys Escape
        sleep 0.3
    done
    [ "$before" = "$(ctl paste status --json | python3 -c 'import json,sys; s=json.load(sys.stdin); print(s["state"], s["knobs"])')" ] || fail "the run is not as it was"
    ctl paste stop --yes >/dev/null
    echo "paste: 2 kB into each of 12 panes changed nothing"
}

boxes() {    # DAPO, and no answer has a box: said on the small screen within 20 s
    begin boxes --algo DAPO --max-new-tokens 2 --waste-limit 0 --max-steps 100000
    live boxes
    look 60 15 boxes
    shows 20 "answers have the right format"
    tmux send-keys d
    shows 5 "filtered"
    echo "boxes: what all answers lack is named at 60x15"
    tmux send-keys Escape
    ctl boxes stop --yes >/dev/null || true
}

rewind() {    # a learning rate times 1000 asks, and is taken back (that accuracy comes back: tests/integration/rewind_test.py)
    begin rewind --max-steps 100000 --save-interval 5 --eval-interval 0
    live rewind
    look 120 36 rewind
    shows 20 RUNNING
    until ctl rewind status --json | python3 -c 'import json,sys; sys.exit(json.load(sys.stdin)["step"] < 12)'; do sleep 0.5; done
    local rate
    rate=$(ctl rewind status --json | python3 -c 'import json,sys; print(1000 * float(json.load(sys.stdin)["knobs"]["learning_rate"]))')
    tmux send-keys ":set learning_rate=$rate" Enter
    shows 5 "Are you sure?"
    tmux send-keys y
    shows 10 "learning_rate"
    sleep 5
    tmux send-keys ":rollback change" Enter
    shows 10 "Go back to step"
    tmux send-keys y
    shows 60 "back at step"
    echo "rewind: a learning rate of $rate asks, and the run goes back to before it"
    ctl rewind stop --yes >/dev/null
}

over() {    # a run that is over opens and says so
    begin over --max-steps 3 --eval-interval 0
    wait "${runs[-1]}" || fail "the run has not finished"
    look 80 24 over
    shows 20 FINISHED
    tmux send-keys q
    echo "over: a finished run opens and says FINISHED"
}

for journey in "${@:-paste boxes rewind over}"; do
    for one in $journey; do "$one"; done
done
