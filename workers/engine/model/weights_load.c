/* weights_load.c - reading a model of 15 GB from memory takes one thread as long as all else at a start
 *
 * Tensors are cut into pieces (shorter ones than a model's). Threads convert pieces out of the mapped files, each into the next of a few
 * buffers; the caller's thread, which alone talks to the device, sends them in order. Where the host can write the device's memory, pieces
 * are converted right into it.
 *  1. Piece p goes through buffer p % n_slot, when the piece that had it before has been sent.
 *  2. Pieces are taken in order, so the one that is to be sent next is ready, being converted, or the caller's to convert. */
#include "workers/engine/model/weights_load.h"
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include "kernels/ops.h"
#include "protocol/base/thread.h"
#include "workers/engine/model/model_impl.h"
#include "workers/engine/model/safetensors.h"

#define PIECE_ELEMS ((int64_t)1 << 23)    // 16 MB of bf16: long enough for full speed, short enough to overlap
#define THREADS_MAX 8
#define SLOTS_MAX (THREADS_MAX + 2)
struct piece {
    const struct st_tensor *file;
    int64_t first, n;    // elements of it
    char *to;            // (device)
};
struct weights_loader {
    struct device *dev;       // borrowed
    void *slot[SLOTS_MAX];    // (PIECE_ELEMS) host_new memory, owned; none where the host writes the device's memory
    struct mark *sent_at[SLOTS_MAX];
};
/* One call. */
struct loading {
    const struct model *m;
    const struct weights_loader *by;
    struct piece *piece;    // (n_piece) owned
    int64_t n_piece;
    int64_t n_slot;               // of the loader's that are used
    pthread_mutex_t lock;         // guards: the rest
    pthread_cond_t changed;       // signals all of it
    int64_t n_taken, n_sent;      // pieces
    int64_t ready[SLOTS_MAX];     // the piece in each slot; -1: none
    int64_t broken, broken_at;    // the first piece with a value that is not finite, and which of the tensor's it is; -1: none
    bool stop;
};

static bool pieces_make(struct loading *l, const struct st_tensor *const *file, int64_t first, int64_t last, char *to, struct error *err)
{
    const struct model *m = l->m;
    size_t e = dtype_size(m->dtype);
    for (int64_t i = first; i < last; i++)
        l->n_piece += (m->flat.tensor[i].n_elem + PIECE_ELEMS - 1) / PIECE_ELEMS;
    if (!(l->piece = calloc((size_t)MAX(l->n_piece, (int64_t)1), sizeof *l->piece)))
        return error_set(err, ERR_NO_MEMORY, "no memory to list the pieces of the weights");
    struct piece *p = l->piece;
    for (int64_t i = first; i < last; i++)
        for (int64_t at = 0; at < m->flat.tensor[i].n_elem; at += PIECE_ELEMS)
            *p++ = (struct piece){ file[i], at, MIN(PIECE_ELEMS, m->flat.tensor[i].n_elem - at),
                                   to + (size_t)(m->flat.tensor[i].offset - m->flat.tensor[first].offset + at) * e };
    return true;
}

static bool slots_make(struct weights_loader *by, struct loading *l, struct error *err)
{
    l->n_slot = by->dev->host_memory ? 0 : MIN((int64_t)SLOTS_MAX, l->n_piece);
    for (int64_t s = 0; s < l->n_slot; s++) {
        l->ready[s] = -1;
        if ((!by->slot[s] && !(by->slot[s] = host_new(by->dev, (size_t)PIECE_ELEMS * dtype_size(l->m->dtype), "pieces of weights", err)))
            || (!by->sent_at[s] && !(by->sent_at[s] = mark_new(by->dev, err))))
            return false;
    }
    return true;
}

static void piece_convert(struct loading *l, int64_t p)
{
    const struct piece *x = &l->piece[p];
    void *to = l->n_slot ? l->by->slot[p % l->n_slot] : x->to;
    if (l->m->dtype == DT_F32)
        st_part_to_f32(to, x->file, x->first, x->n);
    else
        st_part_to_bf16(to, x->file, x->first, x->n);
    int64_t bad = st_values_broken(to, l->m->dtype == DT_BF16, x->n);
    if (bad < 0)
        return;
    pthread_mutex_lock(&l->lock);
    if (l->broken < 0 || p < l->broken) {
        l->broken = p;
        l->broken_at = x->first + bad;
    }
    pthread_mutex_unlock(&l->lock);
}

