#!/usr/bin/env python3
"""Mathematical equality against pairs whose truth is known, and against Math-Verify.

Makes pairs of answers (gold, prediction) of every kind in fixed numbers from a fixed seed: half of them equal by
construction, half different by construction. Scores them with `rollcall score --reward-type boxed`, and with --math-verify
also with Math-Verify (pip install math-verify, in a virtual environment; development only). Prints agreement by category
and lists every disagreement with who is right. Exits 1 when rollcall calls a different pair equal.

    ROLLCALL=build/release/rollcall tests/golden/math_pairs.py [--n 360] [--seed 1] [--math-verify] [--suite FILE] [--list]

--suite FILE: JSON lines with gold, pred, want ("equal"/"different") compared as whole responses (--reward-type math);
the published suite of Math-Verify is turned into one by --dump-suite DIR (the folder of its test_*.py).
"""
import argparse
import collections
import json
import math
import os
import random
import subprocess
import sys
from fractions import Fraction as F

R = random.Random()


def tex(q):
    q = F(q)
    if q.denominator == 1:
        return str(q.numerator)
    return ('-' if q < 0 else '') + '\\%sfrac{%d}{%d}' % (R.choice(['', 'd', 't', '']), abs(q.numerator), q.denominator)


def plain(q):
    q = F(q)
    return str(q.numerator) if q.denominator == 1 else '%d/%d' % (q.numerator, q.denominator)


def rat(a=1, b=40, signed=True):
    q = F(R.randint(a, b), R.randint(1, 12))
    return -q if signed and R.random() < .3 else q


def other(q):
    """A near miss of a rational."""
    q = F(q)
    return R.choice([q + 1, -q if q else F(1), q + F(1, R.randint(2, 50)), q - 1, q * 10 if q else F(10), 1 / q if abs(q) not in (0, 1) else q + 2])


def any_form(q):
    q = F(q)
    forms = [tex(q), plain(q), '\\left(%s\\right)' % tex(q)]
    k = R.randint(2, 6)
    forms.append('%s\\frac{%d}{%d}' % ('-' if q < 0 else '', abs(q.numerator) * k, q.denominator * k))
    d = q.denominator
    while d % 2 == 0:
        d //= 2
    while d % 5 == 0:
        d //= 5
    if d == 1:
        forms.append(decimal(q))
    return R.choice(forms)


def decimal(q):
    q = F(q)
    s, n = ('-' if q < 0 else ''), 0
    q = abs(q)
    while (q * 10 ** n).denominator != 1:
        n += 1
    v = int(q * 10 ** n)
    text = str(v).rjust(n + 1, '0')
    return s + (text[:-n] + '.' + text[-n:] if n else text) + (R.choice(['', '0']) if n else '')


def thousands(n):
    return R.choice(['{:,}'.format(n), '{:,}'.format(n).replace(',', '{,}'), '{:,}'.format(n).replace(',', ',\\!'), str(n)])


def integers():
    n = R.randint(-5000000, 5000000)
    m = R.choice([n + 1, -n - 1, n * 10 + 1, n - 1])
    return str(n), thousands(n), thousands(m)


def decimals():
    q = F(R.randint(1, 10 ** 6), 10 ** R.randint(1, 5))
    wrong = q + F(R.choice([-1, 1]), 10 ** R.randint(0, 3))
    return decimal(q), R.choice([decimal(q), any_form(q)]), decimal(wrong)


def fractions():
    q = rat()
    return tex(q), any_form(q), any_form(other(q))


def mixed():
    w, d = R.randint(1, 30), R.randint(2, 12)
    n = R.randint(1, d - 1)
    q = F(w) + F(n, d)
    s = R.choice([1, -1])
    m = '%s%d\\frac{%d}{%d}' % ('-' if s < 0 else '', w, n, d)
    m2 = '%s%d %d/%d' % ('-' if s < 0 else '', w, n, d)
    return R.choice([m, m2]), tex(s * q), tex(R.choice([s * q + 1, s * F(w * n, d) if w * n != w * d + n else q + 3, -s * q, s * (w - F(n, d))]))


