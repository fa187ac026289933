#!/bin/bash
# A model learns to write small programs: its answers are run against tests in the sandbox. Needs bubblewrap; a few minutes each
# for the model and the run on two cores. At the end, what the evaluations say: the share of 200 held-out problems whose tests
# all pass. Once it went, on two cores shared with other work, one seed:
#   step                    0     10     20     30
#   greedy               65.5   86.5   92.0   92.5 %
#   sampled at 1         35.5   57.0   63.0   66.0 %
#   ROLLCALL  the program (default build/release/rollcall)
#   what follows goes to 'rollcall train'
set -euo pipefail
cd "$(dirname "$0")/.."
rollcall=${ROLLCALL:-build/release/rollcall}
data=build/programs
[ -x "$rollcall" ] || { echo "programs.sh: '$rollcall' is not there; examples/quickstart.sh --prepare builds it" >&2; exit 1; }
if [ ! -e $data/model/config.json ]; then
    echo "making the model and its data in $data ..." >&2
    rm -rf $data
    python3 -B examples/programs.py $data
    "$rollcall" random-model --shape starter --seed 1 --dtype float32 --tokenizer $data/tokenizer --out $data/init >&2
    # right programs first; then, shortly, mixed habits: a third right, a quarter without the fence, the rest with a slip
    "$rollcall" sft --model $data/init --out $data/model.part --eval-dataset $data/sft_eval.jsonl --beta2 0.98 \
        $data/sft_clean.jsonl,steps=500,batch=32,lr=2.5e-3,warmup=50,schedule=linear,min_ratio=0.02 \
        $data/sft_styles.jsonl,steps=60,batch=64,lr=5e-4,schedule=constant
    rm -rf $data/init $data/sft_clean.jsonl $data/sft_styles.jsonl
    mv $data/model.part $data/model
fi
exec "$rollcall" train examples/programs.yaml --batch "$@"
