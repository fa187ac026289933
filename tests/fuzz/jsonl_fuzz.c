/* A hostile line of a data set, with and without column names. */
#include <stdint.h>
#include <stdlib.h>
#include "workers/engine/data/dataset.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct dataset_columns columns[] = { { NULL, NULL }, { "question", "answer" }, { "", "answer" } };
    for (size_t i = 0; i < sizeof columns / sizeof columns[0]; i++) {
        struct error err = { 0 };
        json_t *row = dataset_line_parse((const char *)data, size, &columns[i], "fuzz:1", &err);
        const json_t *gt = json_object_get(row, "gt_answer"), *tests = json_object_get(row, "test_cases");
        if (row
            && (!(json_object_get(row, "messages") ? json_array_size(json_object_get(row, "messages")) > 0
                                                   : json_is_string(json_object_get(row, "prompt")))
                || (gt && !json_is_string(gt)) || (tests && !json_is_object(tests))))
            abort();
        json_decref(row);
    }
    return 0;
}