def percent():
    p = R.randint(1, 400)
    return '%d\\%%' % p, R.choice(['%d\\%%' % p, '%d\\text{ percent}' % p, any_form(F(p, 100))]), R.choice(['%d\\%%' % (p + 1), any_form(F(p, 10)) if p != 10 * p else '0', any_form(F(p + 1, 100))])


def units():
    q = F(R.randint(1, 500), R.choice([1, 2, 4, 5]))
    u = R.choice(['\\text{ cm}', '\\text{ meters}', '\\text{ cm}^2', '\\mathrm{~m}', ' \\text{ square feet}', '\\text{ hours}', ' inches', '^\\circ'])
    return any_form(q) + u, R.choice([any_form(q) + u, any_form(q)]), any_form(other(q)) + R.choice([u, ''])


def currency():
    c = R.randint(100, 10 ** 7)
    s, w = '{:,.2f}'.format(c / 100), '{:,.2f}'.format((c + R.choice([1, 10, 100])) / 100)
    return '\\$' + s.replace(',', ''), R.choice(['\\$' + s, s, s.replace(',', '') + '\\text{ dollars}', '$' + s]), R.choice(['\\$' + w, w])


def powers():
    b, e = R.randint(2, 9), R.randint(2, 40)
    return '%d^{%d}' % (b, e), R.choice([str(b ** e), '%d\\cdot %d^{%d}' % (b, b, e - 1), '(%d^{%d})^{2}/%d^{%d}' % (b, e, b, e)]), R.choice(['%d^{%d}' % (b, e + 1), str(b ** e + 1), '%d^{%d}+1' % (b, e)])


def roots():
    a, k, q = R.choice([2, 3, 5, 6, 7, 10, 11, 13]), R.randint(2, 9), rat(1, 20)
    g = '%s\\sqrt{%d}' % (tex(q), a) if q != 1 else '\\sqrt{%d}' % a
    return g, R.choice(['\\frac{%d\\sqrt{%d}}{%d}' % (q.numerator, a * k * k, q.denominator * k),
                        '\\frac{%d}{%d\\sqrt{%d}}' % (q.numerator * a, q.denominator, a),
                        '%d\\cdot %d^{1/2}/%d' % (q.numerator, a, q.denominator)]), \
        R.choice(['%s\\sqrt{%d}' % (tex(q), a + 1), '%s\\sqrt{%d}' % (tex(other(q)), a), tex(q), '%s\\sqrt[3]{%d}' % (tex(q), a)])


def logarithms():
    a, b = R.randint(2, 9), R.randint(2, 30)
    return '\\log_{%d} %d' % (a, b), R.choice(['\\frac{\\ln %d}{\\ln %d}' % (b, a), '\\frac{\\log %d}{\\log %d}' % (b, a), '2\\log_{%d}{%d}' % (a * a, b)]), \
        R.choice(['\\log_{%d} %d' % (a, b + 1), '\\frac{\\ln %d}{\\ln %d}' % (b + 1, a), '\\log_{%d}{%d}' % (a + 1, b)])


def exponentials():
    a, b = R.randint(1, 9), R.randint(1, 9)
    return 'e^{%d}' % (a + b), R.choice(['e^{%d}e^{%d}' % (a, b), '\\exp(%d)' % (a + b), '(e^{%d})^{2}/e^{%d}' % (a + b, a + b)]), R.choice(['e^{%d}' % (a + b + 1), 'e^{%d}+e^{%d}' % (a, b), '\\exp(%d)' % -(a + b)])


def trigonometry():
    k, n = R.randint(1, 11), R.choice([12, 8, 5, 7])
    f = R.choice(['sin', 'cos'])
    o = 'cos' if f == 'sin' else 'sin'
    g = '\\%s\\frac{%d\\pi}{%d}' % (f, k, n)
    e = '\\%s\\left(\\frac{\\pi}{2}-\\frac{%d\\pi}{%d}\\right)' % (o, k, n)
    e2 = '\\%s(\\frac{%d\\pi}{%d}+2\\pi)' % (f, k, n)
    w = '\\%s\\frac{%d\\pi}{%d}+\\frac{1}{1000}' % (f, k, n)
    return g, R.choice([e, e2]), R.choice([w, '2\\%s\\frac{%d\\pi}{%d}+1' % (f, k, n) if f == 'sin' and 2 * k != 3 * n else w])