/* A thread that converts until there is nothing left. */
static void *convert_main(void *arg)
{
    struct loading *l = arg;
    pthread_mutex_lock(&l->lock);
    while (!l->stop && l->n_taken < l->n_piece) {
        int64_t p = l->n_taken;
        if (l->n_slot && p >= l->n_sent + l->n_slot) {    // until the caller has sent another, or gives up
            pthread_cond_wait(&l->changed, &l->lock);
            continue;
        }
        l->n_taken++;
        pthread_mutex_unlock(&l->lock);
        piece_convert(l, p);
        pthread_mutex_lock(&l->lock);
        if (l->n_slot)
            l->ready[p % l->n_slot] = p;
        pthread_cond_broadcast(&l->changed);
    }
    pthread_mutex_unlock(&l->lock);
    return NULL;
}

/* Convert piece p here if nobody has taken it, else wait until it is ready: the one that has it only copies memory. */
static void piece_get(struct loading *l, int64_t p)
{
    pthread_mutex_lock(&l->lock);
    bool mine = l->n_taken == p;
    l->n_taken += mine;
    while (!mine && l->ready[p % l->n_slot] != p)
        pthread_cond_wait(&l->changed, &l->lock);
    pthread_mutex_unlock(&l->lock);
    if (mine)
        piece_convert(l, p);
}

/* Send all pieces in order; a buffer is free again one piece after its own was sent. */
static bool pieces_send(struct loading *l, struct error *err)
{
    const struct weights_loader *by = l->by;
    struct device *dev = by->dev;
    size_t e = dtype_size(l->m->dtype);
    for (int64_t p = 0; p < l->n_piece; p++) {
        const struct piece *x = &l->piece[p];
        int64_t s = p % l->n_slot;
        piece_get(l, p);
        if (!mem_copy(dev, x->to, by->slot[s], (size_t)x->n * e, COPY_H2D, err) || !mark_set(dev, by->sent_at[s], err)
            || (p > 0 && !mark_wait(dev, by->sent_at[(p - 1) % l->n_slot], err)))
            return false;
        pthread_mutex_lock(&l->lock);
        l->n_sent = p;
        pthread_cond_broadcast(&l->changed);
        pthread_mutex_unlock(&l->lock);
    }
    return device_sync(dev, err);
}

/* Threads that help: as many as this process has processors for, or as the device has. */
static int threads_wanted(const struct loading *l)
{
    cpu_set_t set;
    const struct device *dev = l->by->dev;
    int n = dev->host_memory ? dev->n_thread - 1 : sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    return (int)MIN((int64_t)MIN(n, THREADS_MAX), l->n_piece - 1);
}

struct weights_loader *weights_loader_new(const struct model *m, struct error *err)
{
    struct weights_loader *l = calloc(1, sizeof *l);
    if (l)
        l->dev = m->dev;
    else
        error_set(err, ERR_NO_MEMORY, "no memory for a loader of weights");
    return l;
}

void weights_loader_free(struct weights_loader *l)
{
    for (int s = 0; l && s < SLOTS_MAX; s++) {
        if (l->sent_at[s])
            mark_free(l->dev, l->sent_at[s]);
        if (l->slot[s])
            host_free(l->dev, l->slot[s]);
    }
    free(l);
}

bool weights_load(struct weights_loader *by, const struct model *m, const struct st_tensor *const *file, int64_t first, int64_t last,
                  char *to, struct error *err)
{
    struct loading l = { .m = m, .by = by, .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER, .broken = -1 };
    pthread_t thread[THREADS_MAX];
    int n_thread = 0;
    bool ok = false;
    TRY(pieces_make(&l, file, first, last, to, err) && slots_make(by, &l, err));
    TRY(device_sync(by->dev, err));    // what was asked for before is done with this memory
    for (int wanted = threads_wanted(&l); n_thread < wanted; n_thread++)
        if (thread_start(&thread[n_thread], convert_main, &l) != 0)
            break;    // then it takes longer
    if (l.n_slot)
        ok = pieces_send(&l, err);
    else
        ok = convert_main(&l) == NULL;
out:
    pthread_mutex_lock(&l.lock);
    l.stop = true;
    pthread_cond_broadcast(&l.changed);
    pthread_mutex_unlock(&l.lock);
    for (int i = 0; i < n_thread; i++)
        pthread_join(thread[i], NULL);
    if (ok && l.broken >= 0)
        ok = st_broken(l.piece[l.broken].file, l.broken_at, err);
    free(l.piece);
    return ok;
}
