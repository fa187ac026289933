"""Samples drawn by an external engine ('backend' vllm or sglang). The engine is 'rollcall serve', through its vLLM and SGLang shapes, so that
log-probs must be the trainer's to the bit; what engines do wrong is done by a server in between.

tags: limit=600
"""
import base64
import contextlib
import http.client
import http.server
import json
import math
import os
import re
import signal
import sqlite3
import struct
import subprocess
import sys
import tempfile
import threading
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import run_tools

ROLLCALL, LIMIT = run_tools.ROLLCALL, run_tools.LIMIT


HELPER = '''import json, os, sys, urllib.request
for line in sys.stdin:
    q = json.loads(line)
    first = not os.path.exists(sys.argv[1])
    with open(sys.argv[1], "a") as f:
        print(q["version"], file=f)
    try:
        if first:
            raise ValueError("not yet")
        body = json.dumps({"model_path": q["dir"], "weight_version": str(q["version"])}).encode()
        urllib.request.urlopen(urllib.request.Request(q["url"] + "/update_weights_from_disk", body)).read()
        print(json.dumps({"id": q["id"], "ok": True}), flush=True)
    except (OSError, ValueError) as e:
        print(json.dumps({"id": q["id"], "error": str(e)}), flush=True)
'''


class Engine:
    """rollcall serve with a model, or with None and --shared-weights, on a free port of 127.0.0.1, or on this one."""

    def __init__(self, model, *more, port=0):
        self.log = tempfile.TemporaryFile("w+")
        what = ["--model", model] if model else []
        self.process = subprocess.Popen([ROLLCALL, "serve", *what, "--listen", f"127.0.0.1:{port}", "--threads", "1", *more],
                                        stdout=subprocess.PIPE, stderr=self.log, text=True)
        line = self.process.stdout.readline()
        found = re.search(r"http://127\.0\.0\.1:(\d+)", line)
        if not found:
            self.process.wait(LIMIT)
            raise AssertionError("no ready line: " + line + self.said())
        self.port = int(found[1])
        self.url = f"http://127.0.0.1:{self.port}"

    def said(self):
        return run_tools.written(self.log)

    def loads(self):
        """The versions that it was told to read, in order."""
        return [int(v) for v in re.findall(r"(?:replaced|loaded).* version=(\d+)", self.said())]

    def close(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        self.log.close()


class Between:
    """A server that passes requests on to an engine, except for what act(path, body) does with them: None passes, a number is answered with
    this status, "close" hangs up, "silence" says nothing, a function changes the answer's JSON."""

    def __init__(self, port, act):
        outer = self
        self.stop = threading.Event()

        class Handler(http.server.BaseHTTPRequestHandler):
            def log_message(self, *args):
                pass

            def answer(self, body):
                what = act(self.path, body)
                if what == "close":
                    self.close_connection = True
                    return
                if what == "silence":
                    outer.stop.wait(LIMIT)
                    return
                if isinstance(what, int):
                    status, data = what, b'{"error": "told to"}'
                else:
                    c = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT)
                    with contextlib.closing(c):
                        c.request(self.command, self.path, body, {"Content-Type": "application/json"})
                        r = c.getresponse()
                        status, data = r.status, r.read()
                    if callable(what):
                        data = what(json.loads(data))
                        data = data if isinstance(data, bytes) else json.dumps(data).encode()
                with contextlib.suppress(OSError):    # the run may be over
                    self.send_response(status)
                    self.send_header("Content-Type", "application/json")
                    self.send_header("Content-Length", str(len(data)))
                    self.end_headers()
                    self.wfile.write(data)

            def do_GET(self):
                self.answer(None)

            def do_POST(self):
                self.answer(self.rfile.read(int(self.headers["Content-Length"])))

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()

    def close(self):
        self.stop.set()
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


