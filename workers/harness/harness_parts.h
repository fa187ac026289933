/* harness_parts.h - a harness and its sessions, for the files of this folder that play them
 *
 * The harness's thread owns the sessions and runs all functions here. */
#pragma once
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <jansson.h>
#include "workers/harness/door.h"
#include "workers/harness/harness.h"
#include "workers/harness/player.h"
#include "workers/harness/record.h"

enum session_state {
    SESSION_WAITS,
    SESSION_RUNS,
    SESSION_RECORDED,
    SESSION_OVER,
};
struct session {
    struct session *next;    // oldest first
    enum session_state state;
    char *from;    // as in struct turn; owned, as the next
    char *row;
    int64_t serial, sample, item, seed;
    char key[DOOR_KEY_MAX];
    char **reply;    // (n_reply) texts, owned
    int64_t n_reply, n_served;
    json_t *request;           // the n_reply requests that they answer, {"path", "body", "ask"}; null where none is known yet
    struct turn_job *asked;    // the turn that waits for an answer; NULL: the worker draws, or has not asked
    int64_t asked_ms;
    bool fresh;                           // the worker is to start over, and has not done so
    char flight_ask[65];                  // the request that the worker draws for, by its hash; "": none
    struct door_request *flight;          // the same; NULL: none, or its program has gone
    struct door_request *first, *last;    // requests that wait
    int n_queue;
    struct player player;
    int n_restart, n_fresh, n_refused;
    int64_t used_ms, thinks_ms;    // the program's own time so far; since when it is its turn, 0: it is not
    int64_t end_ms;                // when a program that is not wanted any more is killed; 0: it is wanted
    json_t *record;                // RECORDED
    /* how it ended */
    enum score_state score;
    char reason[48];
    bool has_reward, has_acc;
    double reward, acc;
};
struct harness {
    struct harness_config config;
    struct door *door;
    struct records *records;    // NULL: nothing is kept
    pthread_t thread;
    bool has_thread;
    int wake;    // eventfd: there is news for the thread
    atomic_bool closing;
    struct session *session;    // the thread's own, as the next two
    int64_t n_session, n_running;
    struct pollfd *fds;      // (2 max_sessions + 1) owned
    struct session **at;     // (2 max_sessions + 1) whose they are; owned
    pthread_mutex_t lock;    // guards: all below
    struct turn_job *in_first, *in_last, *done_first, *done_last;
    int64_t n_in;
    struct harness_stats stats;
};

/* ---- sessions.c ---- */
/* Answer a turn without an answer of the program: it is left out because of why. */
void job_fail(struct harness *h, struct turn_job *job, enum score_state score, const char *why);
/* Answer a turn with `later`: the worker asks again. */
void job_later(struct harness *h, struct turn_job *job);
/* The turn that waits for an answer, which the caller gives. */
struct turn_job *asked_pop(struct session *s);
/* Answer the session's turn with this object, which is taken; NULL: no memory. */
void session_tell(struct harness *h, struct session *s, json_t *o);
/* Answer the session's turn with how it ended. */
void end_tell(struct harness *h, struct session *s);
/* Refuse what waits and what is in flight, because of why. */
void requests_refuse(struct session *s, const char *why);
/* The program that runs is not needed any more: it is ended, and its requests are refused. */
void program_end(struct harness *h, struct session *s);
/* Forget the session's replies and the requests that they answer. */
void replies_clear(struct session *s);
/* Append a reply, whose request is not known yet. False: no memory. */
bool reply_add(struct session *s, const char *text);
/* Free a session that is not in the list and has no program. */
void session_release(struct session *s);
/* Take a session off the list and free it; its program is ended, and its turn is answered as failed. */
void session_drop(struct harness *h, struct session *s);
/* The object that a reply's text is. NULL: it is none. */
json_t *reply_read(const char *text);
/* Are the session's replies from the given one on those that the record's requests got? */
bool record_fits(const json_t *record, const struct session *s, int64_t from);
/* The session's record, when it is of the same row and seed. */
json_t *record_find(const struct harness *h, const struct session *s);
/* Put what the record says of the session's end into it. */
void record_end(const json_t *record, struct session *s);
/* Take the end that is on the disk, when another session of the same sample has ended meanwhile with the same replies. That is so when a
 * controller was killed and gives items again that are still inside a worker. The reward on the disk is the one that was acknowledged. */
bool record_take(const struct harness *h, struct session *s);
/* A session that has ended well goes to the disk. True also where it cannot be kept because some of its requests are not known. */
MUST_USE bool record_write(struct harness *h, const struct session *s, struct error *err);
/* The session is over: it has the reward that was put into it, or, with another score, none because of why. */
void session_over(struct harness *h, struct session *s, enum score_state score, const char *why);
/* Start over: the program asked otherwise than in its former life. */
void session_start_over(struct harness *h, struct session *s);

/* ---- programs.c ---- */
/* Give a reply to the program. */
void reply_send(struct door_request *q, const char *text);
/* Refuse a request of the program. After REFUSED_MAX of them the session is left out. */
void asked_refuse(struct harness *h, struct session *s, struct door_request *q, int status, const char *code, const char *why);
/* Whose time runs. */
void clock_mind(struct session *s);
/* Go on with a session as far as that goes now. */
void session_go(struct harness *h, struct session *s);
/* Start the program of a session that waits. */
void program_begin(struct harness *h, struct session *s);
/* The program has ended by itself. */
void program_ended(struct harness *h, struct session *s);
