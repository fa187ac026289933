#include "workers/engine/reward/math/words.h"
#include <string.h>
#include <strings.h>
#include "protocol/base/name_hash.h"
#include "workers/engine/reward/answer.h"

// clang-format off
static const struct math_command commands[] = {
    { "left", C_SPACE }, { "right", C_SPACE }, { "big", C_SPACE }, { "Big", C_SPACE }, { "bigg", C_SPACE },
    { "Bigg", C_SPACE }, { "bigl", C_SPACE }, { "bigr", C_SPACE }, { "Bigl", C_SPACE }, { "Bigr", C_SPACE },
    { "biggl", C_SPACE }, { "biggr", C_SPACE }, { "Biggl", C_SPACE }, { "Biggr", C_SPACE }, { "mleft", C_SPACE },
    { "mright", C_SPACE }, { "middle", C_SPACE }, { "displaystyle", C_SPACE }, { "textstyle", C_SPACE },
    { "scriptstyle", C_SPACE }, { "limits", C_SPACE }, { "nolimits", C_SPACE }, { "quad", C_SPACE },
    { "qquad", C_SPACE },
    { "rm", C_SPACE }, { "bf", C_SPACE }, { "it", C_SPACE }, { "nonumber", C_SPACE }, { "hline", C_SPACE },
    { "tiny", C_SPACE }, { "scriptsize", C_SPACE }, { "footnotesize", C_SPACE }, { "small", C_SPACE },
    { "normalsize", C_SPACE }, { "large", C_SPACE }, { "Large", C_SPACE }, { "LARGE", C_SPACE }, { "huge", C_SPACE },
    { "Huge", C_SPACE }, { "blacksquare", C_SPACE }, { "qed", C_SPACE }, { "qedsymbol", C_SPACE },
    { "thinspace", C_SPACE }, { "enspace", C_SPACE }, { "boldmath", C_SPACE }, { "rmfamily", C_SPACE },
    { "pi", C_CONST, CONST_PI }, { "infty", C_CONST, CONST_INF }, { "imath", C_CONST, CONST_I },
    { "infinity", C_CONST, CONST_INF },
    { "alpha", C_SYM }, { "beta", C_SYM }, { "gamma", C_SYM }, { "delta", C_SYM }, { "epsilon", C_SYM },
    { "varepsilon", C_SYM }, { "zeta", C_SYM }, { "eta", C_SYM }, { "theta", C_SYM }, { "vartheta", C_SYM },
    { "iota", C_SYM }, { "kappa", C_SYM }, { "lambda", C_SYM }, { "mu", C_SYM }, { "nu", C_SYM }, { "xi", C_SYM },
    { "rho", C_SYM }, { "varrho", C_SYM }, { "sigma", C_SYM }, { "tau", C_SYM }, { "upsilon", C_SYM }, { "phi", C_SYM },
    { "varphi", C_SYM }, { "chi", C_SYM }, { "psi", C_SYM }, { "omega", C_SYM }, { "Delta", C_SYM }, { "Theta", C_SYM },
    { "Lambda", C_SYM }, { "Xi", C_SYM }, { "Sigma", C_SYM }, { "Phi", C_SYM }, { "Psi", C_SYM }, { "Omega", C_SYM },
    { "ell", C_SYM }, { "hbar", C_SYM }, { "Gamma", C_FUNC, FN_GAMMA },
    { "frac", C_FRAC }, { "dfrac", C_FRAC }, { "tfrac", C_FRAC }, { "cfrac", C_FRAC }, { "nicefrac", C_FRAC },
    { "sfrac", C_FRAC }, { "fraction", C_FRAC },
    { "binom", C_BINOM }, { "dbinom", C_BINOM }, { "tbinom", C_BINOM }, { "sqrt", C_SQRT },
    { "sin", C_FUNC, FN_SIN }, { "cos", C_FUNC, FN_COS }, { "tan", C_FUNC, FN_TAN }, { "cot", C_FUNC, FN_COT },
    { "sec", C_FUNC, FN_SEC }, { "csc", C_FUNC, FN_CSC }, { "cosec", C_FUNC, FN_CSC }, { "tg", C_FUNC, FN_TAN },
    { "ctg", C_FUNC, FN_COT }, { "arcsin", C_FUNC, FN_ASIN }, { "arccos", C_FUNC, FN_ACOS },
    { "arctan", C_FUNC, FN_ATAN },
    { "arctg", C_FUNC, FN_ATAN }, { "arccot", C_FUNC, FN_ACOT }, { "arcsec", C_FUNC, FN_ASEC },
    { "arccsc", C_FUNC, FN_ACSC },
    { "asin", C_FUNC, FN_ASIN }, { "acos", C_FUNC, FN_ACOS }, { "atan", C_FUNC, FN_ATAN },
    { "sinh", C_FUNC, FN_SINH }, { "cosh", C_FUNC, FN_COSH }, { "tanh", C_FUNC, FN_TANH }, { "coth", C_FUNC, FN_COTH },
    { "sech", C_FUNC, FN_SECH }, { "csch", C_FUNC, FN_CSCH }, { "arsinh", C_FUNC, FN_ASINH },
    { "arcosh", C_FUNC, FN_ACOSH },
    { "artanh", C_FUNC, FN_ATANH }, { "arcsinh", C_FUNC, FN_ASINH }, { "arccosh", C_FUNC, FN_ACOSH },
    { "arctanh", C_FUNC, FN_ATANH }, { "exp", C_FUNC, FN_EXP }, { "ln", C_FUNC, FN_LN }, { "log", C_FUNC, FN_LOG },
    { "lg", C_FUNC, FN_LOG }, { "gcd", C_FUNC, FN_GCD }, { "lcm", C_FUNC, FN_LCM }, { "max", C_FUNC, FN_MAX },
    { "min", C_FUNC, FN_MIN }, { "det", C_FUNC, FN_DET }, { "Re", C_FUNC, FN_RE }, { "Im", C_FUNC, FN_IM },
    { "arg", C_FUNC, FN_ARG }, { "abs", C_FUNC, FN_ABS }, { "floor", C_FUNC, FN_FLOOR }, { "ceil", C_FUNC, FN_CEIL },
    { "sgn", C_FUNC, FN_SIGN },
    { "operatorname", C_OPNAME }, { "mathrm", C_OPNAME }, { "mathop", C_OPNAME }, { "operatorname*", C_OPNAME },
    { "text", C_TEXT }, { "mbox", C_TEXT }, { "textbf", C_TEXT }, { "textrm", C_TEXT }, { "textit", C_TEXT },
    { "texttt", C_TEXT }, { "textsf", C_TEXT }, { "hbox", C_TEXT }, { "textup", C_TEXT }, { "textnormal", C_TEXT },
    { "mathbf", C_FONT }, { "mathit", C_FONT }, { "mathsf", C_FONT }, { "mathcal", C_FONT }, { "boldsymbol", C_FONT },
    { "bm", C_FONT }, { "mathscr", C_FONT }, { "mathfrak", C_FONT }, { "mathtt", C_FONT }, { "pmb", C_FONT },
    { "bold", C_FONT }, { "mathnormal", C_FONT }, { "emph", C_FONT }, { "underline", C_FONT }, { "uline", C_FONT },
    { "mathbb", C_BB }, { "Bbb", C_BB }, { "R", C_BB, 'R' }, { "Z", C_BB, 'Z' }, { "N", C_BB, 'N' }, { "Q", C_BB, 'Q' },
    { "C", C_BB, 'C' }, { "reals", C_BB, 'R' },
    { "vec", C_ACCENT, '>' }, { "overrightarrow", C_ACCENT, '>' }, { "hat", C_ACCENT }, { "widehat", C_ACCENT },
    { "tilde", C_MARK },
    { "bar", C_MARK }, { "overline", C_MARK }, { "dot", C_MARK }, { "ddot", C_MARK }, { "overset", C_BAD },
    { "times", C_CHAR, '*' }, { "cdot", C_CHAR, '*' }, { "ast", C_CHAR, '*' }, { "bullet", C_CHAR, '*' },
    { "star", C_CHAR, '*' },
    { "div", C_CHAR, '/' }, { "colon", C_CHAR, ':' }, { "mid", C_CHAR, '|' }, { "vert", C_CHAR, '|' },
    { "lvert", C_CHAR, '|' },
    { "rvert", C_CHAR, '|' }, { "|", C_CHAR, '|' }, { "lVert", C_CHAR, '|' }, { "rVert", C_CHAR, '|' },
    { "Vert", C_CHAR, '|' },
    { "lbrack", C_CHAR, '[' }, { "rbrack", C_CHAR, ']' }, { "lparen", C_CHAR, '(' }, { "rparen", C_CHAR, ')' },
    { "%", C_CHAR, '%' }, { "&", C_CHAR, '&' }, { "and", C_CHAR, ',' }, { "land", C_CHAR, ',' },
    { "wedge", C_CHAR, ',' },
    { "lor", C_CHAR, ',' }, { "vee", C_CHAR, ',' }, { "newline", C_CHAR, ',' }, { "prime", C_CHAR, '\'' },
    { "mod", C_CHAR, 'm' },
    { "bmod", C_CHAR, 'm' }, { "pmod", C_PMOD }, { "lt", C_REL, REL_LT }, { "gt", C_REL, REL_GT },
    { "le", C_REL, REL_LE },
    { "leq", C_REL, REL_LE }, { "leqslant", C_REL, REL_LE }, { "leqq", C_REL, REL_LE }, { "ge", C_REL, REL_GE },
    { "geq", C_REL, REL_GE }, { "geqslant", C_REL, REL_GE }, { "geqq", C_REL, REL_GE }, { "ne", C_REL, REL_NE },
    { "neq", C_REL, REL_NE }, { "in", C_REL, REL_IN }, { "notin", C_REL, REL_NOTIN }, { "approx", C_REL, REL_APPROX },
    { "simeq", C_REL, REL_APPROX }, { "thickapprox", C_REL, REL_APPROX }, { "doteq", C_REL, REL_APPROX },
    { "equiv", C_REL, REL_CONG }, { "subset", C_REL, REL_SUBSET }, { "subseteq", C_REL, REL_SUBSET },
    { "coloneqq", C_REL, REL_EQ },
    { "cong", C_REL, REL_EQ }, { "eq", C_REL, REL_EQ },
    { "{", C_OPEN, '{' }, { "}", C_CLOSE, '}' }, { "lbrace", C_OPEN, '{' }, { "rbrace", C_CLOSE, '}' },
    { "lfloor", C_OPEN, 'f' }, { "rfloor", C_CLOSE, 'f' }, { "lceil", C_OPEN, 'c' }, { "rceil", C_CLOSE, 'c' },
    { "langle", C_OPEN, '<' }, { "rangle", C_CLOSE, '>' },
    { "begin", C_BEGIN }, { "end", C_END }, { "boxed", C_BOX }, { "fbox", C_BOX }, { "phantom", C_SKIP_ARG, 1 },
    { "hspace", C_SKIP_ARG, 1 }, { "vspace", C_SKIP_ARG, 1 }, { "label", C_SKIP_ARG, 1 }, { "tag", C_SKIP_ARG, 1 },
    { "color", C_SKIP_ARG, 1 }, { "textcolor", C_SKIP_ARG, 1 },
    { "hphantom", C_SKIP_ARG, 1 }, { "vphantom", C_SKIP_ARG, 1 },
    { "framebox", C_SKIP_ARG, 0 }, { "makebox", C_SKIP_ARG, 0 }, { "bbox", C_SKIP_ARG, 0 }, { "parbox", C_SKIP_ARG, 1 },
    { "raisebox", C_SKIP_ARG, 1 }, { "colorbox", C_SKIP_ARG, 1 }, { "fcolorbox", C_SKIP_ARG, 2 }, { "scalebox", C_SKIP_ARG, 1 },
    { "resizebox", C_SKIP_ARG, 2 }, { "cancel", C_BAD }, { "bcancel", C_BAD }, { "xcancel", C_BAD }, { "sout", C_BAD },
    { "sum", C_SUM, K_SUM }, { "prod", C_SUM, K_PROD }, { "int", C_OPAQUE, 1 }, { "lim", C_OPAQUE, 2 },
    { "iint", C_OPAQUE, 3 },
    { "oint", C_OPAQUE, 4 }, { "iiint", C_OPAQUE, 5 }, { "sup", C_OPAQUE, 6 }, { "inf", C_CONST, CONST_INF },
    { "numeral", C_NUMERAL }, { "over", C_OVER }, { "choose", C_CHOOSE }, { "circ", C_DEGREE }, { "degree", C_DEGREE }, { "degrees", C_DEGREE },
    { "ldots", C_DOTS }, { "dots", C_DOTS }, { "cdots", C_DOTS }, { "dotsc", C_DOTS }, { "vdots", C_BAD },
    { "emptyset", C_EMPTYSET }, { "varnothing", C_EMPTYSET }, { "O", C_EMPTYSET },
    { "pm", C_PM, 1 }, { "mp", C_PM, -1 }, { "cup", C_CUP }, { "bigcup", C_CUP }, { "cap", C_CAP },
    { "setminus", C_SETMINUS },
    { "backslash", C_SETMINUS }, { "smallsetminus", C_SETMINUS },
    { "to", C_BAD }, { "rightarrow", C_BAD }, { "Rightarrow", C_BAD }, { "implies", C_BAD }, { "iff", C_BAD },
    { "Leftrightarrow", C_BAD }, { "therefore", C_SPACE }, { "because", C_BAD }, { "forall", C_BAD },
    { "exists", C_BAD },
    { "longrightarrow", C_BAD }, { "mapsto", C_BAD }, { "nmid", C_BAD }, { "parallel", C_BAD }, { "perp", C_BAD },
    { "sim", C_BAD },
    { "propto", C_BAD }, { "nabla", C_SYM }, { "partial", C_SYM }, { "triangle", C_SYM }, { "angle", C_SYM },
    { "not", C_BAD }, { "stackrel", C_BAD }, { "underbrace", C_BAD }, { "overbrace", C_BAD }, { "xrightarrow", C_BAD },
};
// clang-format on
/* Characters that mean a command; the rest of Unicode is not mathematics. */
// clang-format off
static const struct { const char *utf8, *cmd; } unicode[] = {
    { "π", "pi" }, { "∞", "infty" }, { "≤", "le" }, { "≥", "ge" }, { "≠", "ne" }, { "≈", "approx" }, { "∈", "in" },
    { "∉", "notin" }, { "∪", "cup" }, { "∩", "cap" }, { "×", "times" }, { "÷", "div" }, { "·", "cdot" },
    { "⋅", "cdot" },
    { "∙", "cdot" }, { "∗", "times" }, { "√", "sqrt" }, { "°", "circ" }, { "º", "circ" }, { "±", "pm" }, { "∓", "mp" },
    { "α", "alpha" }, { "β", "beta" }, { "γ", "gamma" }, { "δ", "delta" }, { "ε", "epsilon" }, { "θ", "theta" },
    { "λ", "lambda" }, { "μ", "mu" }, { "ρ", "rho" }, { "σ", "sigma" }, { "τ", "tau" }, { "φ", "phi" }, { "ϕ", "phi" },
    { "ψ", "psi" }, { "ω", "omega" }, { "Ω", "Omega" }, { "Δ", "Delta" }, { "∅", "emptyset" }, { "ℝ", "R" },
    { "ℤ", "Z" },
    { "ℕ", "N" }, { "ℚ", "Q" }, { "ℂ", "C" }, { "⌊", "lfloor" }, { "⌋", "rfloor" }, { "⌈", "lceil" }, { "⌉", "rceil" },
    { "⟨", "langle" }, { "⟩", "rangle" }, { "∖", "setminus" }, { "…", "ldots" }, { "∑", "sum" }, { "∏", "prod" },
    { "∫", "int" }, { "∂", "partial" },
    { "≡", "equiv" }, { "⊂", "subset" }, { "⊆", "subseteq" }, { "′", "prime" }, { "∧", "and" }, { "∨", "lor" },
};
// clang-format on
// clang-format off
static const struct { const char *utf8, *as; } unicode_text[] = {
    { "−", "-" }, { "–", "-" }, { "﹣", "-" }, { "²", "^2" }, { "³", "^3" }, { "¹", "^1" }, { "⁴", "^4" },
    { "⁵", "^5" }, { "⁶", "^6" }, { "⁷", "^7" }, { "⁸", "^8" }, { "⁹", "^9" }, { "⁰", "^0" }, { "½", "(1/2)" },
    { "¼", "(1/4)" }, { "¾", "(3/4)" }, { "⅓", "(1/3)" }, { "⅔", "(2/3)" }, { "⅛", "(1/8)" },
    { "∣", "|" }, { "∶", ":" }, { "⁄", "/" }, { "“", " " }, { "”", " " }, { "‘", " " }, { "’", "'" },
    { "\xc2\xa0", " " }, { "\xe2\x80\x89", " " },
    { "\xe2\x80\xaf", " " }, { "\xe2\x80\x8b", " " }, 
    { "₀", "_0" }, { "₁", "_1" }, { "₂", "_2" }, { "₃", "_3" }, { "₄", "_4" }, { "₅", "_5" }, { "₆", "_6" }, { "₇", "_7" },
    { "₈", "_8" }, { "₉", "_9" }, { "⁻", "^-" },
    { "ⁿ", "^n" }, { "⁺", "^+" }, { "ₙ", "_n" }, { "⅕", "(1/5)" }, { "⅖", "(2/5)" }, { "⅗", "(3/5)" }, { "⅘", "(4/5)" }, { "⅙", "(1/6)" },
    { "⅚", "(5/6)" }, { "⅜", "(3/8)" }, { "⅝", "(5/8)" }, { "⅞", "(7/8)" }, { "、", "," }, { "。", "." }, { "　", " " },
    { "每", "/" }, { "方程无解", "no solution" }, { "无实数解", "no real solution" }, { "无实数根", "no real root" },
    { "无实根", "no real root" }, { "没有实数根", "no real root" }, { "没有实根", "no real root" }, { "没有解", "no solution" },
    { "无解", "no solution" }, { "空集", "empty set" }, { "不存在", "does not exist" },
};
// clang-format on
// clang-format off
static const char *const unit_words[] = {
    "cm", "mm", "km", "dm", "nm", "meter", "meters", "metre", "metres", "centimeter", "centimeters", "millimeters",
        "kilometers",
    "inch", "inches", "ft", "feet", "foot", "yard", "yards", "yd", "mile", "miles", "mph", "kmh", "kph", "sq", "square",
        "cubic",
    "unit", "units", "kg", "mg", "gram", "grams", "kilogram", "kilograms", "lb", "lbs", "pound", "pounds", "ounce",
        "ounces",
    "oz", "ton", "tons", "tonnes", "liter", "liters", "litre", "litres", "ml", "mL", "gallon", "gallons", "quart",
        "quarts", "pint",
    "sec", "secs", "second", "seconds", "min", "mins", "minute", "minutes", "hr", "hrs", "hour", "hours", "day", "days",
        "week",
    "weeks", "month", "months", "year", "years", "dollar", "dollars", "cent", "cents", "usd", "USD", "yuan", "euro",
        "euros",
    "rupees", "people", "students", "times", "ways", "rad", "radian", "radians", "points", "coins", "apples", "books",
        "cups",
    "men", "boys", "girls", "cars", "kmph", "am", "pm", "AM", "PM", "Hz", "kHz", "MHz", "GHz", "Pa", "kPa", "eV", "keV", "MeV",
        "kJ", "kW", "mA", "eggs", "bags", "boxes",
};
// clang-format on

