#!/usr/bin/env python3
"""A custom reward that compares: in each group, 10 for the shortest response, 0 for the longest, the others by rank.

    reward_type: "0.9*boxed + 0.1*program:python3 examples/rewards/shortest.py"
A length that is good for one prompt is too much for another, so lengths are judged within the prompt's group. Answering the
first question with "scope": "group" asks for all responses of a prompt at once."""
import json
import sys

for line in sys.stdin:
    ask = json.loads(line)
    if "responses" not in ask:
        answer = {"scope": "group"}
    else:
        lengths = [len(one["response"]) for one in ask["responses"]]
        others = max(len(lengths) - 1, 1)
        longer = [sum(other > n for other in lengths) for n in lengths]
        ties = [sum(other == n for other in lengths) - 1 for n in lengths]
        answer = {"rewards": [{"reward": 10 * (more + same / 2) / others, "rule": "%d characters" % n}
                              for n, more, same in zip(lengths, longer, ties)]}
    print(json.dumps({"id": ask["id"], **answer}), flush=True)
