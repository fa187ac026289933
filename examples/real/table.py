#!/usr/bin/python3
"""Trains the model of examples/real in every form that the table in examples/real/README.md has, several runs side by side on one device,
and writes the table and its curves.

    table.py [RUN...] [--jobs N] [--seconds S] [--steps N] [--runs-dir D] [--devices D] [--list] [-- TRAIN OPTION...]

A run that was cut goes on where it was, and one that ended is not made again: call table.py as often as it takes. DIR/table.md and
DIR/curves.svg are written whenever a run ends. --seconds bounds the whole; what then runs is stopped, saves itself, and stands in the table
with the steps that it has made. DIR/trl.csv (tests/peers/trl_run.py) is read when it is there. Needs build/real (examples/real/real.sh --prepare).
"""
import argparse
import csv
import glob
import io
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
REAL = os.path.join("build", "real")
RUN_FILE = os.path.join("examples", "real", "real.yaml")
TASKS = ("sums", "products", "divisors", "equations")


FOUR = {task: "eval-" + task for task in TASKS}


def sets(names, folder, limit):
    """The value of eval_dataset."""
    rest = {"temperature": 1.0, **({"limit": limit} if limit else {})}
    return json.dumps({task: {"path": os.path.join(folder, file + ".jsonl"), **rest} for task, file in names.items()})


def algorithm(name, *more):
    return {"title": name, "args": ["--algo", name, "--kl_coeff", "0", *more]}


# Every variant is real.yaml with these options. Steps are on-policy, where the ratio is 1 and no clip matters: GSPO and CISPO are shown with
# four updates per step, in which theirs do.
RUNS = {
    "grpo-1": {"title": "GRPO, seed 1", "args": ["--seed", "1"]},
    "grpo-2": {"title": "GRPO, seed 2", "args": ["--seed", "2"]},
    "grpo-3": {"title": "GRPO, seed 3", "args": ["--seed", "3"]},
    "dapo": algorithm("DAPO"),
    "control": {"title": "control: GRPO, rewards shuffled", "args": ["--control_shuffle_rewards", "true"]},
    "rloo": algorithm("RLOO"),
    "ppb": algorithm("REINFORCE_PPB"),
    "dr_grpo": algorithm("DR_GRPO", "--loss_variation", "constant"),
    "gspo": algorithm("GSPO", "--loss_variation", "sample_level", "--update_minibatches", "4"),
    "cispo": algorithm("CISPO", "--update_minibatches", "4"),
    "lora": {"title": "GRPO, LoRA of rank 16", "args": ["--lora_rank", "16", "--learning_rate", "1.5e-4"]},
    "boxed": {"title": "GRPO, answers in \\boxed{}, after 40 steps of `rollcall sft`", "sft": True,
              "sets": {task: "boxed-" + task for task in TASKS},
              "args": ["--reward_type", "boxed", "--max_prompt_tokens", "128"], "data": "boxed"},
    "calculator": {"title": "GRPO, a calculator in two turns", "sets": {"calculator": "calculator-eval"}, "args": [
        "--reward_type", "environment", "--environment", f"program:{sys.executable} examples/environments/calculator.py", "--max_turns", "3",
        "--max_turn_tokens", "24", "--max_new_tokens", "96", "--max_prompt_tokens", "192"], "data": "calculator"},
}
STOPPED = 3    # the exit status of a run that was asked to stop, and can be resumed
SLOW = ("dapo", "boxed", "calculator")    # these first, so that none of them is the last to run alone
COLOURS = ("#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#e377c2", "#7f7f7f", "#bcbd22", "#17becf", "#003f5c", "#a05195", "#665191")


