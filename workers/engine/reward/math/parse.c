/* parse.c - LaTeX and plain mathematics to a tree, by recursive descent on the text itself
 *
 * Precedence, low to high, as latex2sympy2_extended has it where it is not plainly wrong: lists, relations, set
 * operations, ratios, sums, products and quotients, implicit products (1/2x is 1/(2x)), signs, powers and other
 * postfixes, atoms. */
#include <stdarg.h>
#include <string.h>
#include "workers/engine/reward/math/node.h"

enum tk {
    T_END, T_NUM, T_WORD, T_CMD, T_CHAR, T_TEXT, T_REL,
    T_BAD,    // no mathematics
};
enum cmd_class {
    C_SPACE, C_SYM, C_CONST, C_FRAC, C_BINOM, C_SQRT, C_FUNC, C_OPNAME, C_TEXT, C_FONT, C_BB, C_ACCENT, C_MARK, C_CHAR,
    C_REL, C_OPEN, C_CLOSE, C_BEGIN, C_END, C_BOX, C_SUM, C_OPAQUE, C_OVER, C_CHOOSE, C_DEGREE, C_DOTS, C_EMPTYSET,
        C_PMOD,
    C_PM, C_CUP, C_CAP, C_SETMINUS, C_SKIP_ARG, C_BAD,
};
static const struct command {
    const char *name;
    uint8_t class;
    int16_t arg;
} commands[] = {
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
/* Characters that stand for a command; the rest of Unicode is no mathematics. */
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

void *math_take(struct math *m, size_t size)
{
    size = (size + 7) & ~(size_t)7;
    if (m->out_of_memory || size > MATH_MEM_BYTES - m->used) {
        m->out_of_memory = true;
        m->why = "too large";
        return NULL;
    }
    void *p = m->mem + m->used;
    m->used += size;
    return p;
}

bool node_is(const struct node *a, enum node_kind kind)
{
    return a && a->kind == kind;
}

bool name_same(const struct node *a, const struct node *b)
{
    return a->len == b->len && memcmp(a->s, b->s, (size_t)a->len) == 0;
}

static uint16_t own_flags(enum node_kind kind)
{
    switch (kind) {
    case K_SYM: return HAS_SYM;
    case K_APP: return HAS_SYM | HAS_OPAQUE;
    case K_OPAQUE: return HAS_OPAQUE;
    case K_PM: return HAS_PM;
    case K_MATRIX: return HAS_MATRIX;
    case K_JUXT: return HAS_JUXT;
    case K_TEXT: return HAS_TEXT | HAS_SYM;
    case K_LIST: case K_SET: case K_TUPLE: case K_REL: case K_UNION: case K_INTER: case K_MINUS: case K_NAMED_SET:
    case K_BUILDER: return HAS_SET;
    case K_ROOT: case K_LOG: return HAS_TRANS;
    case K_NUM: case K_CONST: case K_ADD: case K_MUL: case K_DIV: case K_POW: case K_NEG: case K_FUNC: case K_SUM:
    case K_PROD: case K_DEG: case K_PCT: case K_RATIO: case K_UNIT: break;
    }
    return 0;
}

struct node *node_list(struct math *m, enum node_kind kind, struct node **child, int n)
{
    struct node *a = math_take(m, sizeof *a + (size_t)n * sizeof *child);
    if (!a)
        return NULL;
    *a = (struct node){ .kind = (uint8_t)kind, .n = n, .child = (struct node **)(a + 1), .flags = own_flags(kind) };
    for (int i = 0; i < n; i++) {
        if (!child[i])
            return NULL;
        a->child[i] = child[i];
        a->flags |= child[i]->flags;
        a->depth = MAX(a->depth, (uint16_t)(child[i]->depth + 1));
    }
    if (a->depth > MATH_TREE_DEPTH_MAX) {
        m->why = "too deep";
        return NULL;
    }
    return a;
}

struct node *node_new(struct math *m, enum node_kind kind, int n, ...)
{
    struct node *child[4];
    va_list ap;
    va_start(ap, n);
    for (int i = 0; i < n; i++)
        child[i] = va_arg(ap, struct node *);
    va_end(ap);
    return node_list(m, kind, child, n);
}

struct node *node_int(struct math *m, int64_t v)
{
    struct node *a = node_new(m, K_NUM, 0);
    if (a) {
        a->small = v;    // the digits are not needed below 10^18
        a->len = 1;
        a->s = "";
    }
    return a;
}

struct node *node_like(struct math *m, const struct node *a, enum node_kind kind, struct node **child)
{
    struct node *c = node_list(m, kind, child, a->n);
    if (c) {
        c->op = a->op;
        c->s = a->s;
        c->len = a->len;
        c->scale = a->scale;
        c->base = a->base;
        c->small = a->small;
        c->flags |= a->flags & (HAS_DECIMAL | HAS_TRANS | HAS_I | HAS_PI | HAS_INF);
    }
    return c;
}

static struct node *node_named(struct math *m, enum node_kind kind, const char *s, size_t len)
{
    struct node *a = node_new(m, kind, 0);
    if (a) {
        a->s = s;
        a->len = (int32_t)len;
    }
    return a;
}

static struct node *node_op(struct node *a, int op)
{
    if (a)
        a->op = (int8_t)op;
    return a;
}

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

static const struct command *command_find(const struct math *m, const char *s, size_t len)
{
    for (uint32_t h = name_hash(s, len);; h++) {
        int i = m->command[h % COMMAND_SLOTS];
        if (i < 0)
            return NULL;
        if (strlen(commands[i].name) == len && memcmp(commands[i].name, s, len) == 0)
            return &commands[i];
    }
}

struct token {
    enum tk kind;
    bool space;             // white space stood before it
    bool line;              // a ',' that is a new line
    char c;                 // T_CHAR; T_REL: enum math_rel
    const char *s;          // T_WORD, T_CMD (without the backslash), T_TEXT; T_NUM: digits
    int32_t len;
    int32_t scale;          // T_NUM: digits behind the point
    int32_t repeat;         // T_NUM: of these, how many repeat
    bool decimal;
    const struct command *cmd;    // NULL: unknown command
    const char *end;        // behind it in the text
};
struct parser {
    struct math *m;
    const char *p, *end;
    const char *start;      // of the text
    struct token t;         // the next token
    int depth;              // of groups
    int nest;               // of signs and operands of products, which are no groups
    char index[MATH_BIND_MAX];    // names of the sums and products around: an i among them is no imaginary unit
    int n_index;
    int abs_depth;          // of |...|
    bool no_bar;            // in a set's braces: a bar behind an operand is "such that"
    bool plain, in_matrix;
    bool has_lines;         // a doubled backslash ends one, whatever follows
    bool in_func;           // in a function's argument without parentheses: \sin x(1+y) ends before them
    bool comma_seen;        // a comma separated something at the top level
    bool failed;
    const char *unit;       // of the element being parsed
    int32_t unit_len;
};

static struct node *fail(struct parser *p)
{
    p->failed = true;
    return NULL;
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool is_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

static bool starts(const char *p, const char *end, const char *what)
{
    size_t n = strlen(what);
    return (size_t)(end - p) >= n && memcmp(p, what, n) == 0;
}

static const char *space_skip(const char *p, const char *end)
{
    while (p < end && (*p == ' ' || (*p >= '\t' && *p <= '\r')))
        p++;
    return p;
}

static bool three_digits(const char *p, const char *end)
{
    return end - p >= 3 && is_digit(p[0]) && is_digit(p[1]) && is_digit(p[2]) && !(end - p > 3 && is_digit(p[3]));
}

/* A separator of thousands at q and three digits behind it: where they are; NULL otherwise. */
static const char *thousands_at(const struct parser *p, const char *q)
{
    static const char *const sure[] = { "{,}", ",\\!", "{,\\!}", "{, }", "\\,", "\\!", "{\\,}" };
    const char *r = space_skip(q, p->end);
    for (size_t i = 0; i < ARRAY_SIZE(sure); i++)
        if (starts(r, p->end, sure[i])) {
            r = space_skip(r + strlen(sure[i]), p->end);
            return three_digits(r, p->end) ? r : NULL;
        }
    if (p->depth > 0 || p->comma_seen || p->in_matrix || q >= p->end)
        return NULL;
    if (*q == ',' || *q == ' ' || *q == '~')
        return three_digits(q + 1, p->end) && (*q != ' ' || p->plain) ? q + 1 : NULL;
    return NULL;
}

static void number_lex(struct parser *p, const char *s)
{
    struct token *t = &p->t;
    const char *q = s;
    while (q < p->end && is_digit(*q))
        q++;
    const char *digits = s;
    size_t len = (size_t)(q - s);
    const char *group = len >= 1 && len <= 3 && *s != '0' ? thousands_at(p, q) : NULL;
    if (group) {    // read on as long as groups of three follow, all behind the same kind of separator
        char *copy = math_take(p->m, (size_t)(p->end - s) + 1);
        if (copy) {
            memcpy(copy, s, len);
            const char *r = group, *behind = q;
            size_t n = len;
            bool comma = *q == ',' && q[1] != '\\';
            while (r) {
                memcpy(copy + n, r, 3);
                n += 3;
                behind = r + 3;
                bool more_comma = behind < p->end && *behind == ',' && !(behind + 1 < p->end && behind[1] == '\\');
                r = thousands_at(p, behind);
                if (r && more_comma != comma)
                    r = NULL;
            }
            const char *next = space_skip(behind, p->end);
            if (!(comma && next < p->end && *next == ',')) {    // "1,234, 5" is a list
                digits = copy;
                len = n;
                q = behind;
            }
        }
    }
    t->scale = 0;
    t->repeat = 0;
    t->decimal = false;
    bool point = q < p->end && *q == '.' && q + 1 < p->end &&
                 (is_digit(q[1]) || starts(q + 1, p->end, "\\overline{") || starts(q + 1, p->end, "\\bar{"));
    bool comma = p->plain && !group && q + 1 < p->end && *q == ',' && is_digit(q[1]) && len > 0;
    if (point || comma) {
        const char *f = q + 1, *fe = f;
        while (fe < p->end && is_digit(*fe))
            fe++;
        const char *rep = NULL, *rep_end = NULL;
        for (int i = 0; i < 2 && point; i++) {
            const char *mark = i ? "\\bar{" : "\\overline{";
            if (starts(fe, p->end, mark)) {
                rep = rep_end = fe + strlen(mark);
                while (rep_end < p->end && is_digit(*rep_end))
                    rep_end++;
                if (rep_end == rep || rep_end == p->end || *rep_end != '}')
                    rep = NULL;
            }
        }
        size_t nf = (size_t)(fe - f), nr = rep ? (size_t)(rep_end - rep) : 0;
        char *copy = math_take(p->m, len + nf + nr + 1);
        if (copy) {
            memcpy(copy, digits, len);
            memcpy(copy + len, f, nf);
            if (rep)
                memcpy(copy + len + nf, rep, nr);
            digits = copy;
            len += nf + nr;
            t->scale = (int32_t)(nf + nr);
            t->repeat = (int32_t)nr;
            t->decimal = true;
            q = rep ? rep_end + 1 : fe;
        }
    }
    /* 1.5e-3 */
    if (q < p->end && (*q == 'e' || *q == 'E') && t->repeat == 0) {
        const char *x = q + 1;
        bool minus = x < p->end && *x == '-';
        x += x < p->end && (*x == '-' || *x == '+');
        const char *xs = x;
        int32_t e = 0;
        while (x < p->end && is_digit(*x) && x - xs < 4)
            e = e * 10 + (*x++ - '0');
        if (x > xs && !(x < p->end && (is_letter(*x) || is_digit(*x) || *x == '.' || *x == '^'))) {
            t->scale -= minus ? -e : e;
            t->decimal = true;
            q = x;
        }
    }
    t->kind = T_NUM;
    t->s = digits;
    t->len = (int32_t)len;
    t->end = q;
}

/* The content of the brace group at p (which stands on the brace), and what is behind it. */
static bool group_raw(const char *p, const char *end, const char **from, const char **to)
{
    int64_t depth = 0;
    for (const char *q = p; q < end; q++) {
        if (*q == '\\' && q + 1 < end)
            q++;
        else if (*q == '{')
            depth++;
        else if (*q == '}' && --depth == 0) {
            *from = p + 1;
            *to = q;
            return true;
        }
    }
    return false;
}

static bool word_is(const char *s, size_t len, const char *word)
{
    return strlen(word) == len && strncasecmp(s, word, len) == 0;
}

static bool is_percent_word(const char *s, size_t len)
{
    return word_is(s, len, "percent") || word_is(s, len, "percentage") || word_is(s, len, "pct") ||
        word_is(s, len, "\\%") ||
           word_is(s, len, "%");
}

static void token_next(struct parser *p);

static void text_token(struct parser *p, const char *from, const char *to, const char *behind)
{
    struct token *t = &p->t;
    while (from < to && (*from == ' ' || *from == '~' || *from == '\n' || *from == '\t'))
        from++;
    while (to > from && (to[-1] == ' ' || to[-1] == '\n' || to[-1] == '\t' || to[-1] == '~'))
        to--;
    const char *f = from, *e = to;
    while (f < e && (*f == ',' || *f == ' '))
        f++;
    while (e > f && (e[-1] == ',' || e[-1] == ' '))
        e--;
    size_t n = (size_t)(e - f);
    t->end = behind;
    t->s = from;
    t->len = (int32_t)(to - from);
    if (t->len == 0) {
        p->p = behind;
        token_next(p);
        t->space = true;
    } else if (n == 0 || word_is(f, n, "and") || word_is(f, n, "or") || word_is(f, n, ";") ||
               word_is(f, n, "where") || word_is(f, n, "for") || word_is(f, n, "with")) {
        t->kind = T_CHAR;
        t->c = ',';
    } else if (is_percent_word(f, n)) {
        t->kind = T_CHAR;
        t->c = '%';
    } else if (word_is(f, n, "degrees") || word_is(f, n, "degree")) {
        t->kind = T_CMD;
        t->cmd = command_find(p->m, "circ", 4);
    } else {
        t->kind = T_TEXT;
    }
}

static void char_token(struct parser *p, char c, const char *behind)
{
    p->t.kind = T_CHAR;
    p->t.c = c;
    p->t.end = behind;
}

static void rel_token(struct parser *p, enum math_rel rel, const char *behind)
{
    p->t.kind = T_REL;
    p->t.c = (char)rel;
    p->t.end = behind;
}

/* Does a number or a closed brace stand before s? */
static bool after_number(const struct parser *p, const char *s)
{
    while (s > p->start && (s[-1] == ' ' || s[-1] == '~' || (s[-1] == ',' && s - 1 > p->start && s[-2] == '\\')))
        s -= s[-1] == ',' ? 2 : 1;
    return s > p->start && (is_digit(s[-1]) || s[-1] == '}');
}

/* A new line: a new row, the next answer, or nothing where a chain of equations goes on. */
static void line_token(struct parser *p, const char *behind)
{
    const char *q = space_skip(behind, p->end);
    if (!p->in_matrix && (starts(q, p->end, "=") || starts(q, p->end, "\\approx"))) {
        p->p = q;
        token_next(p);
        return;
    }
    char_token(p, p->in_matrix ? 'n' : ',', behind);
    p->t.line = !p->in_matrix;
}

static void command_token(struct parser *p, const char *s)    // s stands on the backslash
{
    struct token *t = &p->t;
    const char *q = s + 1;
    if (q == p->end) {
        t->kind = T_END;
        t->end = q;
        return;
    }
    if (*q == '\\' && q + 1 < p->end && (is_letter(q[1]) || q[1] == '{') && !p->has_lines) {
        command_token(p, q);    // a doubled backslash before a command: escaped once too often
        return;
    }
    if (!is_letter(*q)) {
        t->end = q + 1;
        switch (*q) {
        case ' ': case '!': case ',': case ';': case ':': case '>': case '$': case '(': case ')': case '[': case ']': case '-':
        case '"': case '/': case '\n':
            p->p = q + 1;
            token_next(p);
            t->space = true;
            return;
        case '\\':
            line_token(p, q + 1);
            return;
        case '{': case '}': case '%': case '&': case '|':
            break;
        default:
            t->kind = T_BAD;
            return;
        }
        t->cmd = command_find(p->m, q, 1);
        t->s = q;
        t->len = 1;
        q++;
    } else {
        const char *name = q;
        while (q < p->end && is_letter(*q))
            q++;
        t->cmd = command_find(p->m, name, (size_t)(q - name));
        if (!t->cmd && starts(name, q, "quad")) {    // \quadx
            q = name + 4;
            t->cmd = command_find(p->m, "quad", 4);
        }
        if (!t->cmd)
            for (size_t n = (size_t)(q - name) - 1; n >= 2 && !t->cmd; n--) {    // \cdotx, \pir
                const struct command *c = command_find(p->m, name, n);
                if (c && (c->class == C_CHAR || c->class == C_REL || c->class == C_CONST)) {
                    t->cmd = c;
                    q = name + n;
                }
            }
        t->s = name;
        t->len = (int32_t)(q - name);
    }
    t->kind = T_CMD;
    t->end = q;
    if (!t->cmd)
        return;
    const char *from, *to, *brace = space_skip(q, p->end);
    switch ((enum cmd_class)t->cmd->class) {
    case C_SPACE:
        p->p = q;
        if (strncmp(t->s, "left", 4) == 0 || strncmp(t->s, "right", 5) == 0)
            if (brace < p->end && *brace == '.')    // \left. has no delimiter
                p->p = brace + 1;
        token_next(p);
        t->space = true;
        break;
    case C_SKIP_ARG:
        p->p = brace < p->end && *brace == '{' && group_raw(brace, p->end, &from, &to) ? to + 1 : q;
        token_next(p);
        t->space = true;
        break;
    case C_CHAR:
        char_token(p, (char)t->cmd->arg, q);
        break;
    case C_REL:
        rel_token(p, (enum math_rel)t->cmd->arg, q);
        break;
    case C_TEXT:
        if (brace < p->end && *brace == '{' && group_raw(brace, p->end, &from, &to))
            text_token(p, from, to, to + 1);
        else
            t->kind = T_BAD;
        break;
    case C_OPNAME:
        if (brace < p->end && *brace == '{' && group_raw(brace, p->end, &from, &to)) {
            from = space_skip(from, to);
            const struct command *fn = command_find(p->m, from, (size_t)(to - from));
            t->end = to + 1;
            if (fn && (fn->class == C_FUNC || fn->class == C_CONST || fn->class == C_SYM)) {
                t->cmd = fn;
                t->s = from;
                t->len = (int32_t)(to - from);
            } else if (to - from == 1 && after_number(p, s) && !strchr("ei", *from)) {    // 5 \mathrm{m}
                text_token(p, from, to, to + 1);
            } else if (to - from == 1) {    // \mathrm{e}
                t->kind = T_WORD;
                t->s = from;
                t->len = 1;
            } else if (to - from == 2 && starts(from, to, "th")) {
                p->p = t->end;
                token_next(p);
            } else if (to > from && (*from == '\\' || is_digit(*from))) {    // a font for something written out
                t->cmd = command_find(p->m, "mathbf", 6);
                t->end = q;
            } else {
                text_token(p, from, to, to + 1);
            }
        } else {
            p->p = q;    // \mathrm e
            token_next(p);
        }
        break;
    default:
        break;
    }
}

/* Read the token at p->p into p->t. Commands that mean nothing and white space are passed over. */
static void token_next(struct parser *p)
{
    struct token *t = &p->t;
    const char *s = space_skip(p->p, p->end);
    t->space = s > p->p;
    t->line = false;
    t->cmd = NULL;
    p->p = s;
    if (s >= p->end) {
        t->kind = T_END;
        t->end = p->end;
        t->s = p->end;
        t->len = 0;
        return;
    }
    t->s = s;
    t->len = 1;
    unsigned char c = (unsigned char)*s;
    char next = s + 1 < p->end ? s[1] : 0;
    if (is_digit((char)c) || (c == '.' && is_digit(next))) {
        number_lex(p, s);
        return;
    }
    if (is_letter((char)c)) {
        const char *q = s;
        while (q < p->end && is_letter(*q))
            q++;
        t->kind = T_WORD;
        t->len = (int32_t)(q - s);
        t->end = q;
        size_t n = (size_t)t->len;
        // 1orx, (1,2)or(2,1)
        bool glued = s > p->start && (is_digit(s[-1]) || s[-1] == ')' || s[-1] == ']' || s[-1] == '}');
        if (word_is(s, n, "and") || word_is(s, n, "or"))
            char_token(p, ',', q);
        else if (glued && (starts(s, q, "or") || starts(s, q, "and")))
            char_token(p, ',', s + (*s == 'o' ? 2 : 3));
        else if (is_percent_word(s, n))
            char_token(p, '%', q);
        else if (word_is(s, n, "degrees") || word_is(s, n, "degree")) {
            t->kind = T_CMD;
            t->cmd = command_find(p->m, "circ", 4);
        }
        return;
    }
    if (c == '\\') {
        command_token(p, s);
        return;
    }
    if (c >= 0x80) {
        for (size_t i = 0; i < ARRAY_SIZE(unicode); i++)
            if (starts(s, p->end, unicode[i].utf8)) {
                const struct command *cmd = command_find(p->m, unicode[i].cmd, strlen(unicode[i].cmd));
                t->kind = T_CMD;
                t->cmd = cmd;
                t->s = cmd->name;
                t->len = (int32_t)strlen(cmd->name);
                t->end = s + strlen(unicode[i].utf8);
                if (cmd->class == C_CHAR)
                    char_token(p, (char)cmd->arg, t->end);
                else if (cmd->class == C_REL)
                    rel_token(p, (enum math_rel)cmd->arg, t->end);
                return;
            }
        t->kind = T_BAD;
        t->end = s + 1;
        return;
    }
    t->kind = T_CHAR;
    t->c = (char)c;
    t->end = s + 1;
    switch (c) {
    case '=':
        rel_token(p, REL_EQ, s + 1 + (next == '='));
        break;
    case '<': case '>':
        rel_token(p, c == '<' ? next == '=' ? REL_LE : REL_LT : next == '=' ? REL_GE : REL_GT, s + 1 + (next == '='));
        break;
    case '!':
        if (next == '=' && !(s + 2 < p->end && s[2] == '='))
            rel_token(p, REL_NE, s + 2);
        break;
    case ':':
        if (next == '=')
            rel_token(p, REL_EQ, s + 2);
        break;
    case '*':
        if (next == '*')
            char_token(p, '^', s + 2);    // Python's power, and bold text, which the caller has taken off
        break;
    case '$': case '~': case '`':
        p->p = s + 1;
        token_next(p);
        t->space = true;
        break;
    case '?': case '@': case '#': case '"':
        t->kind = T_BAD;
        break;
    default:
        break;
    }
}

static void token_take(struct parser *p)
{
    p->p = p->t.end;
    token_next(p);
}

static bool is_char(const struct parser *p, char c)
{
    return p->t.kind == T_CHAR && p->t.c == c;
}

static bool is_class(const struct parser *p, enum cmd_class class)
{
    return p->t.kind == T_CMD && p->t.cmd && p->t.cmd->class == class;
}

static bool char_take(struct parser *p, char c)
{
    if (!is_char(p, c))
        return false;
    token_take(p);
    return true;
}

static struct node *list_parse(struct parser *p);
static struct node *relation_parse(struct parser *p);
static struct node *sum_parse(struct parser *p);
static struct node *product_parse(struct parser *p);
static struct node *factor_parse(struct parser *p);
static struct node *set_parse(struct parser *p);
static struct node *atom_parse(struct parser *p);
static struct node *postfix_parse(struct parser *p, struct node *a);

static bool deeper(struct parser *p)
{
    if (++p->depth <= MATH_DEPTH_MAX)
        return true;
    p->m->why = "too deep";
    fail(p);
    return false;
}

static bool nest_deeper(struct parser *p)
{
    if (++p->nest <= MATH_DEPTH_MAX)
        return true;
    p->m->why = "too deep";
    fail(p);
    return false;
}

static struct node *number_node(struct parser *p)
{
    struct token t = p->t;
    struct node *a = node_new(p->m, K_NUM, 0);
    if (!a)
        return fail(p);
    a->s = t.s;
    a->len = t.len;
    a->scale = t.scale;
    a->flags |= t.decimal && t.repeat == 0 ? HAS_DECIMAL : 0;
    while (a->len > 1 && *a->s == '0')
        a->s++, a->len--;
    if (a->len <= 18)
        for (int i = 0; i < a->len; i++)
            a->small = a->small * 10 + (a->s[i] - '0');
    token_take(p);
    if (t.repeat > 0) {    // (all digits - those that do not repeat) / (10^scale - 10^(scale - repeat))
        if (t.len > 18)
            return fail(p);
        int64_t whole = a->small, head = whole, den = 1, shift = 1;
        for (int i = 0; i < t.repeat; i++)
            head /= 10, den *= 10;
        for (int i = t.repeat; i < t.scale; i++)
            shift *= 10;
        return node_new(p->m, K_DIV, 2, node_int(p->m, whole - head), node_int(p->m, (den - 1) * shift));
    }
    if (is_class(p, C_DOTS) && t.decimal)    // 0.333... is its digits
        token_take(p);
    return a;
}

/* What a subscript says, as one piece of text without braces and spaces; p stands behind the '_'. */
static bool subscript_take(struct parser *p, const char **s, size_t *len)
{
    const char *q = space_skip(p->p, p->end), *from, *to;
    if (q >= p->end)
        return false;
    if (*q == '{') {
        if (!group_raw(q, p->end, &from, &to))
            return false;
        p->p = to + 1;
    } else {
        from = q;
        to = q + 1;
        if (*q == '\\')
            while (to < p->end && is_letter(*to))
                to++;
        else
            while (to < p->end && is_digit(*q) && is_digit(*to))
                to++;
        p->p = to;
    }
    char *out = math_take(p->m, (size_t)(to - from) + 1);
    if (!out)
        return false;
    size_t n = 0;
    for (q = from; q < to; q++) {
        if (starts(q, to, "\\text"))
            q += 4;
        else if (starts(q, to, "\\mathrm"))
            q += 6;
        else if (*q != ' ' && *q != '{' && *q != '}')
            out[n++] = *q;
    }
    *s = out;
    *len = n;
    token_next(p);
    return true;
}

/* A symbol called s, with what hangs on it: subscripts and primes become part of the name. */
static struct node *symbol_node(struct parser *p, const char *s, size_t len)
{
    for (;;) {
        const char *sub;
        size_t n = 0;
        bool under = is_char(p, '_');
        if (!under && !(is_char(p, '\'') && !p->t.space))
            break;
        p->p = p->t.end;
        if (under) {
            if (!subscript_take(p, &sub, &n))
                return fail(p);
        } else {
            sub = "'";
            n = 1;
            token_next(p);
        }
        char *name = math_take(p->m, len + n + 2);
        if (!name)
            return fail(p);
        memcpy(name, s, len);
        if (under)
            name[len] = '_';
        memcpy(name + len + under, sub, n);
        s = name;
        len += n + under;
    }
    return node_named(p->m, K_SYM, s, len);
}

static struct node *const_node(struct parser *p, enum math_const which)
{
    struct node *a = node_op(node_new(p->m, K_CONST, 0), which);
    if (a)
        a->flags |= which == CONST_I ? HAS_I : which == CONST_PI ? HAS_PI | HAS_TRANS : which == CONST_INF ? HAS_INF
            : HAS_TRANS;
    return a;
}

/* {...} as an argument, or the next single thing: one digit, one letter, one command with its arguments. */
static struct node *argument_parse(struct parser *p, bool one_digit)
{
    struct node *a = NULL;
    if (is_char(p, '{')) {
        if (!deeper(p))
            return NULL;
        token_take(p);
        a = is_char(p, '}') ? NULL : list_parse(p);
        p->depth--;
        if (!a || !char_take(p, '}'))
            return fail(p);
        return a;
    }
    if (one_digit && p->t.kind == T_NUM && p->t.s >= p->p && p->t.s < p->end && p->t.len > 1) {
        a = node_int(p->m, p->t.s[0] - '0');
        p->p = p->t.s + 1;
        token_next(p);
        return a;
    }
    if (!deeper(p))
        return NULL;
    if (is_char(p, '-')) {
        token_take(p);
        a = node_new(p->m, K_NEG, 1, atom_parse(p));
    } else {
        a = atom_parse(p);
    }
    p->depth--;
    return a;
}

static bool is_function(const struct parser *p)
{
    return is_class(p, C_FUNC) || is_class(p, C_SUM) || is_class(p, C_OPAQUE);
}

/* Does the next token begin a factor, so that nothing between is a product? */
static bool starts_factor(const struct parser *p)
{
    switch (p->t.kind) {
    case T_NUM: case T_WORD: case T_TEXT:
        return true;
    case T_CHAR:
        return p->t.c == '(' || p->t.c == '{' || p->t.c == '[' || (p->t.c == '|' && p->abs_depth == 0 && !p->no_bar);
    case T_CMD:
        if (!p->t.cmd)
            return true;
        switch ((enum cmd_class)p->t.cmd->class) {
        case C_SYM: case C_CONST: case C_FRAC: case C_BINOM: case C_SQRT: case C_FUNC: case C_FONT: case C_ACCENT:
        case C_MARK:
        case C_OPEN: case C_BOX: case C_SUM: case C_OPAQUE: case C_OPNAME: case C_BB: case C_EMPTYSET:
            return true;
        case C_BEGIN:
            return true;
        default:
            return false;
        }
    case T_END: case T_REL: case T_BAD:
        return false;
    }
    return false;
}

static struct node *func_args(struct parser *p, enum math_func fn)
{
    struct node *arg;
    if (is_char(p, '(') || is_char(p, '{') || is_char(p, '[')) {
        char close = p->t.c == '(' ? ')' : p->t.c == '[' ? ']' : '}';
        if (!deeper(p))
            return NULL;
        int abs_depth = p->abs_depth;
        p->abs_depth = 0;
        token_take(p);
        arg = list_parse(p);
        p->abs_depth = abs_depth;
        p->depth--;
        if (!arg || !char_take(p, close))
            return fail(p);
        if (arg->kind == K_LIST)
            return node_op(node_list(p->m, K_FUNC, arg->child, arg->n), fn);
        /* only the group is the argument: \sin(x)^2 is a power of the value, \sin(x)y a product */
    } else {
        bool minus = is_char(p, '-');
        if (minus)
            token_take(p);
        if (!starts_factor(p) && !is_function(p))
            return fail(p);
        if (!deeper(p))
            return NULL;
        struct node *part[32];
        int n = 0;
        bool was = p->in_func;
        p->in_func = true;
        do
            part[n++] = factor_parse(p);
        while (n < 32 && part[n - 1] && starts_factor(p) && !is_function(p) && !is_char(p, '(') && p->t.kind != T_TEXT);
        p->in_func = was;
        p->depth--;
        if (!part[n - 1])
            return NULL;
        arg = n == 1 ? part[0] : node_list(p->m, K_MUL, part, n);
        if (minus)
            arg = node_new(p->m, K_NEG, 1, arg);
    }
    return node_op(node_new(p->m, K_FUNC, 1, arg), fn);
}

static int func_inverse(int fn)
{
    return fn >= FN_SIN && fn <= FN_CSC ? fn + (FN_ASIN - FN_SIN) : fn >= FN_SINH && fn <= FN_TANH
        ? fn + (FN_ASINH - FN_SINH) : -1;
}

static struct node *func_parse(struct parser *p, int fn)
{
    struct node *power = NULL, *base = NULL, *a;
    token_take(p);
    for (;;) {
        if (is_char(p, '^') && !power) {
            token_take(p);
            power = argument_parse(p, false);
            if (!power)
                return fail(p);
        } else if (is_char(p, '_') && !base && (fn == FN_LOG || fn == FN_LN)) {
            token_take(p);
            base = argument_parse(p, true);
            if (!base)
                return fail(p);
        } else {
            break;
        }
    }
    if (fn == FN_GAMMA && !is_char(p, '('))
        return const_node(p, CONST_GAMMA);
    if (power && power->kind == K_NEG && node_is(power->child[0], K_NUM) && power->child[0]->small == 1 &&
        func_inverse(fn) >= 0) {
        fn = func_inverse(fn);
        power = NULL;
    }
    a = func_args(p, (enum math_func)fn);
    if (!a)
        return fail(p);
    if (fn == FN_LOG) {
        if (a->n != 1)
            return fail(p);
        a = node_new(p->m, K_LOG, 2, a->child[0], base ? base : node_int(p->m, 10));
    } else if (fn == FN_SQRT) {
        a = node_new(p->m, K_ROOT, 2, a->child[0], node_int(p->m, 2));
    } else {
        bool exact = fn == FN_ABS || fn == FN_FLOOR || fn == FN_CEIL || fn >= FN_FACT;
        if (!exact || fn == FN_GAMMA || fn == FN_ARG)
            a->flags |= HAS_TRANS;
        bool many = fn == FN_GCD || fn == FN_LCM || fn == FN_MAX || fn == FN_MIN;
        if (a->n != 1 && !many)
            return fail(p);
    }
    return power ? node_new(p->m, K_POW, 2, a, power) : a;
}

static struct node *bracket_parse(struct parser *p, char open)
{
    int abs_depth = p->abs_depth;
    bool matrix = p->in_matrix, no_bar = p->no_bar, in_func = p->in_func;
    if (!deeper(p))
        return NULL;
    p->abs_depth = 0;
    p->in_matrix = p->in_func = false;
    p->no_bar = open == '{';
    token_take(p);
    struct node *a = NULL;
    bool empty = false;
    if (open == '{' ? is_class(p, C_CLOSE) && p->t.cmd->arg == '}' : open == 'b' && is_char(p, '}'))
        empty = true;
    else
        a = list_parse(p);
    p->depth--;
    p->abs_depth = abs_depth;
    p->in_matrix = matrix;
    p->no_bar = no_bar;
    p->in_func = in_func;
    if (!a && !empty)
        return fail(p);
    switch (open) {
    case '(': case '[': {
        if (!is_char(p, ')') && !is_char(p, ']'))
            return fail(p);
        bool square = is_char(p, ']');
        token_take(p);
        if (a->kind != K_LIST)
            return (open == '[') == square ? a : fail(p);
        return node_op(node_list(p->m, K_TUPLE, a->child, a->n), (open == '[') | square << 1);
    }
    case 'b':    // a brace that only groups: {1,2} without backslashes is a set too
        if (empty)
            return fail(p);
        /* fall through */
    case '{': {
        if (open == '{' && a && (is_char(p, '|') || is_char(p, ':'))) {    // { x | x > 2 }
            token_take(p);
            if (!deeper(p))
                return NULL;
            struct node *cond = list_parse(p);
            p->depth--;
            a = cond ? node_new(p->m, K_BUILDER, 2, a, cond) : NULL;
            if (!a)
                return fail(p);
        }
        bool closed = is_char(p, '}') || (is_class(p, C_CLOSE) && p->t.cmd->arg == '}');
        if (!closed)
            return fail(p);
        token_take(p);
        if (empty)
            return node_op(node_new(p->m, K_NAMED_SET, 0), '0');
        if (a->kind == K_BUILDER)
            return a;
        if (a->kind == K_LIST)
            return node_list(p->m, K_SET, a->child, a->n);
        return open == '{' ? node_new(p->m, K_SET, 1, a) : a;
    }
    case 'f': case 'c': case '<':
        if (!is_class(p, C_CLOSE) || p->t.cmd->arg != (open == '<' ? '>' : open))
            return fail(p);
        token_take(p);
        if (open == '<')
            return a->kind == K_LIST ? node_list(p->m, K_TUPLE, a->child, a->n) : a;
        return node_op(node_new(p->m, K_FUNC, 1, a), open == 'f' ? FN_FLOOR : FN_CEIL);
    }
    return fail(p);
}

static struct node *abs_parse(struct parser *p)
{
    if (!deeper(p))
        return NULL;
    int abs_depth = p->abs_depth;
    p->abs_depth = 1;
    token_take(p);
    struct node *a = sum_parse(p);
    p->abs_depth = abs_depth;
    p->depth--;
    if (!a || !is_char(p, '|'))
        return fail(p);
    p->abs_depth = abs_depth;
    token_take(p);
    return node_op(node_new(p->m, K_FUNC, 1, a), FN_ABS);
}

#define OPAQUE_DERIVATIVE 16    // beside the ops of the table's C_OPAQUE commands
#define CELLS_MAX 144
static struct node *environment_parse(struct parser *p)
{
    const char *q = space_skip(p->t.end, p->end), *from, *to;
    if (q >= p->end || *q != '{' || !group_raw(q, p->end, &from, &to))
        return fail(p);
    size_t len = (size_t)(to - from);
    p->p = to + 1;
    bool array = starts(from, to, "array"), det = starts(from, to, "vmatrix") || starts(from, to, "Vmatrix");
    if (!array && !memmem(from, len, "matrix", 6))
        return fail(p);
    if (array) {
        const char *f2, *t2, *b = space_skip(p->p, p->end);
        if (b < p->end && *b == '{' && group_raw(b, p->end, &f2, &t2))
            p->p = t2 + 1;
    }
    if (!deeper(p))
        return NULL;
    bool was = p->in_matrix;
    p->in_matrix = true;
    struct node *cell[CELLS_MAX];
    int n = 0, row = 0, cols = 0, in_row = 0;
    token_next(p);
    for (;;) {
        bool end = is_class(p, C_END);
        if (!end && !is_char(p, '&') && !is_char(p, 'n')) {
            if (n == CELLS_MAX)
                return fail(p);
            cell[n] = set_parse(p);
            if (!cell[n])
                return fail(p);
            n++;
            in_row++;
        }
        if (is_char(p, '&')) {
            token_take(p);
            continue;
        }
        end = is_class(p, C_END);
        if (!end && !is_char(p, 'n'))
            return fail(p);
        if (in_row > 0) {
            if (row > 0 && in_row != cols)
                return fail(p);
            cols = in_row;
            in_row = 0;
            row++;
        }
        if (end)
            break;
        token_take(p);
    }
    q = space_skip(p->t.end, p->end);
    if (row == 0 || q >= p->end || *q != '{' || !group_raw(q, p->end, &from, &to))
        return fail(p);
    p->in_matrix = was;
    p->depth--;
    p->p = to + 1;
    token_next(p);
    struct node *a = node_list(p->m, K_MATRIX, cell, n);
    if (!a)
        return fail(p);
    a->scale = row;
    return det ? node_op(node_new(p->m, K_FUNC, 1, a), FN_DET) : a;
}

static struct node *big_parse(struct parser *p, bool opaque, int op)
{
    struct node *from = NULL, *to = NULL, *body, *limit = NULL;
    const char *index = "";
    size_t index_len = 0;
    token_take(p);
    for (int i = 0; i < 2; i++) {
        if (is_char(p, '_')) {
            p->p = p->t.end;
            const char *q = space_skip(p->p, p->end), *a, *b;
            if (q < p->end && *q == '{' && group_raw(q, p->end, &a, &b)) {
                const char *eq = memchr(a, '=', (size_t)(b - a));
                if (!opaque && eq) {
                    index = space_skip(a, eq);
                    index_len = 1;
                    if (index == eq || !is_letter(*index) || space_skip(index + 1, eq) != eq)
                        return fail(p);
                    p->p = eq + 1;
                    if (!deeper(p))
                        return NULL;
                    token_next(p);
                    from = sum_parse(p);
                    p->depth--;
                    if (!from || !char_take(p, '}'))
                        return fail(p);
                } else if (opaque && op == 1) {
                    token_next(p);
                    from = argument_parse(p, true);
                } else {
                    limit = node_named(p->m, K_TEXT, a, (size_t)(b - a));
                    p->p = b + 1;
                    token_next(p);
                }
            } else {
                token_next(p);
                from = argument_parse(p, true);
            }
        } else if (is_char(p, '^')) {
            token_take(p);
            to = argument_parse(p, true);
        }
    }
    if (p->failed || !deeper(p))
        return NULL;
    bool named = index_len && p->n_index < MATH_BIND_MAX;
    if (named)
        p->index[p->n_index++] = *index;
    body = product_parse(p);
    p->n_index -= named;
    p->depth--;
    if (!body)
        return fail(p);
    if (!opaque && from && to && index_len) {
        struct node *a = node_new(p->m, (enum node_kind)op, 3, body, from, to);
        if (a) {
            a->s = index;
            a->len = (int32_t)index_len;
        }
        return a;
    }
    struct node *child[4];
    int n = 0;
    child[n++] = body;
    if (from)
        child[n++] = from;
    if (to)
        child[n++] = to;
    if (limit)
        child[n++] = limit;
    return node_op(node_list(p->m, K_OPAQUE, child, n), opaque ? op : op + 32);
}

static bool unit_word(const char *s, size_t len)
{
    for (size_t i = 0; i < ARRAY_SIZE(unit_words); i++)
        if (strlen(unit_words[i]) == len && memcmp(unit_words[i], s, len) == 0)
            return true;
    return false;
}

/* From s on only words, up to the end of the text or a comma: how many bytes; 0 otherwise. */
static size_t words_len(const struct parser *p, const char *s)
{
    const char *q = s, *last = s;
    bool longer = false;
    while (q < p->end) {
        const char *w = q;
        while (q < p->end && (is_letter(*q) || *q == '\'' || *q == '-'))
            q++;
        if (q == w)
            break;
        if (word_is(w, (size_t)(q - w), "and") || word_is(w, (size_t)(q - w), "or"))
            break;
        longer |= q - w >= 4;
        last = q;
        if (q < p->end && *q == '.' )
            q++;
        q = space_skip(q, p->end);
    }
    bool ends = q >= p->end || *q == ',' || *q == ';' || *q == ')' || *q == '}' ||
        (q + 1 < p->end && q[0] == '\\' && q[1] == '\\');
    return ends && longer ? (size_t)(last - s) : 0;
}

static struct node *sub_parse(struct parser *p, const char *s, size_t len)
{
    struct parser sub = { .m = p->m, .p = s, .start = s, .end = s + len, .depth = p->depth, .nest = p->nest };
    if (!deeper(&sub))
        return fail(p);
    token_next(&sub);
    struct node *a = list_parse(&sub);
    return a && !sub.failed && sub.t.kind == T_END ? a : NULL;
}

/* Words; those that name a set are that set. */
static struct node *text_node(struct parser *p, const char *s, size_t len)
{
    static const char *const reals[] = { "all real numbers", "real numbers", "all reals", "the set of all real numbers",
                                         "the real numbers" };
    for (size_t i = 0; i < ARRAY_SIZE(reals); i++)
        if (word_is(s, len, reals[i]))
            return node_op(node_new(p->m, K_NAMED_SET, 0), 'R');
    return node_named(p->m, K_TEXT, s, len);
}

/* Does a parenthesis follow at once, with nothing between but what sets its size? */
static bool paren_follows(const struct parser *p)
{
    static const char *const sizes[] = { "\\left", "\\big", "\\Big", "\\bigl", "\\Bigl", "\\bigg", "\\Bigg", "\\!" };
    if (!is_char(p, '('))
        return false;
    const char *q = p->t.s;
    for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
        size_t n = strlen(sizes[i]);
        if ((size_t)(q - p->start) >= n && memcmp(q - n, sizes[i], n) == 0) {
            q -= n;
            i = (size_t)-1;
        }
    }
    return q > p->start && !strchr(" \t\r\n~", q[-1]);
}

/* Do parentheses follow that say what a letter stands for: 2k\pi (k \in \mathbb{Z})? */
static bool binder_follows(const struct parser *p)
{
    if (!is_char(p, '(') || p->depth > 0)
        return false;
    const char *q = space_skip(p->t.end, p->end), *close = q < p->end ? memchr(q, ')', (size_t)(p->end - q)) : NULL;
    if (!close || !is_letter(*q))
        return false;
    const char *in = memmem(q, (size_t)(close - q), "\\in", 3);
    return (in && in + 3 < close && !is_letter(in[3])) || memmem(q, (size_t)(close - q), "∈", strlen("∈"));
}

/* One word of letters: a function, a constant, a name such as AB, words of text, or letters one by one. */
static struct node *word_parse(struct parser *p)
{
    struct token t = p->t;
    const struct command *c = t.len >= 2 ? command_find(p->m, t.s, (size_t)t.len) : NULL;
    if (c && c->class == C_FUNC && c->arg != FN_GAMMA && t.s[0] >= 'a' && c->arg != FN_ARG)
        return func_parse(p, c->arg);
    if (c && (c->class == C_CONST) && strncmp(t.s, "imath", 5) != 0) {
        token_take(p);
        return const_node(p, (enum math_const)c->arg);
    }
    if (c && c->class == C_SQRT) {
        token_take(p);
        struct node *a = argument_parse(p, false);
        return node_new(p->m, K_ROOT, 2, a, node_int(p->m, 2));
    }
    if (c && c->class == C_SYM && t.len >= 3) {
        token_take(p);
        return symbol_node(p, t.s, (size_t)t.len);
    }
    if (word_is(t.s, (size_t)t.len, "infinity")) {
        token_take(p);
        return const_node(p, CONST_INF);
    }
    size_t words = t.end == t.s + t.len ? words_len(p, t.s) : 0;
    if (words > 0) {
        p->p = t.s + words;
        token_next(p);
        return text_node(p, t.s, words);
    }
    bool upper = t.len >= 2 && t.len <= 5;
    for (int i = 0; i < t.len; i++)
        upper &= t.s[i] >= 'A' && t.s[i] <= 'Z';
    if (upper) {
        token_take(p);
        return symbol_node(p, t.s, (size_t)t.len);
    }
    if (t.len >= 4)    // sinx, cosx, lnx; else a word where no word can be
        for (int n = 4; n >= 3; n--) {
            const struct command *f = command_find(p->m, t.s, (size_t)n);
            if (f && f->class == C_FUNC && t.len - n <= 2 && t.len > n) {
                p->t.end = t.s + n;
                return func_parse(p, f->arg);
            }
        }
    p->p = t.end == t.s + t.len ? t.s + 1 : t.end;    // \mathrm{e} ends behind its brace
    token_next(p);
    bool is_index = memchr(p->index, t.s[0], (size_t)p->n_index) != NULL;
    if (t.s[0] == 'e' && !is_char(p, '_') && !is_index)
        return const_node(p, CONST_E);
    if (t.s[0] == 'i' && !is_char(p, '_') && !is_index)
        return const_node(p, CONST_I);
    bool apply = strchr(FUNCTION_LETTERS, t.s[0]) != NULL;
    static const char *const inverse[] = { "^{-1}(", "^{-1}\\left(", "^{-1} (" };
    for (size_t i = 0; apply && i < ARRAY_SIZE(inverse); i++)    // f^{-1}(x) is a function of its own
        if (starts(p->p, p->end, inverse[i])) {
            char *name = math_take(p->m, 8);
            if (!name)
                return fail(p);
            memcpy(name, t.s, 1);
            memcpy(name + 1, "^-1", 3);
            p->p += 5;
            token_next(p);
            p->t.space = false;
            struct node *arg = is_char(p, '(') ? bracket_parse(p, '(') : NULL;
            struct node *f = arg ? node_new(p->m, K_APP, 1, arg) : NULL;
            if (!f)
                return fail(p);
            f->s = name;
            f->len = 4;
            return f;
        }
    struct node *sym = symbol_node(p, t.s, 1);
    if (sym && t.s[0] == 'C' && sym->len == 1 && paren_follows(p)) {    // C(10,3); C(x+1) is a product
        struct node *arg = bracket_parse(p, '(');
        if (!arg)
            return fail(p);
        return arg->kind == K_TUPLE && arg->n == 2 && arg->op == 0
                   ? node_op(node_new(p->m, K_FUNC, 2, arg->child[0], arg->child[1]), FN_BINOM)
                       : node_new(p->m, K_MUL, 2, sym, arg);
    }
    return sym;
}

/* The content of a font command: digits with spaces between them are one number. */
static struct node *font_parse(struct parser *p)
{
    const char *q = space_skip(p->t.end, p->end), *from, *to;
    bool digits = q < p->end && *q == '{' && group_raw(q, p->end, &from, &to) && to > from;
    for (const char *r = from; digits && r < to; r++)
        digits = is_digit(*r) || *r == ' ';
    char *joined = digits ? math_take(p->m, (size_t)(to - from)) : NULL;
    size_t n = 0;
    for (const char *r = from; joined && r < to; r++)
        if (*r != ' ')
            joined[n++] = *r;
    token_take(p);
    if (n == 0)
        return argument_parse(p, true);
    p->p = to + 1;
    token_next(p);
    struct node *a = sub_parse(p, joined, n);
    return a ? a : fail(p);
}

/* What stands under a bar, dot or tilde: a letter with one is another symbol, several capitals are a segment's name,
 * other letters a number by its digits, and what is computed is conjugated. */
static struct node *mark_parse(struct parser *p)
{
    const char *mark = p->t.cmd->name, *q = space_skip(p->t.end, p->end), *from = q, *to = q, *behind;
    bool bar = starts(mark, mark + strlen(mark), "bar") || mark[0] == 'o';
    if (q < p->end && *q == '{' && group_raw(q, p->end, &from, &to)) {
        behind = to + 1;
        from = space_skip(from, to);
        while (to > from && to[-1] == ' ')
            to--;
    } else {
        from = q;
        to = q + (q < p->end);
        while (to > from && *q == '\\' && to < p->end && is_letter(*to))
            to++;
        behind = to;
    }
    bool command = to - from > 1 && *from == '\\';
    const struct command *sym = command ? command_find(p->m, from + 1, (size_t)(to - from - 1)) : NULL;
    bool capitals = to > from, letters = to > from, digits = true;
    for (const char *r = from; r < to; r++) {
        capitals &= *r >= 'A' && *r <= 'Z';
        letters &= is_letter(*r) || is_digit(*r);
        digits &= is_digit(*r);
    }
    if ((letters && !digits && !(capitals && to - from > 1)) || (sym && sym->class == C_SYM)) {
        size_t n = (size_t)(to - from), k = bar ? 3 : strlen(mark);
        char *name = math_take(p->m, n + k + 1);
        if (!name)
            return fail(p);
        memcpy(name, from, n);
        name[n] = '^';    // no written name has one
        memcpy(name + n + 1, bar ? "bar" : mark, k);
        p->p = behind;
        token_next(p);
        return symbol_node(p, name, n + k + 1);
    }
    token_take(p);
    struct node *a = argument_parse(p, true);
    return a && bar && !digits && !capitals ? node_op(node_new(p->m, K_FUNC, 1, a), FN_CONJ) : a;
}

static bool is_differential(const struct node *a)    // dx
{
    return node_is(a, K_MUL) && a->n == 2 && node_is(a->child[0], K_SYM) && a->child[0]->len == 1 &&
           a->child[0]->s[0] == 'd' && node_is(a->child[1], K_SYM);
}

/* a over b; dy/dx is a name, and d/dx of what follows is not evaluated: neither is a quotient. */
static struct node *fraction_node(struct parser *p, struct node *a, struct node *b)
{
    bool d = node_is(a, K_SYM) && a->len == 1 && a->s[0] == 'd', dy = is_differential(a);
    if (!is_differential(b) || !(d || dy))
        return node_new(p->m, K_DIV, 2, a, b);
    if (d) {
        if (!starts_factor(p))
            return node_new(p->m, K_DIV, 2, a, b);
        struct node *body = deeper(p) ? product_parse(p) : NULL;
        p->depth -= body != NULL;
        return body ? node_op(node_new(p->m, K_OPAQUE, 2, body, b->child[1]), OPAQUE_DERIVATIVE) : fail(p);
    }
    size_t ny = (size_t)a->child[1]->len, nx = (size_t)b->child[1]->len;
    char *name = math_take(p->m, ny + nx + 3);
    if (!name)
        return fail(p);
    name[0] = 'd';
    memcpy(name + 1, a->child[1]->s, ny);
    memcpy(name + 1 + ny, "/d", 2);
    memcpy(name + 3 + ny, b->child[1]->s, nx);
    return node_named(p->m, K_SYM, name, ny + nx + 3);
}

static struct node *command_parse(struct parser *p)
{
    struct token t = p->t;
    struct node *a, *b;
    if (!t.cmd) {    // an unknown command is a symbol of that name
        token_take(p);
        return symbol_node(p, t.s, (size_t)t.len);
    }
    switch ((enum cmd_class)t.cmd->class) {
    case C_SYM:
        token_take(p);
        return symbol_node(p, t.cmd->name, strlen(t.cmd->name));
    case C_CONST:
        token_take(p);
        return const_node(p, (enum math_const)t.cmd->arg);
    case C_FRAC:
        token_take(p);
        a = argument_parse(p, true);
        b = a ? argument_parse(p, true) : NULL;
        return b ? fraction_node(p, a, b) : fail(p);
    case C_BINOM:
        token_take(p);
        a = argument_parse(p, true);
        b = a ? argument_parse(p, true) : NULL;
        return b ? node_op(node_new(p->m, K_FUNC, 2, a, b), FN_BINOM) : fail(p);
    case C_SQRT: {
        struct node *index = NULL;
        token_take(p);
        if (is_char(p, '[')) {
            if (!deeper(p))
                return NULL;
            token_take(p);
            index = sum_parse(p);
            p->depth--;
            if (!index || !char_take(p, ']'))
                return fail(p);
        }
        a = argument_parse(p, true);
        return a ? node_new(p->m, K_ROOT, 2, a, index ? index : node_int(p->m, 2)) : fail(p);
    }
    case C_FUNC:
        return func_parse(p, t.cmd->arg);
    case C_FONT:
        return font_parse(p);
    case C_ACCENT: case C_BOX:
        token_take(p);
        return argument_parse(p, true);
    case C_MARK:
        return mark_parse(p);
    case C_BB: {
        int set = t.cmd->arg;
        token_take(p);
        if (!set) {
            const char *q = is_char(p, '{') ? space_skip(p->t.end, p->end) : p->t.s;
            if (q >= p->end || !strchr("RZNQCP", *q))
                return argument_parse(p, true);
            set = *q;
            bool brace = is_char(p, '{');
            p->p = q + 1;
            token_next(p);
            if (brace && !char_take(p, '}'))
                return fail(p);
        }
        return node_op(node_new(p->m, K_NAMED_SET, 0), set);
    }
    case C_EMPTYSET:
        token_take(p);
        return node_op(node_new(p->m, K_NAMED_SET, 0), '0');
    case C_OPEN:
        return bracket_parse(p, (char)t.cmd->arg);
    case C_BEGIN:
        return environment_parse(p);
    case C_SUM:
        return big_parse(p, false, t.cmd->arg);
    case C_OPAQUE:
        return big_parse(p, true, t.cmd->arg);
    default:
        return fail(p);
    }
}

static struct node *atom_parse(struct parser *p)
{
    struct token t = p->t;
    if (p->failed || p->m->out_of_memory)
        return fail(p);
    switch (t.kind) {
    case T_NUM: {
        struct node *a = number_node(p);
        if (a && is_char(p, '_')) {
            const char *sub;
            size_t n = 0;
            p->p = p->t.end;
            if (!subscript_take(p, &sub, &n) || n == 0 || n > 2)
                return fail(p);
            for (size_t i = 0; i < n; i++)
                if (is_digit(sub[i]))
                    a->base = a->base * 10 + (sub[i] - '0');
        }
        return a;
    }
    case T_WORD:
        return word_parse(p);
    case T_TEXT: {
        bool list = memchr(t.s, ',', (size_t)t.len) != NULL;    // \text{Navin, Luisa}
        struct node *a = t.len > 0 && (list || is_digit(*t.s) || *t.s == '(' || *t.s == '$' || *t.s == '-' ||
                                       *t.s == '\\')
                             ? sub_parse(p, t.s, (size_t)t.len) : NULL;
        p->failed = false;    // what is no mathematics in there is text
        token_take(p);
        return a ? a : text_node(p, t.s, (size_t)t.len);
    }
    case T_CMD:
        return command_parse(p);
    case T_CHAR:
        if (t.c == '(' || t.c == '[')
            return bracket_parse(p, t.c);
        if (t.c == '{')
            return bracket_parse(p, 'b');
        if (t.c == '|')
            return abs_parse(p);
        return fail(p);
    case T_END: case T_REL: case T_BAD:
        break;
    }
    return fail(p);
}

static struct node *transpose(struct parser *p, const struct node *a)
{
    struct node *cell[CELLS_MAX];
    int rows = a->scale, cols = a->n / a->scale;
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < cols; j++)
            cell[j * rows + i] = a->child[i * cols + j];
    struct node *b = node_list(p->m, K_MATRIX, cell, a->n);
    if (b)
        b->scale = cols;
    return b;
}

