"""rollcall manual: man pages and completions for every subcommand, as cmake --install puts them in place."""
import os
import shutil
import subprocess
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
ROLLCALL = os.environ.get("ROLLCALL") or os.path.join(ROOT, "build", "release", "rollcall")


class Manual(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.dir = tempfile.mkdtemp(prefix="rc-manual-")
        cls.addClassCleanup(shutil.rmtree, cls.dir)
        subprocess.run([ROLLCALL, "manual", cls.dir], check=True, timeout=120)
        told = subprocess.run([ROLLCALL, "--help"], capture_output=True, text=True, check=True, timeout=60).stdout
        cls.commands = [line.split()[0] for line in told.split("\n") if line.startswith("  ")]

    def read(self, *name):
        with open(os.path.join(self.dir, *name), encoding="utf-8") as f:
            return f.read()

    def complete(self, *words):
        script = ('. "$0"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _rollcall; printf "%s\\n" "${COMPREPLY[@]}"')
        done = subprocess.run(["bash", "-euc", script, os.path.join(self.dir, "completions", "rollcall.bash"), "rollcall", *words],
                              capture_output=True, text=True, cwd=self.dir, timeout=60)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return done.stdout.split()

    def test_every_subcommand_has_a_page_with_all_its_options(self):
        self.assertGreater(len(self.commands), 15)
        for command in self.commands:
            page = self.read("man1", f"rollcall-{command}.1")
            self.assertTrue(page.startswith(f'.TH "rollcall-{command}" 1\n.SH NAME\nrollcall-{command} \\- '), command)
            self.assertIn(f"rollcall\\-{command} (1)", self.read("man1", "rollcall.1"))
            done = subprocess.run([ROLLCALL, command, "--help=words"], capture_output=True, text=True, timeout=60)
            for line in done.stdout.split("\n")[:-1]:
                name = line.split("\t")[0]
                self.assertIn("\\-\\-" + name.replace("-", "\\-"), page, command)
        if shutil.which("groff"):
            for command in self.commands:
                done = subprocess.run(["groff", "-Kutf8", "-man", "-ww", "-Tutf8", os.path.join(self.dir, "man1", f"rollcall-{command}.1")],
                                      stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, timeout=60)
                wrong = [w for w in done.stderr.split("\n") if w and "cannot adjust line" not in w and "can't break line" not in w]
                self.assertEqual([], wrong, command)

    def test_bash_completes_commands_options_and_what_ctl_asks(self):
        self.assertEqual(self.complete("conso"), ["console"])
        self.assertEqual(set(self.complete("")), set(self.commands))
        self.assertEqual(self.complete("train", "--max_st"), ["--max_steps", "--max_staleness"])
        self.assertEqual(self.complete("console", "--read"), ["--read-only"])
        self.assertEqual(self.complete("ctl", "chec"), ["checkpoint"])

    def test_the_other_shells_scripts_name_every_command_and_option(self):
        for name, mark in (("_rollcall", "'--read-only["), ("rollcall.fish", "-l read-only")):
            text = self.read("completions", name)
            self.assertIn(mark, text)
            for command in self.commands:
                self.assertIn(command, text)

    def test_a_folder_that_cannot_be_made_is_one_sentence(self):
        done = subprocess.run([ROLLCALL, "manual", "/proc/nothing"], capture_output=True, text=True, timeout=60)
        self.assertEqual((done.returncode, done.stdout, done.stderr.count("\n")), (1, "", 1), done.stderr)
        self.assertIn("/proc/nothing", done.stderr)


if __name__ == "__main__":
    unittest.main()
