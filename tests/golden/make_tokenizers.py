#!/usr/bin/env python3
"""Make tokenizers with the published pre-tokenizer patterns, and compare rollcall with the tokenizers library on them.

Needs the PyPI package tokenizers (0.23 was used); nothing is downloaded. The text they are trained on is found on the machine:
English prose from Rust's HTML documentation when it is there, else Python's own sources.

  make_tokenizers.py train DIR [--vocab N]     the tokenizers of KINDS into DIR/NAME.json
  make_tokenizers.py compare DIR [--n N]       N random and tricky strings a tokenizer through both; lists differences
  make_tokenizers.py fixture                   tests/golden/tokenizer/: small tokenizers with cases (kept in git)
  make_tokenizers.py normal                    characters the library normalises otherwise than Unicode 14 does (unicode.c)
  make_tokenizers.py bench DIR                 MB/s of processor time: tokenizers, tiktoken and rollcall in one run, on DIR/corpus.txt
"""
import argparse, glob, html, json, os, random, re, subprocess, sys, time, unicodedata
import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
ROLLCALL = os.environ.get("ROLLCALL", os.path.join(ROOT, "build/release/rollcall"))
HEAD = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2, LLAMA3 = HEAD + r"\p{N}" + TAIL, HEAD + r"\p{N}{1,3}" + TAIL
O200K = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
         r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
         r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def corpus(size):
    """About size bytes of text: documentation first, then sources; the same on the same machine."""
    out, n = [], 0
    pages = sorted(glob.glob(os.path.expanduser("~") + "/.rustup/toolchains/*/share/doc/rust/html/**/*.html", recursive=True) +
                   glob.glob("/usr/share/doc/rust*/html/**/*.html", recursive=True))
    pages = [p for p in pages if "/src/" not in p]
    sources = sorted(glob.glob(os.path.join(os.path.dirname(os.__file__), "**/*.py"), recursive=True))
    random.Random(1).shuffle(pages)
    for path in pages + sources:
        with open(path, encoding="utf-8", errors="ignore") as f:
            text = f.read()
        if path.endswith(".html"):
            text = re.sub(r"(?s)<(script|style|nav).*?</\1>", " ", text)
            text = html.unescape(re.sub(r"<[^>]+>", "", text))
            text = re.sub(r"[ \t]{2,}", " ", re.sub(r"\n{3,}", "\n\n", text))
        out.append(text)
        n += len(text.encode())
        if n > size:
            break
    return out


def split(pattern):
    return pre_tokenizers.Split(Regex(pattern), "isolated", invert=False)


def byte_level(**k):
    return pre_tokenizers.ByteLevel(**{"add_prefix_space": False, "use_regex": False, "trim_offsets": False, **k})


def special(text, **k):
    return AddedToken(text, **{"special": True, "normalized": False, **k})


KINDS = {
    "qwen2": dict(normalizer=normalizers.NFC(), pre=lambda: pre_tokenizers.Sequence([split(QWEN2), byte_level()]),
                  added=[special("<|endoftext|>"), special("<|im_start|>"), special("<|im_end|>"),
                         special("<think>", special=False), special("</think>", special=False)]),
    "llama3": dict(normalizer=None, pre=lambda: pre_tokenizers.Sequence([split(LLAMA3), byte_level(trim_offsets=True)]),
                   ignore_merges=True, added=[special("<|begin_of_text|>"), special("<|eot_id|>")], bos="<|begin_of_text|>"),
    "gpt2": dict(normalizer=None, pre=lambda: byte_level(use_regex=True, add_prefix_space=True),
                 added=[special("<|endoftext|>", normalized=True), special("<mask>", lstrip=True)]),
    "smollm": dict(normalizer=None, pre=lambda: pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), byte_level(use_regex=True)]),
        added=[special("<|im_start|>"), special("<|im_end|>"), special("<repo_name>", rstrip=True)]),
    "odd": dict(normalizer=normalizers.NFKC(), pre=lambda: pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(r"[.,;]"), "merged_with_previous"), pre_tokenizers.Split(Regex(r"[(\[]"), "merged_with_next"),
         pre_tokenizers.Split(Regex(r"\p{Lu}"), "contiguous"), pre_tokenizers.Split("~", "removed"), split(O200K),
         byte_level()]),
        added=[special("word", single_word=True, special=False), special("ﬁn", normalized=True, special=False),
               special("[X]", lstrip=True, rstrip=True)]),
    "words": dict(normalizer=normalizers.Sequence([normalizers.NFC(), normalizers.NFKC()]), pre=lambda: pre_tokenizers.Sequence(
        [pre_tokenizers.Whitespace(), byte_level()]), added=[special("<|end|>")]),
    "marks": dict(normalizer=None, pre=lambda: pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation("merged_with_previous"), byte_level()]), added=[special("<|end|>")]),
    "marks2": dict(normalizer=normalizers.Sequence([normalizers.NFKC(), normalizers.NFD()]), pre=lambda: pre_tokenizers.Sequence(
        [pre_tokenizers.Punctuation("contiguous"), byte_level(use_regex=True)]), added=[special("<|end|>")]),
    "classes": dict(normalizer=None, pre=lambda: pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(r"\b"), "isolated"), pre_tokenizers.Split(Regex(r"[\p{L}&&[^\p{Lu}aeiou]]+"), "isolated"),
         pre_tokenizers.Split(Regex(r"[0-4[x-z\p{Nl}]]|[^\w&&[^_\s]]"), "merged_with_next"), pre_tokenizers.Split(Regex(r"\B[A-C]"), "isolated"),
         byte_level()]), added=[special("<|end|>")]),
}


