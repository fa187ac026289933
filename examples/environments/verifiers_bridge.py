#!/usr/bin/env python3
"""Train a run of rollcall on a taskset of verifiers 0.4 (pip install verifiers==0.4.0; nothing of rollcall needs it).

The run serves its policy and takes groups:

    serve: 127.0.0.1:9001
    environments: {listen: 127.0.0.1:8000}
    max_steps: 100

    python verifiers_bridge.py my-taskset --policy http://127.0.0.1:9001 --groups http://127.0.0.1:8000 --tokenizer MODEL_DIR --n 8

verifiers plays the episodes: its train client renders the conversation, draws tokens from the run's /inference/v1/generate and keeps
ids and log-probs. Each task's n episodes become one group of the run; the run computes the advantages. A taskset whose module
exports a harness is played by that one, any other by --harness. Progress is on standard error, a line of JSON per group.
"""
import argparse
import asyncio
import itertools
import json
import sys
import time
import urllib.error
import urllib.request

from verifiers.v1.clients import ModelContext
from verifiers.v1.configs.client import TrainClientConfig
from verifiers.v1.types import SamplingConfig
from verifiers.v1.utils.loaders import load_environment, resolve_env_config


def ask(url, body=None, method=None):
    """Status and answer; 0: nobody answers."""
    data = None if body is None else json.dumps(body, allow_nan=False).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as r:
            return r.status, json.load(r)
    except urllib.error.HTTPError as e:
        return e.code, e.read().decode(errors="replace")
    except OSError as e:
        return 0, str(e)


async def until(what, *args, limit=600, **named):
    """The answer of the first try that succeeds."""
    end = time.monotonic() + limit
    while True:
        status, answer = await asyncio.to_thread(ask, *args, **named)
        if status == 200 and not (isinstance(answer, dict) and str(answer.get("status", "")).startswith("wait")):
            return answer
        if status not in (0, 200, 503) or time.monotonic() > end:
            sys.exit(f"{what}: {status} {answer}")
        await asyncio.sleep(0.5)


def group_of(episodes, version, temperature):
    """The trainable branches of the episodes as one group in Atropos' form; None: fewer than two, or nothing to learn from them."""
    group = {"tokens": [], "masks": [], "scores": [], "inference_logprobs": [],
             "generation_params": {"temperature": temperature, "weight_version": version}}
    for trace in (t for e in episodes for t in e.traces if t.ok):
        for branch in (b for b in trace.branches if b.trainable and any(b.sampled_mask)):
            ids, sampled = branch.token_ids, branch.sampled_mask
            group["tokens"].append(ids)
            group["masks"].append([t if s else -100 for t, s in zip(ids, sampled)])
            group["inference_logprobs"].append([p if s else 1.0 for p, s in zip(branch.logprobs, sampled)])
            group["scores"].append(trace.reward)
    return group if len(group["tokens"]) > 1 and len(set(group["scores"])) > 1 else None


async def play(a):
    agent = {"runtime": {"type": "subprocess"}}    # verifiers' own default is a cloud
    if a.harness:
        agent["harness"] = {"id": a.harness}
    env = load_environment(resolve_env_config({"taskset": {"id": a.taskset}, "agent": agent}))
    models = await until("the policy", a.policy + "/v1/models")
    model = models["data"][0]["id"]
    me = await until("the run's door", a.groups + "/register-env", {
        "max_token_length": models["data"][0]["max_model_len"], "desired_name": a.taskset, "weight": 1.0, "group_size": a.n})
    client = TrainClientConfig(base_url=a.policy + "/v1", renderer={"name": a.renderer}, renderer_model_name=a.tokenizer)

    async def one(task):
        version = (await until("the policy", a.policy + "/v1/models"))["data"][0]["weight_version"]    # no sample is of an older one
        context = ModelContext(model, client=client, sampling=SamplingConfig(temperature=a.temperature, max_tokens=a.max_tokens))
        episodes = await asyncio.gather(*(env.run_slot(s, context) for s in env.slots(task, a.n)))
        rewards = [t.reward for e in episodes for t in e.traces if t.ok]
        group = group_of(episodes, version, a.temperature)
        if group:
            await until("a group", a.groups + "/scored_data", {**group, "env_id": me["env_id"]})
        errors = [f"{x.type}: {x.message}" for e in episodes for x in itertools.chain(e.errors, *(t.errors for t in e.traces))]
        print(json.dumps({"version": version, "reward": sum(rewards) / max(len(rewards), 1), "posted": bool(group), "errors": errors[:3]}),
              file=sys.stderr, flush=True)

    async with env.serving():
        tasks, under_way = itertools.cycle(list(itertools.islice(env.taskset, a.tasks))), set()
        while True:
            status, said = await asyncio.to_thread(ask, a.groups + "/status-env", {"env_id": me["env_id"]}, "GET")
            if status != 200:
                break    # the run has ended
            if len(under_way) < a.at_once and said["self_queue_size"] < a.waiting:
                under_way.add(asyncio.create_task(one(next(tasks))))
            done, under_way = await asyncio.wait(under_way, timeout=0.2) if under_way else (set(), under_way)
            for t in done:
                t.result()
        for t in under_way:
            t.cancel()


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("taskset")
    p.add_argument("--policy", required=True, help="URL of the run's 'serve'")
    p.add_argument("--groups", required=True, help="URL of the run's 'environments'")
    p.add_argument("--tokenizer", required=True, help="the model's directory")
    p.add_argument("--n", type=int, default=8, help="episodes of a task")
    p.add_argument("--harness", help="unless the taskset brings one")
    p.add_argument("--renderer", default="default", help="qwen3, ...; default knows no tools")
    p.add_argument("--temperature", type=float, default=1.0)
    p.add_argument("--max-tokens", type=int, default=64)
    p.add_argument("--tasks", type=int, default=4096, help="of the taskset, played in turns")
    p.add_argument("--at-once", type=int, default=4, help="tasks")
    p.add_argument("--waiting", type=int, default=64, help="sequences in the queue at most: more would be old when they are trained on")
    asyncio.run(play(p.parse_args()))


if __name__ == "__main__":
    main()
