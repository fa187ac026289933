#include "workers/http/openai_error.h"
#include <string.h>
#include "protocol/base/json_text.h"

void openai_error_print(struct buf *out, int status, const char *code, const char *message)
{
    const char *type = status == 401   ? "authentication_error"
                       : status == 404 ? "not_found_error"
                       : status < 500  ? "invalid_request_error"
                       : status == 503 ? "overloaded_error"
                                       : "server_error";
    buf_str(out, "{\"error\":{\"message\":");
    json_text_print(out, message, strlen(message), JSON_TEXT_UTF8);
    buf_fmt(out, ",\"type\":\"%s\",\"param\":null,\"code\":", type);
    if (code)
        json_text_print(out, code, strlen(code), JSON_TEXT_UTF8);
    else
        buf_fmt(out, "%d", status);
    buf_str(out, "}}");
}

void anthropic_error_print(struct buf *out, int status, const char *message)
{
    const char *type = status == 401   ? "authentication_error"
                       : status == 403 ? "permission_error"
                       : status == 404 ? "not_found_error"
                       : status == 413 ? "request_too_large"
                       : status == 429 ? "rate_limit_error"
                       : status < 500  ? "invalid_request_error"
                       : status == 503 ? "overloaded_error"
                                       : "api_error";
    buf_fmt(out, "{\"type\":\"error\",\"error\":{\"type\":\"%s\",\"message\":", type);
    json_text_print(out, message, strlen(message), JSON_TEXT_UTF8);
    buf_str(out, "}}");
}
