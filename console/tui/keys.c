/* keys.c - see keys.h */
#include "console/tui/keys.h"
#include "protocol/base/macros.h"

#define CURVES (ON(PANE_METRICS) | ON(PANE_DEVICES))    // panes with charts that can be scaled and smoothed
#define CHARTS (ON(PANE_OVERVIEW) | CURVES)

#define PANE_ROW(id, type, key, keys, help) { REQ_PANE_##id, { key }, ON_ALL, keys, NULL, 0, "everywhere", help },

// clang-format off
const struct key_row key_table[] = {
    { REQ_HELP,       { '?', KEY_F1_ },                     ON_ALL, "? F1", "help", 90, "everywhere", "this page" },
    { REQ_PROMPT,     { ':' },                              ON_ALL, ":", "command", 60, "everywhere", "type a command; Tab completes, Up recalls" },
    { REQ_BACK,       { KEY_ESCAPE },                       ON_ALL, "Esc", NULL, 0, "everywhere", "one step back: close, clear, leave" },
    { REQ_QUIT,       { 'q' },                              ON_ALL, "q", "quit", 95, "everywhere", "close this console; training continues" },
    { REQ_INTERRUPT,  { KEY_CTRL('c') },                    ON_ALL, "Ctrl-C", NULL, 0, "everywhere", "cancel what is open, else offer to quit; never affects training" },
    { REQ_PANE_NEXT,  { KEY_TABULATOR },                    ON_ALL, "Tab", NULL, 0, "everywhere", "next pane" },
    { REQ_PANE_PREV,  { KEY_SHIFT_TAB },                    ON_ALL, "Shift-Tab", NULL, 0, "everywhere", "pane before" },
    PANES(PANE_ROW)
    { REQ_DOCTOR,     { 'd' },                              ON_ALL, "d", NULL, 0, "everywhere", "what bounds or breaks the run, in full, and the setting to look at" },
    { REQ_INFO,       { 'i' },                              ON_ALL & ~ON(PANE_KNOBS), "i", NULL, 0, "everywhere", "the newest message, in full" },
    { REQ_FREEZE,     { ' ' },                              ON_ALL, "Space", NULL, 0, "everywhere", "freeze the screen; training continues" },
    { REQ_SEEK_BACK,  { ',' },                              ON_ALL, ",", NULL, 0, "a run that is over", "show it as it was a step earlier" },
    { REQ_SEEK_ON,    { '.' },                              ON_ALL, ".", NULL, 0, "a run that is over", "a step later" },
    { REQ_LEAP_BACK,  { '<' },                              ON_ALL, "<", NULL, 0, "a run that is over", "a twentieth of the run earlier" },
    { REQ_LEAP_ON,    { '>' },                              ON_ALL, ">", NULL, 0, "a run that is over", "a twentieth of the run later" },
    { REQ_PLAY,       { 'R' },                              ON_ALL, "R", NULL, 0, "a run that is over", "play it in a minute, or hold" },
    { REQ_MOUSE,      { 'm' },                              ON_ALL, "m", NULL, 0, "everywhere", "mouse on or off (off: the terminal selects text)" },
    { REQ_THEME,      { 'T' },                              ON_ALL, "T", NULL, 0, "everywhere", "dark or light theme" },
    { REQ_REDRAW,     { KEY_CTRL('l') },                    ON_ALL, "Ctrl-L", NULL, 0, "everywhere", "redraw the screen" },
    { REQ_SUSPEND,    { KEY_CTRL('z') },                    ON_ALL, "Ctrl-Z", NULL, 0, "everywhere", "back to the shell; fg returns" },
    { REQ_PAUSE,      { 'p' },                              ON_ALL, "p", "pause", 20, "the run", "pause; choose how deep" },
    { REQ_RESUME,     { 'r' },                              ON_ALL, "r", "resume", 21, "the run", "continue after a pause" },
    { REQ_CHECKPOINT, { 'c' },                              ON_ALL, "c", "checkpoint", 30, "the run", "save at the end of this optimizer step" },
    { REQ_EVAL,       { 'E' },                              ON_ALL, "E", NULL, 0, "the run", "evaluate at the end of this optimizer step" },
    { REQ_STOP,       { 'S' },                              ON_ALL, "S", "stop", 40, "the run", "finish the step, save, end the run (asks first)" },
    { REQ_REVERT,     { 'u' },                              ON_ALL, "u", NULL, 0, "the run", "take back the last change of knobs, then the one before (asks first)" },
    { REQ_REWIND,     { 'U' },                              ON_ALL, "U", NULL, 0, "the run", "go back to before the last change of knobs (asks first)" },
    { REQ_ACK,        { 'A' },                              ON_ALL, "A", NULL, 0, "the run", "acknowledge all alarms that fire; on the alarms, the selected one" },
    { REQ_UP,         { KEY_ARROW_UP, 'k' },                ON_ALL, "Up k", NULL, 0, "moving", "up" },
    { REQ_DOWN,       { KEY_ARROW_DOWN, 'j' },              ON_ALL, "Down j", NULL, 0, "moving", "down" },
    { REQ_LEFT,       { KEY_ARROW_LEFT, 'h' },              ON_ALL, "Left h", NULL, 0, "moving", "left; in a chart: earlier" },
    { REQ_RIGHT,      { KEY_ARROW_RIGHT, 'l' },             ON_ALL, "Right l", NULL, 0, "moving", "right; in a chart: later" },
    { REQ_PAGE_UP,    { KEY_PAGE_UP, KEY_CTRL('b') },       ON_ALL, "PgUp", NULL, 0, "moving", "a page up; rollouts: scroll the text" },
    { REQ_PAGE_DOWN,  { KEY_PAGE_DOWN, KEY_CTRL('f') },     ON_ALL, "PgDn", NULL, 0, "moving", "a page down; rollouts: scroll the text" },
    { REQ_TOP,        { 'g', KEY_TO_HOME },                 ON_ALL, "g Home", NULL, 0, "moving", "first" },
    { REQ_BOTTOM,     { 'G', KEY_TO_END },                  ON_ALL, "G End", NULL, 0, "moving", "last" },
    { REQ_EDIT,       { KEY_RETURN, '\n', 'e' },            ON(PANE_KNOBS), "Enter", "change", 1, "panes", "knobs: change the value" },
    { REQ_ENTER,      { KEY_RETURN, '\n' },                 ON(PANE_ROLLOUTS) | ON(PANE_DATA) | CHARTS | ON(PANE_WORKERS), "Enter", "open", 5, "panes", "charts and rollouts: in full; data: the prompt's groups; fleet: the node's processes" },
    { REQ_ENTER,      { KEY_RETURN, '\n' },                 ON(PANE_LOG) | ON(PANE_EVENTS) | ON(PANE_SAVED) | ON(PANE_ALARMS) | ON(PANE_ENVIRONMENTS), "Enter", "in full", 5, "panes", "log, events, checkpoints, alarms, environments: the whole of a line that is cut" },
    { REQ_ZOOM_IN,    { '+', '=' },                         CHARTS, "+ -", "zoom", 10, "panes", "charts: fewer steps" },
    { REQ_ZOOM_OUT,   { '-' },                              CHARTS, "-", NULL, 0, "panes", "charts: more steps" },
    { REQ_ZOOM_RESET, { '0' },                              CHARTS, "0", NULL, 0, "panes", "charts: the whole run, live" },
    { REQ_PAN_BACK,   { '[' },                              CURVES, "[ ]", "pan", 16, "panes", "charts: half a chart earlier" },
    { REQ_PAN_ON,     { ']' },                              CURVES, "]", NULL, 0, "panes", "charts: half a chart later" },
    { REQ_OVERLAY,    { 'o' },                              ON(PANE_METRICS), "o", "mark", 6, "panes", "metrics: keep this one in the chart while others are chosen, or no longer" },
    { REQ_LOG,        { 'y' },                              CURVES, "y", "log", 14, "panes", "charts: logarithmic or linear scale" },
    { REQ_SMOOTH,     { 's' },                              CURVES, "s", "smooth", 15, "panes", "charts: mean of 1, 10, 50 or 250 steps; then again of as many as suit the range" },
    { REQ_ALIGN,      { 'w' },                              CHARTS, "w", NULL, 0, "panes", "charts: show the other run (--with) by its steps, or by time" },
    { REQ_INFO,       { 'i' },                              ON(PANE_KNOBS), "i", "in full", 3, "panes", "knobs: all of a setting: value, bounds, meaning, when a change takes effect" },
    { REQ_ALL_KNOBS,  { 'a' },                              ON(PANE_KNOBS), "a", "all", 2, "panes", "knobs: those that can change now, or all settings" },
    { REQ_FILTER,     { '/' },                              ON_ALL, "/", "filter", 12, "everywhere", "show only what contains this text (!text: what does not, ^text: begins with it)" },
    { REQ_MATCH_NEXT, { 'n' },                              ON(PANE_ROLLOUTS), "n N", "sample", 13, "panes", "rollouts: next sample of the group" },
    { REQ_MATCH_PREV, { 'N' },                              ON(PANE_ROLLOUTS), "N", NULL, 0, "panes", "rollouts: previous sample of the group" },
    { REQ_MATCH_NEXT, { 'n' },                              ON(PANE_METRICS), "n N", "change", 13, "panes", "metrics: the next change of a knob, and the metric around it" },
    { REQ_MATCH_PREV, { 'N' },                              ON(PANE_METRICS), "N", NULL, 0, "panes", "metrics: the change before" },
    { REQ_TOKENS,     { 't' },                              ON(PANE_ROLLOUTS), "t", "tokens", 14, "panes", "rollouts: tokens by log-prob, by entropy (rollout_entropy), then by the weights that drew them" },
    { REQ_BESIDE,     { 'v' },                              ON(PANE_ROLLOUTS), "v", "side by side", 15, "panes", "rollouts: the group's samples side by side" },
    { REQ_CLASS,      { 'v' },                              ON(PANE_DATA), "v", "class", 6, "panes", "data: all, never, sometimes, always solved, filtered, quarantined" },
    { REQ_FOLLOW,     { 'f' },                              ON(PANE_LOG) | ON(PANE_ROLLOUTS), "f", "follow", 11, "panes", "log and rollouts: stay at the newest" },
    { REQ_LEVEL,      { 'L' },                              ON(PANE_LOG), "L", "level", 14, "panes", "log: all, info, warnings, errors" },
    { REQ_FLEET,      { 'f' },                              ON(PANE_WORKERS), "f", "fleet", 11, "panes", "workers: all nodes at a glance, or the processes" },
    { REQ_SORT,       { 's' },                              ON(PANE_WORKERS), "s", NULL, 0, "panes", "fleet: worst, idle, hottest or fullest node first, or by name" },
    { REQ_VALUE,      { 'v' },                              ON(PANE_WORKERS), "v", NULL, 0, "panes", "fleet: show use, memory, heat or power" },
    { REQ_RESTART,    { 'K' },                              ON(PANE_WORKERS), "K", "restart", 15, "panes", "workers: kill the process; its parent restarts it (asks first)" },
    { REQ_ROLLBACK,   { 'b' },                              ON(PANE_SAVED), "b", "go back", 15, "panes", "checkpoints: go back to this one (asks first)" },
    { REQ_PIN,        { 'P' },                              ON(PANE_SAVED), "P", "pin", 16, "panes", "checkpoints: keep this one, or no longer" },
    { REQ_MUTE,       { 'M' },                              ON(PANE_ALARMS), "M", "mute", 16, "panes", "alarms: do not look at this one, or look again" },
    { REQ_DROP,       { 'X' },                              ON(PANE_ROLLOUTS), "X", "drop", 18, "panes", "rollouts: leave this group out of the loss, or sample it no further (asks first)" },
    { REQ_RESCORE,    { 's' },                              ON(PANE_ROLLOUTS), "s", "score again", 19, "panes", "rollouts: score this group again, by the reward as it is now (asks first)" },
    { REQ_QUARANTINE, { 'x' },                              ON(PANE_ROLLOUTS) | ON(PANE_DATA), "x", "quarantine", 17, "panes", "rollouts and data: stop issuing this prompt (asks first)" },
};
// clang-format on
const int n_key_rows = ARRAY_SIZE(key_table);

char pane_key(enum pane_id id)
{
#define PANE_KEY(id, type, key, keys, help) [PANE_##id] = key,
    static const char of[N_PANE] = { PANES(PANE_KEY) };
    return of[id];
}

bool request_acts(enum request r)
{
    return r >= REQ_PAUSE && r <= REQ_QUARANTINE;
}

enum request key_request(uint32_t key, enum pane_id pane)
{
    for (int i = 0; i < n_key_rows; i++)
        for (size_t k = 0; k < ARRAY_SIZE(key_table[i].key); k++)
            if (key_table[i].key[k] == key && key != 0 && (key_table[i].panes & ON(pane)))
                return key_table[i].request;
    return REQ_NONE;
}
