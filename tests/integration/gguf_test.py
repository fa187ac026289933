"""tags: starter limit=300

A model in one GGUF file: `rollcall convert` makes a directory of it, and `model: FILE.gguf` is that directory."""
import glob
import hashlib
import json
import math
import mmap
import os
import struct
import subprocess
import time
import unittest
from run_tools import LIMIT, ROLLCALL, ROOT, Task

GOLDEN = os.path.join(ROOT, "tests/golden/gguf")
STARTER = os.path.join(ROOT, "build/starter")
LINES = "".join(json.dumps({"messages": [{"role": "user", "content": f"What is {i} + {i * 3}?"}]}) + "\n" for i in range(4))
U32, F32, BOOL, TEXT, LIST = 4, 6, 7, 8, 9
PARTS = {"input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
         "self_attn.o_proj": "attn_output", "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
         "mlp.down_proj": "ffn_down"}
WHOLE = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight", "lm_head.weight": "output.weight"}


def tensors(folder):
    """name: (type, shape, bytes) of a directory's model.safetensors."""
    with open(os.path.join(folder, "model.safetensors"), "rb") as f:
        head = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        data = f.read()
    head.pop("__metadata__", None)
    return {n: (t["dtype"], t["shape"], data[slice(*t["data_offsets"])]) for n, t in head.items()}


def digests(folder):
    return {n: [shape, hashlib.sha256(raw).hexdigest()] for n, (_, shape, raw) in tensors(folder).items()}


def text(s):
    s = s.encode()
    return struct.pack("<Q", len(s)) + s


def value(v):
    if isinstance(v, bool):
        return struct.pack("<I?", BOOL, v)
    if isinstance(v, int):
        return struct.pack("<II", U32, v)
    if isinstance(v, float):
        return struct.pack("<If", F32, v)
    if isinstance(v, str):
        return struct.pack("<I", TEXT) + text(v)
    kind, pack = (TEXT, text) if isinstance(v[0], str) else (U32, lambda n: struct.pack("<I", n))
    return struct.pack("<IIQ", LIST, kind, len(v)) + b"".join(map(pack, v))


def name_of(name):
    """llama.cpp's name of a tensor of transformers."""
    if name in WHOLE:
        return WHOLE[name]
    _, _, layer, rest = name.split(".", 3)
    part, kind = rest.rsplit(".", 1)
    return f"blk.{layer}.{PARTS[part]}.{kind}"


def gguf_write(path, folder, vectors=None, **more):
    """A Qwen2 directory in fp32 as llama.cpp's converter writes it; vectors: further tensors; more: metadata that is other than the
    directory's, None: left out."""
    with open(os.path.join(folder, "config.json")) as f:
        c = json.load(f)
    with open(os.path.join(folder, "tokenizer.json")) as f:
        t = json.load(f)
    with open(os.path.join(folder, "tokenizer_config.json")) as f:
        template = json.load(f)["chat_template"]
    with open(os.path.join(folder, "generation_config.json")) as f:
        eos = json.load(f)["eos_token_id"]
    added = {a["id"]: a["content"] for a in t["added_tokens"]}
    vocab = {**{i: s for s, i in t["model"]["vocab"].items()}, **added}
    ids = range(max(vocab) + 1)
    meta = {"general.architecture": "qwen2", "qwen2.block_count": c["num_hidden_layers"], "qwen2.context_length": c["max_position_embeddings"],
            "qwen2.embedding_length": c["hidden_size"], "qwen2.feed_forward_length": c["intermediate_size"],
            "qwen2.attention.head_count": c["num_attention_heads"], "qwen2.attention.head_count_kv": c["num_key_value_heads"],
            "qwen2.attention.key_length": c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"],
            "qwen2.attention.layer_norm_rms_epsilon": c["rms_norm_eps"], "qwen2.rope.freq_base": float(c["rope_theta"]),
            "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "qwen2" if t["pre_tokenizer"]["type"] == "Sequence" else "gpt-2",
            "tokenizer.ggml.tokens": [vocab[i] for i in ids], "tokenizer.ggml.token_type": [3 if i in added else 1 for i in ids],
            "tokenizer.ggml.merges": [m if isinstance(m, str) else " ".join(m) for m in t["model"]["merges"]] or [],
            "tokenizer.ggml.eos_token_id": eos[0], "tokenizer.ggml.eot_token_id": eos[-1], "tokenizer.ggml.add_bos_token": False,
            "tokenizer.chat_template": template, **more}
    meta = {k: v for k, v in meta.items() if v is not None}
    head, data = b"", b""
    for k, v in meta.items():
        head += text(k) + (struct.pack("<IIQ", LIST, TEXT, 0) if v == [] else value(v))
    weights = tensors(folder)
    for name, (dtype, shape, raw) in weights.items():
        assert dtype == "F32", dtype
        head += text(name_of(name)) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *reversed(shape))
        head += struct.pack("<IQ", 0, len(data))
        data += raw + bytes(-len(raw) % 32)
    for name, values in (vectors or {}).items():
        head += text(name) + struct.pack("<IQIQ", 1, len(values), 0, len(data))
        raw = struct.pack(f"<{len(values)}f", *values)
        data += raw + bytes(-len(raw) % 32)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(weights) + len(vectors or {}), len(meta)) + head
    with open(path, "wb") as f:
        f.write(head + bytes(-len(head) % 32) + data)


