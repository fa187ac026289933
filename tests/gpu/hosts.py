#!/usr/bin/env python3
"""Trainers on two "nodes" of one machine, half of its GPUs each, with NCCL over sockets between all of them: at every zero_stage a run
must end in the bytes of one host's. With --tp or --pp each trainer has several of the GPUs, and the bytes are those of one trainer on one.

    tests/gpu/hosts.py [--work DIR] [--steps 3] [--count N] [--zero 0,1,2,3] [--tp 1] [--pp 1] [--grad-group 1] [CASE...]
cases: 0.5B (default) 1.5B 0.5B-short; starter, on CPUs, to try this script. RC_CUDA_CARDS=4: one card under four names

One JSON line for each run, then a table. Exits 1 when they end in other bytes. ROLLCALL names the program.
"""
import argparse, json, os, shutil, socket, subprocess, sys, threading, time
from ranks import MORE, n_gpu, sha256
from step import CASES, ROLLCALL, medians, whole_run

SOCKETS = {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1", "NCCL_NVLS_ENABLE": "0"}    # as between machines
JOIN_S = 300


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def node_join(run, port, devices, work, said):
    """Join as soon as the run has a token; said gets how it ended."""
    token, end = os.path.join(run, "sock/join"), time.monotonic() + JOIN_S
    while not os.path.exists(token) and time.monotonic() < end:
        time.sleep(0.05)
    done = subprocess.run([ROLLCALL, "agent", "--join", f"tcp://127.0.0.1:{port}", "--name", "b", "--dir", os.path.join(work, "node"),
                           "--devices", ",".join(devices), "--token-file", token], capture_output=True, text=True)
    said.append(done.stderr)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", default="/tmp/rollcall-hosts")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--count", type=int, help="GPUs of both hosts together (default: 4, or 2 on two GPUs)")
    parser.add_argument("--zero", default="0,1,2,3", help="zero_stages to try on two hosts (default: all)")
    parser.add_argument("--tp", type=int, default=1, help="GPUs of each trainer, or of each stage of its pipeline (default: 1)")
    parser.add_argument("--pp", type=int, default=1, help="stages of each trainer's pipeline (default: 1)")
    parser.add_argument("--grad-group", type=int, default=1, help="micro-batches that a trainer adds up before their gradient travels (default: 1)")
    parser.add_argument("case", nargs="*")
    a = parser.parse_args()
    os.makedirs(a.work, exist_ok=True)
    os.environ.update(SOCKETS)
    table, differ = [], False
    for name in a.case or ["0.5B"]:
        c = MORE.get(name) or CASES[name]
        kind, most = ("cpu", 4) if name == "starter" else ("cuda", n_gpu())
        n = a.count or (4 if most >= 4 else 2)
        device, each = [f"{kind}:{i}" for i in range(n)], a.tp * a.pp
        t, half = n // each, n // 2
        if n % (2 * each):
            sys.exit(f"hosts.py: {n} devices are no whole number of trainers of {each} on each of two hosts")
        first = None
        for hosts, zero in [(1, "auto")] + [(2, zero) for zero in a.zero.split(",")]:
            label, port, said = f"hosts-{name}-{hosts}-{zero}-{os.getpid()}", free_port(), []
            more, node = ["--zero_stage", zero, "--grad_group", str(a.grad_group), "--sum_parts", "4" if each > 1 else "0"], None
            alone = device if each == 1 else device[:1]    # on one host
            if hosts == 2:
                more += ["-t", str(t), "-tp", str(a.tp), "-pp", str(a.pp), "--trainers-per-node", str(t // 2),
                         "--listen", f"127.0.0.1:{port}", "--train_batch_size", str(c["prompts"] // t)]
                shutil.rmtree(os.path.join(a.work, "node"), ignore_errors=True)
                node = threading.Thread(target=node_join, args=(os.path.join(a.work, "runs", label), port, device[half:], a.work, said))
                node.start()
            path, step, _ = whole_run(c, ",".join(alone if hosts == 1 else device[:half]), a.work, label, a.steps, more,
                                      workers=t // 2 if hosts == 2 else None)
            if node:
                node.join()
            got = medians(step, ("generate_s", "train_s", "ranks_s", "step_s"))
            got["hosts_reduce_gb"] = step[-1].get("perf/hosts_reduce_gb")
            got["sha256"] = sha256(os.path.join(path, "checkpoints", f"step-{a.steps:06d}", "model.safetensors"))
            shutil.rmtree(path)
            first = first or got
            same = got["sha256"] == first["sha256"] and (hosts == 1 or "trains (" in said[0])
            differ |= not same
            print(json.dumps(dict(bench="hosts", case=name, hosts=hosts, devices=n if hosts == 2 else len(alone), tp=a.tp, pp=a.pp, zero_stage=zero, grad_group=a.grad_group, **got, check=same)), flush=True)
            what = f"{t} trainers of {each} on 2 hosts" if hosts == 2 else f"{len(alone)} on one host"
            table.append(f"{name:11}{what:27}  zero {zero:4}  step {got['step_s']:8.3f} s  train {got['train_s']:8.3f}"
                         f"  waited {got['ranks_s'] or 0:7.3f}  between hosts {got['hosts_reduce_gb'] or 0:6.3f} GB  {got['sha256'][:16]}  {'same bytes' if same else 'OTHER BYTES'}")
            if node and not same:
                table += said
    print("\n".join(table))
    sys.exit(differ)


if __name__ == "__main__":
    main()
