#!/bin/bash
# run.sh GROUP...: the checks and measurements that need an NVIDIA GPU, one table at the end. Groups: tests, sanitize, decode, train,
# lora, moe, hybrid, kernels, attention (against cuDNN), step, serve, lent, start, learn, compare, ranks (two or four GPUs), teams (two or four),
# gap (two), publish (two).
# RC_CUDA_CARDS=4: what needs several GPUs runs on one under several names; only its bytes mean something then.
# Uses .gpu (tests/gpu/pack.sh) if it exists, else build/release. Without a GPU every group is reported as skipped (exit 77),
# never as passed.
set -u
cd "$(dirname "$0")/../.."
root=$PWD table=()
bin=$root/build/release tests=$root/build/release/tests rollcall=$bin/rollcall dump=$tests/model_dump python="python3"
if [ -d .gpu ]; then
    bin=$root/.gpu tests=$root/.gpu rollcall=$bin/rollcall.sh dump=$bin/model_dump.sh python="env -u LD_LIBRARY_PATH python3"
    export LD_LIBRARY_PATH=$root/.gpu/lib:/usr/local/cuda/lib64:/usr/local/cuda/lib
fi
export NCCL_NVLS_ENABLE=0 TEST_DATA_DIR=$root/tests
if ! nvidia-smi -L >/dev/null 2>&1; then
    for group in "$@"; do echo "$group: skipped, there is no GPU"; done
    exit 77
