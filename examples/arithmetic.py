#!/usr/bin/python3
"""Makes the quickstart's data and tokenizer: arithmetic problems with worked answers. Deterministic: the same bytes anywhere.

    examples/arithmetic.py OUT_DIR

writes into OUT_DIR
  train.jsonl, eval.jsonl    problems with the right answer, in the form of rollcall train (messages, gt_answer)
  sft_clean.jsonl            worked and boxed answers, for the first supervised stage
  sft_styles.jsonl           the same in mixed habits (30 % worked and boxed, 22 % worked and not boxed, 48 % boxed without
                             working): a model that can do it but mostly does not
  sft_eval.jsonl             worked answers of the evaluation's problems, to measure the first stage
  tokenizer/                 a byte-level BPE tokenizer with Qwen's chat markers

A problem belongs to training or to evaluation by a hash of its numbers in sorted order (and whether it multiplies), so the two
share no problem, not even with operands swapped or signs changed.
"""
import hashlib
import json
import os
import random
import sys

N_TRAIN, N_EVAL, N_CLEAN, N_STYLES = 10000, 500, 120000, 8000
KINDS = (("two", 3), ("three", 3), ("product", 2), ("bracket", 2), ("times_bracket", 1))    # and their weights


def is_eval(numbers, times):
    key = ("x" if times else "+") + ",".join(map(str, sorted(numbers)))
    return hashlib.sha256(key.encode()).digest()[0] < 26    # a tenth


def two(r):
    a, b, op = r.randint(1, 99), r.randint(1, 99), r.choice("+-")
    value = a + b if op == "+" else a - b
    return f"{a}{op}{b}", [f"{a}{op}{b}={value}"], [value], (a, b), False


def three(r):
    a, b, c, op, oq = r.randint(1, 99), r.randint(1, 99), r.randint(1, 99), r.choice("+-"), r.choice("+-")
    first = a + b if op == "+" else a - b
    value = first + c if oq == "+" else first - c
    return f"{a}{op}{b}{oq}{c}", [f"{a}{op}{b}={first}", f"{first}{oq}{c}={value}"], [first, value], (a, b, c), False


def product_steps(a, b):
    """a one digit, b two: 7*38 is 7*30 and 7*8."""
    tens, ones = b // 10 * 10, b % 10
    if tens == 0 or ones == 0:
        return [f"{a}*{b}={a * b}"]
    return [f"{a}*{tens}={a * tens}", f"{a}*{ones}={a * ones}", f"{a * tens}+{a * ones}={a * b}"]


def product(r):
    a, b = r.randint(2, 9), r.randint(10, 99)
    return f"{a}*{b}", product_steps(a, b), [a * b], (a, b), True


def bracket(r):
    a, b, c, op, oq = r.randint(1, 99), r.randint(1, 99), r.randint(1, 99), r.choice("+-"), r.choice("+-")
    inner = b + c if oq == "+" else b - c
    value = a + inner if op == "+" else a - inner
    return f"{a}{op}({b}{oq}{c})", [f"{b}{oq}{c}={inner}", f"{a}{op}{inner}={value}"], [inner, value], (a, b, c), False


def times_bracket(r):
    a, b, c = r.randint(2, 9), r.randint(1, 20), r.randint(1, 20)
    return (f"{a}*({b}+{c})", [f"{b}+{c}={b + c}"] + product_steps(a, b + c), [b + c, a * (b + c)], (a, b, c), True)


MAKE = {"two": two, "three": three, "product": product, "bracket": bracket, "times_bracket": times_bracket}


def problem(r, want_eval):
    """A random problem of the wanted side with no negative number in it: text, steps, result."""
    while True:
        kind = r.choices([k for k, _ in KINDS], [w for _, w in KINDS])[0]
        text, steps, values, numbers, times = MAKE[kind](r)
        if min(values) >= 0 and is_eval(numbers, times) == want_eval:
            return text, steps, values[-1]


def distinct(r, n, want_eval):
    seen, out = set(), []
    while len(out) < n:
        p = problem(r, want_eval)
        if p[0] not in seen:
            seen.add(p[0])
            out.append(p)
    return out


