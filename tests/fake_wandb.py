"""A wandb server that remembers everything and can be told to misbehave; on loopback, port chosen by the system.

What it answers and checks is written down from the traffic of the real client (0.28.2). Faults: a list of dicts taken one by
one by the requests whose 'path' they match ('graphql', 'file_stream' or 'storage', where files are PUT): {'path', 'status',
'headers', 'body'} answers so without storing; {'drop': 'before'|'after'} closes the connection without an answer, before or after
storing; {'half': True} stores and sends half an answer; {'slow': SECONDS}; {'hold': EVENT} waits until it is set; {'complete': True} meets only a run's last request; {'reply_headers': {...}} goes along with a good answer.
'stopped': somebody has pressed Stop on the run's page. 'outage', while it is true, refuses everything with 503. 'features' are those the server says it has.
"""
import base64, gzip, json, math, threading, urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
import time

LINE_MAX = 10383360


class Run:
    def __init__(self, name):
        self.name, self.files, self.config, self.upserts, self.alerts = name, {}, {}, [], []
        self.complete, self.exitcode, self.uploaded, self.requests = False, None, [], []

    def lines(self, file):
        d = self.files.get(file, {})
        return [d[k] for k in sorted(d)]

    def history(self):
        return [json.loads(x) for x in self.lines("wandb-history.jsonl")]

    def summary(self):
        return json.loads(self.files["wandb-summary.json"][0])


