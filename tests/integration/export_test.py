"""What the exporters write, read back by other hands: csv and json of the standard library, TFRecord by the lines below.

tags: asan
"""
import contextlib, csv, html.parser, json, math, os, re, resource, signal, socket, sqlite3, struct, subprocess, sys, tempfile, time, unittest
import xml.etree.ElementTree as ElementTree
import urllib.error, urllib.request
import histograms
from protobuf_read import fields

ROLLCALL = os.environ.get("ROLLCALL", "build/release/rollcall")


class Journal:
    """A journal as protocol/record/journal.c documents it, written by SQLite itself."""

    def __init__(self, run):
        self.db = sqlite3.connect(os.path.join(run, "journal.db"))
        self.db.executescript("""PRAGMA journal_mode=WAL; PRAGMA user_version=1;
            CREATE TABLE series(id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
            CREATE TABLE incarnation(id INTEGER PRIMARY KEY, from_step INTEGER NOT NULL, wall_s REAL NOT NULL);
            CREATE TABLE item(item INTEGER PRIMARY KEY, prompt_row INTEGER, rollout_step INTEGER, weight_version INTEGER, fate INTEGER,
                              step INTEGER, reward_mean REAL, file_offset INTEGER, file_bytes INTEGER);
            CREATE TABLE step(seq INTEGER PRIMARY KEY, incarnation INTEGER, step INTEGER, superseded INTEGER DEFAULT 0,
                              wall_s REAL, metrics BLOB);
            CREATE TABLE eval(step INTEGER, set_name TEXT, incarnation INTEGER, n INTEGER, mean REAL, detail TEXT, PRIMARY KEY(step, set_name));
            CREATE TABLE event(seq INTEGER PRIMARY KEY AUTOINCREMENT, incarnation INTEGER, step INTEGER, wall_s REAL, kind TEXT, who TEXT,
                               text TEXT, detail TEXT);
            CREATE TABLE sample(seq INTEGER PRIMARY KEY, node TEXT, wall_s REAL, figures BLOB);""")
        self.names = []

    def pack(self, values):
        blob = b""
        for name, v in values.items():
            if name not in self.names:
                self.names.append(name)
                self.db.execute("INSERT INTO series VALUES(?,?)", (len(self.names), name))
            blob += struct.pack("<Id", self.names.index(name) + 1, v)
        return blob

    def sample(self, node, figures):
        self.db.execute("INSERT INTO sample(node, wall_s, figures) VALUES(?,?,?)", (node, time.time(), self.pack(figures)))
        self.db.commit()

    def add(self, step, values, incarnation=1):
        blob = self.pack(values)
        self.db.execute("INSERT INTO step(incarnation, step, wall_s, metrics) VALUES(?,?,?,?)", (incarnation, step, 100.5 + step, blob))
        self.db.commit()

    def evaluate(self, step, **means):
        for name, mean in means.items():
            self.db.execute("INSERT OR REPLACE INTO eval VALUES(?,?,1,8,?,'{}')", (step, name, mean))
            self.db.execute("INSERT INTO event(incarnation, step, wall_s, kind, who, text, detail) VALUES(1,?,?,'eval','controller',?,'')",
                            (step, 200.5 + step, name))
        self.db.commit()

    def rollback(self, to):
        self.db.execute("UPDATE step SET superseded=1 WHERE step>?", (to,))
        self.db.execute("DELETE FROM eval WHERE step>?", (to,))
        self.db.commit()


def crc32c(data):
    c = 0xFFFFFFFF
    for b in data:
        c ^= b
        for _ in range(8):
            c = c >> 1 ^ (0x82F63B78 if c & 1 else 0)
    return c ^ 0xFFFFFFFF


def masked(data):
    c = crc32c(data)
    return ((c >> 15 | c << 17) + 0xA282EAD8) & 0xFFFFFFFF


def events(path):
    data, out = open(path, "rb").read(), []
    while data:
        n, = struct.unpack("<Q", data[:8])
        assert struct.unpack("<I", data[8:12])[0] == masked(data[:8])
        body = data[12:12 + n]
        assert struct.unpack("<I", data[12 + n:16 + n])[0] == masked(body)
        out.append(fields(body))
        data = data[16 + n:]
    return out


