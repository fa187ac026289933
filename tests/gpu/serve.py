#!/usr/bin/env python3
"""rollcall serve under load: streams of one server against `rollcall bench decode` of the same shape on the same card, and the time
to a first token of an idle server. Random weights of a real shape; prompts are token ids.

  tests/gpu/serve.py [SHAPE] [STREAMS] [DEVICE]        Qwen2.5-0.5B 64 cuda:0

Prints one JSON line; check is false when the server has less than 0.9 of the bench's tokens/s or a
first token takes over 30 ms. first_load_tok_per_s is of the first requests after its start."""
import json
import os
import random
import re
import selectors
import socket
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
ROLLCALL = os.environ.get("ROLLCALL") or os.path.join(ROOT, "build/release/rollcall")
PROMPT, NEW = 128, 256


def out(words, **more):
    return subprocess.run([str(w) for w in words], check=True, stdout=subprocess.PIPE, text=True, **more).stdout


def request_of(prompt, n_new):
    body = json.dumps({"prompt": prompt, "max_tokens": n_new, "temperature": 1.0, "ignore_eos": True, "stream": True,
                       "return_token_ids": True, "stream_options": {"include_usage": True}}).encode()
    return (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n"
            b"Content-Length: %d\r\n\r\n" % len(body) + body)


def tokens_of(answer):
    """The number of completion tokens that a stream's usage names."""
    usage = re.findall(rb'"completion_tokens": ?(\d+)', answer)
    if not usage:
        raise RuntimeError(answer[-500:].decode(errors="replace"))
    return int(usage[-1])


def first_token(port, prompt):
    """Seconds to the token of a completion of one."""
    kept, began = b"", time.monotonic()
    with socket.create_connection(("127.0.0.1", port), timeout=120) as c:
        c.sendall(request_of(prompt, 1))
        while b"data: {" not in kept:
            got = c.recv(1 << 16)
            if not got:
                raise RuntimeError(kept[-500:].decode(errors="replace"))
            kept += got
    return time.monotonic() - began


def load(port, prompts):
    """All prompts at once; returns tokens a second from the first request to the last answer. The requests are made before the clock starts,
    and a socket wakes the reader only for many tokens at once: clients in Python would be slower than the server otherwise."""
    requests, answer = [request_of(p, NEW) for p in prompts], {}
    with selectors.DefaultSelector() as ready:
        for _ in prompts:
            c = socket.create_connection(("127.0.0.1", port), timeout=120)
            c.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1 << 15)    # or the stream's end
            answer[c] = b""
            ready.register(c, selectors.EVENT_READ)
        began = time.monotonic()
        for c, request in zip(answer, requests):
            c.sendall(request)
        while ready.get_map():
            events = ready.select(120)
            if not events:
                raise RuntimeError("no stream has gone on for 120 s")
            for key, _ in events:
                got = key.fileobj.recv(1 << 17)
                answer[key.fileobj] = answer[key.fileobj][-4096:] + got
                if not got:
                    ready.unregister(key.fileobj)
                    key.fileobj.close()
        seconds = time.monotonic() - began
    return sum(map(tokens_of, answer.values())) / seconds


def main():
    shape, streams, device = (sys.argv[1:] + ["Qwen2.5-0.5B", "64", "cuda:0"][len(sys.argv) - 1:])[:3]
    streams = int(streams)
    with tempfile.TemporaryDirectory() as work:
        data = os.path.join(work, "data")
        out([sys.executable, os.path.join(ROOT, "examples/arithmetic.py"), data])
        model = os.path.join(work, "model")
        made = json.loads(out([ROLLCALL, "random-model", "--shape", shape, "--tokenizer", os.path.join(data, "tokenizer"),
                               "--keep-vocab", "--out", model]).splitlines()[-1])
        bench = [json.loads(line) for line in out([ROLLCALL, "bench", "decode", "--device", device, "--shape", shape, "--batch", streams,
                                                   "--prompt", PROMPT, "--new", NEW]).splitlines()]
        server = subprocess.Popen([ROLLCALL, "serve", "--model", model, "--device", device, "--listen", "127.0.0.1:0"],
                                  stdout=subprocess.PIPE, text=True)
        try:
            port = int(server.stdout.readline().split("127.0.0.1:")[1].split(",")[0])
            rng = random.Random(1)
            prompts = [[rng.randrange(made["tokenizer_ids"]) for _ in range(PROMPT)] for _ in range(streams)]
            first_rate = load(port, prompts)    # the server has warmed itself before it listens
            rates = [load(port, [[rng.randrange(made["tokenizer_ids"]) for _ in range(PROMPT)] for _ in range(streams)]) for _ in range(3)]
            firsts = [first_token(port, [rng.randrange(made["tokenizer_ids"]) for _ in range(PROMPT)]) for _ in range(20)]
        finally:
            server.terminate()
            server.wait(timeout=60)
    peer = bench[-1]["tok_per_s"]
    rate, first_ms = statistics.median(rates), 1000 * statistics.median(firsts)
    print(json.dumps({"bench": "serve", "model": shape, "device": device, "streams": streams, "prompt": PROMPT, "new": NEW,
                      "tok_per_s": round(rate), "bench_decode_tok_per_s": peer, "ratio": round(rate / peer, 3),
                      "first_load_tok_per_s": round(first_rate),
                      "first_token_ms": round(first_ms, 2), "check": rate >= 0.9 * peer and first_ms <= 30}))


if __name__ == "__main__":
    main()
