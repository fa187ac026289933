"""tags: limit=600

Runs with a teacher of another shape: what they are refused for, what they plan, and that they repeat to the byte whoever dies and whoever trains."""
import json
import os
import re
import shutil
import signal
import subprocess
import unittest
import tiny_model
from run_tools import LIMIT, ROLLCALL, Run, RunCase

STEPS = 8
TWO = dict(num_trainers=2, num_inferencer=2, inference_batch_size=4, inference_microbatch_size=4, train_batch_size=4, train_minibatch_size=4)
APART = dict(TWO, num_trainers=1, train_batch_size=8, train_minibatch_size=8, placement="apart")


class Teacher(RunCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.teacher = cls.task.path("teacher")
        tiny_model.write(cls.teacher, seed=9, d=96, layers=3, heads=6, kv_heads=3)
        cls.known = {}

    def begin(self, **settings):
        return self.start("--max-steps", str(STEPS), **dict(dict(teacher=self.teacher, kl_coeff=0), **settings))

    def undisturbed(self, **settings):
        """(the run, its weights and ledger) of a run to the end."""
        key = json.dumps(settings, sort_keys=True)
        if key not in self.known:
            run = self.begin(**settings)
            self.known[key] = run, self.finish(run, STEPS)
        return self.known[key]

    def kl(self, run):
        return [line["metrics"]["train/kl"] for line in run.told("step")]

    def dry(self, name, **settings):
        file = self.task.run_file(name, **dict(dict(teacher=self.teacher, max_steps=4), **settings))
        return subprocess.run([ROLLCALL, "train", file, "--dry-run"], capture_output=True, text=True, timeout=LIMIT)

    def test_the_model_comes_nearer_to_its_teacher_and_its_samples_are_on_policy(self):
        run = self.begin(reward_coeff=0)
        self.assertEqual(self.finish(run, STEPS), self.undisturbed(reward_coeff=0)[1])
        kl = self.kl(run)
        self.assertLess(kl[-1], 0.9 * kl[0], kl)
        self.assertEqual({line["metrics"]["train/sampler_trainer_diff"] for line in run.told("step")}, {0})

    def test_any_number_of_trainers_and_any_placement_ends_in_the_same_bytes(self):
        whole = self.undisturbed()[1]
        self.assertNotEqual(whole[0], self.undisturbed(reward_coeff=0)[1][0])
        for settings in (dict(TWO, zero_stage="0"), dict(TWO, zero_stage="3"), dict(APART)):
            self.assertEqual(self.finish(self.begin(**settings), STEPS), whole, settings)

    def test_a_run_that_was_killed_and_one_whose_worker_died_end_with_the_same_bytes(self):
        whole = self.undisturbed()[1]
        run = self.begin()
        run.wait_step(5)
        run.kill()
        again = Run(self.task, os.path.basename(run.dir), resume=True)
        self.addCleanup(again.kill)
        self.assertEqual(self.finish(again, STEPS), whole)
        run = self.begin()
        run.wait_step(3)
        os.kill(run.processes()["worker cpu:0"], signal.SIGKILL)
        self.assertEqual(self.finish(run, STEPS), whole)

    def test_an_adapter_is_taught_too(self):
        run = self.begin(lora_rank=4, reward_coeff=0, learning_rate=1e-2)
        code, last = run.wait()
        self.assertEqual((code, last["step"]), (0, STEPS), run.logs())
        kl = self.kl(run)
        self.assertLess(kl[-1], kl[0], kl)

    def test_a_run_goes_on_with_the_teacher_that_it_began_with_alone(self):
        teacher = self.task.path("other")
        shutil.copytree(self.teacher, teacher)
        run = self.begin(teacher=teacher)
        run.wait_step(5)
        run.kill()
        shutil.rmtree(teacher)
        tiny_model.write(teacher, seed=10, d=96, layers=3, heads=6, kv_heads=3)
        done = subprocess.run([ROLLCALL, "train", "--resume", run.dir, "--batch"], capture_output=True, text=True, timeout=LIMIT)
        self.assertNotEqual(done.returncode, 0)
        self.assertRegex(done.stderr, r"teacher: not what the run .* began with")

    def test_the_plan_has_the_teachers_weights_and_its_run(self):
        done = self.dry("dry.yaml")
        self.assertEqual(done.returncode, 0, done.stderr)
        held = re.search(r"^ +reference +whole +from the teacher's files +(\S+) MB$", done.stdout, re.M)
        self.assertIsNotNone(held, done.stdout)
        size = os.path.getsize(os.path.join(self.teacher, "model.safetensors"))
        self.assertAlmostEqual(float(held[1]), size * 1e-6, delta=0.1)

    def test_what_a_teacher_does_not_go_with_is_refused_with_the_reason(self):
        short = tiny_model.write(self.task.path("short"), max_pos=8)
        path = os.path.join(short, "config.json")
        with open(path) as f:
            config = dict(json.load(f), rope_scaling={"rope_type": "dynamic", "factor": 2.0})
        with open(path, "w") as f:
            json.dump(config, f)
        for settings, why in ((dict(kl_coeff=0.1), "'teacher' and 'kl_coeff' do not go together: a teacher takes the reference model's place"),
                              (dict(tensor_parallel_size=2), "'teacher' and 'tensor_parallel_size' do not go together"),
                              (dict(pipeline_parallel_size=2), "'teacher' and 'pipeline_parallel_size' do not go together"),
                              (dict(listen="127.0.0.1:0"), "'teacher' and 'listen' do not go together: other nodes get the model's files only"),
                              (dict(teacher=short), "'teacher' reads at most 8 tokens, and 'max_prompt_tokens' and 'max_new_tokens' are ")):
            done = self.dry("refused.yaml", **settings)
            self.assertEqual(done.returncode, 2)
            self.assertIn(why, done.stderr)
        done = self.dry("missing.yaml", teacher="./nowhere")
        self.assertNotEqual(done.returncode, 0)
        self.assertRegex(done.stderr, r"'teacher'.*nowhere")
        other = self.task.path("other-tokenizer")
        shutil.copytree(self.teacher, other)
        tiny_model.pad_rename(other, "<other>")
        done = self.dry("tokenizer.yaml", teacher=other)
        self.assertNotEqual(done.returncode, 0)
        self.assertRegex(done.stderr, r"'teacher' needs the model's tokenizer.*token 259 is '<pad>' in .* and '<other>' in ")
        os.remove(os.path.join(other, "model.safetensors"))
        done = self.dry("files.yaml", teacher=other)
        self.assertNotEqual(done.returncode, 0)
        self.assertRegex(done.stderr, r"'teacher': .*model\.safetensors")
        self.assertNotIn("needs the model's tokenizer", done.stderr)


if __name__ == "__main__":
    unittest.main()
