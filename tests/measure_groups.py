#!/usr/bin/env python3
"""How many scored groups per second 'rollcall serve --atropos-listen' takes and hands out again, and how its memory grows.

    tests/measure_groups.py [--groups N] [--per-post N] [--seqs 8] [--tokens 2048] [--logprobs] [--state]

One client posts groups with /scored_data_list and fetches as many with /batch, over one connection; the bodies are made before the
clock starts. The server is bound to one core. Printed are groups per second of the clock, and groups per second of the server's own
processor time, which other programs on the machine disturb less. --state: with the log on the disk of the temporary folder."""
import argparse
import http.client
import json
import os
import random
import re
import subprocess
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
ROLLCALL = os.environ.get("ROLLCALL", os.path.join(ROOT, "build/release/rollcall"))


def group(a, rng):
    tokens = [[rng.randrange(1000, 150000) for _ in range(a.tokens)] for _ in range(a.seqs)]
    g = {"tokens": tokens, "masks": [[-100] * (a.tokens // 4) + t[a.tokens // 4:] for t in tokens], "scores": [rng.random() for _ in range(a.seqs)]}
    if a.logprobs:
        g["inference_logprobs"] = [[1.0] * (a.tokens // 4) + [-rng.expovariate(3) for _ in range(a.tokens - a.tokens // 4)] for _ in range(a.seqs)]
    return json.dumps(g)


def cpu_s(pid):
    with open(f"/proc/{pid}/stat") as f:
        fields = f.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def status_mib(pid, what):
    with open(f"/proc/{pid}/status") as f:
        return int(re.search(what + r":\s+(\d+)", f.read())[1]) / 1024


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--groups", type=int, default=4000)
    p.add_argument("--per-post", type=int, default=8)
    p.add_argument("--seqs", type=int, default=8)
    p.add_argument("--tokens", type=int, default=2048)
    p.add_argument("--logprobs", action="store_true")
    p.add_argument("--state", action="store_true")
    a = p.parse_args()
    rng = random.Random(1)
    bodies = [("[" + ",".join([group(a, rng)] * a.per_post) + "]").encode() for _ in range(4)]
    with tempfile.TemporaryDirectory(prefix="rc-measure-") as folder:
        server = subprocess.Popen([ROLLCALL, "serve", "--atropos-listen", "127.0.0.1:0", "--body-mib", "64",
                                   *(["--state", os.path.join(folder, "state")] if a.state else [])],
                                  stdout=subprocess.PIPE, text=True, preexec_fn=lambda: os.sched_setaffinity(0, {os.cpu_count() - 1}))
        try:
            c = http.client.HTTPConnection("127.0.0.1", int(re.search(r":(\d+)", server.stdout.readline().split("//")[1])[1]))
            measure(a, c, bodies, server.pid)
        finally:
            server.kill()
            server.wait()


def ask(c, method, path, body=None):
    c.request(method, path, body)
    r = c.getresponse()
    text = r.read()
    assert r.status == 200, (r.status, text[:300])
    return text


def measure(a, c, bodies, pid):
    trainer = dict(wandb_group="g", wandb_project="p", batch_size=a.seqs * a.per_post, max_token_len=a.tokens, checkpoint_dir="",
                   save_checkpoint_interval=1, starting_step=0, num_steps=1)
    ask(c, "POST", "/register", json.dumps(trainer))
    peaks, began_cpu, began = [], cpu_s(pid), time.monotonic()
    n, n_posts = 0, max(1, a.groups // a.per_post)
    for i in range(n_posts):
        ask(c, "POST", "/scored_data_list", bodies[i % len(bodies)])
        batch = ask(c, "GET", "/batch")
        assert len(batch) > a.per_post * a.seqs * a.tokens, batch[:100]
        n += a.per_post
        if (i + 1) % max(1, n_posts // 4) == 0:
            peaks.append(status_mib(pid, "VmRSS"))
    wall, cpu = time.monotonic() - began, cpu_s(pid) - began_cpu
    print(f"{n} groups of {a.seqs} x {a.tokens} tokens{' with log-probs' if a.logprobs else ''}, {len(bodies[0]) / a.per_post / 1024:.0f} KiB each, "
          f"{a.per_post} per post, {'on disk' if a.state else 'in memory'}")
    print(f"{n / wall:.0f} groups/s of the clock, {n / cpu:.0f} groups/s of one core ({1000 * cpu / n:.2f} ms each)")
    print("memory after each quarter: " + ", ".join(f"{m:.0f}" for m in peaks) + f" MiB; peak {status_mib(pid, 'VmHWM'):.0f} MiB")


if __name__ == "__main__":
    main()
