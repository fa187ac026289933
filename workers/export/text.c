/* CSV and JSON lines. Numbers are printed so that they read back to the same double; unknown values are empty in CSV and absent in
 * JSON. Steps undone by a rollback are not printed twice: for a finished run each step is printed once. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/base/cli.h"
#include "protocol/base/file.h"
#include "protocol/settings/metrics.h"
#include "protocol/settings/run_config.h"
#include "workers/export/export.h"
#include "workers/export/rows.h"

#define COLUMN_MAX 4096

struct columns {
    char *name[COLUMN_MAX];    // owned
    int n;
    bool fixed;    // --series: add no others
};

static int column_find(const struct columns *c, const char *name)
{
    for (int i = 0; i < c->n; i++)
        if (strcmp(c->name[i], name) == 0)
            return i;
    return -1;
}

static void column_add(struct columns *c, const char *name, size_t len)
{
    char *copy = c->n < COLUMN_MAX ? strndup(name, len) : NULL;
    if (copy)
        c->name[c->n++] = copy;
}

static void columns_release(struct columns *c)
{
    for (int i = 0; i < c->n; i++)
        free(c->name[i]);
}

static void columns_parse(struct columns *c, const char *list)
{
    c->fixed = list != NULL;
    for (const char *p = list ? list + strspn(list, ", ") : ""; *p; p += strspn(p, ", ")) {
        size_t len = strcspn(p, ", ");
        column_add(c, p, len);
        p += len;
    }
}

static void columns_see(struct columns *c, const struct journal_metric *metric, int n)
{
    for (int i = 0; i < n; i++)
        if (column_find(c, metric[i].name) < 0)
            column_add(c, metric[i].name, strlen(metric[i].name));
}

static bool columns_of_step(void *arg, const struct journal_step *row)
{
    columns_see(arg, row->metric, row->n);
    return true;
}

static bool columns_of_sample(void *arg, const struct journal_sample *row)
{
    columns_see(arg, row->figure, row->n);
    return true;
}

static void f64_print(FILE *out, double v)
{
    char text[40];
    double back;
    for (int digits = 6; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, v);
        if (parse_f64(text, &back) && back == v)
            break;
    }
    fputs(text, out);
}

struct printer {
    FILE *out;
    bool csv, nodes;    // nodes: samples of hosts and GPUs rather than steps
    struct columns columns;
    int64_t sample_seq;    // seq of the last sample printed
};

/* A CSV cell (RFC 4180): quoted where necessary, with quotes in it doubled. */
static void cell_print(FILE *out, const char *text)
{
    bool quoted = strpbrk(text, ",\"\r\n") != NULL;
    if (quoted)
        fputc('"', out);
    for (; *text; text++)
        fputs(*text == '"' ? "\"\"" : (char[]){ *text, 0 }, out);
    if (quoted)
        fputc('"', out);
}

static void csv_line(struct printer *p, const char *key, double wall_s, const struct journal_metric *metric, int n)
{
    cell_print(p->out, key);
    fprintf(p->out, ",%.3f", wall_s);
    for (int c = 0; c < p->columns.n; c++) {
        fputc(',', p->out);
        /* rows name their series in the order they were first seen, so the first guess is nearly always right */
        int at = c < n && strcmp(metric[c].name, p->columns.name[c]) == 0 ? c : -1;
        for (int i = 0; at < 0 && i < n; i++)
            if (strcmp(metric[i].name, p->columns.name[c]) == 0)
                at = i;
        if (at >= 0 && isfinite(metric[at].value))
            f64_print(p->out, metric[at].value);
    }
    fputs("\n", p->out);
}

static void text_print(FILE *out, const char *text)
{
    fputc('"', out);
    for (; *text; text++) {
        if (*text == '"' || *text == '\\')
            fputc('\\', out);
        fputc((unsigned char)*text < 32 ? ' ' : *text, out);
    }
    fputc('"', out);
}

static void jsonl_values(struct printer *p, double wall_s, const struct journal_metric *metric, int n)
{
    bool first = true;
    fprintf(p->out, ",\"time\":%.3f,\"%s\":{", wall_s, p->nodes ? "figures" : "metrics");
    for (int i = 0; i < n; i++) {
        if (!isfinite(metric[i].value) || (p->columns.fixed && column_find(&p->columns, metric[i].name) < 0))
            continue;
        if (!first)
            fputc(',', p->out);
        text_print(p->out, metric[i].name);
        fputc(':', p->out);
        f64_print(p->out, metric[i].value);
        first = false;
    }
    fputs("}}\n", p->out);
}

static bool step_print(void *arg, const struct journal_step *row)
{
    struct printer *p = arg;
    char key[32];
    snprintf(key, sizeof key, "%" PRId64, row->step);
    if (p->csv) {
        csv_line(p, key, row->wall_s, row->metric, row->n);
    } else {
        fprintf(p->out, "{\"step\":%s", key);
        jsonl_values(p, row->wall_s, row->metric, row->n);
    }
    return true;
}

static bool sample_print(void *arg, const struct journal_sample *row)
{
    struct printer *p = arg;
    if (p->csv) {
        csv_line(p, row->node, row->wall_s, row->figure, row->n);
    } else {
        fputs("{\"node\":", p->out);
        text_print(p->out, row->node);
        jsonl_values(p, row->wall_s, row->figure, row->n);
    }
    p->sample_seq = row->seq;
    return true;
}

