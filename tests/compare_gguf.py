#!/usr/bin/env python3
"""A GGUF file as rollcall converts it, beside transformers' own reading of the same file: the bits of all weights, and the ids of 20,000
strings.

    python3 -m venv V; V/bin/pip install torch transformers gguf tokenizers
    V/bin/python tests/compare_gguf.py FILE.gguf [--rollcall build/release/rollcall] [--texts FILE.jsonl ...]

Strings are cut from the lines of --texts (any text file; by default this repository's documents), and made of random characters: runs of
spaces, digits, letters of several scripts, marks, emoji, special tokens. transformers 5 knows no pre-tokenizer for some names that
llama.cpp has, and takes GPT-2's (for "smollm" the published tokenizer, and llama.cpp, cut digits off first); there the two are compared
with the published one put into transformers' tokenizer, and the strings that differ without it are counted too.
"""
import argparse
import glob
import json
import os
import random
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
DIGITS_FIRST = ("smollm", "starcoder", "refact", "codeshell", "exaone")
N = 20000


def texts_make(paths, special):
    rng = random.Random(1)
    lines = [line for p in paths for line in open(p, encoding="utf-8", errors="replace").read().split("\n") if line.strip()]
    out = []
    for i in range(N):
        if i % 2:
            at = rng.randrange(len(lines))
            text = "\n".join(lines[at:at + rng.randrange(1, 4)])
            begin = rng.randrange(len(text))
            out.append(text[begin:begin + rng.randrange(1, 400)])
        else:
            kinds = ("  ", " ", "\n", "\t", "0123456789", "abcXYZ", "'s't're", "äöüß", "вгд", "你好", "٣٤", "é\u0301", "🙂👍🏽", "!?.,;:()[]{}",
                     "\u00a0\u3000", "ﬁ²½") + tuple(special)
            out.append("".join(k if len(k) > 16 or k in special else rng.choice(k)
                               for k in rng.choices(kinds, k=rng.randrange(1, 60))))
    return out


def weights_compare(path, folder):
    import torch
    from safetensors import safe_open
    from transformers import AutoModelForCausalLM
    model = AutoModelForCausalLM.from_pretrained(os.path.dirname(path) or ".", gguf_file=os.path.basename(path), dtype=torch.float32)
    want = model.state_dict()
    same = n = 0
    with safe_open(os.path.join(folder, "model.safetensors"), "pt") as f:
        names = set(f.keys())
        for name in names:
            same += torch.equal(f.get_tensor(name).float().view(torch.int32), want[name].float().view(torch.int32))
            n += want[name].numel()
    missing = [k for k in want if k not in names and not (k == "lm_head.weight" and model.config.tie_word_embeddings)]
    print(json.dumps({"tensors": len(names), "values": n, "same_bits": same, "missing": missing}))
    return same == len(names) and not missing


def ids_compare(path, folder, rollcall, paths):
    from tokenizers import pre_tokenizers
    from transformers import AutoTokenizer
    tok = AutoTokenizer.from_pretrained(os.path.dirname(path) or ".", gguf_file=os.path.basename(path))
    texts = texts_make(paths, [t for t in tok.all_special_tokens if t])
    plain = tok(texts, add_special_tokens=True).input_ids
    import gguf
    field = gguf.GGUFReader(path).fields.get("tokenizer.ggml.pre")
    pre = field.contents() if field else None
    if pre in DIGITS_FIRST:
        tok.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                                                       pre_tokenizers.ByteLevel(add_prefix_space=False)])
    want = tok(texts, add_special_tokens=True).input_ids
    p = subprocess.run([rollcall, "tokenize", "--add-special", "--tokenizer", folder], input="".join(json.dumps({"text": t}) + "\n" for t in texts),
                       capture_output=True, text=True, check=True)
    have = [json.loads(line)["ids"] for line in p.stdout.splitlines()]
    assert len(have) == len(texts), (len(have), p.stderr)
    differ = [i for i in range(N) if have[i] != want[i]]
    for i in differ[:5]:
        print(repr(texts[i]), have[i], want[i], file=sys.stderr)
    print(json.dumps({"strings": N, "pre": pre, "same_ids": N - len(differ),
                      "same_as_transformers_without_that_pre_tokenizer": sum(h == q for h, q in zip(have, plain))}))
    return not differ


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("file")
    ap.add_argument("--rollcall", default=os.path.join(ROOT, "build/release/rollcall"))
    ap.add_argument("--texts", nargs="*", default=glob.glob(os.path.join(ROOT, "*.md")) + glob.glob(os.path.join(ROOT, "workers/serve/*.c")))
    a = ap.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([a.rollcall, "convert", a.file, os.path.join(folder, "m")], check=True)
        ok = weights_compare(a.file, os.path.join(folder, "m"))
        ok = ids_compare(a.file, os.path.join(folder, "m"), a.rollcall, a.texts) and ok
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
