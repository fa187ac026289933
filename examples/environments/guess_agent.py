#!/usr/bin/env python3
"""The guessing game of guess.py as a program that asks the model: it knows nothing of training, and needs the standard library alone.

    environment: "harness:python3 examples/environments/guess_agent.py"
It is started once for each sample. The session comes in as one line of JSON on standard input; the model is asked at OPENAI_BASE_URL, as
OpenAI's client does; the last line that it prints is the reward. With that client installed, `ask` is the two lines of its comment."""
import json
import os
import random
import re
import sys
import urllib.request


def ask(messages):
    # client = openai.OpenAI()
    # return client.chat.completions.create(model=os.environ["OPENAI_MODEL"], messages=messages).choices[0].message.content
    body = json.dumps({"model": os.environ["OPENAI_MODEL"], "messages": messages}).encode()
    head = {"Content-Type": "application/json", "Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
    with urllib.request.urlopen(urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, head)) as answer:
        return json.load(answer)["choices"][0]["message"]["content"]


def play(session, turns=4):
    row = session["row"]
    number = random.Random(session["seed"]).randint(1, row.get("most", 15))
    messages = list(row["messages"])
    for tries in range(turns):
        text = ask(messages)
        found = re.findall(r"\d+", text)
        if not found:
            return {"reward": 0}
        if int(found[-1]) == number:
            return {"reward": max(10 - tries, 1), "ans_acc": 1}
        messages += [{"role": "assistant", "content": text}, {"role": "user", "content": "higher" if int(found[-1]) < number else "lower"}]
    return {"reward": 0, "ans_acc": 0}


print(json.dumps(play(json.loads(sys.stdin.readline()))))
