"""rollcall serve --atropos-listen: what environments and trainers of Atropos send, with the standard library alone.

tags: limit=600
"""
import concurrent.futures
import contextlib
import gzip
import http.client
import http.server
import json
import math
import os
import re
import resource
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import run_tools

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
ROLLCALL = os.path.abspath(os.environ.get("ROLLCALL", os.path.join(ROOT, "build/release/rollcall")))
LIMIT = 120    # seconds until a wait is given up
FIELDS = ["tokens", "masks", "scores", "advantages", "ref_logprobs", "messages", "generation_params", "inference_logprobs", "overrides",
          "group_overrides", "images", "env_id", "distill_token_ids", "distill_logprobs"]
TRAINER = dict(wandb_group="g", wandb_project="p", batch_size=8, max_token_len=512, checkpoint_dir="/tmp/c", save_checkpoint_interval=10,
               starting_step=3, num_steps=100)


class Door:
    """rollcall serve --atropos-listen on a free port of 127.0.0.1."""

    def __init__(self, *more, state=None, port=0, prefix=()):
        """prefix: words before the command."""
        self.log = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen([*prefix, ROLLCALL, "serve", "--atropos-listen", f"127.0.0.1:{port}", *(["--state", state] if state else []), *more],
                                        stdout=subprocess.PIPE, stderr=self.log, text=True)
        self.ready()

    def ready(self):
        """Wait until it can be asked."""
        self.line = self.process.stdout.readline()
        found = re.search(r"http://127\.0\.0\.1:(\d+)", self.line)
        if not found:
            self.process.wait(LIMIT)
            said = self.line + self.errors()
            self.process.stdout.close()
            self.log.close()
            raise AssertionError("no ready line: " + said)
        self.port = int(found[1])
        self.keep = http.client.HTTPConnection("127.0.0.1", self.port, timeout=LIMIT)

    def errors(self):
        with open(f"/proc/self/fd/{self.log.fileno()}") as f:
            return f.read()

    def ask(self, method, path, body=None, headers=(), raw=None):
        """Status, headers and body of a request on the connection that is kept, as JSON where it is that."""
        data = raw if body is None else json.dumps(body)
        self.keep.request(method, path, data, {"Content-Type": "application/json", **dict(headers)})
        r = self.keep.getresponse()
        text = r.read()
        if r.headers.get("Content-Encoding") == "gzip":
            text = gzip.decompress(text)
        with contextlib.suppress(ValueError):
            return r.status, r.headers, json.loads(text)
        return r.status, r.headers, text.decode()

    def get(self, path, body=None):
        return self.ask("GET", path, body)[2]

    def post(self, path, **body):
        status, _, answer = self.ask("POST", path, body)
        assert status == 200, (status, answer)
        return answer

    def numbers(self):
        """The next batch, by its groups' first tokens; None: there is none."""
        batch = self.get("/batch")["batch"]
        return batch and [g["tokens"][0][0] for g in batch]

    def train(self, **changed):
        """A trainer comes and asks for its first batch, so that environments may register."""
        self.post("/register", **{**TRAINER, **changed})
        return self.get("/batch")

    def kill(self):
        self.process.kill()
        self.process.wait()

    def close(self):
        self.keep.close()
        if self.process.poll() is None:
            self.kill()
        self.process.stdout.close()
        self.log.close()


def group(number, n=4, **more):
    return {"tokens": [[number, 5, 6]] * n, "masks": [[-100, 5, 6]] * n, "scores": [i / 2 for i in range(n)], **more}


