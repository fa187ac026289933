"""code_reward_test.py - code rewards and reward programs from the command line, and an external verifier over HTTP"""
import http.server
import json
import os
import re
import sqlite3
import subprocess
import sys
import tempfile
import threading
import unittest
import urllib.error
import urllib.request
import run_tools

HERE = os.path.dirname(os.path.abspath(__file__))
ROLLCALL = os.path.abspath(os.environ.get("ROLLCALL", os.path.join(HERE, "../../build/release/rollcall")))
REWARDS = os.path.join(HERE, "../../examples/rewards")


def fenced(code):
    return "```python\n" + code + "\n```"


def score(reward_type, rows, *more):
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as f:
        f.writelines(json.dumps(r) + "\n" for r in rows)
        f.flush()
        done = subprocess.run([ROLLCALL, "score", "--reward-type", reward_type, "-i", f.name, *more], capture_output=True, text=True,
                              timeout=300, stdin=subprocess.DEVNULL)
    return [json.loads(line) for line in done.stdout.splitlines()], done


DOUBLE = {"inputs": ["1\n", "2\n", "-3\n"], "outputs": ["2\n", "4\n", "-6\n"]}
ADD = {"inputs": ["1\n2", "[1]\n[2]"], "outputs": ["3", "[1, 2]"], "fn_name": "add"}
# response, tests, share of the tests passed or None for a sample that is left out, the rule, each test's result
PROGRAMS = [
    (fenced("print(int(input()) * 2)"), DOUBLE, 1, "code: all 3 tests pass", [1, 1, 1]),
    (fenced("def main():\n    print(int(input()) * 2)\nif __name__ == '__main__':\n    main()"), DOUBLE, 1, "code: all 3 tests pass", [1, 1, 1]),
    (fenced("import sys\nprint(2 * int(sys.stdin.read()))\nsys.exit(1)"), DOUBLE, 1, "code: all 3 tests pass", [1, 1, 1]),
    (fenced("import threading, sys\nthreading.Thread(target=lambda: print(2 * int(input()))).start()"), DOUBLE, 1, "code: all 3 tests pass", [1, 1, 1]),
    (fenced("print(2 * abs(int(input())))"), DOUBLE, 2 / 3, "code: wrong answer in test 3 of 3", [1, 1, 0]),
    (fenced("n = int(input())\nprint(2 * n if n > 1 else 1 / 0)"), DOUBLE, 1 / 3, "code: crash in test 1 of 3", [-1, 1, -1]),
    (fenced("print('2')"), DOUBLE, 1 / 3, "code: wrong answer in test 2 of 3", [1, 0, 0]),
    (fenced("print(int(input()) * 2"), DOUBLE, 0, "code: compile error in test 1 of 3", [-2]),
    (fenced(""), DOUBLE, 0, "code: missing code", None),
    (fenced("x = List[int]\nprint(2 * gcd(int(input()), 0) if deque([1]) and Counter('a') else 0)"), DOUBLE, 2 / 3,
     "code: wrong answer in test 3 of 3", [1, 1, 0]),    # the names PRIME's prelude gives
    *((fenced(code), {"inputs": ["7 8\n9"], "outputs": ["5"]}, 1, "code: all 1 tests pass", [1]) for code in (
        # what python3 gives a program that is started as a file
        "print(5)\nquit()", "print(5)\nexit(1)", "print(5 if callable(help) and license and credits and copyright else 6)",
        "import os\nprint(5 if os.path.dirname(os.path.abspath(__file__)) == os.getcwd() else 6)",
        "import inspect\ndef f(): pass\nclass C: pass\nprint(5 if inspect.getsource(f) and inspect.getsource(C) else 6)",
        "import sys\nprint(5 if __file__ == sys.argv[0] and open(__file__).read() else 6)",
        "print(4 + __builtins__.len([1]))", "import sys\nsys.__stdout__.write('5' if sys.__stdin__.read() else '6')",
        "open('mod.py', 'w').write('five = 5')\nimport mod\nprint(mod.five)",
        "print(5 if len(str(2**20000)) == 6021 and int('7' * 5000) % 9 == 8 else 6)",
        "import sys\ninput = sys.stdin.readline\nprint(5 if input().split() == ['7', '8'] and input() == '9' else 6)",
        "import io, os\nprint(5 if io.BytesIO(os.read(0, os.fstat(0).st_size)).readline() == b'7 8\\n' else 6)",
        "import sys\nprint(sum(map(int, sys.stdin.buffer.read().split())) - 19)", "print(len(open(0).read()))",
        "import fileinput\nprint(3 + sum(1 for _ in fileinput.input()))",
        "try:\n    while True:\n        input()\nexcept EOFError:\n    print(5)",
        "import sys, threading\nsys.setrecursionlimit(10**7)\nthreading.stack_size(2**27)\ndef f(n):\n    return 5 if n == 0 else f(n - 1)\n"
        "threading.Thread(target=lambda: print(f(100000))).start()",
        "import resource\nresource.setrlimit(resource.RLIMIT_STACK, (2**28, -1))\nprint(5)",
        "import sys\nfor _ in range(100):\n    print('x' * 100000, file=sys.stderr)\nprint(5)",
        "import os\nfor _ in range(100):\n    os.write(2, b'x' * 100000)\nprint(5)",
        "import multiprocessing\ndef f(x):\n    return x * x\nif __name__ == '__main__':\n    with multiprocessing.Pool(2) as p:\n        print(sum(p.map(f, [1, 2])))",
        "import multiprocessing\ndef f(v):\n    with v.get_lock():\n        v.value += 5\nv = multiprocessing.Value('i', 0)\np = multiprocessing.Process(target=f, args=(v,))\n"
        "p.start()\np.join()\nprint(v.value)",
        "from concurrent.futures import ProcessPoolExecutor\nif __name__ == '__main__':\n    with ProcessPoolExecutor(2) as p:\n        print(p.submit(int, '5').result())")),
    (fenced("def f(n):\n    return 10**n"), {"inputs": ["5000"], "outputs": ["1" + "0" * 5000], "fn_name": "f"}, 1,
     "code: all 1 tests pass", [1]),
    (fenced("import sys\nprint('x' * 1000000, file=sys.stderr)\nprint(2 * int(input()))"),
     {"inputs": list("1234567"), "outputs": [str(2 * i) for i in range(1, 8)]}, 1, "code: all 7 tests pass", [1] * 7),
    (fenced("def add(a, b):\n    return a + b"), ADD, 1, "code: all 2 tests pass", [1, 1]),
    (fenced("class Solution:\n    def add(self, a, b):\n        print('noise')\n        return a + b"), ADD, 1, "code: all 2 tests pass", [1, 1]),
    (fenced("def add(a, b):\n    return (a + b) if a == 1 else tuple(a + b)"), ADD, 1, "code: all 2 tests pass", [1, 1]),
    (fenced("def sub(a, b):\n    return a - b"), ADD, 0, "code: missing function in test 1 of 2", [-2]),
    (fenced("def add(a, b):\n    return {a, b}"), ADD, 0, "code: wrong answer in test 1 of 2", [0, -1]),    # a list cannot be in a set
    (fenced("print(1)"), {"inputs": [], "outputs": []}, None, "code: error in test_cases", None),
    (fenced("print(1)"), None, None, "code: error in test_cases", None),
]


