#!/bin/bash
# Makes the quickstart's model, build/starter/, and its data, build/data/{train,eval}.jsonl, from nothing, in two to three minutes
# on two cores.
#
# A small Qwen2 (0.6 M parameters) is taught to work arithmetic out step by step until it is nearly always right, and then,
# shortly, mixed habits: a third worked and boxed, a fifth worked but not boxed, the rest boxed without any working, which it
# mostly gets wrong. What GRPO then has to find out from rewards alone is which of its habits pays.
#   ROLLCALL  the program (default build/release/rollcall)
#   DEVICE    what teaches it (default cpu:0); another device gives a starter of other bits
#   SHAPE     starter, or starter-moe: a mixture of 8 experts
#   OUT       where it goes (default build/starter)
set -euo pipefail
cd "$(dirname "$0")/.."
rollcall=${ROLLCALL:-build/release/rollcall} out=${OUT:-build/starter}
rm -rf "$out.part" "$out-init"
python3 examples/arithmetic.py build/data
"$rollcall" random-model --shape "${SHAPE:-starter}" --seed 1 --dtype float32 --tokenizer build/data/tokenizer --out "$out-init" >&2
"$rollcall" sft --model "$out-init" --out "$out.part" --device "${DEVICE:-cpu:0}" --eval-dataset build/data/sft_eval.jsonl --beta2 0.98 \
    --log-interval 200 \
    build/data/sft_clean.jsonl,steps=3000,batch=32,lr=2.5e-3,warmup=100,schedule=linear,min_ratio=0.02 \
    build/data/sft_styles.jsonl,steps=80,batch=64,lr=5e-4,schedule=constant
rm -rf "$out" "$out-init" build/data/sft_clean.jsonl build/data/sft_styles.jsonl
mv "$out.part" "$out"
