"""rollcall serve: what its routes answer, that its log-probs are the trainer's, and what hostile clients cannot do.

tags: limit=600
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
import threading
import time
import unittest

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
            with contextlib.suppress(ValueError):
                return r.status, r.headers, json.loads(text)
            return r.status, r.headers, text

    def post(self, path, **body):
        status, _, answer = self.ask("POST", path, body)
        if status != 200:
            raise AssertionError(f"{path} {status}: {answer}")
        return answer

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
        """All that comes back for these bytes until the server closes."""
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
        self.assertGreater(len(events), 10)

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
            ("/v1/chat/completions", {"messages": []}, 400, "'messages'"), ("/v1/chat/completions", {"messages": ["a"]}, 400, "'messages'"),
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, "text"),
            ("/v1/completions", '{"prompt": "a", "prompt": "b"}', 400, "duplicate"), ("/nothing", {}, 404, "path"),
            ("/health", {}, 405, "method"), ("/update_weights", {"path": "/nonexistent"}, 400, "directory"),
            ("/pause?mode=later", {}, 400, "abort"),
        ]
        for path, body, status, word in cases:
            got, headers, answer = self.server.ask("POST", path, body)
            self.assertEqual(got, status, (path, body, answer))
            self.assertIn(word, answer["error"]["message"], (path, body))
            self.assertEqual(answer["error"]["code"], status)

    def test_unknown_fields_are_ignored(self):
        self.server.post("/v1/completions", prompt="a", max_tokens=1, reasoning={"effort": "high"}, user="x", kv_transfer_params=None,
                         cache_salt="s", presence_penalty=0, logit_bias={}, best_of=None)


if __name__ == "__main__":
    unittest.main()
