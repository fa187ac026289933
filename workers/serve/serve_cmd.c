/* rollcall serve: a model over HTTP, in the shapes that OpenAI's, vLLM's and SGLang's clients speak, and scored groups over HTTP, as
 * Atropos' environments and trainers speak; each on a port of its own */
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>
#include "protocol/base/bearer.h"
#include "protocol/base/cli.h"
#include "protocol/base/clock.h"
#include "protocol/base/file.h"
#include "protocol/base/log.h"
#include "protocol/base/own_hosts.h"
#include "protocol/base/secret.h"
#include "protocol/base/subcommand.h"
#include "protocol/base/tcp.h"
#include "protocol/base/thread.h"
#include "protocol/record/drawn_book.h"
#include "workers/atropos/atropos.h"
#include "workers/atropos/atropos_routes.h"
#include "workers/engine/load/tool_model.h"
#include "workers/engine/model/lora_config.h"
#include "workers/engine/model/model.h"
#include "workers/engine/text/tokenizer.h"
#include "workers/http/web.h"
#include "workers/serve/lent.h"
#include "workers/serve/policy.h"
#include "workers/serve/routes.h"

#define MODEL_LEN_MOST 32768    // default limit, since every sequence's memory is reserved as a whole
#define PEM_BYTES_MAX 65536
#define PORT_NONE INT64_MIN    // --port was not given
#define ABORT_MS 5000          // to send what is left after all jobs were ended

struct serve_options {
    struct tool_model tool;
    const char *lent_file;
    struct lent *lent;          // NULL: the weights are loaded
    struct drawn_book *book;    // of the run that lends them; NULL: of none
    const char *listen, *atropos_listen, *state_dir, *name, *token_file, *cert_file, *key_file, *allowed_hosts;
    bool no_token, lifo, no_reset;
    int64_t max_lora_rank, batch, max_len, queue, connections, body_mib, request_s, drain_s, groups_mib, env_expire_s;
    const char *host;    // with port another way to say `listen`
    int64_t port, n_device;
    char address[300];    // ... which is then kept here
    double kv_gib;
    char token[BEARER_MAX];
    struct buf cert, key;
};

static bool in_range(const char *name, int64_t value, int64_t low, int64_t high, struct error *err)
{
    return (value >= low && value <= high)
           || error_set(err, ERR_USAGE, "--%s is %" PRId64 "; it must be between %" PRId64 " and %" PRId64, name, value, low, high);
}

static bool listen_check(const struct serve_options *o, const char *option, const char *address, struct error *err)
{
    if (!strchr(address, ':'))
        return error_set(err, ERR_USAGE, "--%s is '%s'; it must be HOST:PORT, e.g. 127.0.0.1:9001", option, address);
    // a server that listens beyond this host answers, and takes orders from, anyone who reaches it
    return tcp_is_loopback(address) || o->token_file || o->no_token
           || error_set(err, ERR_USAGE,
                        "--%s %s is reached from other hosts: give --token-file FILE, or --no-token if all of them may use it", option,
                        address);
}

static bool doors_check(const struct serve_options *o, struct error *err)
{
    if (!o->listen && !o->atropos_listen)
        return error_set(err, ERR_USAGE, "--listen is needed: HOST:PORT, e.g. 127.0.0.1:9001 (or --atropos-listen for scored groups)");
    if (o->lent_file && (o->tool.name || strcmp(o->tool.dtype, "auto") != 0))
        return error_set(err, ERR_USAGE, "--shared-weights says which model it is, and of which type: leave out --model and --dtype");
    if (!o->listen && (o->tool.name || o->lent_file))
        return error_set(err, ERR_USAGE, "a model is served at --listen HOST:PORT, which is missing");
    if (!o->atropos_listen && (o->state_dir || o->lifo || o->no_reset))
        return error_set(err, ERR_USAGE, "--state, --lifo and --no-reset belong to --atropos-listen, which is missing");
    return (!o->listen || listen_check(o, "listen", o->listen, err))
           && (!o->atropos_listen || listen_check(o, "atropos-listen", o->atropos_listen, err));
}