/* The chain of powers and other postfixes a, with new in the place of old at its bottom. */
static struct node *bottom_replaced(struct parser *p, struct node *a, const struct node *old, struct node *new)
{
    if (a == old)
        return new;
    struct node *child[2] = { bottom_replaced(p, a->child[0], old, new), a->n > 1 ? a->child[1] : NULL };
    return child[0] ? node_like(p->m, a, (enum node_kind)a->kind, child) : NULL;
}

static bool is_one_number(const struct node *a)
{
    while (a->kind == K_NEG || a->kind == K_PCT || a->kind == K_DEG)
        a = a->child[0];
    return a->kind == K_NUM || a->kind == K_CONST ||
           (a->kind == K_DIV && is_one_number(a->child[0]) && is_one_number(a->child[1]));
}

/* A letter and the parentheses right behind it: a function's value or a product; readings.c decides. */
static struct node *applied_parse(struct parser *p, struct node *letter)
{
    struct node *group = bracket_parse(p, '(');
    if (!group)
        return fail(p);
    bool tuple = group->kind == K_TUPLE;
    struct node *app = tuple ? node_list(p->m, K_APP, group->child, group->n) : node_new(p->m, K_APP, 1, group);
    if (!app)
        return fail(p);
    app->s = letter->s;
    app->len = letter->len;
    if (tuple || (group->flags & (HAS_SET | HAS_TEXT)) || is_one_number(group))
        return postfix_parse(p, app);
    struct node *factor = postfix_parse(p, group), *product = node_new(p->m, K_MUL, 2, letter, factor);
    if (!product)
        return fail(p);
    if (letter->len == 1 && memchr(p->index, letter->s[0], (size_t)p->n_index))
        return product;
    app = bottom_replaced(p, factor, group, app);
    struct node *a = app ? node_new(p->m, K_JUXT, 3, product, app, group) : NULL;
    if (!a)
        return fail(p);
    a->s = letter->s;
    a->len = letter->len;
    return a;
}