/* Words beside a unit that leave it a unit. */
static const char *const unit_fillers[] = {
    "per",         "of",         "a",           "an",         "each",       "th",         "st",        "nd",         "rd",
    "celsius",     "fahrenheit", "kelvin",      "person",     "student",    "way",        "apple",     "book",       "coin",
    "egg",         "box",        "point",       "coulomb",    "newton",     "newtons",    "joule",     "joules",     "watt",
    "watts",       "volt",       "volts",       "amp",        "amps",       "ohm",        "ohms",      "mol",        "mole",
    "moles",       "rpm",        "rps",         "decimeter",  "decimeters", "millimeter", "kilometer", "milligram",  "milligrams",
    "millisecond", "ms",         "milliliters", "milliliter", "acre",       "hectare",    "kilometre", "kilometres", "centimetre",
    "centimetres", "women",      "children",    "fish",       "mice",       "feet",       "teeth",     "sheep",      "deer",
    "a.m",         "p.m",        "rupee",       "peso",       "yen",        "pence",      "penny",     "degree",     "in",
    "o'clock",
};
static const char *const chinese_units[] = {
    "个", "元", "人",   "米", "厘米",     "分米",     "毫米",     "千米",     "公里",     "克",       "千克",   "公斤",
    "吨", "升", "毫升", "秒", "分",       "分钟",     "小时",     "时",       "天",       "日",       "周",     "月",
    "年", "岁", "次",   "种", "只",       "张",       "本",       "件",       "辆",       "台",       "块",     "角",
    "支", "条", "名",   "位", "棵",       "箱",       "袋",       "平方米",   "平方厘米", "平方千米", "立方米", "立方厘米",
    "度", "页", "套",   "双", "平方分米", "平方毫米", "平方公里", "立方分米", "对",       "组",       "题",     "盒",
    "颗", "朵", "枝",   "头", "匹",       "根",       "粒",
};
/* Words in s that look like the plural of what is counted but say more: numbers, operations, verbs, adverbs. */
// clang-format off
static const char *const no_plurals[] = {
    "absolutes", "adds", "afterwards", "agrees", "alas", "allows", "always", "ands", "antiderivatives", "anyways", "appears", "applies",
    "approaches", "approximates", "approximations", "assumes", "averages", "backwards", "becomes", "believes", "belongs", "besides",
    "billions", "bits", "bounds", "calls", "centuries", "changes", "comes", "complements", "conjugates", "contains", "continues",
    "contradicts", "converges", "cosines", "cotangents", "couples", "crores", "cubes", "decades", "decimals", "decreases", "degrees", "denominators",
    "depends", "derivatives", "differences", "differs", "digits", "disagrees", "diverges", "divides", "divisors", "does", "doubles",
    "downstairs", "downwards", "dozens", "drops", "eighths", "eights", "elevens", "ends", "equals", "errors", "estimates", "exceeds",
    "excludes", "exists", "exponentials", "exponents", "factorials", "factors", "fails", "falls", "feels", "fifths", "finds", "fives",
    "follows", "fours", "fourths", "fractions", "gets", "gives", "goes", "googols", "grands", "grosses", "grows", "halves", "happens",
    "heaps", "helps", "hers", "holds", "hopes", "hundreds", "hundredths", "implies", "includes", "increases", "indicates", "indoors",
    "infinitesimals", "infinities", "integrals", "inverses", "keeps", "kilos", "knows", "lakhs", "leaves", "lies", "limits", "loads",
    "logarithms", "logs", "looks", "loses", "lots", "makes", "matches", "maxes", "means", "medians", "millions", "mins", "minuses",
    "mistakes", "modes", "moves", "multiples", "multiplies", "myriads", "needs", "negations", "negatives", "nines", "ninths", "nones",
    "nots", "nowadays", "nulls", "numerators", "occurs", "ones", "opposites", "ordinals", "others", "ours", "outdoors", "overseas",
    "pairs", "percentages", "percents", "perhaps", "perhapses", "plays", "pluses", "positives", "possibles", "powers", "probabilities",
    "products", "proves", "quadrillions", "quadruples", "quarters", "quintillions", "quotients", "radians", "ranges", "ratios",
    "reciprocals", "remainders", "remains", "repeats", "represents", "requires", "rights", "rises", "roots", "satisfies", "says",
    "scores", "secants", "seems", "sees", "series", "sevenths", "sextillions", "shows", "shrinks", "sideways", "sines", "sixes", "sixths",
    "solves", "sometimes", "sounds", "squares", "starts", "stays", "stops", "subscripts", "subtracts", "suggests", "sums", "superscripts",
    "takes", "tangents", "tends", "tens", "tenths", "thanks", "theirs", "thinks", "thirds", "thousands", "thousandths", "threes", "times",
    "towards", "trillions", "triples", "turns", "twelves", "twenties", "twos", "undefineds", "unknowns", "upstairs", "upwards", "uses",
    "variables", "varies", "wants", "whereabouts", "whereas", "wins", "works", "wrongs", "yields", "yours", "zeroes", "zeros", "zillions",
};
// clang-format on
static const struct multiplier multipliers[] = {
    { "hundred", 100, 0 },
    { "thousand", 1000, 0 },
    { "million", 1000000, 0 },
    { "billion", 1000000000, 0 },
    { "trillion", 1000000000000, 0 },
    { "quadrillion", 1000000000000000, 0 },
    { "quintillion", 1000000000000000000, 0 },
    { "lakh", 100000, 0 },
    { "crore", 10000000, 0 },
    { "dozen", 12, 0 },
    { "squared", 1, 2 },
    { "cubed", 1, 3 },
    { "万", 10000, 0 },
    { "亿", 100000000, 0 },
};
/* Words that say that an answer follows. */
static const char *const lead_empty[] = {
    "the",   "a",        "an",     "answer",    "answers",   "final",       "is",     "are",    "value",     "values", "equals",
    "equal", "to",       "result", "solution",  "solutions", "so",          "thus",   "hence",  "therefore", "we",     "get",
    "have",  "area",     "volume", "perimeter", "length",    "width",       "height", "radius", "total",     "cost",   "price",
    "speed", "distance", "time",   "age",       "number",    "probability", "angle",  "ans",    "with",      "where",  "and",
    "for",   "option",   "choice", "case",      "at",        "when",        "if",     "or",     "it",        "this",
};

