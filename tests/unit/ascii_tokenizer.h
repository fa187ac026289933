/* ascii_tokenizer.h - a tokenizer whose ids can be read: each printable ASCII character is a token, and its id is its code;
 * the special token <|turn|> is 1 */
#pragma once
#include "protocol/base/buf.h"
#include "workers/engine/text/tokenizer.h"

/* bytes: also single bytes 0x80 .. 0xff as ids of their own (without 0xad), so that a character beyond ASCII needs several. ByteLevel
 * spells byte b (0xa1 .. 0xff) as the character of that number, and 0x80 .. 0xa0 as U+0122 .. U+0142. The space is id 32. */
static struct tokenizer *ascii_tokenizer_new(bool bytes, struct error *err)
{
    struct buf json = BUF_INIT;
    buf_str(&json, "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"\\u0120\":32");
    for (int c = '!'; c <= '~'; c++)
        buf_fmt(&json, ",\"%s%c\":%d", c == '"' || c == '\\' ? "\\" : "", c, c);
    for (int b = 0x80; bytes && b <= 0xff; b++)
        if (b != 0xad)
            buf_fmt(&json, ",\"\\u%04x\":%d", b <= 0xa0 ? b - 0x80 + 0x122 : b, b);
    buf_str(&json, "},\"merges\":[]},\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":true},"
                   "\"decoder\":{\"type\":\"ByteLevel\"},\"added_tokens\":[{\"id\":1,\"content\":\"<|turn|>\",\"special\":true}]}");
    struct tokenizer *t = tokenizer_parse(json.data, json.len, "test", err);
    buf_release(&json);
    return t;
}
