/* nodes.h - a run's nodes as an operator judges them: which GPUs are lost, failing or slowed, which processes are late; pure */
#pragma once
#include "console/fleet/run_view.h"

/* What is wrong with a GPU, the worst last. Clocks that its power limit lowers are no fault: every busy GPU meets that. */
enum device_fault {
    DEVICE_WELL,
    DEVICE_SLOWED,     // heat, or too little power
    DEVICE_FAILING,    // memory errors that could not be corrected
    DEVICE_LOST,       // off the bus, or in need of a reset
};
enum device_fault device_fault(const struct device_view *d);
/* In words after the device's name: "is lost", "has 2 memory errors", "is slowed by heat"; "" for one that is well. */
enum device_fault device_fault_say(const struct device_view *d, char *out, size_t size);

struct node_state {
    int host;                     // of the model's
    int first;                    // its first device
    int lost, failing, slowed;    // devices
    int stuck, slow;              // processes
    bool shown;                   // a process of its passes
    double use, heat, full;       // percent, Celsius, percent: means and, of heat, the maximum; NAN: unknown
    double key;                   // its place in an order, smallest first; node_severity: the worst first
};
struct nodes {
    int n;
    struct node_state node[MODEL_HOSTS];    // in the model's order
};
typedef bool process_passes(const void *ctx, const struct proc *p);

/* All hosts of the model. passes: which processes make a node shown; NULL: every node is. */
void nodes_make(struct nodes *n, const struct run_view *m, process_passes *passes, const void *ctx);
/* Sort by key; those with equal keys stay in the model's order. */
void nodes_sort(struct nodes *n);
double node_severity(const struct node_state *s);
/* The node that a process is on; "": not known. A process of another node is called NODE/NAME. Returns the name's length. */
size_t proc_node(const struct run_view *m, const struct proc *p, const char **node);
