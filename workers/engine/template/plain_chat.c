#include <string.h>
#include "workers/engine/template/template.h"

/* The content of messages[i], a text of this role; NULL: it is something else. */
static const json_t *text_of(const json_t *messages, size_t i, const char *role)
{
    const json_t *m = json_array_get(messages, i), *content = json_object_get(m, "content");
    const char *its = json_string_value(json_object_get(m, "role"));
    return its && strcmp(its, role) == 0 && json_is_string(content) ? content : NULL;
}

bool plain_chat(const json_t *messages, size_t n, struct buf *out)
{
    const json_t *system = n == 2 ? text_of(messages, 0, "system") : NULL, *question = n > 0 ? text_of(messages, n - 1, "user") : NULL;
    if (!question || n != 1 + (size_t)(system != NULL))
        return false;
    if (system) {
        buf_add(out, json_string_value(system), json_string_length(system));
        buf_str(out, "\n\n");
    }
    buf_add(out, json_string_value(question), json_string_length(question));
    return true;
}
