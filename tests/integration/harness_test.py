"""tags: limit=600

A harness: programs that ask the model over HTTP and know nothing of training. What they are answered is trained on token by token, as an
environment of the same game is; rewards that were acknowledged count once, whoever is killed; what a program must not do is refused."""
import json
import os
import signal
import sys
import unittest
from run_tools import PLAY, RunCase, commands

STEPS = 3
# The game of PLAY as a program that asks; the tests print the reward as the last line.
ASKS = '''import http.client, json, os, sys
s = json.loads(sys.stdin.readline())
host, key = os.environ["OPENAI_BASE_URL"].split("/")[2], os.environ["OPENAI_API_KEY"]
door = http.client.HTTPConnection(host, timeout=120)

def post(path, body, key=key):
    body = body if isinstance(body, bytes) else json.dumps(body).encode()
    door.request("POST", path, body, {"Content-Type": "application/json", **({"Authorization": "Bearer " + key} if key else {})})
    a = door.getresponse()
    return a.status, a.read()

def chat(messages, **more):
    status, text = post("/v1/chat/completions", {"model": os.environ["OPENAI_MODEL"], "messages": messages, **more})
    assert status == 200, text
    return json.loads(text)

def said(messages, **more):    # a text ends at the byte 0 for an environment
    return chat(messages, **more)["choices"][0]["message"]["content"]

def good(text):
    text = text.replace("\\0", "\\ufffd")
    return sum(ord(c) % 2 for c in text) / max(len(text), 1)

def play():
    number, total = s["seed"] % 97, 0
    messages = [{"role": "user", "content": f"start {number}"}]
    for turn in range(4):
        text = said(messages)
        total += good(text)
        number = (number * 31 + sum(map(ord, text.replace("\\0", "\\ufffd")))) % 1000
        if number % 5 == 0:
            break
        messages += [{"role": "assistant", "content": text}, {"role": "tool", "content": f"seen {number}"}]
    return total
'''


