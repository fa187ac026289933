#!/bin/bash
# Draw the console as it looks on a live run, as SVG: a real picture of a real terminal's cells.
#   examples/screenshot.sh [RUN_DIR] [OUT.svg]      default: the only live run under ./runs, and examples/console.svg
# SIZE (120x36) and THEME (dark or light) may be set in the environment; KEYS are pressed before, e.g. KEYS=3 for rollouts.
set -euo pipefail
cd "$(dirname "$0")/.."
rollcall=${ROLLCALL:-build/release/rollcall}
draw=build/release/tests/tui_screenshot
run=${1:-} out=${2:-examples/console.svg} theme=${THEME:-dark}
[ -x "$draw" ] && [ -x "$rollcall" ] || { echo "screenshot.sh: build first, with libvterm-dev and libcmocka-dev installed" >&2; exit 1; }
steps=(wait:RUNNING "wait:? help" sleep:3)
[ -n "${KEYS:-}" ] && steps+=("keys:$KEYS" sleep:1.5)
"$draw" "$out" "${SIZE:-120x36}" "$theme" "${steps[@]}" -- "$rollcall" console --theme "$theme" ${run:+"$run"}
echo "$out"
