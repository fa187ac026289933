/* choices.h - by which algorithm a GPU multiplies each kind of weight
 *
 * The back end tries them on the card, when a kind is met first, and fills the device's table (kernels/cuda/gemm_choose.cu). The table is
 * what is logged, what `rollcall doctor --devices` prints, and what is kept on disk for the next start (choices_file.h). One thread at a
 * time, as for the device that it belongs to. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "protocol/base/macros.h"

#define CHOICE_BUCKETS 15    // numbers of rows: 1, 2, 4 ... 16384; more rows are as the last
#define CHOICE_CONFIG_N 9    // what cuBLASLt's algorithms are set by, in the order of enum choice_config
#define CHOICES_MAX 64       // kinds of products in a table

enum choice_config {
    CHOICE_ID,
    CHOICE_TILE,
    CHOICE_STAGES,
    CHOICE_SPLIT_K,
    CHOICE_REDUCTION,
    CHOICE_SWIZZLE,
    CHOICE_CUSTOM,
    CHOICE_INNER,
    CHOICE_CLUSTER,
};
/* Products y (n, n_out) = x W^T that are computed alike. */
struct product_kind {
    int64_t n_out, n_in;
    int parts;    // as in weight_new
    bool bias;    // added by the product itself
    bool f32;     // y is fp32, else bf16
};
struct choice_way {
    int32_t own;    // outputs per block of our kernel for few rows; 0: the library's algorithm of this config
    int32_t config[CHOICE_CONFIG_N];
};
enum choice_state {
    CHOICE_READ,      // from disk, not used yet
    CHOICE_PASSED,    // every way gives equal bits on this card: tried since the device was opened
    CHOICE_PLAIN,     // no algorithm does: the plain kernel multiplies, slowly
    CHOICE_UNFIT,     // sizes that the library's algorithms and ours cannot take: the plain kernel
};
struct choice {
    char name[48];    // what the products are in a model, such as "qkv"; "": not known
    struct product_kind kind;
    enum choice_state state;
    int split;         // parts of K that are multiplied on their own and then added in order
    int n_left_out;    // algorithms that gave other bits
    bool untimed;      // no memory was free for timing: the library's first at each number of rows. Not kept on disk
    bool from_disk;    // the ways are those that were read
    bool told;         // in the log
    struct choice_way way[CHOICE_BUCKETS];
};
struct choices {
    char what[192];    // card and versions of the libraries: all that the choices hold for
    bool changed;      // since they were read or written
    double seconds;    // spent on choosing and trying, also by those that were joined
    int n;
    struct choice at[CHOICES_MAX];    // never move, unless they are CHOICE_READ
};
/* The entry of this kind; NULL: there is none. */
struct choice *choices_find(struct choices *c, const struct product_kind *kind);
/* As choices_find, or a new choice with kind alone set. When the table is full, one that was only read makes room. NULL: there is
 * none such. */
struct choice *choices_take(struct choices *c, const struct product_kind *kind);
/* Take over what was chosen on another handle of the same device, as if read: it is to be tried before use. */
void choices_join(struct choices *c, const struct choices *from);
/* Numbers of rows that bucket b is for: first to *last. The last bucket's *last is 0: no end. */
int64_t choice_rows(int b, int64_t *last);
/* Products that are called `name` in a model are of this kind, perhaps besides others. */
void choice_name(struct choice *c, const char *name);
/* One line: the products, the algorithm at each number of rows, and whether the check for equal bits was passed. */
void choice_text(const struct choice *c, char *out, size_t size);
