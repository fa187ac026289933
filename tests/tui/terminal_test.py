"""The console on a real terminal: runs build/release/tests/tui_terminal_test on the program in ROLLCALL.

tags: long-asan limit=400
"""
import os
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
HARNESS = os.path.join(ROOT, "build", "release", "tests", "tui_terminal_test")

if not os.path.exists(HARNESS):
    print("skipped: libvterm or cmocka was not there when it was built")
    sys.exit(77)
env = dict(os.environ)
env.setdefault("ROLLCALL", os.path.join(ROOT, "build", "release", "rollcall"))
sys.exit(subprocess.call([HARNESS], env=env))
