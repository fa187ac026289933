"""A link between two network namespaces that a test makes long, lossy, narrow, or cuts: tests/net/link.c, which says what can be ordered."""
import json
import os
import shutil
import subprocess
import unittest
from run_tools import LIMIT, built

HERE, THERE = "10.213.7.1", "10.213.7.2"    # its ends
POSSIBLE = os.geteuid() == 0 and os.path.exists("/dev/net/tun") and shutil.which("nsenter") is not None
WHY_NOT = "network namespaces with a link between them need root, /dev/net/tun and nsenter"
NOT_HERE = 77    # its exit status


class Link:
    def __init__(self, seed):
        """Skips the test where the machine does not permit it, as in a container whose root has no rights over the network."""
        self.process = subprocess.Popen([built("link"), str(seed)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        words = self.process.stdout.readline().split()
        if not words:
            self.close()
            if self.process.returncode == NOT_HERE:
                raise unittest.SkipTest(WHY_NOT + ", and the rights to use them")
            raise RuntimeError("there is no link; it has said why")
        self.here, self.there = (("nsenter", f"--net={file}") for file in words[1:])    # words before a command that is to run there

    def close(self):
        self.process.stdin.close()
        self.process.wait(LIMIT)
        self.process.stdout.close()

    def ask(self, order):
        self.process.stdin.write(order + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().rstrip("\n")

    def order(self, *orders):
        for order in orders:
            if (answer := self.ask(order)) != "ok":
                raise ValueError(answer)

    def cut(self, head=True, node=True):
        """No packet gets to these any more, until heal. The head is at this end."""
        self.order("cut " + ("both" if head and node else "ba" if head else "ab"))

    def heal(self):
        self.order("heal")

    def count(self):
        """What each way has carried and lost: {"ab": {"carried", "bytes", "lost", "cut", "full"}, "ba": the same}."""
        return json.loads(self.ask("count"))
