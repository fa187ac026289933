"""tags: asan limit=900

Bad models, run files and places: one clear sentence, exit code 1 or 2, and nothing half-written."""
import json
import os
import shutil
import signal
import socket
import subprocess
import time
import unittest
from run_tools import LIMIT, ROLLCALL, Holds, Run, RunCase
from tiny_model import tensors_change


def json_change(path, change):
    with open(path) as f:
        value = json.load(f)
    change(value)
    with open(path, "w") as f:
        json.dump(value, f)


def cut(path, size):
    with open(path, "r+b") as f:
        f.truncate(size if size >= 0 else os.path.getsize(path) + size)


ANSWER = """while read -r line; do id=${line#*'"id":'}; echo '{"id":'${id%%,*}'FIELDS}'; done"""
PROGRAMS_THAT_DO_NOT_SCORE = [    # and what the start says of each
    ("echo no module named nothere >&2; exit 1", 'it ended; it wrote "no module named nothere" on standard error'),
    ("no-such-program", """no-such-program: not found" on standard error"""),
    ("while read -r line; do echo hello; done", "time-out after stray lines ('reward_timeout_s' is 0.5)"),
    ("exec sleep 60", "time-out ('reward_timeout_s' is 0.5)"),
    (ANSWER.replace("FIELDS", ""), "asked about the first row of"),
    (ANSWER.replace("FIELDS", ',"error":"no key"'), "error: no key"),
    (ANSWER.replace("FIELDS", ',"reward":1e308'), "the reward 1e+308 is not from -1e+09 to 1e+09"),
]