static bool listed(const char *const *list, size_t n, const char *s, size_t len)
{
    for (size_t i = 0; i < n; i++)
        if (strlen(list[i]) == len && strncasecmp(list[i], s, len) == 0)
            return true;
    return false;
}

static bool is_word_end(char c)
{
    return c == '\0' || strchr(" ~\t\n/^*,;", c) != NULL;
}

/* The next word of *rest, without the dots after it, and *rest after it; empty: there is none. */
static struct span word_next(struct span *rest)
{
    struct span word = *rest;
    while (word.len > 0 && is_word_end(*word.s))
        word = (struct span){ word.s + 1, word.len - 1 };
    size_t n = 0;
    while (n < word.len && !is_word_end(word.s[n]))
        n++;
    *rest = (struct span){ word.s + n, word.len - n };
    while (n > 1 && word.s[n - 1] == '.')
        n--;
    return (struct span){ word.s, n };
}

#define LISTED(list, word) listed(list, ARRAY_SIZE(list), (word).s, (word).len)

/* Equal parts, by the endings of their number: fourteenths, sixtieths, millionths. */
static bool is_parts(struct span word)
{
    static const char *const endings[] = { "teenths", "tieths", "illionths", "elfths", "evenths", "andths", "redths" };
    for (size_t i = 0; i < ARRAY_SIZE(endings); i++) {
        size_t n = strlen(endings[i]);
        if (word.len > n && strncasecmp(word.s + word.len - n, endings[i], n) == 0)
            return true;
    }
    return false;
}

