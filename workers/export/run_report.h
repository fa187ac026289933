/* run_report.h - what a report of a run shows, gathered from its journal: charts' series, evaluations, marks, times
 *
 * For exports that are one document (html.c, svg.c). Memory: 4 bytes for each step and each metric that has a chart. One thread. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "protocol/record/journal.h"
#include "protocol/record/series.h"
#include "protocol/run/run_last.h"
#include "protocol/settings/metrics.h"
#include "protocol/settings/run_config.h"

#define REPORT_PARTS 32      // most parts of a reward that are shown
#define REPORT_MARKS 1024    // most steps that are marked
#define REPORT_NAME 96

struct run_report_series {
    char name[REPORT_NAME];
    struct series s;
};
struct run_report {
    struct journal *journal;
    struct run_config *config;    // of the run file; all defaults where it cannot be read
    struct run_last last;
    bool live;
    struct series metric[METRIC_N];    // those of the table that have a chart, and no others
    struct series rollout;             // M_ROLLOUT_STEP, by which changes are placed
    struct run_report_series part[REPORT_PARTS], eval[EVAL_ROW_MAX];
    int n_part, n_eval;
    int64_t n_step;                // rows
    int64_t first, last_step;      // their numbers; 0: there are none
    double began_s, ended_s;       // wall time of the first and last row; NAN: none
    int64_t mark[REPORT_MARKS];    // steps that show a change of settings, a return or a note first (change.h)
    int n_mark;
};
/* Read the run. Returns it for run_report_free; NULL: see err. */
struct run_report *run_report_open(const char *run_dir, struct error *err);
void run_report_free(struct run_report *r);    // NULL is fine
/* The set with the highest value, its step into *step; -1: there are none. */
int run_report_best(const struct run_report *r, double *value, int64_t *step);
