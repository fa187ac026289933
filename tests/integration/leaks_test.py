"""tags: limit=1800

Threads, descriptors, memory and names of every process stay flat over many steps with kills, and the end leaves nothing.

LONG=1: 2,000 steps and a kill every 100; otherwise 150 steps and a kill every 20."""
import os
import signal
import time
import unittest
from run_tools import LIMIT, Holds, Run, Task

LONG = bool(os.environ.get("LONG"))
STEPS = 2000 if LONG else 150
KILL_EVERY = 100 if LONG else 20
LOOK_EVERY = 50 if LONG else 5
STEP = ("worker cpu:0", "trained")    # where the run is held between two steps
ASAN = os.environ.get("RC_VARIANT") == "asan"
# Growth allowed from the first to the second look. Memory: allocator's caches settle slowly; a leak of 1 KiB a step is seen.
GROWN_KIB = 1024
NAMES = {"agent.pid", "controller.pid", "ended", "ending", "failure.spare", "keeper.pid", "lives", "scorer.pid", "worker-cpu-0.pid", "worker-cpu-1.pid"}


def look(pid):
    """(threads, descriptors, KiB of private memory) of a process."""
    with open(f"/proc/{pid}/status") as f:
        fields = dict(line.split(":", 1) for line in f)
    return int(fields["Threads"]), len(os.listdir(f"/proc/{pid}/fd")), int(fields["RssAnon"].split()[0])


def shared_names():
    return set(os.listdir("/dev/shm"))


class Leaks(unittest.TestCase):
    def test_nothing_grows_over_many_steps_with_kills_and_the_end_leaves_nothing(self):
        task = Task()
        self.addCleanup(task.close)
        before = shared_names()
        holds = Holds(task.path("holds"))
        holds.arm(*STEP)
        run = Run(task, "long", task.run_file(num_inferencer=2, inference_batch_size=4, n_behind=1, save_interval=10, keep_checkpoints=2),
                  ["--max-steps", str(STEPS)], env=dict(RC_TEST_HOLD=holds.dir))
        self.addCleanup(run.kill)
        victims = ["worker cpu:1", "scorer", "controller", "keeper"]
        looks, mine = {}, set()
        for step in range(1, STEPS):    # one after the other, so that looks and kills come at known ones
            pid = self.until(run, lambda: holds.held(*STEP))
            if step % KILL_EVERY == 0 and step <= STEPS - KILL_EVERY:
                self.strike(run, victims[step // KILL_EVERY % len(victims)])
            if step % LOOK_EVERY == 0:
                mine |= {n for n in shared_names() - before if n.startswith("rollcall")}
                for name, who in run.processes().items():
                    try:
                        looks.setdefault((name, who), []).append((step, look(who)))
                    except (FileNotFoundError, ProcessLookupError, KeyError):
                        pass    # it has just ended
            if step < STEPS - 1:
                holds.arm(*STEP)
            holds.release(*STEP, pid)
        lived = {key: v[2:] for key, v in looks.items() if v[-1][0] - v[0][0] >= STEPS // 6}    # warm after two looks
        self.assertTrue({"agent", "worker cpu:0"} <= {name for name, _ in lived}, "nobody has lived long enough to tell")
        for (name, _), seen in lived.items():
            (step0, (threads0, fds0, kib0)), (step1, (threads1, fds1, kib1)) = seen[0], seen[-1]
            about = f"{name} from step {step0} to {step1}: threads {threads0} -> {threads1}, descriptors {fds0} -> {fds1}, {kib0} -> {kib1} KiB"
            print(about)
            self.assertLessEqual(threads1, threads0 + 1, about)
            self.assertLessEqual(fds1, fds0 + 4, about)    # sockets of a peer that is just coming back
            if not ASAN:
                self.assertLess(kib1 - kib0, GROWN_KIB, about)
        code, last = run.wait()
        self.assertEqual((code, last.get("event"), last.get("step")), (0, "finished", STEPS), run.logs())
        self.assertEqual(run.processes(), {})
        self.assertEqual(set(os.listdir(os.path.join(run.dir, "sock"))) - NAMES, set())
        self.assertEqual([d for d in os.listdir(os.path.join(run.dir, "checkpoints")) if not d.startswith(("step-", ".rollcall-run"))], [])
        self.assertEqual(mine & shared_names(), set())

    def until(self, run, condition):
        end = time.monotonic() + LIMIT
        while True:
            value = condition()
            if value:
                return value
            self.assertTrue(time.monotonic() < end and run.process.poll() is None, run.logs())
            time.sleep(0.002)

    def strike(self, run, name):
        """Kill a process and wait for its next life."""
        pid = self.until(run, lambda: run.processes().get(name))
        os.kill(pid, signal.SIGKILL)
        self.until(run, lambda: run.processes().get(name) not in (None, pid))


if __name__ == "__main__":
    unittest.main()