class Table:
    def __init__(self, a):
        self.a, self.until = a, time.monotonic() + a.seconds if a.seconds else None
        self.rollcall = os.environ.get("ROLLCALL", os.path.join(ROOT, "build", "release", "rollcall"))
        self.lock, self.children, self.ended, self.failed = threading.Lock(), set(), False, []
        self.waiting = queue.Queue()

    # processes

    def left(self):
        return None if self.until is None else max(self.until - time.monotonic(), 0)

    def child(self, name, command):
        """The command's exit status and standard output, with its log in DIR/NAME.log; at the end of all time it gets SIGTERM, which saves the run."""
        with open(os.path.join(self.a.runs_dir, name + ".log"), "ab") as log:
            with self.lock:
                if self.ended:
                    return 1, b""
                p = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=log)    # pylint: disable=consider-using-with
                self.children.add(p)
            try:
                out, _ = p.communicate(timeout=self.left())
            except subprocess.TimeoutExpired:
                p.send_signal(signal.SIGTERM)
                out, _ = p.communicate()
            with self.lock:
                self.children.discard(p)
            log.write(out)
        return p.returncode, out

    def stop(self, *_):
        with self.lock:
            self.ended = True
            for p in self.children:
                p.send_signal(signal.SIGTERM)

    # one run

    def path(self, *parts):
        return os.path.join(self.a.runs_dir, *parts)

    def boxed_before(self):
        """How often the model boxes the right answer by itself, as {set: share} in DIR/boxed-base.json."""
        share = {}
        for task in TASKS:
            status, out = self.child("boxed-base", [self.rollcall, "eval", "-m", self.a.model, "--device", self.a.devices, "-rt", "boxed", "-s", "none", "-T", "1",
                                                    "-mnt", "64", "-d", os.path.join(self.a.tasks, f"boxed-{task}.jsonl"), *self.a.eval_more])
            if status:
                return False
            share[task] = json.loads(out)["mean"]
        with open(self.path("boxed-base.json"), "w", encoding="utf-8") as f:
            json.dump(share, f)
        return True

    def format_taught(self):
        """DIR/format-model: the model after conversations that show where an answer goes."""
        if not os.path.exists(self.path("boxed-base.json")) and not self.boxed_before():
            return False
        if os.path.exists(self.path("format.done")):
            return True
        status, _ = self.child("format", [self.rollcall, "sft", "--force", "--model", self.a.model, "--out", self.path("format-model"), "--device", self.a.devices,
                                          "--dtype", "float32" if self.a.devices.startswith("cpu") else "bfloat16", "--log-interval", "10",
                                          os.path.join(self.a.tasks, "format.jsonl") + f",steps={self.a.sft_steps},batch=16,lr=2e-5,warmup=5"])
        if status == 0:
            with open(self.path("format.done"), "w", encoding="utf-8"):
                pass
        return status == 0

    def make(self, name):
        if os.path.exists(self.path(name + ".done")):
            return
        run, model = RUNS[name], self.a.model
        if run.get("sft"):
            if not self.format_taught():
                self.failed.append(name)
                return
            model = self.path("format-model")
        if os.path.exists(self.path(name, "journal.db")):
            command = [self.rollcall, "train", "--batch", "--resume", self.path(name), "--max_steps", str(self.a.steps)]
        else:
            command = [self.rollcall, "train", RUN_FILE, "--batch", "--runs-dir", self.a.runs_dir, "--name", name, "--model", model, "--devices", self.a.devices,
                       "--max_steps", str(self.a.steps), "--dataset", os.path.join(self.a.tasks, run.get("data", "train") + ".jsonl"),
                       "--eval_dataset", sets(run.get("sets", FOUR), self.a.tasks, self.a.eval_limit), *run["args"], *self.a.more]
        began = time.monotonic()
        status, _ = self.child(name, command)
        print(f"{name}: status {status} after {time.monotonic() - began:.0f} s", flush=True)
        with self.lock:
            if status == 0:
                with open(self.path(name + ".done"), "w", encoding="utf-8"):
                    pass
            elif status != STOPPED:
                self.failed.append(name)
            self.write()

    def lane(self):
        while not self.ended and (self.until is None or self.left() > 5):
            try:
                name = self.waiting.get_nowait()
            except queue.Empty:
                return
            self.make(name)

    # what came of it

    def write(self):
        found = {name: evaluations(self.rollcall, self.path(name)) for name in RUNS if os.path.exists(self.path(name, "journal.db"))}
        found = {name: rows for name, rows in found.items() if rows}
        lines = ["| run | sums | products | divisors | equations | mean | steps | seconds |", "|---|---|---|---|---|---|---|---|"]
        for name, rows in found.items():
            if name != "calculator":
                first = rows[0]
                if name == "boxed":
                    with open(self.path("boxed-base.json"), encoding="utf-8") as f:
                        first = json.load(f)
                lines.append(line(RUNS[name]["title"], [first, rows[-1]] if name != "boxed" else [first, rows[0], rows[-1]], rows[-1]))
        peer = read_rows(self.path("trl.csv"))
        if peer:
            lines.append(line("TRL, GRPO, seed 1", [peer[0], peer[-1]], peer[-1]))
        if "calculator" in found:
            rows = found["calculator"]
            lines += ["", "| run | right answers | steps | seconds |", "|---|---|---|---|",
                      f"| {RUNS['calculator']['title']} | {percent(rows[0]['calculator'])} → {percent(rows[-1]['calculator'])} % | {rows[-1]['step']} "
                      f"| {rows[-1]['seconds']:.0f} |"]
        with open(self.path("table.md"), "w", encoding="utf-8") as f:
            f.write("\n".join(lines) + "\n")
        series = {RUNS[name]["title"]: rows for name, rows in found.items()}
        curves(self.path("curves.svg"), "optimizer step", {t: [(r["step"], mean(r)) for r in rows] for t, rows in series.items()})
        both = {"rollcall, GRPO, seed 1": found.get("grpo-1", []), "TRL, GRPO, seed 1": peer}
        if peer and both["rollcall, GRPO, seed 1"]:
            curves(self.path("peer-steps.svg"), "optimizer step", {t: [(r["step"], mean(r)) for r in rows] for t, rows in both.items()})
            curves(self.path("peer-seconds.svg"), "second", {t: [(r["seconds"], mean(r)) for r in rows] for t, rows in both.items()})

    def run(self):
        for name in sorted(self.a.runs, key=lambda name: name not in SLOW):
            self.waiting.put(name)
        lanes = [threading.Thread(target=self.lane) for _ in range(self.a.jobs)]
        for t in lanes:
            t.start()
        for t in lanes:
            t.join()
        self.write()
        with open(self.path("table.md"), encoding="utf-8") as f:
            print(f.read(), end="")
        if self.failed:
            print(f"table.py: not made: {', '.join(self.failed)}; their logs are {self.path('NAME.log')}", file=sys.stderr)
        return 1 if self.failed else 0


