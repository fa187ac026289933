#include "workers/host/sampler.h"
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <time.h>
#include "protocol/base/clock.h"
#include "protocol/base/machine.h"
#include "protocol/base/thread.h"

#define PERIOD_S 1

struct sampler {
    pthread_t thread;
    char run_dir[4096];
    pthread_mutex_t lock;    // guards: all below
    pthread_cond_t wake;
    bool stop, fresh;
    struct node_sample newest;
    int64_t finished_ms;    // when the last sample was
};

/* ---- the host, from /proc ---- */

static void cpu_take(double *percent, struct host_before *before)
{
    double t[8] = { 0 };    // user nice system idle iowait irq softirq steal
    FILE *f = fopen("/proc/stat", "re");
    if (!f)
        return;
    bool ok = fscanf(f, "cpu %lf %lf %lf %lf %lf %lf %lf %lf", &t[0], &t[1], &t[2], &t[3], &t[4], &t[5], &t[6], &t[7]) == 8;
    fclose(f);
    if (!ok)
        return;
    double total = 0, busy;
    for (int i = 0; i < 8; i++)
        total += t[i];
    busy = total - t[3] - t[4];
    if (before->known && total > before->total)
        *percent = 100 * fmax(0, busy - before->busy) / (total - before->total);
    before->busy = busy;
    before->total = total;
}

static void memory_take(double *value)
{
    struct machine_memory m = machine_memory();
    double total = m.total == SIZE_MAX ? NAN : (double)m.total, available = m.available == SIZE_MAX ? NAN : (double)m.available;
    value[HOST_MEM_TOTAL] = total;
    value[HOST_MEM_USED] = total - available;
    value[HOST_MEM_PERCENT] = 100 * (total - available) / total;
}

/* Whole disks only, so that no byte counts twice: no devices built from others (dm, md, loop, ram), no partitions. */
static bool disk_is_whole(const char *name)
{
    size_t n = strlen(name);
    if (strncmp(name, "sd", 2) == 0 || strncmp(name, "vd", 2) == 0 || strncmp(name, "xvd", 3) == 0 || strncmp(name, "hd", 2) == 0)
        return n > 0 && (name[n - 1] < '0' || name[n - 1] > '9');
    return strncmp(name, "nvme", 4) == 0 && !strchr(name + 4, 'p');
}

static void disks_take(double *read, double *written)
{
    char line[512], name[64];
    double sectors_read, sectors_written;
    *read = *written = NAN;
    FILE *f = fopen("/proc/diskstats", "re");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "%*d %*d %63s %*f %*f %lf %*f %*f %*f %lf", name, &sectors_read, &sectors_written) == 3 && disk_is_whole(name)) {
            *read = (isnan(*read) ? 0 : *read) + 512 * sectors_read;    // /proc counts sectors of 512 bytes, whatever the disk has
            *written = (isnan(*written) ? 0 : *written) + 512 * sectors_written;
        }
    if (f)
        fclose(f);
}

static void networks_take(double *received, double *sent)
{
    char line[512], name[64];
    double in, out;
    *received = *sent = NAN;
    FILE *f = fopen("/proc/net/dev", "re");
    while (f && fgets(line, sizeof line, f)) {
        char *colon = strchr(line, ':');
        if (!colon)
            continue;
        *colon = ' ';
        if (sscanf(line, "%63s %lf %*f %*f %*f %*f %*f %*f %*f %lf", name, &in, &out) != 3 || strcmp(name, "lo") == 0)
            continue;
        *received = (isnan(*received) ? 0 : *received) + in;
        *sent = (isnan(*sent) ? 0 : *sent) + out;
    }
    if (f)
        fclose(f);
}

