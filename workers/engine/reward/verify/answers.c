/* answers.c - verifiers that find an answer's text and compare it, and those that only look at the length
 *
 * Source of each rule: open-instruct's ground_truth_utils.py, the class of the same name. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/base/json_text.h"
#include "workers/engine/reward/verify/verify.h"

/* A number as gsm8k's labels write it: no dollar sign, plus sign or commas, no zeros before the first digit
 * or after the last decimal. Other texts are unchanged. */
static struct span number_plain(struct verify_host *h, struct span s)
{
    struct span g[RE_GROUPS], t = text_replace(&h->pool, text_strip(s), ",", "");
    if (!regex_find(h->regexes, "^([-+]?)\\$?([-+]?)(\\d+|\\d*\\.\\d+)$", 0, t, 0, g))
        return s;
    bool minus = (g[1].len > 0 && *g[1].s == '-') || (g[2].len > 0 && *g[2].s == '-');
    struct span n = g[3];
    if (memchr(n.s, '.', n.len)) {
        while (n.s[n.len - 1] == '0')
            n.len--;
        n.len -= n.s[n.len - 1] == '.';
        n = n.len > 0 ? n : span_str("0");
    }
    while (n.len > 1 && *n.s == '0')    // 0.5 is .5
        n.s++, n.len--;
    return minus ? regex_replace(h->regexes, &h->pool, "^", "-", n) : n;
}

/* A label with a digit in it is met by a number alone: a response that has the same digits has a last number, which is compared. */
bool verify_gsm8k_check(struct verify_host *h, const json_t *truth, struct error *err)
{
    if (!json_is_string(truth) && !json_is_number(truth))
        return error_set(err, ERR_DATA, "the ground truth must be a number");
    struct span gold = verify_truth(h, truth), g[RE_GROUPS];
    bool met = !regex_find(h->regexes, "\\d", 0, gold, 0, g)
               || regex_find(h->regexes, "^-?(?:\\d*\\.\\d+|\\d+)$", 0, number_plain(h, gold), 0, g);
    return met
           || error_set(err, ERR_DATA,
                        "no response can meet '%.*s': write the ground truth as one plain number, or choose another verifier",
                        (int)MIN(gold.len, 60), gold.s);
}

/* The last number of the response, after a comma between two digits is taken out, is the label, letter case and spelling
 * aside: $29.00 is 29. Without a number the whole response is compared. */
void verify_gsm8k(struct verify_host *h, const struct verify_input *in, struct verify_result *out)
{
    struct span text = regex_replace(h->regexes, &h->pool, "(\\d),(\\d)", "\\1\\2", in->text), g[RE_GROUPS], found = text;
    bool any = false;
    for (size_t at = 0; regex_each(h->regexes, "[-+]?(?:\\d*\\.\\d+|\\d+)", 0, text, &at, g); any = true)
        found = g[0];
    struct span gold = verify_truth(h, in->truth);
    out->score = span_equal(text_lower(&h->pool, number_plain(h, found)), text_lower(&h->pool, number_plain(h, gold)));
    verify_say(out, any ? out->score > 0 ? "the last number is equal" : "the last number is another" : "no number", found, gold);
}

static void normal_compare(struct verify_host *h, struct span pred, const json_t *truth, struct verify_result *out)
{
    struct span gold = answer_normal(&h->pool, verify_truth(h, truth));
    pred = answer_normal(&h->pool, pred);
    out->score = span_equal(pred, gold);
    verify_say(out, out->score > 0 ? "equal when normalised" : "different", pred, gold);
}

void verify_flan(struct verify_host *h, const struct verify_input *in, struct verify_result *out)
{
    normal_compare(h, text_strip(text_after_last(in->text, "The answer is: ")), in->truth, out);
}

void verify_string_matcher(struct verify_host *h, const struct verify_input *in, struct verify_result *out)
{
    if (!span_has(in->text, "<answer>") || !span_has(in->text, "</answer>"))
        verify_say(out, "no <answer> block", in->text, verify_truth(h, in->truth));
    else
        normal_compare(h, text_before_first(text_after_last(in->text, "<answer>"), "</answer>"), in->truth, out);
}

void verify_puzzle(struct verify_host *h, const struct verify_input *in, struct verify_result *out)
{
    normal_compare(h, answer_only(&h->pool, in->text), in->truth, out);
}

/* ---- several labels ---- */

bool verify_labels_check(UNUSED struct verify_host *h, const json_t *truth, struct error *err)
{
    if (json_is_string(truth) || json_is_number(truth) || json_array_size(truth) > 0)
        return true;
    return error_set(err, ERR_DATA, "the ground truth must be a text or a list of at least one");
}

/* The labels of a ground truth: those of a list, which may be written as JSON when json is set, else the one text. Returns a
 * new reference to a list, NULL: no memory. */
