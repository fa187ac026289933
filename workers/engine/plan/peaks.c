#include "workers/engine/plan/peaks.h"
#include <string.h>

/* Data sheets of NVIDIA, dense rates (without sparsity), boost clocks. The first row whose name occurs counts, so what another name holds
 * comes before it. H200's and H100's figures are also those of open-instruct's table. */
// clang-format off
static const struct device_peak peaks[] = {
    { "GB200", 2500, 8000 },
    { "B200", 2250, 8000 },
    { "GH200 144G", 990, 4900 },
    { "GH200", 990, 4000 },
    { "H200", 989.5, 4800 },
    { "H100 PCIe", 756, 2000 },
    { "H100 NVL", 835.5, 3900 },
    { "H100", 989.5, 3350 },
    { "H800 PCIe", 756, 2000 },
    { "H800", 989.5, 3350 },
    { "H20", 148, 4000 },
    { "A100-SXM4-80GB", 312, 2039 },
    { "A100 80GB PCIe", 312, 1935 },
    { "A100", 312, 1555 },
    { "A800-SXM4-80GB", 312, 2039 },
    { "A800 80GB PCIe", 312, 1935 },
    { "A30", 165, 933 },
    { "A40", 149.7, 696 },
    { "A10G", 70, 600 },
    { "A10", 125, 600 },
    { "L40S", 362, 864 },
    { "L40", 181, 864 },
    { "L4", 121, 300 },
    { "RTX 6000 Ada", 364.2, 960 },
    { "RTX A6000", 154.8, 768 },
    { "RTX 5090", 209.5, 1792 },
    { "RTX 4090", 165.2, 1008 },
    { "RTX 3090", 71, 936 },
};
// clang-format on

const struct device_peak *peak_find(const char *name)
{
    for (size_t i = 0; i < ARRAY_SIZE(peaks); i++)
        if (strstr(name, peaks[i].card))
            return &peaks[i];
    return NULL;
}

void peaks_print_docs(struct buf *out)
{
    buf_str(out, "| card | bf16, TFLOP/s | memory, GB/s |\n|---|---|---|\n");
    for (size_t i = 0; i < ARRAY_SIZE(peaks); i++)
        buf_fmt(out, "| %s | %g | %g |\n", peaks[i].card, peaks[i].tflops, peaks[i].gb_per_s);
}
