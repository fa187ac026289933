#!/usr/bin/env python3
"""TRL's GRPO with the settings, data and rewards of examples/real/real.yaml, for comparison: accuracy on the held-out rows against steps and
seconds, in the form of 'rollcall export csv --series eval/…'.

    trl_run.py --out FILE.csv [--model DIR] [--tasks DIR] [--seed N] [--steps N] [--seconds S] [--generate plain|batching|vllm|fastest]

Needs torch, transformers and trl. The weights are masters in fp32 with bf16 autocast, as rollcall has them. The reward is gsm8k's: the last
number of an answer that ended by itself. Evaluations are sampled at temperature 1 as in rollcall, and their time does not count. --generate
fastest tries each way of sampling that runs here for three steps, and takes the one that needs the least time; vLLM only where it can be
imported. A row is written after each evaluation, so that a run that is cut leaves what it had.
"""
import argparse
import csv
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
import time

TASKS = ("sums", "products", "divisors", "equations")
NUMBER = re.compile(r"-?\$?(?:\d[\d,]*\.?\d*|\.\d+)")


def last_number(text):
    found = NUMBER.findall(text)
    if not found:
        return None
    try:
        return float(found[-1].replace(",", "").replace("$", ""))
    except ValueError:
        return None


def right(text, answer):
    return last_number(text) is not None and last_number(text) == float(answer)


def rows_of(path):
    with open(path, encoding="utf-8") as f:
        return [json.loads(line) for line in f]


