#include "protocol/settings/node_name.h"
#include <ctype.h>
#include <string.h>

bool node_name_check(const char *name, struct error *err)
{
    size_t len = strlen(name);
    bool ok = len > 0 && len <= NODE_NAME_MAX && name[0] != '.' && name[0] != '-';
    for (size_t i = 0; ok && i < len; i++)
        ok = isalnum((unsigned char)name[i]) || strchr("._-", name[i]);
    return ok
           || error_set(err, ERR_USAGE,
                        "'%.60s' is not a valid node name: letters, digits, '.', '_' and '-', at most %d, not "
                        "beginning with '.' or '-'",
                        name, NODE_NAME_MAX);
}