class Reader(html.parser.HTMLParser):
    """The elements of a page: which were seen, and which are still open at its end."""
    VOID = {"meta", "br", "link", "img"}

    def __init__(self):
        super().__init__()
        self.open, self.seen, self.attributes = [], set(), set()

    def handle_starttag(self, tag, attributes):
        self.seen.add(tag)
        self.attributes |= {name for name, _ in attributes}
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, tag


class Export(unittest.TestCase):
    def setUp(self):
        self.tmp = tempfile.TemporaryDirectory()
        self.run_dir = self.tmp.name
        self.journal = Journal(self.run_dir)
        for step in range(1, 4):
            self.journal.add(step, {"train/loss": 0.1 * step, "metrics/reward": math.nan if step == 2 else step})

    def tearDown(self):
        self.journal.db.close()
        self.tmp.cleanup()

    def export(self, *args, code=0):
        p = subprocess.run([ROLLCALL, "export", args[0], self.run_dir, *args[1:]], capture_output=True, text=True, timeout=120)
        self.assertEqual(p.returncode, code, p.stderr)
        return p.stdout if code == 0 else p.stderr

    def page(self):
        """The page's text, checked to be well-formed, to load nothing and to run nothing."""
        page = self.export("html")
        reader = Reader()
        reader.feed(page)
        self.assertEqual(reader.open, [])
        self.assertNotIn("script", reader.seen)
        self.assertIn("default-src 'none'", page)
        self.assertFalse({"src", "href", "xlink:href", "style", "onload"} & reader.attributes)
        self.assertLessEqual(set(re.findall(r"""https?://[^"' <]*""", page)), {"http://www.w3.org/2000/svg"})
        return page

    def charts(self, text):
        """{title: description} of the charts in a page or picture; each must be XML."""
        charts = {}
        for svg in re.findall(r'<svg class="chart".*?</svg>', text, re.S):
            root, ns = ElementTree.fromstring(svg), "{http://www.w3.org/2000/svg}"
            charts[root.findtext(ns + "title")] = root.findtext(ns + "desc")
            self.assertEqual(root.get("aria-labelledby").split(), [root.find(ns + tag).get("id") for tag in ("title", "desc")])
            for numbers in root.iter(ns + "path"):
                self.assertNotRegex(numbers.get("d"), "nan|inf")
        return charts

    def test_a_page_says_what_the_run_did(self):
        self.journal.evaluate(2, easy=0.25, hard=0.5)
        self.journal.db.execute("INSERT INTO event(incarnation, step, wall_s, kind, who, text, detail) "
                                "VALUES(1, 2, 102, 'command', 'ada', 'set learning_rate = 0.1', '{\"note\":\"x\"}')")
        self.journal.db.commit()
        page = self.page()
        charts = self.charts(page)
        self.assertEqual(charts["loss"], "train/loss: 0.1 at step 1, 0.3 at step 3, between 0.1 and 0.3. ")
        self.assertEqual(charts["reward"], "metrics/reward: 1 at step 1, 3 at step 3, between 1 and 3. ")
        self.assertEqual(charts["evaluations"], "easy: 0.25 at step 2, 0.25 at step 2, between 0.25 and 0.25. "
                                                "hard: 0.5 at step 2, 0.5 at step 2, between 0.5 and 0.5. ")
        self.assertIn("<dd>0.5 on hard, at step 2</dd>", page)
        self.assertIn('<td class="w">ada</td><td class="w">set learning_rate = 0.1</td>', page)
        self.assertEqual(page.count('class="m"'), len(charts))    # one mark in each
        self.assertIn('<tr><th scope="row">2</th><td>1970-01-01 00:01:42</td><td>–</td><td>0.2</td></tr>', page)

    def test_marks_stand_where_a_change_is_first_seen(self):
        for facts in ({"changes": [{"name": "learning_rate", "from": "optimizer step 3"}]}, {"note": "why"}, {"other": 1}):
            self.journal.db.execute("INSERT INTO event(incarnation, step, wall_s, kind, who, text, detail) "
                                    "VALUES(1, 1, 101, 'command', 'ada', 'x', ?)", (json.dumps(facts),))
        self.journal.db.commit()
        svg = re.search(r'<svg class="chart".*?</svg>', self.page(), re.S)[0]
        marks = re.findall(r'class="m" d="M([\d.]+) ', svg)
        self.assertEqual(marks, ["450.0", "56.0"])    # of steps 1 to 3: the change acts from step 3 on, the note is of step 1

    def test_a_page_of_a_run_without_a_step_is_a_page(self):
        self.journal.db.execute("DELETE FROM step")
        self.journal.db.commit()
        self.assertEqual(self.charts(self.page()), {})

    def test_a_page_shows_the_markup_of_others_as_text(self):
        hostile = "</td><script>alert(1)</script>\x1b[31m\x01\ufffe & \"quoted\" 'too' \U0001f600"
        self.journal.db.execute("INSERT INTO event(incarnation, step, wall_s, kind, who, text, detail) VALUES(1, 1, 101, ?, ?, ?, '')",
                                ("alert<b>", hostile, hostile))
        self.journal.add(4, {"reward/<svg onload=x>": 1, "train/loss": math.inf, "metrics/reward": -1e300})
        self.journal.evaluate(4, **{"<img src=x>": 1e-300})
        page = self.page()
        self.assertIn("reward/<svg onload=x>", self.charts(page))
        self.assertIn("&lt;/td&gt;&lt;script&gt;alert(1)&lt;/script&gt;\ufffd[31m\ufffd\ufffd &amp; &quot;quoted&quot; &#39;too&#39; \U0001f600", page)

    def test_a_long_run_is_thinned(self):
        with self.journal.db as db:
            db.executemany("INSERT INTO step(incarnation, step, wall_s, metrics) VALUES(1,?,?,?)",
                           ((n, n, self.journal.pack({"train/loss": 100 if n == 54321 else n % 7})) for n in range(4, 100001)))
        page = self.page()
        self.assertLess(len(page), 200000)
        self.assertIn("Every 500th of 100000 steps", page)
        self.assertTrue(self.charts(page)["loss"].endswith("between 0 and 100. "))    # no spike is lost
        self.assertIn('<th scope="row">100000</th>', page)

    def test_charts_are_a_picture(self):
        self.journal.evaluate(3, easy=0.5)
        out = os.path.join(self.run_dir, "a.svg")
        self.export("svg", "--out", out)
        with open(out) as f:
            text = f.read()
        self.assertEqual(ElementTree.fromstring(text).get("height"), "400")
        self.assertEqual(list(self.charts(text)), ["eval/easy", "metrics/reward"])
        self.assertEqual(self.export("svg", "--out", "-"), text)
        self.assertTrue(self.export("html", "--out", "-").startswith("<!doctype html>"))
        self.assertIn("cannot create", self.export("svg", "--out", out, code=1))
        self.assertEqual(list(self.charts(self.export("svg", "--series", "train/loss"))), ["train/loss"])
        self.assertIn("no values of 'train/kl'", self.export("svg", "--series", "train/kl", code=2))

    def test_crc_check_value(self):
        self.assertEqual(crc32c(b"123456789"), 0xE3069283)    # RFC 3720, so that what follows proves something

    def test_csv_reads_back_to_the_same_numbers(self):
        self.journal.rollback(2)
        self.journal.add(3, {"train/loss": 1 / 3, "late": 5e-324}, incarnation=2)
        rows = list(csv.DictReader(self.export("csv").splitlines()))
        self.assertEqual([r["step"] for r in rows], ["1", "2", "3"])
        self.assertEqual(float(rows[2]["train/loss"]), 1 / 3)
        self.assertEqual(rows[1]["metrics/reward"], "")
        self.assertEqual(float(rows[2]["late"]), 5e-324)

    def test_metrics_have_the_names_that_the_run_gives_them(self):
        losses = [json.loads(x)["metrics"]["train/loss"] for x in self.export("jsonl").splitlines()]
        with open(os.path.join(self.run_dir, "run.yaml"), "w") as f:
            f.write("metric_names: open_instruct\n")
        rows = [json.loads(x)["metrics"] for x in self.export("jsonl").splitlines()]
        self.assertEqual([r["training_step"] for r in rows], [1, 2, 3])
        self.assertEqual([r["loss/total_avg"] for r in rows], losses)
        self.assertTrue(all("train/loss" not in r and "metrics/reward" not in r for r in rows))
        rows = list(csv.DictReader(self.export("csv").splitlines()))
        self.assertEqual([float(r["loss/total_avg"]) for r in rows], losses)

    def test_evaluations_are_in_every_text_once(self):
        self.journal.evaluate(0, hard=0.125)
        self.journal.evaluate(2, easy=0.5, hard=0.25)
        rows = [json.loads(x) for x in self.export("jsonl").splitlines()]
        self.assertEqual([(r["step"], r["time"], r["metrics"]) for r in rows if "eval/hard" in r["metrics"]],
                         [(0, 200.5, {"eval/hard": 0.125}), (2, 202.5, {"eval/easy": 0.5, "eval/hard": 0.25})])
        self.assertEqual([r["step"] for r in rows if "train/loss" in r["metrics"]], [1, 2, 3])
        rows = list(csv.DictReader(self.export("csv").splitlines()))
        self.assertEqual([(r["step"], r["eval/easy"], r["eval/hard"]) for r in rows],
                         [("1", "", ""), ("2", "", ""), ("3", "", ""), ("0", "", "0.125"), ("2", "0.5", "0.25")])
        with open(os.path.join(self.run_dir, "run.yaml"), "w") as f:    # a set that has not been evaluated yet has its column
            f.write('eval_dataset: {"later": "later.jsonl"}\n')
        self.assertIn("eval/later", self.export("csv").splitlines()[0].split(","))
        rows = [json.loads(x) for x in self.export("jsonl", "--series", "eval/easy").splitlines()]
        self.assertEqual([r["metrics"] for r in rows if r["metrics"]], [{"eval/easy": 0.5}])

    def test_tensorboard_has_each_evaluation_once_also_when_it_goes_on(self):
        path = os.path.join(self.run_dir, "export/tensorboard/events.out.tfevents.rollcall")

        def tags():
            values = [fields(value) for event in events(path) for number, summary in event if number == 5 for _, value in fields(summary)]
            return [value[0][1] for value in values if value[0][1].startswith(b"eval/")]

        self.journal.evaluate(2, hard=0.25)
        for _ in range(2):
            self.export("tensorboard")
            self.assertEqual(tags(), [b"eval/hard"])
        self.journal.evaluate(3, hard=0.5)    # no step has come since
        self.export("tensorboard")
        self.assertEqual(tags(), [b"eval/hard"] * 2)
        cursor = os.path.join(self.run_dir, "export/tensorboard/cursor")
        with open(cursor) as f:
            words = f.read().split()
        self.assertEqual(words[6:], ["eval", "3"])

    def test_figures_of_nodes_are_printed_too(self):
        self.journal.sample('a,"b"', {"host/load": 1.5, "gpu/0/util_percent": math.nan})
        self.journal.sample("c", {"gpu/0/util_percent": 87.0})
        rows = [json.loads(x) for x in self.export("jsonl", "--nodes").splitlines()]
        self.assertEqual([(r["node"], r["figures"]) for r in rows], [('a,"b"', {"host/load": 1.5}), ("c", {"gpu/0/util_percent": 87})])
        self.assertGreater(rows[0]["time"], 1.7e9)
        rows = list(csv.DictReader(self.export("csv", "--nodes").splitlines()))
        self.assertEqual([(r["node"], r["host/load"], r["gpu/0/util_percent"]) for r in rows], [('a,"b"', "1.5", ""), ("c", "", "87")])
        rows = list(csv.DictReader(self.export("csv", "--nodes", "--series", "host/load").splitlines()))
        self.assertEqual([r["host/load"] for r in rows], ["1.5", ""])
        self.assertEqual(list(rows[0]), ["node", "time", "host/load"])

    def test_jsonl_holds_known_values_only(self):
        rows = [json.loads(x) for x in self.export("jsonl").splitlines()]
        self.assertEqual(rows[0]["metrics"], {"train/loss": 0.1, "metrics/reward": 1})
        self.assertEqual(rows[1]["metrics"], {"train/loss": 0.2})
        rows = [json.loads(x) for x in self.export("jsonl", "--series", "metrics/reward").splitlines()]
        self.assertEqual(rows[2]["metrics"], {"metrics/reward": 3})

    def test_tensorboard_has_the_histograms_of_each_step(self):
        values = {"metrics/reward_hist": [0.0, 1.0, 1.0, 0.25], "metrics/response_length_hist": [7.0, 7.0]}
        histograms.add(self.journal.db, values)
        self.export("tensorboard")
        last = events(os.path.join(self.run_dir, "export/tensorboard/events.out.tfevents.rollcall"))[-1]
        found = {}
        for _, value in fields(dict(last)[5]):
            parts = dict(fields(value))
            if 5 in parts:
                found[parts[1].decode()] = dict(fields(parts[5]))
        self.assertEqual(set(found), set(values))
        for name, v in values.items():
            counts, edges = histograms.spread(v)
            h = {k: struct.unpack(f"<{len(x) // 8}d", x) for k, x in found[name].items()}
            self.assertEqual([h[k][0] for k in range(1, 6)], [min(v), max(v), len(v), sum(v), sum(x * x for x in v)])
            self.assertEqual((h[6], h[7]), (tuple(edges[1:]), tuple(counts)))

    def test_tensorboard_sends_no_step_twice(self):
        path = os.path.join(self.run_dir, "export/tensorboard/events.out.tfevents.rollcall")
        self.export("tensorboard")
        with open(path, "ab") as f:
            f.write(b"half a record, as a kill leaves it")
        self.journal.rollback(1)
        for step in (2, 3, 4):
            self.journal.add(step, {"train/loss": 0.1 * step}, incarnation=2)
        self.export("tensorboard")
        got = events(path)
        self.assertEqual(got[0][1], (3, b"brain.Event:2"))
        self.assertEqual([dict(e)[2] for e in got[1:]], [1, 2, 3, 4])
        value = fields(dict(fields(dict(got[4])[5]))[1])
        self.assertEqual(value[0], (1, b"train/loss"))
        self.assertAlmostEqual(struct.unpack("<f", value[1][1])[0], 0.4, places=6)

    def test_openmetrics_serves_the_newest_values_to_clients_with_the_token(self):
        token = os.path.join(self.run_dir, "token")
        open(token, "w").write("s3cret\n")
        p = subprocess.Popen([ROLLCALL, "export", "openmetrics", self.run_dir, "--listen", "127.0.0.1:0", "--token-file", token],
                             stderr=subprocess.PIPE, text=True)
        try:
            url = p.stderr.readline().split()[-1]

            def get(auth):
                request = urllib.request.Request(url, headers={"Authorization": auth} if auth else {})
                return urllib.request.urlopen(request, timeout=60)
            for bad in (None, "Bearer wrong", "Bearer s3cret2", "Bearer "):
                with self.assertRaises(urllib.error.HTTPError) as e:
                    get(bad)
                self.assertEqual(e.exception.code, 401)
            self.journal.add(4, {"train/loss": 0.25, "time/step_s": 1.5})
            self.journal.evaluate(3, hard=0.75)
            with get("Bearer s3cret") as r:
                self.assertIn("application/openmetrics-text", r.headers["Content-Type"])
                page = r.read().decode()
            self.assertTrue(page.endswith("# EOF\n"))
            self.assertIn("\nrollcall_train_loss 0.25\n", page)
            self.assertIn("\nrollcall_eval_hard 0.75\n", page)
            self.assertIn("\nrollcall_optimizer_steps 4\n", page)
            self.assertIn("# UNIT rollcall_time_step_seconds seconds\n", page)
            self.assertIn("\nrollcall_time_step_seconds 1.5\n", page)
            self.assertIn("rollcall_up 0\n", page)
        finally:
            p.send_signal(signal.SIGTERM)
            self.assertEqual(p.wait(60), 0)
            p.stderr.close()

    def test_the_dashboards_fields_are_served_beside_it(self):
        """Names and structure of open-instruct's /api/status (its ActorManager)."""
        with open(os.path.join(self.run_dir, "run.yaml"), "w") as f:
            f.write("model: /m\nnum_generations: 4\ntrain_batch_size: 8\ntrain_minibatch_size: 8\ninference_batch_size: 8\n"
                    "inference_microbatch_size: 8\n")
        for step in range(10, 130):    # more than the window of 100
            self.journal.add(step, {"time/step_s": 1 if step < 30 else 2, "time/generate_s": 0.5, "rollout/tokens_total": 100.0 * step,
                                    "rollout/buffer_depth": 3, "env/count": 1, "env/groups_per_min": 2.5, "env/waiting": 7, "env/refused": 0})
        p = subprocess.Popen([ROLLCALL, "export", "openmetrics", self.run_dir, "--listen", "127.0.0.1:0"], stderr=subprocess.PIPE, text=True)
        try:
            url = p.stderr.readline().split()[-1].replace("/metrics", "/api/status")
            with urllib.request.urlopen(url, timeout=60) as r:
                self.assertEqual(r.headers["Content-Type"], "application/json")
                got = json.load(r)
        finally:
            p.kill()
            p.wait(60)
            p.stderr.close()
        self.assertTrue(got["should_stop"])    # nobody runs it
        self.assertRegex(got["last_updated"], r"^\d{4}-\d\d-\d\dT")
        self.assertEqual(got["queues"], {"Inference Results Queue": {"current": 3, "maxsize": 8}, "Prompt Queue": {"current": 7, "maxsize": None},
                                         "Evaluation Queue": {"current": None, "maxsize": None}})
        self.assertEqual(got["timing_stats"], {"avg_training_step_time": 2, "avg_batch_generation_time": 0.5, "training_step_count": 100,
                                               "batch_generation_count": 100})
        tokens = got["token_stats"]
        self.assertEqual((tokens["total_decode_tokens"], tokens["sample_count"], tokens["total_prefill_tokens"]), (12900, 100, None))
        self.assertGreater(tokens["decode_tokens_per_sec"], 0)
        self.assertEqual((got["concurrency_per_engine"], got["total_concurrency"], got["batch_size"], got["step"]), (32, 32, 32, 129))
        self.assertEqual(got["environments"], {"count": 1, "groups_per_min": 2.5, "waiting": 7, "age": None, "refused": 0, "full": None})

    def test_openmetrics_answers_among_hundreds_of_silent_and_slow_connections(self):
        self.journal.add(4, {"train/loss": 0.25})
        log = os.path.join(self.run_dir, "log")
        with open(log, "w") as out:
            p = subprocess.Popen([ROLLCALL, "export", "openmetrics", self.run_dir, "--listen", "127.0.0.1:0"], stderr=out,
                                 preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64)))
        held = []
        try:
            until = time.monotonic() + 60
            while not (said := re.search(r"http://127\.0\.0\.1:(\d+)/", open(log).read())):
                self.assertLess(time.monotonic(), until)
                time.sleep(0.05)
            port = int(said[1])
            for i in range(400):
                held.append(socket.create_connection(("127.0.0.1", port), timeout=60))
                with contextlib.suppress(OSError):    # it may have been sent away already
                    held[-1].sendall((b"", b"GET /metrics HTTP/1.1\r\nX: ", b"GET /metrics HTTP/1.1\r\n\r\n")[i % 3])
                if i % 50 == 49:
                    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as r:
                        self.assertIn("rollcall_train_loss 0.25\n", r.read().decode())
                    self.assertLess(len(os.listdir(f"/proc/{p.pid}/fd")), 60)
        finally:
            for s in held:
                s.close()
            p.send_signal(signal.SIGTERM)
            self.assertEqual(p.wait(60), 0)
        self.assertRegex(open(log).read(), r"connections? to '127\.0\.0\.1:0' (was|were) sent away, the last from 127\.0\.0\.1:.* too many at once")

    def test_the_dashboard_asks_only_for_what_is_served(self):
        root = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")
        with open(os.path.join(root, "examples/grafana.json")) as f:
            text = f.read()
        made = subprocess.run([sys.executable, os.path.join(root, "examples/grafana.py")], capture_output=True, text=True, check=True)
        self.assertEqual(text, made.stdout)
        table = subprocess.run([ROLLCALL, "metrics"], capture_output=True, text=True, check=True).stdout
        names = re.findall(r"^\| `([^`]+)` \|", table, re.M)
        figures = [name.replace("/N/", "/0/") for name in names if name.startswith(("host/", "gpu/")) and name != "host/mem_gib"]
        names = [name for name in names if name not in figures and "/N/" not in name]
        self.assertGreater(len(names), 40)
        self.assertGreater(len(figures), 40)
        self.journal.sample("node", {name: 1.0 for name in figures})
        self.journal.add(4, {name: 1.0 for name in names})
        p = subprocess.Popen([ROLLCALL, "export", "openmetrics", self.run_dir, "--listen", "127.0.0.1:0"], stderr=subprocess.PIPE,
                             text=True)
        try:
            with urllib.request.urlopen(p.stderr.readline().split()[-1], timeout=60) as r:
                served = set(re.findall(r"^(rollcall_\w+)(?:\{[^}]*\})? ", r.read().decode(), re.M))
        finally:
            p.send_signal(signal.SIGTERM)
            self.assertEqual(p.wait(60), 0)
            p.stderr.close()
        self.assertGreaterEqual(len(served), len(names) + len(figures))
        asked = set(re.findall(r"rollcall_\w+", text))
        self.assertEqual(asked - served, set())
        self.assertGreater(len(asked), 30)

    def test_openmetrics_labels_each_node_and_gpu_and_leaves_out_what_is_unknown(self):
        self.journal.sample("a\"b", {"host/load": 9.0})    # what a newer sample of the node does not say is not known any more
        self.journal.sample("a\"b", {"host/cpu_percent": 12.5, "gpu/0/util_percent": 87.0, "gpu/1/temp_celsius": 61.0})
        self.journal.sample("c", {"gpu/0/util_percent": 5.0, "gpu/0/lost": 0.0})
        self.journal.db.execute("INSERT INTO sample(node, wall_s, figures) VALUES('dead', ?, ?)",
                                (time.time() - 600, self.journal.pack({"host/cpu_percent": 50.0})))
        self.journal.db.commit()
        p = subprocess.Popen([ROLLCALL, "export", "openmetrics", self.run_dir, "--listen", "127.0.0.1:0"], stderr=subprocess.PIPE,
                             text=True)
        try:
            with urllib.request.urlopen(p.stderr.readline().split()[-1], timeout=60) as r:
                page = r.read().decode()
        finally:
            p.send_signal(signal.SIGTERM)
            self.assertEqual(p.wait(60), 0)
            p.stderr.close()
        lines = [x for x in page.splitlines() if x.startswith(("rollcall_host", "rollcall_gpu"))]
        self.assertEqual(lines, ['rollcall_host_cpu_percent{node="a\\"b"} 12.5',
                                 'rollcall_gpu_util_percent{node="a\\"b",gpu="0"} 87', 'rollcall_gpu_util_percent{node="c",gpu="0"} 5',
                                 'rollcall_gpu_temp_celsius{node="a\\"b",gpu="1"} 61', 'rollcall_gpu_lost{node="c",gpu="0"} 0'])
        self.assertEqual(page.count("# TYPE rollcall_gpu_util_percent gauge\n# UNIT rollcall_gpu_util_percent percent\n"), 1)

    def test_a_hyphen_is_standard_output(self):
        for kind in ("csv", "jsonl"):
            self.assertEqual(self.export(kind, "-o", "-"), self.export(kind))
        for kind in ("tensorboard", "wandb"):
            self.assertIn(f"'{kind}' is not written to standard output", self.export(kind, "-o", "-", code=2))
        self.assertFalse(os.path.exists("-"))

    def test_what_cannot_be_done_is_said_in_one_sentence(self):
        out = os.path.join(self.run_dir, "there")
        open(out, "w").write("mine")
        self.assertIn("cannot create", self.export("csv", "--out", out, code=1))
        self.assertEqual(open(out).read(), "mine")
        self.assertIn("unknown kind", self.export("xml", code=2))
        os.remove(out)
        for kind in ("csv", "jsonl"):
            self.assertIn("no 'metrics/rewrad'; did you mean 'metrics/reward'?", self.export(kind, "--series", "train/loss,metrics/rewrad", "--out", out, code=2))
            self.assertIn("the run has no 'eval/haard'", self.export(kind, "--series", "eval/haard", code=2))
            self.assertIn("names no metric", self.export(kind, "--series", ",", code=2))
        self.assertFalse(os.path.exists(out))
        self.assertEqual(self.export("csv", "--series", "train/entropy").splitlines()[0], "step,time,train/entropy")    # known, not there yet
        self.assertIn("HOST:PORT", self.export("openmetrics", code=2))


unittest.main()
