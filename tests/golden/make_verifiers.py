#!/usr/bin/env python3
"""Makes verifiers/answers.jsonl: what open-instruct's own verifiers score, for responses and ground truths chosen to meet each step of
their rules. One case per line: {"verifier", "response", "truth", "n_tok", "score"}.

    git clone https://github.com/allenai/open-instruct; git -C open-instruct checkout e6c3044
    python3 tests/golden/make_verifiers.py open-instruct

sympy is left out, as it is in effect in training there; so are the cases whose label makes a verifier raise an exception.
"""
import itertools
import json
import os
import re
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
PRELUDE = """
import re, json, string, ast, logging, dataclasses
from collections import Counter
from typing import Any
logger = logging.getLogger("upstream")
class VerifierConfig: pass
class MaxLengthVerifierConfig: max_length_verifier_max_length = 32768
@dataclasses.dataclass
class VerificationResult:
    score: float
class VerifierFunction:
    def __init__(self, name, weight=1.0, verifier_config=None):
        self.name, self.verifier_config = name, MaxLengthVerifierConfig()
"""


def upstream(root):
    """open-instruct's verifiers by name, without its other imports."""
    def read(path):
        with open(os.path.join(root, "open_instruct", path), encoding="utf-8") as f:
            return f.read()
    names = {}
    exec(re.sub(r"^import signal.*?^eval_logger[^\n]*$", "import re", read("math_utils.py").replace("import re\n", "", 1), flags=re.M | re.S), names)
    names["is_equiv"] = lambda a, b: False
    text = read("ground_truth_utils.py")
    exec(PRELUDE + text[text.index("def remove_thinking_section"):text.index("class LMJudgeVerifier(")], names)
    made = [names[c]() for c in ("GSM8KVerifier", "MathVerifier", "StrictMathVerifier", "FlanVerifier", "StringMatcherVerifier", "F1Verifier",
                                 "PuzzleMatcherVerifier", "ReSearchVerifierF1", "R1SearchVerifier", "MaxLenVerifier", "UpToMaxLenVerifier")]
    return {v.name: v for v in made}


NUMBERS = ["The answer is 42.", "42", "so 41, no, 42", "It costs $1,234 in all", "1,234,567 stars", "-3", "x = -3.5", "x = +7", "3.50", ".5",
           "0.5 or 1/2", "twenty", "", "#### 72", "\\boxed{18}", "He has 5 apples and 3 pears, 8 in all.", "1e5", "10%", "٣", "2-1", "12,3",
           "a1b2c3", "Answer: TWO", "3.", "007", "- 4", "1.2.3", "5,000.25"]
NUMBER_TRUTHS = ["42", "1234", "1234567", "-3", "-3.5", "+7", "3.5", ".5", "2", "twenty", "", "72", "18", "8", "5", "10", "٣", "-1", "123", "3", "TWO", "two",
                 "7", "007", "4", "5000.25", 42, 3.5]
MATH = ["\\boxed{42}", "so \\boxed{\\frac{1}{2}}", "\\boxed{\\frac12}", "\\boxed{\\dfrac{1}{2}}", "\\boxed{1/2}", "\\boxed{0.5}", "\\boxed{.5}",
        "\\boxed 7", "\\boxed 7$ done", "\\boxed{\\sqrt3}", "\\boxed{\\sqrt{3}}", "\\boxed{x=5}", "\\boxed{50\\%}", "\\boxed{90^\\circ}",
        "\\boxed{90^{\\circ}}", "\\boxed{\\left(1,2\\right)}", "\\boxed{(1, 2)}", "\\boxed{12 \\text{ cm}}", "\\boxed{3\\!,}", "\\boxed{a/b}",
        "\\boxed{\\text{Evelyn}}", "\\boxed{1} then \\boxed{2}", "\\boxed{1", "\\fbox{9}", "$x$ is $5$", "I get $\\frac34$ here", "$1,000$", "5",
        "The answer is 5", "", "Final Answer: The final answer is $5$. I hope it is correct.",
        "Final Answer: The final answer is $\\frac{1}{2}$. I hope it is correct.", "Final Answer: The final answer is 1,000 dollars. I hope it is correct.",
        "Final Answer: The final answer is $x=7$. I hope it is correct.", "Final Answer: The final answer is \\boxed{8}. I hope it is correct.",
        "Final Answer: The final answer is \\text{Evelyn}. I hope it is correct.", "Final Answer: The final answer is 5 units. ",
        "Final Answer: The final answer is 3\nI hope it is correct.", "Final Answer: The final answer is $\\sqrt2$. I hope it is correct.",
        "Final Answer: The final answer is 90^\\circ. I hope it is correct.", "Final Answer: The final answer is \\frac12. I hope it is correct.",
        "\\boxed{-\\frac{3}{4}}", "\\boxed{\\frac{3}4}", "\\boxed{3/4}", "\\boxed{03/4}", "\\boxed{1 000}", "\\boxed{\\$5}", "\\boxed{k = 3}",
        "\\boxed{abc=3}", "\\boxed{\\{1,2\\}}", "\\boxed{{1}}"]