/* May a function be called so? A letter, with what hangs on it, or a Greek one; not the points of a segment. */
static bool may_apply(const struct parser *p, const struct node *a)
{
    if (a->kind != K_SYM || !paren_follows(p) || binder_follows(p))
        return false;
    if (p->in_func && !(a->len == 1 && strchr(FUNCTION_LETTERS, a->s[0])))
        return false;
    return a->len == 1 || !(a->s[1] >= 'A' && a->s[1] <= 'Z');
}

/* A factor: an atom with its powers, factorials, percent and degree marks. */
static struct node *factor_parse(struct parser *p)
{
    struct node *a = atom_parse(p);
    return a && may_apply(p, a) ? applied_parse(p, a) : postfix_parse(p, a);
}

static struct node *postfix_parse(struct parser *p, struct node *a)
{
    while (a && !p->failed) {
        if (is_char(p, '^')) {
            token_take(p);
            if (is_class(p, C_DEGREE)) {
                token_take(p);
                a = node_new(p->m, K_DEG, 1, a);
                continue;
            }
            const char *q = is_char(p, '{') ? space_skip(p->t.end, p->end) : NULL;
            if (q && (starts(q, p->end, "\\circ") || starts(q, p->end, "\\degree") || starts(q, p->end, "°") ||
                      starts(q, p->end, "\\prime"))) {
                token_take(p);
                bool degree = is_class(p, C_DEGREE);
                token_take(p);
                if (!char_take(p, '}') || !degree)
                    return fail(p);
                a = node_new(p->m, K_DEG, 1, a);
                continue;
            }
            if (a->kind == K_MATRIX && ((p->t.kind == T_WORD && *p->t.s == 'T') || (q && starts(q, p->end, "T}")))) {
                bool brace = is_char(p, '{');
                token_take(p);
                if (brace) {
                    token_take(p);
                    token_take(p);
                }
                a = transpose(p, a);
                continue;
            }
            struct node *e = NULL;
            if (is_char(p, '{')) {
                e = argument_parse(p, false);
            } else if (deeper(p)) {
                bool minus = is_char(p, '-');
                if (minus || is_char(p, '+'))
                    token_take(p);
                e = p->t.kind == T_NUM ? number_node(p) : atom_parse(p);    // the 1 of x^2_1 is no number's base
                if (e && is_char(p, '^') && !minus) {    // 2^3^4 is 2^(3^4)
                    token_take(p);
                    struct node *e2 = is_char(p, '{') ? argument_parse(p, false) : factor_parse(p);
                    e = node_new(p->m, K_POW, 2, e, e2);
                }
                if (minus)
                    e = node_new(p->m, K_NEG, 1, e);
                p->depth--;
            }
            if (e && a->kind == K_SYM && is_char(p, '_'))    // x^2_i is x_i^2
                a = symbol_node(p, a->s, (size_t)a->len);
            a = e && a ? node_new(p->m, K_POW, 2, a, e) : fail(p);
        } else if (is_char(p, '!')) {
            token_take(p);
            bool twice = is_char(p, '!') && !p->t.space;
            if (twice)
                token_take(p);
            a = node_op(node_new(p->m, K_FUNC, 1, a), twice ? FN_FACT2 : FN_FACT);
        } else if (is_char(p, '%')) {
            token_take(p);
            a = node_new(p->m, K_PCT, 1, a);
        } else if (is_class(p, C_DEGREE)) {
            token_take(p);
            a = node_new(p->m, K_DEG, 1, a);
        } else {
            break;
        }
    }
    return a;
}

