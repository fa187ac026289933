"""The documents name only what is there: files, folders, tests and subcommands."""
import glob
import os
import re
import subprocess
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
ROLLCALL = os.path.abspath(os.environ.get("ROLLCALL", os.path.join(ROOT, "build/release/rollcall")))
TOP = ("console", "workers", "kernels", "protocol", "themes", "tests", "examples", ".ci")
SHORT = {"README.md": 120, **{f"{folder}/README.md": 40 for folder in ("console", "workers", "kernels", "protocol", "tests")}}


def documents():
    out = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "*.md"], cwd=ROOT, text=True, capture_output=True, check=True)
    return sorted(f for f in out.stdout.split() if os.path.exists(os.path.join(ROOT, f)))


def read(name):
    with open(os.path.join(ROOT, name), encoding="utf-8") as f:
        return f.read()


def stumbles(name, text):
    """The sentences of a document, or of a source's comments, that begin with "Of" or "The same": line and text."""
    parts = [(0, text)]
    if not name.endswith(".md"):    # a comment, or comments of whole lines one after the other; their marks become blanks
        parts = [(m.start(), re.sub(r"(?m)^\s*(?://|\*(?!/)|/\*)", lambda mark: " " * len(mark[0]), m[0]))
                 for m in re.finditer(r"/\*[\s\S]*?\*/|(?m:(?:^[ \t]*//.*\n)+)|//.*", text)]
    for at, part in parts:
        for m in re.finditer(r"(?:^\W*|[.!?:;|][\"')]?\s+|\n\s*\n\s*|\n[-*]\s+)((?:Of|The same)\b)", part):
            yield text.count("\n", 0, at) + 1 + part.count("\n", 0, m.start(1)), part[m.start(1):]


def there(word, folder):
    """A path of the repository, from its root or from the document's folder, or a test by the runner's name."""
    places = [os.path.join(ROOT, word), os.path.join(ROOT, folder, word)]
    m = re.fullmatch(r"(unit|integration|tui)/(\w+_test)", word)
    if m:
        places += [os.path.join(ROOT, "tests", m[1], m[2] + ext) for ext in (".c", ".py")]
    return any(glob.glob(p) for p in places)