static bool columns_of_eval(void *arg, const struct journal_eval *e)
{
    char name[96];
    snprintf(name, sizeof name, "eval/%s", e->set);
    columns_see(arg, &(struct journal_metric){ .name = name }, 1);
    return true;
}

static void columns_of_set(struct columns *c, const struct eval_set *set)
{
    int64_t k[EVAL_K_MAX];
    char name[64];
    int n = eval_ks(set->n, k);
    columns_of_eval(c, &(struct journal_eval){ .set = set->name });
    for (int i = 0; i < n; i++)
        if (k[i] > 1 && eval_pass_name(name, set->name, k[i]))
            columns_of_eval(c, &(struct journal_eval){ .set = name });
}

/* The run's evaluation sets, which may not have been evaluated yet; a folder without run.yaml has none. */
static void columns_of_sets(struct columns *c, const char *run_dir)
{
    struct run_config *config = malloc(sizeof *config);
    struct eval_set set[EVAL_SET_MAX];
    struct error none;
    char path[4200];
    if (!config)
        return;
    run_config_init(config);
    if (path_join(path, sizeof path, run_dir, "run.yaml") && path_exists(path) && run_config_read(config, path, &none)) {
        int n = run_config_eval_sets(config, set, &none);
        for (int i = 0; i < n; i++)
            columns_of_set(c, &set[i]);
    }
    free(config);
}

/* The columns are those that the journal has now, plus one for each evaluation set: series that come later cannot be added to a CSV
 * file once its header is written. */
static bool csv_head(struct printer *p, struct journal *j, const char *run_dir, struct error *err)
{
    bool ok = p->columns.fixed
              || (p->nodes ? journal_samples_read(j, 0, columns_of_sample, &p->columns, err)
                           : journal_steps_read(j, 0, columns_of_step, &p->columns, err)
                                 && journal_evals_read(j, columns_of_eval, &p->columns, err));
    if (ok && !p->columns.fixed && !p->nodes)
        columns_of_sets(&p->columns, run_dir);
    fputs(p->nodes ? "node,time" : "step,time", p->out);
    for (int i = 0; i < p->columns.n; i++) {
        fputc(',', p->out);
        cell_print(p->out, p->columns.name[i]);
    }
    fputs("\n", p->out);
    return ok;
}

/* Could a run have a series of this name? The journal has it, or it may still come: a metric in the table, a part of the reward, a set's
 * accuracy. metric_names renames what is in the journal. */
static bool series_is_known(const char *name, const struct columns *seen, bool nodes, bool goes_on)
{
    return column_find(seen, name) >= 0
           || (!nodes && (metric_find(name) >= 0 || (goes_on && (strncmp(name, "reward/", 7) == 0 || strncmp(name, "eval/", 5) == 0))));
}

/* Is each of --series one that the run has? A wrong name would be a column without a value. */
static bool series_check(const struct printer *p, struct journal *j, const char *run_dir, struct error *err)
{
    struct columns seen = { .n = 0 };
    bool goes_on = run_goes_on(j, run_dir);
    bool ok = p->nodes ? journal_samples_read(j, 0, columns_of_sample, &seen, err)
                       : journal_steps_read(j, 0, columns_of_step, &seen, err) && journal_evals_read(j, columns_of_eval, &seen, err);
    if (ok && !p->nodes)
        columns_of_sets(&seen, run_dir);
    ok = ok && (p->columns.n > 0 || error_set(err, ERR_USAGE, "--series names no metric"));
    for (int i = 0; ok && i < p->columns.n && !(p->nodes && seen.n == 0); i++) {
        const char *nearest = "";
        if (series_is_known(p->columns.name[i], &seen, p->nodes, goes_on))
            continue;
        for (int k = 0; k < seen.n; k++)
            if (!nearest[0] || word_distance(seen.name[k], p->columns.name[i]) < word_distance(nearest, p->columns.name[i]))
                nearest = seen.name[k];
        ok = error_set(err, ERR_USAGE, "--series: the run has no '%.80s'%s%.80s%s", p->columns.name[i],
                       nearest[0] ? "; did you mean '" : "", nearest, nearest[0] ? "'?" : "; 'rollcall metrics' lists what runs have");
    }
    columns_release(&seen);
    return ok;
}

static bool text_export(const struct export_request *r, bool csv, struct error *err)
{
    struct printer p = { .csv = csv, .nodes = r->nodes };
    struct error late;
    struct cursor cursor = CURSOR_START;
    bool ok = false;
    struct journal *j = rows_open(r->run_dir, err);
    if (!j)
        return false;
    columns_parse(&p.columns, r->series);
    TRY(!r->series || series_check(&p, j, r->run_dir, err));
    TRY(p.out = export_out(r, err));
    if (csv)
        TRY(csv_head(&p, j, r->run_dir, err));
    for (;;) {
        bool last = !r->follow || !run_goes_on(j, r->run_dir);    // checked before reading, so that the end is not missed
        TRY(p.nodes ? journal_samples_read(j, p.sample_seq, sample_print, &p, err) : rows_read(j, &cursor, step_print, &p, err));
        TRY(export_flush(r, p.out, err));
        if (last)
            break;
        rows_wait(r->run_dir, 1000);
    }
    ok = true;
out:
    if (p.out && !export_close(r, p.out, ok ? err : &late))
        ok = false;
    columns_release(&p.columns);
    journal_close(j);
    return ok;
}

bool export_csv(const struct export_request *r, struct error *err)
{
    return text_export(r, true, err);
}

bool export_jsonl(const struct export_request *r, struct error *err)
{
    return text_export(r, false, err);
}
