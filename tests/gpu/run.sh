#!/bin/bash
# run.sh GROUP...: the checks and measurements that need an NVIDIA GPU, one table at the end. Groups: tests, sanitize, decode, train.
# Uses .gpu (tests/gpu/pack.sh) when it is there, else build/release. Without a GPU every group is reported as skipped (exit 77),
# never as passed.
set -u
cd "$(dirname "$0")/../.."
root=$PWD table=()
bin=$root/build/release tests=$root/build/release/tests
if [ -d .gpu ]; then
    bin=$root/.gpu tests=$root/.gpu
    export LD_LIBRARY_PATH=$root/.gpu/lib:/usr/local/cuda/lib64:/usr/local/cuda/lib
fi
export NCCL_NVLS_ENABLE=0 TEST_DATA_DIR=$root/tests
if ! nvidia-smi -L >/dev/null 2>&1; then
    for group in "$@"; do echo "$group: skipped, there is no GPU"; done
    exit 77
fi
status=0
# note NAME COMMAND...: run it, keep its verdict (and its last JSON line) for the table
note() {
    local name=$1 out
    shift
    echo "== $name"
    if out=$(timeout 300 "$@" 2>&1); then
        table+=("passed  $name  $(grep '^{' <<<"$out" | tail -1)")
    else
        table+=("FAILED  $name")
        status=1
    fi
    tail -"${LINES_SHOWN:-12}" <<<"$out"
}
for group in "$@"; do
    case $group in
    tests)
        OPS_DEVICE=cuda:0 note "operations against ref, equal bits" "$tests/ops_test"
        OPS_DEVICE=cuda:0 note "sampler and trainer agree to the bit" "$tests/agreement_test"
        OPS_DEVICE=cuda:0 note "logits and gradients of PyTorch, fp32" "$tests/model_golden_test"
        OPS_DEVICE=cuda:0 note "rollouts, the host in step and one step behind" "$tests/generator_test"
        ;;
    sanitize)
        for tool in memcheck racecheck; do
            OPS_DEVICE=cuda:0 note "compute-sanitizer $tool" \
                compute-sanitizer --tool $tool --error-exitcode 9 "$tests/ops_test" short
        done
        ;;
    decode)
        note "decode 0.5B, batch 64" "$bin/rollcall" bench decode --device cuda:0 --shape Qwen2.5-0.5B --batch 64 --prompt 128 --new 256 --rounds 3
        note "decode 0.5B, batch 256" "$bin/rollcall" bench decode --device cuda:0 --shape Qwen2.5-0.5B --batch 256 --prompt 128 --new 256 --rounds 3
        note "decode 1.5B, batch 256" "$bin/rollcall" bench decode --device cuda:0 --shape Qwen2.5-1.5B --batch 256 --prompt 128 --new 256 --rounds 3
        note "decode 7B, batch 256" "$bin/rollcall" bench decode --device cuda:0 --shape Qwen2.5-7B --batch 256 --prompt 128 --new 256 --rounds 2
        ;;
    train)
        note "train 0.5B" "$bin/rollcall" bench train --device cuda:0 --shape Qwen2.5-0.5B --seq 2048 --tokens 16384
        note "train 1.5B" "$bin/rollcall" bench train --device cuda:0 --shape Qwen2.5-1.5B --seq 2048 --tokens 16384
        note "train 7B" "$bin/rollcall" bench train --device cuda:0 --shape Qwen2.5-7B --seq 2048 --tokens 8192 --micro 2048 --rounds 5
        note "train 7B, a tenth of the state in host memory" "$bin/rollcall" bench train --device cuda:0 --shape Qwen2.5-7B --seq 2048 --tokens 8192 --micro 4096 --host-share 0.1 --rounds 3
        note "train 1.5B, all of the state in host memory" "$bin/rollcall" bench train --device cuda:0 --shape Qwen2.5-1.5B --seq 2048 --tokens 16384 --host-share 1 --rounds 3
        ;;
    *)
        echo "unknown group '$group': tests, sanitize, decode, train"
        exit 2
        ;;
    esac
done
printf '%s\n' "${table[@]}"
exit $status
