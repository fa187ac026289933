#!/usr/bin/env python3
"""Development only: the event files of 'rollcall export tensorboard' read back by the real TensorBoard; prints the comparison.

    python3 -m venv V && V/bin/pip install tensorboard && V/bin/python tests/compare_tensorboard.py [--rollcall build/release/rollcall]

A journal of 500 steps with gaps, single-precision extremes, a rollback and a second export behind the first. Exits with 1 when a
value, step or time differs.
"""
import argparse, math, os, random, struct, subprocess, sys, tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
import numpy
sys.path.insert(0, os.path.join(HERE, "integration"))
from tensorboard import version
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

a = argparse.ArgumentParser()
a.add_argument("--rollcall", default="build/release/rollcall")
a = a.parse_args()
os.environ["ROLLCALL"] = a.rollcall
path = os.path.join(HERE, "integration", "export_test.py")
scope = {"__file__": path, "__name__": "export_test"}
with open(path) as f:
    exec(compile(f.read().replace("\nunittest.main()", ""), path, "exec"), scope)

random.seed(1)
single = lambda v: struct.unpack("<f", struct.pack("<f", v))[0]
with tempfile.TemporaryDirectory() as tmp:
    journal, want, spreads = scope["Journal"](tmp), {}, {}

    def add(first, last, incarnation):
        for step in range(first, last + 1):
            values = {"train/loss": random.gauss(0, 1), "metrics/reward": random.random(), "reward/with space é": float(step)}
            if step % 7 == 0:
                values["train/loss"] = random.choice([3.4e38, -1e-38, 0.0, -0.0])
            if step % 11 == 0:
                values["metrics/reward"] = math.nan    # not known: no point at all
            journal.add(step, values, incarnation)
            lengths = [random.randrange(1, 4000) for _ in range(random.randrange(1, 200))]
            scope["histograms"].add(journal.db, {"metrics/response_length_hist": lengths})
            spreads.setdefault(step, lengths)
            for name, v in values.items():
                if not math.isnan(v):
                    want.setdefault(name, {}).setdefault(step, (single(v), 100.5 + step))    # the first life's row stays

    def export():
        subprocess.run([a.rollcall, "export", "tensorboard", tmp], check=True)

    add(1, 300, 1)
    export()
    journal.rollback(250)
    add(251, 500, 2)
    export()
    events = EventAccumulator(os.path.join(tmp, "export/tensorboard"), size_guidance={"scalars": 0, "histograms": 0})
    events.Reload()
    got = {name: {e.step: (e.value, e.wall_time) for e in events.Scalars(name)} for name in events.Tags()["scalars"]}
    n_double = sum(len(events.Scalars(name)) - len(got[name]) for name in got)
    journal.db.close()
    shapes = {e.step: e.histogram_value for e in events.Histograms("metrics/response_length_hist")}

print(f"TensorBoard {version.VERSION}: {len(got)} series, {sum(map(len, got.values()))} points, {n_double} steps twice")
bad = n_double > 0 or set(got) != set(want)
for name in sorted(set(got) | set(want)):
    differ = [s for s in set(got.get(name, {})) | set(want.get(name, {})) if got.get(name, {}).get(s) != want.get(name, {}).get(s)]
    bad |= bool(differ)
    print(f"  {name}: {len(want.get(name, {}))} written, {len(got.get(name, {}))} read, {len(differ)} differ" + (f", first at {min(differ)}" if differ else ""))
wrong = set(shapes) ^ set(spreads)
for step, lengths in spreads.items():
    counts, edges = numpy.histogram(lengths, 32)
    h = shapes.get(step)
    if not h or list(h.bucket) != list(counts) or not numpy.allclose(h.bucket_limit, edges[1:], rtol=1e-12, atol=0) or \
            (h.min, h.max, h.num, h.sum) != (min(lengths), max(lengths), len(lengths), sum(lengths)):
        wrong.add(step)
print(f"  histograms: {len(spreads)} written, {len(shapes)} read, {len(wrong)} differ from numpy's" + (f", first at {min(wrong)}" if wrong else ""))
bad |= bool(wrong)
sys.exit(bad)
