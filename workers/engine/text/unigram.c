#include "workers/engine/text/unigram.h"
#include "workers/engine/text/unicode.h"

/* The best way to a place of the piece. */
struct place {
    double score;
    int64_t from;    // where its last token begins; -1: not reached
    int64_t next;    // of the places on the best way to the end: the next one
    int32_t id;      // of its last token; -1: a character that is not a token
};

/* Strictly better: of equal sums the first found stays, whose last token begins first. */
static void place_offer(struct place *p, double score, int64_t from, int32_t id)
{
    if (p->from < 0 || score > p->score)
        *p = (struct place){ .score = score, .from = from, .id = id };
}

static void places_fill(const struct unigram *u, const struct bpe *b, const uint8_t *piece, size_t len, struct place *place)
{
    int n;
    place[0] = (struct place){ .id = -1 };
    for (size_t i = 1; i <= len; i++)
        place[i].from = -1;
    for (size_t at = 0; at < len;) {
        utf8_at(piece + at, &n);
        bool alone = false;
        for (size_t end = at + (size_t)n; end <= len && end - at <= u->longest;) {
            int32_t id = bpe_find(b, piece + at, end - at, false);
            if (id >= 0) {
                place_offer(&place[end], place[at].score + u->score[id], (int64_t)at, id);
                alone |= end == at + (size_t)n;
            }
            int m = 1;
            if (end < len)
                utf8_at(piece + end, &m);
            end += (size_t)m;
        }
        if (!alone)
            place_offer(&place[at + (size_t)n], place[at].score + u->unknown, (int64_t)at, -1);
        at += (size_t)n;
    }
}

int64_t unigram_encode(const struct unigram *u, const struct bpe *b, const uint8_t *piece, size_t len, int32_t *out, struct bpe_scratch *s)
{
    if (!bpe_scratch_room(s, (len + 1) * sizeof(struct place)))
        return -1;
    struct place *place = s->mem;
    places_fill(u, b, piece, len, place);
    for (int64_t at = (int64_t)len; at > 0; at = place[at].from)
        place[place[at].from].next = at;
    int64_t n = 0;
    for (int64_t from = 0, at; from < (int64_t)len; from = at) {
        at = place[from].next;
        if (place[at].id >= 0) {
            out[n++] = place[at].id;
            continue;
        }
        while (at < (int64_t)len && place[place[at].next].id < 0)    // neighbouring characters that are no tokens are one
            at = place[at].next;
        int64_t wrote = bpe_unknown(b, piece + from, (size_t)(at - from), out + n);
        if (wrote < 0)
            return -2;
        n += wrote;
    }
    return n;
}
