#!/usr/bin/env python3
"""Compare rollcall's chat templates with jinja2, set up as transformers sets it up, and make the fixture of the unit test.

Needs the PyPI package jinja2 (3.1.6 was used). The templates in tests/golden/template are short re-creations of the published
ones, in our own words where they hold prose.

  make_templates.py compare [--n N]      N generated conversations a template, 4 N generated expressions and 4 N format strings and calls
  make_templates.py published DIR...     N conversations for every .jinja below folders, such as a checkout of other people's templates
  make_templates.py fixture              tests/golden/template/cases.jsonl (kept in git)
"""
import argparse, datetime, glob, json, os, random, subprocess, sys, tempfile
import jinja2, jinja2.ext, jinja2.nodes, jinja2.sandbox

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
ROLLCALL = os.environ.get("ROLLCALL", os.path.join(ROOT, "build/release/rollcall"))
FOLDER = os.path.join(HERE, "template")
NOW = datetime.datetime(2025, 3, 9)


class Generation(jinja2.ext.Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("text"), [], [], body).set_lineno(line)

    def text(self, caller):
        return caller()


def environment():
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                                       extensions=[Generation, jinja2.ext.loopcontrols])

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    env.filters["tojson"] = tojson
    env.filters["from_json"] = env.filters["fromjson"] = json.loads    # as vLLM and llama.cpp have it
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda f: NOW.strftime(f)
    return env


def reference(env, source, variables):
    try:
        return env.from_string(source).render(**variables)
    except Exception as e:    # all that Python may raise
        return e


WORDS = ["Hello", " what is 2+2? ", "héllo wörld", "\n\nlines\nof text\n", "<tool_response>x</tool_response>", "", "你好", "👋", "a'b\"c\\d",
         "<think>\nhm\n</think>\n\nanswer", "no <b> & html", "\t tabs\u00a0", "\x1f", "x" * 50, "</think>", "{{ not a tag }}", "\u2028"]


def text(r):
    return "".join(r.choice(WORDS) for _ in range(r.randint(1, 3)))


def tool(r):
    props = {r.choice(["city", "n", "unit", "größe"]): r.choice(
        [{"type": "string", "description": text(r)}, {"type": "integer"}, {"type": ["string", "null"]}, {"enum": [1, "a", None, 1.5, True]},
         {"type": "array", "items": {"type": "number"}}]) for _ in range(r.randint(0, 3))}
    return {"type": "function", "function": {"name": r.choice(["get_weather", "add"]), "description": text(r),
            "parameters": {"type": "object", "properties": props, "required": list(props)[:1]}, **({"return": {"type": "string"}} if r.random() < .3 else {})}}


def conversation(r):
    messages = []
    if r.random() < 0.5:
        messages.append({"role": "system", "content": text(r)})
    turns = ["user", "assistant"] * 4
    for role in turns[:r.randint(1, 7)] if r.random() < 0.7 else [r.choice(["user", "assistant", "tool", "system"]) for _ in range(r.randint(1, 6))]:
        m = {"role": role, "content": text(r)}
        k = r.random()
        if role == "assistant" and k < 0.3:
            m["tool_calls"] = [{"type": "function", "id": "abcdefgh1"[:r.choice([9, 9, 8])], "function": {
                "name": "add", "arguments": r.choice([{"a": 1, "b": [1.5, None, "é"]}, '{"a": 1}', {}])}} for _ in range(r.randint(1, 2))]
            if r.random() < .3:
                m["content"] = r.choice([None, ""])
        elif role == "assistant" and k < 0.4:
            m["reasoning_content"] = text(r)
        elif role == "tool":
            m["tool_call_id"] = "abcdefgh1"
            if k < 0.3:
                m["content"] = {"content": text(r), "n": 3}
        elif role == "user" and k < 0.15:
            m["content"] = [{"type": "text", "text": text(r)}, {"type": "image"}]
        messages.append(m)
        if role == "assistant" and "tool_calls" in m and r.random() < .7:
            messages += [{"role": "tool", "content": text(r), "tool_call_id": "abcdefgh1"} for _ in range(r.randint(1, 2))]
    v = {"messages": messages, "tools": [tool(r) for _ in range(r.randint(1, 2))] if r.random() < .35 else None, "documents": None,
         "add_generation_prompt": r.random() < .6, "bos_token": "<s>", "eos_token": "</s>"}
    if r.random() < .3:
        v["enable_thinking"] = r.random() < .5
    if r.random() < .2:
        v["date_string"] = "1 Jan 2025"
    if r.random() < .2:
        v["tools_in_user_message"] = False
    return v


