/* model_kind.h - what tests of a kind of models share: refusals by config.json and by layout, and models that are saved and loaded again */
#pragma once
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/base/file.h"
#include "workers/engine/model/model.h"
#include "workers/engine/model/stages.h"
#include "workers/engine/model/team.h"
#include "workers/engine/trainer/trainer.h"

static struct error err;

/* The directory of a golden model. */
static void golden_dir(char *path, size_t size, const char *name)
{
    const char *data = getenv("TEST_DATA_DIR");    // set where the program does not run where it was built
    snprintf(path, size, "%s/golden/models/%s", data ? data : TEST_DATA_DIR, name);
}

/* What config.json may not have, beside what parse adds, and what the refusal names. */
struct refusal {
    const char *more, *says;
};
static void refused_by_name(bool (*parse)(struct model_config *c, const char *more), const struct refusal *cases, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        struct model_config c;
        assert_false(parse(&c, cases[i].more));
        if (!strstr(err.text, cases[i].says))
            fail_msg("'%s' does not name %s", err.text, cases[i].says);
    }
}

/* Layouts that cut a model are refused with the word for its kind; one device and several trainers are not. */
static void layouts_refused(const struct model_config *c, const char *kind)
{
    assert_true(team_check(c, 1, 4, &err) && team_train_check(c, 1, 0, &err) && stages_check(c, 1, &err));
    assert_false(team_check(c, 2, 2, &err));
    assert_non_null(strstr(err.text, kind));
    assert_non_null(strstr(err.text, "tensor_parallel_size"));
    assert_false(team_train_check(c, 2, 2, &err));
    assert_non_null(strstr(err.text, "tensor_parallel_size"));
    assert_false(stages_check(c, 2, &err));
    assert_non_null(strstr(err.text, "pipeline_parallel_size"));
}

/* The golden model, saved and loaded again with the same sizes and bytes; the caller's to free. */
static struct model *saved_and_loaded(const char *name, struct device *dev)
{
    char from[4096], to[] = "/tmp/model-kind-XXXXXX";
    uint64_t a, b;
    golden_dir(from, sizeof from, name);
    assert_non_null(mkdtemp(to));
    struct model *m = model_load(from, dev, DT_F32, &err);
    struct model *back = m && model_save(m, to, &err) ? model_load(to, dev, DT_F32, &err) : NULL;
    if (!back || !config_same(model_config(m), model_config(back), "the saved model", &err))
        fail_msg("%s: %s", name, err.text);
    assert_true(model_weights_hash(m, &a, &err) && model_weights_hash(back, &b, &err));
    assert_int_equal(a, b);
    model_free(m);
    assert_true(dir_remove(to, &err));
    return back;
}