class Api(unittest.TestCase):
    def setUp(self):
        self.door = Door()
        self.addCleanup(self.door.close)

    def test_a_trainer_and_an_environment_meet(self):
        d = self.door
        self.assertEqual(d.get("/"), {"message": "AtroposLib API"})
        self.assertEqual(d.get("/info"), {"batch_size": -1, "max_token_len": -1})
        self.assertEqual(d.get("/wandb_info"), {"group": None, "project": None})
        self.assertEqual(d.get("/status"), {"current_step": 0, "queue_size": 0})
        error = d.get("/batch")
        self.assertEqual((error["status"], error["batch"]), ("error", []))
        env = dict(max_token_length=512, desired_name="gsm", weight=1.0, group_size=4)
        self.assertEqual(d.post("/register-env", **env), {"status": "wait for trainer to start"})
        self.assertIsInstance(d.post("/register", **TRAINER)["uuid"], int)
        self.assertEqual(d.post("/register-env", **env), {"status": "wait for trainer to start"})
        self.assertEqual(d.get("/batch"), {"batch": None})
        self.assertEqual(d.post("/register-env", **env), {"status": "success", "env_id": 0, "wandb_name": "gsm_0", "checkpoint_dir": "/tmp/c",
                                                          "starting_step": 3, "checkpoint_interval": 10, "num_steps": 100})
        self.assertEqual(d.post("/register-env", **env)["wandb_name"], "gsm_1")
        d.post("/register", **{**TRAINER, "batch_size": 2})    # changes nothing
        self.assertEqual(d.get("/info"), {"batch_size": 8, "max_token_len": 512})
        self.assertEqual(d.get("/wandb_info"), {"group": "g", "project": "p"})
        self.assertEqual(d.post("/scored_data", **group(1, env_id=0)), {"status": "received"})
        self.assertEqual(d.get("/status-env", {"env_id": 0}), {"current_step": 3, "queue_size": 1, "unallocated_fraction": 1.0,
                                                               "self_queue_size": 1, "max_group_size": 4, "env_weight": 0.5})
        self.assertEqual(d.post("/disconnect-env", env_id=1), {"status": "success"})
        self.assertEqual(d.get("/status-env", {"env_id": 0})["env_weight"], 1.0)
        self.assertEqual(d.post("/disconnect-env", env_id=9)["status"], "failure")
        self.assertEqual(d.ask("GET", "/status-env", {"env_id": 9})[0], 404)
        self.assertEqual(d.ask("POST", "/scored_data_list", [group(2, env_id=0), group(3, n=2, env_id=0)])[2],
                         {"status": "received", "groups_processed": 2, "buffered": 1, "last_buffer_size": 2})
        self.assertEqual(d.post("/scored_data", **group(4, n=2, env_id=0)), {"status": "buffered", "buffer_size": 0})
        self.assertEqual(d.get("/status"), {"current_step": 3, "queue_size": 4})
        self.assertEqual(d.get("/latest_example")["tokens"][0][0], 4)
        self.assertEqual([d.numbers(), d.numbers(), d.numbers()], [[1, 2], None, None])
        self.assertEqual(d.get("/status"), {"current_step": 4, "queue_size": 2})
        status, headers, text = d.ask("GET", "/reset_data")
        self.assertEqual((status, headers.get_content_type(), text), (200, "text/plain", "Reset successful"))
        self.assertEqual(d.get("/info")["batch_size"], -1)
        self.assertEqual(d.get("/status"), {"current_step": 0, "queue_size": 0})

    def test_all_fields_come_back_as_they_were_posted(self):
        sent = group(7, n=2, advantages=[[0.0, -1.5, 2], [1, 2, 3e-5]], ref_logprobs=None, inference_logprobs=[[1.0, -0.25, -1e-7]] * 2,
                     messages=[[{"role": "user", "content": "é \U0001f600 \"\\", "reward": None}], []], generation_params={"temperature": 0.7},
                     overrides=[{"set_advantage_to_zero": True}, {}], group_overrides={"group_size": 2}, images=["data:,", [None]],
                     distill_token_ids=[[[1, 2]], []], distill_logprobs=[[[-0.5, -1]], []], unknown={"x": [1]})
        d = self.door
        d.train(batch_size=2)
        d.post("/scored_data", **sent)
        self.assertEqual(d.get("/view?n=2"), {"groups": [d.get("/latest_example")]})    # takes nothing
        status, headers, answer = d.ask("GET", "/batch")
        self.assertEqual(headers.get_content_type(), "application/json")
        got, = answer["batch"]
        self.assertEqual(list(got), FIELDS)
        del sent["unknown"]
        self.assertEqual(got, {**dict.fromkeys(FIELDS), **sent})

    def test_bodies_and_answers_may_be_compressed(self):
        d = self.door
        d.train(batch_size=16)
        body = json.dumps({**group(1, n=16), "tokens": [list(range(16384))] * 16}).encode()
        self.assertGreater(len(body), 1 << 20)
        for coding in ("gzip", "GZIP"):
            self.assertEqual(d.ask("POST", "/scored_data", raw=gzip.compress(body, 1), headers={"Content-Encoding": coding})[2],
                             {"status": "received"})
        for wrong in (b"no gzip", gzip.compress(body)[:-9]):
            status, headers, text = d.ask("POST", "/scored_data", raw=wrong, headers={"Content-Encoding": "gzip"})
            self.assertEqual((status, headers.get_content_type(), text), (400, "text/plain", "Invalid gzip payload"))
        self.assertEqual(d.ask("GET", "/info", raw=b"", headers={"Content-Encoding": "gzip", "Content-Length": "0"})[0], 200)
        one = d.ask("GET", "/batch", headers={"Accept-Encoding": "gzip"})
        two = d.ask("GET", "/batch", headers={"Accept-Encoding": "identity"})
        self.assertEqual([r[1].get("Content-Encoding") for r in (one, two)], ["gzip", None])
        self.assertEqual(one[2], two[2])
        self.assertIsNone(d.ask("GET", "/info", headers={"Accept-Encoding": "gzip"})[1].get("Content-Encoding"))    # too short to pay

    def test_what_is_wrong_is_named_and_what_pydantic_takes_is_taken(self):
        d = self.door
        cases = [("/scored_data", {**group(1), "tokens": [[1.5]]}, ["body", "tokens"]),
                 ("/scored_data", {"tokens": [[1]], "scores": [1]}, ["body", "masks"]),
                 ("/scored_data", {**group(1), "scores": [float("nan")]}, ["body", "scores"]),
                 ("/scored_data", {**group(1), "messages": [[{"role": "user"}]]}, ["body", "messages"]),
                 ("/scored_data_list", [group(1), {**group(1), "overrides": [1]}], ["body", 1, "overrides"]),
                 ("/scored_data_list", group(1), ["body"]),
                 ("/register", {**TRAINER, "batch_size": None}, ["body", "batch_size"]),
                 ("/register", {k: v for k, v in TRAINER.items() if k != "num_steps"}, ["body", "num_steps"]),
                 ("/register-env", dict(max_token_length=1, desired_name=None, weight=1, group_size=1), ["body", "desired_name"]),
                 ("/disconnect-env", {}, ["body", "env_id"])]
        for path, body, place in cases:
            status, _, answer = d.ask("POST", path, body)
            self.assertEqual((status, answer["detail"][0]["loc"]), (422, place), (path, answer))
            self.assertEqual(set(answer["detail"][0]), {"type", "loc", "msg", "input"})
        self.assertEqual(d.ask("POST", "/scored_data", raw="{not json")[0], 422)
        self.assertEqual(d.ask("GET", "/status-env")[0], 422)
        self.assertEqual(d.ask("GET", "/nothing")[0], 404)
        self.assertEqual(d.ask("GET", "/scored_data")[0], 405)
        d.post("/register", **{**TRAINER, "batch_size": "1", "max_token_len": 512.0, "starting_step": False})
        self.assertEqual(d.get("/status")["current_step"], 0)
        d.post("/scored_data", tokens=[[1.0, "7", True]], masks=[[]], scores=["0.5"], env_id="3")
        got, = d.get("/batch")["batch"]
        self.assertEqual((got["tokens"], got["scores"], got["env_id"]), ([[1, 7, 1]], [0.5], 3))

    def test_groups_of_mixed_sizes_and_shares_make_batches(self):
        d = self.door
        d.train()
        for number, n in enumerate([2, 4, 2, 4]):
            d.post("/scored_data", **group(number, n=n))
        self.assertEqual(d.numbers(), [1, 0, 2])
        env = dict(max_token_length=512, weight=1, group_size=4)
        d.post("/register-env", desired_name="share", min_batch_allocation=0.5, **env)
        d.post("/register-env", desired_name="rest", **env)
        for number in (10, 11):
            d.post("/scored_data", **group(number, env_id=1))
        self.assertIsNone(d.numbers())    # the other one has nothing yet
        self.assertEqual(d.get("/status-env", {"env_id": 1})["unallocated_fraction"], 0.5)
        d.post("/scored_data", **group(12, env_id=0))
        self.assertEqual(d.numbers(), [12, 10])

    def test_a_browser_and_a_viewer_cannot_empty_the_queue(self):
        with contextlib.closing(Door("--no-reset")) as d:
            d.train(batch_size=4)
            d.post("/scored_data", **group(1))
            status, _, answer = d.ask("GET", "/reset_data")
            self.assertEqual(status, 403)
            self.assertIn("/view", answer["detail"])
            for page in ({"Origin": "http://evil.example"}, {"Referer": "http://evil.example/"}, {"Sec-Fetch-Site": "cross-site"},
                         {"Sec-Fetch-Site": "same-site"}):    # an image sends no Origin
                self.assertEqual(d.ask("GET", "/reset_data", headers=page)[0], 403, page)
            for path in ("/batch", "/reset_data", "/status", "/view"):    # a name that was made to lead here
                self.assertEqual(d.ask("GET", path, headers={"Host": "evil.example:8000"})[0], 403, path)
            self.assertEqual(d.numbers(), [1])