/* A regular plural: what is counted. Not plus and minus, this and basis, less. */
static bool is_plural(struct span word)
{
    if (word.len < 4 || (word.s[word.len - 1] | 32) != 's' || strchr("sui", word.s[word.len - 2] | 32))
        return false;
    for (size_t i = 0; i < word.len; i++)
        if ((word.s[i] | 32) < 'a' || (word.s[i] | 32) > 'z')
            return false;
    return !LISTED(no_plurals, word) && !is_parts(word);
}

/* What a letter of an answer stands for: k is an integer. */
static bool is_domain(struct span s)
{
    static const char *const domains[] = { "is an integer",           "is any integer",           "are integers",
                                           "is a constant",           "is an arbitrary constant", "is a real number",
                                           "is an arbitrary integer", "is any real number",       "is constant" };
    s = span_trim(s);
    return LISTED(domains, s);
}

bool unit_plain(const char *s, size_t len)
{
    if (is_domain((struct span){ s, len }))
        return true;
    static const char *const powers[] = { "squared", "cubed" };    // of a unit before them
    struct span rest = { s, len }, word = word_next(&rest), next;
    bool before = false;
    for (; word.len > 0; word = next) {
        next = word_next(&rest);
        bool number = before && word.s[-1] == '^' && (*word.s == '-' || (*word.s >= '0' && *word.s <= '9')), last = next.len == 0;
        bool times = word.len == 5 && strncasecmp(word.s, "times", 5) == 0;
        bool power = before && LISTED(powers, word);
        bool letter = word.len == 1 && strchr("msghlLNJWVCFA", *word.s);    // not k and M, which are thousands and millions
        bool unit = times ? last
                          : letter || power || unit_word(word.s, word.len) || LISTED(unit_fillers, word) || LISTED(chinese_units, word);
        before = true;
        if (!number && !unit && !(last && is_plural(word)))
            return false;
    }
    return true;
}

