/* holding_open.c - how the model of a holding is made: each form is a row of the table */
#include "workers/engine/model/lora.h"
#include "workers/engine/model/model.h"
#include "workers/engine/model/stages.h"
#include "workers/engine/model/team.h"
#include "workers/engine/plan/holdings.h"

static struct model *whole_open(UNUSED const struct holding *row, struct model *of, UNUSED struct device *const *dev, struct error *err)
{
    return model_source_pass(of, err);
}

static struct model *slices_open(const struct holding *row, struct model *of, struct device *const *dev, struct error *err)
{
    return model_sliced_open(of, dev, row->n_slice, err);
}

static struct model *stages_open(const struct holding *row, struct model *of, struct device *const *dev, struct error *err)
{
    return model_staged_open(of, dev, row->n_stage, row->n_slice, err);
}

static struct model *view_open(UNUSED const struct holding *row, struct model *of, UNUSED struct device *const *dev, struct error *err)
{
    return model_view(of, err);
}

static const struct {
    struct model *(*open)(const struct holding *row, struct model *of, struct device *const *dev, struct error *err);    // holding_open
    struct model *(*empty)(const struct model *of, struct error *err);    // holding_empty; NULL: no sampler has this form
} forms[] = {
    [HELD_WHOLE] = { whole_open, model_new_like },
    [HELD_SLICES] = { slices_open, model_shape_like },
    [HELD_STAGES] = { stages_open, NULL },
    [HELD_VIEW] = { view_open, NULL },
};

struct model *holding_open(const struct holding *row, struct model *of, struct device *const *dev, struct error *err)
{
    return forms[row->form].open(row, of, dev, err);
}

struct model *holding_empty(const struct holding *row, const struct model *of, struct error *err)
{
    BUG_IF(!forms[row->form].empty, "a sampler's weights in form %d", (int)row->form);
    return forms[row->form].empty(of, err);
}