class Strength(unittest.TestCase):
    def folder(self):
        t = tempfile.TemporaryDirectory(prefix="rc-atropos-")
        self.addCleanup(t.cleanup)
        return t.name

    def test_nothing_acknowledged_is_lost_by_kills(self):
        """Environments post while the server is killed again and again: every acknowledged group comes out, in order, once; only the
        batch that was given last may come again, since a server that is killed at that moment cannot know that it has arrived."""
        state, posted, fetched = self.folder(), [], []

        def fetch():
            batch = door.numbers()
            return door.numbers() if batch and batch == fetched[-len(batch):] else batch
        n, door = 0, Door(state=state)
        door.train(batch_size=4)
        env = door.post("/register-env", desired_name="e", max_token_length=512, weight=1, group_size=4)["env_id"]
        for life in range(4):
            for _ in range(5):
                n += 1
                door.post("/scored_data", **group(n, env_id=env))
                posted.append(n)
            door.post("/scored_data", **group(1000 + life, n=1, env_id=env))    # the fourth fills its group
            fetched += fetch()
            self.assertEqual(len(fetched), life + 1)
            door.kill()
            door.close()
            door = Door(state=state)
            self.assertEqual(door.get("/status")["current_step"], 3 + len(fetched))
            self.assertEqual(door.get("/info"), {"batch_size": 4, "max_token_len": 512})
            self.assertEqual(door.get("/status-env", {"env_id": env})["self_queue_size"], len(posted) - len(fetched) + (life == 3))
        with self.assertRaisesRegex(AssertionError, "another server uses"):
            Door(state=state)
        while batch := fetch():
            fetched += batch
        self.assertEqual(fetched, posted + [1000, 1001, 1002, 1003])
        door.process.send_signal(signal.SIGTERM)
        self.assertEqual(door.process.wait(LIMIT), 0)
        door.close()

    def test_a_batch_whose_trainer_goes_away_comes_again(self):
        with contextlib.closing(Door()) as d:
            d.train(batch_size=4)
            d.post("/scored_data", **{**group(1), "images": "x" * (8 << 20)})
            with socket.socket() as s:
                s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                s.connect(("127.0.0.1", d.port))
                s.sendall(b"GET /batch HTTP/1.1\r\nHost: x\r\n\r\n")
                s.recv(100)
                self.assertIsNone(d.numbers())    # it is under way
            end = time.monotonic() + LIMIT
            while (got := d.numbers()) is None and time.monotonic() < end:
                time.sleep(0.02)
            self.assertEqual(got, [1])

    def test_a_flood_is_answered_with_503_and_takes_no_more_memory(self):
        with contextlib.closing(Door("--groups-mib", "32")) as d:
            d.train(batch_size=4)
            body = json.dumps({**group(1), "images": "x" * (1 << 20)})

            def flood(_):
                c = http.client.HTTPConnection("127.0.0.1", d.port, timeout=LIMIT)
                with contextlib.closing(c):
                    codes = []
                    for _ in range(40):
                        c.request("POST", "/scored_data", body)
                        r = c.getresponse()
                        codes.append((r.status, r.headers.get("Retry-After"), r.read()))
                    return codes
            with concurrent.futures.ThreadPoolExecutor(4) as pool:
                codes = sum(pool.map(flood, range(4)), [])
            taken = sum(c[0] == 200 for c in codes)
            self.assertEqual({c[:2] for c in codes}, {(200, None), (503, "1")})
            self.assertIn(b"wait for the trainer", next(c[2] for c in codes if c[0] == 503))
            self.assertIn(taken, range(28, 33))
            with open(f"/proc/{d.process.pid}/status") as f:
                peak_mib = int(re.search(r"VmHWM:\s+(\d+)", f.read())[1]) / 1024
            self.assertLess(peak_mib, 32 + 60)    # the groups, requests being read, and the program
            self.assertEqual(d.numbers(), [1])
            self.assertEqual(d.ask("POST", "/scored_data", raw=body)[0], 200)

    def test_a_full_disk_takes_nothing_and_loses_nothing(self):
        state = self.folder()
        door = Door(state=state)
        self.addCleanup(door.close)
        door.train(batch_size=4)
        door.post("/scored_data", **group(1))
        resource.prlimit(door.process.pid, resource.RLIMIT_FSIZE, (20000, 20000))
        status, _, answer = door.ask("POST", "/scored_data", {**group(2), "images": "x" * 40000})
        self.assertEqual(status, 503)
        self.assertIn("cannot be written", answer["detail"])
        door.post("/scored_data", **group(3))    # a small one fits
        door.kill()
        again = Door(state=state)
        self.addCleanup(again.close)
        self.assertEqual([again.numbers(), again.numbers(), again.numbers()], [[1], [3], None])

    @unittest.skipUnless(run_tools.can_mount(), "needs a mount namespace of its own")
    def test_what_was_acknowledged_is_handed_out_on_a_disk_without_any_room(self):
        """Also by a server that is started on it. Then there is room for others."""
        state = self.folder()
        os.makedirs(state, exist_ok=True)
        door = Door(state=os.path.join(state, "s"), prefix=["unshare", "-rm", "sh", "-c",
                                                            'mount -t tmpfs -o size=4m none "$0" && { "$@"; exec "$@"; }', state])
        self.addCleanup(door.close)
        door.train(batch_size=4)
        n = 0
        while (answer := door.ask("POST", "/scored_data", {**group(n + 1), "images": "x" * 30000}))[0] == 200:
            n += 1
        self.assertEqual(answer[0], 503)
        self.assertGreater(n, 20)
        came = [door.numbers() for _ in range(5)]
        first = next(pid for pid, words in run_tools.commands() if words[0] == ROLLCALL and os.path.join(state, "s") in words)
        os.kill(first, signal.SIGKILL)
        door.keep.close()
        door.ready()
        while batch := door.numbers():
            came.append(batch)
        self.assertEqual(sorted({i for i, in came}), list(range(1, n + 1)))
        door.post("/scored_data", **{**group(1), "images": "x" * 30000})

    def test_a_killed_environment_does_not_hold_up_batches(self):
        with contextlib.closing(Door("--env-expire-s", "1")) as d:
            d.train(batch_size=4)
            d.post("/register-env", desired_name="dead", max_token_length=512, weight=1, group_size=4, min_batch_allocation=0.5)
            d.post("/scored_data", **group(1))
            d.post("/scored_data", **group(2, env_id=7))
            end = time.monotonic() + LIMIT
            while (got := d.numbers()) is None and time.monotonic() < end:
                time.sleep(0.05)
            self.assertIn(got, ([1], [2]))

    def test_hostile_requests_are_refused(self):
        with tempfile.NamedTemporaryFile("w") as token:
            token.write("secret")
            token.flush()
            with contextlib.closing(Door("--body-mib", "1", "--token-file", token.name)) as d:
                self.assertEqual(d.ask("GET", "/status")[0], 401)
                key = {"Authorization": "Bearer secret"}
                self.assertEqual(d.ask("GET", "/status", headers=key)[0], 200)
                self.assertEqual(d.ask("POST", "/scored_data", raw=gzip.compress(b" " * (64 << 20)),
                                       headers={**key, "Content-Encoding": "gzip"})[0], 413)
                self.assertEqual(d.ask("POST", "/scored_data", raw=b"[" * 1000000, headers=key)[0], 422)
                self.assertEqual(d.ask("POST", "/scored_data", raw=b'{"images":' + b"[" * 900000, headers=key)[0], 422)
        said = subprocess.run([ROLLCALL, "serve", "--atropos-listen", "0.0.0.0:0"], capture_output=True, text=True, timeout=LIMIT)
        self.assertEqual(said.returncode, 2)
        self.assertIn("--atropos-listen 0.0.0.0:0 is reached from other hosts", said.stderr)


