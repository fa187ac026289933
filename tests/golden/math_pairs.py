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


def before():
    """Words before a value that change it."""
    q = F(R.randint(1, 300), R.choice([1, 1, 2, 3]))
    v, font = tex(q), R.choice(['\\text{%s }', '\\textbf{%s} ', '\\mathrm{%s}\\ ', '\\text{%s} '])
    word = R.choice(['not', 'at least', 'at most', 'less than', 'more than', 'about', 'half of', 'the square root of', 'outside', 'all except',
                     'the derivative of', 'negative', 'twice', 'the reciprocal of', 'never', 'other than', 'any value but', 'the inverse of',
                     'the opposite of', 'roughly', 'up to', 'between 0 and', 'anything except', 'fewer than', 'the cube of', 'minus'])
    if '\\mathrm' in font:
        word = word.replace(' ', '\\ ')
    same = R.choice(['\\text{The answer is } %s', '\\text{Answer: } %s', '\\text{so } %s', '\\text{the value is } %s', '%s']) % v
    return v, same, font % word + v


def after():
    """Words after a value that change it."""
    n = R.randint(2, 300)
    word = R.choice(['million', 'thousand', 'dozen', 'squared', 'cubed', 'or more', 'or less', 'and a half', 'is wrong', 'below zero', 'factorial',
                     'to the third', 'times larger', 'halves', 'hundredths', 'more', 'less', 'is not it', 'excluded', 'at most', 'per mille',
                     'k', 'mod 2', 'below', 'tenths', 'too many', 'off', 'short', 'out of ten', 'is the wrong one', 'short of it', 'times itself'])
    unit = R.choice(['marbles', 'apples', 'cm', 'square units', 'hours', 'students', 'dollars'])
    return str(n), R.choice(['%d\\text{ %s}', '%d \\mathrm{%s}', '%d\\textbf{ %s}']).replace('\\mathrm{%s}', '\\text{ %s}') % (n, unit), '%d\\text{ %s}' % (n, word)


def multipliers():
    n = R.randint(2, 99)
    word, k = R.choice([('hundred', 100), ('thousand', 1000), ('million', 10 ** 6), ('billion', 10 ** 9), ('dozen', 12), ('万', 10 ** 4)])
    return str(n * k), R.choice(['%d\\text{ %s}', '%d %s']) % (n, word), R.choice(['%d\\text{ %s}' % (n + 1, word), str(n), '-%d\\text{ %s}' % (n, word)])


def joined():
    """Relations joined by "and" and "or"."""
    a, b = R.sample(range(-20, 20), 2)
    a, b = min(a, b), max(a, b)
    gold, same, word = R.choice([('x<%d\\text{ or }x>%d', 'x>{1}\\text{{ or }}x<{0}', 'x<%d\\text{ and }x>%d'), ('x>%d\\text{ and }x<%d', '{0}<x<{1}', 'x>%d\\text{ or }x<%d')])
    if R.random() < 0.3:
        return 'x=%d\\text{ and }y=%d' % (a, b), 'y=%d\\text{ and }x=%d' % (b, a), 'x=%d\\text{ or }y=%d' % (a, b)
    return gold % (a, b), same.format(a, b), word % (a, b)


def jumps():
    """Functions with jumps and corners that agree at nearly all points."""
    n, m = R.randint(1, 9), R.randint(0, 9)
    gold, same, different = R.choice([
        ('\\lfloor x\\rfloor+%d', '%d+\\lfloor x\\rfloor', '\\lceil x\\rceil+%d-1'), ('|x-%d|', '|%d-x|', 'x-%d'),
        ('|x+%d|', '\\sqrt{(x+%d)^2}', 'x+%d'), ('%d', '%d', '%d\\operatorname{sgn}(x)^2'), ('%d-1', '-1+%d', '\\lfloor x\\rfloor+\\lfloor -x\\rfloor+%d'),
        ('\\lceil x\\rceil-%d', '-%d+\\lceil x\\rceil', '\\lfloor x\\rfloor+1-%d'), ('%d', '%d', '%d+\\lfloor\\cos^2 x\\rfloor')])
    return gold % n, same % n, different % n


