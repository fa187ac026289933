/* rollcall serve: a model over HTTP, in the shapes that OpenAI's, vLLM's and SGLang's clients speak */
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <unistd.h>
#include "protocol/base/bearer.h"
#include "protocol/base/cli.h"
#include "protocol/base/clock.h"
#include "protocol/base/file.h"
#include "protocol/base/log.h"
#include "protocol/base/secret.h"
#include "protocol/base/subcommand.h"
#include "protocol/base/tcp.h"
#include "workers/engine/load/tool_model.h"
#include "workers/engine/model/model.h"
#include "workers/engine/text/tokenizer.h"
#include "workers/serve/policy.h"
#include "workers/serve/web.h"
#include "workers/serve/routes.h"

#define MODEL_LEN_MOST 32768    // default limit, since every sequence's memory is reserved as a whole
#define PEM_BYTES_MAX 65536
#define ABORT_MS 5000    // to send what is left after all jobs were ended

struct serve_options {
    struct tool_model tool;
    const char *listen, *name, *token_file, *cert_file, *key_file;
    bool no_token;
    int64_t batch, max_len, queue, connections, body_mib, request_s, drain_s;
    double kv_gib;
    char token[BEARER_MAX];
    struct buf cert, key;
};

static bool in_range(const char *name, int64_t value, int64_t low, int64_t high, struct error *err)
{
    return (value >= low && value <= high)
           || error_set(err, ERR_USAGE, "--%s is %" PRId64 "; it must be between %" PRId64 " and %" PRId64, name, value, low, high);
}

static bool options_check(struct serve_options *o, struct error *err)
{
    if (!o->listen || !strchr(o->listen, ':'))
        return error_set(err, ERR_USAGE, "--listen is needed: HOST:PORT, e.g. 127.0.0.1:9001");
    if (!in_range("batch", o->batch, 1, 65536, err) || !in_range("max-model-len", o->max_len, 0, 1 << 24, err)
        || !in_range("queue", o->queue, 1, 1 << 20, err) || !in_range("connections", o->connections, 1, 16384, err)
        || !in_range("body-mib", o->body_mib, 1, 1024, err) || !in_range("request-s", o->request_s, 1, 3600, err)
        || !in_range("drain-s", o->drain_s, 0, 86400, err))
        return false;
    if (!(o->kv_gib >= 0) || o->kv_gib > 16384)
        return error_set(err, ERR_USAGE, "--kv-gib is %g; it must be between 0 and 16384", o->kv_gib);
    if (!o->cert_file != !o->key_file)
        return error_set(err, ERR_USAGE, "--tls-cert and --tls-key are needed both, or neither");
    if (o->token_file && !bearer_read(o->token, o->token_file, err))
        return false;
    if (o->cert_file
        && (!file_read_text(&o->cert, o->cert_file, PEM_BYTES_MAX, err) || !file_read_text(&o->key, o->key_file, PEM_BYTES_MAX, err)))
        return false;
    return true;
}

/* A server that listens beyond this host answers, and loads weights for, anyone who reaches it: allow that only with a
 * token or an explicit option. */
