/* prompt.c - the line an operator types into: editing, history, completion
 *
 * The table of editing keys is small and the same as in shells. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "console/tui/app.h"
#include "console/tui/text.h"
#include "protocol/wire/message.h"

void prompt_open(struct app *a, enum prompt_kind kind, const char *text)
{
    a->prompt = (struct prompt){ .kind = kind };
    snprintf(a->prompt.text, sizeof(a->prompt.text), "%s", text);
    a->prompt.len = a->prompt.at = (int)strlen(a->prompt.text);
}

static void text_insert(struct prompt *p, const char *bytes, int n)
{
    if (p->len + n >= INPUT_MAX)
        return;
    memmove(p->text + p->at + n, p->text + p->at, (size_t)(p->len - p->at + 1));
    memcpy(p->text + p->at, bytes, (size_t)n);
    p->len += n;
    p->at += n;
}

static void text_cut(struct prompt *p, int from, int to)
{
    memmove(p->text + from, p->text + to, (size_t)(p->len - to + 1));
    p->len -= to - from;
    p->at = from;
}

/* Where the character before, or after, byte `at` begins. */
static int char_before(const struct prompt *p, int at)
{
    while (at > 0 && ((unsigned char)p->text[--at] & 0xc0) == 0x80)
        ;
    return at;
}

static int char_after(const struct prompt *p, int at)
{
    if (at < p->len)
        at++;
    while (at < p->len && ((unsigned char)p->text[at] & 0xc0) == 0x80)
        at++;
    return at;
}

static int word_before(const struct prompt *p, int at)
{
    while (at > 0 && p->text[at - 1] == ' ')
        at--;
    while (at > 0 && p->text[at - 1] != ' ')
        at--;
    return at;
}

static void history_recall(struct app *a, int delta)
{
    struct prompt *p = &a->prompt;
    int recall = MAX(MIN(p->recall + delta, MIN(a->n_history, HISTORY_MAX)), 0);
    if (recall == p->recall || p->kind != PROMPT_COMMAND)
        return;
    snprintf(p->text, sizeof(p->text), "%s", recall ? a->history[(a->n_history - recall) % HISTORY_MAX] : "");
    p->len = p->at = (int)strlen(p->text);
    p->recall = recall;
}

struct completion {
    char common[INPUT_MAX];    // the prefix that all candidates share
    int n;
};

static void candidate_add(struct completion *c, const char *prefix, const char *word)
{
    if (strncmp(word, prefix, strlen(prefix)) != 0)
        return;
    if (c->n++ == 0)
        snprintf(c->common, sizeof(c->common), "%s", word);
    size_t same = 0;
    while (c->common[same] && c->common[same] == word[same])
        same++;
    c->common[same] = 0;
}

/* Complete the word before the cursor: commands first, then what the command takes. */
static void complete(struct app *a)
{
    struct prompt *p = &a->prompt;
    if (p->kind != PROMPT_COMMAND)
        return;
    int from;
    char prefix[INPUT_MAX], verb[32];
    struct completion c = { .n = 0 };
    struct candidate k;
    palette_split(p, verb, prefix, &from);
    for (int i = 0; palette_candidate(a, verb, i, &k); i++)
        if (k.word[0])
            candidate_add(&c, prefix, k.word);
    if (c.n == 0)
        return;
    text_cut(p, from, p->at);
    text_insert(p, c.common, (int)strlen(c.common));
    if (c.n == 1)
        text_insert(p, strcmp(verb, "set") == 0 && from > 0 ? "=" : " ", 1);
}

static const char *knob_now(void *arg, const struct knob *k)
{
    const struct app *a = arg;
    const char *text = a->model->knob[k - knobs].text;
    return text[0] ? text : NULL;
}

static void knob_submit(struct app *a, int64_t now_ns)
{
    const struct knob *k = &knobs[a->prompt.knob];
    char command[INPUT_MAX], line[160], when[160];
    struct command c;
    struct error err = { 0 };
    if (snprintf(command, sizeof(command), "set %s=%s", k->name, a->prompt.text) >= (int)sizeof(command)
        || !command_parse(&c, command, &err)) {
        app_flash(a, ROLE_CRIT, now_ns, "%s", err.text[0] ? err.text : "the value is too long");
        return;    // the prompt stays open for corrections
    }
    a->prompt.kind = PROMPT_NONE;
    if (strcmp(a->prompt.text, a->model->knob[a->prompt.knob].text) == 0) {
        app_flash(a, ROLE_DIM, now_ns, "%s stays as it is", k->name);
        return;
    }
    snprintf(line, sizeof(line), "%s: %.50s \u2192 %.50s %s", k->name, a->model->knob[a->prompt.knob].text, a->prompt.text, k->unit);
    snprintf(when, sizeof(when), "It takes effect %s; u reverts it.",
             k->applies == APPLY_NEXT_ROLLOUT ? "with the next rollouts"
             : k->applies == APPLY_NEXT_STEP  ? "with the next optimizer step"
                                              : "at once");
    char why[160];
    bool jumps = command_asks(&c, knob_now, a, why, sizeof(why));
    app_confirm(a, jumps, jumps ? "Are you sure?" : "Change this knob?", jumps ? why : line, when, command);
}

