/* run_view.h - everything the console knows about a run, in bounded memory; no sockets, no screen
 *
 * Filled by a feed (feed.h), read by screens and batch output. Owned by the console's loop thread; nothing here locks. Texts
 * from outside are cut to the sizes given here. Each change raises `version`, so that nothing is drawn when nothing has changed. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "protocol/record/change.h"
#include "protocol/record/rollout_view.h"
#include "protocol/record/series.h"
#include "protocol/base/error.h"
#include "protocol/run/control_lock.h"
#include "protocol/run/doctor.h"
#include "protocol/run/level_view.h"
#include "protocol/run/run_state.h"
#include "protocol/settings/alarm_book.h"
#include "protocol/settings/knobs.h"
#include "protocol/settings/metrics.h"
#include "protocol/settings/run_config.h"

#define MODEL_PROCS 36864
#define MODEL_ROLLOUTS 64
#define MODEL_EVENTS 1024
#define MODEL_LOG 4096
#define MODEL_EXTRA 48    // metrics that are not in the table ("reward/NAME", "eval/SET")
#define MODEL_EVALS EVAL_ROW_MAX
#define MODEL_GAUGES 16
#define MODEL_COMMANDS 64
#define MODEL_SAVED 257     // checkpoints, and the beginning
#define MODEL_HOSTS 2049    // the run's node and others
#define MODEL_DEVICES 32768
#define LANE_SECONDS 256    // history of a process's phases, one letter per second

enum link_state {
    LINK_CONNECTING,
    LINK_LIVE,
    LINK_LOST,
};
enum proc_verdict {
    PROC_OK,
    PROC_SLOW,
    PROC_STUCK,
    PROC_SILENT,
};    // SILENT: the console itself has no news of it

struct gauge {
    char name[24];
    double value;
};
struct proc {
    char name[104], kind[16];    // of another node: NODE/NAME
    int64_t pid;                 // 0: not running
    char phase[24];
    double phase_s;        // seconds in this phase at the last report
    double progress;       // grows with each piece of work
    char waits_for[96];    // "": it is working
    char plays[48];        // a worker's part: "trainer 0, producer 0"
    enum proc_verdict verdict;
    int64_t heard_ns;    // when it was reported; monotonic
    double heard_s;      // how old the agent's information about it was then
    int64_t restarts;
    struct gauge gauge[MODEL_GAUGES];
    int n_gauge;
    char lane[LANE_SECONDS];    // a letter of each second's phase, ring; ' ': not known
    int64_t lane_s;             // the second (monotonic) of the last letter; 0: none yet
    bool told;                  // by the status that is being read
};
struct device_view {    // a GPU as the agent last sampled it; NAN: not known
    char name[16], what[64], state[16], throttle[96];
    double util_percent, mem_used_bytes, mem_total_bytes, temp_celsius, power_watts, power_limit_watts, sm_clock_mhz;
    double ecc_uncorrected;
};
struct host_view {    // a node's; NAN: not known
    char node[64];
    bool own;    // the agent's that answers: processes without a node in their names are there
    double cpu_percent, mem_used_bytes, mem_total_bytes, disk_percent;
    int n_device;    // how many of the model's devices are its own; they follow those of earlier hosts
};
struct saved_view {    // a checkpoint that the run can go back to
    int64_t step;
    char state[12];        // whole, broken, or start: the model the run began with
    int64_t size_bytes;    // -1: unknown
    bool pinned;
    double time_s;    // when it was written, since 1970; 0: unknown
    char why[96], path[256];
    char changes[256];    // those of knobs made since; a rollback undoes them
};
struct alarm_view {    // a rule of the run's alarm book
    char name[48], metric[64], remedy[200], actions[64];
    char text[240];    // what is wrong; "": it is quiet
    bool critical;
    enum alarm_state state;
    enum alarm_when when;
    double limit;
    int64_t steps, step;    // that it must hold; since when it does
};
struct eval_view {
    char set[48];
    int64_t n, step;
    double mean;    // the last
    int64_t first_step;
    double first_mean;
};
struct event_view {
    int64_t id;
    double time_s;    // since 1970
    int64_t step;     // -1: unknown
    char kind[24], who[48], text[240];
    char detail[2048];    // JSON, "" when there is none or it is longer
    struct change change;
    bool rings;               // an alarm of the run's book begins that wants the bell
    struct eval_view eval;    // an evaluation's set, step, n and mean; set "": not an evaluation
};
enum line_level {
    LINE_ERROR,
    LINE_WARN,
    LINE_INFO,
    LINE_DEBUG,
    LINE_OTHER,
};
struct log_view {
    enum line_level level;
    char proc[32];     // whose log
    char clock[12];    // "22:33:50" as in the line
    double time_s;     // since 1970; NAN: the line does not say
    char *text;        // owned
};
enum command_state {
    COMMAND_SENT,
    COMMAND_DONE,
    COMMAND_REFUSED,
    COMMAND_LOST,
};
struct command_view {
    uint64_t tag;
    char text[160];    // as typed
    enum command_state state;
    char answer[320];
    int64_t answered_ns;
};
struct knob_value {
    char text[128];        // "": not answered yet
    char before[128];      // the value before the last change seen here; "": none
    int64_t changed_ns;    // 0: not changed since the console started
};
struct extra_metric {
    char name[64];
    struct series series;
};
struct fleet_sweep {       // a large fleet comes in pieces, node by node: how far the last piece went
    int64_t next;          // of the other nodes, to ask for
    int host, device;      // that come next
    int64_t n_left_out;    // so far
};
struct run_view {
    uint64_t version;
    enum link_state link;
    char link_text[256];    // what is wrong, unless it is LIVE
    int64_t link_ns;        // since when
    /* the run, as last reported */
    char name[96], dir[512];
    bool far;    // on another machine: its folder's paths are not ours
    enum run_state state;
    char reason[256], pause_depth[16];
    bool ended;                            // it is over, and everything available has arrived
    char alert[160], alert_remedy[320];    // what needs the operator's attention, and what to do; "": nothing
    struct control_lock lock;              // who has the control of the run
    char me[128];                          // who this console is to the run; "": nobody
    struct diagnosis says;                 // what the controller says of the run
    int64_t step, max_steps;               // max_steps 0: unknown
    int64_t incarnation;
    int64_t checkpoint;                  // -1: none
    char undo[256];                      // what a revert would do; "": nothing
    double elapsed_s, step_s, left_s;    // NAN: unknown
    int64_t told_ns;                     // when the last status came; 0: never
    struct host_view *host;              // (MODEL_HOSTS) the agent's own host first; owned
    int n_host;
    struct device_view *device;    // (MODEL_DEVICES) in the order of their hosts; owned
    int n_device;
    int64_t n_node;    // other nodes there are; more than are known while the first answers come
    struct fleet_sweep sweep;
    int64_t n_left_out;                   // processes, hosts and devices that had no room here
    struct gauge buffer[MODEL_GAUGES];    // items: issued, returned, ...
    int n_buffer;
    struct level_view level;    // of its prompts
    struct eval_view eval[MODEL_EVALS];
    int n_eval;
    /* what happened */
    struct series metric[METRIC_N];
    struct extra_metric *extra;    // (MODEL_EXTRA); owned
    int n_extra;
    int64_t n_step;       // steps known: the last one, plus 1
    struct proc *proc;    // (MODEL_PROCS); owned
    int n_proc;
    struct rollout_view rollout[MODEL_ROLLOUTS];    // ring; newest at (n_rollout - 1) % MODEL_ROLLOUTS
    int64_t n_rollout;                              // in total
    struct event_view *event;                       // (MODEL_EVENTS) ring; owned
    int64_t n_event;                                // in total
    struct log_view *log;                           // (MODEL_LOG) ring; owned
    int64_t n_log;                                  // in total
    struct alarm_view *alarm;                       // (ALARM_RULES) those that hold first; owned
    int n_alarm;
    struct saved_view *saved;    // (MODEL_SAVED) newest first; owned
    int n_saved;
    int64_t before_change;                          // step of the newest checkpoint from before the last change of knobs; -1: none
    struct knob_value *knob;                        // (n_knobs); owned
    struct command_view command[MODEL_COMMANDS];    // ring
    int64_t n_command;                              // in total
};
struct run_view *view_new(struct error *err);
void fleet_model_free(struct run_view *m);
void view_changed(struct run_view *m);

