/* journal_wal.h - the sizes of a journal's files, and who reads it, from outside: no byte of them is read. Any thread. */
#pragma once
#include <stdint.h>

/* The sizes of the journal's files, and which process keeps the log from being folded at this moment because it is in the middle of
 * a read (only a moment, for readers that use this module). The reader of an earlier look is found again while it still reads
 * (last_pid; 0: none), so two looks with the same answer mean a reader that stays. The run's controller is skipped, since its reads
 * block nobody. The files themselves are not read; a missing file has 0 bytes. */
struct journal_wal {
    int64_t db_bytes, wal_bytes;
    int reader_pid;      // 0: none found
    char reader[256];    // "process 123 (sqlite3 journal.db)"
};
void journal_wal_look(const char *run_dir, int last_pid, struct journal_wal *out);