def row(text, answer=None, gold=None):
    user = {"role": "user", "content": f"What is {text}?"}
    if answer is None:
        return {"messages": [user], "gt_answer": str(gold)}
    return {"messages": [user, {"role": "assistant", "content": answer}]}


def worked(p):
    return "\n".join(p[1] + [f"\\boxed{{{p[2]}}}"])


def styled(r, p):
    u = r.random()
    if u < 0.30:
        return worked(p)
    if u < 0.52:
        return "\n".join(p[1] + [str(p[2])])
    return f"\\boxed{{{p[2]}}}"


def write(path, rows):
    with open(path, "w", encoding="utf-8") as f:
        for r in rows:
            f.write(json.dumps(r, ensure_ascii=False) + "\n")


def byte_alphabet():
    """GPT-2's printable stand-ins for the 256 bytes, in the order of its vocabulary."""
    keep = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    chars = {b: chr(b) for b in keep}
    for i, b in enumerate(b for b in range(256) if b not in keep):
        chars[b] = chr(256 + i)
    return [chars[b] for b in keep] + [chars[b] for b in range(256) if b not in keep], chars


def tokenizer(out, words=("user", "assistant", "What", " is", "\\boxed")):
    """A tokenizer of single bytes but for these words, one token each, and Qwen's chat markers."""
    alphabet, chars = byte_alphabet()
    vocab, merges = {c: i for i, c in enumerate(alphabet)}, []
    for word in words:    # grown from the left
        parts = [chars[b] for b in word.encode()]
        while len(parts) > 1:
            pair = parts[0] + parts[1]
            if pair not in vocab:
                merges.append([parts[0], parts[1]])
                vocab[pair] = len(vocab)
            parts[0:2] = [pair]
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    added = [{"id": len(vocab) + i, "content": s, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
              "special": True} for i, s in enumerate(special)]
    pattern = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
    data = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False},
            {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}]},
        "post_processor": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False},
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "", "end_of_word_suffix": "",
                  "fuse_unk": False, "byte_fallback": False, "ignore_merges": False, "vocab": vocab, "merges": merges},
    }
    template = ("{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + "
                "'\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")
    ids = {a["content"]: a["id"] for a in added}
    config = {"tokenizer_class": "Qwen2Tokenizer", "model_max_length": 1024, "bos_token": None, "eos_token": "<|im_end|>",
              "pad_token": "<|endoftext|>", "unk_token": None, "add_prefix_space": False, "clean_up_tokenization_spaces": False,
              "errors": "replace", "split_special_tokens": False, "chat_template": template,
              "added_tokens_decoder": {str(a["id"]): {k: v for k, v in a.items() if k != "id"} for a in added},
              "additional_special_tokens": ["<|im_start|>", "<|im_end|>"]}
    generation = {"do_sample": True, "eos_token_id": [ids["<|im_end|>"], ids["<|endoftext|>"]], "pad_token_id": ids["<|endoftext|>"]}
    os.makedirs(out, exist_ok=True)
    for name, value in (("tokenizer.json", data), ("tokenizer_config.json", config), ("generation_config.json", generation)):
        with open(os.path.join(out, name), "w", encoding="utf-8") as f:
            json.dump(value, f, ensure_ascii=False, indent=1)
            f.write("\n")


def main():
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit("usage: examples/arithmetic.py OUT_DIR")
    out = sys.argv[1]
    os.makedirs(out, exist_ok=True)
    r = random.Random(20240601)
    evals = distinct(r, N_EVAL, True)
    write(os.path.join(out, "eval.jsonl"), (row(p[0], gold=p[2]) for p in evals))
    write(os.path.join(out, "sft_eval.jsonl"), (row(p[0], worked(p)) for p in evals))
    write(os.path.join(out, "train.jsonl"), (row(p[0], gold=p[2]) for p in distinct(r, N_TRAIN, False)))
    clean = (problem(r, False) for _ in range(N_CLEAN))
    write(os.path.join(out, "sft_clean.jsonl"), (row(p[0], worked(p)) for p in clean))
    styles = (problem(r, False) for _ in range(N_STYLES))
    write(os.path.join(out, "sft_styles.jsonl"), (row(p[0], styled(r, p)) for p in styles))
    tokenizer(os.path.join(out, "tokenizer"))


if __name__ == "__main__":
    main()