/* Options of vLLM's servers that say the same in other words. */
static bool other_words(struct serve_options *o, struct error *err)
{
    bool given = o->port != PORT_NONE;
    if ((given && !in_range("port", o->port, 0, 65535, err)) || !in_range("tensor-parallel-size", o->n_device, 1, 1024, err))
        return false;
    if (o->n_device > 1)
        return error_set(err, ERR_USAGE,
                         "--tensor-parallel-size is %" PRId64 "; a server computes on one device. A run samples on several: "
                         "'producer_tensor_parallel_size'",
                         o->n_device);
    if (o->listen && (given || o->host))
        return error_set(err, ERR_USAGE, "--listen HOST:PORT says what --host and --port say; give one of both");
    if (o->host && !given)
        return error_set(err, ERR_USAGE, "--host needs --port, or give --listen HOST:PORT");
    if (!given)
        return true;
    bool is_v6 = o->host && strchr(o->host, ':') && o->host[0] != '[';
    if (snprintf(o->address, sizeof o->address, "%s%s%s:%" PRId64, is_v6 ? "[" : "", o->host ? o->host : "127.0.0.1", is_v6 ? "]" : "",
                 o->port)
        >= (int)sizeof o->address)
        return error_set(err, ERR_USAGE, "--host '%.60s...' is too long", o->host);
    o->listen = o->address;
    return true;
}

static bool options_check(struct serve_options *o, struct error *err)
{
    if (!other_words(o, err) || !doors_check(o, err) || !in_range("batch", o->batch, 1, 65536, err)
        || !in_range("max-model-len", o->max_len, 0, 1 << 24, err) || !in_range("max-lora-rank", o->max_lora_rank, 0, LORA_RANK_MAX, err)
        || !in_range("queue", o->queue, 1, 1 << 20, err) || !in_range("connections", o->connections, 1, 16384, err)
        || !in_range("body-mib", o->body_mib, 1, 1024, err) || !in_range("request-s", o->request_s, 1, 3600, err)
        || !in_range("drain-s", o->drain_s, 0, 86400, err) || !in_range("groups-mib", o->groups_mib, 1, 1 << 20, err)
        || !in_range("env-expire-s", o->env_expire_s, 0, 86400, err))
        return false;
    if (!(o->kv_gib == 0 || o->kv_gib >= 0.001) || o->kv_gib > 16384)    // less would be 0, which asks for enough
        return error_set(err, ERR_USAGE, "--kv-gib is %g; it must be 0, or between 0.001 and 16384", o->kv_gib);
    if (!own_hosts_check(o->allowed_hosts, "--allowed-hosts", err))
        return false;
    if (!o->cert_file != !o->key_file)
        return error_set(err, ERR_USAGE, "--tls-cert and --tls-key are needed both, or neither");
    if (o->token_file && !bearer_read(o->token, o->token_file, err))
        return false;
    if (o->cert_file
        && (!file_read_text(&o->cert, o->cert_file, PEM_BYTES_MAX, err) || !file_read_text(&o->key, o->key_file, PEM_BYTES_MAX, err)))
        return false;
    return true;
}

/* The last part of the directory's path, unless a name was given. */
static void name_pick(char *out, size_t size, const struct serve_options *o)
{
    char dir[4096];
    snprintf(dir, sizeof dir, "%s", o->tool.name);
    size_t len = strlen(dir);
    while (len > 1 && dir[len - 1] == '/')
        dir[--len] = 0;
    const char *slash = strrchr(dir, '/');
    bool is_path = path_is_dir(dir);
    snprintf(out, size, "%s", o->name ? o->name : is_path && slash && slash[1] ? slash + 1 : dir);
}

/* What is served: a model, scored groups, or both. */
struct doors {
    struct serve model;
    char name[256];    // of the model
    int64_t max_len;
    struct web *model_web;    // NULL: no model
    struct atropos_door groups;
    struct web *groups_web;    // NULL: no groups
};

/* Serve at an address; c has what belongs to the routes. Prints nothing. NULL: see err. */
static struct web *door_open(const struct serve_options *o, const char *address, struct web_config *c, uint16_t *port, struct error *err)
{
    c->listen_fd = tcp_listen(address, err);
    if (c->listen_fd < 0)
        return NULL;
    *port = tcp_port(c->listen_fd);
    c->address = address;
    c->allowed_hosts = o->allowed_hosts;
    c->token = o->token_file ? o->token : NULL;
    c->cert_pem = o->cert_file ? buf_text(&o->cert) : NULL;
    c->key_pem = o->key_file ? buf_text(&o->key) : NULL;
    c->max_connections = o->connections;
    c->max_body_bytes = (size_t)o->body_mib << 20;
    c->max_bodies_bytes = (size_t)o->body_mib << 23;    // eight of them
    c->head_ms = o->request_s * 1000;
    c->body_ms = 4 * o->request_s * 1000;
    c->idle_ms = 75000;
    return web_new(c, err);
}

