/* Any bytes as a GGUF file: refused or read, never past the end; what is given out is inside of the file. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
#include "workers/engine/load/gguf.h"
#include "workers/engine/load/gguf_dir.h"
#include "workers/engine/model/config.h"
#include "workers/engine/text/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct error err;
    char path[64];
    int fd = memfd_create("gguf", 0);
    if (fd < 0 || write(fd, data, size) != (ssize_t)size)
        abort();
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    struct gguf *g = gguf_open(path, &err);
    float sum = 0, block[GGUF_BLOCK_MAX];
    for (int64_t i = 0; g && i < gguf_n_tensor(g); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i);
        for (int64_t at = 0; at < t->n_elem; at += t->type->n_elem) {    // touches every byte
            gguf_part_to_f32(block, t, at, t->type->n_elem);
            sum += block[0];
        }
    }
    struct gguf_files files = { 0 };    // and as the texts of a model's directory
    struct model_config c;
    struct tokenizer *tokenizer = NULL;
    if (g && gguf_files_make(&files, g, GGUF_KEEP_EXACT, &err) && config_parse(&c, buf_text(&files.config), path, &err))
        tokenizer = tokenizer_parse(buf_text(&files.tokenizer), files.tokenizer.len, path, &err);
    tokenizer_free(tokenizer);
    gguf_files_release(&files);
    gguf_close(g);
    close(fd);
    return sum == 12345.678f;
}