# ---- generated expressions: small templates over a fixed set of variables ----
VARS = {"s": " aé,b, C'\"\n", "t": "", "n": 7, "z": 0, "f": 2.5, "neg": -3, "l": [3, 1, 2, "x", None], "d": {"a": 1, "b": {"c": [1, 2]}, "items": 5},
        "e": [], "none_": None, "yes": True, "no": False, "words": ["b", "A", "c", "a"], "rows": [{"k": "x", "v": 2}, {"k": "Y", "v": 1}, {"k": "x"}],
        "big": 1e22, "tiny": 1.5e-7, "nums": [5, 3.5, True, -1]}
ATOMS = list(VARS) + ["undef", "1", "0", "2.0", "'a'", "','", "'x'", "true", "none", "[1,2]", "(1,)", "{'a': 2}", "'%'", "-1", "loop", "''", "3", "'é'"]
FILTERS = ["trim", "length", "upper", "lower", "list", "first", "last", "join(',')", "join", "string", "int", "float", "tojson", "tojson(indent=2)", "sort", "reverse|list",
           "unique|list", "default('D')", "default('D', true)", "items|list", "title", "capitalize", "abs", "sum", "max", "min", "replace('a','zz')", "indent(2)",
           "indent(3, true)", "map('string')|list", "map(attribute='k')|list", "selectattr('v')|list", "selectattr('v','gt',1)|list", "rejectattr('k','equalto','x')|list",
           "select('string')|list", "reject('none')|list", "dictsort", "sort(attribute='k')", "sort(attribute='k,v')", "sort(attribute='v')", "sort(reverse=true)", "round", "round(1)", "count", "e", "safe", "tojson(sort_keys=true)",
           "tojson(separators=(',',':'))", "format(n)", "format(n, s)", "format(a=f)", "tojson|from_json", "fromjson", "tojson(ensure_ascii=true)", "map('upper')|join", "map(attribute='v', default=9)|list"]
TESTS = ["defined", "undefined", "none", "true", "false", "boolean", "integer", "float", "number", "string", "mapping", "sequence", "iterable", "odd", "even", "eq 1", "in l",
         "lower", "upper", "divisibleby 2", "sameas none", "not none", "not string", "ge(2)", "callable"]
METHODS = [".strip()", ".split(',')", ".split()", ".upper()", ".items()|list", ".get('a')", ".get('q', 3)", ".keys()|list", ".values()|list", ".startswith(' ')", ".endswith(('x','\\n'))",
           ".replace(',', ';', 1)", ".a", ".b.c", "['a']", "['items']", ".items", "[0]", "[-1]", "[1:]", "[::-1]", "[:2]", "[::2]", "[-2:]", "[5:1:-2]", ".lstrip(' a')", ".rstrip('\\n')",
           ".find('b')", ".count('a')", ".rsplit(',', 1)", ".index(1)", ".append(1)", ".title()", ".splitlines()", "[n]", "['b']['c']", ".q", ".q.r", "[1:100]", "['x']", ".capitalize()",
           ".format(n, f)", ".format(*l)", ".format(**d)", ".join(words)", ".k", "[yes]", "[1.5]", ".0", ".isdigit()"]
# format strings; most fail in Python too, for their value's kind
PIECES = ["{}", "{0}", "{1}", "{:>5}", "{:<6}|", "{:^7}", "{:05d}", "{:+d}", "{:.2f}", "{:,}", "{:x}", "{!r}", "{!s:>4}", "{a}", "{a:*^9}", "{{", "}}", "{0[0]}",
          "{b[k]}", "{b.k}", "{:e}", "{:g}", "{:%}", "{:8.3f}", "{:{a}}", "é", "{:.3}", "{:_}", "{:b}", "{: d}", "x"]