class Gguf(unittest.TestCase):
    def setUp(self):
        self.task = Task()
        self.addCleanup(self.task.close)
        self.file = self.task.path("small.gguf")
        self.env = {**os.environ, "XDG_CACHE_HOME": self.task.path("cache")}

    def run_it(self, *args, **more):
        return subprocess.run([ROLLCALL, *args], capture_output=True, text=True, env=self.env, timeout=LIMIT, **more)

    def convert(self, path, *args):
        done = self.run_it("convert", path, self.task.path("out"), *args)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(json.loads(done.stdout), {"out": self.task.path("out")})
        return self.task.path("out")

    def test_weights_and_ids_are_those_that_transformers_reads_from_the_same_file(self):
        with open(os.path.join(GOLDEN, "models.json")) as f:
            golden = json.load(f)
        self.assertEqual(sorted(golden), ["gemma2", "gemma3", "llama", "llama-pieces", "phi3", "qwen2", "qwen3"])
        for arch, want in golden.items():
            with self.subTest(arch):
                out = self.convert(os.path.join(GOLDEN, arch + ".gguf"), "--dtype", "float32", "--force")
                self.assertEqual(digests(out), want["tensors"])
                lines = "".join(json.dumps({"text": text}) + "\n" for text, _ in want["ids"])
                done = self.run_it("tokenize", "--add-special", "--tokenizer", out, input=lines)
                self.assertEqual([json.loads(line)["ids"] for line in done.stdout.splitlines()], [ids for _, ids in want["ids"]], done.stderr)
                done = self.run_it("generate", "-m", out, "-T", "0", "-mnt", "4", input='{"prompt":"hello"}\n')
                self.assertEqual(done.returncode, 0, done.stderr)

    def test_exact_values_are_kept_in_the_smallest_type_that_has_them(self):
        types = {n: t for n, (t, _, _) in tensors(self.convert(os.path.join(GOLDEN, "llama.gguf"))).items()}
        self.assertEqual(types.pop("model.layers.0.self_attn.o_proj.weight"), "F16")
        self.assertEqual(types.pop("model.layers.0.mlp.up_proj.weight"), "BF16")
        self.assertEqual(set(types.values()), {"F32"})
        again = self.run_it("convert", os.path.join(GOLDEN, "llama.gguf"), self.task.path("out"))
        self.assertNotEqual(again.returncode, 0)
        self.assertIn("--force overwrites it", again.stderr)
        types = {t for t, _, _ in tensors(self.convert(os.path.join(GOLDEN, "llama.gguf"), "--dtype", "bfloat16", "--force")).values()}
        self.assertEqual(types, {"BF16"})

    def test_a_file_generates_what_its_directory_does(self):
        gguf_write(self.file, STARTER)
        args = ("--json", "--seed", "3", "--n", "2", "-mnt", "24", "--threads", "1")
        want = self.run_it("generate", "-m", STARTER, *args, input=LINES)
        self.assertEqual(want.returncode, 0, want.stderr)
        self.assertEqual(len(want.stdout.splitlines()), 8)
        for model in (self.file, self.file, self.convert(self.file)):    # converted; found; a directory
            have = self.run_it("generate", "-m", model, *args, input=LINES)
            self.assertEqual(have.returncode, 0, have.stderr)
            self.assertEqual(have.stdout, want.stdout)
        self.assertEqual(digests(self.task.path("out")), digests(STARTER))
        self.assertEqual(len(glob.glob(self.task.path("cache/rollcall/gguf/*"))), 1)
        os.utime(self.file, (1, 1))    # as if it had changed: it is converted again
        self.assertEqual(self.run_it("generate", "-m", self.file, *args, input=LINES).stdout, want.stdout)
        self.assertEqual(len(glob.glob(self.task.path("cache/rollcall/gguf/*"))), 2)
        dead = subprocess.Popen(["true"])
        dead.wait()
        for pid in (dead.pid, os.getpid()):
            os.makedirs(self.task.path(f"cache/rollcall/gguf/killed.gguf-0123456789abcdef.part-{pid}/sub"))
        os.utime(self.file, (2, 2))
        self.assertEqual(self.run_it("generate", "-m", self.file, *args, input=LINES).stdout, want.stdout)
        left = {os.path.basename(p) for p in glob.glob(self.task.path("cache/rollcall/gguf/*.part-*"))}
        self.assertEqual(left, {f"killed.gguf-0123456789abcdef.part-{os.getpid()}"})    # what a killed process left is gone, the other works
        old = [self.task.path(f"cache/rollcall/gguf/old-{days:02}.gguf-0123456789abcdef") for days in range(10, 0, -1)]    # the oldest first
        for i, folder in enumerate(old):
            os.makedirs(folder)
            with open(os.path.join(folder, "model.safetensors"), "wb") as f:
                f.write(bytes(4096))
            os.utime(folder, (time.time() - (10 - i) * 90000,) * 2)
        os.utime(self.file, (3, 3))
        with open(os.path.join(old[1], "model.safetensors"), "rb") as f, mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ):    # in use
            trimmed = self.run_it("generate", "-m", self.file, *args, input=LINES)
        self.assertEqual(trimmed.stdout, want.stdout)
        kept = {p for p in glob.glob(self.task.path("cache/rollcall/gguf/*")) if ".part-" not in p}
        self.assertEqual(len(kept), 8)    # four of today, the one in use, and the newest three of the others
        self.assertEqual({p for p in old if p in kept}, {old[1], *old[7:]})
        self.assertIn(f"'{old[0]}' was removed: it was last used 10 days ago", trimmed.stderr)
        self.env.update(HOME="", XDG_CACHE_HOME="relative")
        have = self.run_it("generate", "-m", self.file, *args, input=LINES)
        self.assertNotEqual(have.returncode, 0)
        self.assertIn("no folder to convert", have.stderr)
        self.assertIn(self.file, have.stderr)

    def test_a_run_trains_a_file_as_it_does_the_directory(self):
        gguf_write(self.file, self.task.path("model"))
        weights = []
        with open(self.task.path("told.jsonl"), "w") as f:
            f.write("".join(json.dumps({"messages": [{"role": "user", "content": f"{i}+1="}, {"role": "assistant", "content": str(i + 1)}]}) + "\n"
                            for i in range(8)))
        for name, model in (("a", self.task.path("model")), ("b", self.file)):
            run_file = self.task.run_file(name + ".yaml", model=model, max_steps=2, save_interval=2)
            done = self.run_it("train", run_file, "--dry-run")
            self.assertEqual(done.returncode, 0, done.stderr)
            done = self.run_it("sft", "--model", model, "--out", self.task.path("sft-" + name), self.task.path("told.jsonl") + ",steps=2,batch=4")
            self.assertEqual(done.returncode, 0, done.stderr)
            done = self.run_it("train", run_file, "--batch", "--runs-dir", self.task.path("runs-" + name))
            self.assertEqual(done.returncode, 0, done.stderr)
            found = glob.glob(self.task.path(f"runs-{name}/*/checkpoints/step-000002"))
            self.assertEqual(len(found), 1, done.stdout + done.stderr)
            weights.append(digests(found[0]))
        self.assertEqual(weights[0], weights[1])
        self.assertEqual(digests(self.task.path("sft-a")), digests(self.task.path("sft-b")))

    def test_scaled_positions_become_what_config_json_calls_them(self):
        def llama3(factor):
            """What llama.cpp's converter divides each frequency by (LlamaModel.generate_extra_tensors), theta 10000 and heads of 16."""
            out = []
            for i in range(0, 16, 2):
                wave = 2 * math.pi * 10000 ** (i / 16)
                smooth = (8192 / wave - 1) / (4 - 1)
                out.append(1 if wave < 8192 / 4 else factor if wave > 8192 else 1 / ((1 - smooth) / factor + smooth))
            return {"rope_freqs.weight": out}

        scaled = {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
        key = "qwen2.rope.scaling."
        cases = [({}, {}, None), ({key + "type": "none"}, {}, None), ({}, llama3(8.0), {**scaled, "factor": 8}),
                 ({}, llama3(32.0), {**scaled, "factor": 32}),
                 ({key + "type": "linear", key + "factor": 2.5}, {}, {"rope_type": "linear", "factor": 2.5}),
                 ({key + "type": "yarn", key + "factor": 4.0, key + "original_context_length": 128}, {},
                  {"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 128})]
        for more, vectors, want in cases:
            with self.subTest(want):
                gguf_write(self.file, self.task.path("model"), vectors, **more)
                with open(os.path.join(self.convert(self.file, "--force"), "config.json")) as f:
                    self.assertEqual(json.load(f).get("rope_scaling"), want)
        half = {"rope_factors_short.weight": [1.0 + i / 8 for i in range(8)], "rope_factors_long.weight": [2.0 + i for i in range(8)]}
        gguf_write(self.file, self.task.path("model"), half, **{key + "original_context_length": 128})
        with open(os.path.join(self.convert(self.file, "--force"), "config.json")) as f:
            c = json.load(f)
        self.assertEqual(c["rope_scaling"], {"type": "longrope", "short_factor": half["rope_factors_short.weight"],
                                             "long_factor": half["rope_factors_long.weight"]})
        self.assertEqual(c["original_max_position_embeddings"], 128)
        for wrong, want in (({**half, "rope_factors_short.weight": [1.0] * 7}, "'rope_factors_short.weight' is missing or has not 8"),
                            ({"rope_factors_long.weight": [1.0] * 8}, "'rope_factors_short.weight' is missing or has not 8"),
                            ({**half, "rope_factors_long.weight": [1.0] * 7 + [float("inf")]},
                             "a value of tensor 'rope_factors_long.weight' is not finite")):
            gguf_write(self.file, self.task.path("model"), wrong, **{key + "original_context_length": 128})
            done = self.run_it("convert", self.file, self.task.path("out"), "--force")
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(want, done.stderr)
        for wrong in ([1.0] * 7 + [8.1, 1.0], [1.0] * 7, [1.0] * 7 + [8.0], [float("nan")] * 8):
            gguf_write(self.file, self.task.path("model"), {"rope_freqs.weight": wrong})
            done = self.run_it("convert", self.file, self.task.path("out"), "--force")
            self.assertIn("does not hold the frequencies of a Llama 3 model", done.stderr)

    def test_what_is_not_run_or_is_wrong_is_refused_in_one_sentence(self):
        cases = [({"general.architecture": "mamba"}, "'general.architecture' is 'mamba'; known are llama, qwen2, qwen3, phi3, gemma2 and gemma3"),
                 ({"general.architecture": None}, "'general.architecture' is missing"),
                 ({"split.count": 3}, "one of several parts"),
                 ({"qwen2.block_count": None}, "'qwen2.block_count' is missing"),
                 ({"qwen2.block_count": 0}, "'qwen2.block_count' is 0"),
                 ({"qwen2.block_count": 9}, "is missing"),
                 ({"qwen2.attention.head_count": 3}, "num_key_value_heads"),
                 ({"qwen2.embedding_length": 32}, "must be float of"),
                 ({"qwen2.attention.layer_norm_rms_epsilon": "small"}, "it must be a number"),
                 ({"qwen2.rope.scaling.type": "mystery"}, "'qwen2.rope.scaling.type' is 'mystery'"),
                 ({"qwen2.rope.scaling.type": "yarn"}, "'qwen2.rope.scaling.factor' is missing"),
                 ({"tokenizer.ggml.model": "llama"}, "'tokenizer.ggml.scores' is missing"),
                 ({"tokenizer.ggml.model": "t5"}, "is 't5'; gpt2 and llama, two kinds of BPE, are read"),
                 ({"tokenizer.ggml.pre": "unheard-of"}, "'tokenizer.ggml.pre', is 'unheard-of'"),
                 ({"tokenizer.ggml.tokens": None}, "'tokenizer.ggml.tokens' is missing"),
                 ({"tokenizer.ggml.token_type": [1, 2]}, "'tokenizer.ggml.token_type' has 2 items"),
                 ({"tokenizer.ggml.merges": ["nothing"]}, "is not two parts"),
                 ({"tokenizer.ggml.eos_token_id": 4000000}, "'tokenizer.ggml.eos_token_id' is 4000000"),
                 ({"tokenizer.chat_template": 7}, "it must be a text")]
        for more, want in cases:
            with self.subTest(want):
                gguf_write(self.file, self.task.path("model"), **more)
                done = self.run_it("generate", "-m", self.file, input=LINES)
                self.assertNotEqual(done.returncode, 0)
                self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
                self.assertIn(want, done.stderr)
                self.assertIn("small.gguf", done.stderr)
                self.assertEqual(glob.glob(self.task.path("cache/rollcall/gguf/*")), [])
        with open(self.file, "rb") as f:
            data = f.read()
        with open(self.file, "wb") as f:
            f.write(data[:len(data) // 2])
        done = self.run_it("convert", self.file, self.task.path("out"))
        self.assertIn("truncated", done.stderr)
        with open(self.file, "w") as f:
            f.write("<html>")
        done = self.run_it("generate", "-m", self.file)
        self.assertIn("small.gguf': not a GGUF file", done.stderr)
        self.assertFalse(os.path.exists(self.task.path("out")))


if __name__ == "__main__":
    unittest.main()
