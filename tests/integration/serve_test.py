"""rollcall serve: what its routes answer, that its log-probs are the trainer's, and what hostile clients cannot do.

tags: starter limit=600
"""
import concurrent.futures
import contextlib
import gzip
import http.client
import json
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import unittest
import warnings

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import tiny_model

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
ROLLCALL = os.path.abspath(os.environ.get("ROLLCALL", os.path.join(ROOT, "build/release/rollcall")))
STARTER = os.path.join(ROOT, "build/starter")
LIMIT = 120    # seconds until a wait is given up


class Server:
    """rollcall serve on a free port of 127.0.0.1."""

    def __init__(self, model, *more):
        self.dir = tempfile.TemporaryDirectory(prefix="rc-serve-")
        self.log = open(os.path.join(self.dir.name, "log"), "w+")
        self.process = subprocess.Popen([ROLLCALL, "serve", "--model", model, "--listen", "127.0.0.1:0", "--threads", "1", *more],
                                        stdout=subprocess.PIPE, stderr=self.log, text=True)
        self.line = self.process.stdout.readline()
        found = re.search(r"https?://127\.0\.0\.1:(\d+)", self.line)
        if not found:
            self.process.wait(LIMIT)
            raise AssertionError("no ready line: " + self.line + self.errors())
        self.port = int(found[1])

    def errors(self):
        with open(self.log.name) as f:
            return f.read()

    def connect(self, limit=LIMIT):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=limit)

    def ask(self, method, path, body=None, headers=(), limit=LIMIT):
        """Status, headers and body, as JSON where it is that."""
        with contextlib.closing(self.connect(limit)) as c:
            data = body if body is None or isinstance(body, (bytes, str)) else json.dumps(body)
            c.request(method, path, data, dict(headers))
            r = c.getresponse()
            text = r.read()
            if r.status >= 400:    # whatever fails, strangers are not told where this machine's files lie
                assert (tempfile.gettempdir() + "/").encode() not in text, text
            with contextlib.suppress(ValueError):
                return r.status, r.headers, json.loads(text)
            return r.status, r.headers, text

    def post(self, route, **body):
        status, _, answer = self.ask("POST", route, body)
        if status != 200:
            raise AssertionError(f"{route} {status}: {answer}")
        return answer

    def inside(self):
        """Prompts being worked on or waiting."""
        return self.ask("GET", "/health")[2]["prompts"]

    def stream(self, path, **body):
        """The objects of a stream of server-sent events, [DONE] not with them."""
        with contextlib.closing(self.connect()) as c:
            c.request("POST", path, json.dumps({**body, "stream": True}))
            r = c.getresponse()
            assert r.status == 200, r.read()
            events = r.read().decode("utf-8").split("\n\n")
            assert events[-2:] == ["data: [DONE]", ""], events[-3:]
            return [json.loads(e.removeprefix("data: ")) for e in events[:-2]]

    def raw(self, data, limit=LIMIT):
        """Everything the server sends in reply to these bytes until it closes."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=limit) as s:
            s.sendall(data)
            out = b""
            with contextlib.suppress(ConnectionResetError):
                while piece := s.recv(65536):
                    out += piece
            return out

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(LIMIT)
        self.process.stdout.close()
        self.log.close()
        return status

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()
        self.log.close()
        self.dir.cleanup()


def bits(x):
    return struct.pack("f", x)


def wait_for(what, condition, limit=LIMIT):
    end = time.monotonic() + limit
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"{what}: not within {limit} s")
        time.sleep(0.02)


class Serve(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server(STARTER)

    @classmethod
    def tearDownClass(cls):
        cls.server.close()

    def trainer_logprobs(self, cases):
        """rollcall logprobs of [(prompt ids, sampled ids, temperature)]."""
        lines = "".join(json.dumps({"ids": p + s, "prompt_len": len(p), "temperature": t}) + "\n" for p, s, t in cases)
        out = subprocess.run([ROLLCALL, "logprobs", "--model", STARTER, "--threads", "1"], input=lines, capture_output=True, text=True,
                             check=True, timeout=LIMIT).stdout
        return [json.loads(line)["logprobs"] for line in out.splitlines()]

    def test_served_logprobs_are_the_trainers_to_the_bit(self):
        asked = [dict(prompt=f"{i}+{7 * i}=", n=2, max_tokens=24, temperature=t, logprobs=k, top_p=p, return_token_ids=True, seed=i)
                 for i, (t, k, p) in enumerate([(1, 0, 1), (0.7, 2, 1), (1.3, 0, 0.8), (0, 3, 1), (1, 5, 0.5)])]
        with concurrent.futures.ThreadPoolExecutor(5) as pool:    # in one batch
            answers = list(pool.map(lambda a: self.server.post("/v1/completions", **a), asked))
        cases, served = [], []
        for a, r in zip(asked, answers):
            for c in r["choices"]:
                cases.append((c["prompt_token_ids"], c["token_ids"], a["temperature"] or 1))
                served.append(c["logprobs"]["token_logprobs"])
        for case, s, t in zip(cases, served, self.trainer_logprobs(cases)):
            self.assertEqual(len(case[1]), len(s))
            self.assertEqual([bits(x) for x in s], [bits(x) for x in t])

    def test_samples_that_lost_their_pages_end_with_the_same_tokens(self):
        ask = dict(prompt="12+30=", max_tokens=600, n=4, seed=3, ignore_eos=True, logprobs=0, return_token_ids=True)
        answer = lambda server: [(c["token_ids"], [bits(x) for x in c["logprobs"]["token_logprobs"]])
                                 for c in server.post("/v1/completions", **ask)["choices"]]
        few = Server(STARTER, "--kv-gib", "0.002")    # of 1,400 tokens
        self.addCleanup(few.close)
        few.post("/v1/completions", prompt="1+1=", max_tokens=2, n=64)    # samples are short, it seems
        self.assertEqual(answer(few), answer(self.server))
        crowded, roomy = few.ask("GET", "/health")[2], self.server.ask("GET", "/health")[2]
        self.assertGreater(crowded["put_back"], 0)
        self.assertLess(crowded["pages"], roomy["pages"])
        self.assertEqual((roomy["put_back"], crowded["running"], crowded["waiting"]), (0, 0, 0))
        self.assertLessEqual(crowded["pages_used"], crowded["pages"])    # what the prefix cache keeps

    def test_likeliest_tokens_have_the_trainers_logprobs(self):
        r = self.server.post("/v1/completions", prompt="12+30=", max_tokens=4, temperature=0.7, seed=3, logprobs=20,
                             return_tokens_as_token_ids=True, return_token_ids=True)
        c = r["choices"][0]
        cases = [(c["prompt_token_ids"] + c["token_ids"][:i], [int(t.split(":")[1])], 0.7)
                 for i, top in enumerate(c["logprobs"]["top_logprobs"]) for t in top]
        told = [v for top in c["logprobs"]["top_logprobs"] for v in top.values()]
        for got, (want,) in zip(told, self.trainer_logprobs(cases)):
            self.assertAlmostEqual(got, want, delta=2e-5 * max(1, abs(want)))    # a difference and a sum of floats
        for top in c["logprobs"]["top_logprobs"]:
            self.assertEqual(list(top.values())[:20], sorted(list(top.values())[:20], reverse=True))

    def test_an_echo_has_the_prompt_before_the_sample(self):
        ask = dict(prompt="12+30=", max_tokens=4, temperature=1.0, seed=3, logprobs=2, return_token_ids=True, ignore_eos=True)
        plain, echo = (self.server.post("/v1/completions", echo=e, prompt_logprobs=2, **ask)["choices"][0] for e in (False, True))
        ids, n = plain["prompt_token_ids"], len(plain["prompt_token_ids"])
        self.assertEqual(echo["text"], "12+30=" + plain["text"])
        self.assertEqual(echo["token_ids"], plain["token_ids"])
        told, was = echo["logprobs"], plain["logprobs"]
        for key in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
            self.assertEqual(len(told[key]), n + 4, key)
        self.assertEqual(told["tokens"][n:], was["tokens"])
        self.assertEqual(told["token_logprobs"][n:], was["token_logprobs"])
        self.assertEqual(told["top_logprobs"][n:], was["top_logprobs"])
        want = [None] + [p[str(i)]["logprob"] for p, i in zip(plain["prompt_logprobs"][1:], ids[1:])]
        self.assertEqual(told["token_logprobs"][:n], want)
        self.assertIsNone(told["top_logprobs"][0])
        self.assertTrue(all(len(top) >= 2 for top in told["top_logprobs"][1:]))
        self.assertEqual([told["text_offset"][i] for i in (0, n)], [0, len("12+30=")])
        by_ids = self.server.post("/v1/completions", echo=True, **{**ask, "prompt": ids, "logprobs": None})["choices"][0]
        self.assertEqual((by_ids["text"], by_ids["logprobs"]), (echo["text"], None))
        self.assertNotIn("prompt_logprobs", self.server.post("/v1/completions", echo=True, **ask)["choices"][0])
        self.assertEqual(self.server.ask("POST", "/v1/completions", dict(ask, echo=True, stream=True))[0], 400)

    def test_a_prompt_is_scored_without_drawing(self):
        some = self.server.post("/v1/completions", prompt="12+30=", max_tokens=1, echo=True, logprobs=1, return_token_ids=True)["choices"][0]
        n = len(some["prompt_token_ids"])
        for more in ({}, {"n": 2}, {"prompt": ["12+30=", "1"]}, {"prompt": some["prompt_token_ids"]}, {"ignore_eos": True}):
            r = self.server.post("/v1/completions", **{"prompt": "12+30=", "max_tokens": 0, "echo": True, "logprobs": 1, **more})
            c = r["choices"][0]
            self.assertEqual((c["text"], c["finish_reason"], r["usage"]["completion_tokens"]), ("12+30=", "length", 0))
            for key in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
                self.assertEqual(c["logprobs"][key], some["logprobs"][key][:n], key)
        told = self.server.post("/v1/completions", prompt="12+30=", max_tokens=0, prompt_logprobs=1)["choices"][0]
        self.assertEqual((told["text"], len(told["prompt_logprobs"])), ("", n))
        plain = self.server.post("/v1/completions", prompt="12+30=", max_tokens=0, echo=True)
        self.assertEqual((plain["choices"][0]["text"], plain["choices"][0]["logprobs"]), ("12+30=", None))
        sglang = self.server.post("/generate", text="12+30=", return_logprob=True, logprob_start_len=0, sampling_params={"max_new_tokens": 0})
        self.assertEqual([x[0] for x in sglang["meta_info"]["input_token_logprobs"]], some["logprobs"]["token_logprobs"][:n])
        self.assertEqual((sglang["text"], sglang["output_ids"], sglang["meta_info"]["output_token_logprobs"]), ("", [], []))

    def test_a_prompts_logprobs_are_the_trainers_to_the_bit(self):
        """Of long and short prompts in one batch, of which another request has already left pages in the cache."""
        prompts = [[20 + (i * k) % 90 for i in range(n)] for k, n in ((3, 300), (7, 2), (5, 1), (11, 70))]
        self.server.post("/v1/completions", prompt=prompts, max_tokens=1)
        want = [[]] + self.trainer_logprobs([(p[:1], p[1:], 1) for p in prompts if len(p) > 1])
        want = [want[1], want[2], [], want[3]]
        r = self.server.post("/v1/completions", prompt=prompts, n=2, max_tokens=2, temperature=0.3, prompt_logprobs=3)
        self.assertEqual(len(r["choices"]), 8)
        for i, c in enumerate(r["choices"]):
            ids, told = prompts[i // 2], c["prompt_logprobs"]
            self.assertEqual((len(told), told[0]), (len(ids), None))
            own = [told[at][str(ids[at])] for at in range(1, len(ids))]
            self.assertEqual([bits(t["logprob"]) for t in own], [bits(w) for w in want[i // 2]])
            for t, entry in zip(own, told[1:]):
                ranks = sorted(e["rank"] for e in entry.values())
                self.assertEqual(ranks, sorted({1, 2, 3, t["rank"]}))
                likely = sorted(entry.values(), key=lambda e: e["rank"])
                self.assertEqual([e["logprob"] for e in likely], sorted((e["logprob"] for e in likely), reverse=True))
        for path, body, found in [
                ("/inference/v1/generate", dict(token_ids=prompts[0], sampling_params=dict(max_tokens=1, prompt_logprobs=0)),
                 lambda a: [e[str(t)]["logprob"] for e, t in zip(a["prompt_logprobs"][1:], prompts[0][1:])]),
                ("/generate", dict(prompt=dict(prompt_token_ids=prompts[0]), max_tokens=1, prompt_logprobs=1),
                 lambda a: [next(iter(e.values())) for e in a["prompt_logprobs"][1:]]),
                ("/generate", dict(input_ids=prompts[0], sampling_params=dict(max_new_tokens=1), return_logprob=True, logprob_start_len=1),
                 lambda a: [e[0] for e in a["meta_info"]["input_token_logprobs"]])]:
            self.assertEqual([bits(t) for t in found(self.server.post(path, **body))], [bits(w) for w in want[0]], path)

    def test_generate_streams_in_vllms_lines_and_sglangs_events(self):
        ask = dict(prompt="12+30=", n=3, max_tokens=40, seed=8, logprobs=0, ignore_eos=True)
        whole = self.server.post("/generate", **ask)
        with contextlib.closing(self.server.connect()) as c:
            c.request("POST", "/generate", json.dumps({**ask, "stream": True}))
            lines = [json.loads(line) for line in c.getresponse().read().decode().splitlines()]
        self.assertEqual(lines[-1], whole)
        for i, text in enumerate(whole["text"]):
            for line in lines[:-1]:
                self.assertTrue(("12+30=" + text).startswith(line["text"][i]))
        ask = dict(text="12+30=", sampling_params=dict(n=3, max_new_tokens=40, seed=8, ignore_eos=True), return_logprob=True)
        whole = self.server.post("/generate", **ask)
        events = self.server.stream("/generate", **ask)
        for i, one in enumerate(whole):
            own = [e for e in events if e["index"] == i]
            for e in own:
                self.assertEqual(e["output_ids"], one["output_ids"][:len(e["output_ids"])])
                self.assertTrue(one["text"].startswith(e["text"]))
            self.assertEqual([e["meta_info"]["finish_reason"] for e in own], [None] * (len(own) - 1) + [one["meta_info"]["finish_reason"]])
            self.assertEqual(own[-1]["meta_info"]["output_token_logprobs"], one["meta_info"]["output_token_logprobs"])

    def test_a_seed_gives_the_same_samples_whatever_else_runs(self):
        ask = dict(prompt="5+6=", n=3, max_tokens=20, seed=11, return_token_ids=True)
        alone = self.server.post("/v1/completions", **ask)
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            crowd = list(pool.map(lambda i: self.server.post("/v1/completions", **ask) if i % 2 else
                                  self.server.post("/v1/completions", prompt="1+1=", n=4, max_tokens=30), range(8)))
        want = [c["token_ids"] for c in alone["choices"]]
        self.assertEqual([[c["token_ids"] for c in r["choices"]] for r in crowd[1::2]], [want] * 4)
        self.assertGreater(len({tuple(w) for w in want}), 1)
        free = [self.server.post("/v1/completions", prompt="5+6=", max_tokens=20, return_token_ids=True)["choices"][0]["token_ids"]
                for _ in range(4)]
        self.assertGreater(len({tuple(f) for f in free}), 1)

    def test_prompts_come_as_text_list_or_ids_and_choices_are_prompt_major(self):
        ids = self.server.post("/tokenize", prompt="5+6=")["tokens"]
        other = self.server.post("/tokenize", prompt="1+1=")["tokens"]
        for prompt, want in [("5+6=", [ids]), (["5+6=", "1+1="], [ids, other]), (ids, [ids]), ([ids, other], [ids, other])]:
            r = self.server.post("/v1/completions", prompt=prompt, n=2, max_tokens=2, return_token_ids=True)
            self.assertEqual([c["prompt_token_ids"] for c in r["choices"]], [w for w in want for _ in range(2)])
            self.assertEqual([c["index"] for c in r["choices"]], list(range(2 * len(want))))
            self.assertEqual(r["usage"]["prompt_tokens"], sum(map(len, want)))

    def test_a_chat_goes_through_the_template(self):
        messages = [{"role": "user", "content": "What is 3+4?"}]
        r = self.server.post("/v1/chat/completions", messages=messages, max_completion_tokens=8, logprobs=True, top_logprobs=2,
                             return_token_ids=True, temperature=0)
        c = r["choices"][0]
        self.assertEqual(r["prompt_token_ids"], self.server.post("/tokenize", messages=messages)["tokens"])
        self.assertIn("<|im_start|>user\nWhat is 3+4?<|im_end|>", self.server.post("/detokenize", tokens=r["prompt_token_ids"])["prompt"])
        self.assertEqual(c["message"]["role"], "assistant")
        self.assertEqual(len(c["logprobs"]["content"]), len(c["token_ids"]))
        for t in c["logprobs"]["content"]:
            self.assertEqual((t["top_logprobs"][0]["logprob"], len(t["top_logprobs"])), (t["logprob"], 2))    # greedy: the likeliest
        parts = [{"role": "user", "content": [{"type": "text", "text": "What is 3+4?"}]}]
        self.assertEqual(self.server.post("/tokenize", messages=parts)["tokens"], r["prompt_token_ids"])

    def events(self, path, **body):
        """The objects of a stream whose events have names, each of its own name."""
        with contextlib.closing(self.server.connect()) as c:
            c.request("POST", path, json.dumps({**body, "stream": True}))
            r = c.getresponse()
            assert r.status == 200, r.read()
            found = re.findall(r"event: (\S+)\ndata: (.*)\n\n", r.read().decode("utf-8"))
            events = [json.loads(data) for _, data in found]
            self.assertEqual([e["type"] for e in events], [name for name, _ in found])
            return events

    def test_messages_and_responses_are_the_chat_in_other_words(self):
        say = [{"role": "system", "content": "Add."}, {"role": "user", "content": "3+4="}]
        chat = self.server.post("/v1/chat/completions", messages=say, max_tokens=20, seed=4, return_token_ids=True)
        message = self.server.post("/v1/messages", system="Add.", messages=say[1:], max_tokens=20, seed=4, return_token_ids=True)
        response = self.server.post("/v1/responses", instructions="Add.", input="3+4=", max_output_tokens=20, seed=4, return_token_ids=True)
        text = chat["choices"][0]["message"]["content"]
        self.assertEqual([message["content"], message["type"], message["role"]], [[{"type": "text", "text": text}], "message", "assistant"])
        self.assertEqual(response["output"][0]["content"][0]["text"], text)
        for r in (message, response):
            self.assertEqual([r["prompt_token_ids"], r["token_ids"]], [chat["prompt_token_ids"], chat["choices"][0]["token_ids"]])
        usage = message["usage"]
        self.assertEqual(usage["input_tokens"] + usage["cache_read_input_tokens"], chat["usage"]["prompt_tokens"])
        self.assertEqual([usage["output_tokens"], response["usage"]["total_tokens"]],
                         [chat["usage"]["completion_tokens"], chat["usage"]["total_tokens"]])
        self.assertEqual(self.server.post("/v1/messages/count_tokens", system="Add.", messages=say[1:]),
                         {"input_tokens": chat["usage"]["prompt_tokens"]})
        events = self.events("/v1/messages", system="Add.", messages=say[1:], max_tokens=20, seed=4)
        self.assertEqual("".join(e["delta"]["text"] for e in events if e["type"] == "content_block_delta"), text)
        self.assertEqual([events[0]["type"], events[-1]["type"]], ["message_start", "message_stop"])
        events = self.events("/v1/responses", instructions="Add.", input="3+4=", max_output_tokens=20, seed=4)
        self.assertEqual("".join(e["delta"] for e in events if e["type"] == "response.output_text.delta"), text)
        self.assertEqual([e["sequence_number"] for e in events], list(range(len(events))))
        self.assertEqual(events[-1]["response"]["output"][0]["content"][0]["text"], text)
        long = [{"role": "user", "content": "1" * 3000}]
        self.assertGreater(self.server.post("/v1/messages/count_tokens", messages=long)["input_tokens"], 1024)
        status, _, e = self.server.ask("POST", "/v1/messages", dict(messages=long, max_tokens=5))
        self.assertEqual([status, e["type"], e["error"]["type"]], [400, "error", "invalid_request_error"])
        self.assertIn("maximum context length", e["error"]["message"])

    def test_a_response_repeats_the_tools_and_the_choice_that_it_was_asked_with(self):
        tools = [{"type": "function", "name": "add", "description": "Adds \u00e9.", "parameters": {"type": "object", "properties": {}}},
                 {"type": "function", "name": "end"}]
        for more, choice in (({}, "auto"), ({"tool_choice": "auto"}, "auto"), ({"tool_choice": "none"}, "none")):
            for given in (tools, []):
                ask = dict(input="3+4=", tools=given, max_output_tokens=2, seed=4, **more)
                told = [self.server.post("/v1/responses", **ask)]
                told += [e["response"] for e in self.events("/v1/responses", **ask) if "response" in e]
                self.assertEqual(len(told), 4)    # whole; created, in progress and completed
                for r in told:
                    self.assertEqual([r["tools"], r["tool_choice"]], [given, choice])

    def test_a_stop_string_over_token_borders_cuts_the_text_and_not_the_ids(self):
        plain = self.server.post("/v1/completions", prompt="12+30=", max_tokens=20, temperature=0, return_token_ids=True)["choices"][0]
        stop = plain["text"][4:7]
        at = plain["text"].index(stop)
        for stream in (False, True):
            for include in (False, True):
                ask = dict(prompt="12+30=", max_tokens=20, temperature=0, return_token_ids=True, stop=["never", stop],
                           include_stop_str_in_output=include)
                if stream:
                    events = [e["choices"][0] for e in self.server.stream("/v1/completions", **ask)]
                    text, ids = "".join(e["text"] for e in events), sum((e["token_ids"] for e in events), [])
                    last = events[-1]
                else:
                    last = self.server.post("/v1/completions", **ask)["choices"][0]
                    text, ids = last["text"], last["token_ids"]
                self.assertEqual(text, plain["text"][:at + (len(stop) if include else 0)])
                self.assertEqual((last["finish_reason"], last["stop_reason"]), ("stop", stop))
                self.assertEqual(ids, plain["token_ids"][:len(ids)])
                self.assertGreater(len(ids), len(self.server.post("/tokenize", prompt=plain["text"][:at])["tokens"]))

    def test_no_sample_ends_before_min_tokens(self):
        ask = dict(prompt="12+30=", max_tokens=40, n=8, seed=4, logprobs=0, return_token_ids=True)
        free = self.server.post("/v1/completions", **ask)["choices"]
        ends = {c["token_ids"][-1] for c in free if c["finish_reason"] == "stop"}
        least = max(len(c["token_ids"]) for c in free if c["finish_reason"] == "stop")    # longer than any that ended
        for more in ({}, {"ignore_eos": True}, {"stop": ["1", "2", "=", "\n"]}):
            held = self.server.post("/v1/completions", **ask, min_tokens=least, **more)["choices"]
            for c in held:
                self.assertGreater(len(c["token_ids"]), least)
                self.assertFalse(ends & set(c["token_ids"][:least]))
        cases = [(c["prompt_token_ids"], c["token_ids"], 1) for c in held]
        for c, told in zip(held, self.trainer_logprobs(cases)):    # of the whole distribution
            self.assertEqual([bits(x) for x in c["logprobs"]["token_logprobs"]], [bits(x) for x in told])
        sglang = self.server.post("/generate", text="12+30=", sampling_params={"max_new_tokens": least + 1, "min_new_tokens": least + 1})
        self.assertEqual(sglang["meta_info"]["completion_tokens"], least + 1)
        status, _, told = self.server.ask("POST", "/v1/completions", {**ask, "min_tokens": 41})
        self.assertEqual(status, 400)
        self.assertIn("41", told["error"]["message"])

    def test_a_stream_is_the_whole_answer_in_pieces(self):
        ask = dict(messages=[{"role": "user", "content": "What is 3+4?"}], n=3, max_tokens=24, seed=5, logprobs=True, return_token_ids=True)
        whole = self.server.post("/v1/chat/completions", **ask)
        events = self.server.stream("/v1/chat/completions", **ask, stream_options={"include_usage": True})
        self.assertEqual((events[-1]["choices"], events[-1]["usage"]), ([], whole["usage"]))
        for c in whole["choices"]:
            own = [e["choices"][0] for e in events[:-1] if e["choices"][0]["index"] == c["index"]]
            self.assertEqual("".join(e["delta"]["content"] for e in own), c["message"]["content"])
            self.assertEqual(sum((e["token_ids"] for e in own), []), c["token_ids"])
            self.assertEqual(sum((e["logprobs"]["content"] for e in own), []), c["logprobs"]["content"])
            self.assertEqual([e["finish_reason"] for e in own], [None] * (len(own) - 1) + [c["finish_reason"]])
            self.assertEqual([e["delta"].get("role") for e in own], ["assistant"] + [None] * (len(own) - 1))
        self.assertGreaterEqual(len(events), 4)    # how many tokens come at once is up to the machine

    def test_bad_requests_get_a_sentence_that_names_the_field(self):
        cases = [
            ("/v1/completions", "{", 400, "line 1"), ("/v1/completions", "[1]", 400, "object"), ("/v1/completions", "{}", 400, "'prompt'"),
            ("/v1/completions", {"prompt": []}, 400, "'prompt'"), ("/v1/completions", {"prompt": ""}, 400, "no token"),
            ("/v1/completions", {"prompt": [99999]}, 400, "99999"), ("/v1/completions", {"prompt": [1, "a"]}, 400, "'prompt'"),
            ("/v1/completions", {"prompt": "a", "n": 0}, 400, "'n'"), ("/v1/completions", {"prompt": "a", "max_tokens": 5000}, 400, "1024"),
            ("/v1/completions", {"prompt": "a", "temperature": -1}, 400, "'temperature'"),
            ("/v1/completions", {"prompt": "a", "top_p": 0}, 400, "'top_p'"), ("/v1/completions", {"prompt": "a", "stop": 5}, 400, "'stop'"),
            ("/v1/completions", {"prompt": "a" * 3000}, 400, "1024"), ("/v1/completions", {"prompt": "a", "model": "gpt"}, 404, "starter"),
            ("/v1/completions", {"prompt": "a", "stream_options": {"include_usage": True}}, 400, "stream"),
            ("/v1/completions", {"prompt": "a", "presence_penalty": 1}, 400, "presence_penalty"),
            ("/v1/completions", {"prompt": "a", "prompt_logprobs": 21}, 400, "between 0 and 20"),
            ("/v1/completions", {"prompt": "a", "prompt_logprobs": 1, "stream": True}, 400, "not streamed"),
            ("/v1/chat/completions", {"messages": []}, 400, "'messages'"), ("/v1/chat/completions", {"messages": ["a"]}, 400, "'messages'"),
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, "text"),
            ("/v1/completions", '{"prompt": "a", "prompt": "b"}', 400, "duplicate"), ("/nothing", {}, 404, "path"),
            ("/health", {}, 405, "method"), ("/update_weights", {"path": "/nonexistent"}, 400, "directory"),
            ("/pause?mode=later", {}, 400, "abort"), ("/v1/completions", {"prompt": "a", "max_tokens": 0}, 400, "'echo'"),
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": 10 ** 30}]}, 400, "content"),
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "tool_choice": "required"}, 400, "forced"),
        ]
        for path, body, status, word in cases:
            got, headers, answer = self.server.ask("POST", path, body)
            self.assertEqual(got, status, (path, body, answer))
            self.assertIn(word, answer["error"]["message"], (path, body))
            too_long = body in ({"prompt": "a", "max_tokens": 5000}, {"prompt": "a" * 3000})    # clients then shorten the prompt
            self.assertEqual(answer["error"]["code"], "context_length_exceeded" if too_long else status)
            self.assertEqual("this model's maximum context length is 1024 tokens" in answer["error"]["message"], too_long)

    def test_what_clients_ask_about_the_server_is_there(self):
        models = self.server.ask("GET", "/v1/models")[2]["data"]
        self.assertEqual(self.server.ask("GET", "/v1/models/starter")[2], models[0])
        for path, word in (("/v1/models/other", "'other'"), ("/v1/models/a/b%2Fc", "'a/b/c'"), ("/v1/models/starter/x", "starter/x")):
            status, _, r = self.server.ask("GET", path)
            self.assertEqual(status, 404, path)
            self.assertIn(word, r["error"]["message"])
        self.assertEqual(self.server.ask("POST", "/v1/models/starter", {})[0], 405)
        self.assertEqual(self.server.ask("GET", "/v1/models/")[2], self.server.ask("GET", "/v1/models")[2])
        version = subprocess.run([ROLLCALL, "--version"], capture_output=True, text=True, check=True).stdout.split()[1]
        self.assertEqual(self.server.ask("GET", "/version")[2], {"version": version})
        for path in ("/server_info", "/get_server_info"):
            info = self.server.ask("GET", path)[2]
            self.assertEqual((info["model_path"], info["context_length"], info["weight_version"]), (STARTER, 1024, "0"))
        self.assertEqual(self.server.post("/v1/tokenize", prompt="1+1="), self.server.post("/tokenize", prompt="1+1="))
        self.assertEqual(self.server.post("/v1/detokenize", tokens=[20, 10]), self.server.post("/detokenize", tokens=[20, 10]))

    def test_metrics_count_what_was_drawn(self):
        def figures():
            status, headers, text = self.server.ask("GET", "/metrics")
            self.assertEqual((status, headers["Content-Type"].split(";")[0]), (200, "text/plain"))
            rows = [line.rsplit(" ", 1) for line in text.decode().splitlines() if not line.startswith("#")]
            self.assertTrue(all(name.endswith('{model_name="starter"}') for name, _ in rows))
            return {name.split("{")[0]: float(value) for name, value in rows}
        before = figures()
        self.server.post("/v1/completions", prompt="1+1=", max_tokens=7, n=2, ignore_eos=True)
        wait_for("nothing is under way", lambda: figures()["vllm:num_requests_running"] == 0)
        after = figures()
        self.assertEqual(after["vllm:generation_tokens_total"] - before["vllm:generation_tokens_total"], 14)
        self.assertEqual([after[k] for k in ("vllm:num_requests_waiting", "rollcall:prompts", "rollcall:weight_version")], [0, 0, 0])
        self.assertLess(after["vllm:kv_cache_usage_perc"], 1)

    def test_unknown_fields_are_ignored(self):
        self.server.post("/v1/completions", prompt="a", max_tokens=1, reasoning={"effort": "high"}, user="x", kv_transfer_params=None,
                         cache_salt="s", presence_penalty=0, logit_bias={}, best_of=None)

    def test_token_in_token_out_has_what_trainers_check(self):
        r = self.server.post("/inference/v1/generate", model="starter", token_ids=[20, 10, 21, 28],
                             sampling_params={"temperature": 0.9, "max_tokens": 12, "seed": 1, "stop_token_ids": [279], "logprobs": 1,
                                              "skip_special_tokens": False, "routed_experts_prompt_start": 3}, priority=0)
        c = r["choices"][0]
        self.assertEqual([t["token"] for t in c["logprobs"]["content"]], [f"token_id:{i}" for i in c["token_ids"]])
        self.assertIn(c["finish_reason"], ("stop", "length"))
        (want,) = self.trainer_logprobs([([20, 10, 21, 28], c["token_ids"], 0.9)])
        self.assertEqual([bits(t["logprob"]) for t in c["logprobs"]["content"]], [bits(w) for w in want])
        self.assertTrue(r["request_id"])

    def test_generate_has_vllms_shape_and_sglangs(self):
        r = self.server.post("/generate", prompt={"prompt_token_ids": [20, 10, 21, 28]}, n=2, max_tokens=9, logprobs=0, seed=4)
        self.assertEqual((len(r["text"]), len(r["finish_reasons"]), r["prompt_token_ids"]), (2, 2, [20, 10, 21, 28]))
        for ids, logprobs in zip(r["token_ids"], r["logprobs"]):
            self.assertEqual([int(next(iter(t[0]))) for t in logprobs], ids)
        s = self.server.post("/generate", input_ids=[20, 10, 21, 28], return_logprob=True,
                             sampling_params={"n": 2, "max_new_tokens": 9, "sampling_seed": 4})
        self.assertEqual([c["output_ids"] for c in s], r["token_ids"])
        for c, logprobs in zip(s, r["logprobs"]):
            self.assertEqual([[lp, i] for lp, i, _ in c["meta_info"]["output_token_logprobs"]],
                             [[lp, int(i)] for t in logprobs for i, lp in t[0].items()])
            self.assertIn(c["meta_info"]["finish_reason"]["type"], ("stop", "length"))
        self.assertEqual(self.server.post("/generate", text="5+6=", sampling_params={"max_new_tokens": 3})["meta_info"]["completion_tokens"], 3)

    def test_a_turn_runs_only_what_is_new_to_the_same_bits(self):
        prompt = [16 + i % 10 for i in range(100)]
        first = self.server.post("/v1/completions", prompt=prompt, max_tokens=40, ignore_eos=True, return_token_ids=True, cache_salt="turns")
        turn = prompt + first["choices"][0]["token_ids"] + [20, 10, 21, 28]
        ask = dict(prompt=turn, max_tokens=16, logprobs=0, return_token_ids=True, seed=2)
        again = self.server.post("/v1/completions", **ask, cache_salt="turns")
        other = self.server.post("/v1/completions", **ask, cache_salt="others")
        cached = [r["usage"]["prompt_tokens_details"]["cached_tokens"] for r in (first, again, other)]
        self.assertEqual(cached, [0, 128, 0])    # pages of 32; the answer's last token was drawn and not run
        self.assertEqual(again["choices"], other["choices"])
        self.assertTrue(self.server.post("/reset_prefix_cache")["success"])
        emptied = self.server.post("/v1/completions", **ask, cache_salt="turns")
        self.assertEqual(emptied["usage"]["prompt_tokens_details"]["cached_tokens"], 0)
        self.assertEqual(emptied["choices"], again["choices"])
        c = again["choices"][0]
        (want,) = self.trainer_logprobs([(turn, c["token_ids"], 1)])
        self.assertEqual([bits(x) for x in c["logprobs"]["token_logprobs"]], [bits(x) for x in want])

    def test_gzip_bodies_are_taken(self):
        body = gzip.compress(json.dumps({"prompt": "1+1=", "max_tokens": 2}).encode())
        status, _, r = self.server.ask("POST", "/v1/completions", body, {"Content-Encoding": "gzip"})
        self.assertEqual((status, r["usage"]["completion_tokens"]), (200, 2))

    def test_one_connection_serves_many_requests(self):
        with contextlib.closing(self.server.connect()) as c:
            for i in range(20):
                c.request("POST", "/v1/completions", json.dumps({"prompt": "1+1=", "max_tokens": 1 + i % 3, "stream": i % 2 == 1}))
                r = c.getresponse()
                self.assertEqual(r.status, 200)
                r.read()
            took = []
            for _ in range(20):    # an answer's body goes without waiting for the client to confirm its head, which takes 40 ms
                began = time.monotonic()
                c.request("GET", "/v1/models")
                c.getresponse().read()
                took.append(time.monotonic() - began)
            self.assertLess(min(took[1:]), 0.03)


class Orders(unittest.TestCase):
    """Pausing, new weights, and the end."""

    @classmethod
    def setUpClass(cls):
        cls.dir = tempfile.TemporaryDirectory(prefix="rc-serve-")
        cls.model = tiny_model.write(os.path.join(cls.dir.name, "model"), seed=1, max_pos=8192)
        cls.other = tiny_model.write(os.path.join(cls.dir.name, "other"), seed=2, max_pos=8192)
        cls.wider = tiny_model.write(os.path.join(cls.dir.name, "wider"), seed=2, layers=3)

    @classmethod
    def tearDownClass(cls):
        cls.dir.cleanup()

    def setUp(self):
        self.server = Server(self.model)
        self.pool = concurrent.futures.ThreadPoolExecutor(8)

    def tearDown(self):
        self.server.close()
        self.pool.shutdown()

    def greedy(self, n=30):
        r = self.server.post("/v1/completions", prompt="abc", temperature=0, max_tokens=n, ignore_eos=True, return_token_ids=True)
        return r["choices"][0]["token_ids"], r["weight_version"]

    def long(self, n_tok=900, n=1):
        """A long request under way: the stream's connection, and its first line."""
        c = self.server.connect()
        c.request("POST", "/v1/completions", json.dumps({"prompt": "a", "max_tokens": n_tok, "n": n, "ignore_eos": True, "stream": True}))
        r = c.getresponse()
        return c, r, r.readline()

    def test_new_weights_are_those_of_the_directory_and_the_version_says_so(self):
        before, version = self.greedy()
        self.assertEqual(version, 0)
        self.assertEqual(self.server.post("/update_weights", path=self.other)["weight_version"], 1)
        after, version = self.greedy()
        self.assertEqual(version, 1)
        self.assertNotEqual(before, after)
        status, _, r = self.server.ask("POST", "/update_weights", {"path": self.wider})
        self.assertEqual(status, 400, r)
        self.assertEqual(self.greedy(), (after, 1))
        self.assertEqual(self.server.post("/update_weights_from_disk", model_path=self.model, weight_version="7")["success"], True)
        self.assertEqual(self.greedy(), (before, 7))
        shutil.copytree(self.other, os.path.join(self.dir.name, "cut"))
        with open(os.path.join(self.dir.name, "cut", "model.safetensors"), "r+b") as f:
            f.truncate(5000)
        status, _, r = self.server.ask("POST", "/update_weights", {"path": os.path.join(self.dir.name, "cut")})
        self.assertGreaterEqual(status, 400)
        self.assertEqual(self.greedy(), (before, 7))

    def test_weights_of_another_config_or_with_a_value_that_is_not_finite_are_refused_by_name(self):
        before = self.greedy()

        def refused(name, words, **keys):
            folder = os.path.join(self.dir.name, name)
            shutil.copytree(self.other, folder)
            with open(os.path.join(folder, "config.json")) as f:
                config = json.load(f)
            with open(os.path.join(folder, "config.json"), "w") as f:
                json.dump({**config, **keys}, f)
            if not keys:    # the last value of the file
                with open(os.path.join(folder, "model.safetensors"), "r+b") as f:
                    f.seek(-4, os.SEEK_END)
                    f.write(struct.pack("<f", float("nan")))
            status, _, r = self.server.ask("POST", "/update_weights", {"path": folder})
            self.assertEqual(status, 400, (name, r))
            self.assertIn(words, json.dumps(r))
            self.assertEqual(self.greedy(), before)
        refused("theta", "'rope_theta' (123456, not ", rope_theta=123456.0)
        refused("eps", "'rms_norm_eps' (0.5, not ", rms_norm_eps=0.5)
        refused("act", "'hidden_act'", hidden_act="gelu_pytorch_tanh")
        refused("window", "'sliding_window'", sliding_window=4, use_sliding_window=True, max_window_layers=0)
        refused("scaling", "'rope_scaling'", rope_scaling={"rope_type": "linear", "factor": 4.0})
        refused("both", "'rms_norm_eps' (0.5, not 1e-06), 'rope_theta'", rms_norm_eps=0.5, rope_theta=5.0)
        refused("nan", "is not finite")
        # what changes no number is taken
        same = os.path.join(self.dir.name, "same")
        shutil.copytree(self.model, same)
        with open(os.path.join(same, "config.json")) as f:
            config = json.load(f)
        with open(os.path.join(same, "config.json"), "w") as f:
            json.dump({**config, "initializer_range": 0.5, "max_position_embeddings": 99999, "transformers_version": "9"}, f)
        self.assertEqual(self.server.post("/update_weights", path=same)["weight_version"], 1)
        self.assertEqual(self.greedy(), (before[0], 1))

    def test_new_weights_wait_for_what_is_under_way(self):
        c, r, first = self.long()
        self.assertEqual(self.server.post("/update_weights", path=self.other)["weight_version"], 1)
        lines = [first] + r.read().split(b"\n")    # it had ended before
        versions = {json.loads(x[6:])["weight_version"] for x in lines if x.startswith(b"data: {")}
        self.assertEqual(versions, {0})
        c.close()

    def begun(self, submit):
        """What submit returns, once the request that it has sent is being worked on: it is inside before the server goes on, and
        a later one has been answered, since they begin in order of arrival."""
        self.server.post("/pause?mode=keep")
        sent = submit()
        wait_for("the request is inside", lambda: self.server.inside() == 1)
        self.server.post("/resume")
        self.server.post("/v1/completions", prompt="a", max_tokens=20, ignore_eos=True)
        return sent

    def adapter(self, name, **shape):
        return tiny_model.write_adapter(os.path.join(self.dir.name, name), self.model, **shape)

    def test_an_adapter_is_loaded_and_unloaded_and_its_logprobs_are_the_trainers(self):
        one, two = self.adapter("one", seed=1), self.adapter("two", seed=2, rank=7)
        before, version = self.greedy()
        empty = {"lora_available": True, "active_adapter_path": None, "active_adapter_name": None, "active_adapter_id": None,
                 "load_count": 0, "available_adapters": []}
        self.assertEqual(self.server.ask("GET", "/lora/status")[2], empty)
        r = self.server.post("/lora/load", adapter_path=one)
        self.assertEqual({k: r[k] for k in ("status", "adapter_path", "adapter_name", "adapter_id", "load_count", "weight_version")},
                         {"status": "ok", "adapter_path": one, "adapter_name": "adapter_1", "adapter_id": 1, "load_count": 1,
                          "weight_version": 1})
        self.assertEqual(r["adapter_config"], {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "o_proj"], "base_model": self.model})
        r = self.server.post("/v1/completions", prompt="abc", temperature=0.8, max_tokens=20, ignore_eos=True, logprobs=0, seed=3,
                             return_token_ids=True, model="adapter_1")
        c, line = r["choices"][0], json.dumps({"ids": [97, 98, 99] + r["choices"][0]["token_ids"], "prompt_len": 3, "temperature": 0.8})
        want = subprocess.run([ROLLCALL, "logprobs", "--model", one, "--threads", "1"], input=line + "\n", capture_output=True, text=True,
                              check=True, timeout=LIMIT).stdout
        self.assertEqual([bits(x) for x in c["logprobs"]["token_logprobs"]], [bits(x) for x in json.loads(want)["logprobs"]])
        with_one, version = self.greedy()
        self.assertEqual(version, 1)
        self.server.post("/v1/load_lora_adapter", lora_name="second", lora_path=two)
        with_two, version = self.greedy()
        self.assertEqual((version, len({tuple(x) for x in (before, with_one, with_two)})), (2, 3))
        self.assertEqual([m["id"] for m in self.server.ask("GET", "/v1/models")[2]["data"]], ["model", "second"])
        status = self.server.ask("GET", "/lora/status")[2]
        self.assertEqual((status["active_adapter_name"], status["active_adapter_id"], status["load_count"]), ("second", 2, 2))
        r = self.server.post("/lora/unload")
        self.assertEqual((r["previous_adapter"], r["previous_name"]), (two, "second"))
        self.assertEqual(self.greedy(), (before, 3))
        self.assertEqual(self.server.post("/update_weights", path=one, version=9)["weight_version"], 9)    # a checkpoint of such a run
        self.assertEqual(self.greedy(), (with_one, 9))

    def test_an_adapter_that_cannot_be_loaded_changes_nothing(self):
        one, broken, other = self.adapter("good"), self.adapter("broken"), self.adapter("deeper", layers=3)
        high = self.adapter("high", rank=65)
        with open(os.path.join(broken, "adapter_model.safetensors"), "r+b") as f:
            f.truncate(3000)
        self.server.post("/v1/load_lora_adapter", lora_name="good", lora_path=one)
        before = self.greedy()
        cases = [("/lora/load", {}, 400, "adapter_path"), ("/lora/load", {"adapter_path": "/nonexistent"}, 404, "adapter_config.json"),
                 ("/lora/load", {"adapter_path": self.model}, 404, "adapter_config.json"),
                 ("/lora/load", {"adapter_path": one, "adapter_name": "model"}, 400, "own name"),
                 ("/lora/load", {"adapter_path": one, "adapter_name": 3}, 400, "name"),
                 ("/lora/load", {"adapter_path": other}, 400, "does not belong to an adapter"),
                 ("/lora/load", {"adapter_path": high}, 400, "--max-lora-rank"),
                 ("/lora/load", {"adapter_path": broken}, 400, ""),
                 ("/v1/load_lora_adapter", {"lora_path": one}, 400, "lora_name"),
                 ("/v1/load_lora_adapter", {"lora_path": one, "lora_name": "good"}, 400, "load_inplace"),
                 ("/v1/unload_lora_adapter", {"lora_name": "bad"}, 404, "'bad'"), ("/v1/unload_lora_adapter", {}, 400, "lora_name"),
                 ("/v1/completions", {"prompt": "a", "model": "bad"}, 404, "bad")]
        for path, body, status, word in cases:
            got, _, answer = self.server.ask("POST", path, body)
            self.assertEqual(got, status, (path, body, answer))
            self.assertIn(word, answer["error"]["message"], (path, body))
        self.assertEqual(self.greedy(), before)
        self.server.post("/v1/load_lora_adapter", lora_name="good", lora_path=one, load_inplace=True)
        self.assertEqual(self.greedy(), (before[0], before[1] + 1))

    def test_requests_under_way_finish_on_the_adapter_they_began_with(self):
        one, two = self.adapter("first", seed=1), self.adapter("next", seed=2)
        self.server.post("/lora/load", adapter_path=one)
        ask = dict(prompt="a", max_tokens=8000, temperature=0, ignore_eos=True, return_token_ids=True)
        alone = self.server.post("/v1/completions", **ask)["choices"][0]["token_ids"]
        under_way = self.begun(lambda: self.pool.submit(self.server.post, "/v1/completions", **ask))
        self.assertEqual(self.server.post("/lora/load", adapter_path=two)["weight_version"], 2)
        answer = under_way.result(LIMIT)    # it had ended before
        self.assertEqual((answer["choices"][0]["token_ids"], answer["weight_version"]), (alone, 1))
        answer = self.server.post("/v1/completions", **ask)
        self.assertEqual(answer["weight_version"], 2)
        self.assertNotEqual(answer["choices"][0]["token_ids"], alone)

    def test_a_server_without_room_for_adapters_says_so(self):
        server = Server(self.model, "--max-lora-rank", "0")
        self.addCleanup(server.close)
        self.assertEqual(server.ask("GET", "/lora/status")[2]["lora_available"], False)
        status, _, answer = server.ask("POST", "/lora/load", {"adapter_path": self.adapter("none")})
        self.assertEqual((status, "--max-lora-rank" in answer["error"]["message"]), (400, True), answer)

    def test_kept_work_goes_on_with_new_weights_and_says_which_tokens(self):
        ask = dict(input_ids=[97], return_logprob=True, sampling_params={"max_new_tokens": 8000, "ignore_eos": True})
        answer = self.begun(lambda: self.pool.submit(self.server.post, "/generate", **ask))
        self.server.post("/pause?mode=keep")
        self.assertEqual(self.server.ask("GET", "/is_paused")[2], {"is_paused": True})
        self.server.post("/update_weights", path=self.other, version=5)
        self.assertFalse(answer.done())
        self.server.post("/resume")
        meta = answer.result(LIMIT)["meta_info"]
        spans = meta["weight_versions"]
        self.assertEqual([s["version"] for s in spans], ["0", "5"])
        self.assertEqual((spans[0]["start"], spans[0]["end"], spans[1]["end"]), (0, spans[1]["start"], 8000))
        self.assertEqual(meta["weight_version"], "5")

    def test_pausing_aborts_with_what_there_is_or_waits_and_later_requests_queue(self):
        c, r, first = self.long(8000, 32)    # more than any wait between the two lines takes
        self.server.post("/pause")    # abort
        events = [json.loads(x[6:]) for x in r.read().split(b"\n") if x.startswith(b"data: {")]
        self.assertEqual(events[-1]["choices"][0]["finish_reason"], "abort")
        late = self.pool.submit(self.greedy, 5)
        self.assertEqual(self.server.ask("GET", "/health")[0], 200)
        self.assertFalse(late.done())
        self.server.post("/resume")
        self.assertEqual(len(late.result(LIMIT)[0]), 5)
        c.close()
        c, r, first = self.long()
        self.server.post("/pause?mode=wait")
        events = [json.loads(x[6:]) for x in (first + r.read()).split(b"\n") if x.startswith(b"data: {")]
        self.assertEqual(events[-1]["choices"][0]["finish_reason"], "length")
        c.close()
        self.server.post("/resume")
        c, r, first = self.long(8000, 32)
        waits = self.pool.submit(self.server.post, "/pause?mode=wait")
        time.sleep(0.2)    # it may come second, too: then there is nothing to see
        self.server.post("/pause?mode=keep")
        waits.result(LIMIT)    # the server is paused, as it asked
        self.server.post("/pause")
        c.close()

    def test_a_client_that_goes_away_frees_its_samples(self):
        self.server.post("/pause?mode=keep")    # so that nothing can end by itself
        for stream in (True, False):
            with socket.create_connection(("127.0.0.1", self.server.port)) as s:
                body = json.dumps({"prompt": ["a", "b"], "max_tokens": 900, "stream": stream}).encode()
                s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
                wait_for("the prompts are inside", lambda: self.server.inside() == 2)
            wait_for("their places are free", lambda: self.server.inside() == 0)
        self.server.post("/resume")
        self.greedy(5)

    def test_a_client_that_goes_away_in_the_middle_of_a_stream_frees_its_samples(self):
        c, r, first = self.long(8000, 32)
        self.server.post("/pause?mode=keep")
        self.assertEqual(self.server.inside(), 1)
        r.close()
        c.close()
        wait_for("its place is free", lambda: self.server.inside() == 0)

    def test_a_full_queue_is_answered_with_503_and_when_to_come_again(self):
        self.server.close()
        self.server = Server(self.model, "--queue", "2")
        self.server.post("/pause?mode=keep")
        inside = [self.pool.submit(self.greedy, 3) for _ in range(2)]
        wait_for("the prompts are inside", lambda: self.server.inside() == 2)
        status, headers, r = self.server.ask("POST", "/v1/completions", {"prompt": "a"})
        self.assertEqual((status, headers["Retry-After"]), (503, "1"))
        self.assertIn("at most 2", r["error"]["message"])
        self.server.post("/resume")
        self.assertEqual(len({tuple(f.result(LIMIT)[0]) for f in inside}), 1)

    def test_sigterm_finishes_what_is_under_way_and_ends_with_0(self):
        self.server.close()
        self.server = Server(self.model, "--threads", "2")    # one of the model's threads could take the signal, too
        c, r, first = self.long()
        rest = self.pool.submit(r.read)    # while the server drains, which waits only so long for a client that reads nothing
        self.assertEqual(self.server.stop(), 0)
        events = (first + rest.result(LIMIT)).split(b"\n\n")
        c.close()
        self.assertEqual(events[-2], b"data: [DONE]")
        self.assertEqual(json.loads(events[-3][6:])["choices"][0]["finish_reason"], "length")

    def test_sigterm_cuts_short_what_takes_longer_than_the_limit(self):
        self.server.close()
        self.server = Server(self.model, "--drain-s", "0")
        self.server.post("/pause?mode=keep")
        answer = self.pool.submit(self.server.ask, "POST", "/v1/completions", {"prompt": "a", "max_tokens": 9})
        wait_for("the prompt is inside", lambda: self.server.inside() == 1)
        self.assertEqual(self.server.stop(), 0)
        status, _, r = answer.result(LIMIT)
        self.assertEqual((status, r["choices"][0]["finish_reason"]), (200, "abort"))

    def test_what_cannot_be_served_is_said_at_once(self):
        cases = [([], 2, "--listen is needed"), (["--listen", "127.0.0.1"], 2, "HOST:PORT"),
                 (["--listen", "127.0.0.1:0", "--kv-gib", "1e-30"], 2, "--kv-gib is 1e-30; it must be 0, or between 0.001"),
                 (["--port", "65536"], 2, "--port is 65536; it must be between 0 and 65535"), (["--host", "::1"], 2, "--host needs --port"),
                 (["--listen", "127.0.0.1:0", "--port", "9001"], 2, "give one of both"), (["--host", "0.0.0.0", "--port", "0"], 2, "--token-file"),
                 (["--port", "0", "--tensor-parallel-size", "2"], 2, "'producer_tensor_parallel_size'"),
                 (["--port", str(self.server.port), "--tensor-parallel-size", "1"], 1, "another process"),
                 (["--listen", "0.0.0.0:0"], 2, "--token-file"), (["--listen", "127.0.0.1:0", "--batch", "0"], 2, "--batch"),
                 (["--listen", "127.0.0.1:0", "--max-model-len", "16384"], 1, "8192"),
                 (["--listen", "127.0.0.1:0", "--tls-cert", "x"], 2, "--tls-key"),
                 (["--listen", "127.0.0.1:0", "--token-file", "/nonexistent"], 1, "/nonexistent"),
                 (["--listen", f"127.0.0.1:{self.server.port}"], 1, "another process")]
        for more, status, word in cases:
            p = subprocess.run([ROLLCALL, "serve", "--model", self.model, *more], capture_output=True, text=True, timeout=LIMIT)
            self.assertEqual(p.returncode, status, (more, p.stderr))
            self.assertIn(word, p.stderr)
            self.assertEqual(p.stdout, "")


