"""A real Prometheus scrapes what 'rollcall export openmetrics' serves, on the loopback and with a token: every series arrives with
its value, kind, unit and help. Opt-in: RC_PROMETHEUS names the program, or one is on the PATH; else skipped.

    apt-get download prometheus && dpkg -x prometheus_*.deb P && RC_PROMETHEUS=$PWD/P/usr/bin/prometheus tests/integration/prometheus_test.py
"""
import json, os, re, shutil, signal, socket, subprocess, sys, tempfile, time, unittest, urllib.parse, urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))
ROLLCALL = os.path.abspath(os.environ.get("ROLLCALL", "build/release/rollcall"))
PROMETHEUS = os.environ.get("RC_PROMETHEUS") or shutil.which("prometheus")
LIMIT = 120
if not PROMETHEUS or not os.access(PROMETHEUS, os.X_OK):
    print("no Prometheus here: RC_PROMETHEUS names none, and the PATH has none")
    sys.exit(77)
path = os.path.join(HERE, "export_test.py")
scope = {"__file__": path, "__name__": "export_test"}
with open(path) as f:
    exec(compile(f.read().replace("\nunittest.main()", ""), path, "exec"), scope)


class Prometheus(unittest.TestCase):
    def setUp(self):
        self.tmp = tempfile.TemporaryDirectory()
        self.addCleanup(self.tmp.cleanup)

    def start(self, *command):
        p = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)

        def end():
            p.kill()
            p.communicate()
        self.addCleanup(end)
        return p

    def ask(self, what, **args):
        url = f"http://127.0.0.1:{self.port}/api/v1/{what}?{urllib.parse.urlencode(args)}"
        with urllib.request.urlopen(url, timeout=30) as r:
            return json.load(r)["data"]

    def until(self, what):
        end = time.monotonic() + LIMIT
        while True:
            try:
                got = what()
            except OSError:    # it has not begun to listen
                got = None
            if got:
                return got
            self.assertLess(time.monotonic(), end, "not in time")
            time.sleep(0.05)

    def test_every_series_arrives_with_value_kind_unit_and_help(self):
        run = os.path.join(self.tmp.name, "run")
        os.mkdir(run)
        journal = scope["Journal"](run)
        self.addCleanup(journal.db.close)
        table = subprocess.run([ROLLCALL, "metrics"], capture_output=True, text=True, check=True).stdout
        names = [n for n in re.findall(r"^\| `([^`]+)` \|", table, re.M) if not n.startswith("gpu/")]
        steps = [n for n in names if not n.startswith("host/") or n == "host/mem_gib"]
        figures = [n for n in names if n not in steps]
        journal.add(1, {**{n: 1.5 + i for i, n in enumerate(steps)}, "reward/own part": 0.25})
        journal.sample('rack "7"', {**{n: 2.5 + i for i, n in enumerate(figures)}, "gpu/0/power_watts": 512.5, "gpu/1/power_watts": 60.0})
        token = os.path.join(self.tmp.name, "token")
        with open(token, "w") as f:
            f.write("s3cret-token\n")
        served = self.start(ROLLCALL, "export", "openmetrics", run, "--listen", "127.0.0.1:0", "--token-file", token)
        target = re.search(r"http://([^/]+)/metrics", served.stderr.readline()).group(1)
        with urllib.request.urlopen(urllib.request.Request(f"http://{target}/metrics",
                                                           headers={"Authorization": "Bearer s3cret-token"}), timeout=60) as r:
            page = r.read().decode()
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        config = os.path.join(self.tmp.name, "prometheus.yml")
        with open(config, "w") as f:
            f.write("global: {scrape_interval: 1s, scrape_timeout: 1s}\nscrape_configs:\n- job_name: rollcall\n"
                    f"  authorization: {{type: Bearer, credentials_file: {token}}}\n  static_configs: [{{targets: ['{target}']}}]\n")
        self.start(PROMETHEUS, f"--config.file={config}", f"--storage.tsdb.path={self.tmp.name}/data",
                   f"--web.listen-address=127.0.0.1:{self.port}", "--log.level=error")
        healthy = lambda: [t for t in self.ask("targets")["activeTargets"] if t["health"] != "unknown"]
        self.assertEqual([(t["health"], t["lastError"]) for t in self.until(healthy)], [("up", "")])
        lines = re.findall(r"^(rollcall_\w+)((?:\{[^\n]*\})?) (\S+)$", page, re.M)
        self.assertGreater(len(lines), len(steps) + len(figures))
        got = self.until(lambda: (x := self.ask("query", query='{__name__=~"rollcall_.*"}')["result"]) and len(x) >= len(lines) and x)
        self.assertEqual(len(got), len(lines))
        values = {}
        for x in got:
            m = dict(x["metric"])
            self.assertEqual((m.pop("job"), m.pop("instance")), ("rollcall", target))
            values[m.pop("__name__"), tuple(sorted(m.items()))] = float(x["value"][1])
        self.assertEqual(values["rollcall_gpu_power_watts", (("gpu", "1"), ("node", 'rack "7"'))], 60)
        self.assertEqual(values["rollcall_reward_own_part", ()], 0.25)
        self.assertEqual(values["rollcall_train_loss", ()], 1.5 + steps.index("train/loss"))
        for name, labels, value in lines:
            if not labels:
                self.assertEqual(values[name, ()], float(value), name)
        told = self.ask("metadata")
        for name in {x[0] for x in lines}:
            self.assertEqual(told[name][0]["type"], "gauge", name)
            self.assertTrue(told[name][0]["help"], name)
            self.assertTrue(not told[name][0]["unit"] or name.endswith(told[name][0]["unit"]), name)
        self.assertEqual(told["rollcall_time_step_seconds"][0]["unit"], "seconds")
        self.assertEqual(told["rollcall_gpu_power_watts"][0]["unit"], "watts")


unittest.main()
