#include "workers/engine/reward/math/words.h"
#include <string.h>

// clang-format off
static const struct command commands[] = {
    { "left", C_SPACE }, { "right", C_SPACE }, { "big", C_SPACE }, { "Big", C_SPACE }, { "bigg", C_SPACE },
    { "Bigg", C_SPACE }, { "bigl", C_SPACE }, { "bigr", C_SPACE }, { "Bigl", C_SPACE }, { "Bigr", C_SPACE },
    { "biggl", C_SPACE }, { "biggr", C_SPACE }, { "Biggl", C_SPACE }, { "Biggr", C_SPACE }, { "mleft", C_SPACE },
    { "mright", C_SPACE }, { "middle", C_SPACE }, { "displaystyle", C_SPACE }, { "textstyle", C_SPACE },
    { "scriptstyle", C_SPACE }, { "limits", C_SPACE }, { "nolimits", C_SPACE }, { "quad", C_SPACE },
    { "qquad", C_SPACE },
    { "rm", C_SPACE }, { "bf", C_SPACE }, { "it", C_SPACE }, { "nonumber", C_SPACE }, { "hline", C_SPACE },
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
    { "vec", C_ACCENT }, { "overrightarrow", C_ACCENT }, { "hat", C_ACCENT }, { "widehat", C_ACCENT },
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
    { "begin", C_BEGIN }, { "end", C_END }, { "boxed", C_BOX }, { "fbox", C_BOX }, { "phantom", C_SKIP_ARG },
    { "hspace", C_SKIP_ARG }, { "vspace", C_SKIP_ARG }, { "label", C_SKIP_ARG }, { "tag", C_SKIP_ARG },
    { "color", C_SKIP_ARG },
    { "hspace*", C_SKIP_ARG }, { "hphantom", C_SKIP_ARG }, { "vphantom", C_SKIP_ARG },
    { "sum", C_SUM, K_SUM }, { "prod", C_SUM, K_PROD }, { "int", C_OPAQUE, 1 }, { "lim", C_OPAQUE, 2 },
    { "iint", C_OPAQUE, 3 },
    { "oint", C_OPAQUE, 4 }, { "iiint", C_OPAQUE, 5 }, { "sup", C_OPAQUE, 6 }, { "inf", C_CONST, CONST_INF },
    { "over", C_OVER }, { "choose", C_CHOOSE }, { "circ", C_DEGREE }, { "degree", C_DEGREE }, { "degrees", C_DEGREE },
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
    { "≡", "equiv" }, { "⊂", "subset" }, { "⊆", "subseteq" }, { "′", "prime" }, { "∧", "and" }, { "∨", "lor" },
};
// clang-format on
// clang-format off
static const struct { const char *utf8, *as; } unicode_text[] = {
    { "−", "-" }, { "–", "-" }, { "﹣", "-" }, { "－", "-" }, { "²", "^2" }, { "³", "^3" }, { "¹", "^1" }, { "⁴", "^4" },
    { "⁵", "^5" }, { "⁶", "^6" }, { "⁷", "^7" }, { "⁸", "^8" }, { "⁹", "^9" }, { "⁰", "^0" }, { "½", "(1/2)" },
    { "¼", "(1/4)" }, { "¾", "(3/4)" }, { "⅓", "(1/3)" }, { "⅔", "(2/3)" }, { "⅛", "(1/8)" }, { "，", "," },
    { "（", "(" },
    { "）", ")" }, { "：", ":" }, { "；", ";" }, { "＝", "=" }, { "＋", "+" }, { "／", "/" }, { "％", "%" },
    { "∣", "|" }, { "∶", ":" }, { "⁄", "/" }, { "“", " " }, { "”", " " }, { "‘", " " }, { "’", "'" },
    { "\xc2\xa0", " " }, { "\xe2\x80\x89", " " },
    { "\xe2\x80\xaf", " " }, { "\xe2\x80\x8b", " " }, { "€", " " }, { "£", " " }, { "¥", " " },
    { "₀", "_0" }, { "₁", "_1" }, { "₂", "_2" }, { "₃", "_3" },
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
    "men", "boys", "girls", "cars", "kmph", "am", "pm", "AM", "PM", "Hz", "Pa", "kPa", "eggs", "bags", "boxes",
};
// clang-format on

static uint32_t name_hash(const char *s, size_t len)
{
    uint32_t h = 2166136261u;
    for (size_t i = 0; i < len; i++)
        h = (h ^ (unsigned char)s[i]) * 16777619u;
    return h ^ (h >> 15);
}

void commands_init(struct math *m)
{
    for (int i = 0; i < COMMAND_SLOTS; i++)
        m->command[i] = -1;
    for (size_t i = 0; i < ARRAY_SIZE(commands); i++) {
        uint32_t h = name_hash(commands[i].name, strlen(commands[i].name));
        while (m->command[h % COMMAND_SLOTS] >= 0)
            h++;
        m->command[h % COMMAND_SLOTS] = (int16_t)i;
    }
}

const struct command *math_command_find(const struct math *m, const char *s, size_t len)
{
    for (uint32_t h = name_hash(s, len);; h++) {
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

const char *unicode_plain(const char *p, const char *end, size_t *len)
{
    for (size_t i = 0; i < ARRAY_SIZE(unicode_text); i++)
        if (stands_at(p, end, unicode_text[i].utf8, len))
            return unicode_text[i].as;
    return NULL;
}

bool unit_word(const char *s, size_t len)
{
    for (size_t i = 0; i < ARRAY_SIZE(unit_words); i++)
        if (strlen(unit_words[i]) == len && memcmp(unit_words[i], s, len) == 0)
            return true;
    return false;
}
