"""The exporters of a live run, as its run file asks for them: all steps arrive once, also when an exporter is killed on the way.

tags: limit=300
"""
import json, os, signal, sys, tempfile, time, unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from fake_wandb import FakeWandb
from run_tools import LIMIT, Run, Task

KEY = "k" * 40


class LiveExport(unittest.TestCase):
    def until(self, what):
        end = time.monotonic() + LIMIT
        while not what():
            self.assertLess(time.monotonic(), end, "not in time")
            time.sleep(0.02)

    def test_wandb_and_tensorboard_follow_a_run_and_survive_a_kill(self):
        server, task = FakeWandb(KEY), Task()
        self.addCleanup(task.close)
        self.addCleanup(server.close)
        os.environ.update(WANDB_API_KEY=KEY, WANDB_BASE_URL=server.url, WANDB_X_FILE_STREAM_TRANSMIT_INTERVAL="0.05",
                          WANDB_X_FILE_STREAM_RETRY_WAIT_MIN_SECONDS="0.05")
        run = Run(task, "live", task.run_file(wandb="online", tensorboard=True, max_steps=60, project="proj"))
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