class FakeWandb:
    def __init__(self, key="k" * 40, certificate=None):
        self.key, self.runs, self.wrong, self.faults, self.operations, self.storage = key, {}, [], [], [], {}
        self.features, self.outage, self.stopped, self.n_requests, self.n_refused, self.n_packed = [], False, False, 0, 0, 0
        self.lock = threading.Lock()
        fake = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *a):
                pass

            def do_POST(self):
                fake.handle(self, "POST")

            def do_PUT(self):
                fake.handle(self, "PUT")

        class Server(ThreadingHTTPServer):
            def handle_error(self, *a):    # a killed client breaks its pipe
                pass
        self.server = Server(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        scheme = "http"
        if certificate:
            import ssl
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
            scheme = "https"
        self.url = f"{scheme}://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()

    def complain(self, text):
        self.wrong.append(text)

    def run(self, name):
        return self.runs.setdefault(name, Run(name))

    def fault_for(self, path, body=b""):
        with self.lock:
            for i, f in enumerate(self.faults):
                if f.get("path", "file_stream") in path and (not f.get("complete") or b'"complete":true' in body):
                    return self.faults.pop(i)
        return {}

    def handle(self, h, method):
        n = int(h.headers.get("Content-Length") or 0)
        body = h.rfile.read(n)
        self.n_requests += 1
        if self.outage:
            self.n_refused += 1
            return self.answer(h, 503, b"{}")
        path = urllib.parse.urlsplit(h.path).path
        if h.headers.get("Content-Encoding") == "gzip":
            if "FILESTREAM_GZIP" not in self.features or not path.endswith("/file_stream"):
                self.complain("gzip where it was not offered")
            body = gzip.decompress(body)
            self.n_packed += 1
        if path.startswith("/storage/"):
            return self.put(h, path, body)
        want = "Basic " + base64.b64encode(f"api:{self.key}".encode()).decode()
        if h.headers.get("Authorization") != want:
            return self.answer(h, 401, b'{"error":"user is not logged in"}')
        fault = self.fault_for(path, body)
        if fault.get("slow"):
            time.sleep(fault["slow"])
        if fault.get("hold"):
            fault["hold"].wait()
        if fault.get("drop") == "before":
            h.close_connection = True
            h.connection.close()
            return None
        if fault.get("status"):
            return self.answer(h, fault["status"], fault.get("body", "{}").encode(), fault.get("headers"))
        if not (h.headers.get("Content-Type") or "").startswith("application/json"):
            self.complain("Content-Type is not application/json")
        with self.lock:
            if path.endswith("/graphql"):
                reply = self.graphql(json.loads(body))
            elif path.endswith("/file_stream"):
                reply = self.stream(path, json.loads(body), fault)
            else:
                return self.answer(h, 404, b"{}")
        data = json.dumps(reply).encode()
        if fault.get("drop") == "after":
            h.close_connection = True
            h.connection.close()
            return None
        if fault.get("half"):
            h.send_response(200)
            h.send_header("Content-Length", str(len(data) + 100))
            h.end_headers()
            h.wfile.write(data[: len(data) // 2])
            h.close_connection = True
            return None
        return self.answer(h, 200, data, fault.get("reply_headers"))

    def put(self, h, path, body):
        fault = self.fault_for(path)
        if h.headers.get("Authorization"):
            self.complain("a key was sent to an upload address")
        if fault.get("status"):
            return self.answer(h, fault["status"], b"", fault.get("headers"))
        if fault.get("drop") != "before":
            self.storage[path] = body
        if fault.get("drop"):
            h.close_connection = True
            h.connection.close()
            return None
        return self.answer(h, 200, b"")

    @staticmethod
    def answer(h, status, body, headers=None):
        h.send_response(status)
        for k, v in (headers or {}).items():
            h.send_header(k, v)
        h.send_header("Content-Length", str(len(body)))
        h.end_headers()
        h.wfile.write(body)

    def graphql(self, q):
        name = q.get("operationName") or q["query"].split("(")[0].split("{")[0].split()[1]
        v = q.get("variables") or {}
        self.operations.append(name)
        if name == "UpsertBucket":
            run = self.run(v["name"])
            run.upserts.append(v)
            if v.get("config"):
                run.config.update(json.loads(v["config"]))
            return {"data": {"upsertBucket": {"bucket": {
                "id": f"storage-{run.name}", "name": run.name, "displayName": v.get("displayName") or "fake-1", "description": None,
                "config": None, "sweepName": None, "historyLineCount": len(run.lines("wandb-history.jsonl")),
                "project": {"id": "p", "name": v.get("project") or "uncategorized",
                            "entity": {"id": "e", "name": v.get("entity") or "ent"}}}, "inserted": len(run.upserts) == 1}}}
        if name == "NotifyScriptableRunAlert":
            self.run(v["runName"]).alerts.append(v)
            return {"data": {"notifyScriptableRunAlert": {"success": True}}}
        if name == "ServerFeaturesQuery":
            return {"data": {"serverInfo": {"features": [{"name": f, "isEnabled": True} for f in self.features]}}}
        if name == "RunResumeStatus":
            run = self.runs.get(v["name"])
            bucket = run and {"id": f"storage-{run.name}", "name": run.name, "summaryMetrics": "{}", "displayName": "fake-1",
                              "logLineCount": len(run.lines("output.log")), "historyLineCount": len(run.lines("wandb-history.jsonl")),
                              "eventsLineCount": len(run.lines("wandb-events.jsonl")), "config": json.dumps(run.config), "tags": [],
                              "historyTail": json.dumps(run.lines("wandb-history.jsonl")[-1:]), "notes": None, "eventsTail": "[]",
                              "wandbConfig": json.dumps({"t": run.config.get("_wandb", {}).get("value", {}).get("t", {})})}
            return {"data": {"model": {"id": "p", "name": v["project"], "entity": {"id": "e", "name": "ent"}, "bucket": bucket}}}
        if name == "Viewer":
            return {"data": {"viewer": {"id": "u1", "entity": "ent", "username": "u", "email": "u@x", "flags": "{}",
                                        "teams": {"edges": []}}}}
        if name == "CreateRunFiles":
            files = [{"name": f, "uploadUrl": f"{self.url}/storage/{v['run'] if 'run' in v else 'r'}/{f}"} for f in v["files"]]
            return {"data": {"createRunFiles": {"runID": "storage-x", "uploadHeaders": [], "files": files}}}
        return {"data": None, "errors": [{"message": "unknown operation"}]}

    def stream(self, path, body, fault):
        run = self.run(urllib.parse.unquote(path.split("/")[-2]))
        run.requests.append(time.monotonic())
        if not run.upserts:
            self.complain("a stream for a run that was never made")
        if run.complete and body:
            self.complain("data after complete")
        for file, chunk in (body.get("files") or {}).items():
            stored, offset = run.files.setdefault(file, {}), chunk["offset"]
            if offset > len(stored):
                self.complain(f"{file}: a gap before line {offset}, {len(stored)} stored")
            for i, line in enumerate(chunk["content"]):
                if len(line) > LINE_MAX:
                    self.complain(f"{file}: a line of {len(line)} bytes")
                stored[offset + i] = line
        run.uploaded += body.get("uploaded", [])
        if body.get("complete"):
            run.complete, run.exitcode = True, body["exitcode"]
        reply = {"limits": {}}
        if self.stopped:
            reply["stopped"] = True
        return reply

    def check(self, name):
        """Check what must hold for every run that was sent; raises AssertionError."""
        run = self.runs[name]
        assert not self.wrong, self.wrong
        last = -1
        for row in run.history():
            assert row["_step"] > last, (row["_step"], last)
            last = row["_step"]
            assert isinstance(row["_runtime"], (int, float)) and row["_timestamp"] > 0
            for v in row.values():
                assert not isinstance(v, float) or math.isfinite(v) or True
        return run