class Harness(RunCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.settings = dict(reward_type="environment", max_turns=4, max_turn_tokens=8, max_new_tokens=300, save_interval=1, num_generations=2,
                            inference_batch_size=4, inference_microbatch_size=4, train_batch_size=4, train_minibatch_size=4)

    def program(self, name, text):
        with open(self.task.path(name), "w") as f:
            f.write(text)
        return f"exec {sys.executable} -IS {self.task.path(name)}"    # starts in half the time

    def harness(self, name, text):
        return "harness:" + self.program(name, ASKS + text)

    def whole(self, disturb=None, steps=STEPS, **settings):
        run = self.start("--max-steps", str(steps), **{**self.settings, **settings})
        if disturb:
            disturb(run)
        code, last = run.wait()
        self.assertEqual((code, last.get("event")), (0, "finished"), run.logs())
        return run

    def kept(self, run):
        """All that a run made."""
        return run.weights(STEPS), run.ledger()

    def programs(self, name):
        return [pid for pid, words in commands() if words[:3] == [sys.executable, "-IS", self.task.path(name)]]

    def test_it_trains_the_bytes_of_an_environment_whoever_is_killed(self):
        want = self.kept(self.whole(environment="program:" + self.program("play.py", PLAY)))
        asks = self.harness("asks.py", "print(json.dumps({'reward': play()}))\n")
        self.assertEqual(self.kept(self.whole(environment=asks)), want)

        def kill(run):
            for step, who in ((0, "program"), (0, "scorer"), (1, "worker cpu:0"), (1, "program"), (2, "controller"), (2, "scorer")):
                run.wait_step(step)
                if who == "program":
                    self.until("a program runs", lambda: self.programs("asks.py"), run)
                    for pid in self.programs("asks.py"):
                        run.signal(pid, signal.SIGKILL)
                else:
                    run.signal(run.processes()[who], signal.SIGKILL)
        self.assertEqual(self.kept(self.whole(kill, environment=asks, session_restarts=20)), want)

    def test_a_reward_that_was_acknowledged_is_trained_on_once_whoever_is_killed(self):
        acks = self.task.path("acks")
        posts = self.harness("posts.py", f"""
said([{{"role": "user", "content": "go"}}])
reward = int.from_bytes(os.urandom(2), "big") / 1000    # nobody could find it again
status, text = post("/v1/reward", {{"reward": reward, "ans_acc": reward > 30}})
assert status == 200, text
with open({acks!r}, "a") as f:
    f.write(json.dumps([s["item"], s["sample"], reward]) + "\\n")
assert post("/v1/reward", {{"reward": reward}})[0] == 200    # its answer may have been lost
assert post("/v1/reward", {{"reward": reward + 1}})[0] == 410
assert post("/v1/chat/completions", {{"messages": []}})[0] == 410
""")

        def count():
            if not os.path.exists(acks):
                return 0
            with open(acks) as f:
                return len(f.readlines())

        def kill(run):
            for n, who in ((1, "worker cpu:0"), (6, "scorer"), (11, "worker cpu:0"), (15, "scorer"), (17, "controller"), (20, "controller")):
                self.until(f"{n} rewards", lambda n=n: count() >= n, run)
                run.signal(run.processes()[who], signal.SIGKILL)
        run = self.whole(kill, environment=posts)
        with open(acks) as f:
            told = [json.loads(line) for line in f]
        rows = self.tool("rollouts", run.dir)
        want = {(item, sample): reward for item, sample, reward in told}
        self.assertEqual(len(want), len(told), "a session was played again after its reward was taken")
        trained = {item for item, *_ in run.ledger()}
        got = {(r["item"], r["sample"]): r["reward"] for r in rows if r["item"] in trained}
        self.assertEqual(len(got), STEPS * 4 * 2)
        for at in want.keys() & got.keys():    # one that was taken counts, too, when the kill came before its answer
            self.assertAlmostEqual(got[at], want[at], 6)
        self.assertGreater(len(want), 16)

    def test_each_path_of_a_session_is_a_sample_and_each_drawn_token_is_learnt_once(self):
        paths = self.harness("paths.py", """
start = [{"role": "user", "content": "one"}]
a = said(start)
def after(more): return start + [{"role": "assistant", "content": a}, {"role": "user", "content": more}]
b = said(after("two"))
c = said([{"role": "user", "content": "all in short"}])    # another beginning
d = said(after("other"), stream=False)                     # goes on from the first turn
assert post("/v1/completions", {"prompt": "a text"})[0] == 200    # begins with no token of the others: left out
print("a word"), print(json.dumps({"reward": good(a) + good(c)}))
""")
        run = self.whole(environment=paths, max_turns=8)
        rows = self.tool("rollouts", run.dir, "--ids")
        left = [r for r in rows if not r["scored"]]
        self.assertEqual({(r["reason"], len(r["ids"])) for r in left}, {("harness: begins with another token", 0)})
        rows = [r for r in rows if r["scored"]]
        self.assertEqual((len(rows), len(left)), (STEPS * 4 * 2 * 3, STEPS * 4 * 2))
        model = self.task.path("model")
        first = [r for r in rows if r["version"] == 0]
        ask = [{"ids": r["prompt_ids"] + r["ids"], "prompt_len": len(r["prompt_ids"]), "temperature": r["temperature"]} for r in first]
        for r, got in zip(first, self.tool("logprobs", "--model", model, lines=ask)):
            self.assertEqual([lp if m else 0 for lp, m in zip(got["logprobs"], r["mask"])], r["logprobs"])
        for at in range(0, len(rows), 3):
            trunk, short, fork = rows[at:at + 3]
            self.assertEqual({r["reward"] for r in rows[at:at + 3]}, {trunk["reward"]})
            turns = ["".join(map(str, r["mask"])).strip("0").replace("0", " ").split() for r in (trunk, short, fork)]
            self.assertEqual([len(t) for t in turns], [2, 1, 1])
            n = trunk["mask"].index(1) + len(turns[0][0])    # the fork has the first turn's ids, and does not learn them again
            self.assertEqual(fork["ids"][:n], trunk["ids"][:n])
            self.assertEqual(set(fork["mask"][:n]), {0})
        self.assertEqual({s["metrics"]["harness/paths"] for s in run.told("step")}, {4})
        self.assertEqual({s["metrics"]["train/sampler_trainer_diff"] for s in run.told("step")}, {0})

    def test_a_reward_program_may_judge_the_transcript(self):
        asks = self.harness("unpaid.py", "play()\n")
        judge = "program:" + self.program("judge.py", """import json, sys
for line in sys.stdin:
    q = json.loads(line)
    reward = q.get("transcript", "").count("assistant\\n") + ("environment" in q) / 2
    print(json.dumps({"id": q["id"], "reward": reward}), flush=True)
""")
        run = self.whole(environment=asks, reward_type=judge, steps=1)
        for r in self.tool("rollouts", run.dir, "--ids"):
            turns = len("".join(map(str, r["mask"])).strip("0").replace("0", " ").split())
            if 0 not in r["ids"]:    # a text ends at the byte 0
                self.assertEqual(r["reward"], turns + 0.5)

    def test_what_a_program_must_not_do_is_refused_in_words(self):
        probes = self.harness("probes.py", """
one = {"messages": [{"role": "user", "content": "x"}]}
def want(status, words, path, body, **more):
    got, text = post(path, body, **more)
    assert got == status and words in text.decode(), (path, body, got, text)
want(401, "no session", "/v1/chat/completions", one, key="rc-00000000000000000000000000000000")
want(401, "no session", "/v1/chat/completions", one, key="")
want(401, "no session", "/v1/reward", {"reward": 5}, key="rc-")
want(404, "", "/v1/embeddings", one)
want(400, "'reward' must be", "/v1/reward", {"reward": "much"})
want(400, "'reward' must be", "/v1/reward", b'{"reward": 1e999}')
want(400, "not UTF-8", "/v1/chat/completions", bytes([123, 255, 125]))
want(400, "JSON", "/v1/chat/completions", b"{")
want(400, "'n' 1", "/v1/chat/completions", {**one, "n": 2})
want(400, "likeliest", "/v1/chat/completions", {**one, "logprobs": True, "top_logprobs": 2})
want(400, "context_length_exceeded", "/v1/chat/completions", {"messages": [{"role": "user", "content": "x" * 500}]})
want(200, "data: [DONE]", "/v1/chat/completions", {**one, "stream": True})
want(200, '"completion_tokens":3', "/v1/chat/completions", {**one, "max_tokens": 3, "temperature": 0, "logprobs": True})
want(200, "text_completion", "/v1/completions", {"prompt": "x"})
want(200, "text_completion", "/v1/completions", {"prompt": [1, 2, 3]})
want(400, "max_turns", "/v1/chat/completions", one)
print(json.dumps({"reward": s["sample"]}))
""")
        run = self.whole(environment=probes, max_turns=8, steps=1)
        rows = self.tool("rollouts", run.dir)
        self.assertEqual({(r["scored"], r["reason"]) for r in rows}, {(True, "environment"), (False, "harness: begins with another token")}, run.logs())
        with open(os.path.join(run.dir, "logs", "scorer.log")) as f:
            self.assertNotIn("rc-", f.read())    # a key

    def test_a_session_that_fails_is_left_out_and_says_why(self):
        fails = self.harness("fails.py", """
said([{"role": "user", "content": "go"}])
how = s["sample"]
if how == 0: print(json.dumps({"reward": 1}))
elif how == 1: print("no reward")
elif how == 2: sys.exit(3)
elif how == 3: import time; time.sleep(1000)
elif how == 4: print(json.dumps({"error": "no board"}))
elif how == 5: os.kill(os.getpid(), 9)
elif how == 6: print(json.dumps({"reward": 2}))
else:    # and asks otherwise each time it is begun, so that it starts over: what it asked in another life is no part of its sample
    said([{"role": "user", "content": str(os.getpid())}]), sys.exit(1)
""")
        run = self.whole(environment=fails, num_generations=8, session_timeout_s=6, session_restarts=1, steps=1, inference_batch_size=1,
                         train_batch_size=1, inference_microbatch_size=1, train_minibatch_size=1, save_interval=0)
        rows = {r["sample"]: r for r in self.tool("rollouts", run.dir)}
        self.assertEqual({k: r["reason"].removeprefix("harness: ") for k, r in rows.items() if not r["scored"]},
                         {1: "it gave no reward", 2: "exit 3", 3: "time-out", 4: "no board", 5: "ended by signal 9", 7: "exit 1", 8: "exit 1"})

    def test_a_harness_that_cannot_begin_stops_the_run_before_it_is_made(self):
        for command, code, words in (("nobody-has-this --task 3", 2, "there is no program 'nobody-has-this'"), ("exit 3", 1, "exit 3"),
                                     ("echo '{\"reward\": 1}'", 1, "without asking the model"), (f"{sys.executable} missing.py", 1, "missing.py")):
            run = self.start(**{**self.settings, "environment": f"harness:{command}"})
            self.assertEqual(run.process.wait(60), code, run.logs())
            self.assertIn(words, run.logs())
            self.assertFalse(os.path.exists(run.dir))


if __name__ == "__main__":
    unittest.main()