PERCENTS = ["%s", "%d", "%5s", "%-5s|", "%05d", "%.2f", "%r", "%%", "%x", "%+d", "%(a)s", "%(a)d", "%.2s", "% d", "%e", "%g", "%i", "x", "%8.3f"]
MACROS = ["{% macro m(a, b=2) %}[{{ a }},{{ b }}{{ varargs }}]{% endmacro %}", "{% macro m(a, b=2) %}[{{ a }},{{ b }}{{ kwargs }}]{% endmacro %}",
          "{% macro m(a, b=2) %}[{{ a }}{{ caller() }}{{ varargs|length }}{{ kwargs }}]{% endmacro %}", "{% macro m(a, b=2) %}[{{ b }}]{% endmacro %}",
          "{% macro m(a) %}{{ caller(a, 1) }}{% endmacro %}", "{% macro m(a) %}{{ caller }}|{{ caller(a) if caller }}{% endmacro %}",
          "{% macro m(a, b=2) %}{{ kwargs|length }}{{ kwargs.c }}{{ varargs }}{% endmacro %}"]
CALLS = ["m(1)", "m(1, 2)", "m(1, 2, 3, 4)", "m(b=1, a=2)", "m(1, c=3)", "m(*l)", "m(*words[:2])", "m(**{'a': 1})", "m(1, *[5, 6], z=1)", "m(1, a=2)", "m(n, **{'b': f})",
         "m(*e)", "m(s, *e, **{})", "m(*'ab', **d)", "m()"]


def formats(r):
    """A template of format strings, calls with stars, call blocks and filter blocks."""
    values = ["n", "f", "s", "neg", "yes", "none_", "l", "d", "words[0]", "3", "2.5", "'é'", "big", "undef"]
    pick = lambda: r.choice(values)
    k = r.random()
    if k < .35:
        text = "".join(r.choice(PIECES) for _ in range(r.randint(1, 3)))
        return "{{ '%s'.format(%s) }}" % (text, ", ".join([pick() for _ in range(r.randint(0, 3))] + r.choice([[], [], ["a=" + pick()], ["b={'k': 3}"]])))
    if k < .6:
        text = "".join(r.choice(PERCENTS) for _ in range(r.randint(1, 3)))
        args = r.choice([pick(), f"({pick()}, {pick()})", f"({pick()},)", f"{{'a': {pick()}}}"])
        return "{{ '%s' %% %s }}" % (text, args) if r.random() < .6 else "{{ '%s'|format(%s) }}" % (text, r.choice([pick(), pick() + ", " + pick(), "a=" + pick()]))
    if k < .75:
        return r.choice(MACROS) + "{{ " + r.choice(CALLS) + " }}"
    if k < .9:
        return r.choice(MACROS) + "{% call" + r.choice(["", "", "(x)", "(x, y=5)"]) + " " + r.choice(CALLS) + " %}b{{ x }}{{ y }}{{ n }}{% endcall %}"
    if k < .94:
        return "{% set z|" + r.choice(["upper", "replace('b', n|string)", "length"]) + " %}ab{% set n = 1 %}b {% endset %}{{ z }}{{ n }}"
    return "{% filter " + r.choice(["upper", "trim|length|string", "replace('b', n|string)", "indent(2)", "upper|replace('B', 'x')", "length"]) + " %} ab\n{{ s }}{% set n = 1 %}b {% endfilter %}{{ n }}"


OPS = ["+", "-", "*", "/", "//", "%", "**", "~", "==", "!=", "<", ">", "<=", ">=", "in", "not in", "and", "or", "is eq"]


