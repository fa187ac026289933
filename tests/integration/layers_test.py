"""Includes and calls point one way, and a system's header stays in its folder: the rules of ARCHITECTURE.md, held against every #include and
against every symbol that one object file of the build takes from another."""
import collections
import glob
import os
import re
import subprocess
import sys
import unittest
from run_tools import ROLLCALL

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BASE, WIRE, SETTINGS, RECORD, RUN = (f"protocol/{room}" for room in ("base", "wire", "settings", "record", "run"))
KERNELS = "kernels"
ENGINE, HOST, PROCESS, HTTP = "workers/engine", "workers/host", "workers/process", "workers/http"
PROTOCOL = (BASE, WIRE, SETTINGS, RECORD, RUN)
# Which folder may include which. The longest matching folder of a file decides; a folder may always include itself.
MAY = {
    BASE: (),
    WIRE: (BASE,),
    SETTINGS: (BASE, WIRE),
    RECORD: (BASE, WIRE, SETTINGS),
    RUN: (BASE, WIRE, SETTINGS, RECORD),
    KERNELS: (BASE,),
    ENGINE: (BASE, WIRE, SETTINGS, RECORD, KERNELS),
    HOST: PROTOCOL,
    PROCESS: PROTOCOL,
    HTTP: (BASE, WIRE),
    "workers/worker": (*PROTOCOL, KERNELS, ENGINE, PROCESS, HTTP, "workers/serve"),
    "workers/schedule": (BASE, WIRE, SETTINGS, RECORD, ENGINE),
    "workers/controller": (*PROTOCOL, KERNELS, ENGINE, PROCESS, "workers/schedule"),
    "workers/harness": (*PROTOCOL, ENGINE, HTTP),
    "workers/scorer": (*PROTOCOL, ENGINE, PROCESS, HTTP, "workers/harness"),
    "workers/node/bulk": (BASE, WIRE, ENGINE),
    "workers/node": (*PROTOCOL, KERNELS, ENGINE, HOST, PROCESS, "workers/node/bulk"),
    "workers/agent": (*PROTOCOL, HOST, PROCESS, "workers/node"),
    "workers/export": (*PROTOCOL, HTTP),
    "workers/atropos": (*PROTOCOL, ENGINE, PROCESS, HTTP),
    "workers/serve": (*PROTOCOL, KERNELS, ENGINE, PROCESS, HTTP, "workers/atropos"),
    "console/fleet": PROTOCOL,
    "console/simulate": (*PROTOCOL, "console/fleet"),
    "console/tui": (*PROTOCOL, "console/fleet"),
    "console/batch": (*PROTOCOL, "console/fleet"),
    "console/train": (*PROTOCOL, KERNELS, ENGINE, "console/batch", "workers/harness"),
    "console/tools": (*PROTOCOL, KERNELS, ENGINE, HOST),
    "console/bench": (*PROTOCOL, KERNELS, ENGINE, "console/tools"),
    "console": (*PROTOCOL, KERNELS, ENGINE, "console/fleet", "console/simulate", "console/tui", "console/batch", "console/train"),
}
# The layers inside the engine.
ENGINE_MAY = {
    "text": (), "hub": (), "data": ("hub",), "reward": ("template",), "template": ("text",), "model": (), "pass": ("model",),
    "publish": ("model",), "sampler": ("model", "pass", "text", "template", "reward"),
    "trainer": ("model", "pass", "text", "template", "data"),
    "plan": ("model", "pass", "sampler", "trainer", "publish"),
    "load": ("hub", "model", "text", "template"),
}
# System headers and the one place they may be included from.
ONLY = {
    "ncurses.h": ("console/tui/terminal.c",),
    "cuda_runtime.h": ("kernels/cuda/", "kernels/collective/"),
    "nccl.h": ("kernels/collective/",),
    "nng/": ("protocol/wire/",),
    "openssl/": ("protocol/wire/", "protocol/base/mac.c"),
    "sqlite3.h": ("protocol/record/",),
}

