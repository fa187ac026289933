/* A hostile JSON text: what is read is written, and reads back as the same. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/base/json_text.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const size_t flags[] = { 0, JSON_ALLOW_NUL, JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES, JSON_DISABLE_EOF_CHECK };
    for (size_t i = 0; i < sizeof flags / sizeof flags[0]; i++) {
        json_error_t why;
        json_t *v = json_text_read((const char *)data, size, flags[i] | JSON_DECODE_ANY, &why), *plain;
        if (!v) {
            plain = json_loadb((const char *)data, size, flags[i] | JSON_DECODE_ANY, NULL);
            if (plain)    // nothing that jansson reads is refused
                abort();
            continue;
        }
        if ((flags[i] & JSON_DISABLE_EOF_CHECK) && (why.position < 0 || (size_t)why.position > size))
            abort();
        char *text = json_text_dump(v, JSON_ENCODE_ANY | JSON_REAL_PRECISION(17));
        json_t *again = text ? json_str_read(text, flags[i] | JSON_DECODE_ANY, NULL) : NULL;
        if (!again || !json_equal(v, again))
            abort();
        json_decref(again);
        json_decref(v);
        free(text);
    }
    return 0;
}
