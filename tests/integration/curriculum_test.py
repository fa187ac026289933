"""tags: limit=600

A run's prompts become harder as its answers are right: the level follows from what was sampled, whoever is killed, and goes back with
the run."""
import json
import os
import signal
import sys
import unittest
from run_tools import Run, RunCase

STEPS = 10
# Its first words say the level that it was told, and the higher that is the fewer texts are right: three of four at level 1, and so on.
PLAY = '''import json, sys
level = {}
for line in sys.stdin:
    q = json.loads(line)
    answer = {}
    if q["op"] == "reset":
        level[q["episode"]] = q["row"].get("level", 9)
        answer = {"observation": f"level {level[q['episode']]}"}
    elif q["op"] == "step":
        right = sum(map(ord, q["text"])) % 4 >= level[q["episode"]]
        answer = {"reward": len(q["text"]) % 5, "ans_acc": int(right), "done": True}
    else:
        level.pop(q["episode"], None)
    print(json.dumps({"id": q["id"], **answer}), flush=True)
'''
# Of rows that have levels: the same.
SCORE = '''import json, sys
for line in sys.stdin:
    q = json.loads(line)
    right = sum(map(ord, q["response"])) % 4 >= q["row"]["hard"]
    print(json.dumps({"id": q["id"], "reward": len(q["response"]) % 5, "ans_acc": int(right)}), flush=True)
'''


def levels_by_hand(rollouts, n_behind, level, harder, easier, n_group, last):
    """[the level of each rollout step], from the answers that were sampled: (rollout step, level, item, right) each."""
    after, groups, answers, right = [], set(), 0, 0
    opened = [level] * (1 + n_behind)
    for step in range(last + 1):
        for _, at, item, good in (r for r in rollouts if r[0] == step):
            if at == level:
                groups.add(item)
                answers, right = answers + 1, right + good
        if len(groups) >= n_group:
            share = right / answers
            level += (share >= harder and level < 3) - (share <= easier and level > 0)
            groups, answers, right = set(), 0, 0
        opened.append(level)
    return opened[:last + 1]


