"""Going back: a rollback leaves nothing of what it undoes, pinned checkpoints stay, and undoing is a stack."""
import json
import os
import signal
import unittest
from run_tools import RunCase

LR = 0.0001


class Rewind(RunCase):
    def start(self, *extra, **settings):
        sets = json.dumps({"small": {"path": self.task.path("train.jsonl"), "limit": 16, "temperature": 0}})
        return super().start(*extra, **dict(dict(learning_rate=LR, save_interval=10, eval_dataset=sets, eval_at_end=False), **settings))

    def greedy(self, run):
        """The last evaluation, which is made now: its step and mean."""
        self.ok(run, "eval")
        return self.status(run)["eval"]["small"]

    def kept(self, run):
        """{step: row} of the checkpoints that are listed."""
        text = self.ok(run, "checkpoints", "--json")
        rows, at = [], 0
        while at < len(text.rstrip()):
            row, n = json.JSONDecoder().raw_decode(text[at:].lstrip())
            at += len(text[at:]) - len(text[at:].lstrip()) + n
            rows.append(row)
        return {row["step"]: row for row in rows}

    def ruin(self, run):
        """Stop it after its first checkpoint, make the learning rate 1,000 times as large, and let it take three steps; when that was."""
        self.until("a checkpoint", lambda: run.journal_number("select count(*) from checkpoint where state = 'complete'") > 0, run)
        self.ok(run, "pause", "step")
        step = self.status(run)["step"]
        code, _, said = run.ctl_on_terminal("y\n", "set", f"learning_rate={1000 * LR:g}")
        self.assertIn("times as much", said)    # it asks
        self.assertEqual(code, 0, said)
        self.ok(run, "resume")
        run.wait_step(step + 3)
        return step

    def rollbacks(self, run):
        """How many it was sent."""
        return self.query(run, "select count(*) from event where kind = 'command' and text like 'back at step %'")[0][0]

    def goes_back(self, last, **settings):
        """Two runs alike of this many steps, one of which is ruined and goes back: they must end with the same bytes."""
        calm, run = (self.start("--max-steps", str(last), **settings) for _ in range(2))
        made = self.ruin(run)
        to = max(s for s in self.kept(run) if s <= made)
        undoes = rf"\d+ steps, learning_rate {LR:g} -> {1000 * LR:g} \(step {made}\)"
        before = self.rollbacks(run)
        code, _, said = run.ctl_on_terminal("n\n", "rollback", "change")
        self.assertRegex(said, rf"to step {to}, undoing {undoes}")
        self.assertEqual(code, 1)
        self.assertEqual(self.rollbacks(run), before)    # nothing was sent
        self.assertRegex(self.ok(run, "rollback", "change"), rf"^back at step {to}; undone: {undoes}")
        self.assertEqual(self.rollbacks(run), before + 1)
        self.assertEqual(self.status(run)["knobs"]["learning_rate"], LR)
        self.assertEqual(run.wait()[0], 0, run.logs())
        self.assertEqual(calm.wait()[0], 0, calm.logs())
        self.assertEqual(run.steps(), list(range(1, last + 1)))
        there = [{step for step, row in self.kept(r).items() if row["state"] == "complete"} for r in (run, calm)]    # a slow disk skips some
        both = sorted(there[0] & there[1])
        self.assertEqual(both[-1], last)
        self.assertEqual([run.weights(s) for s in both], [calm.weights(s) for s in both])
        self.assertEqual(run.ledger(), calm.ledger())
        return run

    def test_after_a_ruinous_learning_rate_a_rollback_brings_the_same_bytes(self):
        run = self.goes_back(250)
        self.assertIn("every 10 steps", run.ctl("checkpoints").stdout)

    def test_the_same_one_rollout_step_ahead_with_two_steps_a_rollout_and_a_filter(self):
        self.goes_back(100, n_behind=1, inference_batch_size=16, filter_range=[0.3, 0.7], dynamic_batching=True)

    def test_greedy_accuracy_comes_back_and_a_killed_controller_knows_of_the_rollback(self):
        run = self.start()
        run.wait_step(4)
        self.ok(run, "pause", "drain")
        before = self.greedy(run)
        step = before["step"]
        self.ok(run, "set", f"learning_rate={1000 * LR:g}")
        self.ok(run, "resume")
        run.wait_step(step + 3)
        self.ok(run, "pause", "step")
        self.assertRegex(self.ok(run, "rollback", str(step)), rf"^back at step {step}; ")
        os.kill(run.processes()["controller"], signal.SIGKILL)
        self.assertEqual(self.greedy(run), before)    # paused still, at that step, with those weights
        self.assertEqual(self.status(run)["knobs"]["learning_rate"], LR)
        refused = run.ctl("rollback", str(step + 2))
        self.assertEqual(refused.returncode, 1)
        self.assertIn(f"rollcall ctl rollback {step}", refused.stderr)    # what would work

    def test_a_pinned_checkpoint_stays_and_one_that_is_undone_goes_with_time(self):
        run = self.start("--max-steps", "100000", keep_checkpoints=2, save_interval=2)
        run.wait_step(4)
        self.ok(run, "pause", "drain")
        pinned = self.status(run)["checkpoint"]
        self.ok(run, "pin", str(pinned))
        self.ok(run, "resume")
        gone = lambda rows: [s for s in rows if s > pinned and rows[s]["state"] == "removed"]
        self.until("later ones go before it", lambda: gone(self.kept(run)), run)
        rows = self.kept(run)
        self.assertTrue(rows[pinned]["pinned"])
        self.assertNotEqual(rows[pinned]["state"], "removed")
        self.assertTrue(run.weights(pinned))
        self.ok(run, "rollback", str(pinned))
        folder = os.path.join(run.dir, "checkpoints")
        self.until("old ones go", lambda: run.step() > pinned + 12 and not any(".undone-" in d for d in os.listdir(folder)), run)
        self.assertTrue(run.weights(pinned))

    def test_undoing_is_a_stack_and_never_a_toggle(self):
        run = self.start("--max-steps", "100000")
        run.wait_step(1)
        for value in (0.0002, 0.0003):
            self.ok(run, "set", f"learning_rate={value}")
        for want in (0.0002, LR):
            self.ok(run, "revert")
            self.assertEqual(self.status(run)["knobs"]["learning_rate"], want)
        refused = run.ctl("revert")
        self.assertEqual(refused.returncode, 1)
        self.assertIn("taken back already", refused.stderr)
        self.assertEqual(self.status(run)["knobs"]["learning_rate"], LR)


if __name__ == "__main__":
    unittest.main()