class Hostile(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.dir = tempfile.TemporaryDirectory(prefix="rc-serve-")
        cls.model = tiny_model.write(os.path.join(cls.dir.name, "model"), seed=1)
        cls.server = Server(cls.model, "--connections", "64", "--body-mib", "1", "--request-s", "1")

    @classmethod
    def tearDownClass(cls):
        cls.server.close()
        cls.dir.cleanup()

    def tearDown(self):
        self.assertEqual(self.server.ask("GET", "/health")[0], 200)    # whatever happened before
        self.assertEqual(self.server.post("/v1/completions", prompt="a", max_tokens=2, ignore_eos=True)["usage"]["completion_tokens"], 2)

    def test_ambiguous_framing_is_refused(self):
        tail = b"\r\n\r\n" + b"{}" * 10
        cases = {
            "two lengths": b"Host: x\r\nContent-Length: 2\r\nContent-Length: 20",
            "length and chunks": b"Host: x\r\nContent-Length: 2\r\nTransfer-Encoding: chunked",
            "no host": b"Content-Length: 2",
            "a blank before the colon": b"Host: x\r\nContent-Length : 2",
            "a coding that is not chunked": b"Host: x\r\nTransfer-Encoding: xchunked",
            "a negative length": b"Host: x\r\nContent-Length: -2",
            "an enormous length": b"Host: x\r\nContent-Length: 99999999999999999999",
            "a long length": b"Host: x\r\nContent-Length: 1048577",
            "a length twice": b"Host: x\r\nContent-Length: 2\r\nContent-Length: 2",
            "a list of lengths": b"Host: x\r\nContent-Length: 2, 2",
            "a length with a sign": b"Host: x\r\nContent-Length: +2",
            "an empty length": b"Host: x\r\nContent-Length: ",
            "two hosts": b"Host: x\r\nHost: y",
            "a folded line": b"Host: x\r\nX: a\r\n Content-Length: 99\r\nContent-Length: 2",
            "a folded coding": b"Host: x\r\nTransfer-Encoding:\r\n chunked\r\nContent-Length: 2",
            "a fold at once": b" Transfer-Encoding: chunked\r\nHost: x\r\nContent-Length: 2",
            "a byte of 0": b"Host: x\r\nX: a\0b\r\nContent-Length: 2",
            "a bare CR": b"Host: x\r\nX: a\rTransfer-Encoding: chunked\r\nContent-Length: 2",
            "a bare LF": b"Host: x\r\nX: a\nContent-Length: 2",
            "a line without a colon": b"Host: x\r\nX",
            "no name": b"Host: x\r\n: 2",
            "a chunk's size with 0x": b"Host: x\r\nTransfer-Encoding: chunked\r\n\r\n0x2",
            "a chunk without an end": b"Host: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nabcd",
            "a chunk of 2^64": b"Host: x\r\nTransfer-Encoding: chunked\r\n\r\n10000000000000002",
        }
        for name, head in cases.items():
            out = self.server.raw(b"POST /v1/completions HTTP/1.1\r\n" + head + tail)
            self.assertIn(out[:12], (b"HTTP/1.1 400", b"HTTP/1.1 413"), (name, out))
            self.assertEqual(out.count(b"HTTP/1."), 1, (name, out))    # one answer: the second request inside gets none

    def test_arguments_and_heads_are_bounded(self):
        for n, status in ((1, 200), (64, 200), (65, 400), (500, 400), (2000, 400)):
            self.assertEqual(self.server.ask("GET", "/health?" + "&".join(f"a{i}=%41" for i in range(n)))[0], status, n)
        for head, status in (("X: " + "a" * 40000, 431), ("\r\n".join(["a: b"] * 200), 431), ("Expect: x", 417)):
            out = self.server.raw(f"GET /health HTTP/1.1\r\nHost: x\r\n{head}\r\nConnection: close\r\n\r\n".encode())
            self.assertEqual((out[:12].decode(), out.count(b"HTTP/1.")), (f"HTTP/1.1 {status}", 1))
        self.assertEqual(self.server.ask("GET", "/health?a=%00")[0], 400)
        self.assertEqual(self.server.raw(b"\r\nGET http://x/health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")[:12], b"HTTP/1.1 200")

    def test_answers_that_nobody_reads_keep_nobody_out_and_little_memory(self):
        """Clients that pipeline requests and take no answers hold all places, and others the answers' memory: both are pushed out."""
        long = b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: 900016\r\n\r\n" + b'{"prompt":"' + b"a" * 900003 + b'"}'
        held = []
        try:
            for i in range(140):
                s = socket.socket()
                s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                s.settimeout(LIMIT)
                s.connect(("127.0.0.1", self.server.port))
                s.setblocking(False)
                held.append(s)
                with contextlib.suppress(OSError):
                    s.send(long if i % 2 else b"POST /nothing HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n" * 20000)
            wait_for("a place", lambda: self.answered(), 20)    # idle ones have 75 s
            with open(f"/proc/{self.server.process.pid}/status") as f:
                self.assertLess(int(re.search(r"VmRSS:\s+(\d+) kB", f.read())[1]), 1 << 19)
        finally:
            for s in held:
                s.close()

    def test_no_bytes_at_all_harm_the_server(self):
        cases = [b"\0" * 100, b"GET", b"GET / HTTP/9.9\r\n\r\n", b"POST " + b"a" * 40000, b"GET /health HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 40000,
                 b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"a" * 200]
        for data in cases:
            with socket.create_connection(("127.0.0.1", self.server.port), timeout=LIMIT) as s:
                with contextlib.suppress(OSError):    # it may have closed already
                    s.sendall(data)
                    s.shutdown(socket.SHUT_WR)
                    while s.recv(65536):
                        pass

    def test_bodies_on_get_chunks_and_pipelines_are_in_step(self):
        out = self.server.raw(b"GET /health HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello"
                              b"POST /tokenize HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n7\r\n{\"promp\r\n9\r\nt\": \"abc\"\r\n1\r\n}\r\n0\r\n\r\n"
                              b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        self.assertEqual(out.count(b"HTTP/1.1 200"), 3)
        self.assertIn(b'"tokens":[97,98,99]', out)

    def test_bombs_are_bounded(self):
        for body, coding, status in [(gzip.compress(b" " * (64 << 20)), "gzip", 413), (b"not gzip", "gzip", 400), (b"{}", "br", 415),
                                     (gzip.compress(b'{"prompt":"a"}')[:-9], "gzip", 400)]:
            got, _, r = self.server.ask("POST", "/v1/completions", body, {"Content-Encoding": coding})
            self.assertEqual(got, status, r)
        deep = b'{"prompt":' + b"[" * 400000 + b"]" * 400000 + b"}"
        self.assertEqual(self.server.ask("POST", "/v1/completions", deep)[0], 400)
        self.assertEqual(self.server.ask("POST", "/v1/completions", b'{"prompt":[' + b"1," * 400000 + b"1]}")[0], 400)
        with open(f"/proc/{self.server.process.pid}/status") as f:
            peak = int(re.search(r"VmHWM:\s+(\d+) kB", f.read())[1])
        self.assertLess(peak, 1 << 20, "kB at most")

    def test_a_client_that_dawdles_is_cut_off(self):
        heads = [b"", b"POST /v1/comp", b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{"]
        for i, head in enumerate(heads):
            start = time.monotonic()
            with socket.create_connection(("127.0.0.1", self.server.port), timeout=LIMIT) as s:
                s.sendall(head)
                s.settimeout(0.1)
                with contextlib.suppress(OSError):
                    while time.monotonic() - start < LIMIT:
                        with contextlib.suppress(TimeoutError):
                            if not s.recv(4096):
                                break
                        if i > 0:
                            s.sendall(b"a" if i == 1 else b" ")    # a byte now and then is no excuse
            self.assertLess(time.monotonic() - start, 60)    # 1 s for a header, 4 s for a body; idle ones have 75 s

    def test_half_closed_connections_keep_nothing(self):
        body = json.dumps({"prompt": "12+30=", "max_tokens": 64, "ignore_eos": True, "stream": True}).encode()
        whole = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body
        for data in (whole, whole[:-9], whole[:40], b""):
            with socket.create_connection(("127.0.0.1", self.server.port), timeout=LIMIT) as s:
                s.sendall(data)
                s.shutdown(socket.SHUT_WR)    # it can still read, and reads to the end
                got = b""
                with contextlib.suppress(ConnectionResetError):
                    while piece := s.recv(65536):
                        got += piece
            self.assertTrue(got in (b"",) or got[:12] in (b"HTTP/1.1 200", b"HTTP/1.1 400"), got[:200])
        wait_for("no samples inside", lambda: self.server.inside() == 0)

    def test_an_endless_body_is_cut_off(self):
        with socket.create_connection(("127.0.0.1", self.server.port), timeout=LIMIT) as s:
            s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
            with self.assertRaises(OSError):    # the server closes
                for _ in range(4000):    # far more than the sockets' buffers hold
                    s.sendall(b"10000\r\n" + b"a" * 0x10000 + b"\r\n")

    def test_pages_of_other_sites_get_nothing(self):
        for origin, status in [("http://evil.example", 403), ("null", 403), (f"http://127.0.0.1:{self.server.port}", 200)]:
            self.assertEqual(self.server.ask("GET", "/health", headers={"Origin": origin})[0], status)
        rebound = {"Host": "evil.example:80", "Origin": "http://evil.example:80"}    # its name leads here: the browser sees one site
        self.assertEqual(self.server.ask("GET", "/health", headers=rebound)[0], 403)
        with contextlib.closing(Server(self.model, "--allowed-hosts", "llm.example.org")) as s:
            proxied = {"Host": "llm.example.org", "Origin": "http://llm.example.org"}
            self.assertEqual([s.ask("GET", "/health", headers=h)[0] for h in (proxied, rebound)], [200, 403])

    def test_a_thousand_silent_connections_keep_nobody_out(self):
        silent = []
        try:
            for i in range(1000):
                s = socket.socket()
                s.settimeout(LIMIT)
                s.connect(("127.0.0.1", self.server.port))
                silent.append(s)
                if i % 3 == 0:
                    with contextlib.suppress(OSError):
                        s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n"[:i % 90])
            wait_for("a place", lambda: self.answered(), 60)
            self.assertLessEqual(len(os.listdir(f"/proc/{self.server.process.pid}/fd")), 64 + 64 + 40)
        finally:
            for s in silent:
                s.close()
        wait_for("all places", lambda: len(os.listdir(f"/proc/{self.server.process.pid}/fd")) < 64)

    def answered(self):
        with contextlib.suppress(OSError, http.client.HTTPException):
            return self.server.ask("GET", "/health", limit=5)[0] == 200
        return False


class Guarded(unittest.TestCase):
    def test_a_token_is_asked_for_and_tls_is_spoken(self):
        import ssl
        with tempfile.TemporaryDirectory(prefix="rc-serve-") as dir:
            model = tiny_model.write(os.path.join(dir, "model"), seed=1)
            token, cert, key = (os.path.join(dir, n) for n in ("token", "cert.pem", "key.pem"))
            with open(token, "w") as f:
                f.write("s3cret\n")
            subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
                            "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", cert],
                           check=True, capture_output=True)
            server = Server(model, "--token-file", token, "--tls-cert", cert, "--tls-key", key)
            try:
                self.assertIn("https://", server.line)
                trust = ssl.create_default_context(cafile=cert)
                def ask(method, path, token, body=None, header="Authorization"):
                    with contextlib.closing(http.client.HTTPSConnection("127.0.0.1", server.port, timeout=LIMIT, context=trust)) as c:
                        c.request(method, path, body, {header: token} if token else {})
                        r = c.getresponse()
                        return r.status, json.loads(r.read())
                self.assertEqual(ask("GET", "/health", None)[0], 200)
                body = json.dumps({"prompt": "a", "max_tokens": 2, "temperature": 0})
                for wrong in (None, "Bearer s3cre", "Bearer s3crets", "s3cret", "Basic s3cret"):
                    self.assertEqual(ask("POST", "/v1/completions", wrong, body)[0], 401, wrong)
                    self.assertEqual(ask("GET", "/nothing", wrong)[0], 401)
                self.assertEqual(ask("POST", "/v1/completions", "Bearer s3cret", body)[0], 200)
                for key, status in (("s3cret", 200), ("s3cre", 401), ("s3crets", 401), ("Bearer s3cret", 401)):    # as Anthropic's clients do
                    self.assertEqual(ask("POST", "/v1/completions", key, body, header="X-Api-Key")[0], status, key)
                for version, spoken in ((ssl.TLSVersion.TLSv1, False), (ssl.TLSVersion.TLSv1_1, False), (ssl.TLSVersion.TLSv1_2, True)):
                    old = ssl.create_default_context(cafile=cert)
                    old.set_ciphers("ALL:@SECLEVEL=0")    # with which this client does speak the old versions
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore", DeprecationWarning)
                        old.minimum_version, old.maximum_version = version, version
                    with socket.create_connection(("127.0.0.1", server.port), timeout=LIMIT) as s:
                        if spoken:
                            old.wrap_socket(s, server_hostname="127.0.0.1").close()
                            continue
                        with self.assertRaises(OSError) as refused:
                            old.wrap_socket(s, server_hostname="127.0.0.1")
                        self.assertNotIn("NO_PROTOCOLS_AVAILABLE", str(refused.exception))    # the server refuses, not this client
                self.assertEqual(server.stop(), 0)
                self.assertNotIn("s3cret", server.errors())
            finally:
                server.close()


if __name__ == "__main__":
    unittest.main()
