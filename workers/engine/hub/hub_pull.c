#include "workers/engine/hub/hub_pull.h"
#include <inttypes.h>
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <curl/curl.h>
#include <jansson.h>
#include "protocol/base/buf.h"
#include "protocol/base/client.h"
#include "protocol/base/clock.h"
#include "protocol/base/file.h"
#include "protocol/base/digest.h"
#include "protocol/base/json_text.h"
#include "protocol/base/tcp.h"
#include "workers/engine/hub/hub.h"
#include "workers/engine/hub/hub_data.h"

#define API_BYTES_MAX ((size_t)64 << 20)
#define FILES_MAX 20000
#define TRIES 5

struct pull {
    const struct hub_pull *want;
    CURL *curl;
    struct curl_slist *headers;    // with the token
    char endpoint[1024];
    char why[CURL_ERROR_SIZE];
    char repo[PATH_MAX];    // folder in the cache
    char commit[41];
    int64_t total, done;    // bytes of the files wanted; those that are there
    int64_t drawn_ms;       // when the bar was drawn last
};
/* One file being received. */
struct receive {
    struct pull *p;
    const char *name;
    int fd;
    int64_t size;    // what the hub says
    int64_t have;    // bytes written
    bool started;    // the status of this answer has been looked at
    bool failed;
    struct digest digest;
};

/* Files of a model that rollcall, or anybody, needs to run it; weights in other formats are left out. */
static const char *const default_include[] = { "*.safetensors", "*.json", "*.jinja", "*.txt", "*.model", "LICENSE*" };
static const char *const default_exclude[] = { "original/*", "onnx/*", "runs/*", "training_args*" };

static bool file_wanted(const struct hub_pull *want, const char *name)
{
    const char *const *list = want->n_include ? want->include : default_include;
    int n = want->n_include ? want->n_include : (int)ARRAY_SIZE(default_include);
    for (size_t i = 0; !want->n_include && i < ARRAY_SIZE(default_exclude); i++)
        if (fnmatch(default_exclude[i], name, 0) == 0)
            return false;
    for (int i = 0; i < n; i++)
        if (fnmatch(list[i], name, 0) == 0)
            return true;
    return false;
}

static bool is_hex(const char *s, size_t len)
{
    return strlen(s) == len && strspn(s, "0123456789abcdef") == len;
}

/* Is this a name from the hub that stays below its folder? */
static bool file_name_ok(const char *name)
{
    size_t len = strlen(name);
    if (len == 0 || len > 512 || name[0] == '/' || name[len - 1] == '/')
        return false;
    for (const char *part = name; part;) {
        const char *slash = strchr(part, '/');
        size_t n = slash ? (size_t)(slash - part) : strlen(part);
        if (n == 0 || n > 255 || (n <= 2 && strspn(part, ".") >= n))
            return false;
        part = slash ? slash + 1 : NULL;
    }
    for (const char *p = name; *p; p++)
        if ((unsigned char)*p < 0x20 || *p == '\\' || *p == 0x7F)
            return false;
    return true;
}

/* ---- requests ---- */

/* Does a plain address lead to this machine? */
static bool is_loopback(const char *endpoint)
{
    const char *at = endpoint + strlen("http://");
    char host[280];
    size_t n = strcspn(at, "/?#");
    if (n >= sizeof host || memchr(at, '@', n))    // what comes before @ is a user's name, not a host
        return false;
    snprintf(host, sizeof host, "%.*s", (int)n, at);
    return tcp_is_loopback(host);
}

