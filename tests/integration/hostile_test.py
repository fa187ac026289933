"""hostile_test.py - programs that attack the sandbox are contained, scored 0 with the right reason, and leave nothing behind

Each tests/golden/hostile/NAME.py says in comments what to expect:
    # expect: reasons, divided by |       the words of rollcall's "code: REASON in test 1 of 1"
    # limit: S                            seconds a test may take; without it 30
    # function: F                         call-based
    # cases: N                            tests of the program, all alike
Before them a harmless program must pass, as a canary; where it cannot, because the machine lets nobody make namespaces or has no
bubblewrap, the suite is skipped loudly and not failed. LONG=1 runs them all as an ordinary user too."""
import concurrent.futures
import json
import os
import re
import secrets
import subprocess
import sys
import tempfile
import time
import unittest
from run_tools import alive

HERE = os.path.dirname(os.path.abspath(__file__))
ROLLCALL = os.path.abspath(os.environ.get("ROLLCALL", os.path.join(HERE, "../../build/release/rollcall")))
PROGRAMS = os.path.join(HERE, "../golden/hostile")
ANSWER = "ANSWER-" + secrets.token_hex(8)    # never inside the sandbox


def row(code, function=None, cases=1, output=ANSWER):
    tests = {"inputs": ["5"] * cases, "outputs": [json.dumps(output) if function else output] * cases}
    if function:
        tests["fn_name"] = function
    return {"response": "```python\n" + code + "\n```", "test_cases": tests}


def score(rows, limit, user=None):
    """rollcall score's answers, one per row; its standard error when it refused."""
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as f:
        f.writelines(json.dumps(r) + "\n" for r in rows)
        f.flush()
        os.chmod(f.name, 0o644)
        done = subprocess.run([ROLLCALL, "score", "--reward-type", "code", "--program-timeout", str(limit), "-i", f.name],
                              capture_output=True, text=True, user=user, timeout=900, stdin=subprocess.DEVNULL,
                              extra_groups=None if user is None else [])
    return [json.loads(line) for line in done.stdout.splitlines()], done.stderr


def relatives():
    """Processes of sandboxes: bubblewrap, or those that the sandboxes' uid owns, with the parents they have."""
    found = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open("/proc/%s/status" % pid) as f:
                status = f.read()
            with open("/proc/%s/cmdline" % pid, "rb") as f:
                line = f.read().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if os.path.realpath(ROLLCALL) in line or "bwrap" in line.split(" ")[0] or re.search(r"^Uid:\s+65533", status, re.M):
            found[int(pid)] = (line[:100], int(re.search(r"^PPid:\s+(\d+)", status, re.M).group(1)))
    return found


def descendants(pid):
    found = []
    try:
        for task in os.listdir("/proc/%d/task" % pid):
            with open("/proc/%d/task/%s/children" % (pid, task)) as f:
                for child in map(int, f.read().split()):
                    found += [child, *descendants(child)]
    except OSError:
        pass
    return found


def programs():
    for name in sorted(os.listdir(PROGRAMS)):
        with open(os.path.join(PROGRAMS, name), encoding="utf-8", newline="") as f:
            code = f.read()
        given = dict(re.findall(r"^# (expect|limit|function|cases): (.*)$", code, re.M))
        yield name[:-3], code, given


