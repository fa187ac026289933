"""Runs that Slurm starts; called by slurm.sh, which has made a cluster of four nodes n1 to n4 on this machine."""
import json
import os
import signal
import subprocess
import sys
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "integration"))
from run_tools import LIMIT, ROLLCALL, Run, RunCase    # noqa: E402

SCRATCH = os.environ["SLURM_SCRATCH"]
STEPS = 40


def slurm(*args, check=True):
    done = subprocess.run(args, capture_output=True, text=True, timeout=60)
    if check and done.returncode != 0:
        raise AssertionError(f"{args}: {done.stderr}")
    return done.stdout.strip()


class Job(Run):
    """A run that a job trains: what a Run can be asked, it can too."""

    def __init__(self, task, name, run_file, extra=(), resume=False):
        self.dir = os.path.join(task.path("runs"), name)
        words = ["--resume", self.dir] if resume else [run_file, "--runs-dir", task.path("runs"), "--name", name]
        done = subprocess.run([ROLLCALL, "train", *words, *extra], capture_output=True, text=True, timeout=LIMIT)
        self.said, self.why, self.code = done.stdout, done.stderr, done.returncode
        self.job = done.stdout.split()[1] if done.returncode == 0 else None

    def logs(self, whole=False):
        out = [self.why, slurm("squeue"), slurm("sinfo")]
        folders = [os.path.join(self.dir, "launch"), os.path.join(self.dir, "logs")]
        for folder in folders:
            for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else []:
                with open(os.path.join(folder, name), errors="replace") as f:
                    out.append(f"--- {name}\n" + f.read()[-3000:])
        return "\n".join(out)

    def kill(self):
        if self.job:
            slurm("scancel", self.job, check=False)

    def field(self, name):
        text = slurm("scontrol", "show", "job", self.job)
        return next((word.split("=", 1)[1] for word in text.split() if word.startswith(name + "=")), "")

    def state(self):
        return self.field("JobState")


