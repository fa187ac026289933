"""tags: limit=120

Starting a run on several machines: with stand-ins for Slurm's programs (tests/slurm.sh does it with Slurm itself)."""
import json
import os
import signal
import stat
import subprocess
import unittest
from run_tools import Holds, LIMIT, ROLLCALL, Run, RunCase, alive, free_port

STEPS = 6
SBATCH = """#!/bin/sh
# takes the job, and starts its script as node n1 of three
[ -n "$REFUSE" ] && { echo 'sbatch: error: invalid partition specified: nowhere' >&2; exit 1; }
for script; do :; done
SLURM_JOB_ID=17 SLURM_NNODES=3 SLURMD_NODENAME=n1 setsid bash "$script" >"$STAND_IN/job.log" 2>&1 </dev/null &
echo $! >"$STAND_IN/job.pid"
echo '17;rollcall'
"""
SRUN = """#!/bin/sh
# one task per node, each with a folder of its own for a disk
while [ "${1#--}" != "$1" ]; do shift; done
echo "$@" >"$STAND_IN/srun.words"
for i in 0 1 2; do
    mkdir -p "$STAND_IN/disk$i"
    [ $i = 0 ] || unset RC_TEST_HOLD    # of the head alone
    SLURM_PROCID=$i SLURM_NTASKS=3 SLURMD_NODENAME=n$((i + 1)) TMPDIR="$STAND_IN/disk$i" "$@" &
done
wait
"""
SSH = """#!/bin/sh
# runs the command here, as that host: its own disk, and no variable of ours but PATH
while [ "${1#-}" != "$1" ]; do [ "$1" = -o ] && shift; shift; done
echo "$@" >>"$STAND_IN/ssh.words"
[ "$1" = away ] && { echo "ssh: connect to host away port 22: No route to host" >&2; exit 255; }
mkdir -p "$STAND_IN/host-$1"
exec env -i PATH="$PATH" TMPDIR="$STAND_IN/host-$1" SSH_CONNECTION="127.0.0.1 1 127.0.0.1 22" sh -c "$2"
"""
SCONTROL = """#!/bin/sh
echo "$@" >>"$STAND_IN/scontrol.words"
[ "$2" = hostnames ] && printf 'n1\\nn2\\nn3\\n'
exit 0
"""


def text_of(path):
    with open(path, errors="replace") as f:
        return f.read()


