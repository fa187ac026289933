"""What a run reports about its GPUs, with a library in NVML's place whose answers this test writes: status, journal, OpenMetrics and
wandb; what is unknown stays unknown, and a device that vanishes is said loudly.

tags: limit=300
"""
import json, os, re, sqlite3, sys, time, unittest, urllib.request

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from fake_wandb import FakeWandb
from run_tools import LIMIT, ROLLCALL, Run, Task, built

KEY = "k" * 40
LIBRARY = built("libfake_nvml.so")
FINE = """count 2
gpu.0.name NVIDIA H200
gpu.0.bus 00000000:5D:00.0
gpu.0.util 87
gpu.0.mem_util 41
gpu.0.mem_total 150754820096
gpu.0.mem_used 37688705024
gpu.0.temp 64
gpu.0.power_mw 512500
gpu.0.throttle 0x24
gpu.0.ecc_uncorrected 2
gpu.0.process {pid} 1000000 55
gpu.1.name NVIDIA H200
gpu.1.temp 40
"""


class Telemetry(unittest.TestCase):
    def until(self, what):
        end = time.monotonic() + LIMIT
        while not what():
            self.assertLess(time.monotonic(), end, "not in time\n" + self.run_.logs())
            time.sleep(0.05)

    def script(self, text):
        with open(self.path + ".new", "w") as f:
            f.write(text)
        os.rename(self.path + ".new", self.path)

    def status(self):
        p = self.run_.ctl("status", "--json")
        return json.loads(p.stdout) if p.returncode == 0 else {}

    def device(self, i):
        devices = self.status().get("devices") or []
        return devices[i] if len(devices) > i else {}

    def worker_pid(self):
        return self.run_.processes().get("worker cpu:0")

    def test_gpus_are_reported_everywhere_and_a_lost_one_loudly(self):
        task, server = Task(), FakeWandb(KEY)
        self.addCleanup(task.close)
        self.addCleanup(server.close)
        self.path = task.path("nvml")
        self.script(FINE.format(pid=1))
        os.environ.update(RC_NVML_LIBRARY=LIBRARY, FAKE_NVML=self.path, WANDB_API_KEY=KEY, WANDB_BASE_URL=server.url,
                          WANDB_X_FILE_STREAM_TRANSMIT_INTERVAL="0.05", WANDB_X_FILE_STREAM_RETRY_WAIT_MIN_SECONDS="0.05")
        self.run_ = Run(task, "gpus", task.run_file(max_steps=1000000, telemetry_s=0.1, wandb="online", wandb_host=True, save_interval=0,
                                                   metrics_listen="127.0.0.1:0"))
        self.addCleanup(self.run_.kill)
        self.until(self.worker_pid)
        self.script(FINE.format(pid=self.worker_pid()))
        self.until(lambda: self.device(0).get("figures", {}).get("run_mem_bytes") == 1000000)

        status = self.status()
        gpu, idle = status["devices"]
        self.assertEqual((gpu["name"], gpu["what"], gpu["state"], gpu["throttle"]), ("gpu 0", "NVIDIA H200", "ok", "power limit, heat"))
        self.assertEqual(gpu["figures"], {"util_percent": 87, "mem_util_percent": 41, "mem_percent": 25, "mem_used_bytes": 37688705024,
                                          "mem_total_bytes": 150754820096, "run_mem_bytes": 1000000, "run_util_percent": 55,
                                          "temp_celsius": 64, "power_watts": 512.5, "throttle_reasons": 0x24, "slowed": 1,
                                          "ecc_uncorrected": 2, "lost": 0})
        self.assertEqual(idle["figures"], {"temp_celsius": 40, "lost": 0})    # nothing else is known, so nothing else is there
        self.assertGreater(status["host"]["run_mem_bytes"], 1e6)
        worker = next(p for p in status["processes"] if p["name"] == "worker cpu:0")
        self.assertEqual((worker["gauges"]["gpu_mem_bytes"], worker["gauges"]["gpu_percent"]), (1000000, 55))
        text = self.run_.ctl("status").stdout
        self.assertIn("gpu 0 NVIDIA H200: busy 87 %, memory 35 GiB of 140 GiB, 64 C, 512 W, ?, clocks: power limit, heat", text)

        self.script(FINE.format(pid=self.worker_pid()).replace("gpu.0.ecc_uncorrected 2", "gpu.0.ecc_uncorrected 5") + "gpu.1.lost 1\n")
        self.until(lambda: self.device(1).get("state") == "lost")
        self.assertEqual(self.device(1)["figures"], {"lost": 1})
        self.until(lambda: server.runs and list(server.runs.values())[0].lines("wandb-events.jsonl")
                   and len(list(server.runs.values())[0].alerts) >= 2)
        with open(os.path.join(self.run_.dir, "logs/export-openmetrics.log")) as f:
            url = re.search(r"http://\S+", f.read()).group()
        self.until(lambda: 'gpu="1"} 1' in urllib.request.urlopen(url, timeout=60).read().decode().split("rollcall_gpu_lost", 1)[-1])
        with urllib.request.urlopen(url, timeout=60) as r:
            page = r.read().decode()
        node = status["node"]
        self.assertIn(f'rollcall_gpu_power_watts{{node="{node}",gpu="0"}} 512.5\n', page)
        self.assertNotIn("rollcall_gpu_fan_percent", page)
        self.assertIn("rollcall_host_mem_total_bytes{", page)
        self.assertEqual(self.run_.ctl("stop").returncode, 0)
        code, last = self.run_.wait()
        self.assertEqual((code, last["event"]), (3, "stopped"), self.run_.logs())

        with sqlite3.connect(f"file:{os.path.join(self.run_.dir, 'journal.db')}?mode=ro", uri=True) as db:
            alerts = [r[0] for r in db.execute("select text from event where kind = 'alert'")]
            n_sample, = db.execute("select count(*) from sample").fetchone()
            names = {r[0] for r in db.execute("select name from series")}
        self.assertEqual(len([a for a in alerts if "GPU 1 of" in a and "has fallen off the bus" in a]), 1, alerts)
        self.assertEqual(len([a for a in alerts if "GPU 0 of" in a and "3 new uncorrectable memory errors" in a]), 1, alerts)
        self.assertGreaterEqual(n_sample, 2)
        self.assertIn("gpu/0/power_watts", names)
        self.assertNotIn("gpu/1/power_watts", names)

        run = list(server.runs.values())[0]
        self.until(lambda: run.complete)
        server.check(run.name)
        lines = [json.loads(x) for x in run.lines("wandb-events.jsonl")]
        self.assertEqual(len(lines), n_sample)    # every sample once
        self.assertTrue(all(x["_wandb"] is True and x["_timestamp"] > 0 for x in lines))
        mine = [x for x in lines if "system.gpu.process.0.gpu" in x]
        self.assertTrue(mine)
        for name, want in (("gpu", 87), ("memory", 41), ("memoryAllocated", 25), ("memoryAllocatedBytes", 37688705024), ("temp", 64),
                           ("powerWatts", 512.5), ("uncorrectedMemoryErrors", {2, 5})):
            for x in lines:
                self.assertIn(x["system.gpu.0." + name], want if isinstance(want, set) else {want})
        for name in ("gpu", "memory", "memoryAllocated", "memoryAllocatedBytes", "temp", "powerWatts"):
            self.assertEqual(mine[0]["system.gpu.process.0." + name], mine[0]["system.gpu.0." + name])
        self.assertTrue(all("system.gpu.1.powerWatts" not in x and "system.gpu.0.fanSpeed" not in x for x in lines))
        for name in ("system.memory_percent", "system.proc.memory.rssMB", "system.disk./.usagePercent"):
            self.assertGreater(lines[-1][name], 0)
        self.assertEqual(sorted("fallen off" in a["text"] for a in run.alerts), [False, True])


unittest.main()
