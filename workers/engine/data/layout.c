#include "workers/engine/data/layout.h"
#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/base/json_text.h"
#include "workers/engine/data/conversation.h"
#include "workers/engine/data/gold.h"

#define HAS_MAX 4
#define NAME_MAX_BYTES 256

struct layout {
    const char *name;            // whose
    const char *has[HAS_MAX];    // columns it is recognised by
    const char *prompt;          // column of the prompt
    const char *answer;          // column of the answer; NULL: gt_answer, or none
    const char *tests;           // column of the tests; NULL: test_cases, or none
    bool text;                   // a text in the prompt's column is continued as it is, and is not a user's message
    bool boxed;                  // the answer is what the last \boxed{} of the column holds
    bool answer_may_be_tests;    // the answer's text may be JSON with inputs and outputs
};
/* The first match is used, so layouts with more columns come before those with fewer. Sources: the data sets' cards and rows. */
// clang-format off
static const struct layout layouts[] = {
    { "rollcall's", { "messages", "gt_answer" }, "messages" },
    { "rollcall's", { "messages", "test_cases" }, "messages" },
    { "RLVR's", { "messages", "ground_truth" }, "messages", "ground_truth" },
    { "rollcall's", { "messages" }, "messages" },
    { "verl's (DAPO-Math, Eurus-2)", { "prompt", "reward_model.ground_truth" }, "prompt", "reward_model.ground_truth", .answer_may_be_tests = true },
    { "Open-Reasoner-Zero's", { "conversations.0.value", "conversations.1.ground_truth.value" }, "conversations.0.value", "conversations.1.ground_truth.value" },
    { "verifiable-coding-problems'", { "problem_statement", "verification_info.test_cases" }, "problem_statement", .tests = "verification_info.test_cases" },
    { "verifiable-coding-problems'", { "prompt", "verification_info.test_cases" }, "prompt", .tests = "verification_info.test_cases" },
    { "TACO's and APPS's", { "question", "input_output" }, "question", .tests = "input_output" },
    { "GSM8K's", { "question", "answer" }, "question", "answer" },
    { "MATH-500's", { "problem", "answer", "subject", "unique_id" }, "problem", "answer" },
    { "AIME's", { "problem_idx", "problem", "answer" }, "problem", "answer" },
    { "AIME's", { "problem", "answer", "year" }, "problem", "answer" },
    { "DeepScaleR's", { "problem", "answer", "solution" }, "problem", "answer" },
    { "AIME's", { "Problem", "Answer" }, "Problem", "Answer" },
    { "AIME's", { "problem", "answer" }, "problem", "answer" },
    { "MATH's", { "problem", "solution" }, "problem", "solution", .boxed = true },
    { "TRL's", { "prompt", "answer" }, "prompt", "answer", .text = true },
    { "TRL's", { "prompt", "ground_truth" }, "prompt", "ground_truth", .text = true },
    { "TRL's", { "prompt", "solution" }, "prompt", "solution", .text = true },
    { "TRL's", { "prompt" }, "prompt", .text = true },
    { "GSM8K's", { "question" }, "question" },
};
// clang-format on

/* ---- columns ---- */

/* The member of v that a path names, or NULL: by its whole name, else part by part, with numbers for places in lists. Text that is
 * JSON counts as its value, and is replaced by it, so that the value found lives as long as the row. */
static json_t *column_get(json_t *v, const char *path)
{
    json_t *whole = json_object_get(v, path);
    const char *dot = strchr(path, '.');
    if (whole || !dot)
        return whole;
    char part[NAME_MAX_BYTES];
    if ((size_t)(dot - path) >= sizeof part)
        return NULL;
    memcpy(part, path, (size_t)(dot - path));
    part[dot - path] = 0;
    json_t *inner = json_object_get(v, part);
    const char *text = json_string_value(inner);
    if (text && (text[0] == '{' || text[0] == '[')) {
        json_t *read = json_str_read(text, JSON_REJECT_DUPLICATES, NULL);
        if (read && json_object_set_new(v, part, read) == 0)
            inner = read;
    }
    path = dot + 1;
    if (json_is_array(inner) && isdigit((unsigned char)path[0])) {
        char *rest;
        inner = json_array_get(inner, strtoul(path, &rest, 10));
        if (!*rest)
            return inner;
        path = *rest == '.' ? rest + 1 : rest;
    }
    return json_is_object(inner) ? column_get(inner, path) : NULL;
}