static bool is_natural(const struct node *a)
{
    return node_is(a, K_NUM) && a->scale == 0 && a->base == 0 && !(a->flags & HAS_DECIMAL);
}

/* A unit behind an operand (number: it is one, so that a single letter may be a unit): text, or a word that is one.
 * Takes it with its power and what it is divided by. */
static bool unit_take(struct parser *p, bool number)
{
    bool any = false;
    while (p->t.kind == T_TEXT || p->t.kind == T_WORD) {
        if (p->t.kind == T_WORD) {
            const struct command *c = command_find(p->m, p->t.s, (size_t)p->t.len);
            bool known = p->t.len >= 2 && unit_word(p->t.s, (size_t)p->t.len);
            bool single = number && p->t.len == 1 && p->t.space && strchr("mgshtl", *p->t.s) && p->depth == 0;
            bool word = p->t.len >= 4 && p->t.space && !c;
            if (c && c->class == C_FUNC && !(known && p->t.space))
                break;
            if (single) {
                const char *q = space_skip(p->t.end, p->end);
                single = q >= p->end || *q == ',' || *q == '.';
            }
            if (!known && !single && !word && !(any && p->t.space && p->depth == 0))
                break;
        }
        if (!any) {
            p->unit = p->t.s;
            p->unit_len = p->t.len;
        }
        any = true;
        token_take(p);
        if (is_char(p, '^')) {
            const char *q = space_skip(p->t.end, p->end);
            bool brace = q < p->end && *q == '{';
            q += brace;
            bool minus = q < p->end && *q == '-';
            q += minus;
            if (q < p->end && is_digit(*q) && (!brace || (q + 1 < p->end && q[1] == '}'))) {
                p->unit_len = (int32_t)(q + 1 + brace - p->unit);
                p->p = q + 1 + brace;
                token_next(p);
            }
        }
        if (is_char(p, '/') || is_char(p, '*')) {
            const char *q = space_skip(p->t.end, p->end);
            if (starts(q, p->end, "\\text") || starts(q, p->end, "\\mathrm") || (q < p->end && is_letter(*q)))
                token_take(p);
        }
    }
    return any;
}

