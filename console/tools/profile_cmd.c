/* rollcall profile: what all processes of a profiled run did, as one timeline
 *
 * From RUN/logs it takes NAME.prof (process.h: when a process was in which phase) and profile-DEVICE.json (trace.h: the device's
 * operations), and writes a trace for Chrome's viewer or Perfetto: a row of phases per process, and one of operations per device. Files are
 * read line by line, since a device's may be large. */
#include <dirent.h>
#include <inttypes.h>
#include <jansson.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/base/cli.h"
#include "protocol/base/file.h"
#include "protocol/base/json_text.h"
#include "protocol/base/subcommand.h"

struct phase {
    int pid;    // 0: this place is free
    char name[64];
    double begin_us;
};
struct picture {
    FILE *out;
    double zero_us;    // of the earliest event
    bool any;          // an event has been written
    int64_t n_phase, n_op;
};

static void text_put(FILE *f, const char *text)
{
    struct buf b = BUF_INIT;
    json_text_print(&b, text, strlen(text), JSON_TEXT_UTF8);
    fputs(buf_text(&b), f);
    buf_release(&b);
}

static void row_name(struct picture *p, int row, const char *name)
{
    fprintf(p->out, "%s{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":%d,\"args\":{\"name\":", p->any ? ",\n" : "", row);
    text_put(p->out, name);
    fputs("}}", p->out);
    p->any = true;
}

static void event_put(struct picture *p, int row, const char *name, double begin_us, double us)
{
    fputs(p->any ? ",\n{\"name\":" : "{\"name\":", p->out);
    text_put(p->out, name);
    fprintf(p->out, ",\"ph\":\"X\",\"pid\":%d,\"tid\":1,\"ts\":%.3f,\"dur\":%.3f}", row, begin_us - p->zero_us, us);
    p->any = true;
}

/* A line of NAME.prof. False: it is none (a process was killed while it wrote, or a person has added to it). */
static bool phase_line(const char *line, double *us, int *pid, bool *enters, char name[64])
{
    char what[8];
    double s;
    if (sscanf(line, "%lf %*63s %d:: %7s %63s", &s, pid, what, name) != 4 || *pid <= 0)
        return false;
    *us = s * 1e6;
    *enters = strcmp(what, "Enter") == 0;
    return *enters || strcmp(what, "Exit") == 0;
}

/* The phases of a process. One that was killed has not left its last phase: that ends where the process that came after it begins. */
static bool phases_read(struct picture *p, int row, FILE *in, bool first_look)
{
    struct phase now = { 0 };
    char *line = NULL, name[64];
    size_t cap = 0;
    double us, last_us = 0;
    int pid;
    bool enters;
    while (getline(&line, &cap, in) > 0) {
        if (!phase_line(line, &us, &pid, &enters, name))
            continue;
        if (first_look) {
            p->zero_us = fmin(p->zero_us, us);
            continue;
        }
        if (now.pid && !first_look) {
            event_put(p, row, now.name, now.begin_us, us - now.begin_us);
            p->n_phase++;
        }
        now = (struct phase){ .pid = enters ? pid : 0, .begin_us = us };
        snprintf(now.name, sizeof now.name, "%s", name);
        last_us = us;
    }
    if (now.pid && !first_look)
        event_put(p, row, now.name, now.begin_us, fmax(last_us - now.begin_us, 0));
    free(line);
    return true;
}

/* The operations of a device: an event per line, after a line that says when its time begins. */
static bool operations_read(struct picture *p, int row, FILE *in, const char *path, bool first_look, struct error *err)
{
    char *line = NULL;
    size_t cap = 0;
    ssize_t len = getline(&line, &cap, in);
    const char *at = len > 0 ? strstr(line, "\"began_us\":") : NULL;
    double began_us = at ? strtod(at + strlen("\"began_us\":"), NULL) : NAN;
    bool ok = began_us > 0 || error_set(err, ERR_DATA, "'%s' does not say when it began; it was written by an older rollcall", path);
    if (ok && first_look)
        p->zero_us = fmin(p->zero_us, began_us);
    while (ok && !first_look && (len = getline(&line, &cap, in)) > 0) {
        while (len > 0 && (line[len - 1] == '\n' || line[len - 1] == ','))
            line[--len] = 0;
        json_t *e = line[0] == '{' ? json_text_read(line, (size_t)len, 0, NULL) : NULL;
        const char *name = json_string_value(json_object_get(e, "name"));
        if (name) {
            event_put(p, row, name, began_us + json_number_value(json_object_get(e, "ts")), json_number_value(json_object_get(e, "dur")));
            p->n_op++;
        }
        json_decref(e);
    }
    free(line);
    return ok;
}