def train_text(kind, texts, vocab):
    unigram = kind.get("unigram", False)
    tok = Tokenizer(models.Unigram() if unigram else models.BPE(unk_token="<unk>"))
    tok.pre_tokenizer = metaspace("always", True)
    first = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)] * kind.get("fallback", False)
    some = [t[:20000] for t in texts][:200]
    if unigram:
        trainer = trainers.UnigramTrainer(vocab_size=vocab, special_tokens=first, unk_token="<unk>", show_progress=False)
    else:
        trainer = trainers.BpeTrainer(vocab_size=vocab, special_tokens=first, show_progress=False, limit_alphabet=300)
    tok.train_from_iterator(some, trainer)
    tok.normalizer, tok.decoder = kind["normalizer"](), kind["decoder"]
    if kind["pre"]():
        tok.pre_tokenizer = kind["pre"]()
    spec = json.loads(tok.to_str())
    if not kind["pre"]():
        spec["pre_tokenizer"] = None
    spec["added_tokens"] = [t for t in spec["added_tokens"] if not t["content"].startswith("<0x")]
    spec["model"]["byte_fallback"] = kind.get("fallback", False)
    if not unigram:
        spec["model"]["fuse_unk"] = kind.get("fuse_unk", kind.get("fallback", False))
    tok = Tokenizer.from_str(json.dumps(spec))
    tok.add_tokens(kind["added"])
    tok.add_special_tokens([t for t in kind["added"] if t.special])
    if "bos" in kind:
        bos = kind["bos"]
        tok.post_processor = processors.TemplateProcessing(single=f"{bos} $A", pair=f"{bos} $A {bos} $B",
                                                           special_tokens=[(bos, tok.token_to_id(bos))])
    spec = json.loads(tok.to_str())
    if not unigram and kind.get("fallback"):    # the older spelling of merges
        spec["model"]["merges"] = [" ".join(m) for m in spec["model"]["merges"]]
    spec["truncation"] = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0} if "bos" in kind else None
    return spec


def train(name, texts, vocab):
    kind = KINDS[name]
    if "decoder" in kind:
        return train_text(kind, texts, vocab)
    tok = Tokenizer(models.BPE())
    if kind["normalizer"]:
        tok.normalizer = kind["normalizer"]
    tok.pre_tokenizer = kind["pre"]()
    tok.decoder = decoders.ByteLevel()
    tok.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=vocab, min_frequency=1, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    tok.add_tokens(kind["added"])
    tok.add_special_tokens([t for t in kind["added"] if t.special])
    post = processors.ByteLevel(trim_offsets=False)
    if "bos" in kind:
        bos = kind["bos"]
        post = processors.Sequence([post, processors.TemplateProcessing(
            single=f"{bos} $A", pair=f"{bos} $A {bos} $B", special_tokens=[(bos, tok.token_to_id(bos))])])
    tok.post_processor = post
    spec = json.loads(tok.to_str())
    spec["model"]["ignore_merges"] = kind.get("ignore_merges", False)
    if name == "gpt2":    # the older spelling of merges
        spec["model"]["merges"] = [" ".join(m) for m in spec["model"]["merges"]]
    return spec


