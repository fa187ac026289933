#!/usr/bin/python3
"""rollcall pull against a local server that behaves like the hub: API, redirects to another host, ranges, tokens, failures."""
import hashlib, http.server, json, os, shutil, subprocess, tempfile, threading, unittest, urllib.parse

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
ROLLCALL = os.path.abspath(os.environ.get("ROLLCALL", os.path.join(ROOT, "build/release/rollcall")))
COMMIT = "0123456789abcdef0123456789abcdef01234567"
TOKEN = "hf_secret"
FILES = {
    "config.json": b'{"model_type": "qwen2"}', "model.safetensors": bytes(range(256)) * 4000, "tokenizer.json": b"{}" * 50, "empty.txt": b"",
    "sub/dir/more.json": b"[1]", "a b#c?.json": b"odd name", "pytorch_model.bin": b"not wanted", "README.md": b"not wanted either",
}
LARGE = {"model.safetensors"}


def content(path):
    with open(path, "rb") as f:
        return f.read()


def blob_name(name, data):
    return hashlib.sha256(data).hexdigest() if name in LARGE else hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


class Hub:
    """Two servers: the hub, and the one that holds its large files. Switches make them misbehave."""

    def __init__(self):
        self.log, self.files, self.extra, self.commit = [], dict(FILES), [], COMMIT
        self.dataset = False    # serve the files as a data set
        self.private = self.no_range = self.wrong = False
        self.cut = self.fail = 0    # how many answers to cut short, to fail with 503
        hub = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *a):
                pass

            def give(self, status, body=b"", **headers):
                self.send_response(status)
                for k, v in headers.items():
                    self.send_header(k.replace("_", "-"), v)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def data(self, name):
                data, status, headers = hub.files[name], 200, {}
                if hub.wrong:
                    data = b"x" + data[1:]
                span = self.headers.get("Range")
                if span and not hub.no_range:
                    begin = int(span.split("=")[1].split("-")[0])
                    headers["Content_Range"] = f"bytes {begin}-{len(data) - 1}/{len(data)}"
                    data, status = data[begin:], 206
                if hub.cut > 0 and len(data) > 1000:
                    hub.cut -= 1
                    self.send_response(status)
                    self.send_header("Content-Length", str(len(data)))
                    self.end_headers()
                    self.wfile.write(data[:len(data) // 2])
                    self.close_connection = True
                    return
                self.give(status, data, **headers)

            def do_GET(self):
                url = urllib.parse.urlsplit(self.path)
                path = urllib.parse.unquote(url.path)
                hub.log.append((self.server.kind, path, self.headers.get("Authorization"), self.headers.get("Range")))
                if self.server.kind == "store":
                    return self.data(path[1:])
                if hub.private and self.headers.get("Authorization") != "Bearer " + TOKEN:
                    return self.give(401)
                if hub.fail > 0:
                    hub.fail -= 1
                    return self.give(503)
                path = path[len("/datasets"):] if hub.dataset and path.startswith("/datasets/") else path
                if path in (f"/api/{hub.dataset and 'datasets' or 'models'}/org/model/revision/main", "/api/models/org/model/revision/v1/x", f"/api/models/org/model/revision/{COMMIT}"):
                    siblings = []
                    for name, data in hub.files.items():
                        s = {"rfilename": name, "size": len(data), "blobId": hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()}
                        if name in LARGE:
                            s["lfs"] = {"sha256": blob_name(name, data), "size": len(data), "pointerSize": 130}
                        siblings.append(s)
                    return self.give(200, json.dumps({"sha": hub.commit, "siblings": siblings + hub.extra}).encode())
                prefix = f"/org/model/resolve/{COMMIT}/"
                if not path.startswith(prefix) or path[len(prefix):] not in hub.files:
                    return self.give(404)
                name = path[len(prefix):]
                if name in LARGE:
                    return self.give(302, Location=f"http://127.0.0.1:{hub.store.server_port}/{name}")
                self.data(name)

        self.hub = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.store = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.hub.kind, self.store.kind = "hub", "store"
        for s in (self.hub, self.store):
            s.daemon_threads = True
            threading.Thread(target=s.serve_forever, daemon=True).start()

    def close(self):
        for s in (self.hub, self.store):
            s.shutdown()
            s.server_close()


class PullTest(unittest.TestCase):
    def setUp(self):
        self.hub, self.home = Hub(), tempfile.mkdtemp(prefix="rollcall-pull-")
        self.repo = os.path.join(self.home, "hub", "models--org--model")

    def tearDown(self):
        self.hub.close()
        shutil.rmtree(self.home)

    def pull(self, *args, ok=True, **env):
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "HUGGING"))}
        p = subprocess.run([ROLLCALL, "pull", *args], capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL,
                           env={**clean, "HF_HOME": self.home, "HF_ENDPOINT": f"http://127.0.0.1:{self.hub.hub.server_port}",
                                "no_proxy": "*", **env})
        self.assertEqual(p.returncode == 0, ok, p.stderr)
        return p

    def check(self, directory, names=("config.json", "model.safetensors", "tokenizer.json", "empty.txt", "sub/dir/more.json", "a b#c?.json")):
        self.assertEqual(directory, os.path.join(self.repo, "snapshots", COMMIT))
        found = sorted(os.path.relpath(os.path.join(d, f), directory) for d, _, fs in os.walk(directory) for f in fs)
        self.assertEqual(found, sorted(names))
        for name in names:
            path = os.path.join(directory, name)
            self.assertEqual(content(path), FILES[name])
            self.assertEqual(os.path.realpath(path), os.path.realpath(os.path.join(self.repo, "blobs", blob_name(name, FILES[name]))))
            self.assertFalse(os.path.isabs(os.readlink(path)))

    def test_a_model_lands_in_the_cache_as_huggingface_lays_it_out_and_is_not_fetched_twice(self):
        p = self.pull("org/model")
        self.check(p.stdout.strip())
        self.assertEqual(content(os.path.join(self.repo, "refs/main")), COMMIT.encode())
        self.assertIn("model.safetensors: 1024000 bytes", p.stderr)
        self.assertEqual(os.listdir(os.path.join(self.repo, "blobs")), [b for b in os.listdir(os.path.join(self.repo, "blobs")) if "." not in b])
        self.hub.log.clear()
        self.check(self.pull("org/model").stdout.strip())
        self.assertEqual([path for _, path, _, _ in self.hub.log], ["/api/models/org/model/revision/main"])

    def test_a_data_set_s_split_is_fetched_and_found_by_its_name(self):
        self.hub.dataset = True
        self.repo = os.path.join(self.home, "hub", "datasets--org--model")
        readme = b"---\nconfigs:\n- config_name: main\n  data_files:\n  - {split: train, path: main/train-*}\n  - {split: test, path: main/test.csv}\n---\n"
        rows = [b'{"question": "1+%d", "answer": "%d"}\n' % (i, i + 1) for i in range(4)]
        FILES_OF = {"README.md": readme, "main/train-00000-of-00002.jsonl": rows[0] + rows[1], "main/train-00001-of-00002.jsonl": rows[2] + rows[3],
                    "main/test.csv": b"question,answer\n2,2\n", "other.bin": b"not data", ".hidden.json": b"{}", "script.py": b"never run"}
        self.hub.files = FILES_OF

        def found(directory):
            return sorted(os.path.relpath(os.path.join(d, f), directory) for d, _, fs in os.walk(directory) for f in fs)
        directory = self.pull("--dataset", "org/model:main:train").stdout.strip()
        self.assertEqual(directory, os.path.join(self.repo, "snapshots", COMMIT))
        self.assertEqual(found(directory), ["README.md", "main/train-00000-of-00002.jsonl", "main/train-00001-of-00002.jsonl"])
        self.assertEqual(content(os.path.join(directory, "main/train-00001-of-00002.jsonl")), rows[2] + rows[3])
        self.hub.log.clear()
        self.pull("--dataset", "org/model")
        self.assertEqual(found(directory), ["README.md", "main/test.csv", "main/train-00000-of-00002.jsonl", "main/train-00001-of-00002.jsonl"])
        self.assertEqual([path for _, path, _, _ in self.hub.log][1:], [f"/datasets/org/model/resolve/{COMMIT}/main/test.csv"])
        self.assertEqual(self.pull("--dataset", "org/model:test", "--offline").stdout.strip(), directory)
        self.assertIn("has no split 'dev'; there are train, test", " ".join(self.pull("--dataset", "org/model:main:dev", ok=False).stderr.split()))
        self.assertIn("'org' cannot be the name of a data set", self.pull("--dataset", "org", ok=False).stderr)

    def test_the_cache_serves_names_without_the_hub(self):
        self.pull("org/model")
        self.hub.log.clear()
        self.check(self.pull("org/model", "--offline").stdout.strip())
        self.check(self.pull("org/model", HF_HUB_OFFLINE="1").stdout.strip())
        self.check(self.pull("org/model", "--offline", "--revision", COMMIT).stdout.strip())
        self.assertIn("not in the cache", self.pull("org/other", "--offline", ok=False).stderr)
        self.assertEqual(self.hub.log, [])

    def test_other_revisions_and_chosen_files(self):
        d = self.pull("org/model", "*.bin", "config.json", "--revision", "v1/x").stdout.strip()
        self.check(d, ("config.json", "pytorch_model.bin"))
        self.assertEqual(content(os.path.join(self.repo, "refs/v1/x")), COMMIT.encode())
        self.check(self.pull("org/model", "--all").stdout.strip(), tuple(FILES))
        self.assertIn("none of the files", self.pull("org/model", "*.gguf", ok=False).stderr)

    def test_the_token_goes_to_the_hub_and_nowhere_else(self):
        self.hub.private = True
        p = self.pull("org/model", ok=False)
        self.assertIn("set HF_TOKEN", p.stderr)
        self.assertFalse(os.path.exists(os.path.join(self.repo, "refs/main")))
        with open(os.path.join(self.home, "token"), "w") as f:
            f.write(TOKEN + "\n")
        self.check(self.pull("org/model").stdout.strip())
        self.hub.log.clear()
        shutil.rmtree(self.repo)
        self.assertIn("does not open it", self.pull("org/model", ok=False, HF_TOKEN="hf_other").stderr)
        self.hub.log.clear()
        self.check(self.pull("org/model", HF_TOKEN=TOKEN).stdout.strip())
        self.assertEqual({auth for kind, _, auth, _ in self.hub.log if kind == "hub"}, {"Bearer " + TOKEN})
        self.assertEqual({auth for kind, _, auth, _ in self.hub.log if kind == "store"}, {None})
        self.hub.log.clear()
        shutil.rmtree(self.repo)
        elsewhere = f"http://localhost@127.0.0.1:{self.hub.hub.server_port}"    # the host is what comes after @
        self.pull("org/model", ok=False, HF_TOKEN=TOKEN, HF_ENDPOINT=elsewhere)
        self.assertTrue(self.hub.log)
        self.assertNotIn("Bearer " + TOKEN, {auth for _, _, auth, _ in self.hub.log})

    def test_cut_answers_and_busy_servers_are_asked_again_for_the_rest(self):
        self.hub.cut, self.hub.fail = 2, 1
        self.check(self.pull("org/model").stdout.strip())
        spans = [r for _, path, _, r in self.hub.log if path == "/model.safetensors"]
        self.assertEqual(spans, [None, "bytes=512000-", "bytes=768000-"])

    def test_a_part_of_an_earlier_run_is_resumed_or_begun_again(self):
        for no_range, had, spans in ((False, FILES["model.safetensors"][:1000], ["bytes=1000-"]), (True, FILES["model.safetensors"][:1000], ["bytes=1000-"]),
                                     (False, FILES["model.safetensors"] + b"too long", [None]), (False, FILES["model.safetensors"], [])):
            shutil.rmtree(self.repo, ignore_errors=True)
            os.makedirs(os.path.join(self.repo, "blobs"))
            with open(os.path.join(self.repo, "blobs", blob_name("model.safetensors", FILES["model.safetensors"]) + ".incomplete"), "wb") as f:
                f.write(had)
            self.hub.no_range = no_range
            self.hub.log.clear()
            self.check(self.pull("org/model").stdout.strip())
            self.assertEqual([r for kind, _, _, r in self.hub.log if kind == "store"], spans)

    def test_a_file_that_is_not_what_its_hash_says_is_not_kept(self):
        self.hub.wrong = True
        self.assertIn("instead of", self.pull("org/model", "model.safetensors", ok=False).stderr)
        self.assertEqual(os.listdir(os.path.join(self.repo, "blobs")), [])
        self.assertEqual(os.listdir(os.path.join(self.repo, "snapshots")), [])
        self.hub.wrong = False
        self.check(self.pull("org/model", "model.safetensors").stdout.strip(), ("model.safetensors",))

    def test_a_hostile_hub_cannot_write_outside_the_cache(self):
        for name in ("../evil.json", "/evil.json", "a/../../evil.json", "a//b.json", "evil\n.json", "..", "x/."):
            self.hub.extra = [{"rfilename": name, "size": 1, "blobId": "a" * 40}]
            p = self.pull("org/model", "--all", ok=False)
            self.assertIn("not a safe file name", p.stderr)
        self.hub.extra = [{"rfilename": "x.json", "size": 1, "blobId": "../../x"}]
        self.assertIn("no size and hash", self.pull("org/model", ok=False).stderr)
        self.hub.extra, self.hub.commit = [], "../../../../x"
        self.assertIn("names no commit", self.pull("org/model", ok=False).stderr)
        self.assertEqual(sorted(os.listdir(self.home)), ["hub"])

    def test_wrong_names_and_addresses_are_refused(self):
        for name in ("../x", "a/b/c", "org/", "a--b", "-x/y", "org/model?x"):
            self.assertEqual(self.pull("--", name, ok=False).returncode, 2, name)
        self.assertIn("cannot be a revision", self.pull("org/model", "--revision", "../x", ok=False).stderr)
        self.assertIn("has no 'org/model' at revision 'nope'", self.pull("org/model", "--revision", "nope", ok=False).stderr)
        self.assertIn("not an http", self.pull("org/model", ok=False, HF_ENDPOINT="ftp://x").stderr)


if __name__ == "__main__":
    unittest.main()
