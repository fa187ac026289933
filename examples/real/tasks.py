#!/usr/bin/python3
"""Makes the tasks of examples/real: small sums, products, greatest common divisors and equations by reasoning-gym (PyPI), as rows of chat
messages with their answers. 2,500 rows of each task to train on, shuffled, and 100 of each that are held out.

    tasks.py DIR     writes into DIR
        train.jsonl, eval.jsonl, eval-TASK.jsonl     the four tasks
        boxed.jsonl, boxed-TASK.jsonl                these with "Put the final answer in \\boxed{}." at the end
        format.jsonl                                 conversations for 'rollcall sft' that show where the answer goes
        calculator.jsonl, calculator-eval.jsonl      expressions for examples/environments/calculator.py
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
N_TRAIN, N_EVAL, N_FORMAT = 2500, 100, 512
BOXED = " Put the final answer in \\boxed{}."
TOOL = "Use the calculator: write an expression alone, such as 12*3+4, and you are told its value. Then answer with the value in \\boxed{}.\nWhat is "


def rows(task):
    name, difficulty = TASKS[task]
    for row in reasoning_gym.create_dataset(name, size=N_TRAIN + N_EVAL, seed=42, **difficulty):
        question = re.sub(r" Give only the \w+ as your final answer\.", "", row["question"]).strip()
        yield {"messages": [{"role": "user", "content": question}], "gt_answer": str(row["answer"]), "task": task}


def boxed(row):
    return {**row, "messages": [{"role": "user", "content": row["messages"][0]["content"] + BOXED}]}


def shown(row):
    """A conversation whose answer stands where it should."""
    answer = {"role": "assistant", "content": f"The answer is \\boxed{{{row['gt_answer']}}}."}
    return {"messages": boxed(row)["messages"] + [answer]}


def expressions(n, seed):
    """Of three numbers, which the model does not do in its head."""
    r = random.Random(seed)
    for _ in range(n):
        e = f"{r.randint(11, 99)}*{r.randint(11, 99)}{r.choice('+-')}{r.randint(11, 99)}"
        yield {"messages": [{"role": "user", "content": f"{TOOL}{e}?"}], "expression": e}


def write(path, some):
    some = list(some)
    with open(path, "w", encoding="utf-8") as f:
        f.writelines(json.dumps(row) + "\n" for row in some)
    print(f"{len(some)} rows in {path}")


def main(folder):
    os.makedirs(folder, exist_ok=True)
    train, held_out = [], []

    def put(name, some):
        write(os.path.join(folder, name + ".jsonl"), some)
    for task in TASKS:
        all_rows = list(rows(task))
        put(f"eval-{task}", all_rows[N_TRAIN:])
        put(f"boxed-{task}", map(boxed, all_rows[N_TRAIN:]))
        held_out += all_rows[N_TRAIN:]
        train += all_rows[:N_TRAIN]
    questions = {row["messages"][0]["content"] for row in held_out}
    train = [row for row in train if row["messages"][0]["content"] not in questions]    # small numbers come again
    for name, some in (("train", train), ("eval", held_out)):
        random.Random(1).shuffle(some)
        put(name, some)
    put("boxed", map(boxed, train))
    put("format", map(shown, train[:N_FORMAT]))
    put("calculator", expressions(N_TRAIN, 1))
    put("calculator-eval", expressions(N_EVAL, 2))


if __name__ == "__main__":
    main(sys.argv[1])
