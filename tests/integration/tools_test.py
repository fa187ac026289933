"""rollcall generate and logprobs: what they print, in which order, and what they refuse.

tags: asan
"""
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import tiny_model

ROLLCALL = os.environ.get("ROLLCALL", "build/release/rollcall")
PROMPTS = [{"prompt": "hello"}, {"messages": {"role": "user", "content": "What is 1+1?"}}, {"prompt": "x"},
           {"messages": [{"role": "user", "content": "a long question, " * 12}]}, {"prompt": "12*34=\n"},
           {"messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "why?"}]},
           {"prompt_ids": [1, 2, 3, 257]}]


def run(args, lines, env=None, want=0):
    text = lines if isinstance(lines, str) else "".join(json.dumps(line) + "\n" for line in lines)
    p = subprocess.run([ROLLCALL] + args, input=text.encode(), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                       env={**os.environ, **(env or {})}, timeout=120)
    if want is not None and p.returncode != want:
        raise AssertionError("rollcall %s ended with %d: %s" % (" ".join(args), p.returncode, p.stderr.decode()))
    return p


class Tools(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.dir = tempfile.TemporaryDirectory()
        cls.model = tiny_model.write(os.path.join(cls.dir.name, "model"))

    @classmethod
    def tearDownClass(cls):
        cls.dir.cleanup()

    def generate(self, *more, env=None, lines=PROMPTS, seed=1):
        return run(["generate", "--model", self.model, "--n", "4", "--seed", str(seed), "--json", "--temperature", "0.8",
                    "--max-new-tokens", "40", *more], lines, env).stdout

    def test_ids_hold_the_end_token_and_the_text_does_not(self):
        for line in self.generate().splitlines():
            r = json.loads(line)
            self.assertEqual(r["finish_reason"] == "stop", r["ids"][-1] in (256, 258))
            self.assertEqual(len(r["ids"]), len(r["logprobs"]))
            self.assertNotIn("<|im_end|>", r["text"])

    def test_messages_go_through_the_template(self):
        r = json.loads(self.generate(lines=PROMPTS[1:2]).splitlines()[0])
        text = "".join(tiny_model.SPECIAL[i - 256] if i > 255 else chr(i) for i in r["prompt_ids"])
        self.assertEqual(text, "<|im_start|>user\nWhat is 1+1?<|im_end|>\n<|im_start|>assistant\n")

    def test_a_bad_line_ends_in_one_sentence_with_its_number(self):
        generate, logprobs = ["generate", "--model", self.model], ["logprobs", "--model", self.model]
        good, score = '{"prompt":"a"}\n', '{"ids":[1,2],"prompt_len":1}\n'
        cases = [
            (generate, good + "{bad\n", "standard input:2:"), (generate, good + good + "[]\n", "standard input:3:"),
            (generate, '{"text":"a"}\n', "'messages' or 'prompt'"), (generate, '{"prompt":3}\n', "'prompt'"),
            (generate, '{"prompt":""}\n', "no token"), (generate, '{"prompt_ids":[1,999999]}\n', "999999"),
            (generate, '{"prompt":"%s"}\n' % ("x" * 600), "600 tokens"),
            (logprobs, score + '{"ids":[1,2]}\n', "standard input:2: the field 'prompt_len' is missing"),
            (logprobs, '{"ids":[1,2],"prompt_len":0}\n', "'prompt_len'"),
            (logprobs, '{"ids":[1,2],"prompt_len":3}\n', "'prompt_len'"),
            (logprobs, '{"ids":[1,"b"],"prompt_len":1}\n', "'ids'[1]"),
            (logprobs, '{"ids":[1,260],"prompt_len":1}\n', "260"),
            (logprobs, '{"ids":[1,2],"prompt_len":1,"temperature":-1}\n', "'temperature'"),
        ]
        for args, text, why in cases:
            p = run(args, text, want=1)
            self.assertIn(why, p.stderr.decode())
            self.assertEqual(len(p.stderr.decode().splitlines()), 1, p.stderr)
            self.assertEqual(p.stdout, b"")

    def test_bad_options_are_usage_errors(self):
        for more in (["--n", "0"], ["--temperature", "-1"], ["--temperature", "1e-50"], ["--min-p", "1e-60"], ["--top-k", "4294967296"], ["--top-k", "-1"], ["--top-p", "0"], ["--batch", "0"], ["--max-new-tokens", "0"],
                     ["--long-prompt", "maybe"], ["--device", "cpu"], ["--dtype", "int8"], ["--threads", "-1"]):
            p = run(["generate", "--model", self.model, *more], PROMPTS[:1], want=None)
            self.assertIn(p.returncode, (1, 2), more)
            self.assertEqual(len(p.stderr.decode().splitlines()), 1, p.stderr)
        p = run(["generate", "--model", os.path.join(self.dir.name, "none")], PROMPTS[:1], want=1)
        self.assertIn("none", p.stderr.decode())

    def test_long_prompts_are_refused_dropped_or_cut_and_counted(self):
        lines = [{"prompt": "short"}, {"prompt": "0123456789" * 3}, {"prompt": "end"}]
        args = ["generate", "--model", self.model, "--json", "--max-prompt-tokens", "10", "--max-new-tokens", "2"]
        p = run(args, lines, want=1)
        self.assertIn("standard input:2:", p.stderr.decode())
        p = run(args + ["--long-prompt", "drop"], lines)
        out = [json.loads(line) for line in p.stdout.splitlines()]
        self.assertEqual(out[1], {"dropped": True, "line": 2})
        self.assertIn("1 prompts were too long and left out", p.stderr.decode())
        p = run(args + ["--long-prompt", "cut_left"], lines)
        out = [json.loads(line) for line in p.stdout.splitlines()]
        self.assertEqual(bytes(out[1]["prompt_ids"]), b"0123456789")
        self.assertIn("1 were cut from the left", p.stderr.decode())

    def test_a_completion_ends_where_the_model_ends(self):
        out = run(["generate", "--model", self.model, "--json", "--ignore-eos"], [{"prompt": "x" * 500}]).stdout
        self.assertEqual(len(json.loads(out)["ids"]), 12)    # of 512 positions

    def test_a_machine_without_a_gpu_is_told_so_where_algorithms_are_asked_for(self):
        for shape in ("Qwen2.5-0.5B", self.model):
            p = run(["doctor", "--devices", "--shape", shape], "", want=None)
            if p.returncode == 0:    # there is one
                self.assertRegex(p.stdout.decode(), r"cuda:0: qkv \d+ to \d+.*; equal bits: ")
            else:
                self.assertRegex(p.stderr.decode(), r"^rollcall doctor: there is no GPU to choose algorithms on: cuda:0: .+\n$")
        self.assertIn(b"no model directory 'nothing' here: unknown shape", run(["doctor", "--devices", "--shape", "nothing"], "", want=None).stderr)
        self.assertIn(b"--shape needs --devices", run(["doctor", "--shape", "starter"], "", want=2).stderr)

    def test_a_gpu_that_cannot_be_opened_is_named_and_the_others_follow(self):
        folder = os.path.join(self.dir.name, "bin")
        os.mkdir(folder)
        shutil.copy(ROLLCALL, folder)
        shutil.copy(os.path.join(os.path.dirname(ROLLCALL), "tests/fake_cuda/librollcall_cuda.so"), folder)

        def doctor(gpus, *words):
            return subprocess.run([os.path.join(folder, "rollcall"), "doctor", *words], capture_output=True, text=True, timeout=120,
                                  env=dict(os.environ, FAKE_CUDA=gpus, RC_CUDA_CHOICES="off"))

        why = "cannot be opened: opening the device: CUDA says all CUDA-capable devices are busy or unavailable"
        for gpus, bad in (("ok busy ok", [1]), ("busy ok", [0]), ("busy busy", [0, 1]), ("ok ok", [])):
            p = doctor(gpus, "--devices", "--shape", self.model)
            for i, word in enumerate(gpus.split()):
                self.assertIn(f"cuda:{i}: {why}\n" if word == "busy" else f"cuda:{i}: a made-up GPU; no driver\n", p.stdout)
            n = len(gpus.split())
            self.assertEqual((p.returncode, p.stderr), (1, f"rollcall doctor: no algorithms are chosen on {len(bad)} of {n} GPUs; their lines say why\n")
                             if bad else (0, ""))
        p = doctor("ok busy ok")
        self.assertRegex(p.stdout, rf"ok +cuda:0: a made-up GPU, 1.0 of 1.0 GiB free\nnote +cuda:1: {why}\nok +cuda:2: a made-up GPU")
        p = doctor("", "--devices", "--shape", self.model)
        self.assertEqual((p.returncode, p.stderr), (1, "rollcall doctor: there is no GPU to choose algorithms on: cuda:0: there is no such GPU\n"))


if __name__ == "__main__":
    unittest.main()