/* Factors side by side: a product that binds more tightly than '/'; a natural number before a fraction is a mixed
 * number. */
static struct node *implicit_parse(struct parser *p)
{
    struct node *part[64];
    int n = 0;
    const struct node *before = NULL;
    while (n < 64) {
        bool space = p->t.space, frac = is_class(p, C_FRAC);
        if (n > 0 && unit_take(p, node_is(before, K_NUM))) {
            if (!starts_factor(p))
                break;
            return fail(p);    // 3 hours 20 minutes
        }
        if (n > 0 && (!starts_factor(p) || binder_follows(p)))
            break;
        bool number = p->t.kind == T_NUM;
        struct node *a = factor_parse(p);
        if (!a)
            return fail(p);
        if (n == 1 && part[0]->kind == K_TEXT && p->depth == 0)    // \text{Area: } 5
            n = 0;
        bool proper = n > 0 && is_natural(before) && part[n - 1] == before;
        if (proper && frac && (a->kind == K_PCT || a->kind == K_DEG) && a->child[0]->kind == K_DIV &&
            is_natural(a->child[0]->child[0]) && is_natural(a->child[0]->child[1])) {    // 33\frac{1}{3}\%
            part[n - 1] = node_new(p->m, (enum node_kind)a->kind, 1, node_new(p->m, K_ADD, 2, part[n - 1],
                    a->child[0]));
            before = NULL;
            continue;
        }
        if (proper && frac && a->kind == K_DIV && is_natural(a->child[0]) && is_natural(a->child[1])) {
            part[n - 1] = node_new(p->m, K_ADD, 2, part[n - 1], a);
            before = NULL;
            continue;
        }
        if (n > 0 && number) {
            if (proper && space && is_natural(a) && is_char(p, '/')) {    // 3 1/2
                token_take(p);
                struct node *den = p->t.kind == T_NUM ? factor_parse(p) : NULL;
                if (!is_natural(den))
                    return fail(p);
                part[n - 1] = node_new(p->m, K_ADD, 2, part[n - 1], node_new(p->m, K_DIV, 2, a, den));
                before = NULL;
                continue;
            }
            if (before && before->kind == K_NUM)
                return fail(p);    // two numbers side by side
        }
        part[n++] = a;
        before = number ? a : NULL;
    }
    if (n == 64)
        return fail(p);
    return n == 1 ? part[0] : node_list(p->m, K_MUL, part, n);
}