class Environment:
    """A thread that posts groups to a run, as fast as they are taken, and remembers those that were acknowledged. The mean score of
    group n is n, by which the run's journal knows it; the later a sample, the better its score, and the more often it says GOOD."""
    PROMPT, GOOD, BAD = [5, 6, 7], 11, 12

    def __init__(self, port, most_waiting=None, spoilt={}, most=math.inf):
        """most_waiting: post only while fewer groups wait, so that they are of the weights of the time. spoilt: what the group after n
        acknowledged ones has instead. most: post no more than this many; may be raised."""
        self.port, self.n, self.acknowledged, self.refused, self.stop, self.most_waiting = port, 0, [], [], False, most_waiting
        self.spoilt, self.most = spoilt, most
        self.thread = threading.Thread(target=self.work)
        self.thread.start()

    def ask(self, method, path, body=None):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=LIMIT)
        with contextlib.closing(c):
            c.request(method, path, None if body is None else json.dumps(body))
            r = c.getresponse()
            return r.status, json.loads(r.read())

    def group(self, number, **more):
        tokens = [self.PROMPT + [self.GOOD if i >= 2 else self.BAD, 9, self.GOOD if i >= 2 else self.BAD] for i in range(4)]
        masks = [[-100] * 4 + [-100, t[5]] if i == 0 else [-100] * 3 + [t[3], -100, t[5]] for i, t in enumerate(tokens)]    # 9: the environment's
        return {"tokens": tokens, "masks": masks, "scores": [number - 1, number - 1, number + 1, number + 1],
                "inference_logprobs": [[-3.0 if m != -100 else 1.0 for m in ms] for ms in masks], **more}

    def work(self):
        while not self.stop:
            number = self.n + 1
            try:
                if len(self.acknowledged) >= self.most or self.most_waiting and self.ask("GET", "/status")[1]["queue_size"] >= self.most_waiting:
                    time.sleep(0.002)
                    continue
                status, answer = self.ask("POST", "/scored_data", self.group(number, **self.spoilt.get(len(self.acknowledged), {})))
            except (OSError, http.client.HTTPException):    # the door is being restarted; whether it took the group is not known
                time.sleep(0.05)
                self.n += 1
                continue
            self.n += 1
            if status == 200:
                self.acknowledged.append(number)
            elif status != 503:
                self.refused.append((number, answer))
            time.sleep(0.002)

    def close(self):
        self.stop = True
        self.thread.join()