static const struct layout *layout_find(json_t *row)
{
    for (size_t i = 0; i < ARRAY_SIZE(layouts); i++) {
        bool fits = true;
        for (int k = 0; fits && k < HAS_MAX && layouts[i].has[k]; k++) {
            const json_t *v = column_get(row, layouts[i].has[k]);
            fits = v && !json_is_null(v);
        }
        if (fits)
            return &layouts[i];
    }
    return NULL;
}

/* The names of a row's columns, for messages. */
static const char *columns_text(const json_t *row, char *out, size_t size)
{
    const char *name;
    json_t *v;
    size_t n = 0;
    out[0] = 0;
    json_object_foreach((json_t *)row, name, v) if (n + 1 < size)
        n += (size_t)snprintf(out + n, size - n, "%s'%.60s'", n ? ", " : "", name);
    return out[0] ? out : "none";
}

static bool no_memory(struct error *err)
{
    return error_set(err, ERR_NO_MEMORY, "no memory for a row");
}

static bool column_missing(const json_t *row, const char *column, struct error *err)
{
    char names[400];
    return error_set(err, ERR_DATA, "'%s' is missing; the row's columns are %s", column, columns_text(row, names, sizeof names));
}

/* ---- prompt ---- */

static bool message_check(const json_t *m, size_t i, struct error *err)
{
    const json_t *content = json_object_get(m, "content");
    if (!json_is_object(m))
        return error_set(err, ERR_DATA, "messages[%zu] is not an object with 'role' and 'content'", i);
    if (!json_is_string(json_object_get(m, "role")))
        return error_set(err, ERR_DATA, "messages[%zu] has no string 'role'", i);
    if ((!json_is_string(content) || json_odd_text(content)) && !json_is_array(content)
        && !(json_is_null(content) || !content ? json_object_get(m, "tool_calls") : NULL))
        return error_set(err, ERR_DATA, "messages[%zu] has no string 'content'", i);
    return true;
}

/* Set messages to one user message with this text. */
static bool question_set(json_t *row, const json_t *text, struct error *err)
{
    json_t *list = json_pack("[{s:s, s:O}]", "role", "user", "content", text);
    return (list && json_object_set_new(row, "messages", list) == 0) || no_memory(err);
}

/* If template has a column in braces here: its name, and where the text continues. NULL: it is text. */
static const char *placeholder(const char *p, char *name)
{
    size_t n = 0;
    if (p[0] != '{' || !(isalpha((unsigned char)p[1]) || p[1] == '_'))
        return NULL;
    for (p++; isalnum((unsigned char)*p) || *p == '_' || *p == '.'; p++)
        if (n + 1 < NAME_MAX_BYTES)
            name[n++] = *p;
    name[n] = 0;
    return *p == '}' ? p + 1 : NULL;
}

bool prompt_template_check(const char *template, struct error *err)
{
    char name[NAME_MAX_BYTES];
    for (const char *p = template; *p; p++) {
        if ((p[0] == '{' || p[0] == '}') && p[1] == p[0])
            p++;
        else if (placeholder(p, name))
            return true;
    }
    return error_set(err, ERR_USAGE, "'prompt_template' names no column; write one in braces, as in \"{question}\\nThink step by step.\"");
}

/* Columns are replaced by their text; {{ and }} are braces, and so are braces without a name between them (\boxed{}). */
static bool template_fill(json_t *row, const char *template, struct error *err)
{
    struct buf text = { .max = (size_t)64 << 20 };
    char name[NAME_MAX_BYTES];
    bool ok = false;
    for (const char *p = template, *rest; *p; p = rest) {
        bool twice = (p[0] == '{' || p[0] == '}') && p[1] == p[0];
        if (twice || !(rest = placeholder(p, name))) {
            buf_char(&text, *p);
            rest = p + 1 + twice;
            continue;
        }
        const json_t *v = column_get(row, name);
        char *number = json_is_number(v) || json_odd_text(v) ? json_text_dump(v, JSON_ENCODE_ANY) : NULL;
        if (!v) {
            column_missing(row, name, err);
            error_wrap(err, "prompt_template");
            goto out;
        }
        if (!json_is_string(v) && !number) {
            error_set(err, ERR_DATA, "prompt_template: '%s' is neither a string nor a number", name);
            goto out;
        }
        buf_str(&text, number ? number : json_string_value(v));
        free(number);
    }
    json_t *s = text.failed ? NULL : json_stringn(buf_text(&text), text.len);
    ok = s ? question_set(row, s, err) : no_memory(err);
    json_decref(s);
out:
    buf_release(&text);
    return ok;
}

