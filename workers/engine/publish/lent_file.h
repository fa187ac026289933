/* lent_file.h - the file that says where a trainer's weights are in memory: Atropos' vllm_bridge_config.json
 *
 * Readers of Atropos' example trainer open it: "ipc_handles" has, by tensor, what torch's UntypedStorage._new_shared_cuda takes, with names and
 * shapes of the checkpoint. All tensors are in one storage, whose handle is the same. On a CPU the handle is the path of a file to map,
 * and "device" is cpu. What rollcall's own servers need besides is in "rollcall". Any thread. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <jansson.h>
#include "kernels/ops.h"
#include "protocol/base/error.h"

struct model;
struct lent_file {
    char model[4096], tokenizer[4096], board[4096];    // absolute paths: directories, and the board's file (board.h)
    char device[32];                                   // the trainer's: "cpu:0", "cuda:1"
    enum dtype dtype;
    int sum_parts;          // as in model_parts_set
    int64_t max_seq_tok;    // the trainer's longest sequence
    struct mem_handle handle;
    json_t *root;    // owned; of lent_file_read
};
/* Write the file for m's weights; f has all but root. */
MUST_USE bool lent_file_write(const struct lent_file *f, const struct model *m, const char *path, struct error *err);
/* Read a file that rollcall wrote. ERR_NOT_FOUND: there is none. On failure f holds nothing. */
MUST_USE bool lent_file_read(struct lent_file *f, const char *path, struct error *err);
void lent_file_release(struct lent_file *f);
/* Is each tensor of m where the file has it? ERR_DATA names the first that is not. */
MUST_USE bool lent_file_fits(const struct lent_file *f, const struct model *m, const char *path, struct error *err);