class SglangLike:
    """act of a Between: what SGLang 0.5.23 itself takes and answers, by its classes GenerateReqInput, SamplingParams and
    UpdateWeightFromDiskReqInput, and by answers of it that were recorded on a CPU (tests/peers/sglang_engine.py)."""
    FIELDS = {"/generate": {"text", "input_ids", "sampling_params", "return_logprob", "logprob_start_len", "top_logprobs_num", "token_ids_logprob",
                            "return_text_in_logprobs", "stream", "lora_path", "rid", "cache_salt", "priority"},
              "/update_weights_from_disk": {"model_path", "load_format", "abort_all_requests", "weight_version", "is_async", "torch_empty_cache",
                                            "keep_pause", "recapture_cuda_graph", "token_step", "flush_cache", "manifest"}}
    SAMPLING = {"max_new_tokens", "stop", "stop_token_ids", "stop_regex", "temperature", "top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty",
                "repetition_penalty", "min_new_tokens", "n", "json_schema", "regex", "ebnf", "structural_tag", "ignore_eos", "skip_special_tokens",
                "spaces_between_special_tokens", "no_stop_trim", "stream_interval", "logit_bias", "sampling_seed", "custom_params"}

    def __init__(self):
        self.version, self.wrong, self.asked = "default", [], set()

    def __call__(self, path, body):
        self.asked.add(path)
        if path not in self.FIELDS:
            return None
        q = json.loads(body)
        params = q.get("sampling_params", {})
        self.wrong += sorted((set(q) - self.FIELDS[path]) | (set(params) - self.SAMPLING))
        return (lambda a: self.generated(a, len(q["input_ids"]))) if path == "/generate" else lambda a: self.updated(a, q["weight_version"])

    def generated(self, answer, n_prompt):
        out = []
        for i, s in enumerate(answer if isinstance(answer, list) else [answer]):
            m, ids = s["meta_info"], s["output_ids"]
            out.append({"text": s["text"], "output_ids": ids, "meta_info": {
                "id": f"{i:032x}", "finish_reason": m["finish_reason"], "prompt_tokens": n_prompt, "weight_version": self.version, "num_retractions": 0,
                "input_token_logprobs": [], "output_token_logprobs": m["output_token_logprobs"], "output_token_logprobs_length": len(ids),
                "reasoning_tokens": 0, "completion_tokens": len(ids), "cached_tokens": 2,
                "weight_versions": [{"version": self.version, "start": 0, "end": len(ids)}], "cached_tokens_details": {"device": 2, "host": 0},
                "dp_rank": None, "e2e_latency": 1.3235452369990526, "response_sent_to_client_ts": 1795407136.2729456}})
        return out if isinstance(answer, list) else out[0]

    def updated(self, answer, version):
        self.version = version
        return {"success": True, "message": f"Succeeded to update model weights. Weight version updated to {version}.", "num_paused_requests": 0}


class DrawingTime:
    """act of a Between, around another one: the seconds during which it has had a request for samples."""

    def __init__(self, act):
        self.act, self.lock, self.n, self.since, self.total = act, threading.Lock(), 0, 0, 0

    def count(self, n):
        with self.lock:
            now = time.monotonic()
            self.total += now - self.since if self.n else 0
            self.n, self.since = self.n + n, now

    def __call__(self, path, body):
        what = self.act(path, body)
        if path != "/generate":
            return what
        self.count(1)

        def answered(answer):
            self.count(-1)
            return what(answer)
        return answered