/* "http://HOST:PORT" */
static void url_print(char *out, size_t size, const struct serve_options *o, const char *address, uint16_t port)
{
    snprintf(out, size, "%s://%.*s:%u", o->cert_file ? "https" : "http", (int)(strrchr(address, ':') - address), address, port);
}

static struct model *lent_model_open(void *ctx, struct device *dev, struct error *err)
{
    return lent_model(ctx, dev, err);
}

/* Find the trainer whose weights are to be served; its device is ours, unless another was asked for. */
static bool lent_find(struct serve_options *o, struct error *err)
{
    if (!(o->lent = lent_open(o->lent_file, err)))
        return false;
    const struct lent_file *f = lent_about(o->lent);
    const char *lends = f->device, *own = o->tool.device ? o->tool.device : lends;
    bool on_gpu = strncmp(lends, "cuda:", 5) == 0;
    if (on_gpu != (strncmp(own, "cuda:", 5) == 0))
        return error_set(err, ERR_USAGE, "the weights of '%s' are in the memory of %s; --device %s cannot compute with them", o->lent_file,
                         lends, own);
    struct error why;
    char book[4200];
    if (drawn_book_path_lent(o->lent_file, book, sizeof book) && !(o->book = drawn_book_open(book, &why)))
        log_warn("what is drawn for environments is not noted: %s", why.text);
    o->tool.device = own;
    o->tool.name = f->model;
    o->tool.text_name = f->tokenizer;
    o->tool.open = lent_model_open;
    o->tool.open_ctx = o->lent;
    o->max_lora_rank = 0;
    o->max_len = o->max_len > 0 ? o->max_len : f->max_seq_tok;
    return true;
}

static bool model_open(struct doors *d, struct serve_options *o, struct error *err)
{
    struct serve *s = &d->model;
    const struct model_config *mc = model_config(o->tool.model);
    uint16_t port;
    char url[300];
    int64_t usual = MIN(config_longest(mc), rope_longest(&mc->rope, mc->max_pos));    // longrope's short frequencies, unless asked for more
    d->max_len = o->max_len > 0 ? o->max_len : MIN(usual, MODEL_LEN_MOST);
    model_length_set(o->tool.model, d->max_len);
    name_pick(d->name, sizeof d->name, o);
    s->dir = o->tool.dir;
    s->started_s = clock_wall_s();
    s->eos = tokenizer_eos(o->tool.tokenizer, &s->n_eos);
    if (s->n_eos == 0) {
        s->eos = mc->eos;
        s->n_eos = mc->n_eos;
    }
    s->text = (struct ask_text){ .encoder = o->tool.encoder,
                                 .tokenizer = o->tool.tokenizer,
                                 .template = o->tool.template,
                                 .max_seq_tok = d->max_len,
                                 .n_id = model_n_live(o->tool.model) };
    s->reply = (struct reply_context){ .model = d->name, .tokenizer = o->tool.tokenizer };
    struct policy_config config = { .lent = o->lent,
                                    .book = o->book,
                                    .model = o->tool.model,
                                    .tokenizer = o->tool.tokenizer,
                                    .max_seq = o->batch,
                                    .max_seq_tok = d->max_len,
                                    .max_queue = o->queue,
                                    .max_lora_rank = o->max_lora_rank,
                                    .kv_bytes = (size_t)(o->kv_gib * 1024 * 1024 * 1024),
                                    .eos = s->eos,
                                    .n_eos = s->n_eos };
    if (getrandom(&s->run, sizeof s->run, 0) != (ssize_t)sizeof s->run)
        return error_errno(err, "the system gives no random numbers");
    if (!(s->policy = policy_new(&config, err)))
        return false;
    struct web_config web_config = { 0 };
    serve_routes_set(&web_config, s);
    if (!(d->model_web = door_open(o, o->listen, &web_config, &port, err)))
        return false;
    url_print(url, sizeof url, o, o->listen, port);
    printf("serving '%s' at %s, context %" PRId64 " tokens\n", d->name, url, d->max_len);
    return true;
}