def contradictions():
    """Units that contradict each other."""
    n = R.randint(2, 99)
    a, b = R.sample([' cm', ' kg', ' hours', ' m/s', ' km/h', ' cents', ' dollars', ' am', ' pm', ' liters', ' cm}^2', ' cm}^3', ' miles'], 2)
    u = lambda k, w: '%d\\text{%s' % (k, w) + ('' if '}' in w else '}')
    if R.random() < 0.2:
        a, b = R.sample(['C', 'F'], 2)
        return '%d^\\circ\\text{%s}' % (n, a), '%d^\\circ\\text{ %s}' % (n, a), '%d^\\circ\\text{%s}' % (n, b)
    return u(n, a), R.choice([u(n, a), str(n)]), R.choice([u(n, b), u(n + 1, a)])


def times_of_day():
    h, m = R.randint(1, 12), R.randint(10, 59)
    t = '%d:%02d' % (h, m)
    return t, R.choice([t, '%d : %02d' % (h, m)]), R.choice(['%d/%d' % (h, m), '\\frac{%d}{%d}' % (h, m), '%d:%02d' % (h, m - 1), '%d.%02d' % (h, m), '%d\\text{ pm}' % h])


def repeating():
    d = R.randint(1, 8)
    k = R.randint(2, 9)
    x = ''.join(str(R.randint(0, 9)) for _ in range(k - 1)) + str(R.randint(1, 8))
    if R.random() < 0.5:
        return tex(F(d, 9)), R.choice(['0.\\dot{%d}', '0.\\overline{%d}', '0.\\dot %d']) % d, R.choice(['0.\\dot{%d}' % (d + 1 if d < 8 else 1), '0.%d' % d, '0.0\\dot{%d}' % d])
    return tex(F(int(x), 10 ** k - 1)), '0.\\dot{%s}%s\\dot{%s}' % (x[0], x[1:-1], x[-1]), '0.\\dot{%s}%s\\dot{%d}' % (x[0], x[1:-1], int(x[-1]) + 1)


def constants():
    n, a = R.randint(2, 9), R.randint(1, 9)
    f = R.choice(['%dx^%d' % (a, n), '%d\\sin x' % a, 'e^{%dx}' % a, '\\ln|x+%d|' % a])
    return f + '+C', f + '+c', R.choice([f, f + '+%d' % a, f + '+x', '%d+' % a + f, f + '-x+C'])


def unicode_forms():
    n, k = R.randint(2, 99), R.randint(2, 99)
    wide = lambda v: ''.join(chr(R.choice([0xff10, 0x1d7ce]) + int(c)) for c in str(v))
    high = lambda v: ''.join('⁰¹²³⁴⁵⁶⁷⁸⁹'[int(c)] for c in str(v))
    gold, same, different = R.choice([(str(n), wide(n), wide(n + 1)), ('x^{%d}' % k, 'x' + high(k), 'x' + high(k + 1)), ('x_{%d}' % k, 'x' + ''.join('₀₁₂₃₄₅₆₇₈₉'[int(c)] for c in str(k)), 'x' + high(k))])
    return gold, same, different


def dressed():
    """Sizes, colours, boxes and ordinals around a value."""
    n = R.randint(4, 20)
    way = R.choice(['\\large %s', '{\\Large %s}', '\\textcolor{red}{%s}', '\\framebox{%s}', '\\framebox[3cm][c]{%s}', '\\colorbox{red}{%s}', '\\color[rgb]{1,0,0}%s', '\\Rightarrow %s', '%s\\blacksquare', '%s^{\\text{th}}', '%s\\text{th}', '\\fbox{%s}'])
    return str(n), way % n, way % (n + 1)


def polynomial(n):
    """Coefficients of a random polynomial, the highest first, and its text."""
    c = [R.randint(1, 9)] + [R.randint(-9, 9) for _ in range(n)]
    terms = ['%+d%s' % (a, '' if n == i else 'x' if n - i == 1 else 'x^%d' % (n - i)) for i, a in enumerate(c) if a]
    return c, ''.join(terms).lstrip('+')