def read_rows(path):
    if not os.path.exists(path):
        return []
    with open(path, encoding="utf-8") as f:
        return rows_of(f)


def rows_of(lines):
    """Rows of a CSV of evaluations as {"step", "seconds", set: share}; the seconds count from the first evaluation. One that was cut is left out."""
    rows = []
    for row in csv.DictReader(lines):
        score = {k[5:]: float(v) for k, v in row.items() if k.startswith("eval/") and v}
        if score and len(score) == sum(k.startswith("eval/") for k in row):
            rows.append({"step": int(row["step"]), "time": float(row["time"]), **score})
    for row in rows:
        row["seconds"] = row["time"] - rows[0]["time"]
    return rows


def evaluations(rollcall, run):
    names = ",".join("eval/" + os.path.basename(p).rsplit("_training_step_", 1)[0] for p in sorted(glob.glob(os.path.join(run, "eval", "*_training_step_0*.jsonl"))))
    if not names:
        return []
    done = subprocess.run([rollcall, "export", "csv", "--series", ",".join(dict.fromkeys(names.split(","))), run], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    return rows_of(io.StringIO(done.stdout)) if done.returncode == 0 else []


def mean(row):
    share = [v for k, v in row.items() if k not in ("step", "time", "seconds")]
    return sum(share) / len(share)


def percent(share):
    return f"{100 * share:.0f}"


def line(title, stages, last):
    cells = [" → ".join(percent(s[task]) for s in stages) + " %" for task in TASKS]
    cells.append(" → ".join(percent(sum(s[task] for task in TASKS) / len(TASKS)) for s in stages) + " %")
    return f"| {title} | " + " | ".join(cells) + f" | {last['step']} | {last['seconds']:.0f} |"


def curves(path, unit, series):
    """Lines of shares against what `unit` says, as a picture."""
    series = {t: points for t, points in series.items() if points}
    if not series:
        return
    most = max(x for points in series.values() for x, _ in points) or 1
    left, top, w, h, font = 50, 20, 520, 300, 'font-family="sans-serif" font-size="12"'
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + w + 300}" height="{top + h + 50}">', '<rect width="100%" height="100%" fill="white"/>']
    for share in range(0, 101, 20):
        y = top + h - h * share / 100
        out.append(f'<line x1="{left}" y1="{y:.1f}" x2="{left + w}" y2="{y:.1f}" stroke="#ddd"/><text x="{left - 8}" y="{y + 4:.1f}" text-anchor="end" {font}>{share} %</text>')
    for i in range(5):
        x = left + w * i / 4
        out.append(f'<text x="{x:.1f}" y="{top + h + 18}" text-anchor="middle" {font}>{most * i / 4:.0f}</text>')
    out.append(f'<text x="{left + w / 2}" y="{top + h + 38}" text-anchor="middle" {font}>{unit}; mean share of right answers, sampled at temperature 1</text>')
    for i, (title, points) in enumerate(series.items()):
        at = " ".join(f"{left + w * x / most:.1f},{top + h - h * y:.1f}" for x, y in points)
        colour, y = COLOURS[i % len(COLOURS)], top + 14 + 20 * i
        out.append(f'<polyline points="{at}" fill="none" stroke="{colour}" stroke-width="2"/>')
        out.append(f'<line x1="{left + w + 12}" y1="{y - 4}" x2="{left + w + 34}" y2="{y - 4}" stroke="{colour}" stroke-width="2"/>'
                   f'<text x="{left + w + 40}" y="{y}" {font}>{title.replace("`", "")}</text>')
    with open(path, "w", encoding="utf-8") as f:
        f.write("\n".join(out + ["</svg>"]) + "\n")