void host_sample(double value[HOST_FIELD_N], struct host_before *before, const char *run_dir)
{
    double read, written, sent, received;
    struct statvfs fs;
    for (int i = 0; i < HOST_FIELD_N; i++)
        value[i] = NAN;
    cpu_take(&value[HOST_CPU], before);
    if (getloadavg(&value[HOST_LOAD], 1) != 1)
        value[HOST_LOAD] = NAN;
    memory_take(value);
    if (statvfs(run_dir, &fs) == 0 && fs.f_blocks > 0) {
        double used = (double)(fs.f_blocks - fs.f_bfree);
        value[HOST_DISK_USED] = used * (double)fs.f_frsize;
        value[HOST_DISK_PERCENT] = 100 * used / (used + (double)fs.f_bavail);    // as in df: space reserved for root is not counted as free
    }
    disks_take(&read, &written);
    networks_take(&received, &sent);
    if (!before->known)
        *before = (struct host_before){ true, before->busy, before->total, read, written, sent, received };
    value[HOST_DISK_READ] = read - before->read;
    value[HOST_DISK_WRITTEN] = written - before->written;
    value[HOST_NET_SENT] = sent - before->sent;
    value[HOST_NET_RECEIVED] = received - before->received;
}

/* ---- the thread ---- */

static bool sample_put(struct sampler *s, const struct node_sample *sample)
{
    struct timespec until;
    pthread_mutex_lock(&s->lock);
    s->newest = *sample;
    s->fresh = true;
    s->finished_ms = clock_ms();
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += PERIOD_S;
    while (!s->stop && pthread_cond_timedwait(&s->wake, &s->lock, &until) != ETIMEDOUT)
        ;
    bool stop = s->stop;
    pthread_mutex_unlock(&s->lock);
    return !stop;
}

static void *sampler_run(void *arg)
{
    struct sampler *s = arg;
    struct node_sample sample = { 0 };
    struct host_before before = { 0 };
    struct error err = { 0 };
    struct nvml *nvml = nvml_new(&err);
    if (nvml)
        snprintf(sample.driver, sizeof sample.driver, "%s", nvml_driver(nvml));
    snprintf(sample.no_gpu, sizeof sample.no_gpu, "%s", !nvml ? err.text : nvml_n_gpu(nvml) ? "" : "the driver knows no device");
    do {
        sample.n_gpu = nvml ? nvml_n_gpu(nvml) : 0;
        for (int i = 0; i < sample.n_gpu; i++)
            nvml_sample(nvml, i, &sample.gpu[i]);
        host_sample(sample.host, &before, s->run_dir);
        sample.wall_s = clock_wall_s();
    } while (sample_put(s, &sample));
    nvml_free(nvml);
    return NULL;
}

struct sampler *sampler_new(const char *run_dir, struct error *err)
{
    struct sampler *s = calloc(1, sizeof *s);
    pthread_condattr_t attr;
    if (!s) {
        error_set(err, ERR_NO_MEMORY, "no memory for telemetry");
        return NULL;
    }
    snprintf(s->run_dir, sizeof s->run_dir, "%s", run_dir);
    pthread_mutex_init(&s->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&s->wake, &attr);
    pthread_condattr_destroy(&attr);
    s->finished_ms = clock_ms();
    if (thread_start(&s->thread, sampler_run, s) != 0) {
        free(s);
        error_set(err, ERR_NO_MEMORY, "cannot make the thread of telemetry");
        return NULL;
    }
    return s;
}

void sampler_free(struct sampler *s)
{
    struct timespec until;
    if (!s)
        return;
    pthread_mutex_lock(&s->lock);
    s->stop = true;
    pthread_cond_signal(&s->wake);
    pthread_mutex_unlock(&s->lock);
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 1;
    if (pthread_timedjoin_np(s->thread, NULL, &until) == 0)    // otherwise the thread still uses s
        free(s);
}

bool sampler_take(struct sampler *s, struct node_sample *out)
{
    pthread_mutex_lock(&s->lock);
    bool fresh = s->fresh;
    if (fresh)
        *out = s->newest;
    s->fresh = false;
    pthread_mutex_unlock(&s->lock);
    return fresh;
}

double sampler_silent_s(struct sampler *s)
{
    pthread_mutex_lock(&s->lock);
    double silent_s = (double)(clock_ms() - s->finished_ms) / 1000;
    pthread_mutex_unlock(&s->lock);
    return silent_s;
}
