#!/usr/bin/env python3
"""A reward that differs between responses whatever they say, so that a model with random weights has something to train on."""
import json, sys, zlib

for line in sys.stdin:
    ask = json.loads(line)
    print(json.dumps({"id": ask["id"], "reward": zlib.crc32(ask["response"].encode()) % 2}), flush=True)
