"""SGLang itself as the engine of a run: it draws, it reads the weights of every step, and it is killed and started again in between.

    build/peers-sglang/bin/python tests/peers/sglang_engine.py [--steps 12] [-- further arguments of sglang.launch_server]

The engine is the sglang of the Python that runs this, on a GPU, or with --cpu on a CPU: there it needs no kernels of its own, but a module
sgl_kernel that can be imported, which PyPI has for CUDA only; one is made for it, whose functions fail when they are called. Both sides
compute in fp32, as in vllm_engine.py.
"""
import os
import sys
import tempfile
from vllm_engine import Engine, options, train

KERNEL = """
import importlib.util, sys, types


class Missing:
    def __init__(self, name):
        self.name = name

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Missing(self.name + "." + name)

    def __call__(self, *args, **more):
        raise NotImplementedError("sgl_kernel." + self.name)


def attribute(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return Missing(name)


class Finder:
    def find_spec(self, name, path=None, target=None):
        return importlib.util.spec_from_loader(name, self) if name.startswith("sgl_kernel.") else None

    def create_module(self, spec):
        m = types.ModuleType(spec.name)
        m.__path__, m.__getattr__ = [], attribute
        return m

    def exec_module(self, m):
        pass


__getattr__, __path__ = attribute, []
sys.meta_path.append(Finder())
"""


class Sglang(Engine):
    def __init__(self, model, port, kernel_dir, more):
        cpu = ["--device", "cpu", "--attention-backend", "torch_native", "--disable-overlap-schedule", "--disable-cuda-graph", "--max-total-tokens", "65536"]
        env = {"HF_HUB_OFFLINE": "1"}
        if kernel_dir:
            env |= {"CUDA_VISIBLE_DEVICES": "", "SGLANG_USE_CPU_ENGINE": "1", "PYTHONPATH": kernel_dir + os.pathsep + os.environ.get("PYTHONPATH", "")}
        self.begin("sglang", port, [sys.executable, "-m", "sglang.launch_server", "--model-path", model, "--host", "127.0.0.1", "--port", str(port),
                                    "--dtype", "float32", "--mem-fraction-static", "0.2", *(cpu if kernel_dir else []), *more], env)


def main():
    args = options(__doc__)
    args.add_argument("--cpu", action="store_true")
    o = args.parse_args()
    with tempfile.TemporaryDirectory(prefix="rc-sgl-kernel-") as kernel:
        if o.cpu:
            os.mkdir(os.path.join(kernel, "sgl_kernel"))
            with open(os.path.join(kernel, "sgl_kernel/__init__.py"), "w") as f:
                f.write(KERNEL)
        train("sglang", lambda port: Sglang(o.starter, port, kernel if o.cpu else None, o.engine), o)


if __name__ == "__main__":
    main()
