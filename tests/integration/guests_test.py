"""Runs with `serve`: anyone may ask the policy while it is trained, and the run's bytes are those of a run without guests.

tags: limit=900
"""
import contextlib
import http.client
import json
import os
import random
import socket
import ssl
import subprocess
import sys
import threading
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import run_tools
from atropos_test import Environment

LIMIT = run_tools.LIMIT


class Client:
    """Asks a run's policy over HTTP."""

    def __init__(self, port):
        self.port = port

    def ask(self, method, path, body=None, limit=LIMIT):
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=limit)) as c:
            c.request(method, path, body if body is None or isinstance(body, bytes) else json.dumps(body))
            r = c.getresponse()
            text = r.read()
            try:
                return r.status, json.loads(text)
            except ValueError:
                return r.status, text.decode()

    def ready(self):
        with contextlib.suppress(OSError, http.client.HTTPException):
            return self.ask("GET", "/health", limit=5)[0] == 200
        return False


class Guest(threading.Thread):
    """Asks in all shapes, one request after the other, until the run has ended; strangers also misbehave."""

    def __init__(self, port, seed, strange):
        super().__init__()
        self.client, self.random, self.strange = Client(port), random.Random(seed), strange
        self.answers, self.wrong, self.over = [], [], False
        self.start()

    def request(self):
        n, ids = self.random.choice([1, 1, 3]), [self.random.randrange(3, 90) for _ in range(self.random.randrange(1, 40))]
        length = self.random.choice([1, 5, 30])
        return self.random.choice([
            ("/v1/chat/completions", dict(messages=[{"role": "user", "content": "3+4="}], n=n, max_tokens=length, logprobs=True)),
            ("/v1/completions", dict(prompt=ids, n=n, max_tokens=length, logprobs=2, prompt_logprobs=1, ignore_eos=True)),
            ("/generate", dict(prompt={"prompt_token_ids": ids}, n=n, max_tokens=length, logprobs=0)),
            ("/generate", dict(input_ids=ids, sampling_params=dict(max_new_tokens=length, n=n, ignore_eos=True), return_logprob=True)),
            ("/inference/v1/generate", dict(token_ids=ids, sampling_params=dict(max_tokens=length, logprobs=1)))])

    def misbehave(self):
        path, body = self.request()
        data = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n".encode()
        pieces = [head + data, head + data[:-3], head[:20], head + data[:-1] + b"]", b"\0" * 4000,
                  (head + data).replace(b'"n"', b'"m"').replace(b'"max_tokens": 5', b'"max_tokens": -5')]
        with socket.create_connection(("127.0.0.1", self.client.port), timeout=LIMIT) as s:
            s.sendall(self.random.choice(pieces))    # and away, without reading

    def run(self):
        while not self.over:
            try:
                if self.strange and self.random.random() < 0.7:
                    self.misbehave()
                    continue
                path, body = self.request()
                status, answer = self.client.ask("POST", path, body)
                if status == 503:    # the stranger has taken all places for a moment
                    time.sleep(0.01)
                    continue
                (self.answers if status == 200 else self.wrong).append(answer)
            except (OSError, http.client.HTTPException):    # not there yet, or not any more
                time.sleep(0.01)

    def close(self):
        self.over = True
        self.join()


def versions_of(answer):
    """Of the weights that drew its tokens; none when the run ended before there was one."""
    samples = answer if isinstance(answer, list) else [answer]
    if "meta_info" not in samples[0]:
        return [answer["weight_version"]]
    return [span["version"] for one in samples for span in one["meta_info"]["weight_versions"]]


def cut_short(answer):
    """Does it say for all of its samples that the end of the run ended them?"""
    return all(one["meta_info"]["finish_reason"]["type"] == "abort" for one in (answer if isinstance(answer, list) else [answer]))