GROUPS = 8    # of a step
RETURNED, TRAINED = 1, 4    # fates of items in the journal (protocol/record/journal.h)


class Runs(run_tools.RunCase):
    """What runs that train on posted groups have in common."""

    def begin(self, *extra, most_waiting=None, spoilt={}, most=math.inf, **settings):
        port = run_tools.free_port()
        run = self.start(*extra, environments={"listen": f"127.0.0.1:{port}"}, num_inferencer=1, max_staleness=64, **settings)
        env = Environment(port, most_waiting, spoilt, most)
        self.addCleanup(env.close)
        return run, env

    def begin_that_saves_step_8(self, *extra, **settings):
        """A checkpoint that is due while another is being written is made of the first step after that: the groups for step 6 come when step 4 has
        been saved."""
        run, env = self.begin(*extra, save_interval=4, most_waiting=2, most=5 * GROUPS, **settings)
        self.until("step 4 is saved", lambda: os.path.exists(os.path.join(run.dir, "checkpoints/step-000004")), run)
        env.most = math.inf
        return run, env

    def items(self, run, fate=RETURNED):
        """The mean rewards of the items that have come this far or further, by item."""
        with sqlite3.connect(f"file:{os.path.join(run.dir, 'journal.db')}?mode=ro", uri=True, timeout=LIMIT) as db:
            return [round(r[0]) for r in db.execute("select reward_mean from item where fate >= ? order by item", (fate,))]

    def left(self, run):
        """The mean scores of the groups that the run has not taken: its folder of them is one that a server reads."""
        with contextlib.closing(Door(state=os.path.join(run.dir, "environments"))) as door:
            groups = []
            while batch := door.get("/batch")["batch"]:
                groups += batch
            groups += door.get("/view?n=64")["groups"]
            return [sum(g["scores"]) / len(g["scores"]) for g in groups]

    def logprobs(self, model):
        lines = "".join(json.dumps({"ids": [5, 6, 7, t], "prompt_len": 3}) + "\n" for t in (Environment.GOOD, Environment.BAD))
        out = subprocess.run([ROLLCALL, "logprobs", "--model", model, "--threads", "1"], input=lines, capture_output=True, text=True, check=True,
                             timeout=LIMIT).stdout
        return [json.loads(line)["logprobs"][0] for line in out.splitlines()]


