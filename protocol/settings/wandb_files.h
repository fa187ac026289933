/* wandb_files.h - the settings files of wandb's own client, as far as they are used here
 *
 * $WANDB_CONFIG_DIR/settings (else ~/.config/wandb/settings) is the user's file, ./wandb/settings the project's; the project's
 * wins. INI as in Python's configparser: [section], KEY = VALUE or KEY: VALUE, lines of # or ; are comments; only [default] is
 * read. A value is one line. Plain values; any thread. */
#pragma once
#include "protocol/base/buf.h"
#include "protocol/base/error.h"

#define WANDB_SETTINGS_MAX ((size_t)64 << 10)    // bytes of one file

struct wandb_files {
    struct buf user, project;    // the texts; empty: there is no such file
};
/* Read both files; ERR_DATA or the read error, with file and line, when one is not a settings file. Then f holds nothing. */
MUST_USE bool wandb_files_read(struct wandb_files *f, struct error *err);
void wandb_files_release(struct wandb_files *f);
/* The value of a key of [default], cut to size; false: neither file has it, or it is empty. */
bool wandb_files_value(const struct wandb_files *f, const char *key, char *out, size_t size);
/* Is text a settings file? path: for the message. */
MUST_USE bool wandb_settings_check(const char *text, const char *path, struct error *err);
/* The last value of a key of [default] in the text of a settings file. */
bool wandb_settings_value(const char *text, const char *key, char *out, size_t size);
