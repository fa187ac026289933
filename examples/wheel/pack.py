#!/usr/bin/env python3
"""pack.py STAGE OUT: the package for pip from what 'cmake --install --prefix STAGE' has laid out; prints its path.

  --glibc 2.N      the C library that it needs, for the tag manylinux_2_N (default: this system's)
  --cuda N         major version of the toolkit that built the CUDA back end: the extra 'cuda' names NVIDIA's packages of it
  --starter DIR    the model of 'rollcall quickstart' (default build/starter)
  --data DIR       its data (default build/data)
  --licenses DIR   the licenses of the libraries that are linked in

The format is that of packaging.python.org ("Binary distribution format"): the program goes into the environment's bin/, the CUDA back
end into lib/rollcall/, the rest into share/, as from the .deb. There is no Python in it. The bytes depend on the input alone.
"""
import argparse
import base64
import hashlib
import os
import platform
import re
import zipfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# nvidia-cublas has NVIDIA's version numbers since CUDA 13; before, the major version was in the name
CUBLAS = {12: "nvidia-cublas-cu12"}
DATA = ["data/train.jsonl", "data/eval.jsonl"]    # console/quickstart_cmd.c lists these files, too
STARTER = ["config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]


def version_find():
    with open(os.path.join(ROOT, "CMakeLists.txt"), encoding="utf-8") as f:
        return re.search(r"^project\(rollcall VERSION ([0-9.]+)", f.read(), re.M).group(1)


def metadata(version, cuda):
    lines = ["Metadata-Version: 2.1", "Name: rollcall", f"Version: {version}",
             "Summary: reinforcement learning of language models with verifiable rewards, from one terminal", "License: Apache-2.0",
             "Classifier: Environment :: Console", "Classifier: Operating System :: POSIX :: Linux", "Classifier: Programming Language :: C"]
    if cuda:
        cublas = CUBLAS.get(cuda, "nvidia-cublas")
        lines += ["Provides-Extra: cuda", f"Requires-Dist: {cublas} (<{cuda + 1},>={cuda}) ; extra == 'cuda'",
                  f"Requires-Dist: nvidia-nccl-cu{cuda} ; extra == 'cuda'"]
    lines += ["Description-Content-Type: text/plain", "", "rollcall is one program: 'rollcall quickstart' writes a small model and its run file, and",
              "'rollcall train quickstart/arithmetic.yaml' trains it. GPUs need the extra 'cuda' or NVIDIA's toolkit, and a driver.", ""]
    return "\n".join(lines).encode()


def files_find(args, base):
    """name in the package -> (bytes, is a program)"""
    out = {}
    for folder, _, names in os.walk(args.stage):
        for name in names:
            path = os.path.join(folder, name)
            rel = os.path.relpath(path, args.stage)
            with open(path, "rb") as f:
                data = f.read()
            top, rest = rel.split(os.sep, 1)
            if top == "bin":
                out[f"{base}.data/scripts/{rest}"] = (data, True)
            elif top in ("lib", "share"):
                out[f"{base}.data/data/{rel}"] = (data, False)
            else:
                raise SystemExit(f"pack.py: '{path}' is in none of bin, lib and share")
    quickstart = f"{base}.data/data/share/rollcall/quickstart/"
    with open(os.path.join(ROOT, "examples", "arithmetic.yaml"), "rb") as f:
        out[quickstart + "arithmetic.yaml"] = (f.read().replace(b"../build/", b"").replace(b"examples/quickstart.sh", b"rollcall quickstart"), False)
    sources = [(name, os.path.join(args.data, os.path.basename(name))) for name in DATA]
    sources += [("starter/" + name, os.path.join(args.starter, name)) for name in STARTER]
    licenses = [("LICENSE", os.path.join(ROOT, "LICENSE"))]
    licenses += [(name, os.path.join(args.licenses, name)) for name in sorted(os.listdir(args.licenses))] if args.licenses else []
    for prefix, pairs in ((quickstart, sources), (f"{base}.dist-info/licenses/", licenses)):
        for name, path in pairs:
            with open(path, "rb") as f:
                out[prefix + name] = (f.read(), False)
    return out


def main():
    p = argparse.ArgumentParser()
    p.add_argument("stage")
    p.add_argument("out")
    p.add_argument("--glibc", default=platform.libc_ver()[1])
    p.add_argument("--cuda", type=int)
    p.add_argument("--starter", default=os.path.join(ROOT, "build", "starter"))
    p.add_argument("--data", default=os.path.join(ROOT, "build", "data"))
    p.add_argument("--licenses")
    args = p.parse_args()
    if platform.machine() != "x86_64":
        raise SystemExit(f"pack.py: packages are made on x86_64, and this is {platform.machine()}")
    version = version_find()
    base = f"rollcall-{version}"
    tag = f"py3-none-manylinux_{args.glibc.replace('.', '_')}_x86_64"
    files = files_find(args, base)
    files[f"{base}.dist-info/METADATA"] = (metadata(version, args.cuda), False)
    files[f"{base}.dist-info/WHEEL"] = (f"Wheel-Version: 1.0\nGenerator: rollcall\nRoot-Is-Purelib: false\nTag: {tag}\n".encode(), False)
    record = f"{base}.dist-info/RECORD"
    rows = [f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b'=').decode()},{len(data)}\n"
            for name, (data, _) in sorted(files.items())]
    files[record] = ("".join(rows + [f"{record},,\n"]).encode(), False)
    os.makedirs(args.out, exist_ok=True)
    path = os.path.join(args.out, f"{base}-{tag}.whl")
    with zipfile.ZipFile(path + ".part", "w", zipfile.ZIP_DEFLATED, compresslevel=9) as z:
        for name in sorted(files, key=lambda n: (n.startswith(f"{base}.dist-info/"), n == record, n)):    # what describes comes last
            data, program = files[name]
            info = zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0))
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = (0o100755 if program else 0o100644) << 16
            z.writestr(info, data, compresslevel=9)
    os.replace(path + ".part", path)
    print(path)


if __name__ == "__main__":
    main()