/* Text that is a list of messages, as files without lists keep it. NULL: it is text. */
static json_t *messages_in_text(const char *text)
{
    size_t blank = strspn(text, " \t\r\n");
    if (text[blank] != '[' && text[blank] != '{')
        return NULL;
    json_t *v = json_str_read(text, JSON_REJECT_DUPLICATES, NULL);
    const json_t *first = json_is_array(v) ? json_array_get(v, 0) : v;
    if (json_is_string(json_object_get(first, "role")))
        return v;
    json_decref(v);
    return NULL;
}

/* Is a text in this column one that is continued as it is? TRL's standard form, which holds prompts that are already rendered, too. */
static bool column_is_text(const char *column, const struct layout *layout)
{
    return layout && strcmp(layout->prompt, column) == 0 ? layout->text : strcmp(column, "prompt") == 0;
}

/* The column becomes `messages`, a list of messages, or, with text, `prompt`. */
static bool prompt_set(json_t *row, const char *column, bool text, bool *as_is, struct error *err)
{
    json_t *v = column_get(row, column), *one;
    size_t i;
    *as_is = false;
    if (!v)
        return column_missing(row, column, err);
    if (json_is_string(v) && !json_odd_text(v)) {
        json_t *read = messages_in_text(json_string_value(v));
        *as_is = !read && text;
        if (*as_is)
            json_object_del(row, "messages");
        if (*as_is)
            return true;
        if (!read && strcmp(column, "messages") != 0)
            return question_set(row, v, err);
        v = read;
        if (read && json_object_set_new(row, "messages", read) != 0)
            return no_memory(err);
    }
    if (json_is_object(v)) {
        json_t *list = json_pack("[O]", v);
        if (!list || json_object_set_new(row, "messages", list) != 0)
            return no_memory(err);
        v = list;
    }
    if (json_array_size(v) == 0)
        return error_set(err, ERR_DATA,
                         strcmp(column, "messages") == 0 ? "'%s' is neither a message nor a list of messages"
                                                         : "'%s' is neither a text, nor a message, nor a list of messages",
                         column);
    json_array_foreach(v, i, one) if (!message_check(one, i, err)) return false;
    return v == json_object_get(row, "messages") || json_object_set(row, "messages", v) == 0 || no_memory(err);
}

/* ---- answer and tests ---- */

/* A list of {input, output} becomes {inputs, outputs}; a function's name may stand in each. */
static json_t *tests_joined(const json_t *list)
{
    json_t *in = json_array(), *out = json_array(), *one, *tests = json_pack("{s:O, s:O}", "inputs", in, "outputs", out);
    size_t i;
    bool ok = tests != NULL;
    json_array_foreach((json_t *)list, i, one)
    {
        json_t *a = json_object_get(one, "input"), *b = json_object_get(one, "output"), *name = json_object_get(one, "fn_name");
        ok = ok && a && b && json_array_append(in, a) == 0 && json_array_append(out, b) == 0
             && (!json_is_string(name) || json_string_length(name) == 0 || json_object_set(tests, "fn_name", name) == 0);
    }
    json_decref(in);
    json_decref(out);
    if (ok)
        return tests;
    json_decref(tests);
    return NULL;
}

static bool tests_set(json_t *row, const char *column, struct error *err)
{
    json_t *tests = column_get(row, column);
    json_error_t why;
    if (!tests || json_is_null(tests)) {
        json_object_del(row, "test_cases");
        return true;
    }
    json_t *own = json_incref(tests);
    if (json_is_string(own)) {
        json_t *read = json_text_read(json_string_value(own), json_string_length(own), JSON_REJECT_DUPLICATES, &why);
        json_decref(own);
        own = read;
        if (!read)
            return error_set(err, json_text_code(&why), "the JSON in '%s' is wrong: %s", column, why.text);
    }
    if (json_array_size(own) > 0) {
        json_t *joined = tests_joined(own);
        json_decref(own);
        own = joined;
    }
    const json_t *in = json_object_get(own, "inputs"), *out = json_object_get(own, "outputs");
    size_t n_in = json_array_size(in), n_out = json_array_size(out);
    bool lists = json_is_array(in) && json_is_array(out);
    if (lists && n_in == n_out && n_in > 0)
        return json_object_set_new(row, "test_cases", own) == 0 || no_memory(err);
    json_decref(own);
    if (!lists)
        return error_set(err, ERR_DATA, "'%s' needs the lists 'inputs' and 'outputs'", column);
    return error_set(err, ERR_DATA, "'%s' has %zu inputs and %zu outputs; as many of both are needed, at least one", column, n_in, n_out);
}

