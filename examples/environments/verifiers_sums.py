"""A taskset of verifiers 0.4 for verifiers_bridge.py: sums, answered in \\boxed{}, right in the last one.

Any taskset does; this one comes with a harness that needs nothing from the network (verifiers' own install their programs first).
"""
import random
import re
import sys

import verifiers.v1 as vf

__all__ = ["SumsTaskset", "ChatHarness"]


class Sum(vf.TaskData):
    answer: str


class SumTask(vf.Task[Sum, vf.State, vf.TaskConfig]):
    @vf.reward
    async def right(self, trace: vf.Trace) -> float:
        boxed = re.findall(r"\\boxed\{([^{}]*)\}", trace.last_reply)
        return float(bool(boxed) and boxed[-1].strip() == self.data.answer)


class SumsTaskset(vf.Taskset[SumTask, vf.TasksetConfig]):
    def load(self):
        numbers = random.Random(7)
        for _ in range(4096):
            a, b = numbers.randrange(100), numbers.randrange(100)
            yield SumTask(Sum(prompt=f"What is {a}+{b}?", answer=str(a + b)), self.config.task)


# What runs for each rollout: it asks verifiers' endpoint, which renders, asks the policy and keeps tokens and log-probs.
PROGRAM = """
import json, sys, urllib.request
endpoint, secret, model, prompt = sys.argv[1:]
body = json.dumps({"model": model, "messages": [{"role": "user", "content": prompt}]}).encode()
head = {"Authorization": "Bearer " + secret, "Content-Type": "application/json"}
urllib.request.urlopen(urllib.request.Request(endpoint.rstrip("/") + "/chat/completions", body, head)).read()
"""


class ChatConfig(vf.HarnessConfig):
    pass


class ChatHarness(vf.Harness[ChatConfig]):
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data, tool_interception_url=None):
        _, prompt = self.resolve_text_prompt(data)
        return await runtime.run([sys.executable, "-c", PROGRAM, endpoint, secret, ctx.model, prompt], {})
