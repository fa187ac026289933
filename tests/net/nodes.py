#!/usr/bin/python3
"""nodes.py [NODES [SECONDS]]: what a run's head has to do for NODES nodes (1000), as 'rollcall simulate --join' measures it.

A real run of a tiny model on this machine, first paused and then while it trains; the nodes come from this machine, too. Exit 1 when the head
uses more than one core for 1000 nodes, or 1 of 100 requests for work waits for more than 5 ms, while the run is paused: then nothing else
needs the processors. The second figures say what training beside it changes; on a machine with few cores that is a lot."""
import os
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "integration"))
import run_tools


def measure(port, token, nodes, seconds):
    return subprocess.call([run_tools.ROLLCALL, "simulate", "--join", f"tcp://127.0.0.1:{port}", "--token-file", token, "--nodes", nodes,
                            "--seconds", seconds])


def main():
    nodes, seconds = (sys.argv[1:] + ["1000", "30"][len(sys.argv) - 1:])[:2]
    task, port = run_tools.Task(), run_tools.free_port()
    run = run_tools.Run(task, "head", task.run_file(listen=f"127.0.0.1:{port}", devices="cpu:0"), ["--max-steps", "1000000"])
    token = os.path.join(run.dir, "sock/join")
    try:
        while not os.path.exists(token) and run.process.poll() is None:
            time.sleep(0.05)
        run.wait_step(1)
        print(f"{nodes} nodes, {os.cpu_count()} processors, the load before is {os.getloadavg()[0]:.1f}", flush=True)
        if run.ctl("pause", "drain").returncode != 0:
            sys.exit(f"nodes.py: the run is not paused\n{run.logs()}")
        print("== while the run is paused", flush=True)
        code = measure(port, token, nodes, seconds)
        run.ctl("resume")
        print("== while the run trains", flush=True)
        measure(port, token, nodes, seconds)
    finally:
        run.kill()
        task.close()
    return code


if __name__ == "__main__":
    sys.exit(main())
