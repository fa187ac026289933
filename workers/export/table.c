#include <string.h>
#include "protocol/base/file.h"
#include "protocol/settings/export_kinds.h"
#include "workers/export/export.h"

static const struct {
    export_fn *run;
    bool streams;    // it may be written to standard output
} runs[EXPORT_KIND_N] = {
    [EXPORT_CSV] = { export_csv, true },
    [EXPORT_JSONL] = { export_jsonl, true },
    [EXPORT_HTML] = { export_html, true },
    [EXPORT_SVG] = { export_svg, true },
    [EXPORT_TENSORBOARD] = { export_tensorboard, false },
    [EXPORT_WANDB] = { export_wandb, false },
    [EXPORT_WEBHOOK] = { export_webhook, false },
    [EXPORT_OPENMETRICS] = { export_openmetrics, false },
};

FILE *export_out(const struct export_request *r, struct error *err)
{
    FILE *out = r->out_path ? fopen(r->out_path, "wxe") : stdout;    // never overwrite an existing file
    if (!out)
        error_errno(err, "cannot create '%s'", r->out_path);
    return out;
}

bool export_flush(const struct export_request *r, FILE *out, struct error *err)
{
    bool ok = fflush(out) == 0 && !ferror(out);    // what an earlier write has met stays with the stream
    return ok || error_errno(err, "cannot write '%s'", r->out_path ? r->out_path : "standard output");
}

bool export_close(const struct export_request *r, FILE *out, struct error *err)
{
    return out == stdout || fclose(out) == 0 || error_errno(err, "cannot write '%s'", r->out_path);
}

bool export_write(const struct export_request *r, const char *text, size_t len, struct error *err)
{
    struct error late;
    FILE *out = export_out(r, err);
    if (!out)
        return false;
    fwrite(text, 1, len, out);
    bool ok = export_flush(r, out, err);
    return export_close(r, out, ok ? err : &late) && ok;
}

bool export_run(const char *name, const struct export_request *r, struct error *err)
{
    for (int i = 0; i < EXPORT_KIND_N; i++) {
        if (strcmp(export_kinds[i].name, name) != 0)
            continue;
        struct export_request request = *r;
        bool streamed = r->out_path && path_is_stream(r->out_path);
        if (streamed && !runs[i].streams)
            return error_set(err, ERR_USAGE, "'%s' is not written to standard output, which '--out -' asks for", name);
        request.out_path = streamed ? NULL : r->out_path;
        return runs[i].run(&request, err);
    }
    return error_set(err, ERR_USAGE, "unknown kind of export '%s'; see rollcall export --help", name);
}