class ExternalEngines(run_tools.RunCase):
    def engine(self, *more, port=0):
        e = Engine(self.task.path("model"), *more, port=port)
        self.addCleanup(e.close)
        return e

    def between(self, engine, act):
        b = Between(engine.port, act)
        self.addCleanup(b.close)
        return b

    def begin(self, url, *extra, backend="vllm", **settings):
        settings.setdefault("num_generations", 8)    # an engine draws as it likes: of fewer, a group is often all right or all wrong
        return self.start("--engine-url", url, *extra, backend=backend, **settings)

    def diffs(self, run):
        """Of the steps that had a gradient."""
        found = [line["metrics"].get("train/sampler_trainer_diff") for line in run.told("step")]
        self.assertGreater(sum(d is not None for d in found), len(found) / 2)
        return {d for d in found if d is not None}

    def wait_for(self, run, come):
        end = time.monotonic() + LIMIT
        while not come():
            self.assertTrue(time.monotonic() < end and run.process.poll() is None, run.logs())
            time.sleep(0.02)

    def log(self, run, name="worker-engine-0"):
        with open(os.path.join(run.dir, f"logs/{name}.log")) as f:
            return f.read()

    def test_each_step_is_sampled_by_the_engine_with_the_weights_of_that_step(self):
        for backend in ("vllm", "sglang"):
            with self.subTest(backend):
                e = self.engine()
                run = self.begin(e.url, "--max-steps", "6", backend=backend)
                self.assertEqual(run.wait()[0], 0, run.logs())
                self.assertEqual(e.loads(), [0, 1, 2, 3, 4, 5])
                self.assertEqual(self.diffs(run), {0})    # the same kernels: any other weights would show
                self.assertEqual(os.listdir(os.path.join(run.dir, "engine/0")), ["1-5"])
                e.close()

    def test_sglangs_own_fields_are_all_that_is_sent_and_read(self):
        e, like = self.engine(), SglangLike()
        drawing = DrawingTime(like)
        run = self.begin(self.between(e, drawing).url, "--max-steps", "4", backend="sglang", min_new_tokens=3)
        self.assertEqual(run.wait()[0], 0, run.logs())
        self.assertGreaterEqual(sum(line["metrics"]["time/generate_s"] for line in run.told("step")), drawing.total)
        self.assertEqual((like.wrong, e.loads(), like.version), ([], [0, 1, 2, 3], "3"))
        self.assertLessEqual({"/generate", "/update_weights_from_disk"}, like.asked)
        self.assertEqual(self.diffs(run), {0})

    def test_a_program_of_the_operators_may_give_the_weights(self):
        helper = os.path.join(self.task.dir, "helper.py")
        with open(helper, "w") as f:
            f.write(HELPER)
        e = self.engine()
        run = self.begin(e.url, "--max-steps", "6", "--engine-helper", f"{sys.executable} {helper} {self.task.path('given')}")
        run.wait_step(3)
        e.close()    # it comes back with the weights of step 0
        e = self.engine(port=e.port)
        self.assertEqual(run.wait()[0], 0, run.logs())
        self.assertEqual(self.diffs(run), {0})
        with open(self.task.path("given")) as f:
            given = [int(line) for line in f]
        self.assertLessEqual({0, 1, 2, 3, 4, 5}, set(given))
        self.assertEqual(given[:2], [0, 0])    # the first answer was an error, and was asked for again
        self.assertIn("did not give the weights to the engine at", log := self.log(run))
        self.assertIn("not yet", log)

    def test_two_engines_sample_an_adapter_ahead_of_the_trainer(self):
        engines = [self.engine("--max-lora-rank", "4") for _ in range(2)]
        run = self.begin(",".join(e.url for e in engines), "--max-steps", "6", lora_rank=4, n_behind=1, inference_batch_size=4, inference_microbatch_size=4)
        self.assertEqual(run.wait()[0], 0, run.logs())
        for e in engines:
            self.assertEqual(e.loads(), sorted(set(e.loads())))
        self.assertGreaterEqual(set().union(*(e.loads() for e in engines)), {0, 1, 2, 3, 4})
        self.assertEqual(self.diffs(run), {0})

    def test_what_a_dead_engine_had_is_drawn_by_another_at_once(self):
        living, dead = self.engine(), self.engine()
        run = self.begin(f"{dead.url},{living.url}", "--max-steps", "8", inference_batch_size=4, inference_microbatch_size=4)
        run.wait_step(2)
        dead.close()    # for good, while it draws or gets weights
        self.assertEqual(run.wait()[0], 0, run.logs())
        self.assertEqual(self.diffs(run), {0})

    def test_an_engine_without_answers_loses_its_items_until_it_has_some(self):
        deaf, drawn = threading.Event(), threading.Event()

        def act(path, body):
            if path != "/v1/completions":
                return None
            drawn.set()
            return "close" if deaf.is_set() else None
        stays, b = self.engine(), self.between(self.engine(), act)
        run = self.begin(f"{b.url},{stays.url}", "--max-steps", "100000", inference_batch_size=4, inference_microbatch_size=4)
        run.wait_step(2)
        deaf.set()
        self.wait_for(run, lambda: "its items are drawn by others" in self.log(run))
        run.wait_step(run.step() + 1)
        deaf.clear()
        drawn.clear()
        self.wait_for(run, drawn.is_set)
        run.wait_step(run.step() + 1)
        self.assertEqual(self.diffs(run), {0})
        run.kill()

    def test_whatever_is_killed_the_run_goes_on_with_the_right_weights(self):
        e = self.engine()
        run = self.begin(e.url, "--max-steps", "14")
        for step, name in [(2, None), (5, "worker engine:0"), (8, "worker cpu:0"), (10, "controller"), (12, None)]:
            run.wait_step(step)
            if name:
                with contextlib.suppress(ProcessLookupError, KeyError):
                    os.kill(run.processes()[name], signal.SIGKILL)
            else:    # it comes back with the weights of step 0
                e.close()
                e = self.engine(port=e.port)
        self.assertEqual(run.wait()[0], 0, run.logs())
        self.assertEqual(run.step(), 14)
        self.assertEqual(self.diffs(run), {0})

    def test_what_an_engine_does_wrong_is_named_and_survived(self):
        script = [500, "close", 503, "silence", lambda a: b"<html>", lambda a: {**a, "choices": a["choices"][:1]},
                  lambda a: {**a, "choices": [{**c, "token_ids": None} for c in a["choices"]]},
                  lambda a: {**a, "choices": [{**c, "finish_reason": "abort"} for c in a["choices"]]},
                  lambda a: {**a, "weight_version": 77}]
        lock = threading.Lock()

        def act(path, body):
            with lock:
                return script.pop(0) if path == "/v1/completions" and script else None
        b = self.between(self.engine(), act)
        run = self.begin(b.url, "--max-steps", "2", engine_timeout_s=3)
        self.assertEqual(run.wait()[0], 0, run.logs())
        log = self.log(run)
        for words in ["/v1/completions answered with status 500", "Server returned nothing", "answered with status 503", "Timeout was reached",
                      "the answer is not JSON", "has 1 samples instead of 8", "choice 0 has no 'token_ids'", "ended with 'abort'",
                      "has weights of version 77, not 0"]:
            self.assertIn(words, log)
        self.assertEqual(script, [])
        self.assertEqual(self.diffs(run), {0})

    def test_what_no_patience_mends_fails_the_run_with_a_sentence(self):
        e = self.engine()
        cases = [("/v1/completions", 500, "has been away for"), ("/v1/completions", 404, "answered with status 404"),
                 ("/update_weights_from_disk", 404, "/update_weights_from_disk answered with status 404"),
                 ("/update_weights_from_disk", lambda a: {"success": False, "message": "no space"}, "did not take the weights")]
        for path, what, words in cases:
            with self.subTest(words):
                b = self.between(e, lambda p, body: what if p == path else None)
                run = self.begin(b.url, engine_patience_s=2)
                code, last = run.wait()
                self.assertEqual(code, 1, run.logs())
                self.assertIn(words, json.dumps(last))
        dead = self.begin("http://127.0.0.1:9", engine_patience_s=1)
        code, last = dead.wait()
        self.assertEqual(code, 1, dead.logs())
        self.assertIn("the engine at http://127.0.0.1:9/v1/models", json.dumps(last))

    def test_other_kernels_make_a_difference_that_is_said_and_weighed(self):
        def rounded(answer):    # as bf16 kernels would
            for c in answer["choices"]:
                c["logprobs"]["token_logprobs"] = [min(v + 0.01, 0) for v in c["logprobs"]["token_logprobs"]]
            return answer
        b = self.between(self.engine(), lambda path, body: rounded if path == "/v1/completions" else None)
        run = self.begin(b.url, "--max-steps", "3")
        self.assertEqual(run.wait()[0], 0, run.logs())
        for d in self.diffs(run):
            self.assertAlmostEqual(d, 0.01, delta=1e-4)
        with contextlib.closing(sqlite3.connect(f"file:{os.path.join(run.dir, 'journal.db')}?mode=ro", uri=True)) as db:
            said = [r[0] for r in db.execute("select text from event where kind = 'weights' and text like '%sampler_trainer_diff%'")]
        self.assertEqual(len(said), 1, said)
        self.assertRegex(said[0], r"sampler_trainer_diff is 0\.01\d* nat, as the engine of backend vllm computes .*'rho_clamp' corrects for it")
        self.assertEqual([line for line in run.told("alarm") if "disagree" in line["text"]], [])
        rho = next(m["train/rho_mean"] for line in run.told("step") if "train/rho_mean" in (m := line["metrics"]))
        self.assertAlmostEqual(rho, 0.99, delta=0.006)    # exp(-0.01), and 1 where the log-prob was 0

    def test_settings_that_do_not_go_together_are_refused(self):
        for settings, words in [({"backend": "torch"}, "'backend'"),
                                ({"engine_url": "http://h:1"}, "is for 'backend' vllm or sglang"),
                                ({"backend": "vllm", "engine_url": "h:1"}, "it is http://HOST:PORT"),
                                ({"backend": "vllm", "engine_url": "http://h:1,"}, "it is http://HOST:PORT"),
                                ({"backend": "sglang", "engine_url": "http://h:1", "environment": "program:true"}, "do not go together"),
                                ({"backend": "sglang", "engine_url": "http://h:1", "num_inferencer": 2}, "has 1 addresses"),
                                ({"backend": "vllm", "engine_url": "http://h:1", "weights": "copy"}, "read them from files")]:
            said = subprocess.run([ROLLCALL, "train", self.task.run_file("bad.yaml", **settings), "--dry-run"], capture_output=True, text=True,
                                  timeout=LIMIT)
            self.assertEqual(said.returncode, 2, said.stderr)
            self.assertIn(words, said.stderr)
        ok = subprocess.run([ROLLCALL, "train", self.task.run_file("ok.yaml", backend="sglang", engine_url="http://h:1/,https://i:2"), "--dry-run"],
                            capture_output=True, text=True, timeout=LIMIT)
        self.assertEqual(ok.returncode, 0, ok.stderr)
        self.assertIn("engine:1: producer 1, sglang at https://i:2", ok.stdout)
        self.assertIn("an external engine rounds otherwise", ok.stderr)
        for backend in ("vllm", "sglang", "transformers"):    # as ColossalChat's example lines have it
            ok = subprocess.run([ROLLCALL, "train", self.task.run_file("own.yaml"), "-b", backend, "--dry-run"], capture_output=True, text=True,
                                timeout=LIMIT)
            self.assertEqual(ok.returncode, 0, ok.stderr)
            self.assertIn(f"note: 'backend' {backend}: rollcall's own engine samples", ok.stderr)