class InARun(Runs):
    def test_each_acknowledged_group_is_trained_on_once_whatever_is_killed(self):
        run, env = self.begin("--max-steps", "24", save_interval=4)
        for step, name in [(2, "environments"), (5, "controller"), (8, "environments"), (11, "worker cpu:0"), (14, "environments"),
                           (16, "agent"), (18, "environments")]:
            run.wait_step(step)
            with contextlib.suppress(ProcessLookupError, KeyError):
                os.kill(run.processes()[name], signal.SIGKILL)
        self.assertEqual(run.wait()[0], 0, run.logs())
        env.close()
        self.assertEqual((run.step(), env.refused), (24, []))
        came = self.items(run)
        self.assertEqual(len(came), len(set(came)), "a group came twice")
        self.assertEqual(len(self.items(run, TRAINED)), 24 * 8)    # others may have come ahead of the step that would use them
        left = self.left(run)
        self.assertEqual(len(left), len(set(left)))
        self.assertLessEqual(len(set(left) & set(came)), 16, "what was taken stays behind")    # the run's end came before its answer
        self.assertEqual(set(env.acknowledged) - set(came) - set(left), set(), "acknowledged groups are lost")
        good, bad = self.logprobs(self.task.path("model"))
        good_after, bad_after = self.logprobs(os.path.join(run.dir, "checkpoints/step-000024"))
        self.assertGreater(good_after - bad_after, good - bad + 1)    # it has learned what was rewarded

    def test_a_rollback_trains_again_on_the_groups_that_were_posted(self):
        """They cannot be posted again, and are acknowledged. With the same settings the steps are made again to the byte, also of groups
        without log-probs, which are trained on with those of the weights of the time."""
        bare = {number: {"inference_logprobs": None} for number in range(3, 1000, 3)}
        run, env = self.begin_that_saves_step_8("--max-steps", "16", spoilt=bare)
        run.wait_step(9)
        self.ok(run, "pause", "step")
        before = run.step()
        first = run.ledger()
        trained = {i: step for i, _, fate, step, _ in first if fate == TRAINED}
        weights = run.weights(8)
        self.assertIn("back at step 4", self.ok(run, "rollback", "4"))
        os.kill(run.processes()["environments"], signal.SIGKILL)
        os.kill(run.processes()["controller"], signal.SIGKILL)
        self.ok(run, "resume")
        self.assertEqual(run.wait()[0], 0, run.logs())
        env.close()
        self.assertEqual((run.step(), env.refused), (16, []))
        told = [t for t, in self.query(run, "select text from event where text like '%without ''inference_logprobs''%'")]
        self.assertIn(len(told), (1, 2), told)    # once, and once by the controller that was started again
        self.assertIn("environments post groups without 'inference_logprobs', first for item ", told[0])
        self.assertEqual({i: step for i, _, fate, step, _ in run.ledger() if fate == TRAINED and step <= before}, trained)
        self.assertEqual(run.weights(8), weights)
        came, left = self.items(run), self.left(run)
        self.assertEqual(len(came), len(set(came)), "a group came twice")
        self.assertEqual(set(env.acknowledged) - set(came) - set(left), set(), "acknowledged groups are lost")

    def test_a_group_that_no_gradient_can_be_made_of_is_left_out_and_named_and_the_run_goes_on(self):
        """Each of its numbers is in its bounds; the ratio of e^40 times an advantage of 1e9 is too large all the same."""
        far = [[-40.0 if i != 0 and k in (3, 5) or k == 5 else 1.0 for k in range(6)] for i in range(4)]
        spoilt = {number: {"scores": [1e9, 1e9, -1e9, -1e9], "inference_logprobs": far} for number in (11, 41)}
        run, env = self.begin_that_saves_step_8("-t", "2", "--max-steps", "12", spoilt=spoilt, advantages="centered", rho_clamp="none",
                                                skip_threshold=0)

        def told():
            return [t for t, in self.query(run, "select text from event where kind = 'alert' and text like 'group %' order by seq")]
        run.wait_step(8)
        self.ok(run, "pause", "step")
        self.assertEqual(len(told()), 2)
        self.until("step 8 is saved", lambda: os.path.exists(os.path.join(run.dir, "checkpoints/step-000008")), run)
        first, weights = told(), run.weights(8)
        items = [i for i, mean in enumerate(self.items(run)) if mean == 0]
        for item, text in zip(items, first, strict=True):
            self.assertIn(f"group {item} (posted by an environment) was left out of step {item // 8 + 1}", text)
            self.assertIn("gradient's norm is not finite", text)
        self.ok(run, "rollback", "4")
        os.kill(run.processes()["worker cpu:0"], signal.SIGKILL)
        self.ok(run, "resume")
        self.assertEqual(run.wait()[0], 0, run.logs())
        env.close()
        self.assertEqual((run.step(), env.refused), (12, []))
        self.assertEqual(run.weights(8), weights)
        self.assertEqual(told(), [*first, first[1]])

    def test_the_same_poison_gives_the_same_bytes_and_ends_no_run_that_has_lost_its_journal(self):
        far = [[-40.0 if i != 0 and k in (3, 5) or k == 5 else 1.0 for k in range(6)] for i in range(4)]
        poison = {"scores": [1e9, 1e9, -1e9, -1e9], "inference_logprobs": far}
        settings = dict(advantages="centered", rho_clamp="none", skip_threshold=0, save_interval=2)
        weights = []

        def left_out(run):
            return len(self.query(run, "select 1 from event where kind = 'alert' and text like '%was left out of step%'"))
        for _ in range(2):
            run, env = self.begin("--max-steps", "4", spoilt={3: poison, 20: poison}, most=4 * GROUPS, **settings)
            self.assertEqual(run.wait()[0], 0, run.logs())
            env.close()
            self.assertEqual(left_out(run), 2)
            weights.append(run.weights(4))
        self.assertEqual(*weights)
        for name in ("journal.db", "journal.db-wal", "journal.db-shm"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(run.dir, name))
        run = run_tools.Run(self.task, os.path.basename(run.dir), resume=True, extra=["--from-checkpoint", "--max-steps", "6"])
        self.addCleanup(run.kill)
        env = Environment(env.port, spoilt={3: poison})
        self.addCleanup(env.close)
        self.assertEqual(run.wait()[0], 0, run.logs())
        self.assertEqual(run.steps(), [5, 6])
        self.assertEqual(left_out(run), 1)

    def test_only_what_the_run_can_train_on_is_taken(self):
        run, env = self.begin()
        run.wait_step(1)
        for change, words in [({"inference_logprobs": [[1.0] * 6] * 3}, "'inference_logprobs' has 3 entries"),
                              ({"masks": [[1]] * 4}, "6 tokens, 1 masks"),
                              ({"tokens": [[5, 6, 7, 100000, 9, 11]] * 4}, "the token 100000"),
                              ({"tokens": [[i, 6, 7, 11, 9, 11] for i in range(4)]}, "begin with different tokens"),
                              ({"inference_logprobs": [[1.0] * 6] * 4}, "the log-prob 1"),
                              ({f: [[5] * 200] * 4 for f in ("tokens", "masks", "inference_logprobs")}, "200 tokens")]:
            status, answer = env.ask("POST", "/scored_data", env.group(1, **change))
            self.assertEqual(status, 422)
            self.assertIn(words, answer["detail"][0]["msg"])
        for method, path, body in [("GET", "/reset_data", None), ("GET", "/batch", None), ("POST", "/register", TRAINER)]:
            status, answer = env.ask(method, path, body)
            self.assertEqual(status, 403)
            self.assertIn("trains on the groups", answer["detail"])
        self.assertEqual(env.ask("GET", "/info"), (200, {"batch_size": 32, "max_token_len": 76}))
        self.assertEqual(env.ask("POST", "/register-env", dict(max_token_length=76, desired_name="e", weight=1, group_size=4))[1]["env_id"], 0)
        self.until("the step is told", lambda: env.ask("GET", "/status-env", {"env_id": 0})[1]["current_step"] >= 1, run)
        env.close()
        gone = env.n + 3    # groups under way
        self.assertEqual(env.ask("POST", "/scored_data", env.group(gone, env_id=0))[0], 200)
        self.assertEqual(env.ask("POST", "/scored_data", env.group(gone, env_id=0, masks=[[1]] * 4))[0], 422)

        def seen(name):
            return next((p for p in self.status(run)["processes"] if p["name"] == name), {}).get("gauges", {})
        self.until("the environment is seen", lambda: (seen("e_0").get("groups"), seen("e_0").get("refused")) == (1, 1), run)
        self.assertEqual(seen("e_0")["per minute"], 1)
        door = seen("environments")
        self.assertEqual((door["environments"], door["refused"]), (1, 7))
        self.assertGreater(door["groups"], 1)
        metrics = self.status(run)["metrics"]
        for name in ("metrics/ans_acc", "metrics/format_acc", "metrics/solve_rate", "metrics/all_right_ratio"):
            self.assertIsNone(metrics[name], "posted scores say nothing of right answers")
        self.assertIn("metrics/reward", metrics)
        self.assertGreater(metrics["env/groups_per_min"], 1)
        self.assertGreaterEqual(metrics["env/waiting"], 0)
        told = [t for t, in self.query(run, "select text from event where kind = 'alert' and text like '%was refused%'")]
        self.assertEqual(len(told), 1, told)
        self.assertIn("a group that an environment posted was refused: ", told[0])    # the last one by then
        self.ok(run, "stop")
        self.assertEqual(run.wait()[0], 3)    # stopped by an operator

    def test_a_run_that_needs_what_environments_do_not_post_says_so_at_once(self):
        """The environment gets 422, and the operator an alert and the doctor's word, with the reason; groups with log-probs are taken."""
        bare = {number: {"inference_logprobs": None} for number in range(1, 100000)}
        run, env = self.begin("--max-steps", "2", algo="REINFORCE_PPB", kl_coeff=0.01, advantages="batch", old_logprobs="sampled",
                              rho_clamp="none", spoilt=bare, most_waiting=2)
        self.until("the run has begun", lambda: env.refused, run)
        self.until("the doctor says it", lambda: "'inference_logprobs' is missing" in self.status(run).get("doctor", {}).get("text", ""), run)
        told = [t for t, in self.query(run, "select text from event where kind = 'alert' and text like '%was refused%'")]
        self.assertEqual(len(told), 1, told)
        self.assertIn("'inference_logprobs' is missing, and the penalty of REINFORCE_PPB is made of it", told[0])
        env.spoilt = {}
        self.assertEqual(run.wait()[0], 0, run.logs())
        env.close()

    def test_settings_that_do_not_go_together_are_refused(self):
        for settings, words in [({"environments": {"listen": "8000"}}, "needs listen: HOST:PORT"),
                                ({"environments": {"listen": "0.0.0.0:8000"}}, "reached from other hosts"),
                                ({"environments": {"listen": "127.0.0.1:8000", "port": 1}}, "has 'port'"),
                                ({"environments": {"listen": "127.0.0.1:8000", "url": "http://h:1"}}, "both listen and url"),
                                ({"environments": {"url": "h:1"}}, "it is http://HOST:PORT"),
                                ({"environments": {"listen": "127.0.0.1:8000"}}, "needs 'max_steps'"),
                                ({"environments": "127.0.0.1:8000"}, "must be a JSON object"),
                                ({"environments": {"listen": "127.0.0.1:8000"}, "environment": "program:true", "max_steps": 1}, "do not go together")]:
            said = subprocess.run([ROLLCALL, "train", self.task.run_file("bad.yaml", **settings), "--dry-run"], capture_output=True, text=True,
                                  timeout=LIMIT)
            self.assertEqual(said.returncode, 2, said.stderr)
            self.assertIn(words, said.stderr)
        listen = f"127.0.0.1:{run_tools.free_port()}"
        ok = subprocess.run([ROLLCALL, "train", self.task.run_file("ok.yaml", environments={"listen": listen}, max_steps=9), "--dry-run"],
                            capture_output=True, text=True, timeout=LIMIT)
        self.assertEqual(ok.returncode, 0, ok.stderr)
        self.assertIn("environments:   post at " + listen, ok.stdout)
        self.assertRegex(ok.stdout, r"a step \(training [0-9.e-]+ s\)")    # others sample