def main():
    ours, more = sys.argv[1:], []
    if "--" in ours:
        ours, more = ours[:ours.index("--")], ours[ours.index("--") + 1:]
    parser = argparse.ArgumentParser(description="The table of examples/real, run by run.")
    parser.add_argument("runs", nargs="*", metavar="RUN", help="of the table; without one: all")
    parser.add_argument("--jobs", type=int, default=3, help="runs at a time (3)")
    parser.add_argument("--seconds", type=float, default=0, help="of the whole; 0: without a bound")
    parser.add_argument("--steps", type=int, default=260)
    parser.add_argument("--sft-steps", type=int, default=40)
    parser.add_argument("--runs-dir", default=os.path.join(REAL, "runs"))
    parser.add_argument("--model", default=os.path.join(REAL, "model"))
    parser.add_argument("--tasks", default=os.path.join(REAL, "tasks"), help="folder that tasks.py wrote")
    parser.add_argument("--devices", default="cuda:0")
    parser.add_argument("--eval-limit", type=int, default=0, help="problems of each held-out set (0: all)")
    parser.add_argument("--list", action="store_true", help="print the runs and what they add to real.yaml")
    a = parser.parse_args(ours)
    if not set(a.runs) <= set(RUNS):
        parser.error(f"there are {', '.join(RUNS)}")
    if a.list:
        for name, run in RUNS.items():
            print(f"{name}: {' '.join(run['args'])}")
        return 0
    a.runs, a.more, a.eval_more = a.runs or list(RUNS), more, ["--limit", str(a.eval_limit)] if a.eval_limit else []
    os.chdir(ROOT)
    os.makedirs(a.runs_dir, exist_ok=True)
    table = Table(a)
    for s in (signal.SIGINT, signal.SIGTERM):
        signal.signal(s, table.stop)
    return table.run()


if __name__ == "__main__":
    sys.exit(main())