class Hostile(unittest.TestCase):
    def run_all(self, user=None):
        before = set(relatives())
        groups = {}
        for name, code, given in programs():
            groups.setdefault(float(given.get("limit", 30)), []).append((name, code, given))
        self.assertGreaterEqual(sum(map(len, groups.values())), 60)
        with concurrent.futures.ThreadPoolExecutor() as pool:
            running = [(members, pool.submit(score, [row(code, given.get("function"), int(given.get("cases", 1)))
                                                     for _, code, given in members], limit, user))
                       for limit, members in groups.items()]
        for members, done in running:
            answers, said = done.result()
            self.assertEqual(len(answers), len(members), said)
            for (name, _, given), answer in zip(members, answers):
                with self.subTest(name):
                    self.assertEqual(answer["reward"], 0, answer)
                    self.assertEqual(answer["ans_acc"], 0, answer)
                    reason = re.fullmatch(r"code: (.*) in test \d+ of \d+", answer["rule"])
                    self.assertIsNotNone(reason, answer)
                    self.assertIn(reason.group(1), given["expect"].split("|"), answer)
                    self.assertNotIn(ANSWER, answer["pred"])
        self.assert_nothing_left(before)

    def assert_nothing_left(self, before):
        end = time.monotonic() + 60    # the kernel removes a namespace when it gets to it
        while True:
            # a process of another suite that runs meanwhile has a living parent; what was left behind has none
            left = {p: v for p, v in relatives().items() if p not in before and v[1] == 1 and alive(p)}
            if not left or time.monotonic() > end:
                break
            time.sleep(0.05)
        self.assertEqual(left, {}, "left behind")

    def test_a_killed_sandbox_costs_no_program_its_score(self):
        with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as f:
            f.writelines(json.dumps(row("import os, time\nif os.fork() == 0:\n    time.sleep(9)\ntime.sleep(0.05)\nprint(int(input()) * 2)",
                                            cases=3, output="10")) + "\n"
                         for _ in range(20))
            f.flush()
            scorer = subprocess.Popen([ROLLCALL, "score", "--reward-type", "code", "--program-timeout", "60", "-i", f.name],
                                      stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            killed = []
            end = time.monotonic() + 60
            while len(killed) < 2 and scorer.poll() is None and time.monotonic() < end:
                inside = descendants(scorer.pid)
                if len(inside) >= 7 and inside[0] not in killed:    # at a program: the canary has no second process
                    killed.append(inside[0])
                    os.kill(inside[len(killed) - 1], 9)    # bubblewrap, then the zygote
                time.sleep(0.02)
            out, said = scorer.communicate(timeout=300)
        self.assertEqual(len(killed), 2)
        self.assertEqual([json.loads(line)["reward"] for line in out.splitlines()], [10] * 20, out + said)

    def test_a_killed_scorer_takes_its_sandboxes_along(self):
        before = set(relatives())
        with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as f:
            f.write(json.dumps(row("import os\nos.fork()\nwhile True:\n    pass")) + "\n")
            f.flush()
            scorer = subprocess.Popen([ROLLCALL, "score", "--reward-type", "code", "--program-timeout", "600", "-i", f.name],
                                      stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            try:
                # bubblewrap, the zygote, two spare drivers, the program's driver and its two processes
                end = time.monotonic() + 60
                while len(descendants(scorer.pid)) < 7 and time.monotonic() < end:
                    time.sleep(0.02)
                inside = descendants(scorer.pid)
                self.assertGreaterEqual(len(inside), 7)
            finally:
                scorer.kill()
                scorer.wait()
        end = time.monotonic() + 60
        while any(alive(pid) for pid in inside) and time.monotonic() < end:
            time.sleep(0.02)
        self.assertEqual([pid for pid in inside if alive(pid)], [])
        self.assert_nothing_left(before)

    def test_they_are_contained(self):
        self.run_all()

    @unittest.skipUnless(os.environ.get("LONG") and os.geteuid() == 0, "LONG=1 as root: once more as an ordinary user")
    def test_they_are_contained_by_an_ordinary_user(self):
        self.run_all(user=65534)

    def test_a_program_after_them_all_still_passes(self):
        hostile = [row(code, given.get("function")) for name, code, given in programs()
                   if name in ("kill_everyone", "daemon", "fill_tmp", "exit_early")]
        answers, _ = score(hostile + [row("print(int(input()) * 2)", output="10")], 60)
        self.assertEqual([a["reward"] for a in answers], [0] * len(hostile) + [10])


def canary():
    answers, said = score([row("print(int(input()) * 2)", output="10")], 60)
    if not answers:
        print("NOTHING PROVED: the sandbox does not work on this machine: %s" % said.strip())
        sys.exit(77)    # the runner's word for skipped
    if answers[0]["reward"] != 10:
        sys.exit("the canary fails: %s" % answers[0])


if __name__ == "__main__":
    canary()
    unittest.main()