static void submit(struct app *a, int64_t now_ns)
{
    struct prompt *p = &a->prompt;
    switch (p->kind) {
    case PROMPT_NONE: break;
    case PROMPT_FILTER:
        snprintf(app_pane(a)->filter, INPUT_MAX, "%s", p->text);
        app_pane(a)->sel = app_pane(a)->top = 0;
        p->kind = PROMPT_NONE;
        break;
    case PROMPT_KNOB: knob_submit(a, now_ns); break;
    case PROMPT_COMMAND: {
        char line[INPUT_MAX], why[160];
        memcpy(line, p->text, sizeof(line));
        p->kind = PROMPT_NONE;
        if (!line[0])
            break;
        memcpy(a->history[a->n_history++ % HISTORY_MAX], line, sizeof(line));
        struct command c;
        struct error err;
        bool runs = !app_looks_only(a) && command_parse(&c, line, &err);
        if (runs && strcmp(c.name, "rollback") == 0 && rollback_ask_to(a, c.arg[0].value))
            break;
        if (runs && command_asks(&c, knob_now, a, why, sizeof(why)))
            app_confirm(a, true, "Are you sure?", line, why, line);    // ask, whether typed or pressed
        else
            app_command(a, line, now_ns);
        break;
    }
    }
}

void prompt_paste(struct app *a, const char *text, int64_t size_bytes, int64_t now_ns)
{
    struct prompt *p = &a->prompt;
    int taken = 0, before = p->len;
    while (text[taken] && text[taken] != '\n') {
        uint32_t ch;
        int n = (int)text_decode(text + taken, strlen(text + taken), &ch);
        if (ch >= 0x20 && ch != 0x7f)
            text_insert(p, text + taken, n);
        taken += n;
    }
    if (taken < size_bytes)
        app_flash(a, ROLE_WARN, now_ns,
                  "%d of %" PRId64 " pasted bytes were taken: a line holds %d, and ends where the text's first line does", p->len - before,
                  size_bytes, INPUT_MAX - 1);
    if (p->kind == PROMPT_FILTER)
        snprintf(app_pane(a)->filter, INPUT_MAX, "%s", p->text);
}

bool prompt_key(struct app *a, uint32_t key, int64_t now_ns)
{
    struct prompt *p = &a->prompt;
    if (p->kind == PROMPT_NONE)
        return false;
    switch (key) {
    case KEY_ESCAPE:
    case KEY_CTRL('c'):
    case KEY_CTRL('g'):
        if (p->kind == PROMPT_FILTER)
            app_pane(a)->filter[0] = 0;
        p->kind = PROMPT_NONE;
        break;
    case KEY_RETURN:
    case '\n': submit(a, now_ns); break;
    case KEY_TABULATOR: complete(a); break;
    case KEY_ARROW_LEFT:
    case KEY_CTRL('b'): p->at = char_before(p, p->at); break;
    case KEY_ARROW_RIGHT:
    case KEY_CTRL('f'): p->at = char_after(p, p->at); break;
    case KEY_TO_HOME:
    case KEY_CTRL('a'): p->at = 0; break;
    case KEY_TO_END:
    case KEY_CTRL('e'): p->at = p->len; break;
    case KEY_ARROW_UP:
    case KEY_CTRL('p'): history_recall(a, 1); break;
    case KEY_ARROW_DOWN:
    case KEY_CTRL('n'): history_recall(a, -1); break;
    case KEY_ERASE:
    case 0x7f:
    case KEY_CTRL('h'):
        if (p->len == 0 && p->kind != PROMPT_KNOB)
            p->kind = PROMPT_NONE;
        text_cut(p, char_before(p, p->at), p->at);
        break;
    case KEY_DEL:
    case KEY_CTRL('d'): {
        int at = p->at;
        text_cut(p, at, char_after(p, at));
        break;
    }
    case KEY_CTRL('u'): text_cut(p, 0, p->at); break;
    case KEY_CTRL('k'): text_cut(p, p->at, p->len); break;
    case KEY_CTRL('w'): text_cut(p, word_before(p, p->at), p->at); break;
    case KEY_CTRL('l'):
    case KEY_CTRL('z'): return false;
    default:
        if (key >= 0x20 && key < 0x110000 && key != 0x7f) {
            char bytes[4];
            text_insert(p, bytes, (int)text_encode(key, bytes));
        }
        break;
    }
    if (p->kind == PROMPT_FILTER)    // as it is typed
        snprintf(app_pane(a)->filter, INPUT_MAX, "%s", p->text);
    return true;
}