/* The names on the wire; RUN_UNKNOWN and PROC_OK for others. */
enum proc_verdict proc_verdict_find(const char *name);
const char *proc_verdict_name(enum proc_verdict v);
/* What stands between a process's phase and its waits_for, which agents fill with what it waits for, or with a state such as "being restarted". */
const char *proc_waits_join(const struct proc *p);
/* A phase's letter in the lanes, the number of its colour role (0..7: ROLE_SERIES1 + n), and its help. */
struct phase_row {
    const char *phase;
    char letter;
    int series;
};
extern const struct phase_row phase_table[];
extern const int n_phases;
const struct phase_row *phase_find(const char *phase);    // unknown phases get the last row (other)

/* Set the values of one step; when it is not above the last one (a rollback), older values at or after it are forgotten. */
void view_step_begin(struct run_view *m, int64_t step);
/* Has every step arrived that the run is known to have made? */
bool view_steps_whole(const struct run_view *m);
/* Forget the steps from `step` on: the run went back to a checkpoint. */
void view_steps_cut(struct run_view *m, int64_t step);
/* The series of that metric, added if there is room; NULL: there is none. */
struct series *view_series(struct run_view *m, const char *name);
void view_metric(struct run_view *m, int64_t step, const char *name, double value);
/* The process of that name, added if there is room (NULL: none). The list stays sorted by kind and name. */
struct proc *view_proc(struct run_view *m, const char *name);
/* The run's processes are gone: forget them, and what they said of hosts and devices. */
void view_fleet_forget(struct run_view *m);
void view_procs_sweep(struct run_view *m);    // remove those that are not told, and forget which are
/* Call after a change of phase or verdict: extends the lane up to now. */
void view_lane(struct run_view *m, struct proc *p, int64_t now_ns);
/* What the operator is told about p: the agent's verdict, or SILENT when there has been no news of it for long. */
enum proc_verdict view_verdict(const struct run_view *m, const struct proc *p, int64_t now_ns);
/* The worst process (stuck before silent before slow) and its verdict; NULL: all are well. */
const struct proc *view_worst(const struct run_view *m, int64_t now_ns, enum proc_verdict *verdict);
double proc_gauge(const struct proc *p, const char *name);    // NAN: not told
/* A place at the end of the ring of rollout groups, for rollout_view_begin or rollout_view_read: it holds the oldest. */
struct rollout_view *view_rollout(struct run_view *m);
/* Where the groups of the run in run_dir are kept, as far as its settings are known; false: the path is too long. */
MUST_USE bool view_groups_path(const struct run_view *m, const char *run_dir, char *out, size_t size);
/* The rule by which this run makes advantages. */
enum advantage_form view_advantages(const struct run_view *m);
/* The i-th newest, 0 is the newest; NULL: there are fewer. */
const struct rollout_view *view_rollout_at(const struct run_view *m, int64_t i);
/* The first optimizer step that shows what an event has changed (change.h). */
int64_t view_change_step(const struct run_view *m, const struct event_view *e);
/* Add an event with an id above the last one's (others are already known and dropped). */
void view_event(struct run_view *m, const struct event_view *e);
/* As view_event, with the event's facts: JSON of any length, or "". An evaluation's facts are taken even from a known event. */
void view_event_facts(struct run_view *m, const struct event_view *e, const char *facts, size_t len);
const struct event_view *view_event_at(const struct run_view *m, int64_t i);          // i-th newest
void view_log(struct run_view *m, const char *proc, const char *line, size_t len);    // add one line of a process's log file
void view_log_copy(struct run_view *m, const struct log_view *l);                     // the same line of another model
void view_log_clear(struct run_view *m);
void view_rollouts_clear(struct run_view *m);
const struct log_view *view_log_at(const struct run_view *m, int64_t i);    // i-th newest
void view_knob(struct run_view *m, const char *name, const char *text, int64_t now_ns);
void view_eval(struct run_view *m, const char *set, int64_t step, int64_t n, double mean);
void view_link(struct run_view *m, enum link_state state, const char *text, int64_t now_ns);
struct command_view *view_command_sent(struct run_view *m, uint64_t tag, const char *text);
void view_command_answer(struct run_view *m, uint64_t tag, enum command_state state, const char *answer, int64_t now_ns);