class Drawing:
    """A thread that is an environment of Atropos': it draws groups from an inference server and posts them to a run. Odd tokens are
    rewarded. One that does not say the version posts what it drew n_late groups ago, in whichever step that was."""
    PROMPT = [5, 6, 7]

    def __init__(self, engine_port, door_port, says_version=True, n_late=0):
        self.engine, self.door, self.stop, self.versions, self.says_version = engine_port, door_port, False, [], says_version
        self.n_late, self.held, self.drawn = n_late, [], {}    # version by the tokens of a group
        self.thread = threading.Thread(target=self.work)
        self.thread.start()

    def ask(self, port, path, body):
        c = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT)
        with contextlib.closing(c):
            c.request("GET" if body is None else "POST", path, json.dumps(body), {"Content-Type": "application/json"})
            r = c.getresponse()
            return r.status, json.loads(r.read())

    def work(self):
        while not self.stop:
            try:
                status, a = self.ask(self.engine, "/generate", {"input_ids": self.PROMPT, "return_logprob": True,
                                                                "sampling_params": {"max_new_tokens": 6, "n": 4}})
                if status != 200:
                    raise OSError(a)
                ids, meta = [sample["output_ids"] for sample in a], [sample["meta_info"] for sample in a]
                version = min(int(span["version"]) for m in meta for span in m["weight_versions"])    # a step may have come in between
                n = len(self.PROMPT)
                self.drawn[tuple(map(tuple, ids))] = version
                self.held.append({
                    "tokens": [self.PROMPT + t for t in ids], "masks": [[-100] * n + t for t in ids],
                    "scores": [sum(x % 2 for x in t) / len(t) for t in ids],
                    "inference_logprobs": [[1.0] * n + [logp for logp, *_ in m["output_token_logprobs"]] for m in meta],
                    "generation_params": {"temperature": 1.0, **({"weight_version": version} if self.says_version else {})}})
                while self.n_late and not self.stop and self.ask(self.door, "/status", None)[1]["queue_size"] > 4:
                    time.sleep(0.01)    # what waits is dated already
                if len(self.held) > self.n_late:
                    self.ask(self.door, "/scored_data", self.held.pop(0))
                self.versions.append(version)
            except (OSError, http.client.HTTPException, ValueError):    # one of the two is away
                time.sleep(0.05)

    def close(self):
        self.stop = True
        self.thread.join()


