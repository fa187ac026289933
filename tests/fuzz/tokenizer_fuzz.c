/* Hostile tokenizer.json, and hostile text: the input is a file, a NUL and a text for it; without a NUL, a text for a tokenizer
 * that is there. Encoding must end, ids must be in range, and decoding must give UTF-8. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "workers/engine/text/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char own[] =
    "{\"added_tokens\":[{\"id\":300,\"content\":\"<|x|>\",\"special\":true},{\"id\":301,\"content\":\"w\",\"single_word\":true},"
    "{\"id\":302,\"content\":\"[s]\",\"lstrip\":true,\"rstrip\":true,\"normalized\":true}],\"normalizer\":{\"type\":\"NFC\"},"
    "\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":\"\\\\s+|\\\\p{L}+\"},"
    "\"behavior\":\"MergedWithNext\"},{\"type\":\"Digits\",\"individual_digits\":true},{\"type\":\"ByteLevel\",\"use_regex\":true}]},"
    "\"decoder\":{\"type\":\"ByteLevel\"},\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2,\"\\u0120\":3,\"\\u0120ab\":4,"
    "\"1\":5,\"\\u00c3\":6,\"\\u00a9\":7,\"\\u00c3\\u00a9\":8,\"\\u00e4\":9},\"merges\":[\"a b\",\"\\u0120 ab\",\"\\u00c3 \\u00a9\"]}}";

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct error err = { 0 };
    const uint8_t *nul = size ? memchr(data, 0, size) : NULL;
    const char *json = nul ? (const char *)data : own, *text = (const char *)(nul ? nul + 1 : data);
    size_t len = nul ? (size_t)(nul - data) : sizeof own - 1, text_len = size - (nul ? len + 1 : 0);
    static struct tokenizer *kept;    // of own: making the tables of characters each time would take most of the time
    struct tokenizer *t = nul || !kept ? tokenizer_parse(json, len, "fuzz", &err) : kept;
    if (!t)
        return 0;
    if (!nul)
        kept = t;
    struct encoder *e = encoder_new(t, size % 2, &err);
    for (unsigned flags = 0; e && flags < 4; flags++) {
        struct token_list ids = { 0 };
        struct buf out = BUF_INIT;
        if (encoder_encode(e, text, text_len, flags, &ids, &err)) {
            for (int64_t i = 0; i < ids.n; i++)
                if (!tokenizer_has_id(t, ids.id[i]))
                    abort();
            if (tokenizer_decode(t, ids.id, ids.n, flags & 1, &out)
                && utf8_valid_len((const uint8_t *)buf_text(&out), out.len, NULL, NULL) != out.len)
                abort();
        }
        token_list_release(&ids);
        buf_release(&out);
    }
    encoder_free(e);
    if (nul)
        tokenizer_free(t);
    return 0;
}
