/* device.c - the CPU back end's device */
#include "kernels/ops.h"

struct device *device_new_cpu(int index, UNUSED int n_thread, struct error *err)
{
    error_set(err, ERR_UNSUPPORTED, "cpu:%d: this build has only the reference back end; use 'ref'", index);
    return NULL;
}