class Sandboxed(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        answers, done = score("code", [{"response": fenced("print(1)"), "test_cases": {"inputs": [""], "outputs": ["1"]}}])
        if not answers:
            print("\n*** SKIPPED: the sandbox does not work on this machine: %s" % done.stderr.strip(), file=sys.stderr)
            raise unittest.SkipTest(done.stderr.strip())

    def test_programs_get_their_score_and_reason(self):
        rows = [{"response": r, "test_cases": t} for r, t, *_ in PROGRAMS]
        whole, _ = score("code", rows, "--program-timeout", "60")
        parts, _ = score("code_share", rows, "--program-timeout", "60")
        for (response, _, share, rule, results), all_or_nothing, by_share in zip(PROGRAMS, whole, parts, strict=True):
            with self.subTest(response):
                self.assertEqual(all_or_nothing["rule"], rule)
                self.assertEqual(by_share.get("test_results"), results)
                until_first = results and results[:next((i + 1 for i, r in enumerate(results) if r != 1), len(results))]
                self.assertEqual(all_or_nothing.get("test_results"), until_first)
                if share is None:
                    self.assertIsNone(all_or_nothing["reward"])
                    self.assertIsNone(by_share["reward"])
                    continue
                self.assertEqual(all_or_nothing["reward"], 10 if share == 1 else 0)
                self.assertEqual(all_or_nothing["ans_acc"], int(share == 1))
                self.assertAlmostEqual(by_share["reward"], 10 * share)

    def test_an_evaluation_in_a_run_records_how_each_test_ended(self):
        task = run_tools.Task()
        self.addCleanup(task.close)
        data = task.path("code.jsonl")
        with open(data, "w") as f:
            f.writelines(json.dumps({"messages": [{"role": "user", "content": str(i)}], "test_cases": DOUBLE}) + "\n" for i in range(8))
        run = run_tools.Run(task, "code", task.run_file(reward_type="code", dataset=data, max_steps=1, eval_interval=1,
                                                        eval_dataset={"programs": data}))
        self.addCleanup(run.kill)
        code, last = run.wait()
        self.assertEqual(code, 0, last)
        with open(os.path.join(run.dir, "eval", "programs_training_step_1.jsonl")) as f:
            records = [json.loads(line) for line in f]
        self.assertEqual(len(records), 8)
        # what a random model writes fails in the first test already
        results = {"compile error": [-2], "crash": [-1], "time-out": [-1], "wrong answer": [0]}
        for r in records:
            self.assertEqual((r["test_cases"], r["scored"], r["ans_valid"], r.get("gold")), (DOUBLE, True, 0, None))
            why, _, where = r["rule"].removeprefix("code: ").partition(" in test ")
            self.assertEqual((where, r["test_results"]), ("", []) if why == "missing code" else ("1 of 3", results[why]))
            self.assertEqual([m["error_message"] for m in r["test_metadata"]], [r["rule"]])

    def test_without_a_fence_a_right_program_is_accurate_but_earns_nothing(self):
        row = {"response": "print(int(input()) * 2)", "test_cases": DOUBLE}
        answers, _ = score("code", [row], "--program-timeout", "60")
        self.assertEqual((answers[0]["reward"], answers[0]["ans_acc"], answers[0]["format_acc"]), (0, 1, 0))
        answers, _ = score("code", [row], "--program-timeout", "60", "--eval")
        self.assertEqual((answers[0]["reward"], answers[0]["ans_acc"], answers[0]["format_acc"]), (10, 1, 0))


class Service(unittest.TestCase):
    """rollcall scorer --listen, asked as the seeds' and open-instruct's trainers ask."""
    @classmethod
    def setUpClass(cls):
        cls.dir = tempfile.TemporaryDirectory()
        cls.key = os.path.join(cls.dir.name, "key")
        with open(cls.key, "w", encoding="utf-8") as f:
            f.write("s3cret\n")
        cls.server = subprocess.Popen([ROLLCALL, "scorer", "--listen", "127.0.0.1:0", "--threads", "2", "--token-file", cls.key], stdout=subprocess.PIPE,
                                      stderr=subprocess.PIPE, text=True)
        said = cls.server.stdout.readline()
        if "http://" not in said:
            cls.server.wait(timeout=60)
            why = cls.server.stderr.read().strip()
            cls.tearDownClass()
            raise unittest.SkipTest("the sandbox does not work on this machine: " + why)
        cls.url = said.split(" at ")[1].split(" ")[0]

    @classmethod
    def tearDownClass(cls):
        cls.server.terminate()
        cls.server.wait(timeout=60)
        cls.server.stdout.close()
        cls.server.stderr.close()
        cls.dir.cleanup()

    def ask(self, path, body, token="s3cret"):
        data = body if isinstance(body, bytes) else json.dumps(body).encode() if body is not None else None
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json", "Authorization": "Bearer " + token})
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as e:
            with e:
                return e.code, e.read().decode()

    def test_both_protocols_get_their_answers(self):
        status, answer = self.ask("/test_program", {"program": "def add(a, b): return a + b", "tests": ["assert add(1, 2) == 3", "assert add(0, 0) == 1"], "max_execution_time": 20.0})
        self.assertEqual((status, answer["results"]), (200, [1, 0]))
        self.assertGreaterEqual(answer["runtimes"][0], 0)
        self.assertEqual(answer["runtimes"][1], -1)
        status, answer = self.ask("/test_program_stdio", {"program": "print(int(input()) + 1)", "tests": json.dumps([{"input": "1\n", "output": "2\n"}, {"input": "1\n", "output": "3\n"}]),
                                                          "max_execution_time": 20.0})
        self.assertEqual((status, answer["results"]), (200, [1, 0]))
        for path in ("/", "/check_correctness"):
            status, answer = self.ask(path, {"in_outs": DOUBLE, "generation": fenced("print(2 * abs(int(input())))"), "timeout": 20, "debug": False})
            self.assertEqual((status, answer["result"], len(answer["metadata"])), (200, [1, 1, 0], 3))

    def test_what_is_wrong_is_refused_and_the_server_goes_on(self):
        self.assertEqual(self.ask("/test_program", {"program": "x", "tests": []}, token="wrong")[0], 401)
        for path, body, says in (("/test_program", b"not json", "JSON object"), ("/test_program", {"program": 1, "tests": ["x"]}, "'program'"), ("/test_program", {"program": "x", "tests": []}, "1 to"),
                                 ("/test_program", {"program": "x", "tests": "eJwDAAAAAAE="}, "pickle"), ("/test_program_stdio", {"program": "x", "tests": [1]}, "'input'"),
                                 ("/", {"in_outs": {}, "generation": "x"}, "inputs"), ("/", {"generation": 1}, "'generation'")):
            with self.subTest(body=body):
                status, answer = self.ask(path, body)
                self.assertEqual(status, 422, answer)
                self.assertIn(says, answer)
        self.assertEqual(self.ask("/nowhere", {})[0], 404)
        with urllib.request.urlopen(self.url + "/health", timeout=60) as answer:
            self.assertEqual(json.load(answer), {"status": "healthy"})

    def test_runs_ask_it_and_pass_over_a_host_that_is_away(self):
        hosts = "http://127.0.0.1:9/," + self.url    # nothing listens at the first, whose address ends otherwise
        rows = [{"response": fenced("def f(x):\n    return x"), "dataset": "code", "ground_truth": ["assert f(1) == 1", "assert f(1) == 2"]} for _ in range(4)]
        answers, done = score("verify", rows, "--code-verifier-api-url", hosts, "--code-verifier-key-file", self.key)
        self.assertEqual([a["reward"] for a in answers], [5] * 4, done.stderr)
        answers, done = score("code", [{"response": fenced("print(int(input()) * 2)"), "test_cases": DOUBLE}], "--code-verifier-api-url", hosts, "--code-verifier-key-file", self.key)
        self.assertEqual([a["reward"] for a in answers], [10], done.stderr)
        answers, done = score("verify", rows[:1], "--code-verifier-api-url", self.url)
        self.assertIsNone(answers[0]["reward"])    # without the key: left out, not wrong
        self.assertIn("401", answers[0]["rule"])

    def test_it_does_not_listen_beyond_this_host_without_a_key(self):
        done = subprocess.run([ROLLCALL, "scorer", "--listen", "0.0.0.0:0"], capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 2)
        self.assertIn("give --token-file", done.stderr)


class Own(unittest.TestCase):
    def test_the_examples_score(self):
        cases = [("python3 length.py", {"response": "x" * 100}, 7.5, None), ("sh polite.sh", {"response": "yes, please"}, 10, 1),
                 ("sh polite.sh", {"response": "no"}, 0, None),
                 ("python3 same_words.py", {"response": "a tree and a house", "keywords": ["Tree", "sun"]}, 5, 0),
                 ("python3 same_words.py", {"response": "x"}, None, 0)]
        for command, row, reward, right in cases:
            with self.subTest(command):
                answers, done = score("program:cd '%s' && %s" % (REWARDS, command), [row], "--program-timeout", "60")
                self.assertEqual((answers[0]["reward"], answers[0]["ans_acc"]), (reward, right), done.stderr)

    def test_responses_of_one_group_are_compared(self):
        rows = [{"response": "aaa", "group": 1}, {"response": "a", "group": 1}, {"response": "aa", "group": 1}, {"response": "b" * 9},
                {"response": "cc", "group": 2}, {"response": "c", "group": 2}]
        answers, done = score("program:cd '%s' && python3 shortest.py" % REWARDS, rows, "--program-timeout", "60")
        self.assertEqual([a["reward"] for a in answers], [0, 10, 5, 0, 0, 10], done.stderr)
        many = [{"response": "x" * (i + 1), "group": i // 100} for i in range(300)]    # groups longer than a batch
        answers, done = score("program:cd '%s' && python3 shortest.py" % REWARDS, many, "--program-timeout", "60")
        self.assertEqual([a["reward"] for a in answers[::99][:1] + answers[99:101] + answers[299:]], [10, 0, 10, 0], done.stderr)


class Verifier(http.server.BaseHTTPRequestHandler):
    """Passes programs that contain 'right', answers nonsense for 'nonsense', and 500 the first two times for 'flaky', always
    for 'down'."""

    def do_POST(self):
        ask = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append(ask)
        text = ask["generation"]
        n = len(ask["in_outs"]["inputs"])
        fails = "down" in text or ("flaky" in text and sum(a["generation"] == text for a in self.server.asked) < 3)
        body = b"{}" if "nonsense" in text else json.dumps(
            {"result": [1] * n if "right" in text else [True, -1], "metadata": [{}]}).encode()
        self.send_response(500 if fails else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


class Remote(unittest.TestCase):
    def test_an_external_verifier_decides_and_its_trouble_is_not_the_programs(self):
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Verifier)
        server.asked = []
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = "http://127.0.0.1:%d/check_correctness" % server.server_address[1]
        rows = [{"response": fenced(text), "test_cases": DOUBLE} for text in ("right", "wrong", "nonsense", "right flaky", "down")]
        rows[1]["test_cases"] = json.dumps(DOUBLE)    # as a string: sent as an object all the same
        answers, done = score("code", rows, "--code-verifier-api-url", url)
        self.assertEqual([a["reward"] for a in answers], [10, 0, None, 10, None], done.stderr)
        self.assertEqual(answers[1]["rule"], "code: wrong answer in test 2 of 3")
        self.assertEqual([a.get("test_results") for a in answers], [[1, 1, 1], [1, -1], None, [1, 1, 1], None])
        self.assertEqual(answers[4]["rule"], "code: verifier error")
        self.assertEqual(server.asked[1], {"in_outs": DOUBLE, "generation": rows[1]["response"], "timeout": 10, "debug": False})
        server.shutdown()
        server.server_close()
        answers, _ = score("code", rows[:1], "--code-verifier-api-url", url)    # the server is gone
        self.assertIsNone(answers[0]["reward"])



class Sandbox(unittest.TestCase):
    """rollcall sandbox: programs as JSON lines."""

    def ask(self, *rows, want=0):
        done = subprocess.run([ROLLCALL, "sandbox", "--time", "2"], input="".join(json.dumps(r) + "\n" for r in rows), capture_output=True,
                              text=True, timeout=240)
        self.assertEqual(done.returncode, want, done.stderr)
        return [json.loads(line) for line in done.stdout.splitlines()], done.stderr

    def test_each_program_is_answered_with_its_output_or_why_there_is_none(self):
        cases = [({"code": "print(6 * 7)"}, "ok", "42\n"), ({"code": "print(input()[::-1])", "input": "abc"}, "ok", "cba\n"),
                 ({"code": "while True: pass"}, "time-out", ""), ({"code": "1 / 0"}, "crash", ""), ({"code": "x ="}, "compile error", ""),
                 ({"code": "print(open('/etc/passwd').read())"}, "crash", ""), ({"code": ""}, "ok", "")]
        got, _ = self.ask(*(row for row, _, _ in cases))
        self.assertEqual(got, [{"status": status, "output": output} for _, status, output in cases])

    def test_a_line_without_a_program_is_named(self):
        got, said = self.ask({"code": "print(1)"}, {"cod": "print(2)"}, want=1)
        self.assertEqual(got, [{"status": "ok", "output": "1\n"}])
        self.assertIn("standard input:2: there is no string 'code'", said)


class InARun(unittest.TestCase):
    def test_a_run_verifies_each_row_as_it_asks(self):
        task = run_tools.Task()
        self.addCleanup(task.close)
        with open(task.path("train.jsonl"), encoding="utf-8") as f:
            rows = [json.loads(line) for line in f]
        for i, row in enumerate(rows):
            row.update({"dataset": ["gsm8k", "up_to_max_length"], "ground_truth": [row.pop("gt_answer"), "1000"]} if i % 2 else {"dataset": "max_length", "ground_truth": "1"})
        with open(task.path("train.jsonl"), "w", encoding="utf-8") as f:
            f.writelines(json.dumps(r) + "\n" for r in rows)
        run = run_tools.Run(task, "verify", task.run_file(reward_type="verify", verification_reward=1, max_steps=2))
        self.addCleanup(run.kill)
        code, last = run.wait()
        self.assertEqual((code, last["event"]), (0, "finished"), run.logs())
        out = subprocess.run([ROLLCALL, "rollouts", run.dir], capture_output=True, timeout=run_tools.LIMIT, check=True).stdout
        samples = [json.loads(line) for line in out.splitlines()]
        self.assertGreater(len(samples), 8)
        for s in samples:    # short responses: nearly 1 from max_length, 1 from up_to_max_length and perhaps 1 more from gsm8k
            if s["reason"].startswith("max_length"):
                self.assertTrue(0.9 < s["reward"] <= 1, s)
            else:
                self.assertTrue(s["reason"].startswith("gsm8k"), s)
                self.assertIn(s["reward"], (1, 2), s)
        self.assertEqual({s["reason"].split()[0].strip(":") for s in samples}, {"max_length", "gsm8k"})

    def test_a_row_that_cannot_be_verified_stops_the_run_at_its_start(self):
        task = run_tools.Task()
        self.addCleanup(task.close)
        done = subprocess.run([ROLLCALL, "train", task.run_file(reward_type="verify", max_steps=1), "--dry-run"], capture_output=True, text=True, timeout=run_tools.LIMIT)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("'dataset' is missing", done.stderr)
        self.assertIn("train.jsonl:1", done.stderr)


class JudgeModel(http.server.BaseHTTPRequestHandler):
    """A chat model whose judgement is in the text it is shown: 'says=...' is its answer, 'flaky' fails twice, 'down' always."""

    def do_POST(self):
        ask = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append((self.path, self.headers.get("Authorization"), ask))
        text = ask["messages"][-1]["content"]
        same = sum(a[2]["messages"] == ask["messages"] for a in self.server.asked)
        status = 500 if "down" in text or ("flaky" in text and same < 3) else 400 if "rejected" in text else 200
        found = re.search(r"says=(.*?)=end", text, re.S)
        body = b"{}" if "nonsense" in text else json.dumps({"choices": [{"message": {"content": found.group(1) if found else "?"}}]}).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


class Judge(unittest.TestCase):
    def setUp(self):
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), JudgeModel)
        self.server.asked = []
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = "http://127.0.0.1:%d/v1" % self.server.server_address[1]

    def tearDown(self):
        self.server.shutdown()
        self.server.server_close()

    def run_file(self, **settings):
        file = tempfile.NamedTemporaryFile("w", suffix=".yaml")
        self.addCleanup(file.close)
        file.writelines(f"{k}: {json.dumps(v)}\n" for k, v in {"llm_judge_url": self.url, "llm_judge_model": "m", **settings}.items())
        file.flush()
        return ["--config", file.name]

    def test_each_judge_has_its_scale_and_its_own_words(self):
        cases = [    # verifier, what the judge says, the score or None for no score
            ("general-quality", '{"REASONING": "ok", "SCORE": "7"}', 0.7), ("general-quality", '```json\n{"REASONING": "ok", "SCORE": 10}\n```', 1), ("general-quality", '{"SCORE": 99}', None),
            ("general-quality_ref", '{"REASONING": "a \\"b\\"", "SCORE": "3.5"}', 0.35), ("general-quality_rubric", '{"REASONING": "", "SCORE": "1"}', 1), ("general-quality_rubric", '{"SCORE": 0}', 0),
            ("general-factuality", "<think>SCORE 0?</think>{\"REASONING\": \"same\", \"SCORE\": \"1\"}", 1), ("general-refusal", '{"REASONING": broken, "SCORE": "1"}', 1),
            ("general-safety", '{"SCORE": "1.0"}', 1), ("general-creative_writing", "no score at all", None), ("general-web_instruct_general_verifier", "Final Decision: Yes", 1),
            ("general-web_instruct_general_verifier", "Thus: final decision: no", 0), ("general-web_instruct_general_verifier", "maybe", None), ("general-quality", '{"SCORE": "high"}', None),
            ("general-quality", '{"SCORE": "2/10"}', 0.2), ("judge", '{"SCORE": "2/10"}', 0.2), ("judge", '{"SCORE": 2/10}', 0.2), ("judge", '{"SCORE": 2}', None), ("judge", '{"SCORE": -1}', None),
        ]
        rows = [{"response": "<think>x</think><answer>says=" + says + "=end</answer>", "dataset": name, "ground_truth": "the label", "messages": [{"role": "user", "content": "the question"}]}
                for name, says, _ in cases]
        answers, done = score("verify", rows, *self.run_file(verification_reward=1))
        for (name, says, want), got in zip(cases, answers):
            self.assertEqual(got["reward"], want, (name, says, got))
        self.assertEqual(len(answers), len(cases), done.stderr)
        path, _, ask = self.server.asked[3]
        self.assertEqual((path, ask["model"], ask["max_tokens"], ask["temperature"]), ("/v1/chat/completions", "m", 2048, 1))
        self.assertIn("the question", ask["messages"][0]["content"])
        self.assertIn("the label", ask["messages"][0]["content"])
        self.assertNotIn("<think>", ask["messages"][0]["content"])

    def test_the_reward_type_names_an_address_and_a_template_its_own_prompt(self):
        row = [{"response": 'says={"SCORE": 0.25}=end', "gt_answer": "gold"}]
        answers, done = score("judge:" + self.url, row)
        self.assertEqual([a["reward"] for a in answers], [2.5], done.stderr)
        answers, done = score("verify:judge", row, *self.run_file(llm_judge_template="Q {label} A {output}"))
        self.assertEqual([a["reward"] for a in answers], [2.5], done.stderr)
        self.assertEqual(self.server.asked[-1][2]["messages"][0]["content"], 'Q gold A says={"SCORE": 0.25}=end')

    def test_failures_leave_samples_out_after_retries_within_the_budget(self):
        rows = [{"response": 'says={"SCORE": 1}=end ' + word, "gt_answer": "g"} for word in ("fine", "flaky", "nonsense", "rejected")]
        answers, done = score("verify:judge", rows, *self.run_file(llm_judge_timeout=20))
        self.assertEqual([a["reward"] for a in answers], [10, 10, None, None], done.stderr)
        self.assertEqual(sum("flaky" in a[2]["messages"][0]["content"] for a in self.server.asked), 3)
        self.assertEqual(sum("rejected" in a[2]["messages"][0]["content"] for a in self.server.asked), 1)
        self.assertIn("400", answers[3]["rule"])
        answers, done = score("verify:judge", rows[:1] * 3, *self.run_file(llm_judge_budget=2))
        self.assertEqual([a["reward"] for a in answers], [10, 10, None], done.stderr)
        self.assertIn("budget", answers[2]["rule"])
        answers, done = score("judge", rows[:1])
        self.assertIn("'llm_judge_url' is not set", answers[0]["rule"])

    def test_a_rubric_is_the_weighted_mean_of_its_criteria(self):
        def row(*rubrics):
            truth = {"query": "q", "rubrics": [{"description": 'says={"score": %s}=end' % s, "weight": w} for s, w in rubrics]}
            return {"response": "r", "dataset": "rubric", "ground_truth": json.dumps(truth)}
        cases = [(row((2, 1)), 1), (row((0, 1)), 0), (row((2, 1), (0, 1)), 0.5), (row((2, 3), (0, 1)), 0.75), (row((2, 1), (2, -1)), 0), (row((0, 1), (2, -1)), -0.5), (row((1, 2), (2, 2)), 0.75),
                 (row(("x", 1)), None), (row((3, 1)), None), (row((-1, 1)), None), (row(('"1/2"', 1)), 0.5)]
        answers, done = score("verify", [c[0] for c in cases], *self.run_file(verification_reward=1))
        self.assertEqual([a["reward"] for a in answers], [c[1] for c in cases], done.stderr)


class RubricModel(http.server.BaseHTTPRequestHandler):
    """A judge whose scores, and the criteria that it writes, follow from what it is shown."""

    def do_POST(self):
        ask = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        system, text = ask["messages"][0]["content"], ask["messages"][-1]["content"]
        code = sum(text.encode())
        writes = '"positive"' in system
        self.server.asked.append((writes, text))
        if writes and code % 5 == 0:
            said = "nothing comes to mind"
        elif writes:
            said = json.dumps({"positive": [f"has {code % 97}", f"shows {code % 89}"], "negative": [f"lacks {code % 83}"]})
        else:
            said = json.dumps({"score": code % 3})
        body = json.dumps({"choices": [{"message": {"content": said}}]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


class EvolvingRubrics(unittest.TestCase):
    def test_later_episodes_are_judged_by_what_the_judge_wrote_and_a_kill_changes_nothing(self):
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), RubricModel)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        task = run_tools.Task()
        self.addCleanup(task.close)
        with open(task.path("train.jsonl"), "w") as f:
            for i in range(16):
                truth = {"query": f"prompt {i}", "rubrics": [{"description": "is good", "weight": 2}]}
                f.write(json.dumps({"messages": [{"role": "user", "content": f"{i}?"}], "dataset": "rubric", "ground_truth": json.dumps(truth)}) + "\n")
        file = task.run_file(reward_type="verify", llm_judge_url="http://127.0.0.1:%d/v1" % server.server_address[1], llm_judge_model="m", max_active_rubrics=2,
                             apply_evolving_rubric_reward=True, n_behind=1, save_interval=4, scorer_threads=4, inference_microbatch_size=4)
        ends = []
        for name in ("calm", "shaken"):
            server.asked = []
            run = run_tools.Run(task, name, file, ["--max-steps", "8"])    # four episodes
            self.addCleanup(run.kill)
            if name == "shaken":
                run.wait_step(5)
                run.kill()
                run = run_tools.Run(task, name, resume=True)
                self.addCleanup(run.kill)
            code, last = run.wait()
            self.assertEqual((code, last.get("event")), (0, "finished"), run.logs())
            with sqlite3.connect(f"file:{os.path.join(run.dir, 'journal.db')}?mode=ro", uri=True) as db:
                rubrics = db.execute("select item, prompt_row, rollout_step, data from rubric where item < 64 order by item").fetchall()
            steps = [json.loads(x)["metrics"] for x in subprocess.run([ROLLCALL, "export", "jsonl", run.dir], stdout=subprocess.PIPE, check=True).stdout.splitlines()]
            ends.append((run.weights(8), rubrics, [m["metrics/reward"] for m in steps]))
        self.assertEqual(*ends)
        told = [json.loads(r[3]) for r in rubrics]
        self.assertEqual([r[0] for r in rubrics], list(range(64)))
        self.assertTrue(all(len(t["active"]) <= 2 for t in told))
        judged = [t["judged"] for t in told]
        self.assertEqual(set(judged[:16]), {0})    # the first episode has only the rows' own
        self.assertGreater(max(judged[32:]), 0)
        newest = {}
        for (item, row, step, _), t in zip(rubrics, told):    # judged by the newest of a rollout step that was cut before its own was opened
            before = [x for x in newest.get(row, []) if x[0] <= step - 2]
            self.assertEqual(t["judged"], len(before[-1][1]) if before else 0, item)
            newest.setdefault(row, []).append((step, t["active"]))
        self.assertTrue(any(t["failed"] for t in told) and all(t["why"] for t in told if t["failed"]))
        self.assertEqual({c["weight"] for t in told for c in t["active"]}, {1, -1} if any(c["weight"] < 0 for t in told for c in t["active"]) else {1})
        self.assertTrue(any(m.get("evolving_rubrics/active") for m in steps) and any(m["evolving_rubrics/written"] for m in steps)
                        and any(m["evolving_rubrics/failed"] for m in steps))
        self.assertTrue(any("<criterion>has " in text or "<criterion>shows " in text for writes, text in server.asked if not writes))


if __name__ == "__main__":
    unittest.main()
