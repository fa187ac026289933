"""A model directory of a few thousand random weights, written with the standard library only.

Qwen2 in Hugging Face layout with a byte-level tokenizer of 256 bytes and four special tokens and a chat template in the
Qwen form. The same seed gives the same bytes.
"""
import json
import os
import random
import struct

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<pad>"]
TEMPLATE = ("{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
            "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")


def byte_names():
    """GPT-2's printable stand-ins for the 256 bytes."""
    plain = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    name, extra = {}, 0
    for b in range(256):
        if b in plain:
            name[b] = chr(b)
        else:
            name[b] = chr(256 + extra)
            extra += 1
    return name


def write_tokenizer(path):
    names = byte_names()
    added = [{"id": 256 + i, "content": text, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
              "special": True} for i, text in enumerate(SPECIAL)]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    tokenizer = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
                 "pre_tokenizer": byte_level, "post_processor": None, "decoder": byte_level,
                 "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                           "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
                           "vocab": {names[b]: b for b in range(256)}, "merges": []}}
    with open(os.path.join(path, "tokenizer.json"), "w") as f:
        json.dump(tokenizer, f)
    with open(os.path.join(path, "tokenizer_config.json"), "w") as f:
        json.dump({"tokenizer_class": "Qwen2Tokenizer", "eos_token": "<|im_end|>", "pad_token": "<pad>",
                   "chat_template": TEMPLATE, "model_max_length": 512}, f)


def pad_rename(path, text):
    """Give the padding token, a special token that a random model draws now and then, another text."""
    name = os.path.join(path, "tokenizer.json")
    with open(name) as f:
        tokenizer = json.load(f)
    tokenizer["added_tokens"][SPECIAL.index("<pad>")]["content"] = text
    with open(name, "w") as f:
        json.dump(tokenizer, f)


def tensors_change(path, change):
    """Rewrite a safetensors file after change({name: (entry, bytes)})."""
    with open(path, "rb") as f:
        size = int.from_bytes(f.read(8), "little")
        header, data = json.loads(f.read(size)), f.read()
    header.pop("__metadata__", None)
    tensors = {name: (entry, data[slice(*entry["data_offsets"])]) for name, entry in header.items()}
    change(tensors)
    header, data = {}, b""
    for name, (entry, values) in tensors.items():
        header[name] = dict(entry, data_offsets=[len(data), len(data) + len(values)])
        data += values
    text = json.dumps(header).encode()
    with open(path, "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text + data)


def head_add(path):
    """Add a head of its own to a model whose config.json says that head and embedding are tied."""
    def change(tensors):
        entry, values = tensors["model.embed_tokens.weight"]
        tensors["lm_head.weight"] = entry, values[4:] + values[:4]
    tensors_change(os.path.join(path, "model.safetensors"), change)


def write_tensors(path, shapes, spread, rng):
    """A safetensors file of random tensors in fp32; those of spread 0 are all 1."""
    header, data, at = {"__metadata__": {"format": "pt"}}, [], 0
    for name in sorted(shapes):
        n = 1
        for k in shapes[name]:
            n *= k
        values = [rng.gauss(0, spread(name)) for _ in range(n)] if spread(name) else [1.0] * n
        data.append(struct.pack("<%df" % n, *values))
        header[name] = {"dtype": "F32", "shape": shapes[name], "data_offsets": [at, at + 4 * n]}
        at += 4 * n
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + b"".join(data))


def write_adapter(path, base, seed=1, rank=4, d=64, layers=2, scale=0.2):
    """An adapter as PEFT writes it, for q_proj and o_proj of a model that `write` has made with these sizes."""
    os.makedirs(path, exist_ok=True)
    shapes = {}
    for i in range(layers):
        for module in ("q_proj", "o_proj"):
            p = "base_model.model.model.layers.%d.self_attn.%s." % (i, module)
            shapes.update({p + "lora_A.weight": [rank, d], p + "lora_B.weight": [d, rank]})
    write_tensors(os.path.join(path, "adapter_model.safetensors"), shapes, lambda name: scale, random.Random(seed))
    with open(os.path.join(path, "adapter_config.json"), "w") as f:
        json.dump({"peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": base, "r": rank, "lora_alpha": 2 * rank,
                   "lora_dropout": 0.05, "bias": "none", "target_modules": ["q_proj", "o_proj"]}, f)
    return path


def write(path, seed=1, d=64, layers=2, heads=4, kv_heads=2, ff=64, scale=0.3, max_pos=512):
    """Write the directory; scale is the spread of the weights: large enough that answers end in different places."""
    os.makedirs(path, exist_ok=True)
    vocab, hd, rng = 260, d // heads, random.Random(seed)
    shapes = {"model.embed_tokens.weight": [vocab, d], "model.norm.weight": [d]}
    for i in range(layers):
        p = "model.layers.%d." % i
        shapes.update({
            p + "input_layernorm.weight": [d], p + "post_attention_layernorm.weight": [d],
            p + "self_attn.q_proj.weight": [heads * hd, d], p + "self_attn.q_proj.bias": [heads * hd],
            p + "self_attn.k_proj.weight": [kv_heads * hd, d], p + "self_attn.k_proj.bias": [kv_heads * hd],
            p + "self_attn.v_proj.weight": [kv_heads * hd, d], p + "self_attn.v_proj.bias": [kv_heads * hd],
            p + "self_attn.o_proj.weight": [d, heads * hd], p + "mlp.gate_proj.weight": [ff, d],
            p + "mlp.up_proj.weight": [ff, d], p + "mlp.down_proj.weight": [d, ff]})
    write_tensors(os.path.join(path, "model.safetensors"), shapes, lambda name: 0 if name.endswith("norm.weight") else scale, rng)
    config = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": d, "intermediate_size": ff,
              "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": kv_heads,
              "max_position_embeddings": max_pos, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "vocab_size": vocab,
              "tie_word_embeddings": True, "hidden_act": "silu", "initializer_range": 0.02, "torch_dtype": "float32",
              "use_sliding_window": False, "attention_dropout": 0.0, "eos_token_id": 258, "bos_token_id": 256}
    with open(os.path.join(path, "config.json"), "w") as f:
        json.dump(config, f, indent=2)
    with open(os.path.join(path, "generation_config.json"), "w") as f:
        json.dump({"eos_token_id": [258, 256]}, f)
    write_tokenizer(path)
    return path