MARK = "\u2581"
LLAMA_DECODER = [decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse()]
PLAIN = [special("<unk>"), special("<s>"), special("</s>")]


def metaspace(scheme, split):
    return pre_tokenizers.Metaspace(replacement=MARK, prepend_scheme=scheme, split=split)


# Tokens are text here. fallback: bytes have tokens; pieces: what it is trained on, when the pre-tokenizer cuts nothing.
TEXT_KINDS = {
    # Llama 2, Mistral 7B and Phi-3 as they are published, the last with tokens that take the space after them
    "llama2": dict(normalizer=lambda: normalizers.Sequence([normalizers.Prepend(MARK), normalizers.Replace(" ", MARK)]), pre=lambda: None,
                   decoder=decoders.Sequence(LLAMA_DECODER + [decoders.Strip(" ", 1, 0)]), fallback=True, bos="<s>",
                   added=PLAIN + [special("<|end|>", rstrip=True), special("<n>", normalized=True, special=False)]),
    "llama2-new": dict(normalizer=lambda: None, pre=lambda: metaspace("first", False),
                       decoder=decoders.Sequence(LLAMA_DECODER + [decoders.Strip(" ", 1, 0)]), fallback=True, bos="<s>", added=PLAIN),
    "gemma": dict(normalizer=lambda: normalizers.Replace(" ", MARK), pre=lambda: pre_tokenizers.Split(" ", "merged_with_previous"),
                  decoder=decoders.Sequence(LLAMA_DECODER), fallback=True, bos="<s>", added=PLAIN + [special("<start_of_turn>")]),
    "marked": dict(normalizer=lambda: normalizers.NFC(), pre=lambda: pre_tokenizers.Sequence(
        [pre_tokenizers.Punctuation(), metaspace("always", True)]), decoder=decoders.Metaspace(replacement=MARK, prepend_scheme="always"),
        added=PLAIN),
    "fused": dict(normalizer=lambda: None, pre=lambda: metaspace("never", True), fuse_unk=True, added=PLAIN,
                  decoder=decoders.Metaspace(replacement=MARK, prepend_scheme="never")),
    "unigram": dict(unigram=True, normalizer=lambda: normalizers.NFKC(), pre=lambda: metaspace("first", True), fallback=True, added=PLAIN,
                    decoder=decoders.Sequence(LLAMA_DECODER + [decoders.Strip(" ", 1, 0)])),
    "unigram-t5": dict(unigram=True, normalizer=lambda: None, pre=lambda: pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), metaspace("always", True)]), decoder=decoders.Metaspace(replacement=MARK, prepend_scheme="always"),
        added=PLAIN),
}


KINDS.update(TEXT_KINDS)
ALPHABETS = None


def alphabets():
    """Code points assigned in Unicode 14, by kind. What this Python knows beyond or below 14 is told by unicodedata's version."""
    global ALPHABETS
    if ALPHABETS is None:
        assigned = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000 and unicodedata.category(chr(c)) not in ("Cn", "Co")]
        by = {}
        for c in assigned:
            by.setdefault(unicodedata.category(chr(c)), []).append(c)
        marks = by["Mn"] + by["Mc"] + by["Me"]
        space = [c for c in assigned if chr(c).isspace()] + [0x200B, 0x180E, 0xFEFF, 0x1C, 0x1F, 0x85]
        number = by["Nd"] + by["Nl"] + by["No"]
        hangul = list(range(0x1100, 0x1200)) + list(range(0xAC00, 0xAC00 + 400)) + [0xD7A3, 0xA97C, 0xD7CB]
        compat = [c for c in assigned if unicodedata.decomposition(chr(c))]
        ALPHABETS = [list(range(32, 127)), [ord(c) for c in " \t\r\n'sStTrReElLvVmMdD.,()1239ſ"], space, number, marks, compat, hangul,
                     assigned, list(range(0x4E00, 0x5200)), list(range(0x1F300, 0x1F6FF)), list(range(0xC0, 0x250))]
    return ALPHABETS


