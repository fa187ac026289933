/* app.h - the console's state and its two pure ends: keys change it, drawing reads it
 *
 * No I/O, no clock (now is passed in), no ncurses. Commands to the run leave through `feed`, requests to the terminal through
 * `wish`. Each pane owns its own state (pane.h). Owned by the console's loop thread. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "console/fleet/archive.h"
#include "console/fleet/device_log.h"
#include "console/fleet/feed.h"
#include "console/fleet/run_view.h"
#include "console/fleet/since.h"
#include "console/tui/cells.h"
#include "console/tui/compare.h"
#include "console/tui/keys.h"
#include "console/tui/layout.h"
#include "console/tui/pane.h"
#include "console/tui/widget.h"

struct save_column;
#define HISTORY_MAX 50

enum wish {    // bits: what the loop has to do after a key
    WISH_QUIT = 1,
    WISH_REDRAW = 2,
    WISH_SUSPEND = 4,
    WISH_THEME = 8,
    WISH_MOUSE = 16,
    WISH_SAVE_SCREEN = 32,
    WISH_BELL = 64,
    WISH_SAVE_SERIES = 128,
    WISH_SINCE = 256,
};
enum prompt_kind {
    PROMPT_NONE,
    PROMPT_COMMAND,
    PROMPT_FILTER,
    PROMPT_KNOB,
};
struct prompt {
    enum prompt_kind kind;
    char text[INPUT_MAX];
    int len, at;    // bytes; at: the cursor
    int knob;       // PROMPT_KNOB: row of knobs[]
    int recall;     // lines back in the history; 0: the line being typed
};
#define DIALOG_CHOICES 4
struct dialog {    // asks for confirmation; title "" : none is open
    char title[96];
    char line[6][160];
    bool danger;
    int n_choice;
    struct {
        uint32_t key;
        char label[48];
        char command[INPUT_MAX];    // as typed after ':'; "" : only closes
    } choice[DIALOG_CHOICES];
};
struct whole {    // a text in full, over the pane
    char title[96];
    char text[6144];    // "": none is open
    int top;            // first row shown
};
struct app {
    struct run_view *model;        // borrowed
    struct feed *feed;             // borrowed; NULL: commands are refused (tests)
    struct archive *archive;       // borrowed; NULL: the run has no folder
    struct device_log *devices;    // borrowed; NULL as archive
    struct compare compare;        // another run in the charts
    int w, h;
    struct pane *pane[N_PANE];    // owned
    enum pane_id shown;
    enum chart_glyphs glyphs;
    bool color;    // false: lanes and bars use letters
    bool mouse;
    bool frozen, help;
    bool replay, playing;    // a run that is over is shown as it was earlier; it goes on by itself
    int64_t replay_end;      // the run's last step
    int help_top;
    char theme[64];    // wanted, with WISH_THEME
    char path[512];    // with WISH_SAVE_SCREEN and WISH_SAVE_SERIES
    unsigned wish;     // enum wish bits; the loop clears them
    struct prompt prompt;
    struct dialog dialog;
    struct whole whole;
    char history[HISTORY_MAX][INPUT_MAX];
    int n_history;
    char flash[320];    // the newest message
    enum role flash_role;
    int64_t flash_ns;         // when
    int64_t now_ns;           // of the newest key, news or tick
    struct last_look look;    // this person's last one before this console, with has_look
    bool has_look;
    int64_t heard;       // the newest event that was looked at; 0: none yet
    int64_t answered;    // commands whose answer has been shown
};

/* On failure (no memory) a holds nothing. */
MUST_USE bool app_init(struct app *a, struct run_view *m, struct feed *feed, int w, int h, struct error *err);
void app_release(struct app *a);
void app_resize(struct app *a, int w, int h);
void app_key(struct app *a, const struct key_event *k, int64_t now_ns);
/* A pasted text of size_bytes; text holds its beginning. A prompt takes its first line; elsewhere it is dropped, and the operator
 * is told: text that was meant for another window must not control a run. */
void app_paste(struct app *a, const char *text, int64_t size_bytes, int64_t now_ns);
/* Draw everything into c (already of the right size). now_ns is monotonic, wall_s since 1970. */
void app_draw(const struct app *a, struct cells *c, int64_t now_ns, double wall_s);
/* After news: keep selections valid and show answers to commands. */
void app_news(struct app *a, int64_t now_ns);
/* Once per second: a replay that plays goes on. */
void app_tick(struct app *a, int64_t now_ns);
void app_flash(struct app *a, enum role role, int64_t now_ns, const char *fmt, ...) PRINTF_LIKE(4, 5);

/* ---- actions.c: commands, of the console and of the run ---- */
bool app_looks_only(const struct app *a);                 // the run accepts no commands from this console
bool app_shows_the_past(const struct app *a);             // the run is over, or is shown as it was
void app_refuse_to_act(struct app *a, int64_t now_ns);    // say so
/* Execute a line as typed after ':'. */
void app_command(struct app *a, const char *line, int64_t now_ns);
void app_align(struct app *a, bool by_time, int64_t now_ns);    // the other run in the charts
/* Show a run that is over as it was after a step, or let that go on by itself from there. A live run shows the step in its charts. */
void app_seek(struct app *a, int64_t step, int64_t now_ns);
void app_play(struct app *a, int64_t now_ns);