def integrals():
    """Definite integrals: of polynomials, exactly, and some whose values are known."""
    a, b, k, m = R.randint(-4, 3), R.randint(4, 9), R.randint(2, 9), R.randint(1, 4)
    c, f = polynomial(R.randint(1, 4))
    n = len(c)
    q = sum(F(x, n - i) * (F(b) ** (n - i) - F(a) ** (n - i)) for i, x in enumerate(c))
    d = R.choice(['dx', '\\,dx', '\\mathrm{d}x', '\\, \\mathrm{d} x'])
    known = [('\\int_{%d}^{%d} (%s) %s' % (a, b, f, d), tex(q), tex(other(q)))] * 4
    known += [('\\int_0^{\\pi} \\sin(%dx) %s' % (2 * k + 1, d), '\\frac{2}{%d}' % (2 * k + 1), '\\frac{1}{%d}' % (2 * k + 1)),
              ('\\int_1^{%d} \\frac{dx}{x}' % k, '\\ln %d' % k, '\\ln %d' % (k + 1)), ('\\int_0^1 e^{%dx} dx' % k, '\\frac{e^{%d}-1}{%d}' % (k, k), '\\frac{e^{%d}}{%d}' % (k, k)),
              ('\\int_0^{%d} \\sqrt{x}\\,dx' % k ** 2, tex(F(2 * k ** 3, 3)), tex(F(2 * k ** 3 + 1, 3))),
              ('\\int_0^\\infty x^%d e^{-%dx} dx' % (m, k), tex(F(math.factorial(m), k ** (m + 1))), tex(F(math.factorial(m), k ** m))),
              ('\\int_{-\\infty}^{\\infty} e^{-%dx^2} dx' % k, '\\sqrt{\\frac{\\pi}{%d}}' % k, '\\frac{\\pi}{%d}' % k), ('\\int_%d^\\infty \\frac{dx}{x^%d}' % (k, m + 1), tex(F(1, m * k ** m)), tex(F(1, k ** m) + 1)),
              ('\\int_{-%d}^{%d} |x| dx' % (k, k), str(k * k), '0'), ('\\int_0^{%d} \\frac{%d\\,dx}{x^2+%d}' % (k, k, k * k), '\\frac{\\pi}{4}', '\\frac{\\pi}{%d}' % (k + 3))]
    gold, same, different = R.choice(known)
    return (gold, same, different) if R.random() < .5 else (same, gold, R.choice([different, gold + '+1', '-' + gold]))


def limits():
    a, b, k = R.randint(1, 9), R.randint(1, 9), R.randint(1, 6)
    q = F(a, b)
    text, value = R.choice([
        ('\\lim_{x\\to 0}\\frac{\\sin %dx}{%dx}' % (a, b), tex(q)), ('\\lim_{x \\to 0} \\frac{e^{%dx}-1}{%dx}' % (a, b), tex(q)),
        ('\\lim_{n\\to\\infty}\\frac{%dn^%d+%d}{%dn^%d-n+1}' % (a, k + 1, k, b, k + 1), tex(q)), ('\\lim_{x\\to %d}\\frac{x^2-%d}{x-%d}' % (a, a * a, a), str(2 * a)),
        ('\\lim_{n\\to\\infty}\\left(1+\\frac{%d}{n}\\right)^{%dn}' % (a, b), 'e^{%d}' % (a * b)), ('\\lim_{x\\to 0}\\frac{1-\\cos %dx}{x^2}' % a, tex(F(a * a, 2))),
        ('\\lim_{x\\to %d}\\frac{\\sqrt{x}-%d}{x-%d}' % (a * a, a, a * a), tex(F(1, 2 * a))), ('\\lim_{x\\to %d}(x^2+%dx)' % (a, b), str(a * a + a * b)),
        ('\\lim_{x\\to\\infty}(\\sqrt{x^2+%dx}-x)' % a, tex(F(a, 2))), ('\\lim_{x\\to 0^+}\\frac{%d}{x}' % a, '\\infty'), ('\\lim_{x\\to %d^-}\\frac{1}{x-%d}' % (a, a), '-\\infty')])
    return text, value, R.choice(['0', '-' + value if value[0] != '-' else value[1:], value + '+1' if 'infty' not in value else str(a)])


def derivatives():
    c, f = polynomial(R.randint(2, 4))
    a, b, n = R.randint(2, 9), R.randint(2, 9), len(c) - 1
    d = '+'.join('(%d)x^{%d}' % (x * (n - i), n - i - 1) for i, x in enumerate(c[:-1]) if x)
    op = R.choice(['\\frac{d}{dx}', '\\frac{\\mathrm{d}}{\\mathrm{d}x}', '\\frac{\\partial}{\\partial x}'])
    gold, same, different = R.choice([
        ('(%s)' % f, d, d + '+x'), ('\\sin(%dx)' % a, '%d\\cos(%dx)' % (a, a), '\\cos(%dx)' % a), ('e^{%dx}' % a, '%de^{%dx}' % (a, a), 'e^{%dx}' % a),
        ('\\ln(x^2+%d)' % a, '\\frac{2x}{x^2+%d}' % a, '\\frac{1}{x^2+%d}' % a), ('\\left(x^%d\\ln x\\right)' % a, 'x^{%d}(%d\\ln x+1)' % (a - 1, a), '%dx^{%d}\\ln x' % (a, a - 1)),
        ('\\frac{x}{x+%d}' % a, '\\frac{%d}{(x+%d)^2}' % (a, a), '\\frac{1}{(x+%d)^2}' % a), ('\\sqrt{%dx+%d}' % (a, b), '\\frac{%d}{2\\sqrt{%dx+%d}}' % (a, a, b), '\\frac{1}{2\\sqrt{%dx+%d}}' % (a, b)),
        ('\\arctan(%dx)' % a, '\\frac{%d}{1+%dx^2}' % (a, a * a), '\\frac{1}{1+%dx^2}' % (a * a))])
    return op + gold, same, different