static int wanted(const struct dirent *d)
{
    size_t len = strlen(d->d_name);
    return (len > 5 && strcmp(d->d_name + len - 5, ".prof") == 0)
           || (strncmp(d->d_name, "profile-", 8) == 0 && len > 5 && strcmp(d->d_name + len - 5, ".json") == 0);
}

static bool file_take(struct picture *p, const char *dir, const char *name, int row, bool first_look, struct error *err)
{
    char path[PATH_MAX];
    bool device = strncmp(name, "profile-", 8) == 0;
    if (!path_join(path, sizeof path, dir, name))
        return error_set(err, ERR_IO, "the path '%s' is too long", dir);
    FILE *in = fopen(path, "re");
    if (!in)
        return error_errno(err, "cannot read '%s'", path);
    if (!first_look) {
        char title[300];
        int n = (int)strlen(name) - (device ? 13 : 5);
        snprintf(title, sizeof title, "%s%.*s", device ? "device " : "", n, name + (device ? 8 : 0));
        row_name(p, row, title);
    }
    bool ok = device ? operations_read(p, row, in, path, first_look, err) : phases_read(p, row, in, first_look);
    fclose(in);
    return ok;
}

static bool picture_make(struct picture *p, const char *dir, struct error *err)
{
    struct dirent **entry = NULL;
    int n = scandir(dir, &entry, wanted, alphasort);
    bool ok = n > 0;
    if (n < 0)
        error_errno(err, "cannot read '%s'", dir);
    else if (n == 0)
        error_set(err, ERR_NOT_FOUND, "'%s' holds no profile; a run with 'enable_profiling' writes one", dir);
    for (int look = 0; look < 2 && ok; look++)
        for (int i = 0; i < n && ok; i++)
            ok = file_take(p, dir, entry[i]->d_name, i + 1, look == 0, err);
    for (int i = 0; i < n; i++)
        free(entry[i]);
    free(entry);
    return ok;
}

static bool profile_cmd(int argc, char **argv, struct error *err)
{
    const char *run_dir = NULL, *out = NULL;
    char dir[PATH_MAX], path[PATH_MAX];
    struct cli_option options[] = { { "out", NULL, CLI_STR, &out, "FILE",
                                      "write the timeline here (RUN_DIR/logs/timeline.json); - is standard output" } };
    struct cli cli = {
        .command = "rollcall profile",
        .about = "Puts together what all processes of a run with enable_profiling did: phases and operations on one timeline,\n"
                 "for Chrome's trace viewer or Perfetto.\n",
        .options = options,
        .n_options = ARRAY_SIZE(options),
        .operands = "RUN_DIR",
        .operand = &run_dir,
        .max_operands = 1
    };
    if (!cli_parse(&cli, argc, argv, err) || cli.help_wanted)
        return cli.help_wanted;
    if (cli.n_operands != 1)
        return error_set(err, ERR_USAGE, "give the run's directory; see 'rollcall profile --help'");
    if (!path_join(dir, sizeof dir, run_dir, "logs") || !path_join(path, sizeof path, dir, "timeline.json"))
        return error_set(err, ERR_IO, "the path '%s' is too long", run_dir);
    struct picture p = { .zero_us = INFINITY };
    char *text = NULL;
    size_t len = 0;
    if (!(p.out = open_memstream(&text, &len)))
        return error_set(err, ERR_NO_MEMORY, "no memory for a timeline");
    fputs("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n", p.out);
    bool ok = picture_make(&p, dir, err);
    fputs("\n]}\n", p.out);
    ok = (fclose(p.out) == 0 || error_set(err, ERR_NO_MEMORY, "no memory for a timeline")) && ok;
    bool streamed = out && path_is_stream(out);
    if (ok && streamed)
        ok = (fwrite(text, 1, len, stdout) == len && fflush(stdout) == 0) || error_errno(err, "cannot write to standard output");
    else
        ok = ok && file_write(out ? out : path, text, len, err);
    free(text);
    if (ok)
        fprintf(streamed ? stderr : stdout, "%s: %" PRId64 " phases, %" PRId64 " operations\n",
                streamed ? "standard output"
                : out    ? out
                         : path,
                p.n_phase, p.n_op);
    return ok;
}

const struct subcommand profile_subcommand = { "profile", profile_cmd, "put a profiled run's timelines together" };