# Functions that only one file may call, and what others call in their place.
CALLS = {"pthread_create": ("protocol/base/thread.c", "thread_start starts a thread that takes no signals"),
         "posix_spawnp?": ("protocol/base/child.c", "child_spawn starts a program that takes all signals")}


# The most files of a library that need each other, directly or by way of others: what one of them does is understood only with the rest. Lower a
# row when the knot has become smaller; it may not grow.
KNOT = 6
KNOTS = {"rc_worker": 2, "rc_controller": 13, "rc_tui": 23, "rc_template": 12, "rc_pass": 7, "rc_reward": 9}


class Symbols:
    """The object files of a build's libraries, as (library, file), and who takes which symbols from whom."""

    def __init__(self, build):
        self.defined, self.needed = {}, collections.defaultdict(set)
        for archive in glob.glob(os.path.join(build, "librc_*.a")):
            library = os.path.basename(archive)[3:-2]
            out = subprocess.run(["nm", "-A", "-g", archive], capture_output=True, text=True, check=True).stdout
            for member, kind, name in re.findall(r":(\S+)\.c\.o:[ 0-9a-f]* (\w) (\S+)$", out, re.M):
                if kind == "U":
                    self.needed[library, member].add(name)
                else:
                    self.defined.setdefault(name, (library, member))
        self.takes = collections.defaultdict(lambda: collections.defaultdict(set))
        for user, names in self.needed.items():
            for name in names & self.defined.keys():
                if self.defined[name] != user:
                    self.takes[user][self.defined[name]].add(name)

    def knots(self):
        """The largest set of files that need each other, of each library: Tarjan, SIAM J. Comput. 1, 1972."""
        index, low, stack, largest = {}, {}, [], collections.defaultdict(list)

        def visit(file):
            index[file] = low[file] = len(index)
            stack.append(file)
            for to in self.takes.get(file, ()):
                if to[0] != file[0]:
                    continue
                if to not in index:
                    visit(to)
                if to in stack:
                    low[file] = min(low[file], low[to])
            if low[file] == index[file]:
                at = stack.index(file)
                knot = sorted(member for _, member in stack[at:])
                del stack[at:]
                largest[file[0]] = max(largest[file[0]], knot, key=len)
        for file in list(self.takes):
            if file not in index:
                visit(file)
        return largest


def libraries():
    """What each library of CMakeLists.txt may take symbols from: those that its row uses, and what they use."""
    with open(os.path.join(ROOT, "CMakeLists.txt"), encoding="utf-8") as f:
        text = f.read()
    uses = {name: words.split() for name, words in re.findall(r"rc_library\((\w+) FOLDERS [^)]*?USES ([^)]*)\)", text)}
    uses.update({name: words.split() for name, words in re.findall(r"target_link_libraries\((rc_\w+) INTERFACE ([^)]*)\)", text)})

    def below(name):
        return {name}.union(*(below(n) for n in uses.get(name, ()) if n in uses))
    return {name: below(name) for name in uses}


def folder(path, folders):
    return max((f for f in folders if path.startswith(f + "/")), key=len, default=None)