class WeightBridge(run_tools.RunCase):
    def begin(self, mode, engine_port, *extra, drawing={}, after=None, **settings):
        """A run and what draws for it, from the start or once after() holds."""
        door = run_tools.free_port()
        run = self.start("--weight-bridge-mode", mode, "--vllm-port", str(engine_port), "--max-steps", "8", *extra,
                         environments={"listen": f"127.0.0.1:{door}"}, max_staleness=64, **settings)
        if after:
            self.until("it may draw", after, run)
        d = Drawing(engine_port, door, **drawing)
        self.addCleanup(d.close)
        return run, d

    def dated_as_drawn(self, run, d):
        """Each group that was trained on has the version that its server said, though its post did not."""
        said = subprocess.run([ROLLCALL, "rollouts", run.dir, "--ids"], capture_output=True, text=True, timeout=LIMIT, check=True)
        dated, ids = {}, {}
        for sample in map(json.loads, said.stdout.splitlines()):
            ids.setdefault(sample["item"], []).append(tuple(sample["ids"]))
            dated[sample["item"]] = sample["version"]
        self.assertEqual({tuple(ids[item]): version for item, version in dated.items()}, {tuple(ids[item]): d.drawn[tuple(ids[item])] for item in dated})

    def diffs(self, run):
        return {m["train/sampler_trainer_diff"] for line in run.told("step") if "train/sampler_trainer_diff" in (m := line["metrics"])}

    def test_a_server_gets_the_weights_every_few_steps_and_at_the_end(self):
        for mode, more in [("none", []), ("lora_only", ["--max-lora-rank", "16"]), ("lora_restart", ["--max-lora-rank", "16"])]:
            with self.subTest(mode):
                e = Engine(self.task.path("model"), *more)
                self.addCleanup(e.close)
                run, d = self.begin(mode, e.port, "--vllm-restart-interval", "3", drawing=dict(says_version=False, n_late=12),
                                    after=e.loads)    # with them comes the book of what it draws; nobody can date what is drawn before
                self.assertEqual(run.wait()[0], 0, run.logs())
                d.close()
                self.dated_as_drawn(run, d)
                self.assertEqual(e.loads(), [0, 3, 6, 8])
                self.assertLessEqual({0, 3}, set(d.versions))
                self.assertEqual(self.diffs(run), {0})    # what it draws with is what the trainer has
                with open(os.path.join(run.dir, "environments/drawn"), "rb") as f:    # groups that name no version have this one (drawn_book.h)
                    self.assertEqual(int.from_bytes(f.read(8), sys.byteorder) - 1, 8)
                with open(os.path.join(run.dir, "run.yaml")) as f:
                    self.assertIn("lora_rank: " + ("0" if mode == "none" else "16"), f.read())

    def test_a_server_that_was_away_gets_the_next_version(self):
        e = Engine(self.task.path("model"))
        self.addCleanup(e.close)
        run, d = self.begin("none", e.port)
        run.wait_step(2)
        e.process.kill()
        e.process.wait()
        again = Engine(self.task.path("model"), port=e.port)
        self.addCleanup(again.close)
        self.assertEqual(run.wait()[0], 0, run.logs())
        self.assertEqual(again.loads()[-1], 8)
        self.assertLessEqual(self.diffs(run), {0})

    def test_a_server_that_is_away_holds_up_no_step(self):
        e, port = Engine(self.task.path("model")), run_tools.free_port()
        self.addCleanup(e.close)
        run, d = self.begin("none", e.port, engine_url=f"{e.url},http://127.0.0.1:{port}")
        run.wait_step(5)
        late = Engine(self.task.path("model"), port=port)
        self.addCleanup(late.close)
        self.assertEqual(run.wait()[0], 0, run.logs())
        with open(os.path.join(run.dir, "logs/worker-cpu-0.log")) as f:
            waits = [float(s) for s in re.findall(r"1 of 2 servers have the weights .*took_s=([\d.]+)", f.read())]
        self.assertGreaterEqual(len(waits), 5)
        self.assertLess(sum(waits), 20)    # what it was waited for at a single step
        self.assertEqual(late.loads()[-1], 8)
        self.assertEqual(e.loads(), list(range(9)))

    def test_a_server_that_never_gets_the_weights_is_named_and_then_ends_the_run(self):
        e = Engine(self.task.path("model"))
        self.addCleanup(e.close)
        free = run_tools.free_port()

        def between(act):
            b = Between(e.port, lambda path, body: None if path == "/generate" else act)
            self.addCleanup(b.close)
            return b.url
        cases = [    # the server, what is said of it
            (f"http://127.0.0.1:{free}", "connect"),
            (between(403), "403"),
            (between("silence"), "does not answer"),
            (between("close"), "returned nothing"),
        ]
        runs = [(url, why, self.begin("none", e.port, "--max-steps", "100000", engine_url=url, engine_patience_s=6, slow_s=1)[0])
                for url, why in cases]
        said = {url: "" for url, *_ in cases}

        def all_named():
            for url, _, run in runs:
                if url not in said[url]:
                    said[url] = run.ctl("status").stdout
            return all(url in text for url, text in said.items())
        self.until("the doctor names each server", all_named, *[run for *_, run in runs])
        for url, why, run in runs:
            with self.subTest(why):
                self.assertIn(f"doctor: the server at {url}, from which environments draw, has been without the newest weights", said[url])
                code, last = run.wait()
                self.assertEqual((code, last["event"]), (1, "failed"), run.logs())
                self.assertRegex(last["reason"], re.escape(f"the server at {url}, ") + f".*{why}.*'engine_patience_s' is 6")
                alerts = [text for text, in self.query(run, "select text from event where kind = 'alert'") if url in text]
                self.assertEqual(len(alerts), 1)

    def test_the_run_itself_may_be_the_server_on_the_trainers_own_weights(self):
        port = run_tools.free_port()
        run, d = self.begin("shared_vllm", port, drawing=dict(says_version=False, n_late=40))
        self.assertEqual(run.wait()[0], 0, run.logs())
        d.close()
        self.dated_as_drawn(run, d)
        self.assertGreaterEqual(len(set(d.versions)), 3)
        self.assertEqual(self.diffs(run), {0})
        self.assertFalse(os.path.exists(os.path.join(run.dir, "engine")))