size_t chinese_len(const char *s, const char *end)
{
    size_t run = 0, bytes;
    while (s + run < end && (s[run] & 0x80))
        run++;
    const struct multiplier *times = multiplier_find(s, run, &bytes);
    struct span unit = times ? (struct span){ s + bytes, run - bytes } : (struct span){ s, run };
    return run > 0 && ((times && unit.len == 0) || LISTED(chinese_units, unit)) ? run : 0;
}

const struct multiplier *multiplier_find(const char *s, size_t len, size_t *bytes)
{
    for (size_t i = 0; i < ARRAY_SIZE(multipliers); i++) {
        size_t n = strlen(multipliers[i].word);
        bool whole = len >= n && strncasecmp(s, multipliers[i].word, n) == 0
                     && (len == n || (multipliers[i].word[0] & 0x80) || is_word_end(s[n]) || s[n] == '.');
        if (whole) {
            *bytes = n;
            return &multipliers[i];
        }
    }
    return NULL;
}

size_t half_words(const char *s, const char *end)
{
    static const char *const ways[] = { "and a half", "and one half", "and one-half" };
    for (size_t i = 0; i < ARRAY_SIZE(ways); i++) {
        size_t n = strlen(ways[i]);
        if ((size_t)(end - s) >= n && strncasecmp(s, ways[i], n) == 0 && (s + n == end || is_word_end(s[n]) || s[n] == '.'))
            return n;
    }
    return 0;
}

