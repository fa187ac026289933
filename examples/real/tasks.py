#!/usr/bin/python3
"""Makes the tasks of examples/real: small sums, products, greatest common divisors and equations by reasoning-gym (PyPI), as rows of chat
messages with their answers. 2,500 rows of each task to train on, shuffled, and 100 of each that are held out.

    tasks.py DIR     writes DIR/train.jsonl, DIR/eval.jsonl and DIR/eval-TASK.jsonl
"""
import json
import os
import random
import re
import sys
import reasoning_gym

TASKS = {
    "sums": ("chain_sum", dict(min_terms=2, max_terms=2, min_digits=1, max_digits=2)),
    "products": ("products", dict(min_terms=2, max_terms=2, min_digits=1, max_digits=1)),
    "divisors": ("gcd", dict(min_value=1, max_value=30)),
    "equations": ("simple_equations", dict(min_terms=2, max_terms=2, min_value=1, max_value=10)),
}
N_TRAIN, N_EVAL = 2500, 100


def rows(task):
    name, difficulty = TASKS[task]
    for row in reasoning_gym.create_dataset(name, size=N_TRAIN + N_EVAL, seed=42, **difficulty):
        question = re.sub(r" Give only the \w+ as your final answer\.", "", row["question"]).strip()
        yield {"messages": [{"role": "user", "content": question}], "gt_answer": str(row["answer"]), "task": task}


def write(path, some):
    with open(path, "w", encoding="utf-8") as f:
        f.writelines(json.dumps(row) + "\n" for row in some)


def main(folder):
    os.makedirs(folder, exist_ok=True)
    train, held_out = [], []
    for task in TASKS:
        all_rows = list(rows(task))
        write(os.path.join(folder, f"eval-{task}.jsonl"), all_rows[N_TRAIN:])
        held_out += all_rows[N_TRAIN:]
        train += all_rows[:N_TRAIN]
    questions = {row["messages"][0]["content"] for row in held_out}
    train = [row for row in train if row["messages"][0]["content"] not in questions]    # small numbers come again
    for name, some in (("train", train), ("eval", held_out)):
        random.Random(1).shuffle(some)
        write(os.path.join(folder, name + ".jsonl"), some)
        print(f"{len(some)} rows in {os.path.join(folder, name + '.jsonl')}")


if __name__ == "__main__":
    main(sys.argv[1])
