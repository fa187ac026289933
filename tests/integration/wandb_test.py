"""Weights & Biases against a fake server with faults, kills and rollbacks: no gap, no duplicate, no key in any file.

tags: asan limit=300
"""
import glob, json, math, mmap, os, pty, re, resource, signal, sqlite3, struct, subprocess, sys, tempfile, time, unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from run_tools import built
import histograms
from fake_wandb import FakeWandb
from protobuf_read import fields

ROLLCALL = os.path.abspath(os.environ.get("ROLLCALL", "build/release/rollcall"))
KEY = "s3cretkey" + "x" * 31


class FakeRun:
    """A run directory with a journal as protocol/record/journal.c lays it out, and the lock that says it is alive."""

    def __init__(self, path):
        self.path = path
        with open(os.path.join(path, "run.yaml"), "w") as f:
            f.write("project: proj\nname: my-run\nwandb_tags: a,b\nseed: 7\n")
        self.db = sqlite3.connect(os.path.join(path, "journal.db"), check_same_thread=False)
        self.db.executescript("""PRAGMA journal_mode=WAL; PRAGMA user_version=1;
            CREATE TABLE series(id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
            CREATE TABLE step(seq INTEGER PRIMARY KEY, incarnation INTEGER, step INTEGER, superseded INTEGER DEFAULT 0,
                              wall_s REAL, metrics BLOB);
            CREATE TABLE event(seq INTEGER PRIMARY KEY AUTOINCREMENT, incarnation INTEGER, step INTEGER, wall_s REAL, kind TEXT,
                               who TEXT, text TEXT, detail TEXT);
            CREATE TABLE eval(step INTEGER, set_name TEXT, incarnation INTEGER, n INTEGER, mean REAL, detail TEXT,
                              PRIMARY KEY(step, set_name));
            CREATE TABLE value(name TEXT PRIMARY KEY, value BLOB);
            CREATE TABLE sample(seq INTEGER PRIMARY KEY, node TEXT, wall_s REAL, figures BLOB);""")
        self.names, self.holder, self.changes, self.last = [], None, [], 0

    def live(self, on):
        """Hold the run's lock in a separate process, or release it."""
        if on:
            code = ("import fcntl,struct,sys;f=open(sys.argv[1],'w');"
                    "fcntl.fcntl(f,37,struct.pack('hhqqi4x',1,0,0,0,0));print('held',flush=True);sys.stdin.read()")
            self.holder = subprocess.Popen([sys.executable, "-c", code, os.path.join(self.path, "lock")], stdin=subprocess.PIPE,
                                           stdout=subprocess.PIPE, text=True)
            self.holder.stdout.readline()
        elif self.holder:
            self.holder.stdin.close()
            self.holder.wait()
            self.holder.stdout.close()
            self.holder = None
            self.event("state", "finished")

    def steps(self, first, last, incarnation=1):
        for step in range(first, last + 1):
            blob = b""
            for name, v in (("train/loss", 1 / step), ("metrics/reward", step)):
                if name not in self.names:
                    self.names.append(name)
                    self.db.execute("INSERT INTO series VALUES(?,?)", (len(self.names), name))
                blob += struct.pack("<Id", self.names.index(name) + 1, v)
            self.db.execute("INSERT INTO step(incarnation, step, wall_s, metrics) VALUES(?,?,?,?)",
                            (incarnation, step, time.time(), blob))
        self.last = last
        self.db.commit()

    def histograms(self, values_of):
        histograms.add(self.db, values_of)

    def rollback(self, to):
        self.db.execute("UPDATE step SET superseded=1 WHERE step>?", (to,))
        self.db.commit()

    def event(self, kind, text, **facts):
        self.db.execute("INSERT INTO event(incarnation,step,wall_s,kind,who,text,detail) VALUES(1,1,?,?,'op',?,?)",
                        (time.time(), kind, text, json.dumps(facts) if facts else ""))
        self.db.commit()

    def change(self, name, before, value):
        """A change of a knob, as the controller keeps it and reports it."""
        self.changes.append({"step": 1, "rollout_step": 1, "group": len(self.changes), "name": name, "value": value, "before": before})
        self.db.execute("INSERT OR REPLACE INTO value VALUES('changes', ?)", (json.dumps(self.changes).encode(),))
        self.event("command", f"{name} is another one now",
                   changes=[{"name": name, "before": before, "value": value, "from": "optimizer step 2"}])

    def sample(self, node, figures):
        blob = b""
        for name, v in figures.items():
            if name not in self.names:
                self.names.append(name)
                self.db.execute("INSERT INTO series VALUES(?,?)", (len(self.names), name))
            blob += struct.pack("<Id", self.names.index(name) + 1, v)
        self.db.execute("INSERT INTO sample(node, wall_s, figures) VALUES(?,?,?)", (node, time.time(), blob))
        self.db.commit()

    def eval(self, step, name, mean):
        self.db.execute("INSERT OR REPLACE INTO eval VALUES(?,?,1,10,?,'')", (step, name, mean))
        self.db.commit()


