"""Build the variants and run the tests, one more at a time than there are cores since many wait; called by tests/run.sh.

A test is a program that ends with 0 (passed), 77 (skipped, its last line says why) or anything else (failed). What a test
file is for is in its 'tags:' comment line: 'asan', 'tsan', 'valgrind' add a run of it under that tool ('only-tsan': and take
the plain one away); 'alone' keeps others from running beside it; 'long' leaves it for --long, 'long-asan' only its run under
AddressSanitizer; 'limit=SECONDS' replaces the time limit.
"""
import argparse, concurrent.futures, glob, os, re, shutil, signal, subprocess, sys, time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LOGS = os.path.join(ROOT, "build", "test-logs")
CORES = os.cpu_count() or 2


class Test:
    def __init__(self, name, command, env=None, limit=300, alone=False):
        self.name, self.command, self.env, self.limit, self.alone = name, command, env or {}, limit, alone


def tags_of(path):
    with open(path, encoding="utf-8", errors="replace") as f:
        m = re.search(r"tags:\s*([^\n*]*)", f.read(4000))
    return m.group(1).split() if m else []


def limit_of(tags, default):
    return next((int(t[6:]) for t in tags if t.startswith("limit=")), default)


def build(preset, targets=()):
    log = os.path.join(LOGS, f"build-{preset}.log")
    start = time.monotonic()
    launcher = ["-DCMAKE_C_COMPILER_LAUNCHER=ccache"] if shutil.which("ccache") else []
    with open(log, "w") as out:
        ok = subprocess.call(["cmake", "--preset", preset, *launcher], cwd=ROOT, stdout=out, stderr=out) == 0
        if ok:
            command = ["cmake", "--build", "--preset", preset]
            if targets:
                command += ["--target", *targets]
            ok = subprocess.call(command, cwd=ROOT, stdout=out, stderr=out) == 0
    print(f"{'ok' if ok else 'FAILED':8}build {preset} ({time.monotonic() - start:.0f} s)", flush=True)
    if not ok:
        print("".join(open(log).readlines()[-40:]))
    return ok


def starter_begin():
    """The model that most integration tests train and sample from."""
    log = open(os.path.join(LOGS, "starter.log"), "w+")
    if not os.path.exists("build/release/rollcall"):
        build("release", ["rollcall"])
    return subprocess.Popen(["examples/make_starter.sh"], cwd=ROOT, stdout=log, stderr=log), log, time.monotonic()


def starter_end(process, log, start):
    ok = process.wait() == 0
    print(f"{'ok' if ok else 'FAILED':8}starter model ({time.monotonic() - start:.0f} s)", flush=True)
    if not ok:
        log.seek(0)
        print("".join(log.readlines()[-40:]))
    return ok


def unit_sources():
    return {os.path.splitext(os.path.basename(p))[0]: p
            for p in sorted(glob.glob(os.path.join(ROOT, "tests", "unit", "**", "*_test.c"), recursive=True))}


def collect(long):
    tests, asan, tsan = [], [], []
    sources = unit_sources()
    for name, path in sources.items():
        tags = tags_of(path)
        if "long" in tags and not long:
            continue
        limit, alone = limit_of(tags, 300), "alone" in tags
        tests.append(Test(f"unit/{name}", [f"build/release/tests/{name}"], {}, limit, alone))
        if "noasan" not in tags:
            asan.append(name)
            tests.append(Test(f"asan/{name}", [f"build/asan/tests/{name}"], {}, 3 * limit, alone))
        if "tsan" in tags:
            tsan.append(name)
            tests.append(Test(f"tsan/{name}", [f"build/tsan/tests/{name}"], {}, 3 * limit, alone))
        if "valgrind" in tags:
            tests.append(Test(f"valgrind/{name}", ["valgrind", "-q", "--error-exitcode=99", "--leak-check=full",
                                                   "--errors-for-leak-kinds=definite",
                                                   f"--suppressions={ROOT}/tests/valgrind.supp", f"build/release/tests/{name}"],
                              {"RC_CPU": "avx2", "RC_JIT": "off", "UNDER_VALGRIND": "1"}, 3 * limit, alone))
    for kind in ("integration", "tui"):
        for path in sorted(glob.glob(os.path.join(ROOT, "tests", kind, "*_test.py"))):
            tags, name = tags_of(path), os.path.basename(path)[:-3]
            if "long" in tags and not long:
                continue
            limit, alone = limit_of(tags, 300), "alone" in tags
            asan_on = "asan" in tags or ("long-asan" in tags and long)
            for variant, on in (("release", not {"only-asan", "only-tsan"} & set(tags)), ("asan", asan_on), ("tsan", "tsan" in tags)):
                if on:
                    prefix = kind if variant == "release" else f"{variant}/{kind}"
                    tests.append(Test(f"{prefix}/{name}", ["/usr/bin/python3", path],
                                      {"ROLLCALL": os.path.join(ROOT, "build", variant, "rollcall"), "RC_VARIANT": variant,
                                       "LONG": "1" if long else ""}, (1 if variant == "release" else 2) * limit, alone))
    for path in sorted(glob.glob(os.path.join(ROOT, "tests", "fuzz", "*_fuzz.c"))):
        name = os.path.basename(path)[:-2]
        corpus = os.path.join(ROOT, "tests", "fuzz", "corpus", name[: -len("_fuzz")])
        grown = os.path.join(ROOT, "build", "fuzz-corpus", name)
        if not long:
            shutil.rmtree(grown, ignore_errors=True)
        os.makedirs(grown, exist_ok=True)
        # Without --long the same inputs each time, so that a verdict is the change's and not the hour's; the time is
        # only reached on a machine with much else to do.
        seconds = 120 if long else 60
        bound = [] if long else ["-seed=1", "-runs=20000"]
        command = [f"build/fuzz/fuzz/{name}", f"-max_total_time={seconds}", *bound, "-timeout=20", "-rss_limit_mb=3000",
                   "-close_fd_mask=1", "-error_exitcode=1", f"-artifact_prefix={LOGS}/{name}-", grown]
        tests.append(Test(f"fuzz/{name}", command + ([corpus] if os.path.isdir(corpus) else []),
                          {"LONG": "1" if long else ""}, seconds * 10 + 120))
    return tests, asan, tsan


