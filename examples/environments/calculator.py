#!/usr/bin/env python3
"""A calculator as a tool: the model may send it an expression, reads the value, and gives its answer in \\boxed{}.

    environment: "program:python3 examples/environments/calculator.py"
A turn without \\boxed{} goes to the calculator: its tool call (function "calculator", argument "expression") where there is one, else its
first line, so that a model which knows no form of tool calls can use it as well. The row has the "expression" that is asked for,
or the right answer as "gt_answer".

A right answer earns 10. So that a model which starts from nothing finds the way, a call earns up to 2 by how much of the row's
expression it begins with, once, and a wrong answer after the right call up to 2 by how much of the right one it begins with."""
import ast
import json
import operator
import os
import re
import sys

TOOLS = [{"type": "function", "function": {
    "name": "calculator", "description": "The value of an arithmetic expression.",
    "parameters": {"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]}}}]
OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.USub: operator.neg}
episodes = {}    # by episode: {"row", "value", "called", "right"}


def value(text):
    """Of an expression of whole numbers with + - * and brackets; ValueError for anything else."""
    def walk(node):
        if isinstance(node, ast.Constant) and isinstance(node.value, int):
            return node.value
        if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
            return OPERATORS[type(node.op)](walk(node.left), walk(node.right))
        if isinstance(node, ast.UnaryOp) and type(node.op) in OPERATORS:
            return OPERATORS[type(node.op)](walk(node.operand))
        raise ValueError("only whole numbers, + - * and brackets")
    if len(text) > 100:
        raise ValueError("too long")
    try:
        return walk(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, RecursionError) as e:
        raise ValueError("not an expression") from e


def alike(text, want):
    """The share of `want` that text begins with."""
    return len(os.path.commonprefix([text, want])) / max(len(want), 1)


def reset(ask):
    row = ask["row"]
    right = str(value(row["expression"])) if "expression" in row else str(row["gt_answer"])
    episodes[ask["episode"]] = {"expression": row.get("expression"), "right": right, "called": False, "asked": False}
    return {"tools": TOOLS}    # a chat template that knows tools shows them


def step(ask):
    me = episodes[ask["episode"]]
    boxed = re.findall(r"\\boxed\{([^{}]*)\}", ask["content"])
    if boxed:
        good = boxed[-1].strip() == me["right"]
        reward = 0 if not me["asked"] else 10 if good else 2 * alike(boxed[-1].strip(), me["right"])
        return {"reward": reward, "ans_acc": int(good and me["asked"]), "done": True}
    calls = [c["arguments"].get("expression", "") for c in ask["tool_calls"] if c["name"] == "calculator" and isinstance(c["arguments"], dict)]
    sent = str(calls[0]) if calls else ask["content"].split("\n")[0].split("=")[0]
    reward = 0
    if me["expression"] and not me["called"]:
        reward = 2 * alike(sent, me["expression"])
    me["called"] = True
    try:
        said = str(value(sent))
    except ValueError as e:
        return {"observation": str(e), "role": "tool" if calls else "user", "reward": reward, "ans_acc": 0}
    me["asked"] = me["asked"] or said == me["right"]
    return {"observation": said, "role": "tool" if calls else "user", "reward": reward, "ans_acc": 0}


for line in sys.stdin:
    ask = json.loads(line)
    answer = {"reset": reset, "step": step}.get(ask["op"], lambda _: {})(ask)
    if ask["op"] == "end" or answer.get("done"):
        episodes.pop(ask["episode"], None)
    print(json.dumps({"id": ask["id"], **answer}), flush=True)