static struct node *signed_parse(struct parser *p)
{
    int pm = is_class(p, C_PM) ? p->t.cmd->arg : 0;
    if (!pm && !is_char(p, '-') && !is_char(p, '+'))
        return implicit_parse(p);
    bool minus = is_char(p, '-');
    if (!nest_deeper(p))
        return NULL;
    token_take(p);
    struct node *a = signed_parse(p);
    p->nest--;
    if (!a)
        return fail(p);
    return pm ? node_op(node_new(p->m, K_PM, 1, a), pm) : minus ? node_new(p->m, K_NEG, 1, a) : a;
}

static struct node *product_parse(struct parser *p)
{
    struct node *a = signed_parse(p);
    while (a && !p->failed) {
        if (is_char(p, '*') || is_char(p, '/') || is_char(p, 'm')) {
            char op = p->t.c;
            token_take(p);
            if (!nest_deeper(p))
                return NULL;
            struct node *b = signed_parse(p);
            p->nest--;
            if (!b)
                return fail(p);
            a = op == '*' ? node_new(p->m, K_MUL, 2, a, b) : op == '/' ? node_new(p->m, K_DIV, 2, a, b)
                : node_op(node_new(p->m, K_FUNC, 2, a, b), FN_MOD);
        } else {
            break;
        }
    }
    return a;
}

