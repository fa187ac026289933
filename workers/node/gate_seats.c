/* The places of trainers on nodes (trainers_per_node). A place is a node's until that is given up or leaves; then the next one that joins,
 * or one that only samples and has as many devices, gets it. A gate that starts again hears from the nodes what they have. */
#include <stdio.h>
#include <string.h>
#include "protocol/base/clock.h"
#include "workers/node/gate_parts.h"

#define KEPT_MS 60000      // for a node that has asked to join and still fetches files
#define SETTLED_MS 5000    // after the gate has opened, nodes that were there before may still have to tell what they have

static int n_place(const struct gate *g)
{
    return (int)run_config_n_host(&g->config) - 1;
}

static int64_t first_of(const struct gate *g, int p)
{
    return (p + 1) * g->config.trainers_per_node;
}

static bool node_is_here(const struct gate *g, const char *id)
{
    for (int i = 0; i < g->n_node; i++)
        if (strcmp(g->node[i].node.id, id) == 0)
            return g->node[i].here;
    return false;
}

static bool is_free(const struct gate *g, int p)
{
    const struct trainer_place *at = &g->place[p];
    return !at->id[0] || (!node_is_here(g, at->id) && clock_ms() - at->heard_ms > KEPT_MS);
}

static void place_take(struct gate *g, int p, const struct node *who)
{
    snprintf(g->place[p].id, sizeof g->place[p].id, "%s", who->id);
    g->place[p].heard_ms = clock_ms();
}

/* A place for a node with this many devices: its own before a free one; -1: none. */
static int place_find(const struct gate *g, const struct node *who, int64_t n_device)
{
    int found = -1;
    for (int p = n_place(g) - 1; p >= 0; p--) {
        bool own = strcmp(g->place[p].id, who->id) == 0;
        if (n_device < run_config_devices_at(&g->config, first_of(g, p)))
            continue;
        if (own)
            return p;
        if (is_free(g, p))
            found = p;
    }
    return found;
}

int64_t seat_give(struct gate *g, const struct node *who, int64_t n_device)
{
    int p = place_find(g, who, n_device);
    if (p < 0)
        return -1;
    place_take(g, p, who);
    return first_of(g, p);
}

bool seat_hold(struct gate *g, const struct node *who, int64_t first)
{
    for (int p = 0; p < n_place(g); p++)
        if (first_of(g, p) == first && (strcmp(g->place[p].id, who->id) == 0 || is_free(g, p))) {
            place_take(g, p, who);
            return true;
        }
    return false;
}

bool seat_spare(struct gate *g, const struct node *who, int64_t n_device)
{
    if (clock_ms() - g->opened_ms < SETTLED_MS)
        return false;
    int p = place_find(g, who, n_device);
    if (p >= 0)
        place_take(g, p, who);
    return p >= 0;
}

int64_t seat_missed(const struct gate *g, int64_t n_device, int64_t *first)
{
    int64_t least = 0;
    for (int p = 0; p < n_place(g); p++) {
        int64_t need = run_config_devices_at(&g->config, first_of(g, p));
        if (is_free(g, p) && need > n_device && (least == 0 || need < least)) {
            least = need;
            *first = first_of(g, p);
        }
    }
    return least;
}

bool seat_has(const struct gate *g, const struct node *who, int64_t rank)
{
    for (int p = 0; p < n_place(g); p++)
        if (strcmp(g->place[p].id, who->id) == 0 && rank >= first_of(g, p)
            && rank < first_of(g, p) + run_config_trainers_at(&g->config, first_of(g, p)))
            return true;
    return false;
}

void seat_free(struct gate *g, const struct node *who)
{
    for (int p = 0; p < n_place(g); p++)
        if (strcmp(g->place[p].id, who->id) == 0)
            g->place[p] = (struct trainer_place){ 0 };
}
