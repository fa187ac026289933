#include <string.h>
#include "protocol/base/file.h"
#include "protocol/settings/export_kinds.h"
#include "workers/export/export.h"

static export_fn *const runs[EXPORT_KIND_N] = {
    [EXPORT_CSV] = export_csv,
    [EXPORT_JSONL] = export_jsonl,
    [EXPORT_HTML] = export_html,
    [EXPORT_SVG] = export_svg,
    [EXPORT_TENSORBOARD] = export_tensorboard,
    [EXPORT_WANDB] = export_wandb,
    [EXPORT_WEBHOOK] = export_webhook,
    [EXPORT_OPENMETRICS] = export_openmetrics,
};

bool export_write(const struct export_request *r, const char *text, size_t len, struct error *err)
{
    FILE *out = r->out_path ? fopen(r->out_path, "wxe") : stdout;    // never overwrite an existing file
    if (!out)
        return error_errno(err, "cannot create '%s'", r->out_path);
    bool ok = fwrite(text, 1, len, out) == len && fflush(out) == 0;
    if (!ok)
        error_errno(err, "cannot write '%s'", r->out_path ? r->out_path : "standard output");
    if (out != stdout && fclose(out) != 0 && ok)
        ok = error_errno(err, "cannot write '%s'", r->out_path);
    return ok;
}

bool export_run(const char *name, const struct export_request *r, struct error *err)
{
    for (int i = 0; i < EXPORT_KIND_N; i++) {
        if (strcmp(export_kinds[i].name, name) != 0)
            continue;
        struct export_request request = *r;
        bool streamed = r->out_path && path_is_stream(r->out_path), text = i == EXPORT_CSV || i == EXPORT_JSONL;
        if (streamed && !text)
            return error_set(err, ERR_USAGE, "'%s' is not written to standard output, which '--out -' asks for", name);
        request.out_path = streamed ? NULL : r->out_path;
        return runs[i](&request, err);
    }
    return error_set(err, ERR_USAGE, "unknown kind of export '%s'; see rollcall export --help", name);
}
