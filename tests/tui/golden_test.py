"""The console's screens as they were: runs build/release/tests/tui_golden on tests/golden/screens.

tags: limit=300
"""
import os
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
GOLDEN = os.path.join(ROOT, "build", "release", "tests", "tui_golden")

if not os.path.exists(GOLDEN):
    print("skipped: libvterm or cmocka was not there when it was built")
    sys.exit(77)
sys.exit(subprocess.call([GOLDEN, os.path.join(ROOT, "tests", "golden", "screens")]))