enum lead lead_of(const char *s, size_t len)
{
    static const struct {
        const char *words;
        enum lead lead;
    } known[] = { { "negative", LEAD_MINUS },   { "minus", LEAD_MINUS }, { "half of", LEAD_HALF }, { "half", LEAD_HALF },
                  { "one half of", LEAD_HALF }, { "twice", LEAD_TWICE }, { "double", LEAD_TWICE } };
    struct span all = span_trim((struct span){ s, len }), rest = all;
    for (size_t i = 0; i < ARRAY_SIZE(known); i++)
        if (all.len == strlen(known[i].words) && strncasecmp(all.s, known[i].words, all.len) == 0)
            return known[i].lead;
    for (struct span word = word_next(&rest); word.len > 0; word = word_next(&rest)) {
        while (word.len > 1 && strchr(":=", word.s[word.len - 1]))
            word.len--;
        if (!LISTED(lead_empty, word) && !(word.len == 1 && strchr(":=$", *word.s)))
            return LEAD_UNKNOWN;
    }
    return LEAD_EMPTY;
}

bool no_solution(const char *s, size_t len, struct span *limit)
{
    static const char *const sets[] = { "empty set", "the empty set", "null set", "the null set" };
    static const char *const before[] = { "there",      "is",  "are",  "the", "equation", "system",
                                          "inequality", "has", "have", "it",  "exist",    "exists" };
    static const char *const what[] = { "solution", "solutions", "root", "roots" };
    static const char *const after[] = { "exist", "exists",  "in", "over", "the",      "real",
                                         "reals", "numbers", "to", "this", "equation", "system" };
    enum { BEFORE, NO, NAMED } place = BEFORE;
    struct span all = span_trim((struct span){ s, len }), rest = all, word;
    *limit = (struct span){ 0 };
    if (LISTED(sets, all))
        return true;
    while ((word = word_next(&rest)).len > 0) {
        switch (place) {
        case BEFORE:
            if (word.len == 2 && strncasecmp(word.s, "no", 2) == 0)
                place = NO;
            else if (!LISTED(before, word))
                return false;
            break;
        case NO:
            if (LISTED(what, word))
                place = NAMED;
            else if (limit->len > 0)
                return false;
            else
                *limit = word;
            break;
        case NAMED:
            if (!LISTED(after, word))
                return false;
            break;
        }
    }
    return place == NAMED;
}