static bool listen_check(const struct serve_options *o, struct error *err)
{
    const char *host = o->listen;
    bool loopback = strncmp(host, "127.", 4) == 0 || strncmp(host, "localhost:", 10) == 0 || strncmp(host, "[::1]:", 6) == 0;
    return loopback || o->token_file || o->no_token
           || error_set(err, ERR_USAGE,
                        "--listen %s is reached from other hosts: give --token-file FILE, or --no-token if all of them may use it",
                        o->listen);
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

/* Stop gracefully: requests under way are finished within the limit, the rest are cut short with what they have. */
static void drain(struct web *web, struct policy *policy, int64_t limit_s)
{
    web_close(web);
    if (!policy_close(policy, limit_s * 1000)) {
        log_warn("requests were still under way after %" PRId64 " s, and are cut short", limit_s);
        policy_abort_all(policy);
        policy_close(policy, ABORT_MS);
    }
    if (!web_wait(web, ABORT_MS))
        log_warn("some clients have not taken their answers");
}

static bool serve_run(struct serve_options *o, struct error *err)
{
    struct serve s = { .dir = o->tool.dir, .started_s = clock_wall_s() };
    struct encoder *encoder = o->tool.encoder;
    const struct model_config *mc = model_config(o->tool.model);
    struct web *web = NULL;
    struct signalfd_siginfo got;
    char name[256];
    int stop_fd = -1, listen_fd;
    bool ok = false;
    sigset_t stop;
    int64_t max_len = o->max_len > 0 ? o->max_len : MIN(mc->max_pos, MODEL_LEN_MOST);
    name_pick(name, sizeof name, o);
    s.eos = tokenizer_eos(o->tool.tokenizer, &s.n_eos);
    if (s.n_eos == 0) {
        s.eos = mc->eos;
        s.n_eos = mc->n_eos;
    }
    s.text = (struct ask_text){ .encoder = encoder,
                                .tokenizer = o->tool.tokenizer,
                                .template = o->tool.template,
                                .max_seq_tok = max_len,
                                .n_id = model_n_live(o->tool.model) };
    s.reply = (struct reply_context){ .model = name, .tokenizer = o->tool.tokenizer };
    struct policy_config config = { .model = o->tool.model,
                                    .tokenizer = o->tool.tokenizer,
                                    .max_seq = o->batch,
                                    .max_seq_tok = max_len,
                                    .max_queue = o->queue,
                                    .kv_bytes = (size_t)(o->kv_gib * 1024 * 1024 * 1024),
                                    .eos = s.eos,
                                    .n_eos = s.n_eos };
    if (getrandom(&s.run, sizeof s.run, 0) != (ssize_t)sizeof s.run)
        return error_errno(err, "the system gives no random numbers");
    sigemptyset(&stop);
    sigaddset(&stop, SIGTERM);
    sigaddset(&stop, SIGINT);
    pthread_sigmask(SIG_BLOCK, &stop, NULL);    // before any thread starts
    stop_fd = signalfd(-1, &stop, SFD_CLOEXEC);
    if (stop_fd < 0)
        return error_errno(err, "signals cannot be received");
    TRY((listen_fd = tcp_listen(o->listen, err)) >= 0);
    if (!(s.policy = policy_new(&config, err))) {
        close(listen_fd);
        goto out;
    }
    uint16_t port = tcp_port(listen_fd);
    struct web_config web_config = { .listen_fd = listen_fd,
                                     .route = serve_routes,
                                     .n_route = n_serve_routes,
                                     .ctx = &s,
                                     .token = o->token_file ? o->token : NULL,
                                     .cert_pem = o->cert_file ? buf_text(&o->cert) : NULL,
                                     .key_pem = o->key_file ? buf_text(&o->key) : NULL,
                                     .max_connections = o->connections,
                                     .max_body_bytes = (size_t)o->body_mib << 20,
                                     .max_bodies_bytes = (size_t)o->body_mib << 23,    // eight of them
                                     .head_ms = o->request_s * 1000,
                                     .body_ms = 4 * o->request_s * 1000,
                                     .idle_ms = 75000,
                                     .print = serve_print,
                                     .stream = serve_stream,
                                     .leave = serve_leave };
    TRY((web = web_new(&web_config, err)) != NULL);
    printf("serving '%s' at %s://%.*s:%u, context %" PRId64 " tokens\n", name, o->cert_file ? "https" : "http",
           (int)(strrchr(o->listen, ':') - o->listen), o->listen, port, max_len);
    if (fflush(stdout) != 0) {
        error_errno(err, "cannot write the output");
        goto out;
    }
    while (read(stop_fd, &got, sizeof got) < 0 && errno == EINTR)
        ;
    drain(web, s.policy, o->drain_s);
    ok = true;
out:
    if (!ok && web)
        web_close(web);
    if (s.policy)
        policy_abort_all(s.policy);
    web_free(web);
    policy_free(s.policy);
    if (stop_fd >= 0)
        close(stop_fd);
    return ok;
}

static bool serve_cmd(int argc, char **argv, struct error *err)
{
    struct serve_options o = {
        .tool = TOOL_MODEL_DEFAULT, .batch = 256, .queue = 4096, .connections = 512, .body_mib = 16, .request_s = 15, .drain_s = 30
    };
    // clang-format off
    struct cli_option options[] = {
        TOOL_MODEL_OPTIONS(&o.tool),
        {"listen", "l", CLI_STR, &o.listen, "HOST:PORT", "where to serve, e.g. 127.0.0.1:9001; port 0 is a free one"},
        {"served-name", NULL, CLI_STR, &o.name, "NAME", "what clients call the model (default: its directory's name)"},
        {"max-model-len", NULL, CLI_I64, &o.max_len, "N", "longest prompt and completion (default: the model's, at most 32768)"},
        {"batch", NULL, CLI_I64, &o.batch, "N", "samples decoded at once (default 256, on a CPU 32 per thread)"},
        {"kv-gib", NULL, CLI_F64, &o.kv_gib, "GIB", "memory for keys and values (default: enough, at most half of what is free)"},
        {"queue", NULL, CLI_I64, &o.queue, "N", "prompts inside, waiting ones too; more are answered with 503 (default 4096)"},
        {"connections", NULL, CLI_I64, &o.connections, "N", "open at once (default 512)"},
        {"body-mib", NULL, CLI_I64, &o.body_mib, "N", "longest body of a request, also after gzip (default 16)"},
        {"request-s", NULL, CLI_I64, &o.request_s, "S", "a client must send a request's header within this, and its body within four times it (default 15)"},
        {"drain-s", NULL, CLI_I64, &o.drain_s, "S", "after SIGTERM, finish requests for so long (default 30)"},
        {"token-file", NULL, CLI_STR, &o.token_file, "FILE", "clients must send the bearer token in this file"},
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
                 "  curl -s http://127.0.0.1:9001/v1/completions -d '{\"prompt\": \"12+30=\", \"max_tokens\": 20}'"
    };
    bool ok = false;
    if (!cli_parse(&cli, argc, argv, err))
        return false;
    if (cli.help_wanted)
        return true;
    TRY(options_check(&o, err) && listen_check(&o, err));
    if (o.token_file || o.key_file)
        secret_process();
    TRY(tool_model_load(&o.tool, true, err));
    TRY(serve_run(&o, err));
    ok = true;
out:
    buf_release(&o.cert);
    buf_release(&o.key);
    tool_model_release(&o.tool);
    return ok;
}

const struct subcommand serve_subcommand = { "serve", serve_cmd,
                                             "serve a model over HTTP, as OpenAI's, vLLM's and SGLang's clients expect" };