class BadInput(RunCase):
    def rollcall(self, *args, text=""):
        return subprocess.run([ROLLCALL, *args], input=text, capture_output=True, text=True, timeout=LIMIT)

    def one_sentence(self, done, code, *words):
        self.assertEqual(done.returncode, code, f"{done.args}: {done.stderr}")
        self.assertEqual(len(done.stderr.strip().splitlines()), 1, done.stderr)
        for word in words:
            self.assertIn(word, done.stderr)
        self.assertEqual(done.stdout, "")

    def train(self, run_file, *extra):
        """The message of a run that cannot start; nothing must have been made."""
        runs = self.task.path("never")
        done = self.rollcall("train", run_file, "--batch", "--runs-dir", runs, *extra)
        self.assertFalse(os.path.exists(runs), done.stderr)
        return done

    def test_no_name_drives_the_terminal_it_is_printed_on(self):
        """Window title, clear screen, one in C1, turned text, a line of its own: whichever command says it."""
        evil = "no\033]0;owned\007\033[2J\u009b31m\r\u202e\nrun x: finished"
        for args in (["train", evil], ["train", "--devices", evil], ["ctl", "--run", evil, "status"], ["console", evil], ["eval", "-m", evil],
                     ["score", "-i", evil], ["generate", "--model", evil], ["rollouts", evil], ["export", evil], ["template", "--model", evil],
                     ["serve", "--model", evil], ["merge", evil, "x"], [evil], ["pull", evil], ["settings", evil], ["doctor", evil],
                     ["sft", "-m", evil], ["tokenize", "--model", evil], ["profile", evil], ["console", "--theme", evil, evil]):
            done = subprocess.run([ROLLCALL, *args], capture_output=True, stdin=subprocess.DEVNULL, timeout=LIMIT)
            said = (done.stdout + done.stderr).decode()
            self.assertNotEqual(done.returncode, 0, args)
            self.assertFalse([c for c in said if (c < " " and c not in "\n\t") or "\x7f" <= c <= "\x9f" or c == "\u202e"], said)
            self.assertNotIn("\nrun x: finished", said)

    def test_a_reader_that_has_left_is_no_error(self):
        for args in (["train", "--help"], ["settings"], ["metrics"]):
            ours, theirs = os.pipe()
            os.close(ours)
            done = subprocess.run([ROLLCALL, *args], stdout=theirs, stderr=subprocess.PIPE, timeout=LIMIT)
            os.close(theirs)
            self.assertEqual((done.returncode, done.stderr), (0, b""), args)

    def broken_models(self):
        """(path, words that the sentence must have) of models with one fault each."""
        def no_key(name):
            return lambda d: json_change(os.path.join(d, "config.json"), lambda c: c.pop(name))

        def merge(pair):
            return lambda d: json_change(os.path.join(d, "tokenizer.json"), lambda t: t["model"].update(merges=[pair]))

        def tensors(change):
            return lambda d: tensors_change(os.path.join(d, weights), change)

        def added(token):
            return lambda d: json_change(os.path.join(d, tokenizer), lambda t: t["added_tokens"].append(dict(t["added_tokens"][0], **token)))

        weights, config, tokenizer = "model.safetensors", "config.json", "tokenizer.json"
        up = "model.layers.1.mlp.up_proj.weight"
        faults = [
            (tensors(lambda t: t.pop(up)), [up, "missing"]),
            (tensors(lambda t: t.update(stray=t.pop(up))), [up, "missing"]),
            (tensors(lambda t: t.update(stray=t["model.norm.weight"])), [weights, "stray"]),
            (lambda d: json_change(os.path.join(d, config), lambda c: c.update(intermediate_size=32)), [weights, "must be"]),
            (added({"id": 260, "content": "<one too many>"}), ["tokenizer has 261 ids"]),
            (lambda d: json_change(os.path.join(d, "tokenizer_config.json"), lambda t: t.update(chat_template="{% if %}")),
             ["chat_template"]),
            (lambda d: cut(os.path.join(d, weights), -100), [weights]),
            (lambda d: cut(os.path.join(d, weights), 200), [weights]),
            (lambda d: cut(os.path.join(d, weights), 4), [weights]),
            (lambda d: os.remove(os.path.join(d, weights)), [weights]),
            (no_key("hidden_size"), [config, "hidden_size"]), (no_key("num_hidden_layers"), [config, "num_hidden_layers"]),
            (no_key("vocab_size"), [config, "vocab_size"]), (no_key("intermediate_size"), [config, "intermediate_size"]),
            (no_key("num_attention_heads"), [config, "num_attention_heads"]),
            (lambda d: cut(os.path.join(d, config), 40), [config]),
            (merge("nothing\u2603 here"), [tokenizer, "merge"]), (merge("alone"), [tokenizer, "merge"]),
            (merge(["a", "b"]), [tokenizer, "merge"]), (merge([1, 2]), [tokenizer]),
            (lambda d: cut(os.path.join(d, tokenizer), 100), [tokenizer]),
        ]
        for i, (fault, words) in enumerate(faults):
            path = self.task.path(f"broken-{i}")
            shutil.copytree(self.task.path("model"), path)
            fault(path)
            yield path, words

    def test_a_broken_model_is_named_with_its_file_by_every_command_that_reads_it(self):
        good, out = self.task.run_file(), self.task.path("taught")
        for path, words in self.broken_models():
            with self.subTest(path=path, words=words):
                self.one_sentence(self.train(good, "--model", path), 1, path, *words)
                self.one_sentence(self.rollcall("generate", "--model", path, text='{"prompt":"a"}\n'), 1, path, *words)
                self.one_sentence(self.rollcall("eval", "--model", path, "--dataset", self.task.path("train.jsonl"), "--reward-type",
                                                "boxed"), 1, path, *words)
                if "tokenizer.json" not in words:    # it reads ids
                    self.one_sentence(self.rollcall("logprobs", "--model", path, text='{"ids":[1,2],"prompt_len":1}\n'), 1, path, *words)
        self.assertFalse(os.path.exists(out))

    def test_a_fault_in_the_run_file_is_reported_with_file_line_and_name(self):
        cases = [("learning_rat: 0.1", "learning_rat"), ("train_batch_size: 0", "train_batch_size"),
                 ("inference_batch_size: 0", "inference_batch_size"), ("num_generations: many", "num_generations"),
                 ("learning_rate: [1, 2]", "learning_rate"), ("algo: ALCHEMY", "algo")]
        with open(self.task.run_file()) as f:
            good = f.read()
        for line, word in cases:
            with self.subTest(line=line):
                name = line.split(":")[0]
                lines = [text for text in good.splitlines() if not text.startswith(name + ":")] + [line]
                path = self.task.path("bad.yaml")
                with open(path, "w") as f:
                    f.write("\n".join(lines) + "\n")
                self.one_sentence(self.train(path), 2, f"bad.yaml:{len(lines)}:", word)
        with open(path, "w") as f:
            f.write(good + "devices: [\n")
        self.assertIn(self.train(path).returncode, (1, 2))
        self.one_sentence(self.train(self.task.path("none.yaml")), 2, "none.yaml")

    def test_unknown_rewards_and_broken_rows_are_refused_before_a_run_is_made(self):
        rows = {"broken": ['{"messages": [{"role"'], "list": ["[1]"], "no_messages": ['{"gt_answer": "2"}'],
                "no_content": ['{"messages": [{"role": "user"}], "gt_answer": "2"}'], "empty": []}
        with open(self.task.path("train.jsonl")) as f:
            first = f.readline()
        for name, bad in rows.items():
            path = self.task.path(f"{name}.jsonl")
            with open(path, "w") as f:
                f.write("".join([first] * (2 if bad else 0) + [line + "\n" for line in bad]))
            with self.subTest(rows=name):
                self.one_sentence(self.train(self.task.run_file(), "--dataset", path), 1, f"{name}.jsonl" + (":3" if bad else ""))
        self.one_sentence(self.train(self.task.run_file(), "--reward-type", "praise"), 2, "praise", "boxed")
        self.one_sentence(self.rollcall("eval", "--model", self.task.path("model"), "--dataset", self.task.path("train.jsonl"),
                                        "--reward-type", "praise"), 2, "praise")

    def data(self, name, text):
        path = self.task.path(name)
        with open(path, "wb") as f:
            f.write(text if isinstance(text, bytes) else text.encode())
        return path

    def test_data_that_the_reward_cannot_score_are_refused_by_every_command_that_scores(self):
        model, good = self.task.path("model"), self.task.path("train.jsonl")
        ask = '{"messages": {"role": "user", "content": "1+1"}'
        code = self.data("code.jsonl", ask + ', "test_cases": {"inputs": ["1"], "outputs": ["2"]}}\n')
        half = self.data("half.jsonl", ask + ', "gt_answer": "2"}\n\n' + ask + ', "gt_answer": " "}\n' + ask + "}\n")
        cases = [("code", good, ["train.jsonl:1: ", "'code'", "'test_cases' is missing", "boxed"]),
                 ("boxed", code, ["code.jsonl:1: ", "'boxed'", "'gt_answer' is missing", "code_share"]),
                 ("math", half, ["half.jsonl:4: ", "'gt_answer' is missing", "answer_column"]),
                 ("0.9*boxed + 0.1*code", good, ["train.jsonl:1: ", "reward 'code'", "'test_cases'"])]
        for reward, data, words in cases:
            with self.subTest(reward=reward, data=data):
                args = ["--reward-type", reward, "--dataset", data]
                for more in (["--dry-run"], []):
                    self.one_sentence(self.train(self.task.run_file(), *args, *more), 1, *words)
                self.one_sentence(self.rollcall("eval", "--model", model, *args), 1, *words)
        self.one_sentence(self.train(self.task.run_file(), "--reward-type", "boxed", "--eval-dataset", json.dumps({"hard": code})), 1,
                          "evaluation set 'hard'", "code.jsonl:1: ", "'gt_answer'")

    def test_a_dry_run_says_what_the_start_would_say(self):
        runs = self.task.path("dry")
        taken = os.path.join(runs, "taken")
        os.makedirs(os.path.join(taken, "mine"))
        file = self.task.run_file(reward_type="boxed")    # no program to start
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            s.listen(1)
            busy = "127.0.0.1:%d" % s.getsockname()[1]
            cases = [    # settings, exit code, words
                (["--devices", "gpu0"], 2, ["'devices'", "unknown device 'gpu0'", "cuda:N"]),
                (["--devices", "cpu:0,cpu:0", "-i", "2", "-ibs", "4", "-imbs", "4"], 2, ["'cpu:0' twice"]),
                (["--max-new-tokens", "4000"], 2, ["max_prompt_tokens (64)", "max_new_tokens (4000)", "4064", "takes 512"]),
                (["--name", "taken"], 1, [taken, "exists", "--resume"]),
                (["--name", "a/b"], 2, ["'name' cannot be 'a/b'"]),
                (["--listen", busy], 1, ["'listen'", busy, "in use"]),
                (["--metrics-listen", busy], 1, ["'metrics_listen'", busy, "in use"]),
                (["--metrics-listen", "nowhere"], 2, ["'metrics_listen'", "HOST:PORT"]),
                (["--metrics-listen", "127.0.0.1:-1"], 2, ["'metrics_listen'", "'-1' is not a port"]),
                (["--seed", "1e3"], 2, ["'seed' cannot be '1e3'", "a whole number"]),
                (["--save-dir", "/proc/checkpoints"], 1, ["/proc"]),    # a disk without room
            ]
            if not os.path.exists("/dev/nvidiactl"):
                cases.append((["--devices", "cuda:0"], 1, ["'cuda:0' does not exist", "cpu:0"]))
            for args, code, words in cases:
                for more in (["--dry-run"], []):
                    with self.subTest(args=args, more=more):
                        self.one_sentence(self.rollcall("train", file, "--batch", "--runs-dir", runs, *args, *more), code, *words)
            self.assertEqual(os.listdir(runs), ["taken"])    # nothing is made
        broken = self.rollcall("train", file, "--dry-run", "--reward-type", "0.5*boxed + 0.5*program:false")
        self.assertEqual(broken.returncode, 1)
        self.assertIn("'reward_type' does not answer when it is asked about the first row of", broken.stderr)
        for reward, words in PROGRAMS_THAT_DO_NOT_SCORE:
            with self.subTest(reward=reward):
                for more in (["--dry-run"], ["--batch"]):
                    limit = "0.5" if "time-out" in words else "60"    # only a program that hangs is to meet its limit
                    bad = self.rollcall("train", file, "--reward-type", f"program:{reward}", "--reward_timeout_s", limit, "--runs-dir", self.task.path("none"), *more)
                    self.assertEqual(bad.returncode, 1, bad.stderr)
                    self.assertIn(words, bad.stderr.splitlines()[-1])
                    self.assertFalse(os.path.exists(self.task.path("none")))
        good = self.rollcall("train", file, "--dry-run", "-i", "2", "--devices", "cpu:0,cpu:1", "--offload-optimizer",
                             "--master_address", "head", "--weights", "nccl")
        self.assertEqual(good.returncode, 0, good.stderr)
        self.assertIn("note: 'offload_optimizer' has no effect: ", good.stderr)
        self.assertIn("note: 'master_address' has no effect: ", good.stderr)
        self.assertIn("note: 'weights' nccl is for GPUs", good.stderr)
        self.assertIn("through shared memory", good.stdout)
        self.assertRegex(good.stdout, r'prompt 3: +"[^"]*2\+4=[^"]*", \d+ tokens\n')
        self.assertIn('answers end:    with "<|im_end|>" (258), ', good.stdout)
        self.assertIn("system prompt:  none is put before the prompts\n", good.stdout)
        rewards = self.rollcall("train", file, "--dry-run", "--reward-type", "boxed", "--system-prompt", "", "--max-prompt-tokens", "128")
        self.assertIn("\\\\boxed{}.\", which is the reward_type's own; system_prompt 'none' leaves it out\n", rewards.stdout)
        endless = self.task.path("endless")
        shutil.copytree(self.task.path("model"), endless)
        for name in ("config", "generation_config", "tokenizer_config"):
            json_change(os.path.join(endless, name + ".json"), lambda c: [c.pop(k, None) for k in ("eos_token_id", "eos_token")])
        for more in (["--dry-run"], ["--batch"]):
            self.one_sentence(self.rollcall("train", file, "-m", endless, "--runs-dir", self.task.path("none"), *more), 1, f"'{endless}' names no end token",
                              'its chat template ends answers with "<|im_end|>" (258)', "'eos_token'")
        json_change(os.path.join(endless, "tokenizer_config.json"), lambda c: c.update(eos_token="<pad>"))
        other = self.rollcall("train", file, "--dry-run", "-m", endless)
        self.assertEqual(other.returncode, 0, other.stderr)
        self.assertIn('note: the chat template ends answers with "<|im_end|>" (258), which is no end token of', other.stderr)
        lost = self.rollcall("train", file, "--dry-run", "-cp", self.task.path("nowhere"))
        self.one_sentence(lost, 1, "'checkpoint_path'", "nowhere")

    def test_a_newcomer_s_mistake_is_answered_with_one_sentence_that_helps(self):
        run_file, no_data = self.task.run_file(), self.task.run_file("no_data.yaml")
        with open(no_data) as f:
            lines = [line for line in f if not line.startswith("dataset:")]
        self.data("no_data.yaml", "".join(lines))
        data = {"parquet": b"PAR1\x15\x04\nPAR1", "csv": "question,answer\n1+1\n", "array": '[{"question": "1+1", "answer": "2"}, {"text": "1"}]',
                "arrow": "ARROW1 and more", "pretty": '{\n "question": "1+1"\n}\n'}
        path = {name: self.data("data." + name, text) for name, text in data.items()}
        os.makedirs(self.task.path("empty"))

        def train(*args):
            return ["train", run_file, "--dry-run", *args]

        cases = [    # what is typed, exit code, words that must be in the answer
            (train("-d", path["parquet"]), 1, ["a Parquet file", path["parquet"], "cut short"]),
            (train("-d", path["arrow"]), 1, ["an Arrow file", path["arrow"], "read_feather"]),
            (train("-d", path["csv"]), 1, [path["csv"] + ":2: ", "1 cells", "2 columns"]),
            (train("-d", path["array"]), 1, [path["array"] + ", row 2: ", "'text'", "prompt_column"]),
            (train("-d", path["csv"], "--prompt-template", "Think."), 2, ["'prompt_template' names no column"]),
            (train("-d", path["pretty"]), 1, ["several lines", "jq"]),
            (train("-d", "openai/gsm8k"), 1, ["there is no file 'openai/gsm8k'", "rollcall pull --dataset openai/gsm8k"]),
            (train("-d", self.task.path("empty")), 1, ["holds no file of data", ".parquet"]),
            (train("-d", os.path.join(self.task.dir, "*.parq")), 1, ["no file matches the pattern"]),
            (train("--wandb", "offline", "--project", "gsm8k/qwen:0.5b"), 2, ["'gsm8k/qwen:0.5b'", "holds '/'"]),
            (["train", no_data, "--dry-run"], 2, ["no dataset is given", "--dataset"]),
            (["console", "/etc"], 1, ["'/etc' is not a run", "run.yaml"]),
            (["ctl", "--run", "/etc", "status"], 1, ["'/etc' is not a run"]),
            (["ctl", "pause", "deep"], 2, ["'deep'", "it is one of step, rollouts, drain"]),
            (["ctl", "pause", "step", "--depth", "drain"], 2, ["one depth"]),
            (["ctl", "dance-and-sing"], 2, ["unknown command", "pause", "resume"]),
            (["tarin"], 2, ["unknown command 'tarin'", "did you mean 'train'?"]),
            (["consol"], 2, ["did you mean 'console'?"]),
            (["xyzzy"], 2, ["unknown command 'xyzzy'", "--help"]),
            (["random-model", "--shape", "starter", "--out", "-"], 2, ["'--out' takes a folder", "./-"]),
            (["convert", "x.gguf", "-"], 2, ["'rollcall convert' takes a folder", "./-"]),
            (["quickstart", "-"], 2, ["takes a folder"]),
            (["manual", "-"], 2, ["takes a folder"]),
            (["init", "-", "--yes"], 2, ["'-' stands for standard output", "./-"]),
            (["simulate", "--workers", "512"], 2, ["--workers is 512", "must be 1 to 200"]),
            (["simulate", "--done", "500"], 2, ["--done is 500", "must be 0 to 400"]),
        ]
        for args, code, words in cases:
            with self.subTest(args=args):
                self.one_sentence(self.rollcall(*args), code, *words)

    def test_prompts_that_are_all_too_long_are_reported_with_their_lengths(self):
        long = self.task.run_file("long.yaml", system_prompt="Think. " * 8, max_prompt_tokens=8)
        for more in (["--dry-run"], ["--batch"]):
            self.one_sentence(self.rollcall("train", long, "--runs-dir", self.task.path("none"), *more), 1, "no prompt of ", "max_prompt_tokens 8: the shortest has ",
                              " tokens, 66 of them the system prompt; raise max_prompt_tokens or give a shorter system_prompt")

    def test_a_run_that_learns_from_no_sample_says_so_and_fails(self):
        """The reward always fails, always runs out of time, or scores alike what filter_range then takes out."""
        def answer(fields):
            return f"""while read -r line; do id=${{line#*'"id":'}}; echo '{{"id":'${{id%%,*}}',{fields}}}'; done"""

        refuses, right = answer('"error":"judge away"'), answer('"reward":1,"ans_acc":1')
        late = "sleep 3600"
        cases = [    # reward, settings, words of the failure, whether a step was made
            (refuses, dict(max_steps=2, waste_alert=16), ["nothing was learned: the last 64 samples were all left out", "64 errors",
                                                          "judge away", "logs/scorer.log"], True),
            (late, dict(max_steps=1, reward_timeout_s=0.5, scorer_threads=16), ["nothing was learned: the last 32 samples were all left out", "32 time-outs",
                                                              "raise reward_timeout_s"], True),
            (refuses, dict(max_steps=1000, waste_alert=16, waste_limit=80), ["the last 80 samples were all left out", "waste_limit is 80"], True),
            (right, dict(filter_range=[0.1, 0.9], num_episodes=1, waste_alert=16), ["nothing was learned: 256 of 256 answers are right: all of "
                                                                                    "the last 64 groups were filtered", "filter_range"], False),
        ]
        for i, (reward, settings, words, stepped) in enumerate(cases):
            with self.subTest(settings=settings):
                run = Run(self.task, f"waste-{i}", self.task.run_file("waste.yaml", reward_type=self.task.later_reward(f"asked-{i}", reward), **settings))
                self.addCleanup(run.kill)
                code, last = run.wait()
                self.assertEqual((code, last["event"], last["step"] > 0), (1, "failed", stepped), run.logs())
                for word in words:
                    self.assertIn(word, last["reason"])
                self.assertEqual(len(run.told("alert")), "waste_alert" in settings)
                self.assertEqual(" alert " in run.ctl("events").stdout, "waste_alert" in settings)

    def assert_no_step(self, run, *words):
        code, last = run.wait()
        self.assertEqual((code, last.get("event"), last.get("step")), (1, "failed", 0), run.logs())
        for word in words:
            self.assertIn(word, last["reason"])

    def test_prompts_that_do_not_fill_one_rollout_step_are_counted_in_the_failure(self):
        one_long = self.task.path("one_long.jsonl")
        with open(self.task.path("train.jsonl")) as f, open(one_long, "w") as out:
            out.writelines([*f.readlines()[:63], json.dumps({"messages": [{"role": "user", "content": "1+1=" * 100}], "gt_answer": "2"}) + "\n"])
        few = self.task.run_file("few.yaml", dataset=one_long, inference_batch_size=64, num_episodes=1)
        for more in (["--dry-run"], ["--batch"]):
            done = self.rollcall("train", few, "--runs-dir", self.task.path("none"), *more)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn("note: 1 prompts of ", done.stderr)
            self.assertIn(f"'{one_long}' has 63 usable lines, fewer than the 64 prompts of a rollout step; lower 'inference_batch_size'", done.stderr)
        holds = Holds(self.task.path("few-holds"))
        holds.arm("worker cpu:0", "starting")
        run = Run(self.task, "grown", self.task.run_file("grown.yaml", num_episodes=1), env={"RC_TEST_HOLD": holds.dir})
        self.addCleanup(run.kill)
        self.until("the worker is held", lambda: holds.held("worker cpu:0", "starting"), run)
        self.ok(run, "set", "inference_batch_size=128")    # before the number of prompts is known
        holds.release("worker cpu:0", "starting", holds.held("worker cpu:0", "starting"))
        self.assert_no_step(run, "no optimizer step was made: a rollout step takes 128 prompts (inference_batch_size x num_inferencer), and the 64 of ",
                            "do not fill one; lower inference_batch_size")

    def test_groups_that_do_not_fill_one_batch_are_named_in_the_failure(self):
        once = """program:good=1; while read -r line; do id=${line#*'"id":'}; echo '{"id":'${id%%,*}',"reward":'$good',"ans_acc":'$good'}'; good=0; done"""
        run = Run(self.task, "once", self.task.run_file("once.yaml", reward_type=once, filter_range=[0.1, 0.9], num_episodes=1))
        self.addCleanup(run.kill)
        self.assert_no_step(run, "no optimizer step was made: fewer than the 8 groups of one step (train_batch_size x num_trainers) came through "
                            "filter_range; ", "or lower train_batch_size")    # one group of 64 is useful

    def test_samples_in_a_row_keep_counting_when_the_controller_is_killed_and_begin_at_0_when_the_run_is_resumed(self):
        refuses = self.task.later_reward("row-asked", """while read -r line; do id=${line#*'"id":'}; echo '{"id":'${id%%,*}',"error":"judge away"}'; done""")
        samples = "select coalesce(max(cast(value as integer)), 0) from value where name = 'samples'"
        file = self.task.run_file("row.yaml", reward_type=refuses, waste_alert=16, waste_limit=960)
        run = Run(self.task, "row", file, ["--max-steps", "100000"])
        self.addCleanup(run.kill)
        for least in (32, 320):
            self.until("samples come", lambda: run.journal_number(samples) >= least, run)
            os.kill(run.processes()["controller"], signal.SIGKILL)
        code, last = run.wait()
        self.assertEqual((code, last["event"]), (1, "failed"), run.logs())
        self.assertIn("the last 960 samples were all left out (0 time-outs, 960 errors of the verifier, the last: program: error: judge away)", last["reason"])
        self.assertEqual(run.journal_number(samples), 960)
        self.assertEqual(len(run.told("alert")), 1, run.told("alert"))
        os.rmdir(self.task.path("row-asked"))    # the start asks the program again
        again = Run(self.task, "row", resume=True)
        self.addCleanup(again.kill)
        self.assertEqual(again.wait()[1]["event"], "failed", again.logs())
        self.assertEqual(again.journal_number(samples), 2 * 960)

    def test_a_port_that_is_taken_from_a_run_is_named_in_its_failure(self):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        address = f"127.0.0.1:{port}"
        run = Run(self.task, "port", self.task.run_file(), ["--max-steps", "100000", "--listen", address])
        self.addCleanup(run.kill)
        run.wait_step(1)
        agent, gate = run.processes()["agent"], run.processes()["gate"]
        os.kill(agent, signal.SIGSTOP)
        os.kill(gate, signal.SIGKILL)
        with socket.socket() as s:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            end = time.monotonic() + LIMIT
            while True:
                try:
                    s.bind(("127.0.0.1", port))
                    break
                except OSError:    # the gate is still ending
                    self.assertLess(time.monotonic(), end)
            s.listen()
            os.kill(agent, signal.SIGCONT)
            code, last = run.wait()
        self.assertEqual((code, last["event"]), (1, "failed"))
        for words in ("'gate' cannot run", "choose another HOST:PORT for 'listen'", address, "another process listens there already"):
            self.assertIn(words, last["reason"])

    def test_a_live_run_s_name_is_taken_by_nobody_else(self):
        run = Run(self.task, "live", self.task.run_file(), ["--max-steps", "100000"])
        self.addCleanup(run.kill)
        run.wait_step(1)
        before = run.processes()
        self.one_sentence(self.rollcall("train", self.task.run_file(), "--batch", "--runs-dir", self.task.path("runs"), "--name", "live"),
                          1, run.dir, "exists")
        self.assertEqual(run.processes(), before)
        run.wait_step(run.step() + 1)

    def full_disk(self, size_kib, *extra):
        """A run under a file system of this size: exit code, JSON lines, errors, what the run's directory holds."""
        place = self.task.path(f"full-{size_kib}")
        os.mkdir(place)
        script = ('mount -t tmpfs -o size="$1"k none "$2" || exit 77; shift; place=$1; shift; '
                  '"$@"; code=$?; find "$place" -type f; exit $code')
        space = ["unshare", "--mount"] + ([] if os.geteuid() == 0 else ["--map-root-user"])
        done = subprocess.run([*space, "sh", "-c", script, "sh", str(size_kib), place, ROLLCALL, "train", self.task.run_file(), "--batch",
                               "--format", "jsonl", "--runs-dir", os.path.join(place, "runs"), "--name", "full", *extra],
                              capture_output=True, text=True, timeout=LIMIT)
        if done.returncode == 77 or "unshare" in done.stderr:
            self.skipTest("no small file system can be mounted here, so a full disk is not tested: " + done.stderr)
        lines = done.stdout.splitlines()
        return done.returncode, [json.loads(x) for x in lines if x.startswith("{")], done.stderr, [x for x in lines if x.startswith("/")]

    def test_a_run_that_cannot_work_where_it_is_says_why(self):
        def train(limit, *args):
            return subprocess.run(["sh", "-c", limit + '; exec "$@"', "sh", ROLLCALL, "train", self.task.run_file(), "--batch", "--runs-dir",
                                   self.task.path("runs"), *args], capture_output=True, text=True, timeout=LIMIT)

        done = train("ulimit -n 64", "--max-steps", "1", "--name", "narrow")
        self.assertEqual(done.returncode, 0, done.stderr)
        done = train("ulimit -f 200", "--max-steps", "500", "--name", "short")    # files of at most 100 KiB
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("cannot be written", done.stderr)
        self.assertNotIn("signal", done.stderr)
        deep = os.path.join(self.task.path("runs"), *["d" * 200] * 3)
        self.one_sentence(train("true", "--runs-dir", deep), 2, "shorter --runs-dir")
        os.mkfifo(self.task.path("fifo.jsonl"))
        self.one_sentence(train("true", "--dataset", self.task.path("fifo.jsonl")), 1, "fifo.jsonl", "FIFO")

    def test_a_disk_too_full_for_the_start_leaves_no_run(self):
        code, lines, errors, files = self.full_disk(4)
        self.assertEqual((code, lines, files), (1, [], []), errors)
        self.assertEqual(len(errors.strip().splitlines()), 1, errors)
        self.assertIn("no space", errors)

    def test_a_disk_that_fills_up_fails_the_run_with_its_reason_and_leaves_whole_checkpoints(self):
        code, lines, errors, files = self.full_disk(3000, "--max-steps", "100000", "--save-interval", "2")
        self.assertEqual((code, lines[-1]["event"]), (1, "failed"), errors)
        self.assertRegex(lines[-1]["reason"], "No space left|disk is full")
        for path in {x[:x.index("/", x.index("/checkpoints/") + 13)] for x in files if "/checkpoints/step-" in x}:
            self.assertRegex(path, r"/step-\d{6}$")    # not a temporary one
            for name in ("model.safetensors", "config.json", "state/manifest.json", "state/trainer.safetensors"):
                self.assertIn(os.path.join(path, name), files)


if __name__ == "__main__":
    unittest.main()
