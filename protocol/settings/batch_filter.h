/* batch_filter.h - which groups are trained on, as a run's settings say it */
#pragma once
#include <stdbool.h>

struct batch_filter {
    double low, high;    // the mean of ans_acc is between them, both excluded; NAN: any
    bool spread;         // rewards are not all equal
};
