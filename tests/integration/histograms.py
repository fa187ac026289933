"""Histograms as a journal has them (protocol/record/histogram.h), and as numpy.histogram would make them."""
import struct

BINS = 32
NAMES = ("metrics/response_length_hist", "metrics/response_length_right_hist", "metrics/response_length_wrong_hist",
         "metrics/reward_hist", "metrics/solve_rate_hist", "train/advantages_hist")


def spread(values):
    """(counts, edges): BINS equal bins from the smallest to the largest value."""
    low, high = min(values), max(values)
    if low == high:
        low, high = low - 0.5, high + 0.5
    edges = [low + k * ((high - low) / BINS) for k in range(BINS)] + [high]
    counts = [sum(edges[k] <= v < edges[k + 1] or (k == BINS - 1 and v == high) for v in values) for k in range(BINS)]
    return counts, edges


def add(db, values_of):
    """Give the step that was added last the histograms {name: values}."""
    db.execute("CREATE TABLE IF NOT EXISTS histogram(seq INTEGER PRIMARY KEY, data BLOB NOT NULL)")
    blob = b"".join(struct.pack("<Bq4d", NAMES.index(name), len(v), min(v), max(v), sum(v), sum(x * x for x in v))
                    + struct.pack(f"<{BINS}I", *spread(v)[0]) for name, v in values_of.items())
    db.execute("INSERT INTO histogram SELECT max(seq), ? FROM step", (blob,))
    db.commit()


def unpack(data):
    """{name: (n, smallest, largest, counts)} of a step's bytes."""
    size, out = 1 + 8 + 4 * 8 + 4 * BINS, {}
    for at in range(0, len(data), size):
        which, n, low, high, _, _ = struct.unpack_from("<Bq4d", data, at)
        out[NAMES[which]] = n, low, high, list(struct.unpack_from(f"<{BINS}I", data, at + 41))
    return out
