"""rollcall score: one line in, one line out, as issue and help say."""
import json
import os
import subprocess
import tempfile
import time
import unittest
from run_tools import alive

ROLLCALL = os.environ.get("ROLLCALL", "build/release/rollcall")


def score(lines, *args):
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as f:
        f.write("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
        f.flush()
        done = subprocess.run([ROLLCALL, "score", "--input", f.name, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=120)
    return done.returncode, [json.loads(line) for line in done.stdout.decode().splitlines()], done.stderr.decode().replace(f.name, "FILE")


class Score(unittest.TestCase):
    def test_a_line_out_for_each_line_in_with_all_its_fields(self):
        code, out, _ = score([{"response": "so \\boxed{0.5}", "gt_answer": "\\frac12"}, {"response": "\\boxed{3}", "gt_answer": 4},
                              {"response": "none", "gt_answer": "4"}], "--reward-type", "boxed")
        self.assertEqual(code, 0)
        self.assertEqual([o["reward"] for o in out], [10, 0, 0])
        self.assertEqual([o["verdict"] for o in out], ["equal", "different", "different"])
        self.assertEqual([o["format_acc"] for o in out], [1, 1, 0])
        self.assertEqual(list(out[0]), ["reward", "format_acc", "ans_acc", "verdict", "pred", "gold", "rule", "us"])
        self.assertEqual((out[0]["pred"], out[0]["gold"]), ("0.5", "\\frac12"))

    def test_no_control_character_reaches_the_terminal(self):
        row = {"response": "\\boxed{\x9b2J\x7f\x85\u00a0\u00e9}", "gt_answer": "4"}
        done = subprocess.run([ROLLCALL, "score", "--input", "-", "--reward-type", "boxed"], input=json.dumps(row).encode(), stdout=subprocess.PIPE, timeout=120)
        self.assertEqual(done.returncode, 0)
        self.assertIn("\x9b2J", json.loads(done.stdout)["pred"])    # what it says is unchanged
        self.assertFalse([c for c in done.stdout.decode() if "\x7f" <= c < "\xa0"], done.stdout)

    def test_what_cannot_be_judged_is_left_out_not_zero(self):
        _, out, err = score([{"response": "\\boxed{3}", "gt_answer": "\\begin{cases} a \\\\ b \\end{cases}"}, {"response": "x"}],
                            "--reward-type", "boxed", "--summary")
        self.assertEqual([o["reward"] for o in out], [None, None])
        self.assertEqual([o["verdict"] for o in out], ["cannot_tell"] * 2)
        self.assertEqual([o["rule"] for o in out], ["gt_answer cannot be parsed", "no gt_answer"])
        self.assertIn("left out 2", err)

    def test_length_rules_use_what_a_line_says(self):
        row = {"response": "\\boxed{1}", "gt_answer": "1"}
        cases = [({}, 10),    # nothing is known
                 ({"n_tok": 3136, "finish_reason": "stop"}, 5), ({"n_tok": 3136}, 5), ({"n_tok": 3136, "finish_reason": "length"}, 0),
                 ({"n_tok": 3584, "finish_reason": "stop"}, 0), ({"n_tok": 3584}, 0),    # 10 - 10, and cut
                 ({"finish_reason": "stop"}, 10), ({"finish_reason": "length"}, 0)]
        for more in ((), ("--cache-length", "896"), ("--cache-length", "0")):
            _, out, _ = score([{**row, **known} for known, _ in cases],
                              "--reward-type", "boxed", "--max-new-tokens", "3584", "--soft-over-length-punishment", *more)
            self.assertEqual([o["reward"] for o in out], [reward for _, reward in cases])
            self.assertEqual([o["ans_acc"] for o in out], [1] * len(cases))
        _, out, _ = score([{**row, **known} for known, _ in cases], "--reward-type", "boxed", "--max-new-tokens", "3584")
        self.assertEqual([o["reward"] for o in out], [10, 10, 10, 0, 10, 0, 10, 0])    # no punishment, but cut is cut

    def test_a_run_files_reward_settings_apply(self):
        cases = [    # the run file, a line, the reward type, the reward, the rule
            ("max_new_tokens: 3584\nsoft_over_length_punishment: true\ncache_length: 896\n",
             {"response": "\\boxed{1}", "gt_answer": "1", "n_tok": 3136}, "boxed", 5, "text"),
            ("reward_timeout_s: 0.2\n", {"response": "x"}, "program:sleep 2; echo '{\"id\": 1, \"reward\": 3}'", None, "program: time-out"),
            ("code_verifier_api_url: http://127.0.0.1:9\n",    # nothing listens there
             {"response": "```python\nprint(1)\n```", "test_cases": {"inputs": [""], "outputs": ["1"]}}, "code", None, "code: verifier error")]
        for settings, line, kind, reward, rule in cases:
            with self.subTest(settings=settings), tempfile.NamedTemporaryFile("w", suffix=".yaml") as f:
                f.write(settings)
                f.flush()
                _, out, err = score([line], "--config", f.name, "--reward-type", kind)
                self.assertEqual([o["reward"] for o in out], [reward], err)
                self.assertIn(rule, out[0]["rule"])

    def test_math_compares_the_whole_response(self):
        _, out, _ = score([{"response": "We get $x = 7$, so the answer is $14$.", "gt_answer": "14"}], "--reward-type", "math")
        self.assertEqual((out[0]["verdict"], out[0]["pred"]), ("equal", "14"))

    def test_tags_need_their_format_in_training_but_not_in_evaluation(self):
        row = {"response": "<answer> 5 </answer> bye", "gt_answer": "5"}
        self.assertEqual([o["reward"] for o in score([row], "--reward-type", "think_answer_tags")[1]], [0])
        self.assertEqual([o["reward"] for o in score([row], "--reward-type", "think_answer_tags", "--eval")[1]], [10])

    def test_a_weighted_list_names_its_parts(self):
        _, out, _ = score([{"response": "\\boxed{5}", "gt_answer": "5"}], "--reward-type", "0.5*boxed + 0.5*think_answer_tags")
        self.assertEqual(out[0]["reward"], 5)
        self.assertEqual(out[0]["parts"], {"boxed": 10, "think_answer_tags": 0})

    def test_a_killed_scorer_takes_along_what_its_reward_program_has_started(self):
        with tempfile.TemporaryDirectory() as folder:
            with open(folder + "/in.jsonl", "w") as f:
                f.write('{"response": "x"}\n')
            # a grandchild that the end of neither its parent nor its input would end
            command = "cd %s && { (trap '' HUP; exec sleep 1000 < /dev/null) & echo $! > child; read -r line; exec sleep 1000; }" % folder
            scorer = subprocess.Popen([ROLLCALL, "score", "-i", folder + "/in.jsonl", "--reward-type", "program:" + command,
                                       "--program-timeout", "600"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            end, child = time.monotonic() + 60, ""
            while not child.endswith("\n") and time.monotonic() < end:
                time.sleep(0.02)
                if os.path.exists(folder + "/child"):
                    with open(folder + "/child") as f:
                        child = f.read()
            scorer.kill()
            scorer.wait()
            child = int(child)
            end = time.monotonic() + 60
            while alive(child) and time.monotonic() < end:
                time.sleep(0.02)
            left = alive(child)
            if left:
                os.kill(child, 9)
            self.assertFalse(left, "the program's child lives on")

    def test_a_bad_line_is_named(self):
        for line, text in (("{", "FILE:2:"), ('{"gt_answer": "1"}', "FILE:2: 'response' must be a string"),
                           ('{"response": "a", "n_tok": -1, "finish_reason": "stop"}', "FILE:2: 'n_tok' must be a count"),
                           ('{"response": "a", "n_tok": 1, "finish_reason": "eos"}', "FILE:2: 'finish_reason'")):
            code, _, err = score([{"response": "\\boxed{1}", "gt_answer": "1"}, line], "--reward-type", "boxed")
            self.assertEqual(code, 1)
            self.assertIn(text, err)

    def test_an_unknown_type_is_a_usage_error_that_names_the_nearest(self):
        code, _, err = score([], "--reward-type", "boxd")
        self.assertEqual(code, 2)
        self.assertIn("did you mean 'boxed'", err)


if __name__ == "__main__":
    unittest.main()