static bool token_find(char *out, size_t size)
{
    static const char *const variables[] = { "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN" };
    for (size_t i = 0; i < ARRAY_SIZE(variables); i++) {
        const char *v = getenv(variables[i]);
        if (v && v[0])
            return snprintf(out, size, "%s", v) < (int)size;
    }
    char path[PATH_MAX];
    const char *file = getenv("HF_TOKEN_PATH"), *home = getenv("HF_HOME");
    if (file && file[0])
        snprintf(path, sizeof path, "%s", file);
    else if (home && home[0])
        snprintf(path, sizeof path, "%s/token", home);
    else if (!cache_path(path, sizeof path, "huggingface/token"))
        return false;
    struct buf text = { .max = 1 << 17 };
    struct error ignored;    // no file: no token
    bool ok = path_exists(path) && file_read(&text, path, 4096, &ignored);
    if (ok)
        snprintf(out, size, "%.*s", (int)strcspn(buf_text(&text), " \r\n\t"), buf_text(&text));
    buf_release(&text);
    return ok && out[0];
}

static bool curl_ready(struct pull *p, struct error *err)
{
    const char *endpoint = getenv("HF_ENDPOINT");
    char token[1024] = "", header[1100];
    if (!endpoint || !endpoint[0])
        endpoint = "https://huggingface.co";
    int n = snprintf(p->endpoint, sizeof p->endpoint, "%s", endpoint);
    while (n > 0 && n < (int)sizeof p->endpoint && p->endpoint[n - 1] == '/')
        p->endpoint[--n] = 0;
    if (n >= (int)sizeof p->endpoint || (strncmp(endpoint, "https://", 8) != 0 && strncmp(endpoint, "http://", 7) != 0))
        return error_set(err, ERR_USAGE, "HF_ENDPOINT is '%.200s', which is not an http or https address", endpoint);
    bool plain = strncmp(endpoint, "http://", 7) == 0;
    p->curl = client_handle();
    if (!p->curl)
        return error_set(err, ERR_NO_MEMORY, "no memory for a download");
    if ((!plain || is_loopback(endpoint)) && token_find(token, sizeof token)) {
        if (strspn(token, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.") != strlen(token))
            return error_set(err, ERR_DATA, "the hub's token has characters that a token cannot have");
        snprintf(header, sizeof header, "Authorization: Bearer %s", token);
        p->headers = curl_slist_append(NULL, header);    // curl drops it when it is sent on to another host
        if (!p->headers)
            return error_set(err, ERR_NO_MEMORY, "no memory for a download");
    }
    return true;
}

/* Settings of every request; the caller adds the address and where the answer goes. */
static void request_reset(struct pull *p)
{
    CURL *c = p->curl;
    client_handle_reset(c, strncmp(p->endpoint, "http://", 7) == 0, 30);
    p->why[0] = 0;
    curl_easy_setopt(c, CURLOPT_ERRORBUFFER, p->why);
    curl_easy_setopt(c, CURLOPT_HTTPHEADER, p->headers);
    curl_easy_setopt(c, CURLOPT_USERAGENT, "rollcall");
    curl_easy_setopt(c, CURLOPT_FOLLOWLOCATION, 1L);
    curl_easy_setopt(c, CURLOPT_MAXREDIRS, 5L);
    curl_easy_setopt(c, CURLOPT_LOW_SPEED_LIMIT, 1L);    // nothing at all for a minute
    curl_easy_setopt(c, CURLOPT_LOW_SPEED_TIME, 60L);
}

static bool text_escaped(struct pull *p, struct buf *out, const char *text, size_t len, struct error *err)
{
    char *e = len ? curl_easy_escape(p->curl, text, (int)len) : NULL;
    if (!e)
        return error_set(err, ERR_NO_MEMORY, "no memory for an address");
    buf_str(out, e);
    curl_free(e);
    return true;
}

/* Wait before the next try: 0.2, 0.8, 3.2, 12.8 seconds. */
static void backoff(int tries)
{
    int64_t ms = 200ll << (2 * tries);
    struct timespec t = { ms / 1000, ms % 1000 * 1000000 };
    nanosleep(&t, NULL);
}

/* Fill err for a status other than success; *again: trying again may help. */
static bool status_check(const struct pull *p, long status, const char *what, bool *again, struct error *err)
{
    *again = false;
    if (status == 200 || status == 206)
        return true;
    const char *name = p->want->name, *revision = p->want->revision ? p->want->revision : "main";
    if (status == 401 || status == 403)
        return error_set(err, ERR_REFUSED, "the hub refuses '%s' (status %ld): it is private, gated or not there; %s", name, status,
                         p->headers ? "the token does not open it" : "set HF_TOKEN to a token that opens it");
    if (status == 404)
        return error_set(err, ERR_NOT_FOUND, "the hub has no '%s' at revision '%s'%s%s", name, revision,
                         what[0] ? ", or not its file " : "", what);
    *again = status == 408 || status == 429 || status >= 500;
    return error_set(err, ERR_IO, "the hub answers with status %ld for '%s' %s", status, name, what);
}

static size_t api_write(char *data, size_t size, size_t n, void *arg)
{
    return buf_add(arg, data, size * n) ? size * n : 0;
}

static json_t *api_get(struct pull *p, struct error *err)
{
    struct buf url = { .max = 1 << 14 }, text = { .max = API_BYTES_MAX };
    const char *revision = p->want->revision ? p->want->revision : "main";
    json_t *answer = NULL;
    buf_fmt(&url, "%s/api/%s/%s/revision/", p->endpoint, p->want->kind == HUB_DATASET ? "datasets" : "models", p->want->name);
    TRY(text_escaped(p, &url, revision, strlen(revision), err));
    buf_str(&url, "?blobs=true");
    for (int tries = 0;; tries++) {
        long status = 0;
        bool again = true;
        buf_clear(&text);
        request_reset(p);
        curl_easy_setopt(p->curl, CURLOPT_URL, buf_text(&url));
        curl_easy_setopt(p->curl, CURLOPT_WRITEFUNCTION, api_write);
        curl_easy_setopt(p->curl, CURLOPT_WRITEDATA, &text);
        curl_easy_setopt(p->curl, CURLOPT_TIMEOUT, 300L);
        CURLcode code = curl_easy_perform(p->curl);
        curl_easy_getinfo(p->curl, CURLINFO_RESPONSE_CODE, &status);
        if (code == CURLE_OK && status_check(p, status, "", &again, err))
            break;
        if (code != CURLE_OK)
            error_set(err, ERR_IO, "cannot ask '%s': %s", p->endpoint, p->why[0] ? p->why : curl_easy_strerror(code));
        if (!again || tries + 1 >= TRIES)
            goto out;
        backoff(tries);
    }
    json_error_t why;
    answer = json_text_read(buf_text(&text), text.len, JSON_REJECT_DUPLICATES, &why);
    if (!answer)
        error_set(err, ERR_DATA, "the hub's answer about '%s' is not JSON: %s", p->want->name, why.text);
out:
    buf_release(&url);
    buf_release(&text);
    return answer;
}

/* ---- progress ---- */

static void progress_draw(struct pull *p, const char *name, int64_t have, int64_t size, bool last)
{
    FILE *f = p->want->progress;
    if (!f)
        return;
    if (!isatty(fileno(f))) {
        if (last)
            fprintf(f, "%s: %" PRId64 " bytes\n", name, size);
        return;
    }
    int64_t now = clock_ms();
    if (!last && now - p->drawn_ms < 100)
        return;
    p->drawn_ms = now;
    double part = p->total > 0 ? (double)(p->done + have) / (double)p->total : 1;
    char bar[31];
    for (int i = 0; i < 30; i++)
        bar[i] = i < (int)(part * 30) ? '#' : '.';
    bar[30] = 0;
    fprintf(f, "\r\033[K[%s] %3.0f%% of %.2f GB  %.40s%s", bar, part * 100, (double)p->total / 1e9, name,
            last && p->done + have >= p->total ? "\n" : "");
    fflush(f);
}

/* ---- one file ---- */

static size_t file_receive(char *data, size_t size, size_t n, void *arg)
{
    struct receive *r = arg;
    size_t len = size * n;
    if (!r->started) {    // 200 to a request for the rest: the server gives the whole again
        long status = 0;
        curl_easy_getinfo(r->p->curl, CURLINFO_RESPONSE_CODE, &status);
        if (status != 200 && status != 206)
            return len;    // the text of an error: not wanted
        r->started = true;
        if (status == 200 && r->have > 0) {
            bool sha256 = r->digest.sha256;
            if (ftruncate(r->fd, 0) != 0 || lseek(r->fd, 0, SEEK_SET) != 0)
                return r->failed = true, 0;
            r->have = 0;
            digest_init(&r->digest, sha256);
            if (!sha256) {
                char head[64];
                digest_add(&r->digest, head, (size_t)snprintf(head, sizeof head, "blob %" PRId64, r->size) + 1);
            }
        }
    }
    if (r->have + (int64_t)len > r->size)
        return 0;    // more than announced
    for (size_t at = 0; at < len;) {
        ssize_t w = write(r->fd, data + at, len - at);
        if (w < 0 && errno == EINTR)
            continue;
        if (w < 0)
            return r->failed = true, 0;
        at += (size_t)w;
    }
    digest_add(&r->digest, data, len);
    r->have += (int64_t)len;
    progress_draw(r->p, r->name, r->have, r->size, false);
    return len;
}

/* Start the digest, with what an earlier attempt left; git's SHA-1 has the size in front. */
static bool receive_begin(struct receive *r, const char *path, bool sha256, struct error *err)
{
    char block[1 << 16];
    digest_init(&r->digest, sha256);
    if (!sha256)
        digest_add(&r->digest, block, (size_t)snprintf(block, sizeof block, "blob %" PRId64, r->size) + 1);
    r->fd = file_create(path, O_RDWR, 0644, err);
    if (r->fd < 0)
        return false;
    if (flock(r->fd, LOCK_EX | LOCK_NB) != 0)
        return error_set(err, ERR_EXISTS, "'%s' is being downloaded by another process", path);
    for (ssize_t n; (n = read(r->fd, block, sizeof block)) != 0;) {
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return error_errno(err, "cannot read '%s'", path);
        digest_add(&r->digest, block, (size_t)n);
        r->have += n;
    }
    if (r->have <= r->size)
        return true;
    digest_init(&r->digest, sha256);    // longer than the file can be: from the beginning
    if (!sha256)
        digest_add(&r->digest, block, (size_t)snprintf(block, sizeof block, "blob %" PRId64, r->size) + 1);
    r->have = 0;
    return (ftruncate(r->fd, 0) == 0 && lseek(r->fd, 0, SEEK_SET) == 0) || error_errno(err, "cannot empty '%s'", path);
}

static bool file_url(struct pull *p, struct buf *url, const char *name, struct error *err)
{
    buf_fmt(url, "%s/%s%s/resolve/%s", p->endpoint, p->want->kind == HUB_DATASET ? "datasets/" : "", p->want->name, p->commit);
    for (const char *part = name; part;) {
        const char *slash = strchr(part, '/');
        buf_char(url, '/');
        if (!text_escaped(p, url, part, slash ? (size_t)(slash - part) : strlen(part), err))
            return false;
        part = slash ? slash + 1 : NULL;
    }
    return !url->failed || error_set(err, ERR_NO_MEMORY, "no memory for an address");
}

/* Receive until all is there; what was received stays for the next try and the next run. */
static bool receive_all(struct pull *p, struct receive *r, const char *url, struct error *err)
{
    for (int tries = 0; r->have < r->size || r->size == 0; tries++) {
        char from[32];
        long status = 0;
        bool again = true;
        int64_t before = r->have;
        r->started = false;
        request_reset(p);
        curl_easy_setopt(p->curl, CURLOPT_URL, url);
        curl_easy_setopt(p->curl, CURLOPT_WRITEFUNCTION, file_receive);
        curl_easy_setopt(p->curl, CURLOPT_WRITEDATA, r);
        snprintf(from, sizeof from, "%" PRId64 "-", r->have);
        if (r->have > 0)
            curl_easy_setopt(p->curl, CURLOPT_RANGE, from);
        CURLcode code = curl_easy_perform(p->curl);
        curl_easy_getinfo(p->curl, CURLINFO_RESPONSE_CODE, &status);
        if (r->failed)
            return error_errno(err, "cannot write '%s' into the cache", r->name);
        if (code == CURLE_OK && !status_check(p, status, r->name, &again, err) && !again)
            return false;
        if (code == CURLE_WRITE_ERROR)
            return error_set(err, ERR_DATA, "'%s' is longer than the %" PRId64 " bytes the hub announced", r->name, r->size);
        if (code == CURLE_OK && (status == 200 || status == 206) && r->have == r->size)
            return true;
        if (code != CURLE_OK)
            error_set(err, ERR_IO, "cannot get '%s': %s", r->name, p->why[0] ? p->why : curl_easy_strerror(code));
        else if (status == 200 || status == 206)
            error_set(err, ERR_IO, "'%s' ends after %" PRId64 " of %" PRId64 " bytes", r->name, r->have, r->size);
        if (r->have > before)
            tries = 0;    // it goes on, slowly
        if (tries + 1 >= TRIES)
            return false;
        backoff(tries);
    }
    return true;
}

/* Download one file to blobs/HASH unless it is there. */
static bool blob_get(struct pull *p, const char *name, const char *hash, int64_t size, struct error *err)
{
    char blob[PATH_MAX], part[PATH_MAX], got[65];
    struct receive r = { .p = p, .name = name, .fd = -1, .size = size };
    struct buf url = { .max = 1 << 14 };
    struct stat st;
    bool ok = false;
    if (snprintf(blob, sizeof blob, "%s/blobs/%s", p->repo, hash) >= (int)sizeof blob
        || snprintf(part, sizeof part, "%s.incomplete", blob) >= (int)sizeof part)
        return error_set(err, ERR_IO, "the path of '%s' in the cache is too long", name);
    if (stat(blob, &st) == 0 && st.st_size == size) {
        p->done += size;
        return true;
    }
    TRY(receive_begin(&r, part, strlen(hash) == 64, err));
    TRY(file_url(p, &url, name, err));
    TRY(receive_all(p, &r, buf_text(&url), err));
    digest_hex(&r.digest, got);
    if (strcmp(got, hash) != 0) {
        unlink(part);    // resuming could not make it right
        error_set(err, ERR_DATA, "'%s' arrived with the hash %s instead of %s; try again", name, got, hash);
        goto out;
    }
    if (fsync(r.fd) != 0 || rename(part, blob) != 0) {
        error_errno(err, "cannot put '%s' in place", blob);
        goto out;
    }
    progress_draw(p, name, size, size, true);
    p->done += size;
    ok = true;
out:
    if (r.fd >= 0)
        close(r.fd);
    buf_release(&url);
    return ok;
}

/* snapshots/COMMIT/name -> the blob, by a relative link. */
static bool link_make(struct pull *p, const char *name, const char *hash, struct error *err)
{
    char at[PATH_MAX], tmp[PATH_MAX], target[PATH_MAX] = "../../";
    if (snprintf(at, sizeof at, "%s/snapshots/%s/%s", p->repo, p->commit, name) >= (int)sizeof at
        || snprintf(tmp, sizeof tmp, "%s.tmp-%d", at, (int)getpid()) >= (int)sizeof tmp)
        return error_set(err, ERR_IO, "the path of '%s' in the cache is too long", name);
    size_t n = 6;
    for (const char *s = strchr(name, '/'); s && n + 80 < sizeof target; s = strchr(s + 1, '/'))
        n += (size_t)snprintf(target + n, sizeof target - n, "../");
    snprintf(target + n, sizeof target - n, "blobs/%s", hash);
    char *slash = strrchr(at, '/');
    *slash = 0;
    bool ok = dir_make(at, 0755, err);
    *slash = '/';
    if (!ok)
        return false;
    unlink(tmp);
    if (symlink(target, tmp) != 0 || rename(tmp, at) != 0) {
        error_errno(err, "cannot make the link '%s'", at);
        unlink(tmp);
        return false;
    }
    return true;
}

/* ---- the whole ---- */

/* What the API says about a file. lfs: large files are named by their SHA-256, others by git's SHA-1. */
static bool sibling_read(const json_t *one, const char **name, const char **hash, int64_t *size, struct error *err)
{
    const json_t *lfs = json_object_get(one, "lfs"), *bytes = json_object_get(json_is_object(lfs) ? lfs : one, "size");
    *name = json_string_value(json_object_get(one, "rfilename"));
    *hash = json_string_value(json_is_object(lfs) ? json_object_get(lfs, "sha256") : json_object_get(one, "blobId"));
    *size = json_is_integer(bytes) ? json_integer_value(bytes) : -1;
    if (!*name || !file_name_ok(*name))
        return error_set(err, ERR_DATA, "the hub lists a file '%.80s', which is not a safe file name", *name ? *name : "");
    if (!*hash || !is_hex(*hash, json_is_object(lfs) ? 64 : 40) || *size < 0)
        return error_set(err, ERR_DATA, "the hub gives no size and hash for '%s'", *name);
    return true;
}

/* Download a file of the repository, and link to it. */
static bool file_get(struct pull *p, const json_t *sibling, struct error *err)
{
    const char *name, *hash;
    int64_t size;
    return sibling_read(sibling, &name, &hash, &size, err) && blob_get(p, name, hash, size, err) && link_make(p, name, hash, err);
}

static const char *sibling_name(const json_t *sibling)
{
    const char *name = json_string_value(json_object_get(sibling, "rfilename"));
    return name ? name : "";
}

/* Choose a data set's files into names: the README comes first, since it says which they are. */
static bool data_choose(struct pull *p, const json_t *siblings, struct hub_names *names, struct error *err)
{
    const struct hub_pull *want = p->want;
    char path[PATH_MAX];
    struct buf readme = { .max = API_BYTES_MAX };
    bool ok = false;
    size_t i;
    json_t *one;
    json_array_foreach((json_t *)siblings, i, one)
    {
        TRY(hub_names_add(names, sibling_name(one), err));
        if (strcmp(sibling_name(one), "README.md") != 0)
            continue;
        TRY(file_get(p, one, err));
        TRY(snprintf(path, sizeof path, "%s/snapshots/%s/README.md", p->repo, p->commit) < (int)sizeof path
            || error_set(err, ERR_IO, "the path of '%s' in the cache is too long", want->name));
        TRY(file_read(&readme, path, 8 << 20, err));
    }
    if (want->config || want->split)
        TRY(hub_data_select(names, buf_text(&readme), readme.len, want->config ? want->config : "", want->split ? want->split : "",
                            want->name, err));
    else
        hub_data_all(names);
    ok = true;
out:
    buf_release(&readme);
    return ok;
}

static bool files_get(struct pull *p, const json_t *siblings, struct error *err)
{
    const char *name, *hash;
    int64_t size;
    size_t i;
    int n_wanted = 0;
    json_t *one;
    struct hub_names names = { 0 };
    bool ok = false, chosen = p->want->kind == HUB_DATASET && p->want->n_include == 0;
    if (!json_is_array(siblings) || json_array_size(siblings) > FILES_MAX)
        return error_set(err, ERR_DATA, "the hub lists no files of '%s', or too many", p->want->name);
    TRY(!chosen || data_choose(p, siblings, &names, err));
    for (int pass = 0; pass < 2; pass++) {    // first to know how much it is
        json_array_foreach((json_t *)siblings, i, one)
        {
            if (!(chosen ? hub_names_wanted(&names, sibling_name(one)) : file_wanted(p->want, sibling_name(one))))
                continue;
            TRY(pass == 0 ? sibling_read(one, &name, &hash, &size, err) : file_get(p, one, err));
            p->total += pass == 0 ? size : 0;
            n_wanted++;
        }
        if (n_wanted == 0) {
            error_set(err, ERR_NOT_FOUND, "'%s' has none of the files wanted", p->want->name);
            goto out;
        }
    }
    ok = true;
out:
    hub_names_release(&names);
    return ok;
}

static bool folders_make(const struct pull *p, struct error *err)
{
    static const char *const below[] = { "blobs", "snapshots", "refs" };
    char path[PATH_MAX];
    for (size_t i = 0; i < ARRAY_SIZE(below); i++)
        if (!path_join(path, sizeof path, p->repo, below[i]) ? !error_set(err, ERR_IO, "the cache's path is too long")
                                                             : !dir_make(path, 0755, err))
            return false;
    return true;
}

/* refs/REVISION names the commit, unless the revision is the commit. */
static bool ref_write(const struct pull *p, const char *revision, struct error *err)
{
    char path[PATH_MAX];
    if (strcmp(revision, p->commit) == 0)
        return true;
    if (snprintf(path, sizeof path, "%s/refs/%s", p->repo, revision) >= (int)sizeof path)
        return error_set(err, ERR_IO, "the path of '%s' in the cache is too long", revision);
    char *slash = strrchr(path, '/');
    *slash = 0;
    bool ok = dir_make(path, 0755, err);
    *slash = '/';
    return ok && file_write(path, p->commit, 40, err);
}

static bool is_set(const char *variable)
{
    const char *v = getenv(variable);
    return v && v[0] && strcmp(v, "0") != 0 && strcasecmp(v, "false") != 0 && strcasecmp(v, "no") != 0;
}

bool hub_pull(const struct hub_pull *want, char *dir, size_t size, struct error *err)
{
    const char *revision = want->revision ? want->revision : "main";
    struct pull p = { .want = want };
    json_t *answer = NULL;
    bool ok = false;
    if (!hub_name_ok(want->name))
        return error_set(err, ERR_USAGE, "'%s' cannot be the name of a model or a data set; it is org/name", want->name);
    if (!hub_revision_ok(revision))
        return error_set(err, ERR_USAGE, "'%s' cannot be a revision", revision);
    if (want->offline || is_set("HF_HUB_OFFLINE"))
        return (want->kind == HUB_DATASET ? hub_find_dataset : hub_find)(dir, size, want->name, revision, err)
               || error_wrap(err, "offline");
    TRY(hub_repo_dir(p.repo, sizeof p.repo, want->kind, want->name, err));
    TRY(curl_ready(&p, err));
    TRY((answer = api_get(&p, err)) != NULL);
    const char *commit = json_string_value(json_object_get(answer, "sha"));
    if (!commit || !is_hex(commit, 40)) {
        error_set(err, ERR_DATA, "the hub names no commit for '%s' at '%s'", want->name, revision);
        goto out;
    }
    memcpy(p.commit, commit, 41);
    TRY(folders_make(&p, err));
    TRY(files_get(&p, json_object_get(answer, "siblings"), err));
    TRY(ref_write(&p, revision, err));
    int n = snprintf(dir, size, "%s/snapshots/%s", p.repo, p.commit);
    ok = (n >= 0 && (size_t)n < size) || error_set(err, ERR_IO, "the path of '%s' in the cache is too long", want->name);
out:
    json_decref(answer);
    curl_slist_free_all(p.headers);
    curl_easy_cleanup(p.curl);
    return ok;
}
