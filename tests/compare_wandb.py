#!/usr/bin/env python3
"""Development only: the same run sent by the real wandb client and by rollcall, as a fake server stored them; prints the difference.

    python3 -m venv V && V/bin/pip install wandb && V/bin/python tests/compare_wandb.py [--rollcall build/release/rollcall]

Also lets the real 'wandb sync' upload offline directories of ours: of a made-up run, and of a real one with tables of rollouts,
console text and figures of the host, compared with the same run sent by rollcall itself. Exits with 1 when something differs.
"""
import argparse, glob, json, os, subprocess, sys, tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
sys.path.insert(0, os.path.join(HERE, "integration"))
from fake_wandb import FakeWandb

a = argparse.ArgumentParser()
a.add_argument("--rollcall", default="build/release/rollcall")
a = a.parse_args()
os.environ["ROLLCALL"] = a.rollcall = os.path.abspath(a.rollcall)
import run_tools
source = open(os.path.join(HERE, "integration", "wandb_test.py")).read().replace("\nunittest.main()", "")
scope = {"__file__": os.path.join(HERE, "integration", "wandb_test.py"), "__name__": "wandb_test"}
exec(compile(source, "wandb_test.py", "exec"), scope)
KEY, N = "k" * 40, 200


def normal(run):
    """The parts that do not depend on times or the order of keys."""
    rows = [{k: v for k, v in r.items() if k not in ("_runtime", "_timestamp")} for r in run.history()]
    summary = {k: v for k, v in run.summary().items() if k not in ("_runtime", "_timestamp", "_wandb")}
    metrics = run.config["_wandb"]["value"].get("m", [])
    return {"rows": rows, "summary": summary, "config": {k: v for k, v in run.config.items() if k != "_wandb"},
            "complete": run.complete, "exitcode": run.exitcode,
            "axes": sorted((m["1"], metrics[m["5"] - 1]["1"] if "5" in m else "") for m in metrics)}


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
    for s in range(1, N + 1):
        run.steps(s, s)
        run.histograms({"metrics/reward_hist": [s * k for k in range(1, 9)]})
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
for name in ("train/loss", "metrics/reward", "metrics/reward_hist"):
    run.define_metric(name, step_metric="trainer/step")
for s in range(1, {N} + 1):
    run.log({{"trainer/step": s, "train/loss": 1 / s, "metrics/reward": float(s),
             "metrics/reward_hist": wandb.Histogram([s * k for k in range(1, 9)], num_bins=32)}})
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
        code |= not same
        print(f"  {part}: {'same' if same else 'differs'}" + ("" if same else f"\n    real: {str(want[part])[:300]}\n    ours: {str(got[part])[:300]}"))


def whole(run, storage):
    """All that a real run with everything asked for has left at the server. Console times are those of sending."""
    events = [json.loads(x) for x in run.lines("wandb-events.jsonl")]
    text = [x.split(" ", 2)[2] if x.startswith("ERROR ") else x.split(" ", 1)[1] for x in run.lines("output.log")]
    return {**normal(run), "tables": {os.path.basename(k): v for k, v in storage.items() if "media/table" in k},
            "system": [{k: round(v, 3) if k == "_timestamp" else v for k, v in e.items() if k not in ("_runtime", "_wandb")} for e in events],
            "console": text}


def real_run():
    task = run_tools.Task()
    run = run_tools.Run(task, "r", task.run_file(wandb="offline", max_steps=60, project="proj", wandb_completions=True, wandb_console=True,
                                                 wandb_host=True, rollout_log_interval=20, telemetry_s=0.1))
    assert run.wait()[0] == 0, run.logs()
    out = []
    for sync in (False, True):
        server = FakeWandb(KEY)
        env = dict(os.environ, WANDB_API_KEY=KEY, WANDB_BASE_URL=server.url, HOME=task.dir, WANDB_DIR=task.dir, WANDB_SILENT="true")
        if sync:
            folder = subprocess.run([a.rollcall, "export", "wandb", run.dir, "--offline"], env=env, check=True, capture_output=True,
                                    text=True).stdout.strip()
            subprocess.run([os.path.join(os.path.dirname(sys.executable), "wandb"), "sync", folder], env=env, check=True)
        else:
            subprocess.run([a.rollcall, "export", "wandb", run.dir], env=env, check=True, stdout=subprocess.DEVNULL)
        assert not server.wrong, server.wrong
        out.append(whole(list(server.runs.values())[0], server.storage))
        server.close()
    run.kill()
    task.close()
    return out


def difference(x, y):
    if isinstance(x, dict):
        keys = [k for k in {**x, **y} if x.get(k) != y.get(k)]
        return {k: x.get(k) for k in keys}, {k: y.get(k) for k in keys}
    if isinstance(x, list):
        return [v for v in x if v not in y], [v for v in y if v not in x]
    return x, y


ours_, synced_ = real_run()
print("a real run, rollcall online against rollcall offline + wandb sync:")
for part in ours_:
    same = ours_[part] == synced_[part]
    code |= not same
    n = len(ours_[part]) if hasattr(ours_[part], "__len__") else ours_[part]
    print(f"  {part} ({n}): {'same' if same else 'differs'}"
          + ("" if same else "\n    online: {}\n    synced: {}".format(*(str(x)[:600] for x in difference(ours_[part], synced_[part])))))
sys.exit(code)