def expression(r, depth=0):
    k = r.random()
    if depth > 3 or k < 0.2:
        return r.choice(ATOMS)
    if k < 0.4:
        return f"({expression(r, depth + 1)}) {r.choice(OPS)} ({expression(r, depth + 1)})"
    if k < 0.45:
        return f"{expression(r, depth + 2)} {r.choice(OPS)} {expression(r, depth + 2)} {r.choice(OPS)} {expression(r, depth + 2)}"
    if k < 0.62:
        # of names only: constants that are printed are folded by jinja2, by other rules than it compiles by
        return f"{r.choice(list(VARS))}{r.choice(METHODS)}"
    if k < 0.8:
        return f"({expression(r, depth + 1)})|{r.choice(FILTERS)}"
    if k < 0.9:
        return f"({expression(r, depth + 1)}) is {r.choice(TESTS)}"
    if k < 0.95:
        return f"{r.choice(ATOMS)} if {expression(r, depth + 1)}" + (f" else {expression(r, depth + 1)}" if r.random() < .6 else "")
    return f"{r.choice(['-', '+', 'not '])}({expression(r, depth + 1)})"


def block(r, depth=0):
    """A template of tags and text with all kinds of white space around them."""
    ws = lambda: r.choice(["", " ", "\n", "  \n", "\n  ", " x ", "\n\n", "\t"])
    oo, oc = (lambda: r.choice(["", "", "-", "+"])), (lambda: r.choice(["", "", "-", "+"]))
    out = []
    for _ in range(r.randint(1, 4)):
        out.append(ws())
        k = r.random() if depth < 3 else 0.1
        e = expression(r, 3)
        if k < .3:
            out.append("{{" + r.choice(["", "-"]) + " " + e + " " + r.choice(["", "-"]) + "}}")
        elif k < .4:
            out.append("{#" + oo() + " c " + oc() + "#}")
        elif k < .55:
            out.append(f"{{%{oo()} if {e} {oc()}%}}{block(r, depth + 1)}{{%{oo()} elif n {oc()}%}}{block(r, depth + 1)}{{%{oo()} endif {oc()}%}}")
        elif k < .75:
            loop = r.choice(["x in l", "x in words if x != 'A'", "k, v in d.items()", "x in e", "x in rows", "c in 'aé'", "x in range(3)"])
            out.append(f"{{%{oo()} for {loop} {oc()}%}}{block(r, depth + 1)}{{{{ loop.index }}}}{r.choice(['', '{% if loop.last %}L{% endif %}'])}"
                       + (f"{{%{oo()} else {oc()}%}}none" if r.random() < .3 else "") + f"{{%{oo()} endfor {oc()}%}}")
        elif k < .85:
            out.append(f"{{%{oo()} set {r.choice(['x', 'n', 'y'])} = {e} {oc()}%}}")
        elif k < .9:
            out.append(f"{{%{oo()} set y {oc()}%}}{block(r, depth + 1)}{{%{oo()} endset {oc()}%}}{{{{ y|length }}}}")
        elif k < .95:
            out.append(f"{{%{oo()} macro m(a, b=2) {oc()}%}}{block(r, depth + 1)}{{{{ a }}}}{{%{oo()} endmacro {oc()}%}}{{{{ m({e}) }}}}{{{{ m(1, b=x) }}}}")
        else:
            out.append(f"{{%{oo().replace('+', '')} raw {oc().replace('+', '')}%}} {{{{ }} {{%{oo()} endraw {oc()}%}}")
    return "".join(out) + ws()


def rollcall(source, rows):
    with tempfile.NamedTemporaryFile("w", suffix=".jinja", newline="") as f:
        f.write(source)
        f.flush()
        p = subprocess.run([ROLLCALL, "template", "--template", f.name, "--now", NOW.strftime("%Y-%m-%d")],
                           input="\n".join(json.dumps(v) for v in rows).encode() + b"\n", capture_output=True)
    lines = [json.loads(x) for x in p.stdout.decode().split("\n")[:-1]]
    if p.returncode not in (0, 1) or (p.returncode == 0 and len(lines) != len(rows)):
        sys.exit(f"rollcall template: {p.returncode} {p.stderr.decode()} for {source!r}")
    return lines or [{"error": p.stderr.decode()}] * len(rows)


