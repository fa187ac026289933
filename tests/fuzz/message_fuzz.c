/* Every message a process accepts: the walk, the unpacking, the table's checks, and what is read out of a group. */
#include <stddef.h>
#include <stdint.h>
#include "protocol/record/group_msg.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct error err;
    struct msg_in in;
    if (msg_read_request(&in, data, size, &err)) {
        struct msg_out m = MSG_OUT_INIT;
        if (in.type == MSG_GROUP)
            group_free(group_read(in.root, &err));
        msg_begin(&m, MSG_PUBLISH);
        msg_copy(&m, "body", in.root);    // what is passed on is written again
        if (!msg_finish(&m, &err))
            __builtin_trap();
        msg_release(&m);
        msg_in_release(&in);
    }
    for (int type = 0; type < MSG_TYPE_COUNT; type++)
        if (msg_read_answer(&in, (enum msg_type)type, data, size, &err))
            msg_in_release(&in);
    return 0;
}
