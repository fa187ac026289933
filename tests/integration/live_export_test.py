"""The exporters of a live run, as its run file asks for them: all steps arrive once, also when an exporter is killed on the way.

tags: limit=300
"""
import glob, hashlib, http.server, json, os, re, signal, struct, subprocess, sys, tempfile, threading, time, unittest, unittest.mock

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from fake_wandb import FakeWandb
from protobuf_read import fields
from run_tools import Holds, LIMIT, ROLLCALL, Run, Task, written, built

KEY = "s3cretkeyOfTheLiveTest" + "0123456789" * 2


def to(url, finish_s=LIMIT):
    """The environment of a run that sends to the server there, and waits as long as the test does for the end of that."""
    return dict(WANDB_API_KEY=KEY, WANDB_BASE_URL=url, WANDB_X_FILE_STREAM_TRANSMIT_INTERVAL="0.05",
                WANDB_X_FILE_STREAM_RETRY_WAIT_MIN_SECONDS="0.05", WANDB_FINISH_TIMEOUT=str(finish_s))


class LiveExport(unittest.TestCase):
    def setUp(self):
        environment = unittest.mock.patch.dict(os.environ)    # a test's changes there stay its own
        environment.start()
        self.addCleanup(environment.stop)

    def until(self, what):
        end = time.monotonic() + LIMIT
        while not what():
            self.assertLess(time.monotonic(), end, "not in time")
            time.sleep(0.02)

    def tables_are_what_the_run_kept(self, rows, storage, uploaded, run):
        versions = [r["trainer/step"] for r in rows]
        self.assertEqual(versions[0], 0)
        self.assertGreaterEqual(len(versions), 3, versions)
        self.assertTrue(all(b - a >= 20 for a, b in zip(versions, versions[1:])), versions)
        out = subprocess.run([ROLLCALL, "rollouts", run.dir], capture_output=True, timeout=LIMIT, check=True).stdout
        kept = {(r["version"], r["item"], r["sample"]): r for r in map(json.loads, out.splitlines())}
        for row in rows:
            value = row["rollouts"]
            data = next(body for path, body in storage.items() if path.endswith(value["path"]))
            self.assertEqual(value["_type"], "table-file")
            self.assertEqual((value["sha256"], value["size"]), (hashlib.sha256(data).hexdigest(), len(data)))
            self.assertIn(value["path"], uploaded)
            table = json.loads(data)
            self.assertEqual((value["ncols"], value["nrows"]), (len(table["columns"]), len(table["data"])))
            for line in table["data"]:
                cell = dict(zip(table["columns"], line))
                self.assertEqual(cell["step"], row["trainer/step"])
                mine = kept[cell["step"], cell["item"], cell["sample"]]
                self.assertEqual((cell["prompt"], cell["completion"], cell["tokens"], cell["finish"], cell["reason"]),
                                 (mine["prompt"], mine["text"], mine["n_tok"], mine["finish_reason"], mine["reason"]))
                self.assertAlmostEqual(cell["reward"], mine["reward"], 8)    # rollouts prints nine digits

    def test_wandb_and_tensorboard_follow_a_run_and_survive_a_kill(self):
        server, task = FakeWandb(KEY), Task()
        self.addCleanup(task.close)
        self.addCleanup(server.close)
        server.faults = [{"path": "storage", "status": 503, "headers": {"Retry-After": "0.05"}}, {"path": "storage", "drop": "before"},
                         {"path": "storage", "drop": "after"}]
        run = Run(task, "live", task.run_file(wandb="online", tensorboard=True, max_steps=60, project="proj",
                                             wandb_completions=True, wandb_console=True, rollout_log_interval=20), env=to(server.url))
        self.addCleanup(run.kill)
        stored = lambda: list(server.runs.values())[0] if server.runs else None
        self.until(lambda: stored() and len(stored().history()) > 3)
        pids = [f for f in os.listdir(os.path.join(run.dir, "sock")) if "wandb" in f]
        with open(os.path.join(run.dir, "sock", pids[0])) as f:
            os.kill(int(f.read()), signal.SIGKILL)
        code, last = run.wait()
        self.assertEqual(code, 0, run.logs())
        self.until(lambda: stored().complete)
        server.check(stored().name)
        self.assertEqual([r["trainer/step"] for r in stored().history() if "train/loss" in r], list(range(1, 61)))
        self.assertEqual(stored().exitcode, 0)
        self.assertEqual(server.faults, [])
        rows = [r for r in stored().history() if "rollouts" in r]
        self.tables_are_what_the_run_kept(rows, server.storage, stored().uploaded, run)
        self.assertEqual(stored().summary()["rollouts"], rows[-1]["rollouts"])
        self.assertTrue(any("controller" in line for line in stored().lines("output.log")))
        events = os.path.join(run.dir, "export/tensorboard/events.out.tfevents.rollcall")

        def written():
            with open(events, "rb") as f:
                return f.read().count(b"train/loss")
        self.until(lambda: os.path.exists(events) and written() >= 60)
        self.assertEqual(written(), 60)

    def key_is_held_only_where_no_core_file_looks(self, run):
        """In every process of the run: the key is in no memory that a core file would hold. The exporter makes none."""
        seen = set()
        for name, pid in run.processes().items():
            with open(f"/proc/{pid}/environ", "rb") as f:
                self.assertNotIn(KEY.encode(), f.read(), name)
            with open(f"/proc/{pid}/smaps") as f:
                parts = re.split(r"(?m)^(?=[0-9a-f]+-[0-9a-f]+ r)", f.read())
            with open(f"/proc/{pid}/mem", "rb", buffering=0) as mem:
                for part in parts:
                    m = re.match(r"([0-9a-f]+)-([0-9a-f]+) r", part)
                    flags = re.search(r"VmFlags:(.*)", part)
                    if not m or "[vvar" in part or "[vsyscall" in part or not flags:
                        continue
                    first, end = int(m.group(1), 16), int(m.group(2), 16)
                    try:
                        mem.seek(first)
                        data = mem.read(min(end - first, 64 << 20))
                    except (OSError, OverflowError):
                        continue
                    if KEY.encode() in data:
                        self.assertIn(" dd", flags.group(1), f"{name}: {part.splitlines()[0]}")
                        seen.add(name)
        return seen

    def test_stop_on_the_page_stops_the_run_and_a_refused_file_only_itself(self):
        server, task = FakeWandb(KEY), Task()
        self.addCleanup(task.close)
        self.addCleanup(server.close)
        server.faults = [{"path": "storage", "status": 403}]
        run = Run(task, "stopped", task.run_file(wandb="online", max_steps=1000000, save_interval=0, wandb_completions=True,
                                                rollout_log_interval=5), env=to(server.url))
        self.addCleanup(run.kill)
        stored = lambda: list(server.runs.values())[0] if server.runs else None
        self.until(lambda: stored() and len([r for r in stored().history() if "rollouts" in r]) >= 2)
        try:
            seen = self.key_is_held_only_where_no_core_file_looks(run)
        except PermissionError:    # some machines let nobody but a debugger's child be looked into
            seen = {"agent"}
        self.assertLessEqual(seen, {"agent", "keeper"})
        self.assertIn("agent", seen)    # it must pass the key on: so the search does find keys
        self.assertEqual(run.ctl("set", "learning_rate=0.0005").returncode, 0)
        self.until(lambda: stored().config["learning_rate"] == {"value": 0.0005})
        server.stopped = True
        code, last = run.wait()
        self.assertEqual((code, last["event"]), (3, "stopped"), run.logs())
        self.until(lambda: stored().complete)
        server.check(stored().name)
        self.assertEqual(stored().exitcode, 3)
        self.assertEqual(len([r for r in stored().history() if "run/changed" in r]), 1)
        tables = [r["trainer/step"] for r in stored().history() if "rollouts" in r]
        self.assertNotIn(0, tables)    # the first one was refused: it is left out, and not tried forever
        self.assertIn("a table of rollouts is left out: wandb does not accept the file", run.logs(whole=True))
        self.assertEqual(len(server.storage), len(tables))

    def test_an_offline_run_holds_all_that_was_asked_for(self):
        task = Task()
        self.addCleanup(task.close)
        holds = Holds(task.path("holds"))
        holds.arm("worker cpu:0", "trained")
        run = Run(task, "offline", task.run_file(wandb="offline", max_steps=60, project="proj", wandb_completions=True, wandb_console=True,
                                                wandb_host=True, rollout_log_interval=20), env={"RC_TEST_HOLD": holds.dir})
        self.addCleanup(run.kill)
        # Quick hosts make 60 steps before the first figures of the host are in.
        self.until(lambda: holds.held("worker cpu:0", "trained") and run.n_sample() > 0)
        holds.release("worker cpu:0", "trained", holds.held("worker cpu:0", "trained"))
        self.assertEqual(run.wait()[0], 0, run.logs())
        made = lambda: glob.glob(os.path.join(run.dir, "export/wandb/offline-run-*/run-*.wandb"))
        self.until(lambda: made() and records(made()[0])[-1][0] == EXIT)
        content = records(made()[0])
        rows, files, stats, console = [], [], [], []
        for kind, body in content:
            if kind == HISTORY:
                rows.append(items(body, 1))
            elif kind == FILES:
                files += [dict(fields(v))[1].decode() for k, v in fields(body) if k == 1]
            elif kind == STATS:
                stats.append(items(body, 3))
            elif kind == OUTPUT:
                console.append(dict(fields(body)))
        self.assertEqual([r["trainer/step"] for r in rows if "train/loss" in r], list(range(1, 61)))
        self.assertEqual([r["_step"] for r in rows], list(range(len(rows))))
        folder = os.path.join(os.path.dirname(made()[0]), "files")
        storage = {}
        for name in files:
            with open(os.path.join(folder, name), "rb") as f:
                storage[name] = f.read()
        self.tables_are_what_the_run_kept([r for r in rows if "rollouts" in r], storage, files, run)
        self.assertTrue(stats and all(s["memory_percent"] > 0 for s in stats), stats)
        self.assertTrue(any(b"controller" in c[3] and c[3].endswith(b"\n") for c in console), console[:3])

    def lives(self, pid):
        try:
            with open(f"/proc/{pid}/cmdline") as f:
                return f.read() != ""    # a dead process that has not been reaped has none
        except OSError:
            return False

    def test_the_end_of_a_run_shows_how_far_its_exporter_is_and_does_not_wait_for_ever(self):
        server, task = FakeWandb(KEY), Task()
        self.addCleanup(task.close)
        self.addCleanup(server.close)
        begin, end = threading.Event(), threading.Event()
        self.addCleanup(begin.set)
        self.addCleanup(end.set)
        clock = task.path("clock")
        with open(clock, "wb") as f:
            f.write(struct.pack("<d", 0))
        env = dict(to(server.url, finish_s=80), FAKE_CLOCK=clock,
                   LD_PRELOAD=built("libfake_clock.so"))
        # nothing is taken before the run has ended; then all of it, and after that nobody is told that it was the last
        server.faults = [{"path": "graphql", "hold": begin}, {"complete": True, "hold": end}]
        run = Run(task, "waiting", task.run_file(wandb="online", max_steps=4, project="proj"), env=env)
        self.addCleanup(run.kill)
        self.until(lambda: "waiting for 'export wandb' to end\n" in written(run.errors))
        begin.set()
        self.until(lambda: re.search(r"(?m)^wandb: sending: (\d+) of \1 rows sent$", written(run.errors)))
        self.assertIsNone(run.process.poll())
        with open(os.path.join(run.dir, "sock/export-wandb.pid")) as f:
            exporter = int(f.read())
        os.kill(exporter, signal.SIGSTOP)    # now it cannot keep its own limit
        with open(clock, "r+b") as f:
            f.write(struct.pack("<d", 100))
        code, last = run.wait()
        self.assertEqual((code, last["event"]), (0, "finished"), run.logs())
        self.assertIn("no longer waiting for 'export wandb', which continues by itself\n", written(run.errors))
        self.assertTrue(self.lives(exporter))
        end.set()
        os.kill(exporter, signal.SIGCONT)
        self.until(lambda: not self.lives(exporter))

    def test_alerts_and_the_end_reach_webhooks_once_and_their_address_stays_secret(self):
        class Hook(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with self.server.lock:
                    self.server.tries += 1
                    fails = self.server.tries == 1    # the first message is asked for again
                    if not fails:
                        self.server.came.append((self.path, body))
                answer = b"" if fails else b"x" * (5 << 20)    # more than is kept of other servers' answers
                self.send_response(500 if fails else 200)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *args):
                pass
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hook)
        server.came, server.tries, server.lock = [], 0, threading.Lock()
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        task = Task()
        self.addCleanup(task.close)
        for form in ("json", "slack"):
            with self.subTest(form):
                server.came.clear()
                server.tries = 0
                file = task.path("hook-" + form + ".url")
                with open(file, "w", encoding="utf-8") as f:
                    f.write("http://127.0.0.1:%d/s3cret/path\n" % server.server_address[1])
                run = Run(task, "hook-" + form, task.run_file(alert_webhook_file=file, alert_webhook_format=form, disk_alert_gib=1e8, max_steps=2))    # no disk is so large
                self.addCleanup(run.kill)
                code, last = run.wait()
                self.assertEqual((code, last["event"]), (0, "finished"), run.logs())
                self.assertTrue(all(path == "/s3cret/path" for path, _ in server.came))
                if form == "json":
                    self.assertTrue(all(body["run"] == "hook-json" for _, body in server.came))
                    events = [e for _, body in server.came for e in body["events"]]
                    lines = [e["kind"] + ": " + e["text"] for e in events]
                    self.assertEqual(events[-1]["step"], 2)
                else:
                    lines = [line for _, body in server.came for line in body["text"].split("\n") if not line.startswith("rollcall hook-slack")]
                self.assertEqual(sum("GiB free" in line for line in lines), 1, lines)
                self.assertEqual(sum("finished" in line for line in lines), 1, lines)
                self.assertNotIn("s3cret", run.logs())

    def test_a_dead_server_does_not_stop_the_run(self):
        task = Task()
        self.addCleanup(task.close)
        run = Run(task, "dead", task.run_file(wandb="online", max_steps=3), env=to("http://127.0.0.1:1", finish_s=1))
        self.addCleanup(run.kill)
        code, last = run.wait()
        self.assertEqual((code, last["event"], last["step"]), (0, "finished", 3), run.logs())
        self.assertIn("rollcall export wandb", run.logs())

    def test_a_refusal_is_reported_in_console_log_and_summary_and_training_goes_on(self):
        server, task = FakeWandb("x" * 40), Task()    # another key than ours
        self.addCleanup(task.close)
        self.addCleanup(server.close)
        run = Run(task, "refused", task.run_file(wandb="online", max_steps=1000000, save_interval=0), env=to(server.url))
        self.addCleanup(run.kill)
        told = lambda: [x for x in run.ctl("events").stdout.splitlines() if " alert " in x and "export wandb" in x]
        self.until(told)    # what the console shows as an alarm
        self.assertEqual(len(told()), 1)
        self.assertIn("HTTP 401", told()[0])
        step = run.step()
        run.wait_step(step + 3)
        self.assertEqual(run.ctl("stop").returncode, 0)
        code, last = run.wait()
        self.assertEqual((code, last["event"]), (3, "stopped"), run.logs())
        self.assertRegex(written(run.errors), "(?m)^wandb: failed: wandb refuses .*HTTP 401.*rollcall export wandb")


EXIT, HISTORY, FILES, STATS, OUTPUT = 18, 2, 6, 7, 13


def items(body, number):
    """The items of a record as a row: a nested key makes an object."""
    row = {}
    for k, v in fields(body):
        if k != number:
            continue
        item = fields(v)
        path = [x.decode() for n, x in item if n in (1, 2)]
        at = row
        for name in path[:-1]:
            at = at.setdefault(name, {})
        at[path[-1]] = json.loads(dict(item)[16])
    return row


def records(path):
    """[(field, body)] of a .wandb file's whole records (wandb_test.py checks the framing)."""
    with open(path, "rb") as f:
        data = f.read()
    at, parts, out = 7, b"", []
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        n, kind = data[at + 4] | data[at + 5] << 8, data[at + 6]
        parts += data[at + 7:at + 7 + n]
        at += 7 + n
        if kind in (1, 4):
            out.append(next((k, v) for k, v in fields(parts) if k > 1))
            parts = b""
    return out


unittest.main()
