#!/usr/bin/env python3
"""Makes the fixtures of tests/unit/gguf_test.c: a GGUF file of every type that is read, by gguf-py, and what gguf-py makes of it. Makes
those of tests/integration/gguf_test.py too: small models, and what transformers makes of them.

    python3 -m venv V; V/bin/pip install gguf safetensors torch transformers; V/bin/python tests/golden/make_gguf.py

types.gguf          two blocks (of the small types: 16) of random bits of each type, and a value of every kind
types.safetensors   the same tensors in fp32, by gguf.quants.dequantize, whose bits transformers takes over
ARCH.gguf           a small random model of each architecture, of many types
models.json         what transformers reads from each: of the tensors name, shape and SHA-256 of the fp32 values; the ids of some texts
"""
import hashlib
import json
import os
import random
import gguf
import numpy as np
from gguf.quants import dequantize
from safetensors.numpy import save_file

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "gguf")
# type: where a block's halves are; they must be finite
TYPES = {"F32": None, "F16": (0,), "BF16": None, "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,),
         "Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}


def blocks(kind, halves, rng):
    """512 values as random bits, with halves of every size from the least to the greatest."""
    n_elem, n_bytes = gguf.GGML_QUANT_SIZES[kind]
    if kind == gguf.GGMLQuantizationType.F32:
        return rng.standard_normal(512, dtype=np.float32).reshape(2, 256)
    b = rng.integers(0, 256, (512 // n_elem, n_bytes), dtype=np.uint8)
    if kind == gguf.GGMLQuantizationType.BF16:
        b[:, 1] = b[:, 1] & 0xBF    # no exponent of ones
    for at in halves or ():
        b[:, at + 1] = np.where((b[:, at + 1] & 0x7C) == 0x7C, b[:, at + 1] & 0x83, b[:, at + 1])
        b[0, at:at + 2] = 0x01, 0x80    # the smallest there is, negative
        b[-1, at:at + 2] = 0xFF, 0x7B    # the greatest
    return b.reshape(2, -1)


# Its tensors besides embedding and last norm: name, rows, columns (0: a vector), type. d_model is 32, with heads of 16.
NORMS = (("attn_norm", 32, 0, "F32"), ("ffn_norm", 32, 0, "F32"))
HALVES = (("attn_q", 64, 32, "Q4_0"), ("attn_k", 32, 32, "Q5_1"), ("attn_v", 32, 32, "Q8_0"), ("attn_output", 32, 64, "F16"),
          ("ffn_gate", 64, 32, "Q5_0"), ("ffn_up", 64, 32, "BF16"), ("ffn_down", 32, 64, "Q4_1"))
AROUND = (("post_attention_norm", 32, 0, "F32"), ("post_ffw_norm", 32, 0, "F32"))
ARCHS = {
    "llama-pieces": (NORMS + HALVES, dict(rope_dimension_count=16), {}),
    "llama": (NORMS + HALVES, dict(rope_dimension_count=16), {}),
    "qwen2": (NORMS + HALVES[:3] + (("attn_output", 32, 64, "Q8_0"),) + HALVES[4:], {}, {"attn_q": 64, "attn_k": 32, "attn_v": 32}),
    "qwen3": (NORMS + (("attn_q", 512, 32, "Q4_0"), ("attn_k", 256, 32, "Q4_0"), ("attn_v", 256, 32, "Q4_0"),
                       ("attn_output", 32, 512, "Q4_0")) + HALVES[4:] + (("attn_q_norm", 128, 0, "F32"), ("attn_k_norm", 128, 0, "F32")),
              dict(key_length=128), {}),
    "phi3": (NORMS + (("attn_qkv", 128, 32, "Q8_0"), ("attn_output", 32, 64, "Q4_1"), ("ffn_up", 128, 32, "Q5_1"), ("ffn_down", 32, 64, "Q8_0")),
             dict(rope_dimension_count=16), {}),
    "gemma2": (NORMS + AROUND + HALVES, dict(key_length=16, sliding_window=8), {}),
    "gemma3": (NORMS + AROUND + HALVES + (("attn_q_norm", 16, 0, "F32"), ("attn_k_norm", 16, 0, "F32")), dict(key_length=16, sliding_window=8),
               {}),
}


TEXTS = ["hello", " hello", "  hello  the world.", "the\n\nstone, 12 3", "<|end|> the <tool>the", "naïve 你好 🙂", "a  1", "", " ", "abc aab\tbaa",
         "<unk>the</s>", "I'LL don't we've"]


def pieces():
    """A small SentencePiece vocabulary: tokens, types and scores, of which some are equal."""
    rng = random.Random(3)
    words = "▁the ▁hello ▁world ▁stone abc aab baa ▁a ▁b the he lo or ld ▁▁ ▁▁▁ ▁▁▁▁ est one".split()
    parts = sorted({w[i:j] for w in words for i in range(len(w)) for j in range(i + 2, len(w) + 1) if rng.random() < 0.8})
    rng.shuffle(parts)
    letters = list("▁abcdehlnorstuwy.,0123é你")
    tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{i:02X}>" for i in range(256)] + parts + letters + ["<tool>", "<|end|>"]
    scores = [0.0] * 259 + [-float(i - (i % 5 == 0)) for i in range(len(parts))] + [-1e6] * len(letters) + [0.0, 0.0]
    return tokens, [2, 3, 3] + [6] * 256 + [1] * (len(parts) + len(letters)) + [4, 3], scores


def words_write(w, arch, by_pieces):
    from transformers.convert_slow_tokenizer import bytes_to_unicode
    w.add_chat_template("{% for m in messages %}{{ m['content'] }}<|end|>{% endfor %}")
    if by_pieces:
        tokens, types, scores = pieces()
        if "gemma" in arch:
            tokens = [t.replace("▁", " ") if set(t) == {"▁"} and len(t) > 1 else t for t in tokens]
        w.add_tokenizer_model("llama")
        w.add_token_scores(scores)
        w.add_bos_token_id(1)
        w.add_eos_token_id(2)
        w.add_unk_token_id(0)
    else:
        tokens = list(bytes_to_unicode().values()) + ["he", "ll", "hell", "<|end|>", "<tool>"]
        types = [1] * 259 + [3, 4]
        w.add_tokenizer_model("gpt2")
        w.add_tokenizer_pre("qwen2" if arch == "qwen2" else "llama-bpe" if arch == "llama" else "gpt-2")
        w.add_token_merges(["h e", "l l", "he ll"])
        w.add_eos_token_id(259)
        w.add_add_bos_token(False)
    w.add_token_list(tokens)
    w.add_token_types(types)
    return len(tokens)


def model_write(path, name, rng):
    parts, keys, biases = ARCHS[name]
    arch, _, by_pieces = name.partition("-")
    wide = 64 if arch in ("llama", "qwen2", "phi3") else 32    # d_model
    w = gguf.GGUFWriter(path, arch)
    w.add_name("small")
    w.add_block_count(1)
    w.add_context_length(64)
    w.add_embedding_length(wide)
    w.add_feed_forward_length(64)
    w.add_head_count(4)
    w.add_head_count_kv(2)
    w.add_layer_norm_rms_eps(1e-5)
    w.add_rope_freq_base(1e4)
    if "rope_dimension_count" in keys:
        w.add_rope_dimension_count(16)
    if "key_length" in keys:
        w.add_key_length(keys["key_length"])
    if "sliding_window" in keys:
        w.add_sliding_window(keys["sliding_window"])
    if arch == "gemma2":
        w.add_attn_logit_softcapping(50.0)
        w.add_final_logit_softcapping(30.0)
    n_token = words_write(w, arch, by_pieces or arch in ("phi3", "gemma2", "gemma3"))

    def tensor(name, rows, columns, kind):
        shape = (rows, columns) if columns else (rows,)
        kind = gguf.GGMLQuantizationType[kind]
        data = (0.1 * rng.standard_normal(shape)).astype(np.float32)
        w.add_tensor(name, gguf.quants.quantize(data, kind), raw_dtype=kind)

    tensor("token_embd.weight", n_token, wide, "Q8_0")
    tensor("output_norm.weight", wide, 0, "F32")
    if arch == "llama":
        tensor("output.weight", n_token, wide, "Q4_0")
    for name, rows, columns, kind in parts:
        if wide == 64:
            columns = 64 if columns == 32 else columns
            rows = 64 if name in ("attn_norm", "ffn_norm", "attn_output", "ffn_down") else rows
        tensor(f"blk.0.{name}.weight", rows, columns, kind)
    for name, rows in biases.items():
        tensor(f"blk.0.{name}.bias", rows, 0, "F32")
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def models_make():
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
    out = {}
    for n, arch in enumerate(sorted(ARCHS)):
        path = os.path.join(HERE, arch + ".gguf")
        model_write(path, arch, np.random.default_rng(n))
        config = AutoConfig.from_pretrained(HERE, gguf_file=arch + ".gguf")
        config.pad_token_id = None    # Phi-3's own is beyond this vocabulary
        model = AutoModelForCausalLM.from_pretrained(HERE, gguf_file=arch + ".gguf", config=config, dtype=torch.float32)
        state = {k: v for k, v in model.state_dict().items() if k != "lm_head.weight" or not model.config.tie_word_embeddings}
        words = AutoTokenizer.from_pretrained(HERE, gguf_file=arch + ".gguf")
        ids = [[t, words(t).input_ids] for t in TEXTS]
        weights = {k: [list(v.shape), hashlib.sha256(v.contiguous().numpy().tobytes()).hexdigest()] for k, v in sorted(state.items())}
        out[arch] = {"tensors": weights, "ids": ids}
    with open(os.path.join(HERE, "models.json"), "w") as f:
        json.dump(out, f, indent=1)
        f.write("\n")


def main():
    os.makedirs(HERE, exist_ok=True)
    models_make()
    rng = np.random.default_rng(7)
    path, want = os.path.join(HERE, "types.gguf"), {}
    w = gguf.GGUFWriter(path, "llama")
    for name, value in (("u8", 200), ("u16", 60000), ("u32", 4000000000), ("u64", 1 << 40)):
        getattr(w, f"add_uint{name[1:]}")(f"test.{name}", value)
    for name, value in (("i8", -100), ("i16", -30000), ("i32", -2000000000), ("i64", -(1 << 40))):
        getattr(w, f"add_int{name[1:]}")(f"test.{name}", value)
    w.add_float32("test.f32", 1e-5)
    w.add_float64("test.f64", 1e-5)
    w.add_bool("test.bool", True)
    w.add_string("test.text", "naïve")
    w.add_array("test.texts", ["a", "", "bc"])
    w.add_array("test.ints", [3, -1, 4])
    w.add_array("test.floats", [0.5, -2.0])
    for name, halves in TYPES.items():
        kind = gguf.GGMLQuantizationType[name]
        data = blocks(kind, halves, rng)
        w.add_tensor(name, data, raw_dtype=kind)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    for t in gguf.GGUFReader(path).tensors:
        want[t.name] = np.ascontiguousarray(dequantize(t.data, t.tensor_type).astype(np.float32).reshape(2, 256))
        assert np.isfinite(want[t.name]).all(), t.name
    save_file(want, os.path.join(HERE, "types.safetensors"))


if __name__ == "__main__":
    main()