def strings(n, seed, added, texts):
    """Random and tricky strings: pieces of several alphabets, real text, added tokens, long runs."""
    r, alpha = random.Random(seed), alphabets()
    words = ("don't", "I'LL", "we'Ve", "'ſ", "  ", "\n\n", " \n ", "\r\n", "é", "e\u0301", "ﬁ", "Å", "각", "각", "1234", "½", "你好", "👩‍👩‍👧",
             "word", "words", "a word.", "wordſ", "_word_", "\u00a0", "\u3000", "Ġ", "Ċ", "\ufffd", "\u2581", "\u2581\u2581", "<0x41>", "<0xE2>", " \u2581 ", "\x00", "a\u0315\u0300\u05ae\u0062")
    for _ in range(n):
        parts = []
        for _ in range(r.randint(1, 6)):
            k = r.random()
            if k < 0.35:
                a = r.choice(alpha)
                parts.append("".join(chr(r.choice(a)) for _ in range(r.randint(1, 8))))
            elif k < 0.5:
                parts.append(r.choice(words))
            elif k < 0.6:
                parts.append(r.choice(added))
            elif k < 0.65:
                parts.append(chr(r.choice(r.choice(alpha))) * r.randint(1, 90))
            elif k < 0.7:
                parts.append("".join(chr(r.choice(r.choice(alpha))) for _ in range(r.randint(1, 30))))
            else:
                t = r.choice(texts)
                at = r.randrange(max(1, len(t)))
                parts.append(t[at:at + r.randint(1, 40)])
        yield "".join(parts)


def rollcall(args, rows):
    data = "\n".join(json.dumps(row) for row in rows) + "\n"
    p = subprocess.run([ROLLCALL] + args, input=data.encode(), capture_output=True)
    if p.returncode:
        sys.exit(f"{' '.join(args)}: {p.stderr.decode()}")
    return [json.loads(line) for line in p.stdout.decode().split("\n")[:-1]]


def compare(path, name, n, seed, texts):
    tok = Tokenizer.from_file(path)
    tok.no_truncation()    # rollcall never cuts a prompt
    added = [t.content for t in KINDS[name]["added"]]
    bad = done = 0
    while done < n:
        batch = list(strings(min(20000, n - done), seed + done, added, texts))
        for add in (False, True) if "bos" in KINDS[name] and done == 0 else (False,):
            want = [e.ids for e in tok.encode_batch(batch, add_special_tokens=add)]
            got = rollcall(["tokenize", "--tokenizer", path] + (["--add-special"] if add else []), ({"text": t} for t in batch))
            for t, w, g in zip(batch, want, got):
                if w != g["ids"]:
                    bad += 1
                    if bad <= 5:
                        print(f"{name}: {t!r}\n   want {[tok.id_to_token(i) for i in w]}\n   got  {[tok.id_to_token(i) for i in g['ids']]}")
        r = random.Random(seed + done)
        ids = [w[:r.randint(0, len(w))] if i % 3 else [r.randrange(tok.get_vocab_size() + 3) for _ in range(8)] for i, w in enumerate(want)]
        for skip in (False, True):
            text = rollcall(["tokenize", "--decode", "--tokenizer", path] + (["--skip-special"] if skip else []), ({"ids": i} for i in ids))
            for i, t in zip(ids, text):
                if tok.decode(i, skip_special_tokens=skip) != t["text"]:
                    bad += 1
                    if bad <= 5:
                        print(f"{name}: decode {i}: want {tok.decode(i, skip_special_tokens=skip)!r} got {t['text']!r}")
        done += len(batch)
    print(f"{name}: {done} strings, {bad} differences (tokenizers {tokenizers.__version__}, Unicode {unicodedata.unidata_version} here)")
    return bad


