#!/usr/bin/env python3
"""reasoning-gym's data sets for rollcall, with their own scorers. One program for the three places of a run:

    gym.py rows FILE TASK... [--n N] [--seed S] [--level L]    writes rows with tasks
    gym.py blank FILE N                                        writes rows without: for a run whose environment makes its tasks
    reward_type: "program:python3 gym.py score"           scores answers to such rows
    environment: "program:python3 gym.py play TASK..."    makes a new task for each blank row, and scores the answer; other rows keep theirs

TASK is a data set's name with its difficulty: 'chain_sum', 'chain_sum{min_terms:2,max_terms:4}'. 'reasoning_gym:' may stand before it. A
setting may grow with the level of the run (curriculum_levels): max_terms:2..6 is 2 at level 0, 3 at level 1, and 6 from level 4 on; [2,3,6]
is written max_terms:2|3|6. Without such a setting the library's own curriculum for that data set gives the level's difficulty.

The answer is what stands in the last <answer>...</answer>, else in the last \\boxed{...}, else the whole text after the last </think>."""
import argparse
import contextlib
import dataclasses
import difflib
import functools
import json
import os
import random
import re
import resource
import signal
import sys
from importlib import metadata

import reasoning_gym
from reasoning_gym.factory import CURRICULA, DATASETS

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "real"))
import tasks as real_tasks

TASK_BYTES_MAX, LEVEL_MAX, ROWS_MAX = 1000, 99, 10**6
WORK_S, MEMORY_BYTES = 5, 8 << 30    # of making a task or scoring an answer; of the program
NUMBER = re.compile(r"-?\d{1,15}(\.\d{1,15})?")
RANGE = re.compile(r"(-?\d{1,9})\.\.(-?\d{1,9})")


class Bad(Exception):
    """What a user wrote cannot be; one sentence."""


class Failed(Bad):
    """The library cannot do it."""


@contextlib.contextmanager
def bounded(what):
    """What the library does inside ends after WORK_S, with a sentence."""
    def late(*_):
        raise Bad(f"{what} takes more than {WORK_S} s")
    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(WORK_S)
    try:
        yield
    except Bad:
        raise
    except Exception as e:    # the library checks settings with assert, or fails where it uses them
        raise Failed(f"{what} fails: {str(e) or type(e).__name__}") from e
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def value(text):
    """A setting's value: true, false, a number, or a word."""
    if text in ("true", "false"):
        return text == "true"
    if NUMBER.fullmatch(text):
        return float(text) if "." in text else int(text)
    if re.fullmatch(r"[A-Za-z_][\w.-]{0,63}", text):
        return text
    raise Bad(f"'{text[:40]}' is no value: write a number, true, false or a word")


def steps(text):
    """The values of a setting by level: "2..6", "2|3|6", or a single one."""
    if m := RANGE.fullmatch(text):
        low, high = int(m[1]), int(m[2])
        if abs(high - low) > LEVEL_MAX:
            raise Bad(f"'{text}' has more than {LEVEL_MAX + 1} levels; write fewer")
        return list(range(low, high + 1) if low <= high else range(low, high - 1, -1))
    return [value(part) for part in text.split("|")]


@dataclasses.dataclass
class Task:
    text: str
    name: str
    settings: dict    # setting: its values by level

    def config(self, level):
        """The settings at a level; None: of a run without levels."""
        at = {k: v[min(level or 0, len(v) - 1)] for k, v in self.settings.items()}
        if level is None or any(len(v) > 1 for v in self.settings.values()):
            return at
        if self.name not in CURRICULA:
            raise Bad(f"reasoning-gym has no curriculum for '{self.name}': let a setting grow, as in {self.name}{{SETTING:2..6}}, or leave "
                      "curriculum_levels at 1")
        curriculum = CURRICULA[self.name]()
        curriculum.set_global_level(level)
        made = curriculum.generate_configuration(at)
        return {**{f.name: getattr(made, f.name) for f in dataclasses.fields(made)}, **at}

    def entry(self, seed, level):
        """The data set and its task of this seed."""
        config = {**self.config(level), "seed": seed, "size": 1}
        with bounded(f"making '{self.text}'{'' if level is None else f' at level {level}'}"):
            data = reasoning_gym.create_dataset(self.name, **config)
            return data, data[0]


@functools.lru_cache(maxsize=64)
def task_of(text):
    """The task that a user wrote; Bad says what is wrong and what would be right."""
    m = re.fullmatch(r"(?:reasoning_gym:)?([a-z0-9_]{1,64})(?:\{([^{}]*)\})?", text) if len(text) <= TASK_BYTES_MAX else None
    if not m:
        raise Bad(f"'{text[:60]}' is no task: write a data set's name and its settings, as in chain_sum{{min_terms:2,max_terms:4}}")
    name = m[1]
    if name not in DATASETS:
        near = next(iter(difflib.get_close_matches(name, DATASETS, 1)), None)
        raise Bad(f"reasoning-gym {version()} has no data set '{name}'{f'; did you mean {near}?' if near else ''} ('gym.py list' names all)")
    known = {f.name: f.default for f in dataclasses.fields(DATASETS[name][1]) if f.name not in ("seed", "size")}
    settings = {}
    for part in filter(None, (part.strip() for part in (m[2] or "").split(","))):
        key, _, said = part.partition(":")
        key = key.strip()
        if key not in known or not said:
            raise Bad(f"'{part[:60]}' in '{text[:60]}' is no setting of '{name}': write one of {', '.join(sorted(known))}, and after ':' its value")
        if key in settings:
            raise Bad(f"'{key}' is given twice in '{text[:60]}'; write it once")
        settings[key] = steps(said.strip())
        kind = type(known[key])
        for one in settings[key]:
            if kind in (bool, int, float, str) and not (type(one) is kind or (kind is float and type(one) is int)):
                raise Bad(f"'{key}' of '{name}' is {json.dumps(one)}; it must be of the kind of {json.dumps(known[key])}")
    return Task(text, name, settings)