static json_t *labels_read(struct verify_host *h, const json_t *truth, bool json)
{
    json_t *read = NULL;
    if (json && json_is_string(truth))
        read = json_text_read(json_string_value(truth), json_string_length(truth), JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    const json_t *labels = read ? read : truth;
    if (json_is_array(labels)) {
        if (!read)
            read = json_deep_copy(labels);    // rows are shared between threads, and reference counts are not theirs to change
        return read;
    }
    struct span text = verify_truth(h, labels);
    text = json && !read ? text_strip(text) : text;
    json_t *list = json_array();
    if (json_array_append_new(list, json_stringn(text.s, text.len)) != 0)
        h->pool.failed = true;
    json_decref(read);
    return list;
}

/* The best of the labels: its score, and which. */
static double labels_f1(struct verify_host *h, struct span pred, const json_t *labels, struct span *best)
{
    double max = -1;
    size_t i;
    const json_t *label;
    *best = span_of("", 0);
    json_array_foreach(labels, i, label)
    {
        struct span text = verify_truth(h, label);
        double f1 = answer_f1(&h->pool, pred, text);
        if (f1 > max) {
            max = f1;
            *best = span_str(pool_str(&h->pool, text));
        }
    }
    return MAX(max, 0);
}

void verify_string_f1(struct verify_host *h, const struct verify_input *in, struct verify_result *out)
{
    struct span pred = answer_only(&h->pool, in->text), best;
    json_t *labels = labels_read(h, in->truth, false);
    out->score = labels_f1(h, pred, labels, &best);
    verify_say(out, "F1 of words", pred, best);
    json_decref(labels);
}

/* F1 of the last <finish> block; 0.1 for a block that shares no word (ReSearch, arXiv 2503.19470). Upstream asks for one
 * of the two tags only. */
void verify_re_search_f1(struct verify_host *h, const struct verify_input *in, struct verify_result *out)
{
    struct span pred = text_before_first(text_after_last(in->text, "<finish>"), "</finish>"), best;
    if ((!span_has(in->text, "<finish>") && !span_has(in->text, "</finish>")) || pred.len == 0) {
        verify_say(out, pred.len ? "no <finish> block" : "an empty <finish> block", pred, verify_truth(h, in->truth));
        return;
    }
    json_t *labels = labels_read(h, in->truth, true);
    double f1 = labels_f1(h, pred, labels, &best);
    out->score = f1 > 0 ? f1 : 0.1;
    verify_say(out, f1 > 0 ? "F1 of words" : "the format alone", pred, best);
    json_decref(labels);
}

/* The first <finish> block, in either case, normalised, is one of the labels (Search-R1). */
void verify_re_search(struct verify_host *h, const struct verify_input *in, struct verify_result *out)
{
    struct span g[RE_GROUPS], gold = span_of("", 0);
    size_t i;
    const json_t *label;
    bool found = regex_find(h->regexes, "<finish>(.*?)</finish>", RE_NOCASE | RE_DOT_ALL, in->text, 0, g);
    struct span pred = found ? text_strip(g[1]) : span_of("", 0);
    if (pred.len == 0) {
        verify_say(out, found ? "an empty <finish> block" : "no <finish> block", pred, verify_truth(h, in->truth));
        return;
    }
    pred = answer_normal(&h->pool, pred);
    json_t *labels = labels_read(h, in->truth, true);
    json_array_foreach(labels, i, label)
    {
        gold = answer_normal(&h->pool, verify_truth(h, label));
        if (span_equal(pred, gold)) {
            out->score = 1;
            break;
        }
    }
    verify_say(out, out->score > 0 ? "equal when normalised" : "different from every label", pred, gold);
    json_decref(labels);
}

/* ---- length ---- */

static bool length_read(struct verify_host *h, const json_t *truth, double *wanted)
{
    const char *text = pool_str(&h->pool, text_strip(verify_truth(h, truth)));
    char *end;
    *wanted = strtod(text, &end);
    return *text && !*end && isfinite(*wanted);
}

bool verify_length_check(struct verify_host *h, const json_t *truth, struct error *err)
{
    double wanted;
    return length_read(h, truth, &wanted) || error_set(err, ERR_DATA, "the ground truth must be a number of tokens");
}

static void length_score(struct verify_host *h, const struct verify_input *in, bool shorter_is_right, struct verify_result *out)
{
    double wanted, most = h->options.max_length_verifier_max_length;
    char why[96];
    if (!length_read(h, in->truth, &wanted) || in->n_tok < 0) {
        verify_fail(out, SCORE_ERROR, in->n_tok < 0 ? "the length in tokens is not known" : "the ground truth is not a number");
        return;
    }
    double over = (double)in->n_tok - wanted;
    out->score = shorter_is_right && over < 0 ? 1 : 1 - fabs(over) / most;
    snprintf(why, sizeof why, "%" PRId64 " tokens, %g wanted", in->n_tok, wanted);
    verify_say(out, why, span_of("", 0), span_of("", 0));
}

void verify_max_length(struct verify_host *h, const struct verify_input *in, struct verify_result *out)
{
    length_score(h, in, false, out);
}

void verify_up_to_max_length(struct verify_host *h, const struct verify_input *in, struct verify_result *out)
{
    length_score(h, in, true, out);
}

bool verify_any_check(UNUSED struct verify_host *h, UNUSED const json_t *truth, UNUSED struct error *err)
{
    return true;
}

/* The environment gives the reward. */
void verify_passthrough(UNUSED struct verify_host *h, UNUSED const struct verify_input *in, struct verify_result *out)
{
    snprintf(out->why, sizeof out->why, "nothing to verify");
}
