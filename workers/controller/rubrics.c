#include "workers/controller/rubrics.h"
#include <inttypes.h>
#include <jansson.h>
#include "protocol/base/json_text.h"
#include "protocol/base/log.h"
#include "workers/controller/controller.h"

bool rubrics_check(const struct mval *told, struct error *err)
{
    size_t len;
    const char *text = mval_str(told, &len);
    json_t *json = text ? json_text_read(text, len, 0, NULL) : NULL;
    bool ok = !text || json_is_array(json_object_get(json, "active"));
    json_decref(json);
    return ok || error_set(err, ERR_DATA, "its 'rubrics' are no JSON with a list 'active'");
}

bool rubrics_take(struct controller *c, const struct ledger_item *i, const struct msg_in *in, struct error *err)
{
    size_t len;
    const char *text = c->config.apply_evolving_rubric_reward ? mval_str(mval_get(in->root, "rubrics"), &len) : NULL;
    json_t *told = text ? json_text_read(text, len, 0, NULL) : NULL;
    if (!text)
        return true;
    if (json_is_true(json_object_get(told, "failed")))
        log_warn("no new criteria for the prompt of item %" PRId64 ": %s", i->item, json_string_value(json_object_get(told, "why")));
    step_metrics_rubrics(&c->metrics, (int64_t)json_integer_value(json_object_get(told, "judged")),
                         (int64_t)json_integer_value(json_object_get(told, "written")), json_is_true(json_object_get(told, "failed")));
    bool ok = json_is_array(json_object_get(told, "active"));
    json_decref(told);
    return ok ? transaction(c, err) && journal_rubric_put(c->journal, i->item, i->row, i->rollout_step, text, len, err)
              : error_set(err, ERR_DATA, "the rubrics of item %" PRId64 " are no JSON with a list 'active'", i->item);
}

bool rubrics_write(struct controller *c, const struct ledger_item *i, struct msg_out *m, struct error *err)
{
    struct buf text = BUF_INIT;
    bool found = false, ok = true;
    int64_t cut = i->rollout_step - 1 - c->config.n_behind;
    if (c->config.apply_evolving_rubric_reward && cut >= 0)
        ok = journal_rubric_get(c->journal, i->row, cut, &text, &found, err);
    if (ok && found)
        msg_strn(m, "rubrics", buf_text(&text), text.len);
    buf_release(&text);
    return ok;
}

bool rubrics_forget(struct controller *c, int64_t first, int64_t last, struct error *err)
{
    return !c->config.apply_evolving_rubric_reward || (transaction(c, err) && journal_rubrics_forget(c->journal, first, last, err));
}
