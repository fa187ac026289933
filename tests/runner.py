#!/usr/bin/python3
"""Build the variants and run the tests, two more at a time than there are cores since many wait; called by tests/run.sh.

A test is a program that ends with 0 (passed), 77 (skipped, its last line says why) or anything else (failed). What a test
file is for is in its 'tags:' comment line: 'asan', 'tsan', 'valgrind' add a run of it under that tool ('only-tsan': and take
the plain one away); 'alone' keeps others from running beside it; 'long' leaves it for --long, 'long-asan' only its run under
AddressSanitizer; 'starter' that it needs the starter model, so that others may begin while that is made; 'limit=SECONDS' replaces
the time limit. Those that take longest begin first, by seconds.txt, which --record writes.

A test that fails fails the run. It is run once more when the others are over, alone, which only tells whether it is flaky: then its
first log is kept, and the fault is still to be found. A flaky test fails no run while a row of the table 'Quarantine' in tests/README.md
names it and says why; it counts as skipped then. --repeat looks for such tests: it runs each N times and takes no second try.

On SIGTERM, SIGINT or SIGHUP everything that was started here is killed, also what has left its session.
"""
import argparse, concurrent.futures, contextlib, glob, os, re, shutil, signal, subprocess, sys, threading, time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LOGS = os.path.join(ROOT, "build", "test-logs")
CORES = os.cpu_count() or 2
AGAIN_MAX = 10    # more failures than this are not bad luck, and repeating them all could take hours
N_SLOWEST = 10
SECONDS = os.path.join(ROOT, "tests", "seconds.txt")
RECORD_S = 5    # what takes less is not in it
QUARANTINE = os.path.join(ROOT, "tests", "README.md")
MARK = "ROLLCALL_TESTS"    # in the environment of all that is started here: ids of the runners that it is of, each between colons
STARTING = threading.RLock()    # held while a process is started, and by whoever ends them all


class Test:
    def __init__(self, name, command, env=None, limit=300, tags=()):
        self.name, self.command, self.env, self.limit = name, command, env or {}, limit
        self.alone, self.starter = "alone" in tags, "starter" in tags


def tags_of(path):
    with open(path, encoding="utf-8", errors="replace") as f:
        m = re.search(r"tags:\s*([^\n*]*)", f.read(4000))
    return m.group(1).split() if m else []


def limit_of(tags, default):
    return next((int(t[6:]) for t in tags if t.startswith("limit=")), default)


def start(command, **how):
    with STARTING:
        return subprocess.Popen(command, **how)


def ours():
    """Ids of the processes that were started from here, directly or not."""
    word = f":{os.getpid()}:".encode()
    for path in glob.glob("/proc/[0-9]*/environ"):
        with contextlib.suppress(OSError), open(path, "rb") as f:    # it may have ended, or be another user's
            mark = next((x for x in f.read().split(b"\0") if x.startswith(MARK.encode() + b"=")), b"")
            if word in mark and int(path.split("/")[2]) != os.getpid():
                yield int(path.split("/")[2])


def stop(number, frame):
    STARTING.acquire()    # nothing is started any more
    while pids := list(ours()):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
    print(f"stopped by {signal.Signals(number).name}", flush=True)
    os._exit(128 + number)    # threads wait for the processes


def stop_with_signals():
    """Mark all that is started from now on, and end it when this process is told to end."""
    os.environ[MARK] = os.environ.get(MARK, ":") + f"{os.getpid()}:"
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, stop)


def quarantined():
    """{name: why} of the tests that may be flaky: rows of a table in the chapter 'Quarantine'."""
    with open(QUARANTINE, encoding="utf-8") as f:
        chapter = f.read().partition("\n## Quarantine\n")[2].partition("\n## ")[0]
    return dict(re.findall(r"^\| `([^`]+)` \| (.+) \|$", chapter, re.M))


def build(preset, targets=()):
    log = os.path.join(LOGS, f"build-{preset}.log")
    began = time.monotonic()
    options = ["-DCMAKE_C_COMPILER_LAUNCHER=ccache", "-DCMAKE_CUDA_COMPILER_LAUNCHER=ccache"] if shutil.which("ccache") else []
    options += ["-DRC_CUDA_ARCH=90a"]    # one card's code instead of six: nothing here runs it
    with open(log, "w") as out:
        ok = start(["cmake", "--preset", preset, *options], cwd=ROOT, stdout=out, stderr=out).wait() == 0
        if ok:
            command = ["cmake", "--build", "--preset", preset]
            if targets:
                command += ["--target", *targets]
            ok = start(command, cwd=ROOT, stdout=out, stderr=out).wait() == 0
    print(f"{'ok' if ok else 'FAILED':8}build {preset} ({time.monotonic() - began:.0f} s)", flush=True)
    if not ok:
        print("".join(open(log).readlines()[-40:]))
    return ok


