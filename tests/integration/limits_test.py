"""What the machine lacks ends a run with a sentence that says what: whatever a limit is, and however little it leaves, each process
ends, by itself and not by a crash."""
import os
import resource
import shutil
import subprocess
import time
import unittest
from run_tools import ROLLCALL, Task, alive, commands

NOBODY = 65534
ENDS_S = 60    # a run that cannot start takes 6 s at most on two free cores
LONG = bool(os.environ.get("LONG"))


class Limits(unittest.TestCase):
    def setUp(self):
        self.task = Task(d=32, layers=1, heads=2, kv_heads=1, ff=32)
        self.addCleanup(self.task.close)
        self.program = self.task.path("rollcall")    # where another user may enter
        shutil.copy(ROLLCALL, self.program)
        self.file = self.task.run_file()
        if os.geteuid() == 0:    # for whom the number of processes has no limit
            for folder, _, files in os.walk(self.task.dir):
                for path in (folder, *(os.path.join(folder, f) for f in files)):
                    os.chown(path, NOBODY, NOBODY)

    def started(self):
        """Processes that count against this user's limit, threads each."""
        if os.geteuid() == 0:
            return 0
        return sum(len(os.listdir(f"/proc/{pid}/task")) for pid, _ in commands() if os.stat(f"/proc/{pid}").st_uid == os.geteuid())

    def pids_group(self):
        """A cgroup of our own that limits the number of processes, of either version, or why there is none."""
        with open("/proc/self/cgroup") as f:
            places = [line.split(":", 2) for line in f.read().splitlines()]
        why = "this process is in no cgroup"
        for _, controllers, path in places:
            if controllers and "pids" not in controllers.split(","):
                continue
            mount = os.path.join("/sys/fs/cgroup", *(["pids"] if controllers else []))
            group = os.path.normpath(f"{mount}/{path}/rollcall-limits-{os.getpid()}")
            try:
                os.mkdir(group)
                with open(os.path.join(group, "pids.max")) as f:
                    f.read()
                self.addCleanup(self.group_remove, group)
                return group, ""
            except OSError as e:
                why = str(e)
                if os.path.isdir(group):
                    os.rmdir(group)
        return None, why

    def group_remove(self, group):
        """The kernel lets go of a group when the last of its processes has been waited for."""
        until = time.monotonic() + ENDS_S
        while True:
            try:
                return os.rmdir(group)
            except OSError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.05)

    def test_a_cgroup_with_few_processes_is_named_as_a_limit_of_the_user_is(self):
        """pids.max: at what the front end lacks, at what some other process lacks, and at what is enough."""
        group, why = self.pids_group()
        if not group:
            self.skipTest(f"no cgroup can be made that limits processes: {why}")
        for value, ends in (8, 1), (40, 1), (1000, 0):
            with self.subTest(value=value):
                with open(os.path.join(group, "pids.max"), "w") as f:
                    f.write(str(value))
                done = self.run_with("pids", value, group)
                said = self.last_words(done)
                self.assertEqual(done.returncode, ends, said)
                if ends == 1:
                    self.assertRegex(said, r"pids\.max")
                with open(os.path.join(group, "cgroup.procs")) as f:
                    self.assertEqual(f.read(), "")

    def last_words(self, done):
        """The last line of what it said, or that it has said nothing."""
        lines = done.stderr.splitlines()
        return lines[-1] if lines else f"nothing on stderr; status {done.returncode}, and on stdout: {done.stdout[-500:]!r}"

    def run_with(self, limit, value, group=None):
        """limit: what setrlimit calls it; with a group, the run is moved there instead."""
        def lower():
            if group:
                with open(os.path.join(group, "cgroup.procs"), "w") as f:
                    f.write(str(os.getpid()))
            if os.geteuid() == 0:
                os.setgroups([])
                os.setgid(NOBODY)
                os.setuid(NOBODY)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            if not group:
                resource.setrlimit(limit, (value, value))
        return subprocess.run([self.program, "train", self.file, "--runs-dir", self.task.path(f"runs-{limit}-{value}"), "--name", "r",
                               "--max-steps", "1", "--batch"], preexec_fn=lower, cwd=self.task.dir, capture_output=True, text=True,
                              timeout=ENDS_S, env={"PATH": os.environ["PATH"]})    # the environment lies on the stack, too

    def test_a_run_that_lacks_something_says_what_and_ends(self):
        """Each limit at little, at what some process lacks, and at what is enough; LONG=1 tries many more on the way."""
        mib = 1 << 20
        nproc = self.started()
        table = [    # the limit; what a sentence about it names; values, those of every run and those of LONG=1
            (resource.RLIMIT_NPROC, "threads|ulimit -u|fork", {nproc + 6: "not even the front end can talk",
                                                               nproc + 48: "the front end can, and not all of the others"},
             [nproc + n for n in (*range(4, 100, 4), 100)]),
            (resource.RLIMIT_AS, "ulimit -v|[Mm]emory", {90 * mib: "no room for the threads' stacks", 600 * mib: None},
             [n * mib for n in range(48, 320, 8)]),
            (resource.RLIMIT_DATA, "ulimit -v|[Mm]emory", {}, [n * mib for n in (4, 8, 16, 32, 64, 96, 128, 160, 200, 300, 500)]),
            (resource.RLIMIT_NOFILE, "ulimit -n", {4: "the front end cannot start the reward program", 11: "the front end cannot talk",
                                                   16: "the agent can start nothing", 40: None}, range(4, 41)),
            (resource.RLIMIT_STACK, "ulimit -s", {16 << 10: "no command can run", 255 << 10: "nor here", 256 << 10: None},
             [n << 10 for n in (20, 24, 32, 64, 128, 257, 300, 400, 512, 1024)]),
            (resource.RLIMIT_FSIZE, "ulimit -f", {0: "no file can be written", 100000: "the journal does not grow"},
             [1, 8192, 100, 1000, 4096, 16384, 40000, 65536, 200000, 400000, 4000000]),
        ]
        for limit, words, some, more in table:
            for value in dict.fromkeys((*some, *(more if LONG else ()))):
                with self.subTest(limit=limit, value=value, why=some.get(value)):
                    done = self.run_with(limit, value)
                    said = self.last_words(done)
                    if value in some:
                        self.assertEqual(done.returncode, 0 if some[value] is None else 1, said)
                    self.assertIn(done.returncode, (0, 1), said)    # and not a signal
                    if done.returncode == 1:
                        self.assertRegex(said, words)
                    left = [words for pid, words in commands() if self.task.dir in " ".join(words) and alive(pid)]
                    self.assertEqual(left, [])


if __name__ == "__main__":
    unittest.main()
