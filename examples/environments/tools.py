#!/usr/bin/env python3
"""Two tools as an environment, called as the model's chat template shows them: "python" runs a program, "search" asks a URL of yours.

    environment: "program:python3 examples/environments/tools.py --search http://127.0.0.1:8080/search?q={}"
    reward_type: boxed                  # or any other: it judges the last turn
    max_turns: 6

A turn with calls is answered with what they return, one message of role tool; a turn without one is the last. Programs run in rollcall's
sandbox (no network, no files, limits on time and memory: 'rollcall sandbox'). What the URL returns is cut to 2000 characters; {} in it
stands for the query."""
import argparse
import json
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request

LENGTH_MAX = 2000    # characters of a tool's answer


def function(name, description, argument, what):
    return {"type": "function", "function": {
        "name": name, "description": description,
        "parameters": {"type": "object", "properties": {argument: {"type": "string", "description": what}}, "required": [argument]}}}


class Python:
    tool = function("python", "Runs a Python program and returns what it prints.", "code", "the program")

    def __init__(self, rollcall, seconds):
        self.command = [rollcall, "sandbox", "--time", str(seconds)]
        self.process = None

    def call(self, arguments):
        if self.process is None or self.process.poll() is not None:
            self.process = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.process.stdin.write(json.dumps({"code": str(arguments.get("code", ""))}) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            return "error: the sandbox has ended"
        answer = json.loads(line)
        return answer["output"] if answer["status"] == "ok" else "error: " + answer["status"]


class Search:
    tool = function("search", "Searches, and returns what was found as text.", "query", "what to search for")

    def __init__(self, url, seconds):
        self.url, self.seconds = url, seconds

    def call(self, arguments):
        url = self.url.replace("{}", urllib.parse.quote(str(arguments.get("query", ""))))
        try:
            with urllib.request.urlopen(url, timeout=self.seconds) as answer:
                return answer.read(4 * LENGTH_MAX).decode("utf-8", "replace")
        except (urllib.error.URLError, OSError) as e:
            return f"error: {e}"


def step(tools, ask):
    if not ask["tool_calls"]:
        return {"done": True}
    said = []
    for call in ask["tool_calls"]:
        tool = tools.get(call["name"])
        if tool is None:
            said.append(f"error: there is no tool '{call['name']}'")
        else:
            said.append(tool.call(call["arguments"] if isinstance(call["arguments"], dict) else {})[:LENGTH_MAX])
    return {"observation": "\n".join(said), "role": "tool"}


def main():
    parser = argparse.ArgumentParser(description="Tools for a model: python and search.")
    parser.add_argument("--rollcall", default="build/release/rollcall", help="the program whose sandbox is used")
    parser.add_argument("--search", metavar="URL", help="with {} for the query; without it there is no search")
    parser.add_argument("--seconds", type=float, default=5, help="time limit of a call; keep environment_timeout_s above it")
    a = parser.parse_args()
    tools = {"python": Python(a.rollcall, a.seconds)}
    if a.search:
        tools["search"] = Search(a.search, a.seconds)
    for line in sys.stdin:
        ask = json.loads(line)
        answer = {}
        if ask["op"] == "reset":
            answer = {"tools": [tool.tool for tool in tools.values()]}
        elif ask["op"] == "step":
            answer = step(tools, ask)
        print(json.dumps({"id": ask["id"], **answer}), flush=True)


if __name__ == "__main__":
    main()