def starter_begin():
    """The model that most integration tests train and sample from."""
    log = open(os.path.join(LOGS, "starter.log"), "w+")
    if not os.path.exists("build/release/rollcall"):
        build("release", ["rollcall"])
    return start(["examples/make_starter.sh"], cwd=ROOT, stdout=log, stderr=log), log, time.monotonic()


def starter_end(process, log, began):
    ok = process.wait() == 0
    print(f"{'ok' if ok else 'FAILED':8}starter model ({time.monotonic() - began:.0f} s)", flush=True)
    if not ok:
        log.seek(0)
        print("".join(log.readlines()[-40:]))


def unit_sources():
    return {os.path.splitext(os.path.basename(p))[0]: p
            for p in sorted(glob.glob(os.path.join(ROOT, "tests", "unit", "**", "*_test.c"), recursive=True))}


def collect(long):
    tests, tsan = [], []
    sources, more = unit_sources(), {"LONG": "1" if long else ""}
    for name, path in sources.items():
        tags = tags_of(path)
        if "long" in tags and not long:
            continue
        limit = limit_of(tags, 300)
        tests.append(Test(f"unit/{name}", [f"build/release/tests/{name}"], more, limit, tags))
        if "noasan" not in tags:
            tests.append(Test(f"asan/{name}", [f"build/asan/tests/{name}"], more, 3 * limit, tags))
        if "tsan" in tags:
            tsan.append(name)
            tests.append(Test(f"tsan/{name}", [f"build/tsan/tests/{name}"], more, 3 * limit, tags))
        if "valgrind" in tags:
            tests.append(Test(f"valgrind/{name}", ["valgrind", "-q", "--error-exitcode=99", "--leak-check=full",
                                                   "--errors-for-leak-kinds=definite",
                                                   f"--suppressions={ROOT}/tests/valgrind.supp", f"build/release/tests/{name}"],
                              {"RC_CPU": "avx2", "RC_JIT": "off", "UNDER_VALGRIND": "1"}, 3 * limit, tags))
    for kind in ("integration", "tui"):
        for path in sorted(glob.glob(os.path.join(ROOT, "tests", kind, "*_test.py"))):
            tags, name = tags_of(path), os.path.basename(path)[:-3]
            if "long" in tags and not long:
                continue
            limit = limit_of(tags, 300)
            asan_on = "asan" in tags or ("long-asan" in tags and long)
            for variant, on in (("release", not {"only-asan", "only-tsan"} & set(tags)), ("asan", asan_on), ("tsan", "tsan" in tags)):
                if on:
                    prefix = kind if variant == "release" else f"{variant}/{kind}"
                    tests.append(Test(f"{prefix}/{name}", ["/usr/bin/python3", path],
                                      {**more, "ROLLCALL": os.path.join(ROOT, "build", variant, "rollcall"), "RC_VARIANT": variant}, (1 if variant == "release" else 2) * limit, tags))
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
                          more, seconds * 10 + 120))
    seconds = seconds_known()
    return sorted(tests, key=lambda t: -seconds.get(t.name, 0)), tsan


def seconds_known():
    """{name: seconds} of the tests that take long."""
    with open(SECONDS, encoding="utf-8") as f:
        return {name: float(s) for s, name in (line.split() for line in f)}


def seconds_record(seconds_of):
    with open(SECONDS, "w", encoding="utf-8") as f:
        f.writelines(f"{seconds_of[n]:.0f} {n}\n" for n in sorted(seconds_of, key=lambda n: (-seconds_of[n], n)) if seconds_of[n] >= RECORD_S)


def log_of(test, suffix=""):
    return os.path.join(LOGS, test.name.replace("/", "-") + suffix + ".log")


