"""OpenAI's Python client against 'rollcall serve' on the starter model: each line it prints is one check that held."""
import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile

import openai

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
ROLLCALL = os.environ.get("ROLLCALL", os.path.join(ROOT, "build/release/rollcall"))
CHAT = [{"role": "user", "content": "What is 3+4?"}]
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "number"}}}}}


def held(what, condition):
    if not condition:
        raise AssertionError(what)
    print("ok", what)


def refused(kind, call):
    try:
        call()
    except kind as e:
        return e
    raise AssertionError(f"no {kind.__name__}")


def main():
    with tempfile.NamedTemporaryFile("w") as token:
        token.write("secret")
        token.flush()
        server = subprocess.Popen([ROLLCALL, "serve", "--model", os.path.join(ROOT, "build/starter"), "--listen", "127.0.0.1:0", "--threads", "1",
                                   "--token-file", token.name], stdout=subprocess.PIPE, text=True)
        base = re.search(r"http://\S+:\d+", server.stdout.readline())[0] + "/v1"
        try:
            checks(base)
            server.terminate()
            held("the server ends with 0", server.wait(60) == 0)
        finally:
            server.kill()


def checks(base):
    print("openai", openai.__version__)
    c = openai.OpenAI(base_url=base, api_key="secret", max_retries=0)
    held("models.list, with max_model_len", c.models.list().data[0].max_model_len == 1024)
    held("models.retrieve", c.models.retrieve("starter").id == "starter")
    held("models.retrieve of another: NotFoundError", refused(openai.NotFoundError, lambda: c.models.retrieve("gpt/4")))
    r = c.chat.completions.create(model="starter", messages=CHAT, max_tokens=24, seed=1)
    held("chat: content, finish reason, usage, request id", r.choices[0].message.content and r.choices[0].finish_reason in ("stop", "length")
         and r.usage.total_tokens > 0 and r._request_id == r.id)
    r = c.chat.completions.create(model="starter", messages=CHAT, max_tokens=8, logprobs=True, top_logprobs=2)
    held("chat: log-probs", len(r.choices[0].logprobs.content) == r.usage.completion_tokens
         and all(len(t.top_logprobs) == 2 for t in r.choices[0].logprobs.content))
    r = c.completions.create(model="starter", prompt=[20, 10, 21, 28], max_tokens=6, logprobs=0, extra_body={"return_token_ids": True})
    held("completions: ids in and out", r.choices[0].prompt_token_ids == [20, 10, 21, 28]
         and len(r.choices[0].token_ids) == len(r.choices[0].logprobs.token_logprobs))
    r = c.completions.create(model="starter", prompt=["1+1=", "2+2="], n=3, max_tokens=4)
    held("completions: two prompts, n 3", [x.index for x in r.choices] == list(range(6)))
    whole = c.chat.completions.create(model="starter", messages=CHAT, max_tokens=24, n=2, seed=5)
    text, ends, usage = {0: "", 1: ""}, {}, None
    for e in c.chat.completions.create(model="starter", messages=CHAT, max_tokens=24, n=2, seed=5, stream=True,
                                       stream_options={"include_usage": True}):
        usage = e.usage or usage
        for x in e.choices:
            text[x.index] += x.delta.content or ""
            ends[x.index] = x.finish_reason or ends.get(x.index)
    held("chat stream, n 2, is the whole answer", [text[i] for i in (0, 1)] == [x.message.content for x in whole.choices]
         and [ends[i] for i in (0, 1)] == [x.finish_reason for x in whole.choices] and usage == whole.usage)
    pieces = [e.choices[0].text for e in c.completions.create(model="starter", prompt="1+1=", max_tokens=9, temperature=0, stream=True)]
    held("completions stream", "".join(pieces) == c.completions.create(model="starter", prompt="1+1=", max_tokens=9, temperature=0).choices[0].text)
    r = c.chat.completions.create(model="starter", messages=CHAT, max_tokens=4, tools=[TOOL], tool_choice="auto")
    held("chat with tools", r.choices[0].message.role == "assistant")
    call = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"a": 3}'}}
    loop = CHAT + [{"role": "assistant", "content": None, "tool_calls": [call]}, {"role": "tool", "tool_call_id": "call_1", "content": "7"}]
    held("a tool's result after null content", c.chat.completions.create(model="starter", messages=loop, max_tokens=4, tools=[TOOL]).choices)
    for choice in ("required", {"type": "function", "function": {"name": "add"}}):
        held("a forced call is BadRequestError", "'tool_choice'" in str(refused(openai.BadRequestError, lambda: c.chat.completions.create(
            model="starter", messages=CHAT, tools=[TOOL], tool_choice=choice))))
    e = refused(openai.BadRequestError, lambda: c.chat.completions.create(model="starter", messages=[{"role": "user", "content": "1" * 3000}]))
    held("a long prompt has the code context_length_exceeded", e.code == "context_length_exceeded" and "maximum context length" in str(e))
    r = c.completions.create(model="starter", prompt="6+6=12", max_tokens=0, echo=True, logprobs=1)
    held("max_tokens 0 with echo scores the text", r.choices[0].text == "6+6=12" and r.choices[0].logprobs.token_logprobs[0] is None
         and len(r.choices[0].logprobs.token_logprobs) == r.usage.prompt_tokens and r.usage.completion_tokens == 0)
    held("400 is BadRequestError with a sentence", "'n'" in str(refused(openai.BadRequestError, lambda: c.completions.create(
        model="starter", prompt="a", n=0))))
    held("an unknown model is NotFoundError", refused(openai.NotFoundError, lambda: c.completions.create(model="gpt", prompt="a")).status_code == 404)
    held("a wrong key is AuthenticationError", refused(openai.AuthenticationError, lambda: openai.OpenAI(
        base_url=base, api_key="wrong", max_retries=0).models.list()).status_code == 401)
    stream = c.completions.create(model="starter", prompt="a", max_tokens=900, stream=True, extra_body={"ignore_eos": True})
    next(iter(stream))
    stream.close()
    asyncio.run(crowd(base))


async def crowd(base):
    async with openai.AsyncOpenAI(base_url=base, api_key="secret") as c:
        rs = await asyncio.gather(*(c.chat.completions.create(model="starter", messages=CHAT, max_tokens=16, seed=i % 4) for i in range(64)))
    held("64 at once, equal for equal seeds", len({json.dumps([rs[i].choices[0].message.content, i % 4]) for i in range(64)})
         == len({i % 4 for i in range(64)}))


if __name__ == "__main__":
    sys.exit(main())