class OfAnotherServer(Runs):
    """The run is the trainer of a server of its own: of rollcall's, or of one that does everything wrong."""
    OPTIONS = ["--batch-size", "4", "--gradient-accumulation-steps", "8", "--clip-eps", "0.2", "--seq-len", "64"]

    def setUp(self):
        super().setUp()
        # what the options above determine must not be in the run file
        self.free = dict.fromkeys(["train_batch_size", "train_microbatch_size", "inference_batch_size", "inference_microbatch_size",
                                   "max_prompt_tokens", "max_new_tokens"], run_tools.LEFT_OUT)

    def begin_at(self, port, steps, **settings):
        return self.start("--atropos-url", f"http://127.0.0.1:{port}/", "--training-steps", str(steps), *self.OPTIONS, max_staleness=64,
                          **self.free, **settings)

    def test_it_trains_on_the_batches_of_a_foreign_server_whatever_is_killed(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        door = Door(state=folder.name)
        env = Environment(door.port)
        self.addCleanup(env.close)
        run = self.begin_at(door.port, 16)
        kills = 0
        for step, name in [(2, "environments"), (4, None), (6, "controller"), (8, "worker cpu:0"), (10, None), (12, "environments")]:
            run.wait_step(step)
            if name:
                with contextlib.suppress(ProcessLookupError, KeyError):
                    os.kill(run.processes()[name], signal.SIGKILL)
            else:
                door.kill()
                port = door.port
                door.close()
                door = Door(state=folder.name, port=port)
            kills += 1
        self.assertEqual(run.wait()[0], 0, run.logs())
        env.close()
        info, status = door.get("/info"), door.get("/status")
        door.close()
        self.assertEqual((run.step(), info["batch_size"], info["max_token_len"]), (16, 32, 64))
        self.assertEqual([line for line in run.told("alarm") if "disagree" in line["text"]], [], "the log-probs are not the trainer's own")
        self.assertGreaterEqual(status["current_step"], 16)
        came = self.items(run)
        self.assertEqual(len(self.items(run, TRAINED)), 16 * 8)
        self.assertLessEqual(len(came) - len(set(came)), 8 * 2, "a batch comes twice only when the server is killed while it sends it")
        self.assertLessEqual(len(set(env.acknowledged) & set(range(max(came) + 1)) - set(came)), 8 * kills,
                             "a batch is lost only when one of the two is killed between the sending and the taking")
        good, bad = self.logprobs(self.task.path("model"))
        good_after, bad_after = self.logprobs(os.path.join(run.dir, "checkpoints/step-000016"))
        self.assertGreater(good_after - bad_after, good - bad + 1)

    def test_a_server_that_does_everything_wrong_is_named_and_survived(self):
        groups = [Environment.group(Environment, 10 + i) for i in range(8)]
        bad = {**groups[0], "inference_logprobs": [[1.0]]}
        script = ["refuse", "close", "forget", "garbage", {"batch": None}, {"batch": [{"tokens": [[1]]}]}, {"batch": [bad] + groups}, {"batch": groups}]
        asked, registered = [], []

        class Answers(http.server.BaseHTTPRequestHandler):
            def log_message(self, *args):
                pass

            def reply(self, status, body):
                data = body if isinstance(body, bytes) else json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def do_GET(self):
                if self.path == "/info":
                    self.reply(200, {"batch_size": 32 if registered else -1, "max_token_len": 64})
                    return
                act = script[min(len(asked), len(script) - 1)]
                asked.append(act)
                if act == "refuse":
                    self.reply(500, b"Internal Server Error")
                elif act == "close":
                    self.close_connection = True
                elif act == "forget":
                    registered.clear()
                    self.reply(200, {"status": "error", "message": "Trainer not registered. Call /register first.", "batch": []})
                else:
                    self.reply(200, b"<html>no</html>" if act == "garbage" else act)

            def do_POST(self):
                registered.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                self.reply(200, {"uuid": 1 << 100})    # as Python's

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        self.addCleanup(thread.join)
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        run = self.begin_at(server.server_port, 2)
        self.assertEqual(run.wait()[0], 0, run.logs())
        self.assertGreaterEqual(len(asked), len(script))
        self.assertEqual({k: registered[0][k] for k in ("batch_size", "max_token_len", "starting_step", "num_steps")},
                         dict(batch_size=32, max_token_len=64, starting_step=0, num_steps=2))
        with open(os.path.join(run.dir, "logs/environments.log")) as f:
            log = f.read()
        for words in ["/batch answered with status 500: Internal Server Error", "Server returned nothing", "the answer to GET /batch has no 'batch': <html>",
                      "a batch cannot be read, and is lost", "1 of a batch's 9 groups cannot be trained on; the first: 'inference_logprobs'",
                      f"the Atropos API at http://127.0.0.1:{server.server_port} answers"]:
            self.assertIn(words, log)
        self.assertEqual(self.items(run, TRAINED), [10 + i for i in range(8)] * 2)

    def test_options_of_the_example_trainer_mean_what_they_do_there(self):
        def try_(*extra, **settings):
            said = subprocess.run([ROLLCALL, "train", self.task.run_file("try.yaml", **{**self.free, **settings}), "--dry-run", *extra],
                                  env=dict(os.environ, WANDB_API_KEY="k" * 40, VLLM_ENABLE_SHARED_WEIGHTS="1", MASTER_PORT="29500"), capture_output=True, text=True, timeout=LIMIT)
            return said.returncode, said.stdout + said.stderr
        code, said = try_("--atropos-url", "http://127.0.0.1:1", "--training-steps", "3", *self.OPTIONS, "--device", "cpu", "--vllm-port", "9001", "--vllm-gpu", "0",
                          "--use-wandb", "--weight-bridge-mode", "none", "--optimizer", "adamw_8bit", "--use-shared-memory", "--single-copy")
        self.assertEqual(code, 0, said)
        self.assertIn("batches of the Atropos API at http://127.0.0.1:1, groups of any size that fit into 64 tokens", said)
        self.assertIn("optimizer step: 8 prompts", said)
        for name in ("'vllm_gpu'", "'use_shared_memory'", "'single_copy'", "the environment's VLLM_ENABLE_SHARED_WEIGHTS", "the environment's MASTER_PORT"):
            self.assertIn(f"note: {name} has no effect: ", said)
        code, said = try_(atropos_url="http://127.0.0.1:1", training_steps=3, batch_size=2, gradient_accumulation_steps=3)
        self.assertEqual(code, 2, said)
        self.assertIn("a batch of 6 sequences ('batch_size' 2 x 'gradient_accumulation_steps' 3) is not a multiple of the 4", said)
        for option, value, words in [("adafactor-relative-step", "true", "is torch.optim.Adafactor"), ("train-layer-indices", "3-1", "a list of layers"),
                                     ("batch-size", "many", "'batch_size' is 'many'; it is a whole number"),
                                     ("weight-bridge-mode", "shared", "'weight_bridge_mode'"), ("atropos-url", "8000", "it is http://HOST:PORT")]:
            code, said = try_("--seq-len", "400", f"--{option}", value)
            self.assertEqual(code, 2, said)
            self.assertIn(words, said)
        example = os.path.join(ROOT, "examples/atropos.yaml")
        said = subprocess.run([ROLLCALL, "train", example, "--model-name", self.task.path("model"), "--device", "cpu:0", "--seq-len", "400", "--dry-run"], capture_output=True,
                              text=True, timeout=LIMIT)
        self.assertEqual(said.returncode, 0, said.stderr)
        self.assertIn("optimizer step: 16 prompts", said.stdout)    # 64 sequences, of which four make a group


if __name__ == "__main__":
    unittest.main()
