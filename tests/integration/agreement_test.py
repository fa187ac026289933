"""Sampler and trainer give the same bits: generate, then logprobs, whatever the batch, the threads and the code path."""
import json
import os
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


def code_paths(model):
    """Those of the CPU back end that this processor has."""
    found = []
    for path in ("avx512", "avx2", "scalar"):
        p = run(["logprobs", "--model", model], [], {"RC_CPU": path}, want=None)
        if p.returncode == 0:
            found.append(path)
        else:
            assert b"RC_CPU" in p.stderr, p.stderr
    return found


class Agreement(unittest.TestCase):
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

    def requests(self, out):
        return [{"ids": r["prompt_ids"] + r["ids"], "prompt_len": len(r["prompt_ids"]), "temperature": 0.8}
                for r in map(json.loads, out.splitlines())]

    def test_samples_are_the_same_bytes_for_any_batch_thread_count_and_code_path(self):
        want = self.generate()
        self.assertEqual(len(want.splitlines()), 4 * len(PROMPTS))
        finish = {json.loads(line)["finish_reason"] for line in want.splitlines()}
        self.assertEqual(finish, {"stop", "length"})
        for batch in ("1", "3", "32"):
            for threads in ("1", "2"):
                self.assertEqual(self.generate("--batch", batch, "--threads", threads), want, (batch, threads))
        want_bf16 = self.generate("--dtype", "bfloat16")
        for path in code_paths(self.model):
            self.assertEqual(self.generate(env={"RC_CPU": path}), want, path)
            self.assertEqual(self.generate("--batch", "3", "--dtype", "bfloat16", env={"RC_CPU": path}), want_bf16, path)

    def test_scored_log_probs_are_the_recorded_ones_to_the_last_digit(self):
        for dtype in ("float32", "bfloat16"):
            out = self.generate("--dtype", dtype)
            want = [json.loads(line)["logprobs"] for line in out.splitlines()]
            cases = [(None, ["--threads", "1"]), (None, ["--threads", "2"]), (None, ["--batch-tokens", "1"])]
            cases += [(path, ["--batch-tokens", "300"]) for path in code_paths(self.model)]
            for path, more in cases:
                got = run(["logprobs", "--model", self.model, "--dtype", dtype, *more], self.requests(out),
                          {"RC_CPU": path} if path else {})
                got = [json.loads(line)["logprobs"] for line in got.stdout.splitlines()]
                self.assertEqual(got, want, (dtype, path, more))

    def test_a_sample_depends_on_seed_and_number_not_on_the_others(self):
        alone = self.generate(lines=PROMPTS[:1])
        self.assertEqual(alone, b"".join(self.generate().splitlines(True)[:4]))
        self.assertNotEqual(alone, self.generate(lines=PROMPTS[:1], seed=2))
        self.assertEqual(len(set(alone.splitlines())), 4)

    def test_greedy_is_the_likeliest_and_the_same_for_all_samples(self):
        out = [json.loads(line) for line in self.generate("--temperature", "0").splitlines()]
        for i in range(0, len(out), 4):
            self.assertEqual(out[i:i + 4], [out[i]] * 4)
        top1 = [json.loads(line) for line in self.generate("--top-k", "1").splitlines()]
        self.assertEqual([r["ids"] for r in top1], [r["ids"] for r in out])


if __name__ == "__main__":
    unittest.main()