class Wandb(unittest.TestCase):
    def setUp(self):
        self.tmp = tempfile.TemporaryDirectory()
        self.run_ = FakeRun(self.tmp.name)
        self.server = FakeWandb(KEY)
        self.env = dict(os.environ, WANDB_API_KEY=KEY, WANDB_BASE_URL=self.server.url, WANDB_X_FILE_STREAM_TRANSMIT_INTERVAL="0.02",
                        WANDB_X_FILE_STREAM_RETRY_WAIT_MIN_SECONDS="0.02", HOME=self.tmp.name)
        self.processes, self.cwd = [], None

    def tearDown(self):
        for p in self.processes:
            if p.poll() is None:
                p.kill()
            p.communicate()
        self.run_.live(False)
        self.run_.db.close()
        self.server.close()
        self.tmp.cleanup()

    def start(self, *args):
        p = subprocess.Popen([ROLLCALL, "export", "wandb", self.tmp.name, *args], env=self.env, cwd=self.cwd, stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, text=True)
        self.processes.append(p)
        return p

    def until(self, what, seconds=90):
        end = time.monotonic() + seconds
        while not what():
            self.assertLess(time.monotonic(), end, f"not within {seconds} s; server: {self.server.wrong}")
            time.sleep(0.01)

    def sent(self):
        return list(self.server.runs.values())[0] if self.server.runs else None

    def n_rows(self):
        return len(self.sent().lines("wandb-history.jsonl")) if self.sent() else 0

    def whole(self, steps):
        """Every step exactly once, in order, with its numbers."""
        run = self.server.check(self.sent().name)
        rows = [r for r in run.history() if "train/loss" in r]
        self.assertEqual([r["trainer/step"] for r in rows], list(range(1, steps + 1)))
        self.assertTrue(all(r["train/loss"] == 1 / r["trainer/step"] for r in rows))
        return run

    def test_a_finished_run_is_sent_whole(self):
        self.run_.steps(1, 50)
        self.run_.histograms({"metrics/reward_hist": [1, 2, 2, 9]})    # of step 50
        self.run_.eval(0, "greedy", 0.25)
        self.run_.change("learning_rate", "1e-06", "1e-05")
        self.run_.event("command", "paused: step")
        self.run_.event("alert", "KL is high")
        self.run_.event("alert", "é" * 300)    # the title's bytes and the text's end inside a character
        self.run_.event("doctor", "training bounds the run: 70 % of a step of 2 s")
        self.run_.event("state", "over, whatever the words", state="finished")
        p = self.start()
        out, err = p.communicate(timeout=120)
        self.assertEqual(p.returncode, 0, err)
        run = self.whole(50)
        self.assertTrue(run.complete)
        self.assertEqual(run.exitcode, 0)
        self.assertEqual(run.config["seed"], {"value": 7})
        self.assertIn("t", run.config["_wandb"]["value"])
        axes = {m["1"]: m.get("5") for m in run.config["_wandb"]["value"]["m"]}
        self.assertEqual(axes["train/loss"], 1)
        self.assertEqual(axes["metrics/reward_hist"], 1)
        counts, edges = histograms.spread([1, 2, 2, 9])
        shape = {"_type": "histogram", "values": counts, "bins": edges}    # wandb.Histogram's own form, tests/compare_wandb.py
        self.assertEqual([(r["trainer/step"], r["metrics/reward_hist"]) for r in run.history() if "metrics/reward_hist" in r], [(50, shape)])
        self.assertEqual(run.summary()["metrics/reward_hist"], shape)
        self.assertEqual(run.upserts[0]["tags"], ["a", "b"])
        self.assertEqual(run.upserts[0]["displayName"], "my-run")
        self.assertEqual([r["eval/greedy"] for r in run.history() if "eval/greedy" in r], [0.25])
        self.assertEqual([(a["title"], a["text"], a["severity"]) for a in run.alerts],
                         [("KL is high", "KL is high", "WARN"), ("é" * 31, "é" * 255, "WARN")])
        self.assertEqual([len([r for r in run.history() if name in r]) for name in ("run/changed", "run/command", "run/alert")], [1, 1, 2])
        self.assertEqual([r["run/doctor"] for r in run.history() if "run/doctor" in r], ["training bounds the run: 70 % of a step of 2 s"])
        self.assertEqual(run.config["learning_rate"], {"value": 1e-5})
        self.assertEqual(run.summary()["train/loss"], 1 / 50)
        self.assertEqual(self.server.n_packed, 0)    # not offered
        self.assertRegex(out, "^" + re.escape(self.server.url) + r"/ent/proj/runs/\w{8}\n$")
        self.assertEqual(run.summary()["_step"], run.history()[-1]["_step"])

    def finished(self, *lines, **env):
        """A short finished run with more lines in its run file, sent with these settings in the environment; what it was made as."""
        with open(os.path.join(self.tmp.name, "run.yaml"), "w") as f:
            f.write("".join(line + "\n" for line in ("seed: 7", *lines)))
        self.server.runs.clear()
        self.env.update(env)
        p = self.start()
        out, err = p.communicate(timeout=120)
        for name in env:
            del self.env[name]
        self.assertEqual(p.returncode, 0, err)
        first, *later = self.sent().upserts
        for update in later:    # these leave alone what the run was made with
            self.assertEqual([update.get(k) for k in ("groupName", "displayName", "notes", "tags", "jobType")], [None] * 5)
        return first

    def test_group_tags_and_notes_come_from_the_run_file_then_from_the_environment(self):
        self.run_.steps(1, 3)
        self.run_.event("state", "over, whatever the words", state="finished")
        asked = lambda v: (v["groupName"], v["tags"], v["notes"], v["jobType"], v["displayName"])
        self.assertEqual(asked(self.finished()), (None, None, None, "train", None))
        theirs = dict(WANDB_RUN_GROUP="theirs", WANDB_TAGS="x,,y", WANDB_NOTES="say \"so\"\n\u00fc", WANDB_JOB_TYPE="rl", WANDB_NAME="their name")
        self.assertEqual(asked(self.finished(**theirs)), ("theirs", ["x", "y"], "say \"so\"\n\u00fc", "rl", "their name"))
        ours = ("wandb_group: ours", "wandb_tags: a,b c", "wandb_notes: ours too", "name: our-name")
        self.assertEqual(asked(self.finished(*ours, **theirs)), ("ours", ["a", "b c"], "ours too", "rl", "our-name"))
        self.assertEqual(asked(self.finished(*ours)), ("ours", ["a", "b c"], "ours too", "train", "our-name"))

    def test_settings_files_of_wandb_come_after_the_environment(self):
        self.run_.steps(1, 3)
        self.run_.event("state", "over, whatever the words", state="finished")
        user, project = os.path.join(self.tmp.name, ".config/wandb"), os.path.join(self.tmp.name, "wandb")
        os.makedirs(user)
        os.mkdir(project)
        with open(user + "/settings", "w") as f:
            f.write("# theirs\n[other]\nentity = nobody\n[default]\nentity = user-team\nproject = of-user\nrun_group = of-user\n"
                    f"base_url = {self.server.url}/\nmode = disabled\n")
        with open(project + "/settings", "w") as f:
            f.write("[default]\nPROJECT: of project \nrun_tags = p,q\nrun_group =\n")
        del self.env["WANDB_BASE_URL"]
        asked = lambda v: (v["entity"], v["project"], v["groupName"], v["tags"])
        here, self.cwd = os.getcwd(), self.tmp.name
        self.assertEqual(asked(self.finished()), ("user-team", "of project", "of-user", ["p", "q"]))
        self.assertEqual(asked(self.finished(WANDB_PROJECT="of-env", WANDB_ENTITY="env-team")), ("env-team", "of-env", "of-user", ["p", "q"]))
        self.assertEqual(asked(self.finished("project: of-run", "wandb_entity: run-team", WANDB_PROJECT="of-env")),
                         ("run-team", "of-run", "of-user", ["p", "q"]))
        elsewhere = os.path.join(self.tmp.name, "elsewhere")
        os.mkdir(elsewhere)
        with open(elsewhere + "/settings", "w") as f:
            f.write(f"[default]\nbase_url = {self.server.url}\nentity = moved\n")
        self.assertEqual(asked(self.finished(WANDB_CONFIG_DIR=elsewhere)), ("moved", "of project", None, ["p", "q"]))
        self.cwd = here
        self.assertEqual(asked(self.finished()), ("user-team", "of-user", "of-user", None))    # the project's file is not here
        for text, why in ((b"[default]\nentity = a\n  b\n", "settings:3: '  b' is not a line"), (b"entity = a\n", "settings:1: 'entity = a'"),
                          (b"[default]\nentity\n", "settings:2: 'entity'"), (b"[default]\n\0", "settings:2: a NUL byte"),
                          (b"[default]\n" + b"#" * 70000, "65536")):
            with open(user + "/settings", "wb") as f:
                f.write(text)
            p = self.start()
            out, err = p.communicate(timeout=120)
            self.assertEqual((p.returncode, len(err.splitlines())), (1, 1), err)
            self.assertIn(why, err)

    def test_an_identity_token_is_refused_where_there_is_no_key(self):
        self.run_.steps(1, 1)
        self.run_.event("state", "over, whatever the words", state="finished")
        self.finished(WANDB_IDENTITY_TOKEN_FILE="/nowhere")
        del self.env["WANDB_API_KEY"]
        self.env["WANDB_IDENTITY_TOKEN_FILE"] = "/nowhere"
        p = self.start()
        out, err = p.communicate(timeout=120)
        self.assertEqual((p.returncode, len(err.splitlines())), (1, 1), err)
        self.assertIn("identity tokens are not supported", err)
        self.assertIn("WANDB_API_KEY", err)

    def test_faults_leave_no_gap_and_no_duplicate(self):
        fault = [{"path": "graphql", "status": 500}, {"status": 429, "headers": {"Retry-After": "0.1"}}, {"status": 503},
                 {"drop": "before"}, {"drop": "after"}, {"half": True}, {"status": 500}, {"drop": "after"}, {"slow": 0.3}]
        self.server.faults = list(fault)
        self.run_.live(True)
        p = self.start("--follow")
        for i in range(12):
            self.run_.steps(10 * i + 1, 10 * i + 10)
            self.until(lambda: self.n_rows() >= 10 * i + 10)
        self.run_.live(False)
        out, err = p.communicate(timeout=120)
        self.assertEqual(p.returncode, 0, err)
        self.assertEqual(self.server.faults, [])
        self.assertTrue(self.whole(120).complete)

    def test_kill_9_continues_at_the_right_row_and_a_rollback_sends_nothing_twice(self):
        self.run_.live(True)
        sent = 0
        for life in range(4):
            self.server.faults = [{"drop": "after"}, {"slow": 0.05}]
            p = self.start("--follow")
            self.run_.steps(sent + 1, sent + 30, life + 1)
            sent += 30
            self.until(lambda: self.n_rows() >= sent - 10)
            p.kill()
            p.wait()
            self.run_.rollback(sent - 5)
            self.run_.steps(sent - 4, sent, life + 2)
        self.run_.live(False)
        p = self.start()
        out, err = p.communicate(timeout=120)
        self.assertEqual(p.returncode, 0, err)
        self.whole(sent)
        self.assertEqual(len(self.server.runs), 1)

    def test_a_final_answer_is_said_loudly_and_the_rest_goes_later(self):
        self.run_.steps(1, 20)
        self.run_.live(True)
        self.server.faults = [{"status": 404, "body": '{"error":"run was deleted"}'}]
        p = self.start("--follow")
        out, err = p.communicate(timeout=120)
        self.assertEqual(p.returncode, 1)
        self.assertIn("HTTP 404, run was deleted", err)
        self.assertIn("rollcall export wandb", err)
        with open(os.path.join(self.tmp.name, "export/wandb/status")) as f:
            self.assertTrue(f.read().startswith("failed"))
        self.run_.live(False)
        p = self.start()
        p.communicate(timeout=120)
        self.assertEqual(p.returncode, 0)
        self.assertTrue(self.whole(20).complete)

    def test_a_wrong_key_is_refused_and_none_is_asked_for_first(self):
        self.run_.steps(1, 1)
        self.env["WANDB_API_KEY"] = "y" * 40
        p = self.start()
        out, err = p.communicate(timeout=120)
        self.assertEqual(p.returncode, 1)
        self.assertIn("HTTP 401", err)
        del self.env["WANDB_API_KEY"]
        p = self.start()
        out, err = p.communicate(timeout=120)
        self.assertEqual(p.returncode, 2)
        self.assertIn("WANDB_API_KEY", err)
        with open(os.path.join(self.tmp.name, ".netrc"), "w") as f:    # the name holds the port, the login is of no matter
            f.write(f"machine 127.0.0.1\n  login user\n  password wrong\nmachine {self.server.url[7:]}\n  login user\n  password {KEY}\n")
        p = self.start()
        out, err = p.communicate(timeout=120)
        self.assertEqual(p.returncode, 0, err)
        os.unlink(os.path.join(self.tmp.name, ".netrc"))

    def test_the_key_is_in_no_file_and_on_no_command_line(self):
        self.run_.steps(1, 5)
        self.run_.live(True)
        self.server.faults = [{"status": 500}] * 3
        self.env["RC_LOG"] = "debug"
        p = self.start("--follow")
        self.until(lambda: self.n_rows() == 5)
        with open(f"/proc/{p.pid}/cmdline") as f:
            self.assertNotIn(KEY, f.read())
        self.run_.live(False)
        out, err = p.communicate(timeout=120)
        self.assertNotIn(KEY, out + err)
        for path in glob.glob(os.path.join(self.tmp.name, "**"), recursive=True):
            if os.path.isfile(path):
                with open(path, "rb") as f:
                    self.assertNotIn(KEY.encode(), f.read(), path)

    def test_console_text_goes_along_only_when_asked_for(self):
        self.run_.steps(1, 3)
        os.mkdir(os.path.join(self.tmp.name, "logs"))
        log = os.path.join(self.tmp.name, "logs/controller.log")
        with open(log, "wb") as f:
            f.write(b"2026-01-01T00:00:00.000 INFO  controller: one\n2026-01-01T00:00:00.000 ERROR controller: \x1b[31mtwo\x1b[0m \xff\nhal")
        self.run_.live(True)
        p = self.start("--follow")
        self.until(lambda: self.n_rows() == 3)
        self.assertNotIn("output.log", self.sent().files)
        p.kill()
        p.communicate()
        with open(os.path.join(self.tmp.name, "run.yaml"), "a") as f:
            f.write("wandb_console: true\n")
        p = self.start("--follow")
        self.until(lambda: len(self.sent().lines("output.log")) == 2)    # what has no end yet is no line
        p.kill()
        p.communicate()
        with open(log, "ab") as f:
            f.write(b"f a line\n" + b"".join(b"line %d\n" % i for i in range(5000)))
        self.server.faults = [{"status": 503, "headers": {"Retry-After": "0.01"}}, {"drop": "after"}]
        p = self.start("--follow")
        self.until(lambda: len(self.sent().lines("output.log")) == 5003)
        self.run_.live(False)
        out, err = p.communicate(timeout=120)
        self.assertEqual(p.returncode, 0, err)
        lines = self.whole(3).lines("output.log")
        time_ = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6} "
        self.assertRegex(lines[0], "^" + time_ + ".*controller: one$")
        self.assertRegex(lines[1], "^ERROR " + time_ + ".*controller: two \ufffd$")
        self.assertRegex(lines[2], "^" + time_ + "half a line$")
        self.assertEqual([x.split(" ", 1)[1] for x in lines[3:]], [f"line {i}" for i in range(5000)])

    def test_an_untrusted_certificate_is_refused_and_a_named_one_trusted(self):
        cert = os.path.join(self.tmp.name, "cert.pem")
        made = subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-keyout", cert, "-out",
                               cert + ".crt", "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"],
                              capture_output=True) if os.path.exists("/usr/bin/openssl") else None
        if not made or made.returncode:
            self.skipTest("openssl is not installed")
        with open(cert, "a") as f, open(cert + ".crt") as g:
            f.write(g.read())
        tls = FakeWandb(KEY, cert)
        try:
            self.run_.steps(1, 3)
            self.env["WANDB_BASE_URL"] = tls.url
            p = self.start()
            out, err = p.communicate(timeout=120)
            self.assertEqual(p.returncode, 1)
            self.assertIn("certificate", err)
            self.assertEqual(tls.runs, {})
            with open(os.path.join(self.tmp.name, "run.yaml"), "a") as f:
                f.write(f"wandb_ca: {cert}.crt\n")
            p = self.start()
            out, err = p.communicate(timeout=120)
            self.assertEqual(p.returncode, 0, err)
            self.assertEqual(len(tls.runs), 1)
        finally:
            tls.close()

    def test_rows_are_packed_where_the_server_offers_it(self):
        self.server.features = ["SOMETHING_ELSE", "FILESTREAM_GZIP"]
        self.server.faults = [{"drop": "after"}, {"status": 500}]
        self.run_.steps(1, 300)
        self.run_.event("state", "over, whatever the words", state="finished")
        p = self.start()
        out, err = p.communicate(timeout=120)
        self.assertEqual(p.returncode, 0, err)
        self.assertTrue(self.whole(300).complete)
        self.assertGreaterEqual(self.server.n_packed, 3)    # the first, twice again, and the last

    def test_a_change_of_a_knob_reaches_a_run_that_is_being_followed(self):
        self.run_.steps(1, 3)
        self.run_.live(True)
        self.start("--follow")
        self.until(lambda: self.n_rows() == 3)
        first = self.sent().config["temperature"]
        self.run_.change("temperature", "1", "0.75")
        self.until(lambda: self.sent().config["temperature"] == {"value": 0.75})
        self.assertNotEqual(first, {"value": 0.75})
        self.assertEqual(self.sent().config["seed"], {"value": 7})
        self.processes[-1].kill()    # the next life starts from what the run began with
        self.run_.change("temperature", "0.75", "0.5")
        self.start("--follow")
        self.until(lambda: self.sent().config["temperature"] == {"value": 0.5})

    def test_no_redirect_is_followed(self):
        other = FakeWandb(KEY)
        try:
            for path in ("graphql", "file_stream"):
                self.run_.steps(1, 3)
                self.server.faults = [{"path": path, "status": 307, "headers": {"Location": other.url + "/graphql"}}] * 2
                p = self.start()
                out, err = p.communicate(timeout=120)
                self.assertEqual(p.returncode, 1)
                self.assertIn("redirects are not followed", err)
            self.assertEqual(other.n_requests, 0)
        finally:
            other.close()

    def test_an_existing_run_is_continued_after_its_last_row(self):
        self.run_.steps(1, 2)
        self.env["WANDB_RUN_ID"] = "theirs01"
        self.env["WANDB_RESUME"] = "must"
        p = self.start()
        out, err = p.communicate(timeout=120)
        self.assertEqual(p.returncode, 1)
        self.assertIn("no run 'theirs01' to continue", err)
        there = self.server.run("theirs01")    # a run of somebody else's, which counts its steps in tens
        there.config["_wandb"] = {"value": {"t": {"5": "0.28"}}}
        there.upserts.append({})
        there.files["wandb-history.jsonl"] = {i: json.dumps({"_step": 10 * i, "_runtime": 1, "_timestamp": 1, "x": i}) for i in range(4)}
        self.env["WANDB_RESUME"] = "never"
        p = self.start()
        out, err = p.communicate(timeout=120)
        self.assertEqual(p.returncode, 1)
        self.assertIn("WANDB_RESUME is never", err)
        self.env["WANDB_RESUME"] = "allow"
        self.server.faults = [{"drop": "after"}]
        p = self.start()
        out, err = p.communicate(timeout=120)
        self.assertEqual(p.returncode, 0, err)
        run = self.whole(2)
        self.assertEqual([r["_step"] for r in run.history()], [0, 10, 20, 30, 31, 32])
        self.run_.steps(3, 5)    # and a second time
        run.complete = False
        p = self.start()
        out, err = p.communicate(timeout=120)
        self.assertEqual(p.returncode, 0, err)
        self.assertEqual([r["_step"] for r in self.whole(5).history()], [0, 10, 20, 30, 31, 32, 33, 34, 35])

    def test_a_server_whose_limit_is_used_up_is_left_alone_until_it_says(self):
        self.run_.steps(1, 3)
        self.run_.live(True)
        self.server.faults = [{"reply_headers": {"RateLimit-Remaining": "0", "RateLimit-Reset": "1.5"}}]
        self.start("--follow")
        self.until(lambda: self.n_rows() == 3)
        self.run_.steps(4, 4)
        self.until(lambda: self.n_rows() == 4)
        times = self.sent().requests
        self.assertGreaterEqual(times[1] - times[0], 1.4)

    def test_an_hour_without_a_server_leaves_no_gap(self):
        if os.environ.get("RC_VARIANT") in ("asan", "tsan"):
            self.skipTest("the clock is preloaded, which sanitizers do not allow")
        clock = os.path.join(self.tmp.name, "clock")
        with open(clock, "wb") as f:
            f.write(struct.pack("<d", 0))
        self.env.update(FAKE_CLOCK=clock, LD_PRELOAD=built("libfake_clock.so"),
                        WANDB_X_FILE_STREAM_RETRY_WAIT_MIN_SECONDS="2")    # as the real client's
        self.run_.steps(1, 100)
        self.run_.live(True)
        p = self.start("--follow")
        self.until(lambda: self.n_rows() == 100)
        self.server.outage, hour = True, 0
        with open(clock, "r+b") as f, mmap.mmap(f.fileno(), 8) as at:
            while hour < 3600 or self.server.n_refused < 3:    # ten seconds every hundredth of one
                hour += 10
                at[:] = struct.pack("<d", hour)
                if hour % 60 == 0:
                    self.run_.steps(1 + self.run_.last, 60 + self.run_.last)
                time.sleep(0.01)
            tries = self.server.n_refused
            self.assertEqual(self.n_rows(), 100)
            self.server.outage = False
            while self.n_rows() < self.run_.last:
                hour += 10
                at[:] = struct.pack("<d", hour)
                time.sleep(0.01)
        self.run_.live(False)
        out, err = p.communicate(timeout=120)
        self.assertEqual(p.returncode, 0, err)
        self.assertTrue(self.whole(self.run_.last).complete)
        self.assertLess(tries, hour / 15)    # it backed off: a minute and a quarter at most, two seconds at first

    def test_a_finished_run_is_sent_with_a_bar_that_fills(self):
        self.run_.steps(1, 500)
        self.run_.event("state", "over, whatever the words", state="finished")
        master, slave = pty.openpty()
        p = subprocess.Popen([ROLLCALL, "export", "wandb", self.tmp.name], env=self.env, stdout=subprocess.DEVNULL, stderr=slave)
        self.processes.append(p)
        os.close(slave)
        shown = b""
        try:
            while data := os.read(master, 65536):
                shown += data
        except OSError:    # the terminal's other end has been closed
            pass
        os.close(master)
        self.assertEqual(p.wait(60), 0, shown)
        shown = shown.decode()
        self.assertIn("[..............................]   0 %  0 of 500 rows", shown)
        self.assertIn("[##############################] 100 %  500 of 500 rows", shown)

    def test_a_core_file_is_made_of_other_processes_but_not_of_one_with_the_key(self):
        with open("/proc/sys/kernel/core_pattern") as f:
            if f.read().strip() != "core":
                self.skipTest("this machine keeps core files elsewhere")
        cores = os.path.join(self.tmp.name, "cores")
        os.mkdir(cores)

        def unlimited():
            resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        try:
            other = subprocess.Popen(["sleep", "100"], cwd=cores, preexec_fn=unlimited)
        except subprocess.SubprocessError:
            self.skipTest("the limit of core files cannot be raised")
        other.send_signal(signal.SIGABRT)
        other.wait()
        if not glob.glob(cores + "/core*"):
            self.skipTest("no core files are made here")
        for core in glob.glob(cores + "/core*"):
            os.unlink(core)
        self.run_.steps(1, 3)
        self.run_.live(True)
        p = subprocess.Popen([ROLLCALL, "export", "wandb", self.tmp.name, "--follow"], env=self.env, cwd=cores, preexec_fn=unlimited,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.processes.append(p)
        self.until(lambda: self.n_rows() == 3)
        p.send_signal(signal.SIGABRT)
        p.wait(60)
        self.assertEqual(p.returncode, -signal.SIGABRT)
        self.assertEqual(glob.glob(cores + "/core*"), [])

    def test_console_lines_are_objects_where_the_server_has_them(self):
        self.server.features = ["STRUCTURED_CONSOLE_LOGS"]
        os.mkdir(os.path.join(self.tmp.name, "logs"))
        with open(os.path.join(self.tmp.name, "logs/controller.log"), "w") as f:
            f.write("2026-01-01T00:00:00.000 INFO  controller: one\n2026-01-01T00:00:00.000 ERROR controller: two\n")
        with open(os.path.join(self.tmp.name, "run.yaml"), "a") as f:
            f.write("wandb_console: true\n")
        p = self.start()
        out, err = p.communicate(timeout=120)
        self.assertEqual(p.returncode, 0, err)
        lines = [json.loads(x) for x in self.sent().lines("output.log")]
        self.assertEqual([(x.get("level"), x["content"].split()[-1]) for x in lines], [(None, "one"), ("error", "two")])
        self.assertRegex(lines[0]["ts"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}$")

    def test_samples_of_several_nodes_carry_a_label_each_and_only_when_asked_for(self):
        self.run_.sample("head", {"gpu/0/util_percent": 50.0, "gpu/0/run_mem_bytes": 1e9, "host/run_mem_bytes": 2e6})
        self.run_.sample("node7", {"gpu/0/util_percent": 60.0, "gpu/0/mem_total_bytes": 1.0})
        self.run_.sample("head", {"gpu/0/util_percent": math.nan})
        self.run_.event("state", "over, whatever the words", state="finished")
        p = self.start()
        p.communicate(timeout=120)
        self.assertNotIn("wandb-events.jsonl", self.sent().files)
        with open(os.path.join(self.tmp.name, "run.yaml"), "a") as f:
            f.write("wandb_host: true\n")
        self.sent().complete = False
        self.server.faults = [{"drop": "after"}]
        p = self.start()
        out, err = p.communicate(timeout=120)
        self.assertEqual(p.returncode, 0, err)
        lines = [json.loads(x) for x in self.sent().lines("wandb-events.jsonl")]
        plain = [{k: v for k, v in x.items() if k.startswith("system.")} for x in lines]
        self.assertEqual(plain, [{"system.gpu.0.gpu": 50, "system.gpu.process.0.gpu": 50, "system.proc.memory.rssMB": 2},
                                 {"system.gpu.0.gpu/l:node7": 60}, {}])

    def test_the_reader_below_reads_what_the_real_client_accepts(self):
        golden = bytes.fromhex(
            "3a572642e1be0089410e841200010801aa010d0a0b0a01741206302e37302e30"
            "39d3de5b2f000108028a01240a08676f6c64303030311a0170220c0a0a0a026c"
            "72820103302e358a01060880f2d6ca06820103220173c4c0c6ae4c0001080312"
            "480a0c0a046c6f7373820103312e350a0b0a055f73746570820101300a0e0a08"
            "5f72756e74696d65820101320a190a0a5f74696d657374616d7082010a313736"
            "373232353630321200db23d93712000108041a0e0a0c0a046c6f737382010331"
            "2e3527a70cb20d000108059201021002820103220173")
        self.assertEqual([r[1][0] for r in read_wandb(golden)], [21, 17, 2, 3, 18])

    def test_an_offline_directory_holds_records_in_whole_chunks(self):
        self.run_.steps(1, 3000)
        self.run_.event("alert", "é" * 300)
        self.run_.event("state", "over, whatever the words", state="finished")
        p = self.start("--offline")
        out, err = p.communicate(timeout=120)
        self.assertEqual(p.returncode, 0, err)
        name = os.path.basename(out.strip())
        self.assertTrue(re.fullmatch(r"offline-run-\d{8}_\d{6}-[a-z0-9]{8}", name), name)
        data = open(glob.glob(os.path.join(out.strip(), "run-*.wandb"))[0], "rb").read()
        records = read_wandb(data)
        kinds = [r[1][0] for r in records]
        self.assertEqual([r[0] for r in records], list(range(1, len(records) + 1)))
        self.assertEqual((kinds[0], kinds[1], kinds[-1]), (21, 17, 18))    # header, run, …, exit
        self.assertEqual((kinds.count(2), kinds.count(10)), (3001, 1))    # the steps, and the row of an alert
        rows = []
        for num, (kind, body) in records:
            if kind == 10:
                self.assertEqual([v.decode() for k, v in fields(body)[:2]], ["é" * 31, "é" * 300])
            if kind == 2:
                items = [fields(v) for k, v in fields(body) if k == 1]
                rows.append({dict(i)[1].decode(): json.loads(dict(i)[16]) for i in items})
        steps = [r["trainer/step"] for r in rows if "train/loss" in r]
        self.assertEqual(steps, list(range(1, 3001)))
        self.assertEqual([r["_step"] for r in rows], list(range(len(rows))))


def read_wandb(data):
    """[(num, (field, body))] of a .wandb file; checks header, chunk sums and that records are whole."""
    import zlib
    assert data[:7] == bytes.fromhex("3a572642e1be00")
    at, parts, out = 7, None, []
    while at < len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        crc, n, kind = struct.unpack("<IHB", data[at:at + 7])
        body = data[at + 7:at + 7 + n]
        assert zlib.crc32(data[at + 6:at + 7 + n]) == crc, f"chunk at {at}"
        assert at // 32768 == (at + 6 + n) // 32768
        if kind in (1, 2):
            assert parts is None
            parts = b""
        parts += body
        if kind in (1, 4):
            f = fields(parts)
            assert f[0][0] == 1
            out.append((f[0][1], f[1]))
            parts = None
        at += 7 + n
    assert parts is None
    return out


unittest.main()