class LentWeights(run_tools.RunCase):
    """weight_bridge_mode shared_vllm with a separate server: the trainer's weights are in memory once."""

    def begin(self, *extra, **settings):
        self.door = run_tools.free_port()
        self.file = self.task.path(f"bridge-{self.door}.json")
        run = self.start("--weight-bridge-mode", "shared_vllm", "--vllm-config-path", self.file, *extra,
                         environments={"listen": f"127.0.0.1:{self.door}"}, max_staleness=64, **settings)
        self.until("the file is there", lambda: os.path.exists(self.file), run)
        return run

    def server(self):
        e = Engine(None, "--shared-weights", self.file)
        self.addCleanup(e.close)
        return e

    def draw(self, e, **drawing):
        d = Drawing(e.port, self.door, **drawing)
        self.addCleanup(d.close)
        return d

    def diffs(self, run):
        return {m["train/sampler_trainer_diff"] for line in run.told("step") if "train/sampler_trainer_diff" in (m := line["metrics"])}

    def ask(self, e, method, path, body=None):
        c = http.client.HTTPConnection("127.0.0.1", e.port, timeout=LIMIT)
        with contextlib.closing(c):
            c.request(method, path, body and json.dumps(body))
            r = c.getresponse()
            return r.status, r.read().decode()

    def watch(self, e, spans, stop):
        """A client that asks for long samples all the time, and notes each one's versions."""
        while not stop.is_set():
            status, text = self.ask(e, "POST", "/generate", {"input_ids": [5, 6, 7], "sampling_params": {"max_new_tokens": 12, "ignore_eos": True, "n": 3}})
            if status == 200:
                for sample in json.loads(text):
                    spans.append((sample["meta_info"]["weight_versions"], len(sample["output_ids"])))
            else:
                self.assertEqual(status, 503, text)

    def test_weights_that_no_server_computes_with_end_the_run(self):
        run = self.begin("--max-steps", "8", engine_patience_s=2, slow_s=1)
        code, last = run.wait()
        self.assertEqual((code, last["event"]), (1, "failed"), run.logs())
        self.assertIn(f"the server of '{self.file}', from which environments draw, has been without the newest weights", last["reason"])

    def test_requests_have_the_trainers_weights_and_each_only_one_version(self):
        run = self.begin("--max-steps", "8")
        e = self.server()
        spans, stop = [], threading.Event()
        watcher = threading.Thread(target=self.watch, args=(e, spans, stop))
        watcher.start()
        self.addCleanup(watcher.join)
        self.addCleanup(stop.set)
        d = self.draw(e, says_version=False, n_late=12)
        self.assertEqual(run.wait()[0], 0, run.logs())
        stop.set()
        d.close()
        self.assertGreaterEqual(len(set(d.versions)), 3)
        self.assertEqual(self.diffs(run), {0})
        self.assertTrue(spans)
        for of, n in spans:
            self.assertEqual([(s["start"], s["end"]) for s in of], [(0, n)])
        self.assertGreater(len({of[0]["version"] for of, _ in spans}), 1)
        self.until("the server knows that the trainer has gone", lambda: self.ask(e, "GET", "/health")[0] == 503, run)
        status, text = self.ask(e, "POST", "/v1/completions", {"prompt": [5], "max_tokens": 2})
        self.assertEqual(status, 503)
        self.assertIn("has gone", text)

    def test_any_reader_finds_the_tensors(self):
        """The fields by which Atropos' trainer opens them; on a CPU the handle is a path."""
        self.begin()
        with open(self.file) as f:
            file = json.load(f)
        self.assertTrue(file["shared_weights_enabled"] and file["single_copy_enabled"])
        self.assertEqual((file["tp_degree"], file["num_params"], file["model"]), (1, len(file["ipc_handles"]), os.path.realpath(self.task.path("model"))))
        self.assertEqual(file["param_names"], sorted(file["ipc_handles"]))
        with open(self.task.path("model/model.safetensors"), "rb") as f:
            head = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
            data = f.read()
        for name, h in file["ipc_handles"].items():
            self.assertEqual(h["dtype"], file["param_mappings"][name]["dtype"])
            size, at = {"torch.float32": 4, "torch.bfloat16": 2}[h["dtype"]], h["storage_offset_orig"]
            n = math.prod(h["shape"])
            with open(base64.b64decode(h["ipc_handle_b64"]).decode(), "rb") as m:
                self.assertEqual(os.fstat(m.fileno()).st_size, h["storage_size"])
                m.seek(at + h["tensor_storage_offset"] * size)
                begin, end = head[name]["data_offsets"]
                self.assertEqual((head[name]["shape"], m.read(n * size)), (h["shape"], data[begin:end]), name)
            self.assertEqual(h["stride"], [h["shape"][1], 1] if len(h["shape"]) == 2 else [1])

    def test_a_trainer_that_is_killed_is_missed_and_found_again(self):
        run = self.begin()
        e = self.server()
        d = self.draw(e)
        self.until("steps go on", lambda: run.step() >= 3, run)
        with open(self.file) as f:
            before = json.load(f)["rollcall"]
        d.close()
        os.kill(next(pid for name, pid in run.processes().items() if name.startswith("worker")), signal.SIGKILL)
        self.until("the server has noticed", lambda: "has gone" in e.said(), run)
        self.until("the server is back", lambda: self.ask(e, "GET", "/health")[0] == 200, run)
        with open(self.file) as f:
            self.assertNotEqual(json.load(f)["rollcall"]["handle_b64"], before["handle_b64"])
        step = run.step()
        d = self.draw(e)
        self.until("steps go on", lambda: run.step() >= step + 3, run)
        d.close()
        self.assertEqual(self.diffs(run), {0})

    def test_the_first_trainers_model_is_lent_however_it_is_trained(self):
        for more, settings in [(["-t", "2"], dict(zero_stage=3, train_batch_size=4)), (["-tp", "2"], dict(update_epochs=2))]:
            with self.subTest(more):
                run = self.begin("--max-steps", "4", *more, **settings)
                d = self.draw(self.server())
                self.assertEqual(run.wait()[0], 0, run.logs())
                d.close()
                self.assertGreaterEqual(len(set(d.versions)), 3)
                self.assertEqual(self.diffs(run), {0})

    def test_what_cannot_be_lent_or_served_is_said_at_once(self):
        for settings, words in [({"weight_bridge_mode": "lora_only"}, "belongs to 'weight_bridge_mode' shared_vllm"),
                                ({"lora_rank": 4}, "lends whole weights")]:
            said = subprocess.run([ROLLCALL, "train", self.task.run_file("bad.yaml", **{
                "weight_bridge_mode": "shared_vllm", "weight_bridge_file": self.task.path("f"), "environments": {"listen": "127.0.0.1:1"}, "max_steps": 2, **settings}),
                "--dry-run"], capture_output=True, text=True, timeout=LIMIT)
            self.assertEqual(said.returncode, 2, said.stderr)
            self.assertIn(words, said.stderr)
        for more, words in [(["--shared-weights", self.task.path("nothing")], "does not exist"),
                            (["--shared-weights", self.task.path("nothing"), "--model", "m"], "leave out --model")]:
            said = subprocess.run([ROLLCALL, "serve", "--listen", "127.0.0.1:0", *more], capture_output=True, text=True, timeout=LIMIT)
            self.assertNotEqual(said.returncode, 0)
            self.assertIn(words, said.stderr)


if __name__ == "__main__":
    unittest.main()