class Launch(RunCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.bin = cls.task.path("bin")
        os.mkdir(cls.bin)
        for name, text in (("ssh", SSH), ("sbatch", SBATCH), ("srun", SRUN), ("scontrol", SCONTROL)):
            path = os.path.join(cls.bin, name)
            with open(path, "w") as f:
                f.write(text)
            os.chmod(path, 0o755)
        cls.env = dict(os.environ, PATH=f"{cls.bin}:{os.environ['PATH']}", STAND_IN=cls.task.dir)
        for name in [n for n in cls.env if n.startswith("SLURM")]:
            del cls.env[name]

    def train(self, *words, env=None, name="job", **settings):
        return subprocess.run([ROLLCALL, "train", self.task.run_file(f"{name}.yaml", **settings), "--runs-dir", self.task.path("runs"), "--name",
                               name, "--max-steps", str(STEPS), "--slurm", *words], capture_output=True, text=True, timeout=LIMIT,
                              env=dict(self.env, **(env or {})))

    def test_a_job_trains_on_its_nodes_and_ends_with_the_bytes_of_one_machine(self):
        plain = Run(self.task, "plain", self.task.run_file("plain.yaml"), ["--max-steps", str(STEPS)])
        self.addCleanup(plain.kill)
        self.assertEqual(plain.wait()[0], 0, plain.logs())
        holds = Holds(self.task.path("holds"))
        holds.arm("worker cpu:0", "generating")
        done = self.train("nodes=3", f"port={free_port()}", "wait=100", env={"RC_TEST_HOLD": holds.dir})
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("job 17 on 3 nodes", done.stdout)
        job = Run.__new__(Run)
        job.dir = self.task.path("runs/job")
        self.addCleanup(lambda: [os.kill(pid, 9) for pid in job.processes().values()])
        log = lambda: text_of(self.task.path("job.log"))
        self.until(f"both nodes are there:\n{log()}", lambda: log().count("samples for run 'job'") == 2)
        holds.disarm("worker cpu:0", "generating")
        pid = int(text_of(self.task.path("job.pid")))
        self.until("the job has ended", lambda: not alive(pid))
        self.assertEqual(text_of(os.path.join(job.dir, "launch/exit")), "0\n", log())
        self.assertEqual((plain.weights(STEPS), plain.ledger()), (job.weights(STEPS), job.ledger()), log())
        self.assertEqual(log().count("has ended: the run has ended"), 2, log())    # told by the head, though they had only just asked to join

        token = os.path.join(job.dir, "sock/join")
        self.assertEqual(stat.S_IMODE(os.stat(token).st_mode), 0o600)
        for text in (log(), done.stdout, *(text_of(self.task.path(p)) for p in ("srun.words", "runs/job/launch/job.sh", "runs/job/launch/plan.json"))):
            self.assertNotIn(text_of(token).strip(), text)
        for i in (1, 2):    # a node that has ended well leaves nothing on its disk
            self.assertEqual([f for _, _, files in os.walk(self.task.path(f"disk{i}")) for f in files], [])

    def test_nodes_are_kept_on_hosts_over_ssh_and_a_host_that_does_not_come_is_named(self):
        holds = Holds(self.task.path("holds-ssh"))
        holds.arm("worker cpu:0", "generating")
        run = Run(self.task, "it's $HOME", self.task.run_file("ssh.yaml", hosts="a,me@b.example:2,away", listen=f"0.0.0.0:{free_port()}"),
                  ["--max-steps", str(STEPS)], env=dict(self.env, RC_TEST_HOLD=holds.dir))
        self.addCleanup(run.kill)
        nodes = lambda: {p.get("node") for p in json.loads(run.ctl("status", "--json").stdout or '{"processes":[]}')["processes"]
                         if p["phase"] != "lost"} - {None}
        self.until("both hosts have a node", lambda: nodes() == {"a", "b"}, run)
        self.until("the third is named", lambda: "does not come" in self.ok(run, "events"), run)
        if os.environ.get("LONG"):    # a killed starter's nodes leave, and come back with the next one
            os.kill(int(text_of(os.path.join(run.dir, "sock/starter.pid"))), signal.SIGKILL)
            self.until("the nodes have left", lambda: nodes() == set(), run)
            self.until("both hosts have a node again", lambda: nodes() == {"a", "b"}, run)
        told = self.ok(run, "events")
        self.assertIn("node 'away' does not come: ssh to 'away' ended with exit 255", told)
        holds.disarm("worker cpu:0", "generating")
        self.assertEqual(run.wait()[0], 0, run.logs())
        words = text_of(self.task.path("ssh.words"))
        self.assertIn("--inferencers 2", words)
        self.assertNotIn(text_of(os.path.join(run.dir, "sock/join")).strip(), words)

    def test_a_host_that_does_not_bring_its_trainers_is_one_alert_of_ssh_and_one_of_the_run(self):
        run = Run(self.task, "away", self.task.run_file("away.yaml", hosts="away", listen=f"0.0.0.0:{free_port()}", num_trainers=2,
                  trainers_per_node=1, slow_s=0.2, stuck_s=60, heartbeat_s=0.1, join_timeout_s=3), ["--max-steps", "2"], env=self.env)
        self.addCleanup(run.kill)
        self.assertEqual(run.wait()[0], 1, run.logs())
        alerts = [line for line in self.ok(run, "events").splitlines() if "not come" in line and " alert" in line]
        self.assertEqual(len(alerts), 2, "\n".join(alerts))
        self.assertIn("the run goes on without it once all trainers are here", "".join(alerts))
        self.assertIn("trainer 1 of another node has not come; these of 'hosts' have not joined: away", "".join(alerts))

    def test_a_refused_job_leaves_nothing_and_each_error_says_what_to_do(self):
        cases = ((dict(REFUSE="1"), ("nodes=2", "partition=nowhere"), 1, "invalid partition specified: nowhere; change nodes="),
                 (dict(PATH="/nonexistent"), ("nodes=2",), 1, "no 'sbatch' on this machine's PATH; run this on a login node"),
                 ({}, ("nodes=none",), 2, "--slurm nodes=none: a number from 1 to 1024"),
                 ({}, ("hosts=3",), 2, "--slurm has no 'hosts'; it takes nodes, gpus"),
                 ({}, ("--hosts", "a,b,x@a"), 2, "'a' and 'x@a' would both be node 'a'"),
                 ({}, ("--hosts", "a,-oProxyCommand=x"), 2, "'-oProxyCommand=x' is not a host"),
                 ({}, ("partition=a b",), 2, "without blanks and quotes"),
                 ({}, ("nodes=2", "--reward-type", "program:false"), 1, "'reward_type' does not answer when it is asked about the first row of"),
                 ({}, ("nodes=2", "--batch"), 2, "inside an allocation"),
                 ({}, ("nodes=2", "--system_prompt", "\udcff"), 2, "'system_prompt' is not UTF-8"),
                 ({}, ("nodes=2", "--wandb_notes", "\udcff"), 2, "a word is not UTF-8"))
        for env, words, code, text in cases:
            done = self.train(*words, env=env, name="refused")
            self.assertEqual(done.returncode, code, done.stderr)
            self.assertIn(text, done.stderr)
            self.assertEqual([line for line in done.stderr.splitlines() if " WARN  " not in line][1:], [], done.stderr)
            self.assertFalse(os.path.exists(self.task.path("runs/refused")))

    def test_a_dry_run_prints_the_script_and_does_nothing(self):
        done = self.train("nodes=4", "gpus=8", "partition=gpu", "time=1-00:00:00", "more=--account=a --qos=high", "cpus=3", "port=4000", "dir=/scratch",
                          "wait=9", "lost=9", "--dry-run", name="it's dry")
        self.assertEqual(done.returncode, 0, done.stderr)
        for line in ("#SBATCH --nodes=4", "#SBATCH --ntasks-per-node=1", "#SBATCH --gpus-per-node=8", "#SBATCH --cpus-per-task=3", "#SBATCH --no-kill", "#SBATCH --partition=gpu",
                     "#SBATCH --time=1-00:00:00", "#SBATCH --account=a --qos=high", "#SBATCH --requeue", "#SBATCH --signal=B:USR1@120"):
            self.assertIn(line + "\n", done.stdout)
        check = subprocess.run(["bash", "-n"], input=done.stdout, capture_output=True, text=True, timeout=LIMIT)
        self.assertEqual(check.returncode, 0, check.stderr)
        self.assertFalse(os.path.exists(self.task.path("runs/it's dry")))
        words = [ROLLCALL, "train", self.task.run_file("hosts.yaml", hosts="a,me@b:2", listen=f"0.0.0.0:{free_port()}"), "--dry-run"]
        done = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT, env=self.env)
        self.assertIn("node 'b': ssh me@b exec sh -c", done.stdout)
        self.assertEqual(done.stdout.count("--token-file -"), 2)
        done = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT, env=dict(self.env, PATH="/nonexistent"))
        self.assertEqual(done.returncode, 1)
        self.assertIn("'hosts': nodes are started over ssh", done.stderr)


if __name__ == "__main__":
    unittest.main()
