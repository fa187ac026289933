"""The exporters of a live run, as its run file asks for them: all steps arrive once, also when an exporter is killed on the way.

tags: limit=300
"""
import hashlib, json, os, signal, subprocess, sys, tempfile, time, unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from fake_wandb import FakeWandb
from run_tools import LIMIT, ROLLCALL, Run, Task

KEY = "k" * 40


class LiveExport(unittest.TestCase):
    def until(self, what):
        end = time.monotonic() + LIMIT
        while not what():
            self.assertLess(time.monotonic(), end, "not in time")
            time.sleep(0.02)

    def tables_are_what_the_run_kept(self, server, sent, run):
        rows = [r for r in sent.history() if "rollouts" in r]
        versions = [r["trainer/step"] for r in rows]
        self.assertEqual(versions[0], 0)
        self.assertGreaterEqual(len(versions), 3, versions)
        self.assertTrue(all(b - a >= 20 for a, b in zip(versions, versions[1:])), versions)
        out = subprocess.run([ROLLCALL, "rollouts", run.dir], capture_output=True, timeout=LIMIT, check=True).stdout
        kept = {(r["version"], r["item"], r["sample"]): r for r in map(json.loads, out.splitlines())}
        for row in rows:
            value = row["rollouts"]
            data = next(body for path, body in server.storage.items() if path.endswith(value["path"]))
            self.assertEqual(value["_type"], "table-file")
            self.assertEqual((value["sha256"], value["size"]), (hashlib.sha256(data).hexdigest(), len(data)))
            self.assertIn(value["path"], sent.uploaded)
            table = json.loads(data)
            self.assertEqual((value["ncols"], value["nrows"]), (len(table["columns"]), len(table["data"])))
            for line in table["data"]:
                cell = dict(zip(table["columns"], line))
                self.assertEqual(cell["step"], row["trainer/step"])
                mine = kept[cell["step"], cell["item"], cell["sample"]]
                self.assertEqual((cell["prompt"], cell["completion"], cell["tokens"], cell["finish"], cell["reason"]),
                                 (mine["prompt"], mine["text"], mine["n_tok"], mine["finish_reason"], mine["reason"]))
                self.assertAlmostEqual(cell["reward"], mine["reward"], 8)    # rollouts prints nine digits
        self.assertEqual(sent.summary()["rollouts"], rows[-1]["rollouts"])

    def test_wandb_and_tensorboard_follow_a_run_and_survive_a_kill(self):
        server, task = FakeWandb(KEY), Task()
        self.addCleanup(task.close)
        self.addCleanup(server.close)
        os.environ.update(WANDB_API_KEY=KEY, WANDB_BASE_URL=server.url, WANDB_X_FILE_STREAM_TRANSMIT_INTERVAL="0.05",
                          WANDB_X_FILE_STREAM_RETRY_WAIT_MIN_SECONDS="0.05")
        run = Run(task, "live", task.run_file(wandb="online", tensorboard=True, max_steps=60, project="proj",
                                             wandb_completions=True, wandb_console=True, rollout_log_interval=20))
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
        self.tables_are_what_the_run_kept(server, stored(), run)
        self.assertTrue(any("controller" in line for line in stored().lines("output.log")))
        events = os.path.join(run.dir, "export/tensorboard/events.out.tfevents.rollcall")

        def written():
            with open(events, "rb") as f:
                return f.read().count(b"train/loss")
        self.until(lambda: os.path.exists(events) and written() >= 60)
        self.assertEqual(written(), 60)

    def test_a_dead_server_does_not_stop_the_run(self):
        task = Task()
        self.addCleanup(task.close)
        os.environ.update(WANDB_API_KEY=KEY, WANDB_BASE_URL="http://127.0.0.1:1", WANDB_FINISH_TIMEOUT="1",
                          WANDB_X_FILE_STREAM_RETRY_WAIT_MIN_SECONDS="0.05")
        run = Run(task, "dead", task.run_file(wandb="online", max_steps=3))
        self.addCleanup(run.kill)
        code, last = run.wait()
        self.assertEqual((code, last["event"], last["step"]), (0, "finished", 3), run.logs())
        self.assertIn("rollcall export wandb", run.logs())


unittest.main()
