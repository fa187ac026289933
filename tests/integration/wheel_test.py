"""The package for pip: what it says of itself, the first run from it, and CUDA libraries out of NVIDIA's packages beside it.

The package is made of this build by examples/wheel/pack.py and unpacked as pip does it; tests/wheels.sh tries the real one.
tags: starter
"""
import base64
import csv
import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import zipfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
ROLLCALL = os.environ.get("ROLLCALL") or os.path.join(ROOT, "build", "release", "rollcall")


def system_has(name):
    return name in subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, timeout=60).stdout


class Wheel(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.dir = tempfile.mkdtemp(prefix="rc-wheel-")
        cls.addClassCleanup(shutil.rmtree, cls.dir)
        stage = os.path.join(cls.dir, "stage")
        subprocess.run(["cmake", "--install", os.path.dirname(ROLLCALL), "--prefix", stage, "--strip"], check=True, stdout=subprocess.DEVNULL,
                       timeout=120)
        cls.pack = [sys.executable, os.path.join(ROOT, "examples/wheel/pack.py"), stage]
        made = subprocess.run([*cls.pack, os.path.join(cls.dir, "one"), "--cuda", "13"], capture_output=True, text=True, check=True, timeout=120)
        cls.path = made.stdout.strip()
        cls.zip = zipfile.ZipFile(cls.path)
        cls.addClassCleanup(cls.zip.close)
        cls.version = subprocess.run([ROLLCALL, "--version"], capture_output=True, text=True, check=True, timeout=60).stdout.split()[1]
        cls.base = f"rollcall-{cls.version}"

    def read(self, name):
        return self.zip.read(f"{self.base}.dist-info/{name}").decode()

    def test_its_name_and_metadata_say_what_it_runs_on_and_what_the_extra_brings(self):
        tag = re.fullmatch(rf"{re.escape(self.base)}-(py3-none-manylinux_2_\d+_x86_64)\.whl", os.path.basename(self.path)).group(1)
        self.assertEqual(self.read("WHEEL").splitlines()[0], "Wheel-Version: 1.0")
        self.assertIn(f"\nTag: {tag}\n", self.read("WHEEL"))
        said = self.read("METADATA")
        self.assertTrue(said.startswith(f"Metadata-Version: 2.1\nName: rollcall\nVersion: {self.version}\n"), said)
        self.assertEqual(re.findall(r"^(?:Provides-Extra|Requires-Dist): (.*)$", said, re.M),
                         ["cuda", "nvidia-cublas (<14,>=13) ; extra == 'cuda'", "nvidia-nccl-cu13 ; extra == 'cuda'"])

    def test_record_lists_every_file_with_its_hash_and_no_other(self):
        self.assertIsNone(self.zip.testzip())
        rows = list(csv.reader(io.StringIO(self.read("RECORD"))))
        self.assertEqual(sorted(r[0] for r in rows), sorted(self.zip.namelist()))
        for name, digest, size in rows:
            data = self.zip.read(name)
            if name.endswith("/RECORD"):
                self.assertEqual((digest, size), ("", ""))
                continue
            self.assertEqual(digest, "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode(), name)
            self.assertEqual(int(size), len(data), name)
        self.assertFalse([n for n in self.zip.namelist() if n.endswith(".py")])

    def test_the_same_input_gives_the_same_bytes(self):
        made = subprocess.run([*self.pack, os.path.join(self.dir, "two"), "--cuda", "13"], capture_output=True, text=True, check=True, timeout=120)
        with open(self.path, "rb") as a, open(made.stdout.strip(), "rb") as b:
            self.assertTrue(a.read() == b.read())

    def unpack(self, name):
        """As pip does it: scripts into bin/, data into the environment itself, the rest into site-packages."""
        env = os.path.join(self.dir, name)
        site = os.path.join(env, "lib/python3.11/site-packages")
        for info in self.zip.infolist():
            top, _, rest = info.filename.partition("/")
            if top == self.base + ".data":
                kind, _, rest = rest.partition("/")
                path = os.path.join(env, {"scripts": "bin", "data": ""}[kind], rest)
            else:
                path = os.path.join(site, info.filename)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb") as f:
                f.write(self.zip.read(info))
            os.chmod(path, info.external_attr >> 16)
        return env, site

    def run_in(self, folder, *words, **more):
        """With nothing of the source tree in reach of its data files: RC_DATA would come first and is not set."""
        return subprocess.run([os.path.join(folder, "bin/rollcall"), *words], capture_output=True, text=True, timeout=120, **more)

    def test_the_first_run_starts_from_nothing_but_the_package(self):
        env, _ = self.unpack("first")
        self.assertEqual(self.run_in(env, "--version").stdout, f"rollcall {self.version}\n")
        work = os.path.join(self.dir, "work")
        os.mkdir(work)
        p = self.run_in(env, "quickstart", cwd=work)
        self.assertEqual((p.returncode, p.stderr), (0, ""))
        self.assertIn("rollcall train quickstart/arithmetic.yaml\n", p.stdout)
        again = self.run_in(env, "quickstart", cwd=work)
        self.assertEqual((again.returncode, again.stderr), (1, "rollcall quickstart: 'quickstart' exists; give the name of a new folder\n"))
        p = self.run_in(env, "train", "quickstart/arithmetic.yaml", "--batch", "--max_steps", "1", "--eval_interval", "0", cwd=work)
        self.assertEqual(p.returncode, 0, p.stderr)
        self.assertTrue(os.path.exists(os.path.join(work, "runs")))

    def test_an_installation_without_the_files_says_how_a_clone_makes_them(self):
        out = os.path.join(self.dir, "bare")
        p = subprocess.run([ROLLCALL, "quickstart", out], capture_output=True, text=True, timeout=60, env={**os.environ, "RC_DATA": self.dir})
        self.assertEqual((p.returncode, p.stderr), (1, "rollcall quickstart: this installation has no 'quickstart/arithmetic.yaml'; in a clone, "
                                                       "examples/quickstart.sh makes the first run\n"))
        self.assertFalse(os.path.exists(out))

    def library(self, path, *needs, source=None, soname=None):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        subprocess.run(["cc", "-shared", "-fPIC", "-w", "-D_GNU_SOURCE", "-I", ROOT, "-x", "c", source or "/dev/null", "-x", "none", "-o", path,
                        f"-Wl,-soname,{soname or os.path.basename(path)}", "-Wl,--no-as-needed,--allow-shlib-undefined", *needs], check=True, timeout=60)

    def test_libraries_of_nvidias_packages_are_found_and_a_missing_one_is_named_with_what_brings_it(self):
        env, site = self.unpack("a [strange] name*")    # of which a pattern would read another meaning
        lib = os.path.join(env, "lib/rollcall/librollcall_cuda.so")
        spare = os.path.join(self.dir, "spare")
        cublas, nvrtc, nccl = "libcublasLt.so.99", "libnvrtc.so.99", "libnccl.so.2"
        self.library(os.path.join(spare, nvrtc))
        self.library(os.path.join(spare, cublas), os.path.join(spare, nvrtc))
        self.library(lib, os.path.join(spare, cublas), source=os.path.join(ROOT, "tests/fake_cuda.c"))

        def doctor():
            return self.run_in(env, "doctor", env={**os.environ, "FAKE_CUDA": "ok", "RC_CUDA_CHOICES": "off"}).stdout

        def needs(name, how):
            self.assertIn(f"note    no GPU is used: cuda:0: the CUDA back end does not load: {name} is not on this machine: {how} brings it; "
                          "LD_LIBRARY_PATH may name its folder\n", doctor())

        pip = "\"pip install 'rollcall[cuda]'\" or "
        needs(cublas, pip + "NVIDIA's CUDA toolkit")
        packages = os.path.join(site, "nvidia/cu99/lib")
        os.makedirs(packages)
        shutil.copy(os.path.join(spare, cublas), packages)
        needs(nvrtc, pip + "NVIDIA's CUDA toolkit")    # the first is there, and needs this one
        other = os.path.join(site, "nvidia/cuda_nvrtc/lib")
        os.makedirs(other)
        shutil.copy(os.path.join(spare, nvrtc), other)
        said = doctor()
        self.assertIn("ok      cuda:0: a made-up GPU", said)
        self.assertIn(f"ok      the CUDA back end: {env}/bin/../lib/rollcall/librollcall_cuda.so\n", said)
        self.assertIn(f"ok      cuBLASLt: {packages}/{cublas}\n".replace(site, f"{env}/bin/../lib/python3.11/site-packages"), said)
        if not system_has(nccl):
            self.assertIn(f"note    GPUs exchange without NCCL: {nccl} is not on this machine: {pip}NVIDIA's package libnccl2 brings it; ", said)
            self.library(os.path.join(site, "nvidia/nccl/lib", nccl))
            self.assertIn(f"ok      NCCL: {env}/bin/../lib/python3.11/site-packages/nvidia/nccl/lib/{nccl}\n", doctor())
        shutil.rmtree(os.path.join(site, self.base + ".dist-info"))    # as of a .deb
        shutil.rmtree(packages)
        needs(cublas, "NVIDIA's CUDA toolkit")


if __name__ == "__main__":
    unittest.main()
