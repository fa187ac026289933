/* A hostile config.json. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "workers/engine/model/config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct error err = { 0 };
    struct model_config c;
    char *text = malloc(size + 1);
    if (!text)
        return 0;
    memcpy(text, data, size);
    text[size] = 0;
    if (!config_parse(&c, text, "fuzz", &err) && !err.text[0])
        abort();    // refused without a message
    free(text);
    return 0;
}
