/* keys.h - one table from key to request: dispatch, footer and the ? page are made from it
 *
 * The console's own key codes: a code point, or one of enum key for keys that have none. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum key {
    KEY_NONE_ = 0x110000,
    KEY_ARROW_UP,
    KEY_ARROW_DOWN,
    KEY_ARROW_LEFT,
    KEY_ARROW_RIGHT,
    KEY_PAGE_UP,
    KEY_PAGE_DOWN,
    KEY_TO_HOME,
    KEY_TO_END,
    KEY_DEL,
    KEY_ERASE,
    KEY_SHIFT_TAB,
    KEY_F1_,
    KEY_CLICK,
    KEY_WHEEL_UP,
    KEY_WHEEL_DOWN,
    KEY_PASTE,
};
#define KEY_CTRL(c) ((c)&0x1f)
#define KEY_ESCAPE 0x1b
#define KEY_RETURN '\r'
#define KEY_TABULATOR '\t'

struct key_event {
    uint32_t key;    // code point or enum key
    int x, y;        // KEY_CLICK and wheel: the cell; KEY_PASTE, x: bytes that were pasted
};
/* Every pane, in the order of Tab: its id, its type (pane_TYPE in pane_TYPE.c), its key, the key as shown to people, and its line on the
 * ? page. The enum, the requests, the key rows and the console's list of types are made from it. */
// clang-format off
#define PANES(row)                                                                                \
    row(OVERVIEW,     overview,     '1', "1", "overview: state, charts, processes, alarms")       \
    row(WORKERS,      workers,      '2', "2", "workers: what each does, and what it waits for")   \
    row(ROLLOUTS,     rollouts,     '3', "3", "rollouts: prompts, completions, rewards")          \
    row(KNOBS,        knobs,        '4', "4", "knobs: see and change settings")                   \
    row(LOG,          log,          '5', "5", "log of every process")                             \
    row(EVENTS,       events,       '6', "6", "events: what happened and who did it")             \
    row(SAVED,        saved,        '7', "7", "checkpoints: what is kept, and going back")        \
    row(ALARMS,       alarms,       '8', "8", "alarms: what the run is watched for")              \
    row(METRICS,      metrics,      '9', "9", "metrics: all of them, and charts with several")    \
    row(DATA,         data,         'D', "D", "data: prompts by pass rate")                       \
    row(DEVICES,      devices,      'V', "V", "devices: hosts and GPUs since the run began")      \
    row(ENVIRONMENTS, environments, 'O', "O", "environments: what feeds the run from outside")
// clang-format on
#define PANE_ID(id, type, key, keys, help) PANE_##id,
#define PANE_REQUEST(id, type, key, keys, help) REQ_PANE_##id,
enum pane_id { PANES(PANE_ID) N_PANE };
#define ON(pane) (1u << (pane))
#define ON_ALL ((1u << N_PANE) - 1)

enum request {
    REQ_NONE,
    REQ_HELP,
    REQ_QUIT,
    REQ_BACK,
    REQ_PROMPT,
    REQ_FILTER,
    REQ_MATCH_NEXT,
    REQ_MATCH_PREV,
    PANES(PANE_REQUEST)    // in the order of enum pane_id
    REQ_PANE_NEXT,
    REQ_PANE_PREV,
    REQ_UP,
    REQ_DOWN,
    REQ_LEFT,
    REQ_RIGHT,
    REQ_PAGE_UP,
    REQ_PAGE_DOWN,
    REQ_TOP,
    REQ_BOTTOM,
    REQ_ENTER,
    /* these change the run; the others only change the view: */
    REQ_PAUSE,
    REQ_RESUME,
    REQ_CHECKPOINT,
    REQ_EVAL,
    REQ_STOP,
    REQ_EDIT,
    REQ_REVERT,
    REQ_RESTART,
    REQ_ROLLBACK,
    REQ_REWIND,
    REQ_PIN,
    REQ_ACK,
    REQ_MUTE,
    REQ_DROP,
    REQ_RESCORE,
    REQ_QUARANTINE,
    /* ... up to here */
    REQ_ZOOM_IN,
    REQ_ZOOM_OUT,
    REQ_ZOOM_RESET,
    REQ_PAN_BACK,
    REQ_PAN_ON,
    REQ_LOG,
    REQ_SMOOTH,
    REQ_OVERLAY,
    REQ_TOKENS,
    REQ_BESIDE,
    REQ_CLASS,
    REQ_ALL_KNOBS,
    REQ_FOLLOW,
    REQ_FLEET,
    REQ_SORT,
    REQ_VALUE,
    REQ_LEVEL,
    REQ_FREEZE,
    REQ_ALIGN,
    REQ_SEEK_BACK,
    REQ_SEEK_ON,
    REQ_LEAP_BACK,
    REQ_LEAP_ON,
    REQ_PLAY,
    REQ_DOCTOR,
    REQ_INFO,
    REQ_MOUSE,
    REQ_THEME,
    REQ_REDRAW,
    REQ_SUSPEND,
    REQ_INTERRUPT,
};
struct key_row {
    enum request request;
    uint32_t key[3];      // any of them; 0: none
    unsigned panes;       // ON(...)s where it works
    const char *keys;     // as shown to people
    const char *label;    // in the footer; NULL: not there
    int rank;             // order in the footer, smallest first; cut from the end when there is no room
    const char *group;    // heading on the ? page
    const char *help;     // on the ? page
};
extern const struct key_row key_table[];
extern const int n_key_rows;
char pane_key(enum pane_id id);       // the one that shows it
bool request_acts(enum request r);    // does it change the run?
/* What a key means on a pane. */
enum request key_request(uint32_t key, enum pane_id pane);
