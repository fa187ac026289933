/* The job script, and how it reaches Slurm. */
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "console/train/launch.h"
#include "console/train/program.h"
#include "protocol/base/file.h"
#include "protocol/base/json_text.h"
#include "protocol/run/node.h"
#include "protocol/wire/join_token.h"
#include "protocol/wire/run_head.h"

#define SUBMIT_MS 60000
#define REQUEUES_MAX 20    // of a job whose head has died; a run that always dies must not come back for ever

/* An #SBATCH line with a text in double quotes; '%' begins a replacement there. */
static bool sbatch_text(struct buf *out, const char *option, const char *text, struct error *err)
{
    if (text[strcspn(text, "\n\r\"\\")])
        return error_set(err, ERR_USAGE, "'%s' cannot be written into a job script: it holds a quote, a backslash or a newline", text);
    buf_fmt(out, "#SBATCH --%s=\"", option);
    for (const char *p = text; *p; p++)
        buf_fmt(out, *p == '%' ? "%%%%" : "%c", *p);
    buf_str(out, "\"\n");
    return true;
}

bool launch_script(const struct launch *l, const char *run_dir, const char *name, const char *rollcall, struct buf *out, struct error *err)
{
    char title[160], log[PATH_MAX];
    snprintf(title, sizeof title, "rollcall %s", name);
    if (!path_join(log, sizeof log, run_dir, LAUNCH_LOG))
        return error_set(err, ERR_USAGE, "the path '%s' is too long", run_dir);
    buf_str(out, "#!/bin/bash\n");
    if (!sbatch_text(out, "job-name", title, err) || !sbatch_text(out, "output", log, err))
        return false;
    buf_fmt(out, "#SBATCH --nodes=%" PRId64 "\n#SBATCH --ntasks-per-node=1\n", l->nodes);
    if (l->gpus > 0)
        buf_fmt(out, "#SBATCH --gpus-per-node=%" PRId64 "\n", l->gpus);
    if (l->cpus > 0)
        buf_fmt(out, "#SBATCH --cpus-per-task=%" PRId64 "\n", l->cpus);
    if (l->partition[0])
        buf_fmt(out, "#SBATCH --partition=%s\n", l->partition);
    if (l->time[0])
        buf_fmt(out, "#SBATCH --time=%s\n", l->time);
    if (l->more[0])
        buf_fmt(out, "#SBATCH %s\n", l->more);
    if (l->nodes > 1)    // a lost node is done without; the other nodes watch the head (launch_step.c)
        buf_str(out, "#SBATCH --no-kill\n");
    buf_str(out, "#SBATCH --requeue\n#SBATCH --open-mode=append\n#SBATCH --signal=B:USR1@120\n"
                 "# Made by 'rollcall train --slurm': one agent per node; task 0 is the head of the run.\nrollcall=");
    buf_shell(out, rollcall);
    buf_str(out, "\nrun=");
    buf_shell(out, run_dir);
    buf_fmt(out,
            "\n\n"
            "soon() {    # 120 s before the time is over: checkpoint, and go on in another allocation\n"
            "    trap '' USR1\n"
            "    timeout 100 \"$rollcall\" ctl --run \"$run\" --yes --force --limit 90 stop\n"
            "    scontrol requeue \"$SLURM_JOB_ID\"\n"
            "}\n"
            "trap soon USR1\n"
            "rm -f \"$run/" LAUNCH_EXIT "\"\n"
            "srun --ntasks-per-node=1 --no-kill --kill-on-bad-exit=0%s \"$rollcall\" launch --run \"$run\" &\n"
            "step=$!\n"
            "trap 'kill -TERM \"$step\"' TERM INT\n"
            "while kill -0 \"$step\" 2>/dev/null; do wait \"$step\"; done\n"
            "code=$(cat \"$run/" LAUNCH_EXIT "\" 2>/dev/null)\n"
            "if [ -z \"$code\" ]; then    # the head did not end by itself\n"
            "    [ \"${SLURM_RESTART_COUNT:-0}\" -lt %d ] && scontrol requeue \"$SLURM_JOB_ID\"\n"
            "    code=1\n"
            "fi\n"
            "exit \"$code\"\n",
            l->cpus > 0 ? " --cpus-per-task=\"$SLURM_CPUS_PER_TASK\"" : "", REQUEUES_MAX);
    return !out->failed || error_set(err, ERR_NO_MEMORY, "no memory for the job script");
}