def endless():
    """Sums and products without end, and sums up to n."""
    a, b = R.randint(2, 9), R.randint(1, 6)
    return R.choice([
        ('\\sum_{n=%d}^{\\infty}\\frac{1}{%d^n}' % (b, a), tex(F(1, a ** b) / (1 - F(1, a))), tex(F(1, a ** b))), ('\\sum_{n=1}^\\infty\\frac{n}{%d^n}' % a, tex(F(a, (a - 1) ** 2)), tex(F(a, a * a + 1))),
        ('\\sum_{n=1}^{\\infty}\\frac{1}{n(n+%d)}' % b, tex(sum(F(1, k) for k in range(1, b + 1)) / b), tex(F(1, b) + 5)), ('\\sum_{n=1}^\\infty\\frac{%d}{n^2}' % a, '\\frac{%d\\pi^2}{6}' % a, '\\frac{%d\\pi}{6}' % a),
        ('\\sum_{n=0}^\\infty\\frac{%d^n}{n!}' % a, 'e^{%d}' % a, 'e^{%d}-1' % a), ('\\sum_{n=1}^\\infty\\frac{(-1)^{n+1}}{n}', '\\ln 2', '\\ln 3'), ('\\sum_{n=0}^\\infty\\frac{(-1)^n}{2n+1}', '\\frac{\\pi}{4}', '\\frac{\\pi}{3}'),
        ('\\prod_{n=%d}^\\infty\\left(1-\\frac{1}{n^2}\\right)' % a, tex(F(a - 1, a)), tex(F(a, a + 1))), ('\\sum_{n=1}^\\infty\\frac{%d}{n}' % a, '\\infty', str(a)),
        ('\\sum_{k=1}^{n} k^2', '\\frac{n(n+1)(2n+1)}{6}', '\\frac{n^2(n+1)}{2}'), ('\\sum_{k=1}^n (%dk+%d)' % (a, b), '\\frac{%dn(n+1)}{2}+%dn' % (a, b), '\\frac{%dn(n+1)}{2}+%d' % (a, b)),
        ('\\sum_{k=0}^n \\binom{n}{k}', '2^n', '2^n-1'), ('\\prod_{k=1}^{n} k', 'n!', '(n+1)!')])