def version():
    return metadata.version("reasoning-gym")


def level_of(row):
    level = row.get("level")
    if level is not None and (not isinstance(level, int) or not 0 <= level <= LEVEL_MAX):
        raise Bad(f"the row's level is {str(level)[:20]}; write a whole number from 0 to {LEVEL_MAX}")
    return level


def answer_of(text):
    tagged = re.findall(r"<answer>(.*?)</answer>", text, re.S)
    boxed = re.findall(r"\\boxed\{([^{}]*)\}", text)
    return (tagged or boxed or [text.rpartition("</think>")[2]])[-1].strip()


def score(entry, text):
    """0 to 1, by the data set's own scorer."""
    data, task = entry
    try:
        with bounded("scoring the answer"):
            return float(data.score_answer(answer_of(text), task))
    except Failed:    # some scorers read only answers of the right form
        return 0.0


def row_of(task, seed, level):
    _, made = task.entry(seed, level)
    row = {"messages": [{"role": "user", "content": made["question"]}], "gt_answer": str(made["answer"]),
           "gym": {"task": task.text, "seed": seed}}
    return row if level is None else {**row, "level": level}


@functools.lru_cache(maxsize=1024)
def entry_made(text, seed, level):
    return task_of(text).entry(seed, level)


def entry_of_row(row):
    """The task that a row of 'gym.py rows' has; it is made again, so that nothing of it is lost in JSON."""
    gym = row["gym"]
    entry = entry_made(str(gym["task"]), int(gym["seed"]), level_of(row))
    if row["messages"][-1]["content"] != entry[1]["question"]:
        raise Bad(f"the row's task is not what reasoning-gym {version()} makes of '{gym['task']}'; make the rows with this version")
    return entry


# ---- the three programs

def lines(answer):
    """Answer each question on standard input, one line each."""
    for line in sys.stdin:
        ask = json.loads(line)
        try:
            said = answer(ask)
        except Bad as e:
            said = {"error": str(e)}
        except (KeyError, TypeError, ValueError, AttributeError) as e:
            said = {"error": f"the row is none of 'gym.py rows' ({type(e).__name__}: {e})"}
        print(json.dumps({"id": ask["id"], **said}), flush=True)


def score_lines():
    def answer(ask):
        share = score(entry_of_row(ask["row"]), ask["response"])
        return {"reward": share, "ans_acc": int(share >= 1)}
    lines(answer)


def play_lines(texts):
    games = {}

    def answer(ask):
        if ask["op"] == "reset":
            row, seed = ask["row"], ask["seed"]
            if "gym" in row:
                entry = entry_of_row(row)
            else:
                entry = entry_made(texts[seed % len(texts)], seed // len(texts) % 2**31, level_of(row))
            games[ask["episode"]] = entry
            return {"messages": [{"role": "user", "content": entry[1]["question"]}]}
        if ask["op"] == "end":
            games.pop(ask["episode"], None)
            return {}
        share = score(games[ask["episode"]], ask["content"])
        return {"reward": share, "ans_acc": int(share >= 1), "done": True}
    for text in texts:
        task_of(text).entry(0, None)
    lines(answer)


def main():
    p = argparse.ArgumentParser(prog="gym.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sub = p.add_subparsers(dest="what", required=True)
    rows = sub.add_parser("rows")
    rows.add_argument("file")
    rows.add_argument("task", nargs="+")
    rows.add_argument("--n", type=int, default=100, help="rows of each task")
    rows.add_argument("--seed", type=int, default=0)
    rows.add_argument("--level", type=int, help="that the rows have")
    blank = sub.add_parser("blank")
    blank.add_argument("file")
    blank.add_argument("n", type=int)
    sub.add_parser("score")
    sub.add_parser("play").add_argument("task", nargs="+")
    sub.add_parser("list")
    args = p.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    try:
        if args.what in ("rows", "blank") and not 0 < args.n <= ROWS_MAX:
            raise Bad(f"{args.n} rows cannot be made; ask for 1 to {ROWS_MAX}")
        if args.what == "rows":
            made = [row_of(task_of(text), args.seed * ROWS_MAX + i, level_of({"level": args.level})) for text in args.task for i in range(args.n)]
            random.Random(args.seed).shuffle(made)
            real_tasks.write(args.file, made)
        elif args.what == "blank":
            real_tasks.write(args.file, ({"messages": [{"role": "user", "content": f"task {i}"}]} for i in range(args.n)))
        elif args.what == "list":
            print("\n".join(sorted(DATASETS)))
        elif args.what == "score":
            score_lines()
        else:
            play_lines(args.task)
    except (Bad, OSError) as e:
        sys.exit(f"gym.py: {e}")


if __name__ == "__main__":
    main()
