"""Includes point one way, and a system's header stays in its folder: the rules of ARCHITECTURE.md, held against every #include."""
import os
import re
import subprocess
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BASE, WIRE, RUN, KERNELS = "protocol/base", "protocol/wire", "protocol/run", "kernels"
ENGINE, HOST, PROCESS = "workers/engine", "workers/host", "workers/process"
PROTOCOL = (BASE, WIRE, RUN)
# Which folder may include which. The longest matching folder of a file decides; a folder may always include itself.
MAY = {
    BASE: (),
    WIRE: (BASE,),
    RUN: (BASE, WIRE),
    KERNELS: (BASE,),
    ENGINE: (*PROTOCOL, KERNELS),
    HOST: PROTOCOL,
    PROCESS: PROTOCOL,
    "workers/worker": (*PROTOCOL, KERNELS, ENGINE, PROCESS, "workers/serve"),
    "workers/controller": (*PROTOCOL, KERNELS, ENGINE, PROCESS),
    "workers/scorer": (*PROTOCOL, ENGINE, PROCESS, "workers/serve"),
    "workers/node": (*PROTOCOL, KERNELS, ENGINE, HOST, PROCESS),
    "workers/agent": (*PROTOCOL, HOST, PROCESS, "workers/node"),
    "workers/export": PROTOCOL,
    "workers/serve": (*PROTOCOL, KERNELS, ENGINE, PROCESS),
    "console/fleet": PROTOCOL,
    "console/tui": (*PROTOCOL, "console/fleet"),
    "console/batch": (*PROTOCOL, "console/fleet"),
    "console/train": (*PROTOCOL, KERNELS, ENGINE, "console/batch"),
    "console/tools": (*PROTOCOL, KERNELS, ENGINE, HOST),
    "console/bench": (*PROTOCOL, KERNELS, ENGINE, "console/tools"),
    "console": (*PROTOCOL, KERNELS, ENGINE, "console/fleet", "console/tui", "console/batch", "console/train"),
}
# The layers inside the engine.
ENGINE_MAY = {
    "text": (), "hub": (), "data": ("hub",), "reward": ("template",), "template": ("text",), "model": (), "publish": ("model",),
    "sampler": ("model", "text", "template", "reward"), "trainer": ("model", "text", "template", "data"),
    "plan": ("model", "sampler", "trainer", "publish"), "load": ("hub", "model", "text", "template"),
}
# System headers and the one place they may be included from.
ONLY = {
    "ncurses.h": ("console/tui/terminal.c",),
    "cuda_runtime.h": ("kernels/cuda/", "kernels/collective/"),
    "nccl.h": ("kernels/collective/",),
    "nng/": ("protocol/wire/",),
    "openssl/": ("protocol/wire/",),
    "sqlite3.h": ("protocol/run/",),
    "microhttpd.h": ("workers/serve/web.c",),
}

# Functions that only one file may call, and what others call in their place.
CALLS = {"pthread_create": ("protocol/base/thread.c", "thread_start starts a thread that takes no signals")}


def folder(path, folders):
    return max((f for f in folders if path.startswith(f + "/")), key=len, default=None)


def broken(path, text):
    """A sentence for each rule that a file's includes break."""
    own = folder(path, MAY)
    for name in re.findall(r'^\s*#\s*include\s+"([^"]+)"', text, re.M):
        if "/" not in name:
            continue    # made by the build
        to = folder(name, MAY)
        if to is None:
            yield f"{path} includes {name}: no layer of the product is there"
        elif to != own and not any(to == f or to.startswith(f + "/") for f in MAY[own]):
            yield f"{path} includes {name}: {own} may use {', '.join(MAY[own]) or 'nothing of ours'}"
        elif own == to == ENGINE:
            a, b = path.split("/")[2], name.split("/")[2]
            if a != b and b not in ENGINE_MAY.get(a, ()):
                yield f"{path} includes {name}: {ENGINE}/{a} may use {', '.join(ENGINE_MAY.get(a, ())) or 'no other part of the engine'}"
    for name, (place, instead) in CALLS.items():
        if path != place and re.search(rf"\b{name}\(", text):
            yield f"{path} calls {name}: {instead}"
    for name in re.findall(r"^\s*#\s*include\s+<([^>]+)>", text, re.M):
        for header, places in ONLY.items():
            if name.startswith(header) and not path.startswith(places):
                yield f"{path} includes <{name}>: only {', '.join(places)} may"


class Layers(unittest.TestCase):
    def test_every_include_points_down(self):
        files = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "console", "workers", "kernels", "protocol"], cwd=ROOT, text=True,
                               capture_output=True, check=True).stdout.split("\n")
        files = [f for f in files if re.search(r"\.(c|h|cu|cuh)$", f) and os.path.exists(os.path.join(ROOT, f))]
        self.assertGreater(len(files), 300)
        wrong = []
        for f in files:
            with open(os.path.join(ROOT, f), encoding="utf-8") as file:
                wrong += broken(f, file.read())
        self.assertEqual(wrong, [], "\n" + "\n".join(wrong))

    def test_json_goes_through_the_one_reader_and_writer(self):
        """jansson alone refuses what Python writes (protocol/base/json_text.h)."""
        found = subprocess.run(["git", "grep", "-nE", r"\bjson_(load|dump)(s|b|f|fd|_file|_callback)\(", "--", "console/*.c", "workers/*.c",
                                "protocol/*.c"], cwd=ROOT, text=True, capture_output=True).stdout.splitlines()
        self.assertEqual({line.split(":")[0] for line in found}, {"protocol/base/json_read.c"}, found)

    def test_a_new_include_is_named_with_the_rule_it_breaks(self):
        cases = {
            ("console/tui/app.c", '#include "kernels/ops.h"\n'): "console/tui may use",
            ("protocol/base/buf.c", '#include "protocol/wire/message.h"\n'): "nothing of ours",
            ("workers/engine/model/run.c", '#include "workers/engine/sampler/generator.h"\n'): "no other part of the engine",
            ("workers/agent/x.c", "#include <nng/nng.h>\n"): "protocol/wire/",
            ("workers/export/x.c", '#include "workers/controller/ledger.h"\n'): "workers/export may use",
            ("workers/serve/x.c", "rv = pthread_create(&t, NULL, f, x);\n"): "thread_start",
        }
        for (path, text), words in cases.items():
            self.assertIn(words, " ".join(broken(path, text)), path)

    def test_each_metric_is_computed_in_the_one_place_that_its_row_names(self):
        with open(os.path.join(ROOT, "protocol/run/metrics.c"), encoding="utf-8") as file:
            rows = dict(re.findall(r'\[(M_\w+)\] = \{ "[^"]*", "[^"]*", "[^"]*", CHART_\w+, (BY_\w+),', file.read()))
        self.assertGreater(len(rows), 50)
        places = {"workers/engine/trainer/": "BY_TRAINER", "workers/worker/": "BY_WORKER", "workers/controller/": "BY_CONTROLLER"}
        found = {}
        for f in subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "workers"], cwd=ROOT, text=True, capture_output=True,
                                check=True).stdout.split():
            if not f.endswith(".c") or not os.path.exists(os.path.join(ROOT, f)):
                continue
            with open(os.path.join(ROOT, f), encoding="utf-8") as file:
                for name in re.findall(r"metric\[(M_\w+)\] = |metric_own\(s, (M_\w+),", file.read()):
                    by = next((by for place, by in places.items() if f.startswith(place)), f)
                    found.setdefault(name[0] or name[1], []).append(by)
        self.assertEqual(found, {name: [by] for name, by in rows.items()})


if __name__ == "__main__":
    unittest.main()