fi
cards=${RC_CUDA_CARDS:-$(nvidia-smi -L | wc -l)}
status=0
# note NAME COMMAND...: run it, keep its verdict (and its last JSON line) for the table; a measurement whose check is false has failed
note() {
    local name=$1 out
    shift
    echo "== $name"
    SECONDS=0
    if out=$(timeout "${LIMIT_S:-300}" "$@" 2>&1) && ! grep -q '"check": *false' <<<"$out"; then
        table+=("passed  $name  ${SECONDS}s  $(grep '^{' <<<"$out" | tail -1)")
    else
        table+=("FAILED  $name  ${SECONDS}s  $(grep '^{' <<<"$out" | tail -1)")
        status=1
    fi
    tail -"${LINES_SHOWN:-12}" <<<"$out"
    last=$(grep '^{' <<<"$out" | tail -1)
}
# field NAME: of the last JSON line
field() {
    grep -o "\"$1\":[0-9.]*" <<<"$last" | tail -1 | cut -d: -f2
}
# what equal bits cost in a step just measured: cost SHAPE ROWS MICROSECONDS
cost() {
    note "cost of equal bits, $1, $2 rows" "$bin/rollcall" bench gemm --device cuda:0 --shape "$1" --rows "$2" --step-us "$3"
}
# races COMMAND...: it succeeds, and racecheck finds no hazard in it but those of spread_kernel, which kernels/cuda/NOTES.md proves false. It
# runs once without racecheck, so that the algorithms are on disk and not timed under it.
races() {
    local log ran status
    "$@" >/dev/null 2>&1 || return 1
    log=$(mktemp)
    compute-sanitizer --tool racecheck --print-limit 100000 "$@" >"$log" 2>&1    # its status is the command's
    ran=$?
    grep -E '^{|SUMMARY' "$log"
    [ $ran = 0 ] && grep -q 'RACECHECK SUMMARY' "$log" && ! grep -E '(Error|Warning): ' "$log" | grep -v 'spread_kernel'
    status=$?
    rm "$log"
    return $status
}
export -f races
# where NCCL is, when the loader does not know: packed, or beside PyTorch
nccl_find() {
    local at
    for at in "$bin/lib/libnccl.so.2" $($python -c 'import nvidia.nccl as n; print(list(n.__path__)[0] + "/lib/libnccl.so.2")' 2>/dev/null); do
        [ -n "${RC_NCCL:-}" ] || [ ! -e "$at" ] || export RC_NCCL=$at
    done
}
# the starter task on two cards: starter_run N_BEHIND WAY; prints the weights' hash
starter_run() {
    local runs
    runs=$(mktemp -d)
    $rollcall train examples/arithmetic.yaml --batch --runs-dir "$runs" --name run --placement apart -t 1 -i 1 \
        --devices cuda:0,cuda:1 --n_behind "$1" --weights "$2" || return 1
    echo "$1 $(sha256sum <"$runs/run/checkpoints/step-000060/model.safetensors")" >>"$hashes"
    [ "$(grep -c 'equal on both sides' "$runs/run/logs/worker-cuda-1.log")" -ge 60 ]
}
for group in "$@"; do
    case $group in
    tests)
        cache=$(mktemp -d)
        XDG_CACHE_HOME=$cache OPS_DEVICE=cuda:0 note "operations against ref, equal bits" "$tests/ops_test"
        XDG_CACHE_HOME=$cache OPS_DEVICE=cuda:0 note "the same with algorithms from disk" "$tests/ops_test"
        sed -i 's/^own .*/own 8/; s/^library [0-9]*/library 999/' "$cache"/rollcall/products-*.txt
        XDG_CACHE_HOME=$cache OPS_DEVICE=cuda:0 note "the same with algorithms on disk that do not exist or are bad" "$tests/ops_test" short
        rm -r "$cache"
        OPS_DEVICE=cuda:0 note "sampler and trainer agree to the bit" "$tests/agreement_test"
        RC_CUDA_PATH=ampere OPS_DEVICE=cuda:0 note "operations against ref without Hopper's instructions" "$tests/ops_test"
        RC_CUDA_PRODUCTS=plain OPS_DEVICE=cuda:0 note "operations with products for cards whose library fails" "$tests/ops_test"
        RC_CUDA_PRODUCTS=plain OPS_DEVICE=cuda:0 note "sampler and trainer agree with them" "$tests/agreement_test"
        RC_CUDA_PATH=ampere OPS_DEVICE=cuda:0 note "sampler and trainer agree without them" "$tests/agreement_test"
        OPS_DEVICE=cuda:0 note "logits and gradients of PyTorch, fp32" "$tests/model_golden_test"
        OPS_DEVICE=cuda:0 note "rollouts, the host in step and one step behind" "$tests/generator_test"
        ;;
    sanitize)
        for tool in memcheck racecheck; do
            OPS_DEVICE=cuda:0 note "compute-sanitizer $tool" \
                compute-sanitizer --tool $tool --error-exitcode 9 "$tests/ops_test" short
        done
        whole=(learn --device cuda:0 --dtype bfloat16 --model build/starter --dataset build/data/train.jsonl
            --eval-dataset build/data/eval.jsonl --steps 1 --batch 2 --group-size 4 --eval-n 2)    # it decodes, trains and evaluates
        note "memcheck of a whole step" compute-sanitizer --tool memcheck --error-exitcode 9 "$tests/bench" "${whole[@]}"
        note "racecheck of a whole step" bash -c 'races "$@"' - "$tests/bench" "${whole[@]}"
        ;;
    decode)
        for case in 0.5B/64 0.5B/256 1.5B/256 7B/256; do
            shape=Qwen2.5-${case%/*} batch=${case#*/}
            note "decode $shape, batch $batch" "$bin/rollcall" bench decode --device cuda:0 --shape "$shape" --batch "$batch" \
                --prompt 128 --new 256 --rounds 3
            cost "$shape" "$batch" "$(field step_us)"
        done
        ;;
    train)
        for shape in Qwen2.5-0.5B Qwen2.5-1.5B; do
            note "train $shape" "$bin/rollcall" bench train --device cuda:0 --shape $shape --seq 2048 --tokens 16384
            cost $shape 16384 "$(field ms | awk '{ print $1 * 1000 }')"
        done
        note "train 7B" "$bin/rollcall" bench train --device cuda:0 --shape Qwen2.5-7B --seq 2048 --tokens 8192 --micro 2048 --rounds 5
        cost Qwen2.5-7B 2048 "$(field ms | awk '{ print $1 * 1000 / 4 }')"
        note "train 7B, a tenth of the state in host memory" "$bin/rollcall" bench train --device cuda:0 --shape Qwen2.5-7B --seq 2048 \
            --tokens 8192 --micro 4096 --host-share 0.1 --rounds 3
        note "train 1.5B, all of the state in host memory" "$bin/rollcall" bench train --device cuda:0 --shape Qwen2.5-1.5B --seq 2048 \
            --tokens 16384 --host-share 1 --rounds 3
        ;;
    lora)
        OPS_DEVICE=cuda:0 note "adapters: PEFT's logits and gradients, equal bits in sampler and trainer" "$tests/lora_test"
        for rank in 0 16; do
            note "train 7B, adapter of rank $rank, recompute" "$bin/rollcall" bench train --device cuda:0 --shape Qwen2.5-7B --seq 2048 \
                --tokens 8192 --micro 4096 --rounds 5 --recompute-full --lora-rank $rank
            note "decode 7B, batch 256, adapter of rank $rank" "$bin/rollcall" bench decode --device cuda:0 --shape Qwen2.5-7B --batch 256 \
                --prompt 128 --new 256 --rounds 3 --lora-rank $rank
        done
        ;;
    moe)
        for path in hopper ampere; do
            RC_CUDA_PATH=$path OPS_DEVICE=cuda:0 note "experts against ref, equal bits, $path" "$tests/experts_test"
        done
        OPS_DEVICE=cuda:0 note "sampler and trainer agree to the bit" "$tests/agreement_test"
        OPS_DEVICE=cuda:0 note "logits and gradients of PyTorch, fp32" "$tests/model_golden_test"
        for batch in 64 256 512; do
            note "decode Qwen3-30B-A3B, batch $batch" "$bin/rollcall" bench decode --device cuda:0 --shape Qwen3-30B-A3B --batch "$batch" \
                --prompt 128 --new 128 --rounds 3
        done
        note "train Qwen3-30B-A3B, adapter of rank 16" "$bin/rollcall" bench train --device cuda:0 --shape Qwen3-30B-A3B --seq 2048 \
            --tokens 16384 --lora-rank 16 --rounds 5
        note "train OLMoE-1B-7B" "$bin/rollcall" bench train --device cuda:0 --shape OLMoE-1B-7B --seq 2048 --tokens 16384 --micro 8192 \
            --rounds 5
        ROLLCALL=$rollcall DEVICE=cuda:0 SHAPE=starter-moe OUT=build/starter-moe note "the starter as a mixture, made here" \
            env -u LD_LIBRARY_PATH bash examples/make_starter.sh
        ROLLCALL=$rollcall note "the starter task with it, three seeds" $python examples/learning.py --seeds 1,2,3 --no-control -- \
            --devices cuda:0 -m build/starter-moe
        ;;
    hybrid)
        for path in hopper ampere; do
            RC_CUDA_PATH=$path OPS_DEVICE=cuda:0 note "the gated delta net against ref, equal bits, $path" "$tests/delta_rule_test"
        done
        OPS_DEVICE=cuda:0 note "sampler and trainer agree to the bit" "$tests/agreement_test"
        OPS_DEVICE=cuda:0 note "logits and gradients of PyTorch, fp32" "$tests/model_golden_test"
        for case in 4B/64 4B/256 9B/64; do
            note "decode Qwen3.5-${case%/*}, batch ${case#*/}" "$bin/rollcall" bench decode --device cuda:0 --shape "Qwen3.5-${case%/*}" \
                --batch "${case#*/}" --prompt 128 --new 128 --rounds 3
        done
        for seq in 2048 16384; do
            note "train Qwen3.5-4B, sequences of $seq" "$bin/rollcall" bench train --device cuda:0 --shape Qwen3.5-4B --seq $seq \
                --tokens 16384 --rounds 5
        done
        ;;
    kernels)
        for shape in Qwen2.5-0.5B Qwen2.5-1.5B Qwen2.5-7B Qwen3-0.6B; do
            note "attention $shape" "$bin/rollcall" bench attention --device cuda:0 --shape $shape --seq 2048 --n-seq 8 --batch 256 \
                --context 1024
        done
        ;;
    attention)
        ROLLCALL=$rollcall LINES_SHOWN=30 note "attention against cuDNN" $python tests/gpu/attention.py
        ;;
    step)
        ROLLCALL=$rollcall note "GRPO steps of whole runs" $python tests/gpu/step.py ${STEP_CASES:-}
        ;;
    serve)
        ROLLCALL=$rollcall note "64 streams served, 0.5B" $python tests/gpu/serve.py
        ;;
    lent)
        ROLLCALL=$rollcall note "a separate server on the trainer's memory, 1.5B" $python tests/gpu/lent.py
        ;;
    start)
        dir=$(mktemp -d)
        export XDG_CACHE_HOME=$dir/cache
        for shape in Qwen2.5-0.5B Qwen2.5-1.5B Qwen2.5-7B; do
            note "doctor $shape, algorithms chosen" "$bin/rollcall" doctor --devices --shape $shape
            note "doctor $shape, from disk" bash -c "'$bin/rollcall' doctor --devices --shape $shape | tee /dev/stderr | grep -q ' 5 of them from disk'"
            RC_CUDA_CHOICES=off note "weights of $shape, written" "$tests/bench" start --device cuda:0 --model "$dir/$shape" --shape $shape
            RC_CUDA_CHOICES=off note "start $shape, algorithms chosen" "$tests/bench" start --device cuda:0 --model "$dir/$shape"
            note "start $shape, from disk" "$tests/bench" start --device cuda:0 --model "$dir/$shape"
            [ $shape != Qwen2.5-7B ] || note "its first token within 8 s" awk "BEGIN { exit !($(field total_s) <= 8) }"
            rm -rf "${dir:?}/$shape"
        done
        hashes=()
        for choices in off on on; do
            RC_CUDA_CHOICES=$choices note "decode 0.5B, algorithms on disk: $choices" "$bin/rollcall" bench decode --device cuda:0 --shape Qwen2.5-0.5B \
                --batch 16 --prompt 64 --new 64 --rounds 1
            hashes+=("$(grep -o '"hash":"[^"]*"' <<<"$last")")
        done
        note "the same bits whatever is on disk" awk 'BEGIN { exit !(ARGV[1] != "" && ARGV[1] == ARGV[2] && ARGV[2] == ARGV[3]) }' "${hashes[@]}"
        rm -rf "${dir:?}"
        unset XDG_CACHE_HOME
        ;;
    learn)
        [ -e build/starter/config.json ] || ROLLCALL=$rollcall DEVICE=cuda:0 note "the starter, made here" env -u LD_LIBRARY_PATH bash examples/make_starter.sh
        for dtype in float32 bfloat16; do
            note "gradient of the starter task's first step, $dtype" "$tests/bench" learn --device cuda:0 --dtype $dtype \
                --model build/starter --dataset build/data/train.jsonl --eval-dataset build/data/eval.jsonl --steps 1 --against cpu:0
        done
        runs=$(mktemp -d)
        for seed in 1 2 3 4 5; do    # side by side: one run leaves most of the GPU idle
            ROLLCALL=$rollcall $python examples/learning.py --seeds $seed --no-control --runs-dir "$runs" -- --devices cuda:0 \
                >"$runs/table-$seed" 2>&1 &
        done
        wait
        note "the starter task, five seeds" awk '/^\| GRPO/ { print; n += $8 >= 80 && $13 >= 85 } END { exit n < 4 }' "$runs"/table-*
        ;;
    compare)
        for shape in Qwen2.5-0.5B Qwen3-0.6B; do
            note "logits and gradients against transformers, $shape" $python tests/gpu/compare_transformers.py --shape $shape \
                --rollcall "$rollcall" --dump "$dump"
        done
        ;;
    ranks)
        nccl_find
        if [ "$cards" -lt 2 ]; then
            table+=("skipped bytes between ranks: they need two GPUs")
        else
            RC_TEST_DEVICES=$(seq -s, -f 'cuda:%g' 0 $((cards > 3 ? 2 : cards - 1))) \
                note "bytes and sums between ranks, by host memory and by NCCL" "$tests/collective_test"
        fi
        ROLLCALL=$rollcall LIMIT_S=900 LINES_SHOWN=30 note "steps at each zero_stage" $python tests/gpu/zero.py ${ZERO_CASES:-}
        ROLLCALL=$rollcall LIMIT_S=900 LINES_SHOWN=30 note "the same runs on one, two and four GPUs" $python tests/gpu/ranks.py ${RANKS_CASES:-}
        [ "$cards" -lt 2 ] || ROLLCALL=$rollcall LIMIT_S=600 LINES_SHOWN=30 note "trainers on two nodes, by NCCL over sockets" $python tests/gpu/hosts.py ${HOSTS_CASES:-}
        for way in --tp --pp; do
            [ "$cards" -lt 4 ] || ROLLCALL=$rollcall LIMIT_S=600 LINES_SHOWN=30 note "trainers of two GPUs on two nodes, $way 2" $python tests/gpu/hosts.py $way 2 --zero 0,2,3 0.5B-short
        done
        ;;
    teams)
        if [ "$cards" -lt 2 ]; then
            table+=("skipped slices and stages on two GPUs: they need two")
        else
            OPS_DEVICE=cuda:0 LIMIT_S=300 note "slices and stages on several GPUs have the bytes of one" "$tests/team_test"
        fi
        ROLLCALL=$rollcall LIMIT_S=900 LINES_SHOWN=30 note "decoding and runs on one GPU and on teams" $python tests/gpu/teams.py ${TEAMS_ARGS:-}
        ;;
    gap)
        if [ "$cards" -lt 2 ]; then
            table+=("skipped two versions of the weights in work: they need two GPUs")
        else
            ROLLCALL=$rollcall LIMIT_S=600 LINES_SHOWN=30 note "two versions of the weights in work" $python tests/gpu/gap.py
        fi
        ;;
    publish)
        if [ "$cards" -lt 2 ]; then
            table+=("skipped publish: it needs two GPUs")
            continue
        fi
        nccl_find
        two=cuda:0,cuda:1
        for shape in Qwen2.5-1.5B Qwen2.5-7B; do
            for way in nccl copy; do
                for slots in 1 0; do
                    note "publish $shape by $way, $slots versions kept" "$bin/rollcall" bench publish --shape $shape --devices $two --way $way --slots $slots
                done
            done
            note "publish $shape on the same card" "$bin/rollcall" bench publish --shape $shape --devices cuda:0,cuda:0 --way copy --slots 0
            note "publish $shape in slices to both cards" "$bin/rollcall" bench publish --shape $shape --devices cuda:0,cuda:0,cuda:1 --way copy --slots 0
        done
        PUBLISH_DEVICES=$two note "weights between processes that die" "$tests/publish_test"
        PUBLISH_DEVICES=$two ROLLCALL=$rollcall note "whole runs by every way, killed too" $python tests/integration/publish_test.py
        [ -e build/starter/config.json ] || ROLLCALL=$rollcall DEVICE=cuda:0 note "the starter, made here" env -u LD_LIBRARY_PATH bash examples/make_starter.sh
        hashes=$(mktemp)
        export -f starter_run
        export rollcall hashes
        for n_behind in 0 1; do
            for way in nccl copy; do
                note "the starter task on two cards, n_behind $n_behind, by $way" bash -c "starter_run $n_behind $way"
            done
        done
        note "both ways end with the same weights" awk '{ seen[$1] = seen[$1] == "" || seen[$1] == $2 ? $2 : "differ"; n++ }
            END { exit n != 4 || seen[0] == "differ" || seen[1] == "differ" }' "$hashes"
        ;;
    *)
        echo "unknown group '$group': tests, sanitize, decode, train, lora, moe, hybrid, kernels, attention," \
            "step, serve, lent, start, learn, compare, ranks, teams, gap, publish"
        exit 2
        ;;
    esac
done
printf '%s\n' "${table[@]}"
[ $status = 1 ] || printf '%s\n' "${table[@]}" | grep -qv '^skipped' || status=77
exit $status
