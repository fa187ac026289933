"""tags: tsan only-tsan limit=300

A whole run under ThreadSanitizer: every process of it starts, samples, scores, trains, is commanded and stops, and no two
threads of a process touch the same memory unordered. The model is as small as models get: what is tested is who waits for
whom; the arithmetic's inner loops are not instrumented."""
import unittest
from run_tools import Run, Task


class Threads(unittest.TestCase):
    def test_a_run_that_is_paused_changed_saved_resumed_and_stopped_has_no_data_race(self):
        task = Task(d=32, layers=1, heads=2, kv_heads=1, ff=32)
        self.addCleanup(task.close)
        run = Run(task, "races", task.run_file(threads=2, scorer_threads=2, n_behind=1, max_new_tokens=6, inference_batch_size=4,
                                               inference_microbatch_size=4, train_batch_size=4, train_minibatch_size=4,
                                               num_generations=2), ["--max-steps", "100000"])
        self.addCleanup(run.kill)
        run.wait_step(2)
        for command in (["pause", "--depth", "step"], ["status", "--json"], ["set", "lr=0.002", "temperature=0.9"], ["checkpoint"],
                        ["resume"]):
            done = run.ctl(*command)
            self.assertEqual(done.returncode, 0, f"{command}: {done.stderr}{run.logs()}")
        run.wait_step(run.step() + 2)
        done = run.ctl("stop")
        self.assertEqual(done.returncode, 0, done.stderr + run.logs())
        code, last = run.wait()    # fails when a log has a sanitizer's report
        self.assertEqual((code, last["event"]), (3, "stopped"), run.logs())


if __name__ == "__main__":
    unittest.main()
