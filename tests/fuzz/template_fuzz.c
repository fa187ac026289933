/* A hostile template, rendered with a small conversation: it must end within its bounds, in text that is UTF-8 or an error. */
#include <stdint.h>
#include <stdlib.h>
#include "workers/engine/template/template.h"
#include "workers/engine/text/unicode.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct error err = { 0 };
    struct template *t = template_new((const char *)data, size, "fuzz", &err);
    if (!t)
        return 0;
    json_t *messages = json_pack("[{s:s,s:s},{s:s,s:s,s:[{s:s,s:{s:i,s:f}}]},{s:s,s:n}]", "role", "user", "content", "h\xC3\xA9 <b>\n",
                                 "role", "assistant", "content", "", "tool_calls", "name", "f", "arguments", "a", 1, "b", 2.5, "role",
                                 "tool", "content");
    struct chat_options options = { .add_generation_prompt = true, .system = "be short" };
    struct buf out = BUF_INIT;
    if (template_chat(t, messages, &options, &out, &err) && utf8_valid_len((const uint8_t *)buf_text(&out), out.len, NULL, NULL) != out.len)
        abort();
    json_decref(messages);
    buf_release(&out);
    template_free(t);
    return 0;
}
