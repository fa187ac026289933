"""The source looks as .clang-format says, and 64-bit numbers are printed in one way.

To bring files into shape: git ls-files | grep -E '\\.(c|h|cu|cuh)$' | xargs clang-format-14 -i
"""
import os
import re
import shutil
import subprocess
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SOURCE = re.compile(r"\.(c|h|cu|cuh)$")


def sources():
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")
    return [f for f in listed if SOURCE.search(f) and os.path.exists(os.path.join(ROOT, f))]


def formatter():
    """clang-format 14, or None. Another version lays some lines out differently, so only this one is asked."""
    for name in ("clang-format-14", "clang-format"):
        if shutil.which(name):
            told = subprocess.run([name, "--version"], capture_output=True, text=True, check=True).stdout
            if re.search(r"version 14\.", told):
                return name
    return None


class Format(unittest.TestCase):
    def test_every_file_is_as_clang_format_leaves_it(self):
        tool = formatter()
        if not tool:
            self.skipTest("clang-format 14 is not installed")
        files = sources()
        self.assertGreater(len(files), 400)
        wrong = []
        for i in range(0, len(files), 60):
            told = subprocess.run([tool, "--dry-run", *files[i:i + 60]], cwd=ROOT, capture_output=True, text=True, check=True, timeout=120)
            wrong += re.findall(r"^(\S+?:\d+):\d+: warning", told.stderr, re.M)
        self.assertEqual([], sorted(set(wrong)), f"run {tool} -i on these files")

    def test_64_bit_numbers_are_printed_by_PRId64_and_its_siblings(self):
        wrong = []
        for f in sources():
            with open(os.path.join(ROOT, f), encoding="utf-8") as text:
                wrong += [f"{f}:{n}" for n, line in enumerate(text, 1) if re.search(r"%[-+ #0-9.*$]*ll[dioux]", line) and "sscanf" not in line]
        self.assertEqual([], wrong, "write %\" PRId64 \" (inttypes.h), without a cast")


if __name__ == "__main__":
    unittest.main(verbosity=2)