static uint32_t command_hash(const char *s, size_t len)
{
    uint32_t h = name_hash(s, len);
    return h ^ (h >> 15);
}

void commands_init(struct math *m)
{
    for (int i = 0; i < COMMAND_SLOTS; i++)
        m->command[i] = -1;
    for (size_t i = 0; i < ARRAY_SIZE(commands); i++) {
        uint32_t h = command_hash(commands[i].name, strlen(commands[i].name));
        while (m->command[h % COMMAND_SLOTS] >= 0)
            h++;
        m->command[h % COMMAND_SLOTS] = (int16_t)i;
    }
}

const struct math_command *math_command_find(const struct math *m, const char *s, size_t len)
{
    for (uint32_t h = command_hash(s, len);; h++) {
        int i = m->command[h % COMMAND_SLOTS];
        if (i < 0)
            return NULL;
        if (strlen(commands[i].name) == len && memcmp(commands[i].name, s, len) == 0)
            return &commands[i];
    }
}

static bool stands_at(const char *p, const char *end, const char *what, size_t *len)
{
    *len = strlen(what);
    return (size_t)(end - p) >= *len && memcmp(p, what, *len) == 0;
}

const char *unicode_command(const char *p, const char *end, size_t *len)
{
    for (size_t i = 0; i < ARRAY_SIZE(unicode); i++)
        if (stands_at(p, end, unicode[i].utf8, len))
            return unicode[i].cmd;
    return NULL;
}

