/* path_avx2.c - the inner loops, compiled for avx2 */
#include "kernels/cpu/path.h"
#include "kernels/cpu/vec.h"
#include "kernels/host.h"
#include "kernels/cpu/gemm_body.h"
#include "kernels/cpu/rows_body.h"
#include "kernels/cpu/delta_body.h"
#include "kernels/cpu/attend_body.h"
#include "kernels/cpu/head_body.h"

const struct cpu_path cpu_path_avx2 = {
    .name = "avx2",
#include "kernels/cpu/path_rows.h"
};