def run(test):
    log = os.path.join(LOGS, test.name.replace("/", "-") + ".log")
    env = dict(os.environ, ASAN_OPTIONS="detect_leaks=1:abort_on_error=0", UBSAN_OPTIONS="print_stacktrace=1",
               TSAN_OPTIONS=f"halt_on_error=0:exitcode=66:suppressions={ROOT}/tests/tsan.supp",
               LSAN_OPTIONS=f"suppressions={ROOT}/tests/lsan.supp:print_suppressions=0", **test.env)
    start = time.monotonic()
    with open(log, "w") as out:
        try:
            p = subprocess.Popen(test.command, cwd=ROOT, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                                 start_new_session=True)
        except OSError as e:
            out.write(f"cannot start: {e}\n")
            return test, 127, log, 0.0
        try:
            code = p.wait(test.limit)
        except subprocess.TimeoutExpired:
            out.write(f"\nstopped after its time limit of {test.limit} s\n")
            code = 124
        try:    # whatever it left behind
            os.killpg(p.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        p.wait()
    return test, code, log, time.monotonic() - start


TELLING = re.compile(r"\[  (ERROR|FAILED) |Sanitizer|runtime error:|^(FAIL|ERROR): |Error\b.*:|[Aa]ssert|BUG|time limit|SUMMARY")


NO_LEAK_CHECK = "LeakSanitizer has encountered a fatal error"


def telling(lines):
    """The lines of a failed test's log that say why, few enough to survive where a log is cut: first those that name an error,
    each with the two after it, then the end."""
    first, end = [], lines[-12:]
    for i, line in enumerate(lines[:-12]):
        if TELLING.search(line):
            first = sorted({*first, *range(i, min(i + 3, len(lines) - 12))})
    first = [lines[i] for i in first[:18]]
    return [x.rstrip("\n")[:200] + "\n" for x in first + (["...\n"] if first else []) + end]


def main():
    a = argparse.ArgumentParser()
    a.add_argument("--long", action="store_true")
    a.add_argument("--only", default="")
    a = a.parse_args()
    os.chdir(ROOT)
    os.makedirs(LOGS, exist_ok=True)
    began = time.monotonic()
    tests, asan, tsan = collect(a.long)
    tests = [t for t in tests if re.search(a.only, t.name)]
    wanted = {t.command[0].split("/")[1] for t in tests if t.command[0].startswith("build/")}
    wanted |= {t.env["RC_VARIANT"] for t in tests if "RC_VARIANT" in t.env}
    if any(t.name.startswith("valgrind") for t in tests):
        wanted.add("release")
    starter = None
    for preset in ("release", "asan", "tsan", "fuzz"):
        targets = {"tsan": ["rollcall", *tsan]}.get(preset, [])
        if preset in wanted and not build(preset, targets):
            if starter:
                starter[0].kill()
            print("0 passed, 1 failed")
            return 1
        if preset == "release" and not os.path.exists("build/starter/config.json"):
            starter = starter_begin()    # beside the other builds, whose longest files leave a core idle
    if starter and not starter_end(*starter):
        print("0 passed, 1 failed")
        return 1
    passed, failed, skipped = 0, [], []

    def note(result):
        nonlocal passed
        test, code, log, seconds = result
        if code != 0 and NO_LEAK_CHECK in open(log, errors="replace").read():    # that says nothing of the test: once more
            print(f"again   {test.name}: its leak check could not stop all threads", flush=True)
            test, code, log, seconds = run(test)
        word = "ok" if code == 0 else "skipped" if code == 77 else "FAILED"
        print(f"{word:8}{test.name} ({seconds:.1f} s)", flush=True)
        if code == 0:
            passed += 1
            return
        lines = open(log, errors="replace").readlines()
        if code == 77:
            skipped.append(test.name)
            print("        " + (lines[-1].strip() if lines else "no reason given"), flush=True)
        else:
            failed.append(test.name)
            print(f"        exit {code}; of {os.path.relpath(log, ROOT)}:\n" + "".join("        | " + x for x in telling(lines)),
                  flush=True)

    with concurrent.futures.ThreadPoolExecutor(max(3, min(CORES + 1, 6))) as pool:
        for f in concurrent.futures.as_completed([pool.submit(run, t) for t in tests if not t.alone]):
            note(f.result())
    for t in tests:
        if t.alone:
            note(run(t))
    for name in failed:
        print(f"FAILED  {name}")
    print(f"took {time.monotonic() - began:.0f} s")
    print(f"{passed} passed, {len(failed)} failed, {len(skipped)} skipped")
    return 1 if failed or passed == 0 else 0


sys.exit(main())