static bool groups_open(struct doors *d, const struct serve_options *o, struct error *err)
{
    struct atropos_config config = {
        .dir = o->state_dir, .max_bytes = (size_t)o->groups_mib << 20, .env_expire_ms = o->env_expire_s * 1000, .lifo = o->lifo
    };
    struct web_config web_config = { 0 };
    uint16_t port;
    char url[300];
    d->groups.no_reset = o->no_reset;
    atropos_routes_set(&web_config, &d->groups);
    if (!(d->groups.state = atropos_new(&config, err)) || !(d->groups_web = door_open(o, o->atropos_listen, &web_config, &port, err)))
        return false;
    url_print(url, sizeof url, o, o->atropos_listen, port);
    if (o->state_dir)
        printf("taking scored groups at %s, kept in '%s', %" PRId64 " waiting\n", url, o->state_dir, atropos_queued(d->groups.state));
    else
        printf("taking scored groups at %s, kept in memory\n", url);
    return true;
}

/* Stop gracefully: requests under way are finished within the limit, the rest are cut short with what they have. */
static void drain(struct doors *d, int64_t limit_s)
{
    if (d->groups_web)
        web_close(d->groups_web);
    if (d->model_web) {
        web_close(d->model_web);
        if (!policy_close(d->model.policy, limit_s * 1000)) {
            log_warn("requests were still under way after %" PRId64 " s, and are cut short", limit_s);
            policy_abort_all(d->model.policy);
            policy_close(d->model.policy, ABORT_MS);
        }
    }
    if ((d->model_web && !web_wait(d->model_web, ABORT_MS)) || (d->groups_web && !web_wait(d->groups_web, ABORT_MS)))
        log_warn("some clients have not taken their answers");
}

static void doors_release(struct doors *d)
{
    if (d->model_web)
        web_close(d->model_web);
    if (d->model.policy)
        policy_abort_all(d->model.policy);
    web_free(d->model_web);
    policy_free(d->model.policy);
    web_free(d->groups_web);
    atropos_free(d->groups.state);
}

static bool serve_run(struct serve_options *o, int stop_fd, struct error *err)
{
    struct doors d = { .max_len = 0 };
    bool ok = false;
    TRY(!o->atropos_listen || groups_open(&d, o, err));
    TRY(!o->listen || model_open(&d, o, err));
    if (fflush(stdout) != 0) {
        error_errno(err, "cannot write the output");
        goto out;
    }
    stop_fd_wait(stop_fd);
    drain(&d, o->drain_s);
    ok = true;
out:
    doors_release(&d);
    return ok;
}

