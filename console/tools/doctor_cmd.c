/* rollcall doctor: checks whether this machine has what rollcall uses, and says what to do about anything missing. Changes nothing.
 * With RUN: the state of that run's journal on disk. With --devices: what NVML reports for each GPU, one JSON line each; with --shape, too:
 * how it multiplies the weights of such a model. */
#include <inttypes.h>
#include <jansson.h>
#include <langinfo.h>
#include <limits.h>
#include <locale.h>
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <sys/sysinfo.h>
#include <sys/un.h>
#include <unistd.h>
#include "console/tools/doctor_products.h"
#include "kernels/ops.h"
#include "protocol/base/cli.h"
#include "protocol/base/json_text.h"
#include "protocol/base/library.h"
#include "protocol/base/subcommand.h"
#include "protocol/record/journal.h"
#include "protocol/run/journal_wal.h"
#include "protocol/run/run_lock.h"
#include "workers/engine/reward/sandbox/sandbox.h"
#include "workers/host/nvml.h"

#define LOOKS 10
#define LOOK_GAP_MS 100
#define LOG_LONG_BYTES (32 << 20)    // size of a journal's log; it is truncated at half of that

enum finding {
    FINE,
    WORTH_KNOWING,
    MISSING,
};
struct checkup {
    int n_missing;
};

static void say(struct checkup *c, enum finding f, const char *fmt, ...) PRINTF_LIKE(3, 4);
static void say(struct checkup *c, enum finding f, const char *fmt, ...)
{
    static const char *const words[] = { "ok", "note", "missing" };
    va_list ap;
    va_start(ap, fmt);
    printf("%-8s", words[f]);
    vprintf(fmt, ap);
    putchar('\n');
    va_end(ap);
    c->n_missing += f == MISSING;
}

static bool program_found(const char *name)
{
    const char *path = getenv("PATH");
    char full[PATH_MAX];
    for (const char *p = path; p && *p; p += strcspn(p, ":") + (p[strcspn(p, ":")] != 0))
        if (snprintf(full, sizeof full, "%.*s/%s", (int)strcspn(p, ":"), p, name) < PATH_MAX && access(full, X_OK) == 0)
            return true;
    return false;
}

/* Where the CUDA back end, which has been asked for GPUs, and what it uses were found. */
static void libraries_check(struct checkup *c)
{
    static const struct {
        const char *start, *what;
    } parts[] = {
        { "librollcall_cuda.so", "the CUDA back end" },
        { "libcublasLt.so", "cuBLASLt" },
        { "libnccl.so", "NCCL" },
    };
    char path[PATH_MAX];
    struct error err;
    if (!library_where(parts[0].start, path, sizeof path))
        return;
    if (!library_open_nccl(&err))
        say(c, WORTH_KNOWING, "GPUs exchange without NCCL: %s", err.text);
    for (size_t i = 0; i < ARRAY_SIZE(parts); i++)
        if (library_where(parts[i].start, path, sizeof path))
            say(c, FINE, "%s: %s", parts[i].what, path);
}

static void devices_check(struct checkup *c)
{
    struct error err = { 0 };
    struct device *cpu = device_new("cpu:0", 0, &err);
    if (cpu)
        say(c, FINE, "processor: %s", cpu->what);
    else
        say(c, MISSING, "processor: %s", err.text);
    device_free(cpu);
    int n_gpu = 0;
    for (struct device *gpu; doctor_gpu_open(n_gpu, &gpu, &err); n_gpu++) {
        size_t free_bytes = 0, total_bytes = 0;
        if (gpu && mem_info(gpu, &free_bytes, &total_bytes, &err))
            say(c, FINE, "%s: %s, %.1f of %.1f GiB free", gpu->name, gpu->what, (double)free_bytes / (1 << 30),
                (double)total_bytes / (1 << 30));
        else
            say(c, WORTH_KNOWING, "cuda:%d: cannot be %s: %s", n_gpu, gpu ? "asked" : "opened", err.text);
        device_free(gpu);
    }
    if (n_gpu == 0)
        say(c, WORTH_KNOWING, "no GPU is used: %s", err.text);
    libraries_check(c);
    struct nvml *nvml = nvml_new(&err);
    if (nvml)
        say(c, FINE, "NVML reports %d GPU%s, driver %s ('rollcall doctor --devices' prints details)", nvml_n_gpu(nvml),
            nvml_n_gpu(nvml) == 1 ? "" : "s", nvml_driver(nvml));
    else
        say(c, WORTH_KNOWING, "no GPU telemetry: %s", err.text);
    nvml_free(nvml);
}

