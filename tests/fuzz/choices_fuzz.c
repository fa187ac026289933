/* A GPU's choices of algorithms as a file on disk may say them: the text after the line that names the card. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include "kernels/choices_file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char text[1024];
    struct error err;
    struct buf again = BUF_INIT;
    struct choices *c = calloc(1, sizeof *c), *d = calloc(1, sizeof *d);
    c->what[0] = d->what[0] = 'x';
    if (choices_parse(c, (const char *)data, size, "file", &err)) {    // what was read can be written, and read again
        for (int i = 0; i < c->n; i++)
            choice_text(&c->at[i], text, sizeof text);
        choices_write(c, &again);
        if (!choices_parse(d, again.data, again.len, "again", &err) || d->n != c->n)
            abort();
    }
    buf_release(&again);
    free(c);
    free(d);
    return 0;
}
