/* events.h - what happens to the run, for the journal and for listeners */
#pragma once
#include <jansson.h>

struct controller;
struct msg_out;
/* text is for people, detail (JSON or "") for programs, by kind as in protocol/wire/README.md. */
void event_add(struct controller *c, const char *kind, const char *who, const char *text, const char *detail);
/* As event_add, with facts, an object that it takes. NULL: there are none, or there was no memory for them. */
void event_add_facts(struct controller *c, const char *kind, const char *who, const char *text, json_t *facts);
/* To listeners alone; it may be lost. */
void publish(struct controller *c, const char *topic, void (*body)(struct controller *c, struct msg_out *m));
