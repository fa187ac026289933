#!/usr/bin/env python3
"""Development only: the same run sent by the real wandb client and by rollcall, as a fake server stored them; prints the difference.

    python3 -m venv V && V/bin/pip install wandb && V/bin/python tests/compare_wandb.py [--rollcall build/release/rollcall]

Also lets the real 'wandb sync' upload an offline directory of ours. Exits with 1 when rows, summary or completion differ.
"""
import argparse, importlib.util, json, os, subprocess, sys, tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
from fake_wandb import FakeWandb

a = argparse.ArgumentParser()
a.add_argument("--rollcall", default="build/release/rollcall")
a = a.parse_args()
os.environ["ROLLCALL"] = a.rollcall
source = open(os.path.join(HERE, "integration", "wandb_test.py")).read().replace("\nunittest.main()", "")
scope = {"__file__": os.path.join(HERE, "integration", "wandb_test.py"), "__name__": "wandb_test"}
exec(compile(source, "wandb_test.py", "exec"), scope)
KEY, N = "k" * 40, 200


def normal(run):
    """What does not depend on times and on the order of keys."""
    rows = [{k: v for k, v in r.items() if k not in ("_runtime", "_timestamp")} for r in run.history()]
    summary = {k: v for k, v in run.summary().items() if k not in ("_runtime", "_timestamp", "_wandb")}
    return {"rows": rows, "summary": summary, "config": {k: v for k, v in run.config.items() if k != "_wandb"},
            "complete": run.complete, "exitcode": run.exitcode,
            "axes": sorted((m.get("1"), m.get("5")) for m in run.config["_wandb"]["value"].get("m", []))}


def send(make):
    server = FakeWandb(KEY)
    tmp = tempfile.mkdtemp()
    env = dict(os.environ, WANDB_API_KEY=KEY, WANDB_BASE_URL=server.url, HOME=tmp, WANDB_DIR=tmp, WANDB_SILENT="true")
    make(tmp, env)
    run = list(server.runs.values())[0]
    server.close()
    assert not server.wrong, server.wrong
    return normal(run)


def ours(tmp, env, *args):
    run = scope["FakeRun"](tmp)
    run.steps(1, N)
    run.event("state", "finished")
    return subprocess.run([a.rollcall, "export", "wandb", tmp, *args], env=env, check=True, capture_output=True, text=True).stdout


def synced(tmp, env):
    folder = ours(tmp, env, "--offline").strip()
    subprocess.run([os.path.join(os.path.dirname(sys.executable), "wandb"), "sync", folder], env=env, check=True)


def theirs(tmp, env):
    script = f"""
import wandb
run = wandb.init(project="proj", name="my-run", settings=wandb.Settings(x_disable_stats=True))
run.define_metric("trainer/step")
for name in ("train/loss", "metrics/reward"):
    run.define_metric(name, step_metric="trainer/step")
for s in range(1, {N} + 1):
    run.log({{"trainer/step": s, "train/loss": 1 / s, "metrics/reward": float(s)}})
run.finish()
"""
    subprocess.run([sys.executable, "-c", script], env=env, check=True)


want, code = send(theirs), 0
for name, got in (("rollcall online", send(ours)), ("rollcall offline + wandb sync", send(synced))):
    print(f"{name} against the real client:")
    for part in want:
        same = got[part] == want[part]
        if part == "config":
            print(f"  config: {len(got[part])} settings of the run, the real client's script has {len(want[part])}")
            continue
        code |= not same and part != "axes"
        print(f"  {part}: {'same' if same else 'differs'}" + ("" if same else f"\n    real: {str(want[part])[:300]}\n    ours: {str(got[part])[:300]}"))
sys.exit(code)