def fastest(a):
    """The way of sampling with the least time per step, each tried in a process of its own."""
    ways = ["plain", "batching"] + (["vllm"] if importlib.util.find_spec("vllm") else [])
    best = None
    for way in ways:
        with tempfile.TemporaryDirectory() as folder:
            out = os.path.join(folder, "trial.csv")
            command = [sys.executable, os.path.abspath(__file__), "--out", out, "--model", a.model, "--tasks", a.tasks, "--steps", "4", "--generate", way,
                       "--no-eval", "--prompts", str(a.prompts), "--group", str(a.group), "--micro", str(a.micro)]
            try:
                done = subprocess.run(command, timeout=a.trial_seconds, check=False, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
                found = re.search(r"seconds per step: ([\d.]+)", done.stdout)
                why = "" if found else done.stderr.strip()[-300:]
            except subprocess.TimeoutExpired:
                found, why = None, f"not done in {a.trial_seconds} s"
        print(f"trl_run.py: {way}: {found[1] + ' s a step' if found else why}", flush=True)
        if found and (best is None or float(found[1]) < best[0]):
            best = (float(found[1]), way)
    return best[1] if best else "plain"


def main():
    parser = argparse.ArgumentParser(description="TRL's GRPO as examples/real/real.yaml has it.")
    parser.add_argument("--out", required=True)
    parser.add_argument("--model", default="build/real/model")
    parser.add_argument("--tasks", default="build/real/tasks")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=260)
    parser.add_argument("--seconds", type=float, default=0, help="stop after this many of training (0: no bound)")
    parser.add_argument("--generate", default="plain", choices=("plain", "batching", "vllm", "fastest"))
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--group", type=int, default=16)
    parser.add_argument("--micro", type=int, default=512, help="samples in a forward and backward pass")
    parser.add_argument("--eval-interval", type=int, default=25)
    parser.add_argument("--eval-limit", type=int, default=0)
    parser.add_argument("--trial-seconds", type=float, default=60)
    parser.add_argument("--no-eval", action="store_true")
    a = parser.parse_args()
    way = fastest(a) if a.generate == "fastest" else a.generate

    import torch    # pylint: disable=import-outside-toplevel
    from datasets import Dataset    # pylint: disable=import-outside-toplevel
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback    # pylint: disable=import-outside-toplevel
    from trl import GRPOConfig, GRPOTrainer    # pylint: disable=import-outside-toplevel

    cuda = torch.cuda.is_available()
    tokenizer = AutoTokenizer.from_pretrained(a.model, padding_side="left")
    end = tokenizer.eos_token_id

    def reward(completions, completion_ids, gt_answer, **_):
        """0 for an answer that was cut, as rollcall has it."""
        return [float(ids[-1] == end and right(said[0]["content"], answer)) if ids else 0.0
                for said, ids, answer in zip(completions, completion_ids, gt_answer)]

    train = Dataset.from_list([{"prompt": row["messages"], "gt_answer": row["gt_answer"]} for row in rows_of(os.path.join(a.tasks, "train.jsonl"))])
    held_out = {task: rows_of(os.path.join(a.tasks, f"eval-{task}.jsonl"))[:a.eval_limit or None] for task in TASKS}

    def evaluate(model):
        share = {}
        model.eval()
        for task, rows in held_out.items():
            texts = [tokenizer.apply_chat_template(row["messages"], tokenize=False, add_generation_prompt=True) for row in rows]
            batch = tokenizer(texts, return_tensors="pt", padding=True, add_special_tokens=False).to(model.device)
            with torch.no_grad(), torch.autocast(model.device.type, torch.bfloat16, enabled=cuda):
                out = model.generate(**batch, do_sample=True, temperature=1.0, top_k=0, top_p=1.0, max_new_tokens=64, pad_token_id=end, eos_token_id=end)
            said = out[:, batch["input_ids"].shape[1]:]
            share[task] = sum(bool((ids == end).any()) and right(tokenizer.decode(ids, skip_special_tokens=True), row["gt_answer"])
                              for ids, row in zip(said, rows)) / len(rows)
        model.train()
        return share

    class Watch(TrainerCallback):
        """Evaluates, writes the row, and keeps the clock of training alone."""
        def __init__(self):
            self.spent, self.began, self.marks = 0.0, None, []

        def pause(self):
            if cuda:
                torch.cuda.synchronize()
            self.spent += time.monotonic() - self.began

        def score(self, step, model):
            if not a.no_eval:
                row = {"step": step, "time": f"{self.spent:.3f}", **{"eval/" + task: f"{v:.4f}" for task, v in evaluate(model).items()}}
                with open(a.out, "a", encoding="utf-8", newline="") as f:
                    csv.DictWriter(f, row).writerow(row)
                print(f"step {step}, {self.spent:.1f} s: " + ", ".join(f"{k} {v}" for k, v in row.items() if k.startswith("eval/")), flush=True)
            if cuda:
                torch.cuda.synchronize()
            self.began = time.monotonic()

        def on_train_begin(self, args, state, control, model=None, **_):
            self.score(0, model)

        def on_step_end(self, args, state, control, model=None, **_):
            if cuda:
                torch.cuda.synchronize()
            self.marks.append(time.monotonic())
            over = a.seconds and self.spent + time.monotonic() - self.began >= a.seconds
            if state.global_step % a.eval_interval == 0 or state.global_step >= a.steps or over:
                self.pause()
                self.score(state.global_step, model)
            control.should_training_stop = bool(over) or state.global_step >= a.steps

    more = {"plain": {}, "batching": {"use_transformers_continuous_batching": True},
            "vllm": {"use_vllm": True, "vllm_mode": "colocate", "vllm_gpu_memory_utilization": 0.3, "vllm_max_model_length": 512}}[way]
    model = AutoModelForCausalLM.from_pretrained(a.model, dtype=torch.float32)
    if os.path.exists(a.out):
        os.unlink(a.out)
    if not a.no_eval:
        with open(a.out, "w", encoding="utf-8") as f:
            f.write(",".join(["step", "time"] + ["eval/" + task for task in TASKS]) + "\n")
    samples = a.prompts * a.group
    micro = min(a.micro, samples)
    watch = Watch()
    with tempfile.TemporaryDirectory() as folder:
        GRPOTrainer(model=model, reward_funcs=reward, train_dataset=train, processing_class=tokenizer, callbacks=[watch], args=GRPOConfig(
            output_dir=folder, seed=a.seed, max_steps=a.steps, per_device_train_batch_size=micro, gradient_accumulation_steps=samples // micro,
            num_generations=a.group, max_completion_length=64, temperature=1.0, beta=0.0, loss_type="dapo", scale_rewards="group", num_iterations=1,
            learning_rate=1.5e-5, lr_scheduler_type="constant_with_warmup", warmup_steps=5, weight_decay=0.0, max_grad_norm=1.0, bf16=cuda, use_cpu=not cuda,
            gradient_checkpointing=False, save_strategy="no", report_to="none", logging_steps=10, disable_tqdm=True, **more)).train()
    if len(watch.marks) > 1:
        print(f"seconds per step: {(watch.marks[-1] - watch.marks[0]) / (len(watch.marks) - 1):.3f}")
    print(f"{way}: {len(watch.marks)} steps in {watch.spent:.1f} s of training")


if __name__ == "__main__":
    main()