static void device_print(const struct gpu_sample *g, int i, const char *driver)
{
    static const char *const states[] = { [GPU_FINE] = "ok", [GPU_GONE] = "lost", [GPU_NEEDS_RESET] = "needs reset" };
    char name[32], throttle[160];
    snprintf(name, sizeof name, "gpu %d", i);
    json_t *o = json_pack("{s:s,s:s,s:s,s:s,s:s,s:s,s:s}", "device", name, "name", g->name, "uuid", g->uuid, "bus", g->bus, "driver",
                          driver, "state", states[g->state], "throttle", throttle_text(g->value[GPU_THROTTLE], throttle, sizeof throttle));
    for (int k = 0; k < GPU_FIELD_N; k++)    // null: not known here
        json_object_set_new(o, gpu_fields[k].name, isnan(g->value[k]) ? json_null() : json_real(g->value[k]));
    json_t *list = json_array();
    for (int k = 0; k < g->n_process; k++)
        json_array_append_new(list,
                              json_pack("{s:I,s:o,s:o}", "pid", (json_int_t)g->process[k].pid, "mem_bytes",
                                        isnan(g->process[k].mem_bytes) ? json_null() : json_real(g->process[k].mem_bytes), "util_percent",
                                        isnan(g->process[k].util_percent) ? json_null() : json_real(g->process[k].util_percent)));
    json_object_set_new(o, "processes", list);
    char *text = json_text_dump(o, JSON_COMPACT | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(10));
    if (text)
        puts(text);
    free(text);
    json_decref(o);
}

/* Two samples a second apart, since rates need both. */
static bool devices_print(struct error *err)
{
    struct nvml *nvml = nvml_new(err);
    struct gpu_sample g;
    if (!nvml)
        return false;
    for (int i = 0; i < nvml_n_gpu(nvml); i++)
        nvml_sample(nvml, i, &g);
    poll(NULL, 0, 1000);
    for (int i = 0; i < nvml_n_gpu(nvml); i++) {
        nvml_sample(nvml, i, &g);
        device_print(&g, i, nvml_driver(nvml));
    }
    bool ok = nvml_n_gpu(nvml) > 0 || error_set(err, ERR_NOT_FOUND, "the NVIDIA driver has no device");
    nvml_free(nvml);
    return ok;
}

static void host_check(struct checkup *c)
{
    struct sysinfo info;
    struct statvfs fs;
    if (sysinfo(&info) == 0)
        say(c, FINE, "memory: %.1f of %.1f GiB free", (double)info.freeram * info.mem_unit / (1 << 30),
            (double)info.totalram * info.mem_unit / (1 << 30));
    if (statvfs(".", &fs) == 0) {
        double gib = (double)fs.f_bavail * (double)fs.f_frsize / (1 << 30);
        say(c, gib < 2 ? WORTH_KNOWING : FINE, "disk here: %.1f GiB free", gib);
    }
}

static void terminal_check(struct checkup *c)
{
    setlocale(LC_CTYPE, "");
    bool utf8 = strcmp(nl_langinfo(CODESET), "UTF-8") == 0;
    const char *term = getenv("TERM");
    say(c, utf8 ? FINE : WORTH_KNOWING, "locale: %s%s", nl_langinfo(CODESET),
        utf8 ? "" : "; the console draws with ASCII (set LC_ALL=C.UTF-8 for finer charts)");
    say(c, term && strcmp(term, "dumb") != 0 ? FINE : WORTH_KNOWING, "terminal: %s", term ? term : "none; use --batch");
}

static void programs_check(struct checkup *c)
{
    static const struct {
        const char *name, *needed_for;
    } programs[] = {
        { "bwrap", "code rewards (package bubblewrap)" },
        { "python3", "code rewards and the examples' data (package python3)" },
        { "nvidia-smi", "inspecting GPUs by hand" },
    };
    for (size_t i = 0; i < ARRAY_SIZE(programs); i++)
        if (program_found(programs[i].name))
            say(c, FINE, "%s is installed", programs[i].name);
        else
            say(c, WORTH_KNOWING, "%s is not installed; it is needed for %s", programs[i].name, programs[i].needed_for);
    if (getenv("WANDB_API_KEY"))
        say(c, WORTH_KNOWING, "a wandb key is in the environment; nothing is sent unless the run file says 'wandb: online'");
}