#define TERMS_MAX 512
static struct node *sum_parse(struct parser *p)
{
    struct node *term[TERMS_MAX], *a = product_parse(p);
    int n = 0;
    if (!a)
        return fail(p);
    term[n++] = a;
    for (;;) {
        int pm = is_class(p, C_PM) ? p->t.cmd->arg : 0;
        bool minus = is_char(p, '-');
        if (!pm && !minus && !is_char(p, '+'))
            break;
        token_take(p);
        if (p->t.kind == T_END && p->depth == 0 && !minus)
            break;    // a '+' behind the last term
        a = n < TERMS_MAX ? product_parse(p) : NULL;
        if (!a)
            return fail(p);
        term[n++] = pm ? node_op(node_new(p->m, K_PM, 1, a), pm) : minus ? node_new(p->m, K_NEG, 1, a) : a;
    }
    a = n == 1 ? term[0] : node_list(p->m, K_ADD, term, n);
    if (is_class(p, C_OVER) || is_class(p, C_CHOOSE)) {    // {a \over b}
        bool over = is_class(p, C_OVER);
        if (!deeper(p))
            return NULL;
        token_take(p);
        struct node *b = sum_parse(p);
        p->depth--;
        a = b ? over ? node_new(p->m, K_DIV, 2, a, b) : node_op(node_new(p->m, K_FUNC, 2, a, b), FN_BINOM) : fail(p);
    }
    return a;
}

static struct node *ratio_parse(struct parser *p)
{
    struct node *part[16], *a = sum_parse(p);
    int n = 0;
    if (!a || !is_char(p, ':') || p->no_bar || p->depth > MATH_DEPTH_MAX)    // in a set's braces: "such that"
        return a;
    part[n++] = a;
    while (n < 16 && is_char(p, ':')) {
        token_take(p);
        part[n] = sum_parse(p);
        if (!part[n])
            return fail(p);
        n++;
    }
    return node_list(p->m, K_RATIO, part, n);
}

