#!/usr/bin/env python3
"""A custom reward with accuracies: the share of the row's "keywords" (a list of words) that the response uses.

    reward_type: "program:python3 examples/rewards/same_words.py"
A row without keywords cannot be scored: an error leaves the sample out of its group instead of calling it wrong."""
import json
import sys

for line in sys.stdin:
    ask = json.loads(line)
    keywords = ask["row"].get("keywords")
    if not keywords:
        answer = {"error": "the row has no keywords"}
    else:
        words = set(ask["response"].lower().split())
        share = sum(word.lower() in words for word in keywords) / len(keywords)
        answer = {"reward": 10 * share, "ans_acc": int(share == 1), "format_acc": 1, "rule": "%d %% of the words" % (100 * share)}
    print(json.dumps({"id": ask["id"], **answer}), flush=True)