/* What the step needs to know of the command line. */
static bool plan_write(const struct launch *l, const char *run_dir, bool resume, struct error *err)
{
    char path[PATH_MAX], cwd[PATH_MAX];
    if (!getcwd(cwd, sizeof cwd))
        return error_errno(err, "cannot find the current folder");
    json_t *words = json_array();
    bool ok = path_join(path, sizeof path, run_dir, LAUNCH_PLAN);
    for (int i = 0; i < l->n_word; i++)
        ok = json_array_append_new(words, json_string(l->word[i])) == 0 && ok;
    json_t *o = json_pack("{s:s,s:o,s:b,s:I,s:I,s:I,s:I,s:I,s:s}", "cwd", cwd, "words", words, "resume", resume, "nodes",
                          (json_int_t)l->nodes, "gpus", (json_int_t)l->gpus, "port", (json_int_t)l->port, "wait_s", (json_int_t)l->wait_s,
                          "lost_s", (json_int_t)l->lost_s, "dir", l->dir);
    char *text = o ? json_text_dump(o, JSON_INDENT(1) | JSON_PRESERVE_ORDER) : NULL;
    json_decref(o);
    ok = ok && text ? file_write(path, text, strlen(text), err)
                    : error_set(err, ERR_USAGE, "the command line cannot be kept for the head: a word is not UTF-8, or a path is too long");
    free(text);
    return ok;
}

/* The folders, the token and the plan. */
static bool launch_prepare(const struct launch *l, const char *run_dir, bool resume, struct error *err)
{
    char path[PATH_MAX];
    if (!path_join(path, sizeof path, run_dir, NODE_TOKEN_FILE))
        return error_set(err, ERR_USAGE, "the path '%s' is too long", run_dir);
    char folder[PATH_MAX];
    if (path_join(folder, sizeof folder, run_dir, LAUNCH_EXIT))
        unlink(folder);
    return path_join(folder, sizeof folder, run_dir, LAUNCH_FOLDER) && dir_make(folder, 0700, err)
           && path_join(folder, sizeof folder, run_dir, "sock") && dir_make(folder, 0700, err) && join_token_make(path, err)
           && plan_write(l, run_dir, resume, err);
}

/* The last line of what a program has printed. */
static const char *last_line(struct buf *b)
{
    while (b->len > 0 && strchr(" \r\n", b->data[b->len - 1]))
        b->data[--b->len] = 0;
    const char *at = strrchr(buf_text(b), '\n');
    return at ? at + 1 : buf_text(b);
}

static bool job_submit(const char *script, char job[64], struct error *err)
{
    struct buf out = BUF_INIT, errors = BUF_INIT;
    char *argv[] = { "sbatch", "--parsable", (char *)script, NULL };
    int status;
    bool ok = program_run(argv, SUBMIT_MS, &out, &errors, &status, err);
    if (!ok && err->code == ERR_NOT_FOUND)
        error_set(err, ERR_NOT_FOUND,
                  "there is no 'sbatch' on this machine's PATH; run this on a login node of the cluster (or load its "
                  "Slurm module), or name the machines with --hosts");
    if (ok && status != 0)
        ok = error_set(err, ERR_REFUSED, "Slurm has not accepted the job: %.600s; change nodes=, gpus=, partition=, time= or more=",
                       last_line(&errors)[0] ? last_line(&errors) : "sbatch has failed without a message");
    snprintf(job, 64, "%.*s", (int)strcspn(buf_text(&out), ";\n"), buf_text(&out));
    buf_release(&out);
    buf_release(&errors);
    return ok;
}

bool launch_submit(const struct launch *l, const char *run_dir, const char *name, bool resume, struct error *err)
{
    char script[PATH_MAX], rollcall[PATH_MAX] = "", job[64];
    struct buf text = BUF_INIT;
    bool ok = false;
    if (readlink("/proc/self/exe", rollcall, sizeof rollcall - 1) < 0)
        return error_errno(err, "cannot find this program's path");
    TRY(launch_prepare(l, run_dir, resume, err) && launch_script(l, run_dir, name, rollcall, &text, err));
    TRY(path_join(script, sizeof script, run_dir, LAUNCH_SCRIPT) && file_write(script, text.data, text.len, err));
    if (getenv("SLURM_JOB_ID") && !getenv("SLURM_PROCID")) {    // an allocation of salloc
        fprintf(stderr, "inside allocation %s: the nodes start now\n", getenv("SLURM_JOB_ID"));
        char nodes[32];
        snprintf(nodes, sizeof nodes, "--nodes=%" PRId64, l->nodes);
        execlp("srun", "srun", nodes, "--ntasks-per-node=1", "--no-kill", "--kill-on-bad-exit=0", rollcall, "launch", "--run", run_dir,
               (char *)NULL);
        error_errno(err, "cannot run 'srun'");
        goto out;
    }
    TRY(job_submit(script, job, err));
    printf("job %s on %" PRId64 " nodes; the run will be in %s\n  look:  rollcall ctl --run %s status, or: rollcall console %s\n"
           "  log:   %s/" LAUNCH_LOG "\n  end:   rollcall ctl --run %s stop (or scancel %s)\n",
           job, l->nodes, run_dir, run_dir, run_dir, run_dir, run_dir, job);
    ok = true;
out:
    buf_release(&text);
    return ok;
}
