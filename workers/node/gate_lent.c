/* gate_lent.c - what machines may ask that have joined with the token for sampling only ('listen_lent')
 *
 * Whose a request is, says its connection: it is one of the last two by which a `node` message has come, with the id that only the node and
 * the gate know, so lent machines cannot speak for each other either. What goes on to the controller is written again, with the fields that a sampler has to say
 * and no others, and with `lent`, the node's name, by which the controller judges what is claimed (lent_groups.h). */
#include <stdio.h>
#include <string.h>
#include "protocol/run/run_state.h"
#include "workers/node/gate_parts.h"

/* They sample, so they get settings, files, weights and work, and may say how their processes are. With `publish` they could write what they
 * like into the run's journal; only their own figures may come. */
static const struct right {
    bool may;
    const char *fields;    // that are passed on with the node's name; NULL: nothing is, or all as it came
} rights[MSG_TYPE_COUNT] = {
    [MSG_JOIN] = { true, NULL },
    [MSG_NODE] = { true, NULL },
    [MSG_FILE] = { true, NULL },
    [MSG_WEIGHTS] = { true, NULL },
    [MSG_STATUS] = { true, NULL },
    [MSG_WORK] = { true, " name start incarnation step version made produces items busy n_row " },
    [MSG_DONE] = { true, " name task kind incarnation step ok error code version again fetched " },
    [MSG_GROUP] = { true,
                    " incarnation item row rollout_step version made temperature top_p top_k max_new_tok prompt token logp newer mask "
                    "entropy samples prompt_text piece gold rubrics sampled gen_s score_s verify_s " },
    [MSG_STOPPED] = { true, " item version made n_tok drawn " },
    [MSG_PUBLISH] = { true, " topic body " },
};

/* The name of the node that a request says it is of; "": it says none. */
static void name_read(const struct msg_in *in, char name[120])
{
    name[0] = 0;
    if (in->type == MSG_JOIN || in->type == MSG_NODE)
        mval_text(in->root, "node", name, 120);
    else if (in->type == MSG_PUBLISH)
        mval_text(mval_get(in->root, "body"), "node", name, 120);
    else if (in->type == MSG_WORK || in->type == MSG_DONE)    // of a worker; other names are of files
        mval_text(in->root, "name", name, 120);
    name[strcspn(name, "/")] = 0;
}

/* The lent node that r comes from, and that has this name; "": whichever. NULL: none. */
static const struct node_seen *sender_find(const struct gate *g, const struct request *r, const char *name)
{
    for (int i = 0; i < g->n_node; i++) {
        const struct node_seen *n = &g->node[i];
        if (n->here && n->lent && !n->dismissed[0]
            && (n->connection[0] == request_connection(r) || n->connection[1] == request_connection(r))
            && (!name[0] || strcmp(name, n->node.name) == 0))
            return n;
    }
    return NULL;
}

/* What a sampler can have done. That a task has failed is its node's own affair: it ends, and the run goes on. */
static bool done_check(const struct msg_in *in, struct error *err)
{
    char word[16];
    enum task_kind kind = TASK_NONE;
    bool known = task_kind_find(mval_text(in->root, "kind", word, sizeof word), &kind);
    bool again = mval_bool(mval_get(in->root, "again"), false) && kind == TASK_PUBLISH;
    if (!known || (kind != TASK_LOAD && kind != TASK_ITEMS && kind != TASK_PUBLISH && kind != TASK_CANCEL))
        return error_set(err, ERR_REFUSED, "a machine that may only sample is not given a '%s'", word);
    return mval_bool(mval_get(in->root, "ok"), false) || again
           || error_set(err, ERR_REFUSED, "a machine that may only sample ends when its '%s' fails; the run does not", word);
}

static bool lent_check(struct gate *g, const struct request *r, const struct msg_in *in, const char *name, const char **lent,
                       struct error *err)
{
    const struct right *right = &rights[in->type];
    char topic[16];
    if (!right->may || (in->type == MSG_PUBLISH && strcmp(mval_text(in->root, "topic", topic, sizeof topic), "sample") != 0))
        return error_set(err, ERR_REFUSED,
                         "this machine has joined with the token for sampling only (RUN/" NODE_LENT_TOKEN_FILE "), so it may not send '%s'",
                         msg_specs[in->type].name);
    if (!right->fields)
        return true;
    const struct node_seen *n = name[0] || in->type == MSG_GROUP || in->type == MSG_STOPPED ? sender_find(g, r, name) : NULL;
    if (!n)
        return error_set(err, ERR_CLOSED, "the connection that a '%s' came by is not known to be of node '%s'", msg_specs[in->type].name,
                         name);
    *lent = n->node.name;
    return in->type != MSG_DONE || done_check(in, err);
}

bool right_check(struct gate *g, const struct request *r, const struct msg_in *in, const char **lent, struct error *err)
{
    bool is_lent = gate_lent(g, r);
    char name[120];
    *lent = "";
    name_read(in, name);
    const struct node_seen *n = name[0] ? node_find(g, name) : NULL;
    if (n && n->here && n->lent != is_lent)    // a name with the other right is not taken over
        return error_set(err, ERR_REFUSED, "node '%s' has joined with another token", name);
    return !is_lent || lent_check(g, r, in, name, lent, err);
}

bool lent_write(struct msg_out *m, const struct msg_in *in, const char *lent, struct error *err)
{
    msg_begin(m, in->type);
    msg_copy_only(m, in->root, rights[in->type].fields);
    if (in->type == MSG_WORK)
        msg_bool(m, "consumes", false);
    if (in->type == MSG_DONE)
        msg_i64(m, "rank", -1);    // absent, it would be the first trainer's
    msg_str(m, "lent", lent);
    return msg_finish(m, err);
}
