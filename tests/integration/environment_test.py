"""tags: limit=900

Samples of several turns with an environment: exactly what was drawn and said is trained on, whoever is killed meanwhile."""
import http.server
import json
import os
import signal
import subprocess
import sys
import threading
import unittest
import tiny_model
from run_tools import PLAY, ROLLCALL, ROOT, RunCase, commands

STEPS = 6


class Environments(RunCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        tiny_model.pad_rename(cls.task.path("model"), "</think>")
        with open(cls.task.path("play.py"), "w") as f:
            f.write(PLAY)
        cls.settings = dict(reward_type="environment", environment=f"program:exec {sys.executable} {cls.task.path('play.py')}",
                            environment_processes=2, max_turns=4, max_turn_tokens=8, max_new_tokens=110, save_interval=1)

    def whole(self, disturb=None, **settings):
        """A run to its end: its weights and its ledger."""
        run = self.start("--max-steps", str(STEPS), **{**self.settings, **settings})
        if disturb:
            disturb(run)
        code, last = run.wait()
        self.assertEqual((code, last.get("event")), (0, "finished"), run.logs())
        return run, (run.weights(STEPS), run.ledger())

    def plays(self):
        """The ids of the environment's processes."""
        return [pid for pid, words in commands() if words[:2] == [sys.executable, self.task.path("play.py")]]

    def test_what_was_drawn_and_said_is_kept_and_computed_again_to_the_bit(self):
        run, _ = self.whole()
        rows = self.tool("rollouts", run.dir, "--ids")
        self.assertEqual(len(rows), STEPS * 8 * 4)
        turns, cut, tags = set(), 0, 0
        for r in rows:
            self.assertEqual(len(r["mask"]), len(r["ids"]))
            self.assertIn("user\nstart ", r["prompt"])
            self.assertTrue(all(lp == 0 for lp, m in zip(r["logprobs"], r["mask"]) if not m))
            self.assertTrue(all(lp < 0 for lp, m in zip(r["logprobs"], r["mask"]) if m))
            # each stretch of zeros is one answer: what the template writes after a turn, around "seen N"
            stretches = "".join(map(str, r["mask"])).replace("1", " ").split()
            turns.add(len(stretches) + 1)
            if 0 not in r["ids"]:    # a text ends at the byte 0
                self.assertEqual(r["text"].count("tool\nseen "), len(stretches))
                tags += r["text"].count(" tag")
                self.assertEqual(r["text"].count("</think>"), r["ids"].count(259))
            self.assertTrue(r["scored"], r)
            self.assertLessEqual(len(r["ids"]), 110)
            if r["finish_reason"] == "length":
                cut += 1
                self.assertEqual(r["reward"], 0)
        self.assertEqual(turns | {1, 2, 3, 4}, {1, 2, 3, 4})
        self.assertGreater(len(turns), 2)
        self.assertGreater(tags, 0)    # the environment has seen tags that are special tokens
        checked = 0
        for version in range(STEPS):
            model = self.task.path("model") if version == 0 else os.path.join(run.dir, "checkpoints", "step-%06d" % version)
            if not os.path.isdir(model):
                continue
            mine = [r for r in rows if r["version"] == version]
            ask = [{"ids": r["prompt_ids"] + r["ids"], "prompt_len": len(r["prompt_ids"]), "temperature": r["temperature"]} for r in mine]
            for r, got in zip(mine, self.tool("logprobs", "--model", model, lines=ask)):
                self.assertEqual([lp if m else 0 for lp, m in zip(got["logprobs"], r["mask"])], r["logprobs"])
            checked += 1
        self.assertGreaterEqual(checked, 2)
        steps = run.told("step")
        self.assertEqual({s["metrics"]["train/sampler_trainer_diff"] for s in steps}, {0})

    def test_any_process_may_be_killed(self):
        for settings in (dict(), dict(n_behind=1), dict(over_sample_rate=0.5, inference_microbatch_size=4)):
            _, want = self.whole(**settings)

            def kill(run):
                for step, who in ((1, "play"), (2, "scorer"), (3, "worker cpu:0"), (4, "play")):
                    run.wait_step(step)
                    for pid in self.plays() if who == "play" else [run.processes()[who]]:
                        os.kill(pid, signal.SIGKILL)
            _, got = self.whole(kill, **settings)
            self.assertEqual(got, want)

    def test_one_copy_or_several_and_any_batch_give_the_same_bytes(self):
        _, want = self.whole()
        _, got = self.whole(environment_processes=1, inference_microbatch_size=2, scorer_threads=2)
        self.assertEqual(got, want)

    def test_an_environment_that_cannot_begin_stops_the_run_before_it_is_made(self):
        for command, words in (("exit 3", "it ended"), ("while read line; do echo '{\"id\":1,\"error\":\"no board\"}'; done", "no board")):
            run = self.start(**{**self.settings, "environment": f"program:{command}"})
            self.assertEqual(run.process.wait(60), 1)
            self.assertIn(words, run.logs())
            self.assertIn("'environment' does not begin with the first row", run.logs())
            self.assertFalse(os.path.exists(run.dir))

    def test_a_reward_program_may_weigh_what_the_environment_gave(self):
        with open(self.task.path("rank.py"), "w") as f:
            f.write("import json, sys\nfor line in sys.stdin:\n    q = json.loads(line)\n"
                    "    if 'responses' not in q:\n        a = {'scope': 'group'}\n    else:\n"
                    "        all = [r['environment']['reward'] for r in q['responses']]\n"
                    "        a = {'rewards': [sum(x > y for y in all) for x in all]}\n"
                    "    print(json.dumps({'id': q['id'], **a}), flush=True)\n")
        run, _ = self.whole(reward_type=f"program:exec {sys.executable} {self.task.path('rank.py')}", max_new_tokens=200)
        rows = self.tool("rollouts", run.dir)
        self.assertEqual({r["reward"] for r in rows} | {0, 1, 2, 3}, {0, 1, 2, 3})
        self.assertEqual(max(r["reward"] for r in rows), 3)

    def test_an_environment_that_fails_leaves_its_samples_out(self):
        with open(self.task.path("poor.py"), "w") as f:
            f.write(PLAY.replace("    if q[\"op\"] == \"end\":", "    if q['op'] == 'step' and q['id'] % 4 == 1:\n"
                                 "        answer = {'error': 'no such tool'}\n    if q['op'] == 'end':"))
        run, _ = self.whole(environment=f"program:exec {sys.executable} {self.task.path('poor.py')}")
        rows = self.tool("rollouts", run.dir)
        out = [r for r in rows if not r["scored"]]
        self.assertGreater(len(out), 0)
        self.assertEqual({r["reason"] for r in out}, {"environment: no such tool"})
        self.assertGreater(len(rows), len(out))


class Examples(unittest.TestCase):
    """The programs of examples/environments, asked as a run asks them."""

    def play(self, program, row, *texts, args=()):
        """The answers to a reset and these turns."""
        lines = [{"id": 1, "op": "reset", "episode": "5.0", "item": 5, "sample": 0, "seed": 77, "row": row}]
        for i, turn in enumerate(texts):
            text, calls = turn if isinstance(turn, tuple) else (turn, [])
            lines.append({"id": i + 2, "op": "step", "episode": "5.0", "text": text, "content": text, "tool_calls": calls})
        p = subprocess.run([sys.executable, os.path.join(ROOT, "examples/environments", program), *args], capture_output=True, text=True,
                           input="".join(json.dumps(line) + "\n" for line in lines), timeout=120)
        self.assertEqual(p.returncode, 0, p.stderr)
        answers = [json.loads(line) for line in p.stdout.splitlines()]
        self.assertEqual([a["id"] for a in answers], [line["id"] for line in lines])
        return answers

    def test_the_game_says_higher_and_lower_and_pays_for_few_guesses(self):
        said = [self.play("guess.py", {"most": 9}, f"I say {n}")[1] for n in range(1, 10)]
        number = 1 + next(i for i, a in enumerate(said) if a.get("done"))
        self.assertEqual([a.get("observation") for a in said], ["higher"] * (number - 1) + [None] + ["lower"] * (9 - number))
        last = self.play("guess.py", {"most": 9}, str(number % 9 + 1), str(number))[2]
        self.assertEqual((last["reward"], last["done"], last["ans_acc"]), (9, True, 1))
        self.assertEqual(self.play("guess.py", {}, "none")[1]["done"], True)

    def test_the_calculator_pays_for_answers_that_came_from_it(self):
        row = {"expression": "12+30"}
        for text, reward, right in (("\\boxed{42}", 0, 0), ("\\boxed{41}", 0, 0)):    # not asked
            a = self.play("calculator.py", row, text)[1]
            self.assertEqual((a["reward"], a["ans_acc"], a["done"]), (reward, right, True))
        called = self.play("calculator.py", row, "12+30=99", "\\boxed{42}")
        self.assertEqual((called[1]["observation"], called[1]["reward"], called[2]["reward"], called[2]["ans_acc"]), ("42", 2, 10, 1))
        call = ("", [{"name": "calculator", "arguments": {"expression": "2*(3+4)"}}])
        self.assertEqual(self.play("calculator.py", row, call)[1]["observation"], "14")
        for bad in ("__import__('os')", "9**9", "1+", "x"):
            self.assertNotIn("done", self.play("calculator.py", row, bad)[1])

    def test_tools_run_programs_and_search(self):
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                self.send_response(200)
                self.end_headers()
                self.wfile.write(b"found " + self.path.encode() + b"." * 5000)

            def log_message(self, *args):
                pass
        server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        python = ("", [{"name": "python", "arguments": {"code": "print(6 * 7)"}}, {"name": "python", "arguments": {"code": "1 / 0"}}])
        search = ("", [{"name": "search", "arguments": {"query": "a b"}}])
        answers = self.play("tools.py", {}, python, search, ("", [{"name": "rm", "arguments": {}}]), "so it is 42",
                            args=["--rollcall", ROLLCALL, "--search", f"http://127.0.0.1:{server.server_port}/?q={{}}"])
        self.assertEqual([t["function"]["name"] for t in answers[0]["tools"]], ["python", "search"])
        self.assertEqual((answers[1]["observation"], answers[1]["role"]), ("42\n\nerror: crash", "tool"))
        self.assertTrue(answers[2]["observation"].startswith("found /?q=a%20b"))
        self.assertEqual(len(answers[2]["observation"]), 2000)
        self.assertEqual(answers[3]["observation"], "error: there is no tool 'rm'")
        self.assertTrue(answers[4]["done"])


if __name__ == "__main__":
    unittest.main()
