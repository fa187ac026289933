/* Any bytes as a weight file: refused or read, never past the end; what is given out is inside of the file. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
#include "workers/engine/model/config.h"
#include "workers/engine/model/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct error err;
    char path[64];
    int fd = memfd_create("safetensors", 0);
    if (fd < 0 || write(fd, data, size) != (ssize_t)size)
        abort();
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    struct shards *s = shards_open_file(path, &err);
    float sum = 0;
    for (int64_t i = 0; s && i < shards_n(s); i++) {
        const struct st_tensor *t = shards_at(s, i);
        if (t->dtype == ST_OTHER || t->n_elem > 1 << 20)
            continue;
        float *f = malloc((size_t)t->n_elem * 4 + 4);
        st_to_f32(f, t);    // touches every byte
        sum += t->n_elem > 0 ? f[t->n_elem - 1] : 0;
        free(f);
    }
    shards_close(s);
    close(fd);
    char *text = malloc(size + 1);    // and as a config.json
    for (size_t i = 0; i < size; i++)
        text[i] = (char)data[i];
    text[size] = 0;
    struct model_config c;
    if (config_parse(&c, text, "config.json", &err) && (c.n_head % c.n_kv_head || c.d_head % 2 || c.n_eos > CONFIG_EOS_MAX))
        abort();
    free(text);
    return sum == 12345.678f;
}
