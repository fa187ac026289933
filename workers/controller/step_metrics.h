/* step_metrics.h - the numbers of the last optimizer step, and what is summed up for those of the next
 *
 * A trainer measures most of them; what depends on all groups, and the controller's own clock, is computed here. */
#pragma once
#include <stdint.h>
#include "protocol/record/journal.h"

#define STEP_METRICS_MAX 160

struct controller;
struct group_summary;
struct mval;
struct msg_out;
/* What workers that only sample have told; NAN: not known. */
struct step_sampled {
    double generate_s, tail_s, n_tok, n_draft, n_accepted, n_put_back, flops, flops_most, bytes, bytes_most;
    double gap_s;
    int64_t n_gap;    // groups that came with gap_s: of a worker that can fill the gap
};
struct step_metrics {
    struct journal_metric value[STEP_METRICS_MAX];    // (n) of the last step
    char name[STEP_METRICS_MAX][96];
    int n;
    int64_t step_ms;          // when the last step was done, or the run began or returned
    int64_t paused_ms;        // of that, the run was paused; while it is, without the time since resting_ms
    int64_t resting_ms;       // since when it is paused; 0: it is not
    double step_s_mean;       // seconds per step; 0: none yet
    double host_mem_bytes;    // of the run's processes, as last sampled; 0: not yet
    struct {
        int64_t n, n_tok;    // groups, and tokens drawn for them
    } stopped;               // by over_sample_rate since the last step
    struct {
        int64_t n, n_judged, n_written, n_failed;    // groups, criteria they were judged by, new ones, groups for which that failed
    } rubrics;                                       // evolving ones, since the last step
    struct {
        bool known;
        double environments, per_min, waiting, age, refused, full;
    } posted;    // by environments, as last heard
    struct {
        double file_bytes, wire_bytes, longest_s;    // of weights that came, for which these were sent
    } fetched;                                       // by other nodes since the last step
    struct step_sampled sampled;                     // since the last step that had any
    struct {
        double wait_s;        // that groups waited for their scores
        double response_s;    // that responses did
        double verify_s;      // that verifiers worked
        int64_t n;            // responses
    } scored;                 // of the groups that came since the last step
};
void step_metrics_restart(struct step_metrics *s);                                     // the time of a step begins now
void step_metrics_pause(struct step_metrics *s, bool paused);                          // the run is paused, or goes on
void step_metrics_group(struct step_metrics *s, const struct group_summary *group);    // a group has come
void step_metrics_sampled(struct step_metrics *s, const struct mval *sampled);         // what came with it (message group); NULL is fine
void step_metrics_posted(struct step_metrics *s,
                         const struct mval *posted);    // the door of environments tells (message work); NULL is fine
void step_metrics_fetched(struct step_metrics *s, const struct mval *fetched);    // a node has new weights (message done); NULL is fine
void step_metrics_rubrics(struct step_metrics *s, int64_t n_judged, int64_t n_written, bool failed);    // of a group that came
void step_metrics_stopped(struct step_metrics *s, int64_t n_tok);    // a group that does not count, of which n_tok tokens were drawn
void step_metrics_host(struct step_metrics *s, double mem_bytes);    // a sample has come
void step_metrics_make(struct controller *c, int64_t batch, const struct mval *told);    // the step of batch is done
bool step_metrics_ends_episode(struct controller *c, int64_t batch);                     // does batch have a last prompt of an episode?
double step_metric(const struct step_metrics *s, const char *name);                      // of the last step; NAN: it has none
void step_metrics_write(const struct step_metrics *s, struct msg_out *m);                // the map metrics