def numerals():
    """Numerals to a base: other ways to write the base, or another base; and a wrong digit."""
    base, n = R.choice([2, 3, 5, 7, 8, 12, 16]), R.randint(40, 5000)
    digits = lambda v: digits(v // base) + '0123456789ABCDEF'[v % base] if v >= base else '0123456789ABCDEF'[v]
    names = {2: 'two', 3: 'three', 5: 'five', 7: 'seven', 8: 'eight', 12: 'twelve', 16: 'sixteen'}
    d, e = digits(n), digits(n + R.choice([1, base, -1]))
    same = R.choice(['(%s)_{%d}' % (d, base), '%s_{\\text{%s}}' % (d, names[base]), '\\text{%s}_{%d}' % (d, base), '%d_{10}' % n, '0x%s' % d if base == 16 else '%s_{(%d)}' % (d, base)])
    return '%s_{%d}' % (d, base), same, R.choice(['%s_{%d}' % (e, base), '(%s)_{%d}' % (e, base), '%s_{%d}' % (d, base + 1), '%d_{10}' % (n + 1)])


def builders():
    """Sets of whole numbers between bounds."""
    a, n, k = R.randint(-5, 5), R.randint(2, 6), R.randint(2, 4)
    sets = ['\\mathbb{Z}', 'ℤ'] + (['\\mathbb{N}', '\\mathbb{Z}^+', '\\mathbb{N}^*'] if a >= 1 else [])
    form = R.choice(['\\{x\\in %s : %d<x<%d\\}', '\\{x \\in %s \\mid %d < x < %d\\}', '{x∈%s | %d<x<%d}', 'x\\in %s : %d<x<%d'])
    elements = list(range(a, a + n))
    if R.random() < .3:
        return '\\{%s\\}' % ','.join(str(k * x) for x in elements), '\\{%dx : x\\in\\mathbb{Z}, %d\\le x\\le %d\\}' % (k, a, a + n - 1), '\\{%dx : x\\in\\mathbb{Z}, %d\\le x< %d\\}' % (k, a, a + n - 1)
    text = lambda lo, hi: form % (R.choice(sets), lo, hi)
    return '\\{%s\\}' % ','.join(map(str, elements)), text(a - 1, a + n), R.choice([text(a, a + n), text(a - 1, a + n + 1)])


def piecewise():
    """Functions by cases: the ends of the cases, their order and words; and another value, end or direction."""
    a, k, m = R.randint(-5, 5), R.randint(2, 9), R.randint(1, 9)
    x, y = '%dx' % k, '%dx+%d' % (m, (k - m) * a)    # both are k a where x is a
    rows = lambda v, w, left='x<%d' % a, right='x\\ge %d' % a: R.choice([
        '\\begin{cases} %s & %s \\\\ %s & %s \\end{cases}' % (v, left, w, right), '\\begin{cases} %s, & \\text{if } %s \\\\ %s, & \\text{if } %s \\end{cases}' % (w, right, v, left),
        '\\begin{cases} %s & \\text{for } %s \\\\ %s & \\text{otherwise} \\end{cases}' % (v, left, w)])
    name = 'f(x)=' if R.random() < .3 else ''
    other_end = ('x<%d' % (a + 1), 'x\\ge %d' % (a + 1))
    if k == m or R.random() < .3:    # a jump: the end belongs to one of them
        return name + rows(str(k), str(k + m)), rows(str(k), str(k + m)), R.choice([rows(str(k), str(k + m), 'x\\le %d' % a, 'x> %d' % a), rows(str(k + m), str(k)), rows(str(k), str(k + m + 1))])
    return name + rows(x, y), rows(x, y, *R.choice([(), ('x\\le %d' % a, 'x> %d' % a)])), R.choice([rows(y, x), rows(x, y + '+1'), rows(x, y, *other_end)])


def no_solution():
    ways = ['\\emptyset', '\\varnothing', '∅', '\\text{no solution}', 'no solutions', '\\text{There is no solution}', '\\text{No solutions exist}', '无解', '方程无解',
            '\\text{the equation has no solutions}', '\\text{empty set}', '\\{\\}']
    n = R.randint(1, 9)
    return R.choice(ways), R.choice(ways), R.choice([str(n), '\\{%d\\}' % n, '\\text{one solution}', '\\text{infinitely many solutions}', '0', '\\text{no}', '\\{0\\}', '有解', '\\mathbb{R}'])


def chinese_units():
    n = R.randint(2, 900)
    unit, as_, wrong = R.choice([('米', ' m', ' cm'), ('平方米', ' m}^2', ' m}^3'), ('立方厘米', ' cm}^3', ' cm}^2'), ('千米', ' km', ' m'), ('千克', ' kg', ' g'), ('小时', ' hours', ' minutes'),
                                 ('千米/小时', ' km/h', ' m/s'), ('千米每小时', ' km/h', ' m/s'), ('升', ' liters', ' ml'), ('天', ' days', ' hours'), ('个', '', None), ('人', '', None)])
    text = lambda k, u: '%d\\text{%s' % (k, u) + ('' if '}' in u else '}') if u else str(k)
    return text(n, as_), R.choice(['%d%s', '%d\\text{%s}', '%d %s']) % (n, unit), R.choice(['%d%s' % (n + 1, unit), text(n, wrong).replace(text(n, ''), str(n)) if wrong else '%d厘米' % (n + 3)])


CATEGORIES = [integers, decimals, fractions, mixed, percent, units, currency, powers, roots, logarithms, exponentials, trigonometry,
              factorials, binomials, absolutes, floors, sums, sets, tuples, intervals, unions, inequalities, equations, assignments,
              matrices, complexes, plus_minus, infinities, polynomials, symbolic, nested, tiny, letters, texts, ratios, before, after, multipliers, joined, jumps, contradictions,
              times_of_day, repeating, constants, unicode_forms, dressed, integrals, limits, derivatives, endless, numerals, builders,
              piecewise, no_solution, chinese_units]


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
