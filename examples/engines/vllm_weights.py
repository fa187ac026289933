#!/usr/bin/env python3
"""Gives a run's weights to vLLM servers through their NCCL weight transfer: a command for 'engine_helper'.

    VLLM_SERVER_DEV_MODE=1 vllm serve MODEL --weight-transfer-config '{"backend": "nccl"}' --logprobs-mode processed_logprobs
    rollcall train run.yaml --backend vllm --engine-url http://HOST:8000 \\
        --engine-helper '/opt/vllm/bin/python examples/engines/vllm_weights.py'

Runs in the engine's virtual environment, since both ends must have the same NCCL. It needs a GPU that none of the engine's workers is on, and
of that as much memory as a bucket (--bucket-mib) or the largest tensor, twice. Each version is read from the run's directory, which the
engine need not see. vLLM 0.26.

It owns the store at which the engine's workers meet it (rank 0), at --address, which they must be able to reach. The group is kept; when
anything goes wrong it answers with the error and ends, is started again by the run, and makes another.

Each line in is {"id", "url", "dir", "version"}, each line out {"id", "ok": true, "bytes", "seconds"} or {"id", "error"}.
"""
import argparse
import glob
import json
import os
import socket
import sys
import threading
import time
import urllib.error
import urllib.request

LIMIT_S = 500    # of one request to the engine; the run waits 600


class Engine:
    """A vLLM server, and the group of its workers and this process once it has been made."""

    def __init__(self, url, token):
        self.url, self.token, self.group = url, token, None

    def ask(self, path, body=None, post=True):
        data = json.dumps(body or {}).encode() if post else None
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"})
        if self.token:
            request.add_header("Authorization", "Bearer " + self.token)
        try:
            with urllib.request.urlopen(request, timeout=LIMIT_S) as r:
                return json.loads(r.read() or b"{}")
        except urllib.error.HTTPError as e:
            raise RuntimeError(f"{path} is answered with {e.code}: {e.read(300).decode(errors='replace')}") from None

    def beside(self, path, body, work):
        """Ask, and work at the same time: both ends wait for each other. The first failure of either ends the wait."""
        done, failed = threading.Semaphore(0), []

        def run(what):
            try:
                what()
            except Exception as e:    # of any kind: it is told to the run
                failed.append(e)
            done.release()

        for what in (lambda: self.ask(path, body), work):
            threading.Thread(target=run, args=(what,), daemon=True).start()
        for _ in range(2):
            if not done.acquire(timeout=LIMIT_S):
                raise RuntimeError(f"{path} took longer than {LIMIT_S} s")
            if failed:
                raise failed[0]


def free_port(address):
    with socket.socket() as s:
        s.bind((address, 0))
        return s.getsockname()[1]


def group_make(engine, options):
    from vllm.distributed.weight_transfer.nccl_engine import NCCLWeightTransferEngine
    n_worker = engine.ask("/get_world_size", post=False)["world_size"]
    info = {"master_address": options.address, "master_port": options.port or free_port(options.address), "world_size": n_worker + 1}

    def join():
        engine.group = NCCLWeightTransferEngine.trainer_init(info)

    packing = {} if options.packed_in_update else options.packing
    engine.beside("/init_weight_transfer_engine", {"init_info": {**info, "rank_offset": 1, **packing}}, join)


def tensors(directory):
    """Every (name, tensor) of a model's directory, in host memory as it is asked for."""
    from safetensors import safe_open
    files = sorted(glob.glob(os.path.join(glob.escape(directory), "*.safetensors")))
    if not files:
        raise RuntimeError(f"'{directory}' has no .safetensors")
    for path in files:
        with safe_open(path, "pt") as f:
            for name in f.keys():
                yield name, f.get_tensor(name)


def weights_send(engine, directory, options):
    from vllm.distributed.weight_transfer.nccl_engine import NCCLWeightTransferEngine
    import torch
    shapes = [(name, str(t.dtype).removeprefix("torch."), list(t.shape), t.nbytes) for name, t in tensors(directory)]
    update = {"names": [s[0] for s in shapes], "dtype_names": [s[1] for s in shapes], "shapes": [s[2] for s in shapes]}

    def send():
        torch.cuda.set_device(options.device)    # each thread has its own
        on_device = ((name, t.to(f"cuda:{options.device}")) for name, t in tensors(directory))
        NCCLWeightTransferEngine.trainer_send_weights(on_device, {"group": engine.group, **options.packing})
        torch.cuda.synchronize()

    engine.ask("/pause?mode=keep")    # what is under way waits, and goes on with the new weights
    try:
        engine.ask("/start_weight_update")
        engine.beside("/update_weights", {"update_info": {**update, **(options.packing if options.packed_in_update else {})}}, send)
        engine.ask("/finish_weight_update")
    finally:
        engine.ask("/resume")
    if engine.ask("/reset_prefix_cache?reset_running_requests=true").get("success") is False:
        raise RuntimeError("/reset_prefix_cache did not empty the cache, which is of other weights")
    return sum(s[3] for s in shapes)


def main():
    args = argparse.ArgumentParser(description="give a run's weights to vLLM servers through NCCL: for 'engine_helper'")
    args.add_argument("--device", type=int, default=0, help="GPU that sends, not one of the engine's (%(default)s)")
    args.add_argument("--address", default="127.0.0.1", help="of this host, as the engines reach it (%(default)s)")
    args.add_argument("--port", type=int, default=0, help="of the store; 0: any")
    args.add_argument("--bucket-mib", type=int, default=256, help="sent at once (%(default)s)")
    options = args.parse_args()
    out, sys.stdout = os.fdopen(os.dup(1), "w"), sys.stderr    # what libraries print must not look like an answer
    os.dup2(2, 1)
    import torch
    import vllm
    torch.cuda.set_device(options.device)
    options.packing = {"packed": True, "packed_buffer_size_bytes": options.bucket_mib << 20, "packed_num_buffers": 2}
    options.packed_in_update = tuple(int(x) for x in vllm.__version__.split("+")[0].split(".")[:2]) < (0, 28)
    engines = {}
    for line in sys.stdin:
        q, began = json.loads(line), time.monotonic()
        answer = {"id": q["id"]}
        try:
            token = open(q["token_file"]).readline().strip() if q.get("token_file") else None
            engine = engines.setdefault(q["url"], Engine(q["url"], token))
            if engine.group is None:
                group_make(engine, options)
            size = weights_send(engine, q["dir"], options)
            answer.update(ok=True, bytes=size, seconds=round(time.monotonic() - began, 3))
        except Exception as e:    # of any kind: it is told to the run
            answer["error"] = f"{type(e).__name__}: {e}"
        print(json.dumps(answer), file=out, flush=True)
        if "error" in answer:
            os._exit(1)    # a thread may wait for a group that is no more


if __name__ == "__main__":
    main()