class Docs(unittest.TestCase):
    def test_every_path_that_a_document_names_is_there(self):
        wrong = []
        for doc in documents():
            folder = os.path.dirname(doc)
            for quoted in re.findall(r"`([^`\n]+)`", read(doc)):
                for word in quoted.split():
                    word = word.strip("',;:()")
                    own = re.match(r"[\w.]+", word)
                    if (own and own[0] in TOP and "/" in word or re.fullmatch(r"(unit|integration|tui)/\w+_test|[\w/]+/\w+\.[ch]", word)) \
                            and not re.search(r"NAME|\.\.\.|…|[<>{}|]", word) and not there(word, folder):
                        wrong.append(f"{doc}: `{word}`")
        self.assertEqual(wrong, [])

    def test_every_link_and_picture_is_there(self):
        wrong = [f"{doc}: {to}" for doc in documents() for to in re.findall(r"\]\(([^)#\s]+)", read(doc))
                 if "://" not in to and not os.path.exists(os.path.join(ROOT, os.path.dirname(doc), to))]
        self.assertEqual(wrong, [])

    def test_every_subcommand_that_a_document_names_is_there(self):
        told = subprocess.run([ROLLCALL, "--help"], capture_output=True, text=True, check=True).stdout
        known = set(re.findall(r"(?m)^  ([a-z][a-z-]*)", told)) | {"COMMAND"}
        wrong = []
        for doc in documents():
            code = "".join(re.findall(r"(?s)```.*?```", read(doc))) + "\n".join(re.findall(r"`[^`\n]+`", read(doc)))
            wrong += [f"{doc}: rollcall {w}" for w in re.findall(r"(?m)(?:^|`)rollcall ([a-z][a-z-]*)", code) if w not in known]
        self.assertEqual(wrong, [])

    def test_the_table_of_verifiers_has_each_verifier(self):
        refused = subprocess.run([ROLLCALL, "score", "-rt", "verify:none", "-i", "/dev/null"], capture_output=True, text=True, check=False)
        known = refused.stderr.strip().partition("there are ")[2].split(", ")
        self.assertIn("gsm8k", known)
        table = re.search(r"(?s)\| verifier \|.*?\n\n", read("examples/rewards/README.md"))[0]
        told = re.findall(r"`([^`]+)`", " ".join(row.split("|")[1] for row in table.splitlines()[2:] if row))
        self.assertEqual(sorted("general" + name if name.startswith("-") else name for name in told), sorted(known))

    def test_nothing_points_outside_of_the_repository(self):
        files = subprocess.run(["git", "grep", "-nE", r"seeds/0|facts/|\bDESIGN\b|\bSTYLE\b", "--", ".", ":!LICENSE", ":!tests/integration/docs_test.py"],
                               cwd=ROOT, text=True, capture_output=True)
        self.assertEqual((files.returncode, files.stdout), (1, ""))

    def test_words_that_make_a_reader_stumble_are_not_used(self):
        words = r"\btells of\b|\b(lives?|made|read|written|opened|begins?|joins?|starts?|dialing|shuffled?|looks?) anew\b"
        found = subprocess.run(["git", "grep", "-nPi", words, "--", ".", ":!tests/golden", ":!tests/integration/docs_test.py",
                                ":!workers/controller", ":!workers/engine/trainer"], cwd=ROOT, text=True, capture_output=True)
        self.assertEqual((found.returncode, found.stdout), (1, ""), "say 'again', 'restarts', 'reports'")

    def test_folders_that_read_well_keep_to_plain_words(self):
        words = r"\bfor (want of|ever)\b|\btold of\b|\bin the midst\b|\bone a (line|thread|process|node|step|row|completion|token)\b" \
                r"|\bbehind the end\b|\bof one's own\b|\b(is|are) no (number|text|prompt|token|journal|mathematics|JSON|key|call|answer)\b"
        folders = [f"workers/engine/{f}" for f in ("reward", "text", "template", "sampler", "model")] \
            + ["workers/serve", "workers/http", "workers/atropos", "workers/worker", "tests/unit", "tests/integration", "examples"]
        found = subprocess.run(["git", "grep", "-nPi", words, "--", *folders, ":!tests/integration/docs_test.py"],
                               cwd=ROOT, text=True, capture_output=True)
        self.assertEqual((found.returncode, found.stdout), (1, ""), "say 'for lack of', 'forever', 'reported', 'one per', 'is not a'")

    def test_no_sentence_begins_with_of_or_the_same(self):
        """Both send the reader back to look for what the sentence is about: the subject comes first, by name."""
        self.assertEqual([text[:12] for _, text in stumbles("x.h", "/* Of a rank. Often:\n * The same of it. */\nint a;  // the same; of b\n// Of c\n")],
                         ["Of a rank. O", "The same of ", "Of c\n"])
        self.assertEqual([line for line, _ in stumbles("x.md", "Of old.\n\n| row | The same as of old |\n\nSo. Of it\n")], [1, 3, 5])
        sources = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "*.h", "*.c", "*.cu", "*.cuh"], cwd=ROOT, text=True, capture_output=True, check=True)
        files = [f for f in sources.stdout.split() if os.path.exists(os.path.join(ROOT, f))] + documents()
        self.assertGreater(len(files), 1000)
        found = [f"{f}:{line}: {' '.join(text.split())[:80]}" for f in files for line, text in stumbles(f, read(f))]
        self.assertEqual(found, [])

    def test_what_is_to_be_short_is_short(self):
        for doc, most in SHORT.items():
            self.assertLessEqual(len(read(doc).splitlines()), most, doc)


if __name__ == "__main__":
    unittest.main()
