/* command.h - an operator's commands to a run: as typed for ctl and the console's prompt, and as sent on the wire
 *
 * One parser, driven by the table of commands (protocol/wire/message.h). Pure; any thread. */
#pragma once
#include <stdbool.h>
#include "protocol/base/error.h"

struct knob;
struct msg_out;
#define COMMAND_ARGS 72
struct command {
    char name[24];
    struct {
        char key[48], value[192];
    } arg[COMMAND_ARGS];    // pause: depth; set: one per knob; restart: process; dismiss: node; quarantine: line
    int n_arg;
};
/* Parse a command's name and the n words after it into c; names, counts and forms are checked, but not a setting's name and value:
 * the run checks those. ERR_USAGE says what is wrong. */
MUST_USE bool command_words_parse(struct command *c, const char *name, const char *const *word, int n, struct error *err);
/* Add an argument that has a name of its own, besides those that the words have given. */
MUST_USE bool command_arg_add(struct command *c, const char *key, const char *value, struct error *err);
/* Fill c from a whole line ("pause step", "set learning_rate=1e-4 temperature=0.9"), as typed at the console's prompt. Settings
 * are checked too: they may change and are within their bounds. c gets their full names. */
MUST_USE bool command_parse(struct command *c, const char *text, struct error *err);
#define COMMAND_JUMP 4    // a number changed by more than this factor needs confirmation
/* What to ask an operator before the command is sent, as a sentence without its question mark: the command stops, restarts or
 * quarantines something, or changes a number to 0 or by more than COMMAND_JUMP times. now gives a setting's current text, NULL when
 * it is not known. false: nothing to ask; why is "". */
bool command_asks(const struct command *c, const char *(*now)(void *arg, const struct knob *k), void *arg, char *why, size_t size);
/* Add the map "args" of MSG_COMMAND to an open message. */
void command_args_write(const struct command *c, struct msg_out *m);