def factorials():
    n = R.randint(3, 60)
    return '%d!' % n, R.choice([str(math.factorial(n)), '%d\\cdot %d!' % (n, n - 1)]), R.choice(['%d!' % (n + 1), str(math.factorial(n) + 1), '\\frac{1}{%d!}' % n])


def binomials():
    n = R.randint(4, 40)
    k = R.randint(1, n - 1)
    v = math.comb(n, k)
    return '\\binom{%d}{%d}' % (n, k), R.choice([str(v), '\\binom{%d}{%d}' % (n, n - k), '\\frac{%d!}{%d!%d!}' % (n, k, n - k)]), R.choice([str(v + 1), '\\binom{%d}{%d}' % (n + 1, k)])


def absolutes():
    q = rat()
    return '|%s|' % tex(-abs(q)), any_form(abs(q)), any_form(-abs(q))


def floors():
    a = R.randint(2, 900)
    q = rat(1, 400)
    if R.random() < .5:
        return '\\lfloor %s \\rfloor' % tex(q), str(math.floor(q)), str(math.floor(q) + 1)
    r = math.isqrt(a)
    return '\\lceil \\sqrt{%d} \\rceil' % a, str(r if r * r == a else r + 1), str(r - 1 if r * r == a else r)


def sums():
    n = R.randint(3, 40)
    if R.random() < .5:
        return '\\sum_{k=1}^{%d} k' % n, R.choice([str(n * (n + 1) // 2), '\\frac{%d\\cdot %d}{2}' % (n, n + 1)]), str(n * (n - 1) // 2)
    n = min(n, 12)
    return '\\prod_{i=1}^{%d} (2i)' % n, str(math.factorial(n) * 2 ** n), str(math.factorial(n) * 2 ** (n - 1))


def sets():
    v = R.sample(range(-30, 60), R.randint(2, 6))
    q = [F(x, R.choice([1, 1, 2, 3])) for x in v]
    while len(set(q)) < len(q):
        q.pop()
    s = list(q)
    R.shuffle(s)
    w = list(s)
    w[0] += 100
    wrap = R.choice(['\\{%s\\}', '%s', '\\left\\{%s\\right\\}'])
    return '\\{%s\\}' % ', '.join(map(tex, q)), wrap % ','.join(map(any_form, s)), R.choice(['\\{%s\\}' % ','.join(map(tex, w)), '\\{%s\\}' % ','.join(map(tex, s + [F(999)]))])


def tuples():
    q = [rat() for _ in range(R.randint(2, 4))]
    q[-1] = q[0] + R.randint(1, 9) if len(q) == 2 else q[-1]
    w = list(q)
    i = R.randrange(len(w))
    w[i] = other(w[i])
    swap = list(reversed(q))
    g = '(%s)' % ', '.join(map(tex, q))
    e = R.choice(['(%s)', '\\left(%s\\right)', '( %s )']) % ','.join(map(any_form, q))
    return g, e, '(%s)' % ','.join(map(any_form, R.choice([w, swap] if swap != q else [w])))


def intervals():
    a = rat()
    b = a + abs(rat())
    l, r = R.choice('(['), R.choice(')]')
    lt, rt = ('<' if l == '(' else '\\le '), ('<' if r == ')' else '\\le ')
    g = '%s%s,%s%s' % (l, tex(a), tex(b), r)
    e = R.choice([g, '%s %s, %s %s' % (l, any_form(a), any_form(b), r), '\\left%s%s,%s\\right%s' % (l, any_form(a), any_form(b), r), 'x\\in %s' % g])
    w = R.choice(['%s%s,%s%s' % ('(' if l == '[' else '[', tex(a), tex(b), r), '%s%s,%s%s' % (l, tex(a), tex(b + 1), r), '%s%s,\\infty)' % (l, tex(a))])
    return g, e, w


def unions():
    a = R.randint(-20, 20)
    b, c = a + R.randint(1, 9), a + R.randint(10, 20)
    g = '(-\\infty, %d] \\cup (%d, %d)' % (a, b, c)
    return g, R.choice(['(%d,%d)\\cup(-\\infty,%d]' % (b, c, a), '(-\\infty,%d)\\setminus(%d,%d]' % (c, a, b), '(-\\infty,%d]\\cup(%d,%d)' % (a, b, c)]), R.choice(['(-\\infty,%d)\\cup(%d,%d)' % (a, b, c), '(-\\infty,%d]\\cup(%d,%d)' % (a, b, c + 1), '(-\\infty,%d)' % c])


def inequalities():
    a, k = R.randint(-30, 30), R.randint(2, 9)
    op, rev, iv = R.choice([('<', '>', '(-\\infty,%d)'), ('\\le', '\\ge', '(-\\infty,%d]')])
    g = 'x %s %d' % (op, a)
    return g, R.choice(['%dx %s %d' % (k, op, k * a), '%d %s x' % (a, rev), '-x %s %d' % (rev, -a), iv % a]), R.choice(['x %s %d' % (rev, a), 'x %s %d' % (op, a + 1), '-%dx %s %d' % (k, op, -k * a), 'y %s %d' % (op, a)])


def equations():
    a, b, c, k = R.randint(1, 9), R.randint(1, 9), R.randint(1, 30), R.randint(2, 5)
    g = '%dx+%dy=%d' % (a, b, c)
    return g, R.choice(['%dx+%dy-%d=0' % (k * a, k * b, k * c), 'y=\\frac{%d-%dx}{%d}' % (c, a, b), '%d=%dx+%dy' % (c, a, b)]), R.choice(['%dx+%dy=%d' % (a, b, c + 1), '%dx-%dy=%d' % (a, b, c), 'y=\\frac{%d+%dx}{%d}' % (c, a, b), str(c)])


def assignments():
    q = rat()
    n = R.choice(['x', 'y', 'k', 'n', 'f(3)', 'a_1', 'AB', '\\theta'])
    return R.choice(['%s = %s' % (n, tex(q)), tex(q)]), '%s=%s' % (n, any_form(q)), '%s=%s' % (n, any_form(other(q)))


def matrices():
    q = [rat() for _ in range(4)]
    w = list(q)
    i = R.randrange(4)
    w[i] = other(w[i])
    env = R.choice(['pmatrix', 'bmatrix'])

    def m(v, f, e):
        return '\\begin{%s} %s & %s \\\\ %s & %s \\end{%s}' % (e, *map(f, v), e)
    t = [q[0], q[2], q[1], q[3]]
    return m(q, tex, 'pmatrix'), m(q, any_form, env), m(w if t == q else R.choice([w, t]), tex, env)


def complexes():
    a, b = R.randint(-20, 20), R.randint(1, 20)
    g = '%d%+di' % (a, b)
    return g, R.choice(['%di%+d' % (b, a), '%d%+d i' % (a, b), '\\frac{%d%+di}{2}' % (2 * a, 2 * b), 'i(%d%+di)' % (b, -a)]), R.choice(['%d%+di' % (a, -b), '%d%+di' % (a + 1, b), '%d%+d' % (a, b), '%d%+di' % (b, a) if a != b else '7'])


def plus_minus():
    a, b = R.randint(1, 20), R.choice([2, 3, 5, 7])
    g = '%d \\pm \\sqrt{%d}' % (a, b)
    return g, R.choice(['%d+\\sqrt{%d}, %d-\\sqrt{%d}' % (a, b, a, b), '\\{%d-\\sqrt{%d}, %d+\\sqrt{%d}\\}' % (a, b, a, b), '%d\\pm\\sqrt{%d}' % (a, b)]), R.choice(['%d+\\sqrt{%d}' % (a, b), '%d\\pm\\sqrt{%d}' % (a + 1, b), '%d+\\sqrt{%d},%d' % (a, b, a)])


def infinities():
    a = R.randint(-20, 20)
    return '[%d,\\infty)' % a, R.choice(['[%d,+\\infty)' % a, 'x\\ge %d' % a, '[ %d , \\infty )' % a]), R.choice(['(%d,\\infty)' % a, '(-\\infty,%d]' % a, '\\infty', '[%d,\\infty)' % (a + 1)])


def polynomials():
    a, b, c = R.randint(1, 9), R.randint(-9, 9), R.randint(1, 9)
    v = R.choice('xyt')
    g = '(%d%s%+d)(%s%+d)' % (a, v, b, v, c)
    e = '%d%s^2%+d%s%+d' % (a, v, b + a * c, v, b * c)
    w = '%d%s^2%+d%s%+d' % (a, v, b + a * c + R.choice([-1, 1]), v, b * c)
    return g, e, R.choice([w, e + '+1', e.replace(v, 'z'), e.replace('^2', '^3')])


def symbolic():
    a, b = R.randint(2, 9), R.randint(2, 9)
    return R.choice([
        ('\\frac{x+%d}{%d}' % (a, b), '\\frac{x}{%d}+\\frac{%d}{%d}' % (b, a, b), '\\frac{x}{%d}+%d' % (b, a * b + 1)),
        ('%d^{x+%d}' % (a, b), '%d\\cdot %d^x' % (a ** b, a), '%d^{x}+%d' % (a, b)),
        ('\\sin^2(%dx)' % a, '1-\\cos^2(%dx)' % a, '1-\\cos(%dx)' % a),
        ('\\frac{%d}{x}-\\frac{%d}{y}' % (a, b), '\\frac{%dy-%dx}{xy}' % (a, b), '\\frac{%dx-%dy}{xy}' % (a, b + 1)),
        ('\\ln(x^{%d})' % (2 * a + 1), '%d\\ln x' % (2 * a + 1), '%d\\ln x' % (2 * a)),
        ('\\sqrt{%d x}' % (a * a * b), '%d\\sqrt{%dx}' % (a, b), '%d\\sqrt{%dx}' % (a + 1, b)),
        ('\\frac{n(n+1)}{%d}' % a, '\\frac{n^2+n}{%d}' % a, '\\frac{n^2+1}{%d}' % a),
        ('a^{%d}b^{%d}' % (a, b), 'b^{%d}a^{%d}' % (b, a), 'a^{%d}b^{%d}' % (a + 1, b)),
        ('x^{-%d}' % a, '\\frac{1}{x^{%d}}' % a, '-x^{%d}' % a),
    ])


def nested():
    a, b = sorted(R.sample([2, 3, 5, 7, 11], 2))
    return '\\sqrt{%d+2\\sqrt{%d}}' % (a + b, a * b), R.choice(['\\sqrt{%d}+\\sqrt{%d}' % (a, b), '\\sqrt{%d}+\\sqrt{%d}' % (b, a)]), R.choice(['\\sqrt{%d}+%d' % (a, b), '\\sqrt{%d}-\\sqrt{%d}' % (b, a), '\\sqrt{%d}+\\sqrt{%d}+10^{-9}' % (a, b)])


def tiny():
    a, b = R.sample(range(20, 400), 2)
    return '\\frac{1}{%d!}' % a, '\\frac{%d}{%d!}' % (a + 1, a + 1), R.choice(['\\frac{1}{%d!}' % b, '2^{-%d}' % a, '0'])


def letters():
    a, b = R.sample('ABCDEFG', 2)
    return '\\text{%s}' % a, R.choice([a, '\\text{(%s)}' % a, '(%s)' % a, '\\textbf{%s}' % a, '\\mathrm{%s}' % a]), R.choice([b, '\\text{(%s)}' % b])


WORDS = ['Evelyn', 'Monday', 'no solution', 'even', 'odd', 'ellipse', 'Yes', 'No', 'east', 'parabola', 'Carla', 'increasing', 'Friday', 'not divisible', 'circle', 'all real numbers']


def texts():
    a, b = R.sample(WORDS, 2)
    return '\\text{%s}' % a, R.choice([a, '\\text{%s}' % a.lower(), '\\text{ %s }' % a, '\\textbf{%s}' % a]), R.choice(['\\text{%s}' % b, b])


def ratios():
    a, b, k = R.randint(1, 12), R.randint(13, 30), R.randint(2, 5)
    return '%d:%d' % (a, b), R.choice(['%d:%d' % (a * k, b * k), '%d : %d' % (a, b), tex(F(a, b))]), R.choice(['%d:%d' % (b, a), '%d:%d' % (a, b + 1), str(b)])


CATEGORIES = [integers, decimals, fractions, mixed, percent, units, currency, powers, roots, logarithms, exponentials, trigonometry,
              factorials, binomials, absolutes, floors, sums, sets, tuples, intervals, unions, inequalities, equations, assignments,
              matrices, complexes, plus_minus, infinities, polynomials, symbolic, nested, tiny, letters, texts, ratios]


def pairs(n, seed):
    R.seed(seed)
    for make in CATEGORIES:
        for _ in range(n):
            gold, same, different = make()
            yield {'category': make.__name__, 'gold': gold, 'pred': same, 'want': 'equal'}
            yield {'category': make.__name__, 'gold': gold, 'pred': different, 'want': 'different'}


def ours(cases, kind):
    binary = os.environ.get('ROLLCALL', 'build/release/rollcall')
    text = '\n'.join(json.dumps({'response': c['pred'] if kind == 'math' else '\\boxed{%s}' % c['pred'], 'gt_answer': c['gold']})
                     for c in cases)
    out = subprocess.run([binary, 'score', '--reward-type', kind, '--input', '-'], input=text.encode(), stdout=subprocess.PIPE, check=True)
    return [json.loads(line) for line in out.stdout.decode().splitlines()]


def math_verify(cases, kind):
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify
    from latex2sympy2_extended import NormalizationConfig
    if kind == 'math':
        targets = [LatexExtractionConfig(boxed_match_priority=0), ExprExtractionConfig()]
    else:    # as ColossalChat calls it
        norm = NormalizationConfig(basic_latex=True, units=True, malformed_operators=False, nits=False, boxed='all', equations=False)
        targets = [ExprExtractionConfig(), LatexExtractionConfig(boxed_match_priority=0, normalization_config=norm)]
    for c in cases:
        wrap = (lambda s: s) if kind == 'math' else (lambda s: s if s.startswith('\\boxed') else '\\boxed{%s}' % s)
        try:
            got = verify(parse(wrap(c['gold']), targets), parse(wrap(c['pred']), targets))
        except Exception:
            got = False
        yield 'equal' if got else 'different'


def dump_suite(folder):
    """The pairs of Math-Verify's own tests as JSON lines; options that rollcall has no counterpart for are kept as fields."""
    import importlib
    import types
    found = []

    class Mark:
        def parametrize(self, names, values, **_):
            names = [x.strip() for x in names.split(',')]

            def deco(f):
                for v in values:
                    d = dict(zip(names, v))
                    want = d.pop('expected', d.pop('result', None))
                    if 'gold' in d and want is not None:
                        found.append({'category': f.__name__, 'want': 'equal' if want else 'different', **d})
                return f
            return deco

        def __getattr__(self, _):
            return lambda *a, **k: (lambda f: f)
    fake = types.ModuleType('pytest')
    fake.mark = Mark()
    fake.fixture = lambda *a, **k: (lambda f: f)
    sys.modules['pytest'] = fake
    folder = os.path.abspath(folder)
    package = types.ModuleType('tests')
    package.__path__ = [folder]
    sys.modules['tests'] = package
    for name in ['test_all', 'test_numina_cases', 'test_open_thoughts', 'test_yujianll', 'test_boxed', 'test_strict']:
        importlib.import_module('tests.' + name)
    for d in found:
        print(json.dumps(d))


# Expectations of Math-Verify's suite that we do not share, and why: (gold, prediction) -> who is right.
JUDGED = {
    ('$1 - \\frac{1}{\\mathrm{e}}$', '$1 + \\frac{1}{\\mathrm{e}}$'): 'rollcall: 1 - 1/e is not 1 + 1/e',
    ('$9$', 'Answer $ \n 9 \n $'): 'rollcall: the 9 is there, on a line of its own',
    ('$9$', 'Answer \\( \n 9 \n \\)'): 'rollcall: the 9 is there, on a line of its own',
    ('$x \\in [-2,7]$', '$-2 \\\\le x \\\\le 7$'): 'rollcall: the same set; upstream asks for an option to say so',
    ('$10/9$', 'Answer $ \\frac{1}{2} \\$ = \\frac{10}{9} $'): 'rollcall: 1/2 is not 10/9, and a false equation is not its right side',
    ('$f(x)$', '$f(y)$'): 'either: upstream renames variables in its non-strict mode, which rollcall has not',
}


def main():
    p = argparse.ArgumentParser()
    p.add_argument('--n', type=int, default=300)
    p.add_argument('--seed', type=int, default=1)
    p.add_argument('--math-verify', action='store_true')
    p.add_argument('--suite')
    p.add_argument('--dump-suite')
    p.add_argument('--list', action='store_true', help='list the disagreements of Math-Verify too')
    a = p.parse_args()
    if a.dump_suite:
        return dump_suite(a.dump_suite)
    kind = 'math' if a.suite else 'boxed'
    cases = [json.loads(line) for line in open(a.suite)] if a.suite else list(pairs(a.n, a.seed))
    got = ours(cases, kind)
    theirs = list(math_verify(cases, kind)) if a.math_verify else None
    table = collections.OrderedDict()
    false_positive = 0
    for i, (c, o) in enumerate(zip(cases, got)):
        t = table.setdefault(c['category'], collections.Counter())
        t['n'] += 1
        t['right'] += o['verdict'] == c['want']
        t['fp'] += o['verdict'] == 'equal' and c['want'] == 'different'
        t['unknown'] += o['verdict'] == 'cannot_tell'
        if theirs:
            t['mv right'] += theirs[i] == c['want']
            t['mv fp'] += theirs[i] == 'equal' and c['want'] == 'different'
        if o['verdict'] != c['want']:
            why = JUDGED.get((c['gold'], c['pred']), 'upstream/construction: rollcall is wrong' if not c.get('precision') else 'upstream: needs its precision option (rollcall bench verify gives it)')
            print('DISAGREE %s: want %s, rollcall %s (%s)\n    gold %.200r\n    pred %.200r\n    right: %s' %
                  (c['category'], c['want'], o['verdict'], o['rule'], c['gold'], c['pred'], why))
        if theirs and a.list and theirs[i] != c['want'] and o['verdict'] == c['want']:
            print('MATH-VERIFY %s: want %s\n    gold %.200r\n    pred %.200r\n    right: rollcall, by construction' % (c['category'], c['want'], c['gold'], c['pred']))
        false_positive += o['verdict'] == 'equal' and c['want'] == 'different' and (c['gold'], c['pred']) not in JUDGED
    print('%-42s %6s %8s %5s %8s' % ('category', 'pairs', 'agree', 'fp', 'unknown') + ('  %10s %6s' % ('Math-Verify', 'fp') if theirs else ''))
    total = collections.Counter()
    for name, t in list(table.items()) + [('all', total)]:
        print('%-42s %6d %7.2f%% %5d %8d' % (name, t['n'], 100 * t['right'] / t['n'], t['fp'], t['unknown']) +
              ('  %10.2f%% %6d' % (100 * t['mv right'] / t['n'], t['mv fp']) if theirs else ''))
        if name != 'all':
            total.update(t)
    return 1 if false_positive else 0


if __name__ == '__main__':
    sys.exit(main())