/* Not only whether it is installed: runs a harmless program in it. */
static void sandbox_check(struct checkup *c)
{
    struct error err = { 0 };
    struct sandbox_host *h = sandbox_host_new(&sandbox_limits_default, &err);
    if (h)
        say(c, FINE, "the sandbox of code rewards works%s%s%s",
            sandbox_host_no_cgroups(h) ? "; without cgroups programs get no shared anonymous memory: " : "",
            sandbox_host_no_cgroups(h) ? sandbox_host_no_cgroups(h) : "",
            sandbox_host_no_cgroups(h) ? "" : ", its memory limited by cgroups");
    else
        say(c, WORTH_KNOWING, "code rewards do not work here: %s", err.text);
    if (h && sandbox_host_lacks(h))
        say(c, WORTH_KNOWING, "the sandbox's Python has no %1$s, so a program that imports it earns nothing; install python3-%1$s",
            sandbox_host_lacks(h));
    sandbox_host_free(h);
}

/* With the reader found by two looks, if any: other readers read only for a moment and do no harm. What keeps a log long is looked for
 * several times, as the kernel's list of locks may lack one while others come and go. */
static void wal_look(const char *dir, struct journal_wal *out)
{
    int last = 0;
    for (int i = 0; i < LOOKS; i++) {
        journal_wal_look(dir, last, out);
        if (out->reader_pid ? out->reader_pid == last : out->wal_bytes <= LOG_LONG_BYTES)
            return;
        last = out->reader_pid ? out->reader_pid : last;
        poll(NULL, 0, LOOK_GAP_MS);
    }
    out->reader_pid = 0;
    out->reader[0] = 0;
}

/* The journal and its log: shows a log that is not folded before it fills the disk. */
static bool run_check(struct checkup *c, const char *dir, struct error *err)
{
    struct journal_wal wal;
    struct error why = { 0 };
    const double mib = 1 << 20;
    int64_t step;
    wal_look(dir, &wal);    // before we become a reader, perhaps the last one, which folds it when closing
    struct journal *j = journal_open_reader(dir, err);
    if (!j)
        return false;
    if (journal_last_step(j, &step, &why))
        say(c, FINE, "journal: %.1f MiB, step %" PRId64, (double)wal.db_bytes / mib, step);
    else
        say(c, MISSING, "journal: %s", why.text);
    journal_close(j);
    bool live = run_is_live(dir), long_log = wal.wal_bytes > LOG_LONG_BYTES;
    const char *remedy = !long_log        ? ""
                         : wal.reader_pid ? "; the log cannot be folded while that process reads: end it"
                         : live           ? "; it is truncated when all readers have finished"
                                          : "; the next --resume folds it";
    say(c, long_log ? WORTH_KNOWING : FINE, "journal's log: %.1f MiB%s%s%s", (double)wal.wal_bytes / mib,
        wal.reader_pid ? ", read by " : "", wal.reader, remedy);
    return true;
}

static bool doctor_cmd(int argc, char **argv, struct error *err)
{
    bool devices = false;
    const char *run[1] = { NULL };
    const char *shape = NULL;
    struct cli_option options[] = {
        { "devices", NULL, CLI_FLAG, &devices, NULL, "print only what NVML reports for each GPU, as JSON lines" },
        { "shape", NULL, CLI_STR, &shape, "NAME",
          "with --devices: print the algorithm that each GPU uses for each product of this model, and whether it gave equal bits; "
          "Qwen2.5-7B or another published name, or a model directory" },
    };
    struct cli cli = {
        .command = "rollcall doctor",
        .operands = "[RUN]",
        .options = options,
        .n_options = ARRAY_SIZE(options),
        .operand = run,
        .max_operands = 1,
        .about = "Checks whether this machine has what rollcall uses; with RUN, also the state of that run's journal on disk.\n"
                 "Changes nothing."
    };
    if (!cli_parse(&cli, argc, argv, err) || cli.help_wanted)
        return cli.help_wanted;
    if (shape && !devices)
        return error_set(err, ERR_USAGE, "--shape needs --devices");
    if (devices)
        return shape ? doctor_products(shape, err) : devices_print(err);
    struct checkup c = { 0 };
    if (run[0] && !run_check(&c, run[0], err))
        return false;
    devices_check(&c);
    host_check(&c);
    terminal_check(&c);
    programs_check(&c);
    sandbox_check(&c);
    return c.n_missing == 0 || error_set(err, ERR_NOT_FOUND, "%d things are missing; see above", c.n_missing);
}

const struct subcommand doctor_subcommand = { "doctor", doctor_cmd, "check whether this machine has what rollcall uses" };