/* The full-width forms of ASCII, U+FF01 to U+FF5E, and the digits of mathematical fonts, U+1D7CE to U+1D7FF. */
static const char *unicode_ascii(const char *p, const char *end, size_t *len)
{
    static const char
        ascii[] = "!\0\"\0#\0$\0%\0&\0'\0(\0)\0*\0+\0,\0-\0.\0/\0"
                  "0\0"
                  "1\0"
                  "2\0"
                  "3\0"
                  "4\0"
                  "5\0"
                  "6\0"
                  "7\0"
                  "8\0"
                  "9\0"
                  ":\0;\0<\0=\0>\0?\0@\0A\0B\0C\0D\0E\0F\0G\0H\0I\0J\0K\0L\0M\0N\0O\0P\0Q\0R\0S\0T\0U\0V\0W\0X\0Y\0Z\0"
                  "[\0\\\0]\0^\0_\0`\0a\0b\0c\0d\0e\0f\0g\0h\0i\0j\0k\0l\0m\0n\0o\0p\0q\0r\0s\0t\0u\0v\0w\0x\0y\0z\0{\0|\0}\0~";
    const unsigned char *u = (const unsigned char *)p;
    if (end - p >= 3 && u[0] == 0xEF && (u[1] == 0xBC || u[1] == 0xBD)) {
        int c = ((u[1] & 3) << 6 | (u[2] & 0x3F)) + 0x20;
        *len = 3;
        return c > 0x20 && c < 0x7F ? ascii + 2 * (c - 0x21) : NULL;
    }
    if (end - p >= 4 && u[0] == 0xF0 && u[1] == 0x9D && u[2] == 0x9F && u[3] >= 0x8E) {
        *len = 4;
        return ascii + 2 * ('0' - 0x21 + (u[3] - 0x8E) % 10);
    }
    return NULL;
}

const char *unicode_plain(const char *p, const char *end, size_t *len)
{
    for (size_t i = 0; i < ARRAY_SIZE(unicode_text); i++)
        if (stands_at(p, end, unicode_text[i].utf8, len))
            return unicode_text[i].as;
    return unicode_ascii(p, end, len);
}

const char *currency_at(const char *p, const char *end, size_t *len)
{
    static const struct {
        const char *utf8, *unit;
    } signs[] = { { "€", "euro" }, { "£", "pound" }, { "¥", "yuan" }, { "￥", "yuan" }, { "₹", "rupee" }, { "¢", "cent" } };
    for (size_t i = 0; i < ARRAY_SIZE(signs); i++)
        if (stands_at(p, end, signs[i].utf8, len))
            return signs[i].unit;
    return NULL;
}

bool unit_word(const char *s, size_t len)
{
    for (size_t i = 0; i < ARRAY_SIZE(unit_words); i++)
        if (strlen(unit_words[i]) == len && memcmp(unit_words[i], s, len) == 0)
            return true;
    return false;
}