static struct node *set_parse(struct parser *p)
{
    struct node *a = ratio_parse(p);
    while (a && (is_class(p, C_CUP) || is_class(p, C_CAP) || is_class(p, C_SETMINUS))) {
        enum node_kind kind = is_class(p, C_CUP) ? K_UNION : is_class(p, C_CAP) ? K_INTER : K_MINUS;
        token_take(p);
        struct node *b = ratio_parse(p);
        a = b ? node_new(p->m, kind, 2, a, b) : fail(p);
    }
    return a;
}

#define RELS_MAX 24
static struct node *relation_parse(struct parser *p)
{
    struct node *side[RELS_MAX + 1];
    char rel[RELS_MAX];
    int n = 0;
    p->unit = NULL;
    if (p->t.kind == T_REL && (p->t.c == REL_EQ || p->t.c == REL_APPROX) && p->depth == 0)    // "= 5"
        token_take(p);
    side[0] = set_parse(p);
    if (!side[0])
        return fail(p);
    struct node *a = side[0];
    if (p->unit) {
        a = side[0] = node_new(p->m, K_UNIT, 1, a);
        if (!a)
            return fail(p);
        a->s = p->unit;
        a->len = p->unit_len;
        p->unit = NULL;
    }
    while (p->t.kind == T_REL || is_class(p, C_PMOD)) {
        bool pmod = is_class(p, C_PMOD);
        if (n == RELS_MAX)
            return fail(p);
        rel[n] = pmod ? REL_MOD : p->t.c;
        token_take(p);
        p->unit = NULL;
        side[n + 1] = pmod ? argument_parse(p, false) : set_parse(p);
        if (!side[n + 1])
            return fail(p);
        if (p->unit) {
            struct node *u = node_new(p->m, K_UNIT, 1, side[n + 1]);
            if (!u)
                return fail(p);
            u->s = p->unit;
            u->len = p->unit_len;
            side[n + 1] = u;
            p->unit = NULL;
        }
        n++;
        struct node *last = side[n];
        if (rel[n - 1] == REL_CONG && last->kind == K_FUNC && last->op == FN_MOD && n < RELS_MAX) {    // a = b mod n
            side[n] = last->child[0];
            side[n + 1] = last->child[1];
            rel[n++] = REL_MOD;
        }
    }
    if (n == 0)
        return a;
    a = node_list(p->m, K_REL, side, n + 1);
    char *s = math_take(p->m, (size_t)n);
    if (!a || !s)
        return fail(p);
    memcpy(s, rel, (size_t)n);
    a->s = s;
    a->len = n;
    return a;
}

#define LIST_MAX 256
static struct node *list_parse(struct parser *p)
{
    struct node *elem[LIST_MAX], *group[64];
    int n = 0, n_group = 0, from = 0;
    bool separated = false, lines = true;
    for (;;) {
        while (is_char(p, ',') || is_char(p, ';') || (is_char(p, '.') && p->depth == 0)) {
            bool semi = is_char(p, ';'), dot = is_char(p, '.');
            lines &= p->t.line || dot;
            if (semi && n > from && n_group < 63) {
                group[n_group++] = n - from == 1 ? elem[from] : node_list(p->m, K_LIST, elem + from, n - from);
                from = n;
            }
            separated |= !dot && n > 0;
            if (p->depth == 0 && !dot && n > 0)
                p->comma_seen = true;
            token_take(p);
            if (dot && p->t.kind != T_END)
                return fail(p);
        }
        if (is_class(p, C_DOTS)) {    // 1, 2, ..., 9
            token_take(p);
            if (n == LIST_MAX)
                return fail(p);
            elem[n++] = node_named(p->m, K_TEXT, "...", 3);
            continue;
        }
        bool closing = p->t.kind == T_END || (p->t.kind == T_CHAR && strchr(n > 0 ? ")]}|&n:" : ")]}&n:", p->t.c)) ||
            is_class(p, C_CLOSE) ||
                       is_class(p, C_END);
        if (closing)
            break;
        if (n == LIST_MAX || (n > from && !separated))
            return fail(p);
        struct node *a = relation_parse(p);
        if (!a)
            return fail(p);
        elem[n++] = a;
        if (binder_follows(p) && n + 2 < LIST_MAX) {
            a = bracket_parse(p, '(');
            if (!a)
                return fail(p);
            lines = false;
            for (int i = 0; i < (a->kind == K_TUPLE ? a->n : 1) && n < LIST_MAX; i++)
                elem[n++] = a->kind == K_TUPLE ? a->child[i] : a;
        }
        if (!is_char(p, ',') && !is_char(p, ';') && !is_char(p, '.') && !is_class(p, C_DOTS))
            break;
    }
    if (n == 0)
        return fail(p);
    if (n_group > 0) {
        if (n > from)
            group[n_group++] = n - from == 1 ? elem[from] : node_list(p->m, K_LIST, elem + from, n - from);
        if (n_group > 1)
            return node_op(node_list(p->m, K_LIST, group, n_group), 1);
        return group[0];
    }
    if (n == 1)
        return elem[0];
    struct node *list = node_list(p->m, K_LIST, elem, n);
    if (list)
        list->scale = lines;
    return list;
}

/* Replace the characters that stand for plain ones (minus signs, exponents, fractions); NULL: no room. */
static const char *ascii_copy(struct math *m, const char *s, size_t *len)
{
    size_t room = *len * 3 + 1, n = 0;
    char *out = math_take(m, room);
    if (!out)
        return NULL;
    for (size_t i = 0; i < *len;) {
        size_t k = 0;
        if ((unsigned char)s[i] >= 0x80)
            for (k = 0; k < ARRAY_SIZE(unicode_text); k++)
                if (starts(s + i, s + *len, unicode_text[k].utf8))
                    break;
        if ((unsigned char)s[i] < 0x80 || k == ARRAY_SIZE(unicode_text)) {
            out[n++] = s[i++];
            continue;
        }
        size_t as = strlen(unicode_text[k].as);
        memcpy(out + n, unicode_text[k].as, as);
        if (unicode_text[k].as[0] == '(' && as > 1 && n > 0 && is_digit(out[n - 1]))
            out[n] = out[n + as - 1] = ' ';    // 3 and a half as the mixed number 3 1/2
        n += as;
        i += strlen(unicode_text[k].utf8);
    }
    *len = n;
    return out;
}

/* Drop \begin{aligned}, \end{aligned} and the like, which only lay out. */
static const char *layout_strip(struct math *m, const char *s, size_t *len)
{
    static const char *const env[] = { "aligned", "align", "align*", "gather", "gathered", "equation", "equation*",
                                       "split",
                                       "gather*", "displaymath", "center" };
    char *out = math_take(m, *len + 1);
    size_t n = 0;
    if (!out)
        return NULL;
    for (size_t i = 0; i < *len;) {
        bool dropped = false;
        size_t skip = starts(s + i, s + *len, "\\begin{") ? 7 : starts(s + i, s + *len, "\\end{") ? 5 : 0;
        for (size_t k = 0; skip && k < ARRAY_SIZE(env) && !dropped; k++) {
            size_t el = strlen(env[k]);
            if (*len - i > skip + el && memcmp(s + i + skip, env[k], el) == 0 && s[i + skip + el] == '}') {
                i += skip + el + 1;
                dropped = true;
            }
        }
        if (dropped)
            continue;
        if (s[i] != '&')
            out[n++] = s[i];
        i++;
    }
    *len = n;
    return out;
}

/* Does the line state something by itself: a relation with something on both sides? */
static bool line_states(const char *from, const char *to)
{
    static const char *const rels[] = { "=", "<", ">", "\\le", "\\ge", "\\approx", "\\in " };
    from = space_skip(from, to);
    while (to > from && space_skip(to - 1, to) == to)
        to--;
    for (const char *p = from; p < to; p++)
        for (size_t i = 0; i < ARRAY_SIZE(rels); i++)
            if (starts(p, to, rels[i]))
                return p > from && p + strlen(rels[i]) < to;
    return false;
}

/* Lines that each state something are separate statements: x = 3 above y = 5 is not x = 3y = 5. NULL: no room. */
static const char *lines_separate(struct math *m, const char *s, size_t *len)
{
    const char *end = s + *len;
    int n = 0;
    for (const char *p = s, *q; p < end; p = q + 1) {
        q = memchr(p, '\n', (size_t)(end - p));
        q = q ? q : end;
        if (space_skip(p, q) == q)
            continue;
        if (!line_states(p, q))
            return s;
        n++;
    }
    char *out = n > 1 ? math_take(m, *len * 2 + 1) : NULL;
    if (n < 2 || !out)
        return n < 2 ? s : NULL;
    size_t k = 0;
    for (const char *p = s; p < end; p++) {
        bool line = *p == '\n' && k > 0 && space_skip(p, end) < end && space_skip(s, p) < p;
        if (line && !(k > 1 && out[k - 1] == '\\' && out[k - 2] == '\\')) {
            out[k++] = '\\';
            out[k++] = '\\';
        } else if (!line) {
            out[k++] = *p == '\n' ? ' ' : *p;
        }
    }
    *len = k;
    return out;
}

struct node *math_parse(struct math *m, const char *s, size_t len, bool plain)
{
    bool high = false;
    for (size_t i = 0; i < len; i++)
        high |= (unsigned char)s[i] >= 0x80;
    if (high && !(s = ascii_copy(m, s, &len)))
        return NULL;
    bool matrix = memmem(s, len, "matrix", 6) || memmem(s, len, "{array}", 7);
    bool lines = matrix || memmem(s, len, "\\begin", 6);
    if (!matrix && lines && !(s = layout_strip(m, s, &len)))
        return NULL;
    const char *whole = s;
    if (!matrix && memchr(s, '\n', len) && !(s = lines_separate(m, s, &len)))
        return NULL;
    lines |= s != whole;
    struct parser p = { .m = m, .p = s, .start = s, .end = s + len, .plain = plain, .has_lines = lines };
    token_next(&p);
    struct node *a = list_parse(&p);
    while (a && is_char(&p, '.'))
        token_take(&p);
    return a && !p.failed && !m->out_of_memory && p.t.kind == T_END ? a : NULL;
}