MATH_TRUTHS = ["42", "\\frac{1}{2}", "1/2", "0.5", "7", "\\sqrt{3}", "\\sqrt{2}", "5", "x=5", "50", "90", "(1,2)", "12", "3,", "a/b", "Evelyn", "\\text{Evelyn}",
               "2", "1", "9", "\\frac{3}{4}", "1000", "8", "3", "-\\frac{3}{4}", "3/4", "1,000", "x=7", "abc=3", "\\{1,2\\}", "{1}", ""]
TEXTS = ["Paris", "The answer is: Paris", "The answer is: the Paris!", "I think so. The answer is: A. The answer is: B", "<answer>Paris</answer>",
         "<answer>London</answer> or <answer> the Paris. </answer>", "<answer>Paris", "Paris</answer>", "<think>hm</think>Paris",
         "<think>a</think> <answer>New  York\tCity!</answer>", "<|assistant|> Paris ", "PARIS", "paris, france", "capital of France is Paris", "",
         "a an the", "<answer></answer>", "théâtre", "an apple a day", "the-cat", "don't", "dont", "first</think>second</think>Paris", "ÉCOLE",
         "<finish>Paris</finish>", "<finish> the Paris </finish>", "<FINISH>Paris</FINISH>", "<finish></finish>", "<finish>   </finish>",
         "<finish>Rome</finish> <finish>Paris</finish>", "<finish>Paris", "Paris</finish>", "<finish>Paris\nFrance</finish>",
         "<finish>capital of France is Paris</finish>", "<finish>Paris Paris</finish>"]
TEXT_TRUTHS = ["Paris", "paris", "B", "new york city", "", "Paris France", "the", "théâtre", "apple day", "dont", "école", "thecat", "cat", "Paris."]
LISTS = [["Paris", "Rome"], ["Berlin"], ["new york", "paris france", "B"], ["1", "2"], ["capital of France"]]
LENGTHS = ["0", "1", "10", "100", "250.5", " 512 ", "1e3", "4096", "32768", "40000"]


def cases():
    for r, t in itertools.product(NUMBERS, NUMBER_TRUTHS):
        yield "gsm8k", r, t, -1
    for name in ("math", "strict_math"):
        for r, t in itertools.product(MATH, MATH_TRUTHS):
            yield name, r, t, -1
    for name in ("flan", "string_matcher", "string_f1", "puzzle", "re_search", "re_search_f1"):
        for r, t in itertools.product(TEXTS, TEXT_TRUTHS):
            yield name, r, t, -1
    for r, t in itertools.product(TEXTS, LISTS):
        yield "string_f1", r, t, -1
        yield "re_search", r, json.dumps(t), -1
        yield "re_search_f1", r, json.dumps(t), -1
    for name in ("max_length", "up_to_max_length"):
        for n, t in itertools.product((0, 1, 9, 10, 11, 256, 1000, 32768, 70000), LENGTHS):
            yield name, "x", t, n


def main():
    verifiers, kept = upstream(sys.argv[1]), {}
    for name, response, truth, n_tok in cases():
        try:
            score = verifiers[name]([0] * max(n_tok, 0), response, truth).score
        except Exception:
            continue
        kept.setdefault((name, score > 0), []).append({"verifier": name, "response": response, "truth": truth, "n_tok": n_tok, "score": float(score)})
    with open(os.path.join(HERE, "verifiers", "answers.jsonl"), "w", encoding="utf-8") as out:
        for (name, right), all_of in sorted(kept.items()):
            step = max(1, len(all_of) // 80)    # at most about 80 to 160 of each kind, spread over all
            for case in all_of if right else all_of[::step]:
                out.write(json.dumps(case, ensure_ascii=False) + "\n")


main()
