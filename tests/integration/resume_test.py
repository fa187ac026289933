"""tags: asan limit=900

Train 20 steps; train 10, kill -9 everything, resume, train 10 more: the same bytes."""
import unittest
from run_tools import Run, Task


class Resume(unittest.TestCase):
    def setUp(self):
        self.task = Task()
        self.runs = []

    def tearDown(self):
        for run in self.runs:
            run.kill()
        self.task.close()

    def start(self, *args, **kwargs):
        self.runs.append(Run(self.task, *args, **kwargs))
        return self.runs[-1]

    def finish(self, run, step):
        code, last = run.wait()
        self.assertEqual((code, last.get("event"), last.get("step")), (0, "finished", step), run.logs())
        self.assertEqual(run.steps(), list(range(1, step + 1)))
        self.assertEqual(run.processes(), {})

    def compare(self, **settings):
        file = self.task.run_file(**settings)
        straight = self.start("straight", file, ["--max-steps", "20"])
        self.finish(straight, 20)
        killed = self.start("killed", file, ["--max-steps", "20"])
        killed.wait_step(10)
        killed.kill()
        self.finish(self.start("killed", resume=True), 20)
        self.assertNotEqual(straight.weights(4), straight.weights(20))
        self.assertEqual(straight.weights(20), killed.weights(20))
        self.assertEqual(straight.ledger(), killed.ledger())

    def test_a_run_that_was_killed_and_resumed_ends_with_the_same_bytes(self):
        self.compare()

    def test_the_same_one_rollout_step_behind_with_a_filter_and_two_steps_a_rollout(self):
        self.compare(n_behind=1, train_batch_size=4, train_minibatch_size=4, filter_range=[0.1, 0.9], algo="DAPO")

    def test_ten_steps_and_then_ten_more_are_twenty(self):
        file = self.task.run_file()
        self.finish(self.start("whole", file, ["--max-steps", "20"]), 20)
        self.finish(self.start("parts", file, ["--max-steps", "10"]), 10)
        self.finish(self.start("parts", resume=True, extra=["--max-steps", "20"]), 20)
        self.assertEqual(self.runs[0].weights(20), self.runs[2].weights(20))


if __name__ == "__main__":
    unittest.main()