static bool answer_set(json_t *row, const char *column, const struct layout *layout, struct error *err)
{
    json_t *v = column_get(row, column), *s;
    if (json_array_size(v) == 1)    // a list of the one right answer
        v = json_array_get(v, 0);
    if (!v)
        return column_missing(row, column, err);
    if (json_is_null(v) && strcmp(column, "gt_answer") == 0)
        return json_object_del(row, column) == 0;
    if (!json_is_string(v) && !json_is_number(v))
        return error_set(err, ERR_DATA, "'%s' is neither a string nor a number", column);
    const char *text = json_odd_text(v) ? NULL : json_string_value(v);
    if (layout && layout->answer_may_be_tests && text && text[strspn(text, " \t\r\n")] == '{') {
        json_t *read = json_str_read(text, JSON_REJECT_DUPLICATES, NULL);
        bool tests = json_object_get(read, "inputs") && json_object_get(read, "outputs");
        json_decref(read);
        if (tests)
            return tests_set(row, column, err);
    }
    if (layout && layout->boxed && text) {
        if (!(s = gold_boxed(text)))
            return error_set(err, ERR_DATA, "'%s' has no \\boxed{} with the answer in it; name the answer's column with 'answer_column'",
                             column);
    } else {
        s = strcmp(column, "gt_answer") == 0 && text ? json_incref(v) : gold_text(v);
    }
    return (s && json_object_set_new(row, "gt_answer", s) == 0) || no_memory(err);
}

/* ---- the whole ---- */

static const char *named(const char *column)
{
    return column && column[0] ? column : NULL;
}

bool layout_apply(json_t *row, const struct dataset_columns *columns, struct row_form *form, struct error *err)
{
    static const struct dataset_columns none = { NULL };
    char names[400];
    columns = columns ? columns : &none;
    const char *prompt = named(columns->prompt), *answer = named(columns->answer), *template = named(columns->template);
    if (!json_is_object(row))
        return error_set(err, ERR_DATA, "the line is not a JSON object");
    const struct layout *layout = layout_find(row);
    *form = (struct row_form){ .layout = (prompt || template) && answer ? NULL : layout };
    if (!prompt && !template && !layout)
        return error_set(err, ERR_DATA,
                         "no prompt is recognised: 'messages' is missing, and the columns are %s; name them with 'prompt_column' and "
                         "'answer_column'",
                         columns_text(row, names, sizeof names));
    const json_t *tests = json_object_get(row, "test_cases");
    bool has_tests = tests && !json_is_null(tests);
    if (!answer)    // a row that has its tests needs no answer
        answer = json_object_get(row, "gt_answer") ? "gt_answer" : layout && !has_tests ? layout->answer : NULL;
    if (answer && !column_get(row, answer))    // before columns of our own are there to be named
        return column_missing(row, answer, err);
    const char *column = prompt ? prompt : layout ? layout->prompt : "";
    bool text = !columns->whole && column_is_text(column, layout);
    if (template ? !template_fill(row, template, err) : !prompt_set(row, column, text, &form->as_is, err))
        return false;
    if (!conversation_settle(row, columns->whole ? NULL : &form->answered, err))
        return false;
    /* a row of verifiers has ground truths of any kind, which the verifiers read themselves */
    const json_t *truth = answer && strcmp(answer, "ground_truth") == 0 ? json_object_get(row, answer) : NULL;
    bool verifiers = json_object_get(row, "dataset")
                     && (json_array_size(truth) > 1 || json_is_object(truth) || json_is_array(json_array_get(truth, 0)));
    if (answer && !verifiers && !answer_set(row, answer, layout, err))
        return false;
    return tests_set(row, !json_object_get(row, "test_cases") && layout && layout->tests ? layout->tests : "test_cases", err);
}

void layout_describe(const struct layout *layout, const struct dataset_columns *columns, struct buf *out)
{
    const char *prompt = named(columns->prompt), *answer = named(columns->answer);
    if (layout)
        buf_fmt(out, "%s layout: ", layout->name);
    if (named(columns->template))
        buf_str(out, "prompt by prompt_template");
    else
        buf_fmt(out, "prompt from '%s'", prompt ? prompt : layout ? layout->prompt : "messages");
    if (answer || (layout && layout->answer))
        buf_fmt(out, ", answer from '%s'%s", answer ? answer : layout->answer, !answer && layout->boxed ? " (its last \\boxed{})" : "");
    else if (layout && layout->tests)
        buf_fmt(out, ", tests from '%s'", layout->tests);
}