static bool serve_cmd(int argc, char **argv, struct error *err)
{
    struct serve_options o = { .tool = { .dtype = "auto" },    // the device's default depends on --shared-weights
                               .port = PORT_NONE,
                               .n_device = 1,
                               .max_lora_rank = 64,
                               .batch = 256,
                               .queue = 4096,
                               .connections = 512,
                               .body_mib = 16,
                               .request_s = 15,
                               .drain_s = 30,
                               .groups_mib = 1024,
                               .env_expire_s = 120 };
    // clang-format off
    struct cli_option options[] = {
        TOOL_MODEL_OPTIONS(&o.tool),
        {"shared-weights", NULL, CLI_STR, &o.lent_file, "FILE", "in place of --model: compute with the weights that a run on this host lends (its 'weight_bridge_file'), as they are being trained; they are in memory once"},
        {"listen", "l", CLI_STR, &o.listen, "HOST:PORT", "where to serve, e.g. 127.0.0.1:9001; port 0 is a free one"},
        {"port", NULL, CLI_I64, &o.port, "PORT", "the same as --listen 127.0.0.1:PORT, as vLLM's servers have it"},
        {"host", NULL, CLI_STR, &o.host, "HOST", "with --port: the same as --listen HOST:PORT"},
        {"tensor-parallel-size", NULL, CLI_I64, &o.n_device, "N", "only 1: a server computes on one device"},
        {"served-name", NULL, CLI_STR, &o.name, "NAME", "what clients call the model (default: its directory's name)"},
        {"max-model-len", NULL, CLI_I64, &o.max_len, "N", "longest prompt and completion (default: the model's, at most 32768)"},
        {"batch", NULL, CLI_I64, &o.batch, "N", "samples decoded at once (default 256, on a CPU 32 per thread)"},
        {"kv-gib", NULL, CLI_F64, &o.kv_gib, "GIB", "memory for keys and values (default: enough, at most half of what is free)"},
        {"max-lora-rank", NULL, CLI_I64, &o.max_lora_rank, "R", "room for adapters of up to this rank, loaded while serving; 0: none (default 64)"},
        {"queue", NULL, CLI_I64, &o.queue, "N", "prompts inside, waiting ones too; more are answered with 503 (default 4096)"},
        {"connections", NULL, CLI_I64, &o.connections, "N", "open at once (default 512)"},
        {"body-mib", NULL, CLI_I64, &o.body_mib, "N", "longest body of a request, also after gzip (default 16)"},
        {"request-s", NULL, CLI_I64, &o.request_s, "S", "a client must send a request's header within this, and its body within four times it (default 15)"},
        {"drain-s", NULL, CLI_I64, &o.drain_s, "S", "after SIGTERM, finish requests for so long (default 30)"},
        {"atropos-listen", NULL, CLI_STR, &o.atropos_listen, "HOST:PORT", "where to take scored groups as Atropos' API server does, e.g. 127.0.0.1:8000"},
        {"state", NULL, CLI_STR, &o.state_dir, "DIR", "keep groups and registrations there, so that a restart loses nothing"},
        {"groups-mib", NULL, CLI_I64, &o.groups_mib, "N", "memory for groups that wait; more are answered with 503 (default 1024)"},
        {"env-expire-s", NULL, CLI_I64, &o.env_expire_s, "S", "an environment silent for so long has no share of a batch; 0: it keeps it (default 120)"},
        {"lifo", NULL, CLI_FLAG, &o.lifo, NULL, "hand out the newest batch first, as Atropos does"},
        {"no-reset", NULL, CLI_FLAG, &o.no_reset, NULL, "refuse /reset_data, so that a viewer cannot empty the queue"},
        {"token-file", NULL, CLI_STR, &o.token_file, "FILE", "clients must send the bearer token in this file"},
        {"allowed-hosts", NULL, CLI_STR, &o.allowed_hosts, "NAME,…", "more names that clients may ask for, such as a proxy's: llm.example.org, *.example.org, or * for any; without a token, a server answers only for addresses, this host's name and names without a dot"},
        {"no-token", NULL, CLI_FLAG, &o.no_token, NULL, "listen beyond this host without a token"},
        {"tls-cert", NULL, CLI_STR, &o.cert_file, "FILE", "serve HTTPS with this certificate (PEM)"},
        {"tls-key", NULL, CLI_STR, &o.key_file, "FILE", "and its key (PEM)"},
    };
    // clang-format on
    struct cli cli = {
        .command = "rollcall serve",
        .options = options,
        .n_options = ARRAY_SIZE(options),
        .about = "Serves a model over HTTP: OpenAI's completions and chat, /generate as vLLM and SGLang have it, and token in, "
                 "token out. Log-probs are those that training computes, to the bit. Example:\n"
                 "  rollcall serve --model build/starter --listen 127.0.0.1:9001\n"
                 "  curl -s http://127.0.0.1:9001/v1/completions -d '{\"prompt\": \"12+30=\", \"max_tokens\": 20}'\n"
                 "Takes scored groups from environments that were written for Atropos, for any trainer of its protocol:\n"
                 "  rollcall serve --atropos-listen 127.0.0.1:8000 --state groups"
    };
    int stop_fd = -1;
    bool ok = false;
    if (!cli_parse(&cli, argc, argv, err))
        return false;
    if (cli.help_wanted)
        return true;
    TRY(options_check(&o, err));
    if (o.token_file || o.key_file)
        secret_process();
    TRY((stop_fd = stop_fd_open(false, err)) >= 0);    // loading a model starts threads, some of them in libraries
    TRY(!o.lent_file || lent_find(&o, err));
    o.tool.device = o.tool.device ? o.tool.device : "cpu:0";
    TRY(!o.listen || tool_model_load(&o.tool, true, err));
    TRY(serve_run(&o, stop_fd, err));
    ok = true;
out:
    buf_release(&o.cert);
    buf_release(&o.key);
    lent_free(o.lent);
    drawn_book_close(o.book);
    tool_model_release(&o.tool);
    if (stop_fd >= 0)
        close(stop_fd);
    return ok;
}

const struct subcommand serve_subcommand = {
    "serve", serve_cmd, "serve a model over HTTP as OpenAI's, vLLM's and SGLang's clients expect, or take groups as Atropos does"
};