def tags(text):
    """The struct, enum and union tags that a header defines."""
    code = re.sub(r'"(?:\\.|[^"\\\n])*"|//[^\n]*|/\*.*?\*/', " ", text, flags=re.S)
    return re.findall(r"\b(?:struct|enum|union)\s+(\w+)\s*\{", code)


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
            yield f"{path} calls {name.rstrip('p?')}: {instead}"
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

    def test_every_symbol_comes_from_a_library_that_may_be_used(self):
        symbols, may = Symbols(os.path.dirname(ROLLCALL)), libraries()
        self.assertGreater(len(symbols.takes), 300)
        wrong = [f"{user[0]} ({user[1]}) takes {', '.join(sorted(names))} of {to[0]} ({to[1]})" for user, taken in symbols.takes.items()
                 for to, names in taken.items() if to[0] not in may[user[0]]]
        self.assertEqual(wrong, [], "\n".join(wrong) + "\ngive the library's row in CMakeLists.txt what it uses, if that may be below it")

    def test_no_knot_of_files_grows(self):
        knots = Symbols(os.path.dirname(ROLLCALL)).knots()
        wrong = [f"{len(files)} files of {library} need each other, and at most {KNOTS.get(library, KNOT)} may: {', '.join(files)}"
                 for library, files in knots.items() if len(files) > KNOTS.get(library, KNOT)]
        self.assertEqual(wrong, [], "\n".join(wrong))
        self.assertEqual({library for library, most in KNOTS.items() if len(knots[library]) <= KNOT < most}, set(), "these need no row any more")
        for library, files in sorted(knots.items(), key=lambda knot: (-len(knot[1]), knot[0])):
            if len(files) > 1:
                print(f"{len(files):3} of at most {KNOTS.get(library, KNOT):2}: {library}: {' '.join(files)}", file=sys.stderr)

    def test_a_tag_is_defined_in_one_header_only(self):
        """A reader, and a debugger's ptype, find what a name is without asking in which folder."""
        self.assertEqual(tags("struct a { enum b { C } x; }; // struct d {\nstruct e;\nunion f\n{ int g; };"), ["a", "b", "f"])
        places = collections.defaultdict(set)
        for f in subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "*.h", "*.cuh"], cwd=ROOT, text=True, capture_output=True,
                                check=True).stdout.split():
            if not f.startswith("tests/") and os.path.exists(os.path.join(ROOT, f)):
                with open(os.path.join(ROOT, f), encoding="utf-8") as file:
                    for tag in tags(file.read()):
                        places[tag].add(f)
        self.assertGreater(len(places), 500)
        self.assertEqual({tag: sorted(files) for tag, files in places.items() if len(files) > 1}, {})

    def test_json_goes_through_the_one_reader_and_writer(self):
        """jansson alone refuses what Python writes (protocol/base/json_text.h)."""
        found = subprocess.run(["git", "grep", "-nE", r"\bjson_(load|dump)(s|b|f|fd|_file|_callback)\(", "--", "console/*.c", "workers/*.c",
                                "protocol/*.c"], cwd=ROOT, text=True, capture_output=True).stdout.splitlines()
        self.assertEqual({line.split(":")[0] for line in found}, {"protocol/base/json_read.c"}, found)

    def test_a_new_include_is_named_with_the_rule_it_breaks(self):
        cases = {
            ("console/tui/app.c", '#include "kernels/ops.h"\n'): "console/tui may use",
            ("protocol/base/buf.c", '#include "protocol/wire/message.h"\n'): "nothing of ours",
            ("protocol/settings/knobs.c", '#include "protocol/record/journal.h"\n'): "protocol/settings may use",
            ("workers/engine/pass/run.c", '#include "workers/engine/sampler/generator.h"\n'): "workers/engine/pass may use model",
            ("workers/agent/x.c", "#include <nng/nng.h>\n"): "protocol/wire/",
            ("workers/export/x.c", '#include "workers/schedule/ledger.h"\n'): "workers/export may use",
            ("workers/http/x.c", '#include "workers/serve/reply.h"\n'): "workers/http may use",
            ("workers/serve/x.c", "rv = pthread_create(&t, NULL, f, x);\n"): "thread_start",
            ("console/x.c", "rv = posix_spawn(&pid, f, NULL, NULL, argv, environ);\n"): "child_spawn",
        }
        for (path, text), words in cases.items():
            self.assertIn(words, " ".join(broken(path, text)), path)

    def test_each_metric_is_computed_in_the_one_place_that_its_row_names(self):
        with open(os.path.join(ROOT, "protocol/settings/metrics.c"), encoding="utf-8") as file:
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
