/* knob_type.h - the types of settings: one row per type, used everywhere a value is read, printed, checked or sent
 *
 * Run files, flags, commands, the journal, the answer to status and the exporters all use the same text for a value; knobs.h has
 * the functions that most callers need. Read-only data: any thread. */
#pragma once
#include <stdbool.h>
#include "protocol/base/buf.h"
#include "protocol/base/error.h"

struct knob;
struct msg_out;
enum knob_type {
    KNOB_BOOL,
    KNOB_I64,
    KNOB_F64,
    KNOB_TEXT,
    KNOB_PATH,
    KNOB_RANGE,
    KNOB_JSON,      // evaluation sets
    KNOB_OBJECT,    // any JSON object of texts and truth values; a "..._file" is a path
    KNOB_TYPE_N,
};
struct knob_type_row {
    /* Read text into at (k->size bytes), which stays as it was on failure. ERR_USAGE names the setting, the text and the bounds.
     * A relative path is taken relative to base_dir; NULL: the working directory. */
    bool (*read)(const struct knob *k, void *at, const char *text, const char *base_dir, struct error *err);
    void (*print)(const void *at, struct buf *out);                           // the text that read takes
    void (*bounds)(const struct knob *k, struct buf *out);                    // "0 to 1", "true or false", ...
    void (*send)(const struct knob *k, const void *at, struct msg_out *m);    // as a field of an open map
    bool json_bare;                                                           // its text is already JSON; otherwise it is quoted
    bool yaml_bare;                                                           // the same in a run file
    bool yaml_nested;                                                         // a run file may hold it as a list or a mapping
};
extern const struct knob_type_row knob_types[KNOB_TYPE_N];
