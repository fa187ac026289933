#!/usr/bin/env python3
"""A separate server on the trainer's own memory (weight_bridge_mode shared_vllm, rollcall serve --shared-weights): the weights are on the card
once, a reader finds them by the file as Atropos' trainer does, served log-probs are those of the trainer's checkpoint to the bit, and a
trainer that is killed is missed and found again.

  tests/gpu/lent.py [DEVICE] [SHAPE]        cuda:0 Qwen2.5-1.5B; cpu:0 starter, to try this script

Prints one JSON line; check is false when one of these does not hold. With torch in this Python its own reader opens a tensor, too."""
import base64
import ctypes
import glob
import http.client
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from step import ROLLCALL, ROOT, data_make, out

sys.path.insert(0, os.path.join(ROOT, "tests/integration"))
import run_tools

KV_GIB = 0.5
LIMIT = 240
PROMPT = list(range(5, 25))


def until(what, come):
    end = time.monotonic() + LIMIT
    while not (got := come()):
        if time.monotonic() > end:
            sys.exit(f"lent.py: {what}: not within {LIMIT} s")
        time.sleep(0.02)
    return got


def ask(port, method, path, body=None):
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT)
    try:
        c.request(method, path, body and json.dumps(body), {"Content-Type": "application/json"})
        r = c.getresponse()
        return r.status, json.loads(r.read() or b"null")
    finally:
        c.close()


def used_gb(device):
    if not device.startswith("cuda:"):
        return 0.0
    return float(out(["nvidia-smi", "-i", device[5:], "--query-gpu=memory.used", "--format=csv,noheader,nounits"]).strip()) * 2**20 / 1e9


def tensor_bytes(h):
    """The bytes of a tensor, by the file's entry alone."""
    size = {"torch.float32": 4, "torch.bfloat16": 2}[h["dtype"]]
    n, at = size, h["storage_offset_orig"] + h["tensor_storage_offset"] * size
    for d in h["shape"]:
        n *= d
    handle = base64.b64decode(h["ipc_handle_b64"])
    if handle.startswith(b"/proc/"):
        with open(handle, "rb") as f:
            f.seek(at)
            return f.read(n)
    cuda = next(ctypes.CDLL(p) for p in ["libcudart.so", "libcudart.so.13", "libcudart.so.12", *glob.glob("/usr/local/cuda*/lib64/libcudart.so*")] if loads(p))

    class Handle(ctypes.Structure):
        _fields_ = [("bytes", ctypes.c_char * 64)]

    own, mem, host = Handle(), ctypes.c_void_p(), ctypes.create_string_buffer(n)
    assert len(handle) == 66 and handle[1:2] == b"c", handle[:2]
    ctypes.memmove(ctypes.byref(own), handle[2:], 64)    # torch's two bytes come before CUDA's own
    for status in (cuda.cudaSetDevice(h["device_index"]), cuda.cudaIpcOpenMemHandle(ctypes.byref(mem), own, 1),
                   cuda.cudaMemcpy(host, ctypes.c_void_p(mem.value + at), ctypes.c_size_t(n), 2), cuda.cudaIpcCloseMemHandle(mem)):
        assert status == 0, f"CUDA says {status}"
    return host.raw


def loads(name):
    try:
        ctypes.CDLL(name)
        return True
    except OSError:
        return False


def torch_bytes(h):
    """The same by torch, as Atropos' trainer opens it. None: there is no torch with CUDA."""
    try:
        import torch
        if not torch.cuda.is_available():
            return None
    except ImportError:
        return None
    torch.cuda.init()    # _new_shared_cuda itself does not, and torch then ends with a segmentation fault
    storage = torch.UntypedStorage._new_shared_cuda(h["device_index"], base64.b64decode(h["ipc_handle_b64"]), h["storage_size"], h["storage_offset_orig"],
                                                    base64.b64decode(h["ref_counter_handle_b64"]), h["ref_counter_offset"],
                                                    base64.b64decode(h["event_handle_b64"]), h["event_sync_required"])
    t = torch.empty(0, dtype=getattr(torch, h["dtype"][6:]), device=f"cuda:{h['device_index']}")
    t.set_(storage, h["tensor_storage_offset"], h["shape"], h["stride"])
    return t.cpu().view(torch.uint8).numpy().tobytes()


def saved_tensors(path):
    with open(path, "rb") as f:
        head = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        data = f.read()
    return {k: data[v["data_offsets"][0]:v["data_offsets"][1]] for k, v in head.items() if k != "__metadata__"}


def draw_and_post(engine, door):
    """One group, drawn from the server and posted to the run: odd tokens are rewarded."""
    status, a = ask(engine, "POST", "/generate", {"prompt": {"prompt_token_ids": PROMPT}, "n": 4, "max_tokens": 8, "logprobs": 0, "ignore_eos": True})
    if status != 200:
        return
    logps = [[next(iter(t[0].values())) for t in s] for s in a["logprobs"]]
    ask(door, "POST", "/scored_data", {
        "tokens": [PROMPT + ids for ids in a["token_ids"]], "masks": [[-100] * len(PROMPT) + ids for ids in a["token_ids"]],
        "scores": [sum(t % 2 for t in ids) / 8 for ids in a["token_ids"]], "inference_logprobs": [[1.0] * len(PROMPT) + lp for lp in logps],
        "generation_params": {"temperature": 1.0, "weight_version": a["weight_version"]}})