class Slurm(RunCase):
    def job(self, *words, accepted=True, **settings):
        type(self).n += 1
        name = f"job-{self.n}"
        job = Job(self.task, name, self.task.run_file(f"{name}.yaml", **settings), ["--max-steps", str(STEPS), "--slurm", *words])
        self.addCleanup(job.kill)
        if accepted:
            self.assertEqual(job.code, 0, job.why)
        return job

    def plain(self, **settings):
        type(self).n += 1
        run = Run(self.task, f"plain-{self.n}", self.task.run_file(f"plain-{self.n}.yaml", **settings), ["--max-steps", str(STEPS)])
        self.addCleanup(run.kill)
        code, last = run.wait()
        self.assertEqual((code, last.get("event")), (0, "finished"), run.logs())
        return run.weights(STEPS), run.ledger()

    def ended(self, job, state="COMPLETED"):
        over = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")
        self.until("the job has ended", lambda: job.state() in over, job)
        self.assertEqual(job.state(), state, job.logs())

    def nodes(self, job):
        """The nodes whose workers sample for the run."""
        done = job.ctl("status", "--json")
        if done.returncode != 0:
            return set()
        return {p["node"] for p in json.loads(done.stdout)["processes"] if p.get("node") and p["name"].endswith("worker cpu:0")}

    def of_node(self, node):
        """Every process that Slurm has on a node: slurmd, each step's slurmstepd, and the tasks with all their descendants."""
        out = set()
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/environ", "rb") as f:
                    task = f"SLURMD_NODENAME={node}".encode() in f.read().split(b"\0")
                with open(f"/proc/{pid}/cmdline", "rb") as f:
                    words = f.read().split(b"\0")
                with open(f"/proc/{pid}/stat") as f:
                    state, parent = f.read().rsplit(")", 1)[1].split()[:2]
                with open(f"/proc/{parent}/comm") as f:
                    parent_name = f.read().strip()
            except OSError:
                continue
            if state == "Z":
                continue
            if task:
                out.add(int(pid))
                if parent_name == "slurmstepd":
                    out.add(int(parent))
            elif words[:1] == [b"slurmd"] and words[-2] == node.encode():
                out.add(int(pid))
        return out

    def node_dies(self, node):
        """Everything on it at once, as when the power goes."""
        dead = self.of_node(node)
        while left := self.of_node(node):
            dead |= left
            for pid in sorted(left):
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
        self.addCleanup(self.node_returns, node)
        return dead

    def node_returns(self, node):
        with open(os.path.join(SCRATCH, "log", f"slurmd.out.{node}"), "a") as log:
            subprocess.Popen(["slurmd", "-D", "-N", node], stdout=log, stderr=log, start_new_session=True)
        self.until(f"{node} is back", lambda: slurm("sinfo", "-h", "-n", node, "-o", "%t") in ("idle", "mix", "alloc"))

    def again(self, job):
        """Wait until a job has been requeued, and let it start at once: Slurm waits two minutes by itself."""
        self.until("the job is requeued", lambda: job.field("Restarts") == "1", job)
        self.until("it may start at once", lambda: subprocess.run(["scontrol", "update", f"jobid={job.job}", "StartTime=now"],
                                                                  capture_output=True, timeout=60).returncode == 0, job)

    slow = dict(inference_microbatch_size=2, slow_s=2, heartbeat_s=0.2, max_new_tokens=24)
    long = dict(slow, max_new_tokens=64, num_generations=8, inference_batch_size=16, train_batch_size=16, train_minibatch_size=16)

    def test_a_job_of_three_nodes_ends_with_the_bytes_of_a_run_on_one(self):
        plain = self.plain(**self.slow)
        job = self.job("nodes=3", "wait=120", **self.slow)
        self.ended(job)
        self.assertEqual(plain, (job.weights(STEPS), job.ledger()), job.logs())

    def test_a_node_that_dies_is_done_without_and_the_bytes_are_the_same(self):
        plain = self.plain(**self.long)
        job = self.job("nodes=3", "wait=120", **self.long)
        self.until("both nodes sample", lambda: len(self.nodes(job)) == 2, job)
        victim = sorted(self.nodes(job))[-1]
        self.assertGreater(len(self.node_dies(victim)), 5)
        step = job.step()
        self.assertLess(step, STEPS)
        self.ended(job)
        self.assertEqual(plain, (job.weights(STEPS), job.ledger()), job.logs())

    def test_a_head_that_dies_is_requeued_and_goes_on_from_its_checkpoint(self):
        plain = self.plain(**self.long)
        job = self.job("nodes=2", "wait=120", "lost=6", **self.long)
        self.until("a checkpoint is there", lambda: job.step() >= 8 and self.nodes(job), job)
        head = job.field("BatchHost")
        self.assertGreater(len(self.node_dies(head)), 8)
        self.assertLess(job.step(), STEPS)
        self.again(job)
        self.ended(job)
        self.assertNotEqual(job.field("BatchHost"), head)
        self.assertEqual(plain, (job.weights(STEPS), job.ledger()), job.logs())

    def test_before_its_time_is_over_a_job_saves_and_goes_on_in_another_allocation(self):
        plain = self.plain(**self.long)
        job = self.job("nodes=2", "wait=120", "time=10", **self.long)
        self.until("it trains", lambda: job.step() >= 5 and self.nodes(job), job)
        slurm("scancel", "--signal=USR1", "--batch", job.job)
        self.again(job)
        step = job.step()
        self.assertTrue(5 <= step < STEPS, step)
        self.assertTrue(os.path.isdir(os.path.join(job.dir, f"checkpoints/step-{step:06d}")), job.logs())    # nothing is done twice
        self.ended(job)
        self.assertEqual(plain, (job.weights(STEPS), job.ledger()), job.logs())

    def test_a_run_that_was_stopped_goes_on_in_another_job(self):
        plain = self.plain(**self.long)
        job = self.job("nodes=2", "wait=120", **self.long)
        self.until("it trains", lambda: job.step() >= 5 and self.nodes(job), job)
        done = job.ctl("stop")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.until("the job has ended", lambda: job.state() in ("COMPLETED", "FAILED"), job)
        self.assertLess(job.step(), STEPS)
        again = Job(self.task, os.path.basename(job.dir), None, ["--slurm", "nodes=3", "wait=120"], resume=True)
        self.addCleanup(again.kill)
        self.assertEqual(again.code, 0, again.why)
        self.assertNotEqual(again.job, job.job)
        self.until("both nodes sample", lambda: len(self.nodes(again)) == 2 or again.state() == "COMPLETED", again)
        self.ended(again)
        self.assertEqual(plain, (again.weights(STEPS), again.ledger()), again.logs())

    def test_inside_an_allocation_the_nodes_start_at_once_and_the_run_stays_in_the_foreground(self):
        plain = self.plain(**self.slow)
        type(self).n += 1
        name = f"alloc-{self.n}"
        run_dir = os.path.join(self.task.path("runs"), name)
        done = subprocess.run(["salloc", "-N", "2", ROLLCALL, "train", self.task.run_file(f"{name}.yaml", **self.slow), "--runs-dir",
                               self.task.path("runs"), "--name", name, "--max-steps", str(STEPS), "--slurm", "nodes=2", "wait=120"],
                              capture_output=True, text=True, timeout=LIMIT)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertRegex(done.stderr, r"inside allocation \d+: the nodes start now")
        run = Run.__new__(Run)
        run.dir = run_dir
        self.assertEqual(plain, (run.weights(STEPS), run.ledger()), done.stderr)
        self.assertEqual(slurm("squeue", "-h"), "")

    def test_a_job_that_slurm_refuses_leaves_nothing_and_says_what_to_change(self):
        job = self.job("nodes=2", "partition=nowhere", accepted=False)
        self.assertEqual(job.code, 1)
        self.assertIn("Slurm has not accepted the job", job.why)
        self.assertIn("change nodes=", job.why)
        self.assertFalse(os.path.exists(job.dir))


if __name__ == "__main__":
    unittest.main()
