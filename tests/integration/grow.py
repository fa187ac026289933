"""A program with a row more: a tree whose edited files lie over those of the checkout, built from the objects that the build has and those that
depend on an edited file. A test adds to it what CONTRIBUTING.md says how to add."""
import concurrent.futures
import json
import os
import re
import shlex
import subprocess
import tempfile
import unittest
from run_tools import ROLLCALL, ROOT

BUILD = os.path.dirname(ROLLCALL)
FOLDERS = ("console", "workers", "kernels", "protocol")


def row_of(kind):
    """The files of the product that the row `kind` of CONTRIBUTING.md's table names."""
    with open(os.path.join(ROOT, "CONTRIBUTING.md"), encoding="utf-8") as f:
        found = re.search(rf"^\| {re.escape(kind)}(?: \([^|]*\))? \|(.*)\|$", f.read(), re.M)
    if not found:
        raise AssertionError(f"CONTRIBUTING.md has no row '{kind}'")
    return [name for name in re.findall(r"`([^` ]+)`", found[1]) if name.startswith(FOLDERS) and name.endswith((".c", ".h"))]


def users_of(files):
    """All *.c of the product that are among these files, or include one of them, directly or not."""
    names = subprocess.run(["git", "ls-files", *FOLDERS], cwd=ROOT, text=True, capture_output=True, check=True).stdout.split()
    by = {}
    for name in names:
        if name.endswith((".c", ".h")) and os.path.exists(os.path.join(ROOT, name)):
            with open(os.path.join(ROOT, name), encoding="utf-8") as f:
                for to in re.findall(r'^\s*#\s*include\s+"([^"]+)"', f.read(), re.M):
                    by.setdefault(to, []).append(name)
    found, left = set(files), list(files)
    while left:
        more = set(by.get(left.pop(), ())) - found
        found |= more
        left += more
    return sorted(name for name in found if name.endswith(".c"))


def together(kinds):
    """The edits of all kinds of rows, {kind: edits}, as edits of one tree; NAME in a file's name becomes grown."""
    edits = {}
    for how in kinds.values():
        for name, change in how.items():
            name = name.replace("NAME", "grown")
            edits[name] = edits.get(name, []) + change if isinstance(change, list) else change
    return edits


class Grown:
    """edits: {path: [(text that is there once, what stands in its place)]}, or {path: text} for a new file."""

    def __init__(self, edits):
        if not os.path.exists(os.path.join(BUILD, "build.ninja")):
            raise unittest.SkipTest(f"{BUILD} was not built by ninja, which says how the program is linked")
        self.folder = tempfile.TemporaryDirectory(prefix="rc-grown-")
        self.program = self.path("rollcall")
        for name, how in edits.items():
            if not isinstance(how, str):
                with open(os.path.join(ROOT, name), encoding="utf-8") as f:
                    text = f.read()
                for old, new in how:
                    if text.count(old) != 1:
                        raise AssertionError(f"{name} has this {text.count(old)} times, and the script wants to change it once: {old}")
                    text = text.replace(old, new)
                how = text
            os.makedirs(os.path.dirname(self.path(name)), exist_ok=True)
            with open(self.path(name), "w", encoding="utf-8") as f:
                f.write(how)
        with open(os.path.join(BUILD, "compile_commands.json"), encoding="utf-8") as f:
            rows = [(os.path.relpath(row["file"], ROOT), shlex.split(row["command"])) for row in json.load(f)]
        self.commands = {name: words for name, words in rows if "CMakeFiles/rc_" in words[words.index("-o") + 1]
                         or "CMakeFiles/rollcall.dir" in words[words.index("-o") + 1]}
        users = users_of(edits)
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            self.objects = dict(zip(users, pool.map(self.compile, users)))
        self.link()

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def run(self, words):
        done = subprocess.run(words, cwd=BUILD, capture_output=True, text=True)
        if done.returncode != 0:
            raise AssertionError(" ".join(words) + "\n" + done.stderr)

    def compile(self, name):
        """The object file of a source, by the command of the build, or of a neighbour's when the source is new; not optimised, to be quick."""
        at = name if name in self.commands else next(n for n in self.commands if os.path.dirname(n) == os.path.dirname(name))
        words = list(self.commands[at])
        edited, made = self.path(name), self.path(name.replace("/", "-") + ".o")
        words[words.index("-o") + 1] = made
        words[words.index("-c") + 1] = edited if os.path.exists(edited) else os.path.join(ROOT, name)
        words.insert(next(i for i, word in enumerate(words) if word.startswith("-I")), "-I" + self.folder.name)
        self.run([*words, "-O0", "-g0", "-Werror"])
        return made

    def link(self, main=None):
        """As the build does. What was compiled here comes first, and an archive gives only what is missing. main: an object file with
        another main."""
        last = subprocess.run(["ninja", "-C", BUILD, "-t", "commands", "rollcall"], capture_output=True, text=True, check=True).stdout.splitlines()[-1]
        words = shlex.split(last.removeprefix(": && ").removesuffix(" && :"))
        words[words.index("-o") + 1] = main.removesuffix(".o") if main else self.program
        own = {self.commands[name][self.commands[name].index("-o") + 1]: name for name in self.objects if name in self.commands}
        words = [self.objects[own[word]] if word in own else word for word in words]
        if main:
            words = [main if word.endswith("console/main.c.o") else word for word in words if "rollcall.dir" not in word or "main.c.o" in word]
        first = next(i for i, word in enumerate(words) if word.endswith(".a"))
        more = [made for name, made in self.objects.items() if made not in words and not (main and os.path.dirname(name) == "console")]
        self.run(words[:first] + more + words[first:])

    def ask(self, *words, stdin="", status=0):
        """What the program prints."""
        done = subprocess.run([self.program, *words], input=stdin, capture_output=True, text=True, timeout=300)
        if done.returncode != status:
            raise AssertionError(f"{words} ended with {done.returncode}: {done.stdout}{done.stderr}")
        return done.stdout + done.stderr

    def program_of(self, name, text):
        """What a program of one file prints that is linked with this tree."""
        with open(self.path(name), "w", encoding="utf-8") as f:
            f.write(text)
        self.commands[name] = self.commands["protocol/wire/message.c"]
        made = self.compile(name)
        self.link(made)
        return subprocess.run([made.removesuffix(".o")], capture_output=True, text=True, check=True).stdout
