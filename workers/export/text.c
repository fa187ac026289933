/* CSV and JSON lines. Numbers are printed so that they read back to the same double; what is not known is empty in CSV and
 * absent in JSON. Steps that a rollback took back are not printed twice: of a finished run one sees each step once. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/base/cli.h"
#include "workers/export/export.h"
#include "workers/export/rows.h"

#define COLUMN_MAX 4096

struct columns {
    char *name[COLUMN_MAX];    // owned
    int n;
    bool fixed;                // --series: no others are added
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
    for (const char *p = list; p && *p; p += strspn(p, ",")) {
        size_t len = strcspn(p, ",");
        column_add(c, p, len);
        p += len;
    }
}

static bool columns_see(void *arg, const struct journal_step *row)
{
    struct columns *c = arg;
    for (int i = 0; i < row->n; i++)
        if (column_find(c, row->metric[i].name) < 0)
            column_add(c, row->metric[i].name, strlen(row->metric[i].name));
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
    struct columns columns;
};

static bool csv_row(void *arg, const struct journal_step *row)
{
    struct printer *p = arg;
    fprintf(p->out, "%lld,%.3f", (long long)row->step, row->wall_s);
    for (int c = 0; c < p->columns.n; c++) {
        fputc(',', p->out);
        /* rows name their series in the order they were first seen, so the first guess is nearly always right */
        int at = c < row->n && strcmp(row->metric[c].name, p->columns.name[c]) == 0 ? c : -1;
        for (int i = 0; at < 0 && i < row->n; i++)
            if (strcmp(row->metric[i].name, p->columns.name[c]) == 0)
                at = i;
        if (at >= 0 && isfinite(row->metric[at].value))
            f64_print(p->out, row->metric[at].value);
    }
    fputs("\n", p->out);
    return true;
}

static bool jsonl_row(void *arg, const struct journal_step *row)
{
    struct printer *p = arg;
    bool first = true;
    fprintf(p->out, "{\"step\":%lld,\"time\":%.3f,\"metrics\":{", (long long)row->step, row->wall_s);
    for (int i = 0; i < row->n; i++) {
        if (!isfinite(row->metric[i].value) || (p->columns.fixed && column_find(&p->columns, row->metric[i].name) < 0))
            continue;
        fprintf(p->out, "%s\"", first ? "" : ",");
        for (const char *s = row->metric[i].name; *s; s++) {
            if (*s == '"' || *s == '\\')
                fputc('\\', p->out);
            fputc((unsigned char)*s < 32 ? ' ' : *s, p->out);
        }
        fputs("\":", p->out);
        f64_print(p->out, row->metric[i].value);
        first = false;
    }
    fputs("}}\n", p->out);
    return true;
}

static void csv_head(struct printer *p)
{
    fputs("step,time", p->out);
    for (int i = 0; i < p->columns.n; i++)
        fprintf(p->out, strpbrk(p->columns.name[i], ",\"\n") ? ",\"%s\"" : ",%s", p->columns.name[i]);
    fputs("\n", p->out);
}

static bool text_export(const struct export_request *r, journal_step_fn *row, bool csv, struct error *err)
{
    struct printer p = { .out = stdout };
    struct cursor cursor = { 0 };
    bool ok = false;
    struct journal *j = journal_open_reader(r->run_dir, err);
    if (!j)
        return false;
    if (r->out_path && !(p.out = fopen(r->out_path, "wxe"))) {    // nothing existing is overwritten
        error_errno(err, "cannot create '%s'", r->out_path);
        journal_close(j);
        return false;
    }
    columns_parse(&p.columns, r->series);
    if (csv) {
        if (!p.columns.fixed)
            TRY(journal_steps_read(j, 0, columns_see, &p.columns, err));
        csv_head(&p);
    }
    for (;;) {
        bool last = !r->follow || !run_goes_on(j, r->run_dir);    // asked before reading, so that the end is not missed
        TRY(rows_read(j, &cursor, row, &p, err));
        if (fflush(p.out) != 0) {
            error_errno(err, "cannot write '%s'", r->out_path ? r->out_path : "standard output");
            goto out;
        }
        if (last)
            break;
        rows_wait(r->run_dir, 1000);
    }
    ok = true;
out:
    if (p.out != stdout && fclose(p.out) != 0 && ok)
        ok = error_errno(err, "cannot write '%s'", r->out_path);
    columns_release(&p.columns);
    journal_close(j);
    return ok;
}

bool export_csv(const struct export_request *r, struct error *err)
{
    return text_export(r, csv_row, true, err);
}

bool export_jsonl(const struct export_request *r, struct error *err)
{
    return text_export(r, jsonl_row, false, err);
}
