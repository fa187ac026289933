#!/usr/bin/env python3
"""A custom reward: 10 for the shortest response, falling to 0 at 400 characters.

Use it beside the answer's reward, so that right and short beats right and long:
    reward_type: "0.9*boxed + 0.1*program:python3 examples/rewards/length.py"
One JSON object per line comes in, one goes out; nothing else may be written to standard output."""
import json
import sys

for line in sys.stdin:
    ask = json.loads(line)    # id, response, row, and where known n_tok and finish
    n = len(ask["response"])
    print(json.dumps({"id": ask["id"], "reward": 10 * max(0, 1 - n / 400), "rule": "%d characters" % n}), flush=True)
