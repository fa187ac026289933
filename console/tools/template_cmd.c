/* template_cmd.c - rollcall template: JSON lines of a template's variables to JSON lines of text */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <jansson.h>
#include "protocol/base/cli.h"
#include "protocol/base/clock.h"
#include "protocol/base/json_text.h"
#include "protocol/base/subcommand.h"
#include "workers/engine/load/model_find.h"
#include "workers/engine/template/template.h"

#define LINE_BYTES_MAX ((size_t)256 << 20)

/* Print {"key": text} on one line. */
static bool line_print(const char *key, const char *text, size_t len, struct error *err)
{
    json_t *o = json_object(), *s = json_stringn(text, len);
    char *line = o && s && json_object_set_new(o, key, s) == 0 ? json_text_dump(o, JSON_COMPACT) : NULL;
    bool ok = line != NULL;
    if (!ok)
        error_set(err, ERR_NO_MEMORY, "no memory for a line, or text that is not UTF-8");
    else if (puts(line) == EOF)
        ok = error_errno(err, "cannot write the output");
    free(line);
    json_decref(o);
    return ok;
}

/* A line that fails is reported in its place; *n_failed counts them. */
static bool lines_run(const struct template *t, double now_s, long *n_failed, struct error *err)
{
    char *line = NULL;
    size_t cap = 0;
    ssize_t len;
    bool ok = true;
    for (long n = 1; ok && (len = getline(&line, &cap, stdin)) >= 0; n++) {
        json_error_t why;
        struct buf text = BUF_INIT;
        struct error failed = { 0 };
        if (strspn(line, " \t\r\n") == (size_t)len)
            continue;
        json_t *vars = (size_t)len > LINE_BYTES_MAX ? NULL
                                                    : json_text_read(line, (size_t)len, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &why);
        if (!json_is_object(vars))
            error_set(&failed, ERR_DATA, "stdin:%ld: %s", n,
                      (size_t)len > LINE_BYTES_MAX ? "the line is too long"
                      : vars                       ? "not an object of variables"
                                                   : why.text);
        else if (template_render(t, vars, now_s, &text, &failed))
            ok = line_print("text", buf_text(&text), text.len, err);
        if (failed.code) {
            ok = line_print("error", failed.text, strlen(failed.text), err);
            ++*n_failed;
        }
        json_decref(vars);
        buf_release(&text);
    }
    if (ok && ferror(stdin))
        ok = error_errno(err, "cannot read the input");
    free(line);
    return ok;
}

static bool template_cmd(int argc, char **argv, struct error *err)
{
    const char *model = NULL, *file = NULL, *now = NULL;
    struct cli_option options[] = {
        { "model", "m", CLI_STR, &model, "PATH|ORG/NAME", "a model directory, or a model in the hub's cache" },
        { "template", NULL, CLI_STR, &file, "FILE", "a file with only the template" },
        { "now", NULL, CLI_STR, &now, "YYYY-MM-DD", "the date for strftime_now (today)" },
    };
    struct cli cli = { "rollcall template",
                       "Renders a chat template: reads JSON lines of its variables (messages, tools, add_generation_prompt, ...)\n"
                       "and writes {\"text\":...} for each, or {\"error\":...} when the template raises or is refused (then exit 1).",
                       NULL,
                       options,
                       ARRAY_SIZE(options),
                       NULL,
                       0,
                       0,
                       false };
    char dir[4096];
    double now_s = clock_wall_s();
    if (!cli_parse(&cli, argc, argv, err))
        return false;
    if (cli.help_wanted)
        return true;
    if (!model == !file)
        return error_set(err, ERR_USAGE, "give the template with either --model or --template");
    if (now) {
        struct tm tm = { 0 };
        const char *end = strptime(now, "%Y-%m-%d", &tm);
        if (!end || *end)
            return error_set(err, ERR_USAGE, "'%s' is not a date like 2024-07-26", now);
        now_s = (double)timegm(&tm);
    }
    if (model && !model_find(dir, sizeof dir, model, err))
        return false;
    struct template *t = model ? template_load(dir, err) : template_load_file(file, err);
    long n_failed = 0;
    bool ok = t && lines_run(t, now_s, &n_failed, err);
    template_free(t);
    if (ok && n_failed)
        return error_set(err, ERR_DATA, "%ld lines failed", n_failed);
    return ok;
}

const struct subcommand template_subcommand = { "template", template_cmd, "chat messages to prompts, as JSON lines" };