class Curriculum(RunCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        for name, text in (("play.py", PLAY), ("score.py", SCORE)):
            with open(cls.task.path(name), "w") as f:
                f.write(text)
        with open(cls.task.path("levels.jsonl"), "w") as f:
            for i in range(40):
                row = {"messages": [{"role": "user", "content": f"{i}?"}], "hard": i % 4}
                f.write(json.dumps(row) + "\n")
        cls.games = dict(reward_type="environment", environment=f"program:exec {sys.executable} {cls.task.path('play.py')}", max_turns=1,
                         max_turn_tokens=8, max_new_tokens=110,
                         curriculum_levels=4, curriculum_pass_rate=0.6, curriculum_groups=12, save_interval=2, n_behind=1)
        cls.rows = dict(reward_type=f"program:exec {sys.executable} {cls.task.path('score.py')}", dataset=cls.task.path("levels.jsonl"),
                        curriculum_levels=4, curriculum_pass_rate=0.6, curriculum_groups=12, curriculum_column="hard")

    def end(self, run):
        code, last = run.wait()
        self.assertEqual((code, last.get("event")), (0, "finished"), run.logs())

    def told(self, run):
        """[(level, text)] of the changes of level that hold."""
        rows = self.query(run, "select detail, text from event where kind = 'level' order by seq")
        return [(json.loads(detail)["level"], text) for detail, text in rows]

    def steps_told(self, run):
        return [r["metrics"]["rollout/level"] for r in self.tool("export", "jsonl", run.dir)]

    def test_the_level_is_what_the_answers_give_and_everyone_is_told(self):
        for start, easier in ((0, 0), (3, 0.3)):
            run = self.start("--max-steps", str(STEPS), **self.games, curriculum_start=start, curriculum_easier_rate=easier)
            self.end(run)
            seen = []
            for r in self.tool("rollouts", run.dir):
                level = int(r["prompt"].split("level ")[1][0])
                seen.append((r["rollout_step"], level, r["item"], r["ans_acc"]))
            by_hand = levels_by_hand(seen, 1, start, 0.6, easier, 12, STEPS - 1)
            self.assertEqual([{at for step, at, *_ in seen if step == k} for k in range(STEPS)], [{k} for k in by_hand])
            self.assertEqual(self.steps_told(run), by_hand)
            want = [(step + 1, by_hand[step - 1], by_hand[step]) for step in range(1, STEPS) if by_hand[step] != by_hand[step - 1]]
            self.assertGreaterEqual(len(want), 1)
            self.assertEqual(want[0][1] < want[0][2], easier == 0)
            for (step, before, level), (_, text) in zip(want, self.told(run)):
                self.assertRegex(text, rf"^level {before} -> {level} from rollout step {step} on: \d+\.\d % of \d+ answers were right$")

    def test_killed_processes_and_a_resume_change_no_byte(self):
        runs = []
        for name in ("calm", "killed"):
            run = self.start("--max-steps", str(STEPS), **self.games)
            if name == "killed":
                for step, who in ((2, "controller"), (3, "worker cpu:0"), (4, "scorer")):
                    run.wait_step(step)
                    os.kill(run.processes()[who], signal.SIGKILL)
                run.wait_step(6)
                run.kill()
                run = Run(self.task, os.path.basename(run.dir), resume=True)
                self.addCleanup(run.kill)
            self.end(run)
            runs.append((run.weights(STEPS), run.ledger(), self.steps_told(run), self.told(run)))
        self.assertEqual(*runs)
        self.assertGreater(len(set(runs[0][2])), 1)

    def test_a_rollback_takes_the_level_back_and_ends_in_the_same_bytes(self):
        calm, run = (self.start("--max-steps", "40", **self.games) for _ in range(2))
        self.until("a harder level", lambda: run.journal_number("select count(*) from event where kind = 'level'") > 1, run)
        self.ok(run, "pause", "step")
        self.assertRegex(self.ok(run, "status"), r"(?m)^level [123] of 0 to 3: \d+ of 12 groups(, \d+ % right)?; harder from 60 %$")
        before, n = self.status(run)["level"]["level"], len(self.told(run))
        self.ok(run, "rollback", "0")
        back = self.status(run)["level"]
        self.assertGreater(before, back["level"])
        self.ok(run, "resume")
        for one in (calm, run):
            self.end(one)
        self.assertEqual(run.weights(40), calm.weights(40))
        self.assertEqual(run.ledger(), calm.ledger())
        self.assertEqual(self.steps_told(run), self.steps_told(calm))
        self.assertEqual(self.told(run)[n:], self.told(calm))
        # what the model itself had sampled stayed, so two rollout steps were cut at once, and the fourth was opened with this level
        self.assertEqual(back, dict(level=self.steps_told(calm)[3], levels=4, groups=0, of=12, answers=0, harder=0.6, easier=0))

    def test_rows_are_drawn_by_their_levels_and_a_resume_changes_no_byte(self):
        runs = []
        for name in ("calm", "killed"):
            run = self.start("--max-steps", str(STEPS), **self.rows)
            if name == "killed":
                run.wait_step(5)
                run.kill()
                run = Run(self.task, os.path.basename(run.dir), resume=True)
                self.addCleanup(run.kill)
            self.end(run)
            levels = self.steps_told(run)
            drawn = {(r["rollout_step"], r["row"]) for r in self.tool("rollouts", run.dir)}
            for step, row in drawn:
                self.assertEqual(row % 4, levels[step], (step, row))
            runs.append((run.weights(STEPS), run.ledger(), levels, drawn))
        self.assertEqual(*runs)
        self.assertGreater(len(set(runs[0][2])), 1)

    def test_what_cannot_be_is_refused_before_a_run_is_made(self):
        with open(self.task.path("odd.jsonl"), "w") as f:
            f.write('{"prompt": "a", "hard": 0}\n{"prompt": "b", "hard": "Level 5"}\n')
        with open(self.task.path("gap.jsonl"), "w") as f:
            f.writelines(json.dumps({"prompt": "a", "hard": k}) + "\n" for k in (0, 1, 3))
        for settings, words in ((dict(curriculum_column="level"), "no row of '.*levels.jsonl' has a column 'level', and there is no 'environment'"),
                                (dict(dataset=self.task.path("odd.jsonl")), r"odd.jsonl:2: 'hard' is no level: it must be a whole number from 0 to 3"),
                                (dict(dataset=self.task.path("gap.jsonl")), r"no row of '.*gap.jsonl' that is short enough has level 2 in 'hard'"),
                                (dict(free_running=True, placement="apart"), "'curriculum_levels' works with rollout steps in order"),
                                (dict(curriculum_start=4), r"'curriculum_start' \(4\) is no level"),
                                (dict(curriculum_easier_rate=0.6), r"'curriculum_easier_rate' \(0.6\) must be below 'curriculum_pass_rate' \(0.6\)")):
            run = self.start(**{**self.rows, **settings})
            self.assertIn(run.process.wait(60), (1, 2), settings)
            self.assertRegex(run.logs(), words)
            self.assertFalse(os.path.exists(run.dir))


if __name__ == "__main__":
    unittest.main()