def worker_pid(run):
    return next((pid for pid, words in run_tools.commands() if run in words and words[1:2] == ["worker"]), None)


def main():
    device, shape = (sys.argv[1:] + ["cuda:0", "Qwen2.5-1.5B"][len(sys.argv) - 1:])[:2]
    dtype = "bfloat16" if device.startswith("cuda:") else "float32"
    with tempfile.TemporaryDirectory(prefix="rc-lent-") as work:
        data = data_make(work)
        model, run, file = os.path.join(work, "model"), os.path.join(work, "run"), os.path.join(work, "bridge.json")
        out([ROLLCALL, "random-model", "--shape", shape, "--tokenizer", os.path.join(data, "tokenizer"), "--keep-vocab", "--dtype", dtype, "--out", model])
        settings = dict(model=model, devices=device, environments={"listen": "127.0.0.1:0"}, max_staleness=64, max_steps=100000, num_generations=4,
                        train_batch_size=4, max_prompt_tokens=64, max_new_tokens=64, learning_rate=1e-4, kl_coeff=0, save_interval=0,
                        system_prompt="none", weight_bridge_mode="shared_vllm", weight_bridge_file=file)
        door = next(p for p in range(18000, 19000) if free(p))
        settings["environments"]["listen"] = f"127.0.0.1:{door}"
        with open(os.path.join(work, "run.yaml"), "w") as f:
            f.writelines(f"{k}: {json.dumps(v)}\n" for k, v in settings.items())
        log = open(os.path.join(work, "log"), "w+")
        train = subprocess.Popen([ROLLCALL, "train", os.path.join(work, "run.yaml"), "--runs-dir", work, "--run-name", "run"], stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        servers = []
        try:
            until("the bridge file", lambda: os.path.exists(file) or train.poll() is not None)
            if train.poll() is not None:
                log.seek(0)
                sys.exit(log.read()[-3000:])
            result = check_all(device, model, run, file, door, servers)
        finally:
            for s in servers:
                s.kill()
            train.terminate()
            train.wait(LIMIT)
        print(json.dumps(result))
        sys.exit(not result["check"])


def free(port):
    with socket.socket() as s:
        return s.connect_ex(("127.0.0.1", port)) != 0


def saved_answer(engine, run):
    """A checkpoint's weights and an answer by them. What was posted is still being trained on: either may be of a later step."""
    subprocess.run([ROLLCALL, "ctl", "--run", run, "checkpoint"], check=True, stdout=subprocess.DEVNULL)
    a = ask(engine, "POST", "/v1/completions", {"prompt": PROMPT, "max_tokens": 32, "seed": 3, "logprobs": 0, "return_token_ids": True, "ignore_eos": True})[1]
    saved = glob.glob(os.path.join(run, f"checkpoints/step-{a['weight_version']:06d}/model*.safetensors"))
    return (saved[0], a) if saved else None


def check_all(device, model, run, file, door, servers):
    with open(file) as f:
        lent = json.load(f)
    saved = {}
    for path in sorted(glob.glob(os.path.join(model, "*.safetensors"))):
        saved.update(saved_tensors(path))
    names = lent["param_names"][:: max(1, len(lent["param_names"]) // 8)]
    read = all(tensor_bytes(lent["ipc_handles"][n]) == saved[n] for n in names)
    by_torch = torch_bytes(lent["ipc_handles"][names[0]])
    before = used_gb(device)
    e = subprocess.Popen([ROLLCALL, "serve", "--shared-weights", file, "--listen", "127.0.0.1:0", "--kv-gib", str(KV_GIB), "--batch", "32"],
                         stdout=subprocess.PIPE, text=True)
    servers.append(e)
    engine = int(re.search(r":(\d+),", e.stdout.readline())[1])
    ask(engine, "POST", "/v1/completions", {"prompt": PROMPT, "max_tokens": 4})
    grown, weights = used_gb(device) - before, next(iter(lent["ipc_handles"].values()))["storage_size"] / 1e9
    until("three steps", lambda: draw_and_post(engine, door) or ask(engine, "GET", "/health")[1].get("weight_version", 0) >= 3)
    newest, a = until("an answer by weights that a checkpoint has", lambda: saved_answer(engine, run))
    ids, served = a["choices"][0]["token_ids"], a["choices"][0]["logprobs"]["token_logprobs"]
    line = json.dumps({"ids": PROMPT + ids, "prompt_len": len(PROMPT), "temperature": 1})
    told = json.loads(out([ROLLCALL, "logprobs", "--model", os.path.dirname(newest), "--device", device], input=line + "\n"))["logprobs"]
    same = [struct.pack("f", x) for x in served] == [struct.pack("f", x) for x in told]
    os.kill(worker_pid(run), signal.SIGKILL)
    until("the server to miss the trainer", lambda: ask(engine, "GET", "/health")[0] == 503)
    until("the server to find it again", lambda: ask(engine, "GET", "/health")[0] == 200)
    return dict(device=device, read=read, torch=None if by_torch is None else by_torch == saved[names[0]], weights_gb=round(weights, 3),
                server_gb=round(grown, 3), same_bits=same, version=a.get("weight_version"),
                check=read and same and by_torch in (None, saved[names[0]]) and (not before or grown < weights + KV_GIB * 1.074))


if __name__ == "__main__":
    main()
