#!/usr/bin/env python3
"""A number-guessing game as an environment: each turn is a guess, and the answer says whether the number is higher or lower.

    environment: "program:python3 examples/environments/guess.py"
The number is drawn from the item's seed, from 1 to the row's "most" (15 when it has none). What counts as the guess is the last number
of the turn. A right guess earns 10, one less for each guess before it; a turn without a number earns nothing and ends the game.
One JSON object per line comes in, one goes out; nothing else may be written to standard output."""
import json
import random
import re
import sys

games = {}    # by episode: the number, and how many guesses were made


def reset(ask):
    most = ask["row"].get("most", 15)
    games[ask["episode"]] = [random.Random(ask["seed"]).randint(1, most), 0]
    return {}    # the row's own prompt


def step(ask):
    game = games[ask["episode"]]
    number, tries = game
    found = re.findall(r"\d+", ask["text"])
    if not found:
        return {"reward": 0, "done": True}
    guess = int(found[-1])
    game[1] += 1
    if guess == number:
        return {"reward": max(10 - tries, 1), "done": True, "ans_acc": 1}
    return {"observation": "higher" if guess < number else "lower", "reward": 0, "ans_acc": 0}


for line in sys.stdin:
    ask = json.loads(line)
    if ask["op"] == "reset":
        answer = reset(ask)
    elif ask["op"] == "step":
        answer = step(ask)
    else:
        answer = {}
    if ask["op"] == "end" or answer.get("done"):
        games.pop(ask["episode"], None)
    print(json.dumps({"id": ask["id"], **answer}), flush=True)