class Count:
    def __init__(self, name):
        self.name, self.same, self.refused, self.both, self.bad = name, 0, {}, 0, 0

    def add(self, source, want, got):
        failed = isinstance(want, Exception)
        if "error" in got and failed:
            self.both += 1
        elif "error" in got and "not supported" in got["error"]:
            key = got["error"].split(": ", 1)[-1][:60]
            self.refused[key] = self.refused.get(key, 0) + 1
        elif failed or "error" in got or want != got["text"]:
            self.bad += 1
            if self.bad <= 12:
                print(f"{self.name}: {source!r}\n   want {want!r}\n   got  {got.get('text', got)!r}")
        else:
            self.same += 1

    def report(self):
        print(f"{self.name}: {self.same} the same, {self.both} fail in both, {sum(self.refused.values())} refused, {self.bad} differ")
        return self.bad


def compare(n, seed):
    env, bad = environment(), 0
    for path in sorted(glob.glob(os.path.join(FOLDER, "*.jinja"))):
        r = random.Random(seed)
        with open(path, newline="") as f:
            source = f.read()
        rows, c = [conversation(r) for _ in range(n)], Count(os.path.basename(path))
        for v, got in zip(rows, rollcall(source, rows)):
            c.add(v, reference(env, source, v), got)
        bad += c.report()
    # many expressions in one process: each line chooses its own by number
    r = random.Random(seed + 1)
    for name, make, count in (("expressions", lambda: "{{ " + expression(r) + " }}", 4 * n), ("blocks", lambda: block(r), n), ("formats", lambda: formats(r), 4 * n)):
        c = Count(name)
        for _ in range(count):
            source = make()
            c.add(source, reference(env, source, VARS), rollcall(source, [VARS])[0])
        bad += c.report()
        for why, k in sorted(c.refused.items(), key=lambda x: -x[1])[:12]:
            print(f"   refused {k}: {why}")
    return bad


def published(folders, n, seed):
    """Templates of others: what both refuse (images, a raise) is counted apart; a template that only we refuse is named."""
    env, bad, seen, refused, renders = environment(), 0, set(), [], 0
    for path in sorted(p for d in folders for p in glob.glob(os.path.join(d, "**", "*.jinja"), recursive=True)):
        with open(path, newline="", encoding="utf-8") as f:
            source = f.read()
        if source in seen:
            continue
        seen.add(source)
        r = random.Random(seed)
        rows, c = [conversation(r) for _ in range(n)], Count(os.path.basename(path))
        for v, got in zip(rows, rollcall(source, rows)):
            c.add(source[:60], reference(env, source, v), got)
        renders += c.same
        if c.refused:
            refused.append(f"{path}: {c.refused}")
        if c.bad or not c.same:
            bad += c.report()
    print(f"{len(seen)} templates, {renders} texts the same, {bad} differ; {len(refused)} templates refused")
    print("\n".join(refused))
    return bad + len(refused)


def fixture():
    env, r = environment(), random.Random(6)
    with open(os.path.join(FOLDER, "cases.jsonl"), "w") as out:
        def write(name, source, v):
            want = reference(env, source, v)
            row = {"template": name} if name else {"source": source}
            row["variables"] = v if name else None
            row.update({"error": True} if isinstance(want, Exception) else {"text": want})
            out.write(json.dumps(row, separators=(",", ":")) + "\n")
        for path in sorted(glob.glob(os.path.join(FOLDER, "*.jinja"))):
            with open(path, newline="") as f:
                source = f.read()
            for _ in range(8):
                write(os.path.basename(path), source, conversation(r))
        out.write(json.dumps({"variables_of_sources": VARS}) + "\n")
        for i in range(600):
            source = formats(r) if i >= 400 else "{{ " + expression(r) + " }}" if i % 2 else block(r)
            got = rollcall(source, [VARS])[0]
            if "error" not in got or "not supported" not in got["error"]:
                write(None, source, VARS)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("what", choices=["compare", "published", "fixture"])
    ap.add_argument("folders", nargs="*")
    ap.add_argument("--n", type=int, default=500)
    ap.add_argument("--seed", type=int, default=1)
    a = ap.parse_args()
    if a.what == "fixture":
        return fixture()
    if a.what == "published":
        sys.exit(1 if published(a.folders, a.n, a.seed) else 0)
    sys.exit(1 if compare(a.n, a.seed) else 0)


if __name__ == "__main__":
    main()