/* ---- questions.c: dialogs ---- */
/* Ask before a command: yes sends `command`. */
void app_confirm(struct app *a, bool danger, const char *title, const char *line1, const char *line2, const char *command);
void app_confirm_text(struct app *a, bool danger, const char *title, const char *text, const char *command);    // text: wrapped
void pause_ask(struct app *a);
void stop_ask(struct app *a);
void revert_ask(struct app *a, int64_t now_ns);
/* Ask before going back to a checkpoint, saying what that undoes. */
void rollback_ask(struct app *a, const struct saved_view *to);
/* As rollback_ask, for a command's argument: a step, or "change". False: it is not among the checkpoints that are known. */
bool rollback_ask_to(struct app *a, const char *to);
void doctor_show(struct app *a, int64_t now_ns);    // what bounds or breaks the run, and the remedy
/* Answer the open dialog; true: the key was taken. */
bool dialog_key(struct app *a, uint32_t key, int64_t now_ns);

/* Show a metric's chart in full, if it has values; closing it goes back to the overview. */
void metrics_open(struct app *a, enum metric_id metric);
/* Put the cursor of the metrics' chart on a step, in view; INT64_MAX: let it follow the run. */
void metrics_go(struct app *a, int64_t step);
/* What an export from here holds: the chart's metrics and steps when the metrics are shown, else all; at most max. */
int metrics_chosen(const struct app *a, struct save_column *column, int max, int64_t *from, int64_t *to);

/* Before the archive is pumped: what the panes want from it. */
void app_archive_wants(const struct app *a);
void rollouts_want(const struct app *a);    // of the rollouts pane
int64_t data_wants(const struct app *a);    // of the data pane: an item to read
/* Ask before a prompt goes into quarantine. on_line: of the data's file; -1: it is not known, which is said. prompt: its text, or "". */
void quarantine_ask(struct app *a, int64_t on_line, const char *prompt, int64_t now_ns);

/* A command of the console itself; all others are sent to the run. */
struct local_command {
    const char *name, *args, *help;
    bool (*run)(struct app *a, const char *rest, int64_t now_ns);    // false: wrong use
};
extern const struct local_command local_commands[];
extern const int n_local_commands;

/* for panes */
static inline struct pane *app_pane(const struct app *a)    // the one that is shown
{
    return a->pane[a->shown];
}
/* Show another pane; anything that the previous one had opened is closed. */
void app_show(struct app *a, enum pane_id id);
const char *pane_name(enum pane_id id);
struct rect app_body(const struct app *a);
enum role verdict_role(enum proc_verdict v);
enum role level_role(enum line_level l);
enum role reward_role(double reward);    // NAN: unscored
/* frame.c */
struct state_row {    // the word on the screen for a run's state
    uint32_t sign;
    const char *word;
    enum role role;
};
const struct state_row *run_state_row(enum run_state state);
void frame_draw(const struct app *a, struct cells *c, const struct layout *l, int64_t now_ns, double wall_s);
/* The line below the pane: the newest message of the run, or of the console while it is new. */
enum role message_line(const struct app *a, int64_t now_ns, char *out, size_t size);
#define MESSAGE_MAX 1400
/* Columns of pane i's tab, including the gap after it; 0: it is not shown. */
int tab_width(const struct app *a, int i, int64_t now_ns);
void dialog_draw(const struct app *a, struct cells *c);
/* help.c */
void help_draw(const struct app *a, struct cells *c);
int help_rows(const struct app *a);    // of the page, at the present width
/* Show what has happened since the last look, when anything has; returns whether it did. */
bool since_show(struct app *a, double now_s);
/* whole.c: show a text in full; its keys, true when req was taken */
void whole_open(struct app *a, const char *title, const char *text);
bool whole_key(struct app *a, enum request req);
void whole_draw(const struct app *a, struct cells *c);
/* palette.c */
struct candidate {    // a word that may be typed next
    char word[64];    // "": this one may not
    const char *args, *help;
};
/* The i-th candidate after a verb ("": for the verb itself); false: there are no more. */
bool palette_candidate(const struct app *a, const char *verb, int i, struct candidate *out);
/* The verb before the word at the cursor, and that word as far as it is typed; it begins at byte *from. */
void palette_split(const struct prompt *p, char verb[32], char prefix[INPUT_MAX], int *from);
void palette_draw(const struct app *a, struct cells *c, struct rect body);
/* prompt.c: true when the key was taken */
bool prompt_key(struct app *a, uint32_t key, int64_t now_ns);
void prompt_paste(struct app *a, const char *text, int64_t size_bytes, int64_t now_ns);
void prompt_open(struct app *a, enum prompt_kind kind, const char *text);
