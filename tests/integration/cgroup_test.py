"""A scored program's memory is limited by the kernel where rollcall is in a cgroup (v2) that was given to it. The test gives one away: it
makes a group below its own, or below one above that it may write to, as systemd does with Delegate=yes. Where it may not, it is
skipped; tests/unit/cgroup_test.c holds the handling of the files everywhere."""
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import hostile_test
from hostile_test import ROLLCALL, row

MOUNT = "/sys/fs/cgroup"


def read(*path):
    with open(os.path.join(*path)) as f:
        return f.read()


def group_remove(group):
    """Remove a group and those below it, once the last processes have left them."""
    for name, _, _ in os.walk(group, topdown=False):
        until = time.monotonic() + 60
        while os.path.exists(name):
            try:
                os.rmdir(name)
            except OSError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.05)


def group_give():
    """A new group whose leaf a process can be moved into, with the memory controller; or why there is none."""
    own = [line[3:].strip() for line in read("/proc/self/cgroup").splitlines() if line.startswith("0::")]
    if not own or not os.path.exists(os.path.join(MOUNT, "cgroup.controllers")):
        return None, "cgroup v2 is not what is mounted at " + MOUNT
    place = os.path.normpath(MOUNT + own[0])
    why = ""
    while place.startswith(MOUNT):
        group = os.path.join(place, f"rollcall-test-{os.getpid()}")
        try:
            if "memory" not in read(place, "cgroup.controllers").split():
                raise OSError(f"'{place}' has no memory controller")
            if "memory" not in read(place, "cgroup.subtree_control").split():
                with open(os.path.join(place, "cgroup.subtree_control"), "w") as f:
                    f.write("+memory")
            os.makedirs(os.path.join(group, "leaf"))
            trial = subprocess.Popen(["sleep", "60"])
            try:
                with open(os.path.join(group, "leaf", "cgroup.procs"), "w") as f:
                    f.write(str(trial.pid))
            finally:
                trial.kill()
                trial.wait()
            return group, ""
        except OSError as e:
            why = why or str(e)
            if os.path.isdir(group):
                group_remove(group)
        place = os.path.dirname(place)
    return None, why


class Delegated(unittest.TestCase):
    def setUp(self):
        self.group, _ = group_give()
        self.addCleanup(group_remove, self.group)

    def start(self, *command, **args):
        procs = os.path.join(self.group, "leaf", "cgroup.procs")

        def move():
            with open(procs, "w") as f:
                f.write(str(os.getpid()))
        return subprocess.Popen(command, preexec_fn=move, text=True, **args)

    def score(self, *rows):
        with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as f:
            f.writelines(json.dumps(r) + "\n" for r in rows)
            f.flush()
            p = self.start(ROLLCALL, "score", "--reward-type", "code", "--program-timeout", "60", "-i", f.name, stdout=subprocess.PIPE,
                           stderr=subprocess.PIPE)
            out, said = p.communicate(timeout=600)
        self.assertEqual(len(out.splitlines()), len(rows), said)
        return [json.loads(line)["rule"] for line in out.splitlines()]

    def sets(self):
        return [os.path.join(at, d) for at, below, _ in os.walk(self.group) for d in below if d.startswith("rollcall-sandboxes-")]

    def test_doctor_says_that_cgroups_limit_the_memory(self):
        p = self.start(ROLLCALL, "doctor", stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.assertIn("the sandbox of code rewards works, its memory limited by cgroups", p.communicate(timeout=600)[0])
        self.assertEqual(self.sets(), [])

    def test_shared_memory_is_allowed_and_counted_also_when_no_process_has_it_mapped(self):
        some = "import mmap\nm = mmap.mmap(-1, 1 << 20)\nm[:5] = b'hello'\nprint(int(input()) * 2)"
        forgotten = ("import mmap, sys\nheld = []\nfor _ in range(64):\n    m = mmap.mmap(-1, 256 << 20)\n    for at in range(0, 256 << 20, 4096):\n"
                     "        m[at] = 1\n    m.madvise(mmap.MADV_DONTNEED)\n    held.append(m)\nprint(10)")
        self.assertEqual(self.score(row(some, output="10"), row(forgotten, output="10"), row(some, output="10")),
                         ["code: all 1 tests pass", "code: memory limit in test 1 of 1", "code: all 1 tests pass"])
        self.assertEqual(self.sets(), [])

    def test_all_processes_of_a_program_count_together(self):
        hogs = ("import os, time\nfor _ in range(12):\n    if os.fork() == 0:\n        held = bytearray(os.urandom(1 << 20) * 128)\n"
                "        time.sleep(50)\n        os._exit(0)\nfor _ in range(12):\n    os.wait()\nprint(10)")
        self.assertEqual(self.score(row(hogs, output="10")), ["code: memory limit in test 1 of 1"])

    def test_the_groups_of_a_killed_scorer_are_removed_by_the_next(self):
        slow = row("import time\ntime.sleep(50)", output="10")
        with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as f:
            f.write(json.dumps(slow) + "\n")
            f.flush()
            p = self.start(ROLLCALL, "score", "--reward-type", "code", "--program-timeout", "60", "-i", f.name, stdout=subprocess.DEVNULL,
                           stderr=subprocess.DEVNULL)
            try:
                until = time.monotonic() + 60
                while not any("populated 1" in read(s, "cgroup.events") for s in self.sets()):
                    self.assertLess(time.monotonic(), until)
                    time.sleep(0.05)
            finally:
                p.send_signal(signal.SIGKILL)
                p.wait()
        left = self.sets()
        self.assertEqual(len(left), 1)
        until = time.monotonic() + 60    # its sandboxes end with it, when the kernel gets to it
        while "populated 1" in read(left[0], "cgroup.events"):
            self.assertLess(time.monotonic(), until)
            time.sleep(0.05)
        self.assertEqual(self.score(row("print(10)", output="10")), ["code: all 1 tests pass"])
        self.assertEqual(self.sets(), [])


if __name__ == "__main__":
    given, why = group_give()
    if not given:
        print(f"skipped: no delegated cgroup: {why}")
        sys.exit(77)
    group_remove(given)
    hostile_test.canary()
    unittest.main()