def run(test, suffix=""):
    """Run it, with its output in log_of(test, suffix): (test, exit code, log, seconds)."""
    log = log_of(test, suffix)
    env = dict(os.environ, ASAN_OPTIONS="detect_leaks=1:abort_on_error=0", UBSAN_OPTIONS="print_stacktrace=1",
               TSAN_OPTIONS=f"halt_on_error=0:exitcode=66:suppressions={ROOT}/tests/tsan.supp",
               LSAN_OPTIONS=f"suppressions={ROOT}/tests/lsan.supp:print_suppressions=0", **test.env)
    began = time.monotonic()
    with open(log, "w") as out:
        try:
            p = start(test.command, cwd=ROOT, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True)
        except OSError as e:
            out.write(f"cannot start: {e}\n")
            return test, 127, log, 0.0
        try:
            code = p.wait(test.limit)
        except subprocess.TimeoutExpired:
            out.write(f"\nstopped after its time limit of {test.limit} s\n")
            code = 124
        try:    # kill whatever it left behind
            os.killpg(p.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        p.wait()
    return test, code, log, time.monotonic() - began


TELLING = re.compile(r"\[  (ERROR|FAILED) |Sanitizer|runtime error:|^(FAIL|ERROR): |Error\b.*:|[Aa]ssert|BUG|time limit|SUMMARY")


NO_LEAK_CHECK = "LeakSanitizer has encountered a fatal error"


def lines_of(log):
    with open(log, errors="replace") as f:
        return f.readlines()


def make(tests, tsan):
    """Build what the tests are, and begin the starter model when it is missing: (built, the starter or None)."""
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
            return False, None
        if preset == "release" and not os.path.exists("build/starter/config.json"):
            starter = starter_begin()    # beside the other builds, whose longest files leave a core idle
    return True, starter


def telling(lines):
    """The lines of a failed test's log that say why, few enough to survive where a log is cut: first those that name an error,
    each with the two after it, then the end."""
    first, end = [], lines[-12:]
    for i, line in enumerate(lines[:-12]):
        if TELLING.search(line):
            first = sorted({*first, *range(i, min(i + 3, len(lines) - 12))})
    first = [lines[i] for i in first[:18]]
    return [x.rstrip("\n")[:200] + "\n" for x in first + (["...\n"] if first else []) + end]


def workers():
    return concurrent.futures.ThreadPoolExecutor(max(4, min(CORES + 2, 8)))


def run_each(jobs, starter=None):
    """Yield each job's result as it comes: a job is a test and its log's suffix. Those that need the starter model come when it is
    made, those with the tag 'alone' last."""
    with workers() as pool:
        running = {pool.submit(run, *job) for job in jobs if not job[0].alone and not job[0].starter}
        later = [job for job in jobs if not job[0].alone and job[0].starter]
        while running or later:
            if later and (not starter or not running or starter[0].poll() is not None):
                starter = starter and starter_end(*starter)    # when that fails, they say so
                running |= {pool.submit(run, *job) for job in later}
                later = []
            done, running = concurrent.futures.wait(running, 1 if later else None, concurrent.futures.FIRST_COMPLETED)
            for f in done:
                yield f.result()
    if starter:
        starter_end(*starter)
    for job in jobs:
        if job[0].alone:
            yield run(*job)


def say_failed(log, code):
    print(f"        exit {code}; of {os.path.relpath(log, ROOT)}:\n"
          + "".join("        | " + x for x in telling(lines_of(log))), flush=True)


def run_once(tests, starter=None, record=False):
    """Each test once, what failed once more; prints the summary and returns the exit status."""
    began = time.monotonic()
    passed, failed, flaky, skipped, seconds_of = [], [], [], [], {}
    for test, code, log, seconds in run_each([(t,) for t in tests], starter):
        if code != 0 and any(NO_LEAK_CHECK in x for x in lines_of(log)):    # that says nothing of the test: once more
            print(f"again   {test.name}: its leak check could not stop all threads", flush=True)
            test, code, log, seconds = run(test)
        seconds_of[test.name] = seconds
        word = "ok" if code == 0 else "skipped" if code == 77 else "FAILED"
        print(f"{word:8}{test.name} ({seconds:.1f} s)", flush=True)
        if code == 0:
            passed.append(test)
        elif code == 77:
            lines = lines_of(log)
            skipped.append(test)
            print("        " + (lines[-1].strip() if lines else "no reason given"), flush=True)
        else:
            failed.append(test)
            say_failed(log, code)
    known, excused = quarantined(), []
    for test in list(failed) if len(failed) <= AGAIN_MAX else []:
        os.replace(log_of(test), log_of(test, ".first"))
        _, code, log, seconds = run(test)
        print(f"{'flaky' if code == 0 else 'FAILED':8}{test.name}, again and alone ({seconds:.1f} s)", flush=True)
        if code != 0:
            say_failed(log, code)
            continue
        flaky.append(test)
        if test.name in known:
            failed.remove(test)
            excused.append(test)
    if record:
        seconds_record(seconds_of)
    print("slowest:")
    for name in sorted(seconds_of, key=seconds_of.get, reverse=True)[:N_SLOWEST]:
        print(f"{seconds_of[name]:7.0f} s  {name}")
    for test in flaky:
        print(f"flaky   {test.name}: failed once and passed alone; the failure is in {os.path.relpath(log_of(test, '.first'), ROOT)}"
              + (f"; in quarantine: {known[test.name]}" if test in excused else ""))
    for test in failed:
        print(f"FAILED  {test.name}")
    print(f"the tests took {time.monotonic() - began:.0f} s")
    print(f"{len(passed)} passed, {len(failed)} failed, {len(skipped) + len(excused)} skipped")
    return 1 if failed or not passed else 0


def run_repeated(tests, repeat, starter=None):
    """Each test 'repeat' times; prints how often each failed, with the logs of that, and returns the exit status."""
    codes, longest, kept = {t.name: [] for t in tests}, {}, {}
    for test, code, log, seconds in run_each([(t, f".{k}") for k in range(1, repeat + 1) for t in tests], starter):
        if code != 0 and any(NO_LEAK_CHECK in x for x in lines_of(log)):
            code = 77
        codes[test.name].append(code)
        longest[test.name] = max(seconds, longest.get(test.name, 0))
        if code in (0, 77):
            os.unlink(log)
        else:
            print(f"FAILED  {test.name} ({seconds:.1f} s)", flush=True)
            say_failed(log, code)
            kept.setdefault(test.name, []).append(os.path.relpath(log, ROOT))
    n_failed = {name: sum(code not in (0, 77) for code in c) for name, c in codes.items()}
    print("failed  of runs  longest  test")
    for name in sorted(codes, key=lambda name: (-n_failed[name], name)):
        print(f"{n_failed[name]:6}  {len(codes[name]):7}  {longest[name]:5.0f} s  {name}")
        for log in kept.get(name, []):
            print(f"{'':26}  {log}")
    bad, skipped = sum(n > 0 for n in n_failed.values()), sum(set(c) == {77} for c in codes.values())
    print(f"{len(codes) - bad - skipped} passed, {bad} failed, {skipped} skipped")
    return 1 if bad or bad + skipped == len(codes) else 0


@contextlib.contextmanager
def load(n):
    """n processes that do nothing but compute, and end with this one."""
    spin = "import os\nparent = os.getppid()\nwhile os.getppid() == parent:\n    for _ in range(1000000): pass"
    spinning = [start([sys.executable, "-c", spin], stdin=subprocess.DEVNULL) for _ in range(n)]
    try:
        yield
    finally:
        for p in spinning:
            p.kill()
            p.wait()


def main():
    a = argparse.ArgumentParser()
    a.add_argument("--long", action="store_true")
    a.add_argument("--only", default="")
    a.add_argument("--repeat", type=int, default=0, metavar="N", help="run each test N times and print how often it failed")
    a.add_argument("--load", type=int, default=0, metavar="L", help="keep L busy processes beside the tests")
    a.add_argument("--record", action="store_true", help="write how long each test took to tests/seconds.txt; for runs of all of them")
    a = a.parse_args()
    os.chdir(ROOT)
    os.makedirs(LOGS, exist_ok=True)
    stop_with_signals()
    began = time.monotonic()
    tests, tsan = collect(a.long)
    unknown = set(quarantined()) - {t.name for t in collect(True)[0]}
    if unknown:
        print(f"tests/README.md has tests in quarantine that do not exist: {', '.join(sorted(unknown))}\n0 passed, 1 failed, 0 skipped")
        return 1
    tests = [t for t in tests if re.search(a.only, t.name)]
    built, starter = make(tests, tsan)
    if not built:
        print("0 passed, 1 failed, 0 skipped")
        return 1
    print(f"building took {time.monotonic() - began:.0f} s", flush=True)
    with load(a.load):
        return run_repeated(tests, a.repeat, starter) if a.repeat > 0 else run_once(tests, starter, a.record)


if __name__ == "__main__":
    sys.exit(main())