class Guests(run_tools.RunCase):
    def run_with(self, visited, **settings):
        """The run's weights and ledger, and its guests."""
        port = run_tools.free_port()
        more = dict(serve=f"127.0.0.1:{port}", serve_samples=4) if visited else {}
        run = self.start("--max-steps", "40", save_interval=10, **settings, **more)
        guests = [Guest(port, i, strange=i == 2) for i in range(3)] if visited else []
        for v in guests:
            self.addCleanup(v.close)
        self.assertEqual(run.wait()[0], 0, run.logs())
        for v in guests:
            v.close()
        return [run.weights(s) for s in (10, 40)], run.ledger(), guests, run

    def test_guests_see_the_version_rise_and_change_no_byte(self):
        evaluated = dict(eval_dataset={"a": self.task.path("train.jsonl")}, eval_interval=5)
        for settings in [evaluated, dict(n_behind=1), dict(placement="apart", num_inferencer=1, n_behind=1)]:
            with self.subTest(**settings):
                weights, ledger, _, _ = self.run_with(False, **settings)
                same, ledger_too, guests, run = self.run_with(True, **settings)
                self.assertEqual((same, ledger_too), (weights, ledger), run.logs())
                self.assertEqual([w for v in guests for w in v.wrong], [], run.logs())
                for v in guests[:2]:
                    if not versions_of(v.answers[-1]):    # it was inside when the run ended, and had no token yet
                        self.assertTrue(cut_short(v.answers.pop()), run.logs())
                    seen = [max(map(int, versions_of(a))) for a in v.answers]
                    self.assertGreaterEqual(len(set(seen)), 4, f"{seen}\n{run.logs()}")
                    self.assertEqual(seen, sorted(seen), "a version fell")

    def test_a_run_of_a_killed_worker_serves_again_and_takes_no_orders(self):
        port = run_tools.free_port()
        client = Client(port)
        run = self.start(serve=f"127.0.0.1:{port}")
        self.until("the run serves", client.ready, run)
        card = client.ask("GET", "/v1/models")[1]["data"][0]
        self.assertEqual((card["id"], card["max_model_len"]), ("run-%d" % self.n, 76))
        for path in ("/pause", "/resume", "/flush_cache", "/update_weights", "/lora/load", "/v1/load_lora_adapter"):
            status, answer = client.ask("POST", path, {"path": "/"})
            self.assertEqual(status, 403)
            self.assertIn("belong to the run", answer["error"]["message"])
        self.assertEqual(client.ask("POST", "/v1/completions", {"prompt": [5] * 76})[0], 400)
        run.wait_step(2)
        pid, nice = run.processes()["worker cpu:0"], []
        for task in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{task}/stat") as f:
                nice.append(int(f.read().rsplit(")", 1)[1].split()[16]))
        self.assertEqual(nice.count(max(nice)), 1)    # the thread of web.h comes after the run's own
        self.assertEqual(max(nice), min(min(nice) + 10, 19))
        os.kill(pid, 9)
        self.until("it serves again", lambda: client.ready() and client.ask("GET", "/v1/models")[1]["data"][0]["weight_version"] >= 2, run)
        self.ok(run, "pause")
        self.until("it is paused", lambda: self.status(run)["state"] == "paused", run)
        status, answer = client.ask("POST", "/v1/completions", {"prompt": "1+1=", "max_tokens": 3, "ignore_eos": True})    # guests are served meanwhile
        self.assertEqual((status, answer["usage"]["completion_tokens"]), (200, 3))
        gauges = lambda: next(p for p in self.status(run)["processes"] if p["name"] == "worker cpu:0")["gauges"]
        self.until("the console counts guests", lambda: (gauges().get("guests"), gauges().get("guest_tok")) == (0, 3), run)

    def test_a_sample_over_several_steps_says_which_weights_drew_what(self):
        port = run_tools.free_port()
        client = Client(port)
        run = self.start(serve=f"127.0.0.1:{port}", max_new_tokens=400, num_generations=2, inference_batch_size=2, train_batch_size=2,
                         inference_microbatch_size=2, train_minibatch_size=2, save_interval=1000)
        self.until("the run serves", client.ready, run)
        mixed = None
        end = time.monotonic() + LIMIT
        while not mixed and time.monotonic() < end:
            one = client.ask("POST", "/generate", dict(input_ids=[5, 6, 7], sampling_params=dict(max_new_tokens=400, ignore_eos=True),
                                                       return_logprob=True))[1]["meta_info"]
            mixed = one if len(one["weight_versions"]) > 1 else None
        self.assertIsNotNone(mixed, run.logs())
        self.assertEqual(len(mixed["output_token_logprobs"]), 400)
        spans = mixed["weight_versions"]
        self.assertEqual((spans[0]["start"], spans[-1]["end"]), (0, 400))
        for a, b in zip(spans, spans[1:]):
            self.assertEqual(a["end"], b["start"])
            self.assertLess(int(a["version"]), int(b["version"]))

    def test_environments_draw_from_the_run_that_they_post_to(self):
        door, port = run_tools.free_port(), run_tools.free_port()
        run = self.start("--max-steps", "12", environments={"listen": f"127.0.0.1:{door}"}, num_inferencer=1, serve=f"127.0.0.1:{port}")
        guest, env = Guest(port, 1, strange=False), Environment(door)
        self.addCleanup(guest.close)
        self.addCleanup(env.close)
        self.assertEqual(run.wait()[0], 0, run.logs())
        self.assertGreater(len({v for a in guest.answers for v in versions_of(a)}), 1, run.logs())
        self.assertEqual(guest.wrong, [])

    def test_tls_is_spoken_and_a_token_asked_for(self):
        cert, key, token, port = self.task.path("cert.pem"), self.task.path("key.pem"), self.task.path("token"), run_tools.free_port()
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
                        "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-keyout", key, "-out", cert],
                       check=True, capture_output=True)
        with open(token, "w") as f:
            f.write("a long enough token\n")
        run = self.start("--max-steps", "100000", serve=f"127.0.0.1:{port}", serve_tls_cert=cert, serve_tls_key=key, serve_token_file=token)
        run.wait_step(1)
        for bearer, status in [("a long enough token", 200), ("another", 401)]:
            c = http.client.HTTPSConnection("localhost", port, timeout=LIMIT, context=ssl.create_default_context(cafile=cert))
            with contextlib.closing(c):
                c.request("POST", "/v1/completions", json.dumps({"prompt": [5, 6], "max_tokens": 3}), {"Authorization": f"Bearer {bearer}"})
                self.assertEqual(c.getresponse().status, status)
        self.assertEqual(Client(port).ready(), False)    # plain HTTP is not answered
        run.kill()

    def test_settings_that_cannot_be_served_are_refused(self):
        taken = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(taken.close)
        for settings, words in [(dict(serve="9001"), "must be HOST:PORT"), (dict(serve="0.0.0.0:9001"), "serve_token_file"),
                                (dict(serve="127.0.0.1:9001", serve_tls_key=self.task.path("reward.py")), "both, or neither"),
                                (dict(serve=f"127.0.0.1:{taken.getsockname()[1]}"), "is in use by another process")]:
            run = self.start(**settings)
            self.assertNotEqual(run.wait()[0], 0)
            self.assertIn(words, run.logs())


if __name__ == "__main__":
    unittest.main()
