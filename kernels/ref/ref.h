/* ref.h - the reference: every operation as plain as its formula, sums in double
 *
 * For tests and for reading; slow. Layout of a KV page: K (n_kv, page_tok, hd), then V likewise. */
#pragma once
#include "kernels/host.h"
#define REF_ROW(name) bool name##_ref(struct device *dev, const struct name *a, struct error *err);
OPS_TABLE(REF_ROW)
#undef REF_ROW
