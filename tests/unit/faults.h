/* faults.h - makes the n-th call of the system or the allocator fail, or end the process, in code that a test links
 *
 * The linker sends our libraries' calls here (--wrap, tests.cmake: tests named *_faults_test); SQLite, which is a shared
 * library, is reached by its own allocator hooks and a VFS in front of its own (faults_sqlite). Counted are calls of the kinds
 * asked for, in any thread between faults_begin and faults_end. */
#pragma once
#include <stdatomic.h>
#include <stdbool.h>

enum fault_kind {
    FAULT_FILE = 1,
    FAULT_MEMORY = 2,
};
enum fault_mode {
    FAULT_ONCE,         // only the n-th call fails
    FAULT_FROM_THEN,    // it and all later ones that need room: a full disk, or no memory
    FAULT_DEATH,        // the process ends there, as by kill -9
};
#define FAULT_EXIT 77    // its status

/* Let the n-th (1, 2, ...) call of these kinds fail. */
void faults_begin(int kinds, enum fault_mode mode, int n);
/* Count no more. True: there was an n-th call; its name is in *what. */
bool faults_end(const char **what);
/* Put the shims into SQLite; once, before it is used. jansson allocates through protocol/base/json_text.c. */
void faults_install(void);