def bench(folder):
    path, text = os.path.join(folder, "qwen2.json"), "\n".join(corpus(16 << 20))
    with open(os.path.join(folder, "corpus.txt"), "w", encoding="utf-8") as f:
        f.write(text)
    size = len(text.encode())
    lines = [text[i:i + 20000] for i in range(0, len(text), 20000)]
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    tok = Tokenizer.from_file(path)
    some = lines[:max(1, len(lines) // 8)]
    t = time.process_time()
    n = sum(len(tok.encode(s, add_special_tokens=False).ids) for s in some)
    took = time.process_time() - t
    print(f"tokenizers {tokenizers.__version__}: {sum(len(s.encode()) for s in some) / took / 1e6:.1f} MB/s ({n} tokens)")
    try:
        import tiktoken
        spec = json.load(open(path))["model"]["vocab"]
        back = {c: b for b, c in bytes_to_unicode().items()}
        ranks = {bytes(back[c] for c in s): i for s, i in spec.items() if all(c in back for c in s)}
        enc = tiktoken.Encoding("made", pat_str=QWEN2.replace(r"\s", r"\p{White_Space}").replace(r"\S", r"\P{White_Space}"),
                                mergeable_ranks=ranks, special_tokens={})
        t = time.process_time()
        n = sum(len(enc.encode_ordinary(s)) for s in some)
        took = time.process_time() - t
        print(f"tiktoken {tiktoken.__version__}: {sum(len(s.encode()) for s in some) / took / 1e6:.1f} MB/s ({n} tokens)")
    except ImportError:
        print("tiktoken is not installed")
    print(f"corpus: {size} bytes of documentation and sources of this machine")
    subprocess.run([ROLLCALL, "bench", "tokenize", "--tokenizer", path, "--text", os.path.join(folder, "corpus.txt")], check=True)


def bytes_to_unicode():
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    return {b: chr(b) if b in plain else chr(0x100 + [x for x in range(256) if x not in plain].index(b)) for b in range(256)}


def normal():
    """Characters whose combining class or decomposition the library does not know, as ranges: the table in unicode.c. The
    halves of a new composition are found by their whole, and added by hand."""
    forms = {f: getattr(normalizers, f)() for f in ("NFC", "NFD", "NFKC", "NFKD")}
    odd = []
    for c in range(0x110000):
        if 0xD800 <= c < 0xE000:
            continue
        ch = chr(c)
        ccc = unicodedata.combining(ch)
        moved = "\u0345" + ch if 0 < ccc < 240 else ch + "\u0301"    # U+0345 has class 240, U+0301 230
        if (ccc and forms["NFD"].normalize_str(moved) != unicodedata.normalize("NFD", moved)) or any(
                n.normalize_str(ch) != unicodedata.normalize(f, ch) for f, n in forms.items()):
            if odd and odd[-1][1] == c - 1:
                odd[-1][1] = c
            else:
                odd.append([c, c])
    print(", ".join(f"{a:X}-{b:X}" for a, b in odd))


def fixture(names):
    folder = os.path.join(HERE, "tokenizer")
    os.makedirs(folder, exist_ok=True)
    texts = corpus(1 << 20)
    for name in names:
        spec = train(name, texts, 600)
        path = os.path.join(folder, name + ".json")
        with open(path, "w", encoding="utf-8") as f:
            json.dump(spec, f, ensure_ascii=True, separators=(",", ":"))
        tok = Tokenizer.from_file(path)
        tok.no_truncation()
        added = [t.content for t in KINDS[name]["added"]]
        with open(os.path.join(folder, name + ".jsonl"), "w") as f:
            for t in strings(120, 7, added, texts):
                ids = tok.encode(t, add_special_tokens=False).ids
                f.write(json.dumps({"text": t, "ids": ids, "decoded": tok.decode(ids, skip_special_tokens=False),
                                    "skipped": tok.decode(ids[1:], skip_special_tokens=True)}, separators=(",", ":")) + "\n")


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("what", choices=["train", "compare", "fixture", "normal", "bench"])
    ap.add_argument("dir", nargs="?")
    ap.add_argument("--vocab", type=int, default=30000)
    ap.add_argument("--n", type=int, default=20000)
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--only", default="")
    a = ap.parse_args()
    names = [n for n in KINDS if not a.only or n in a.only.split(",")]
    if a.what == "train":
        os.makedirs(a.dir, exist_ok=True)
        texts = corpus(24 << 20)
        for name in names:
            with open(os.path.join(a.dir, name + ".json"), "w", encoding="utf-8") as f:
                json.dump(train(name, texts, a.vocab), f, ensure_ascii=False)
    elif a.what == "compare":
        texts = corpus(2 << 20)
        sys.exit(1 if sum(compare(os.path.join(a.dir, n + ".json"), n, a.n, a.seed, texts) for n in names) else 0)
    elif a.what == "fixture":
        fixture(names)
    elif a.what == "normal":
        normal()
    else:
        bench(a.dir)


if __name__ == "__main__":
    main()
