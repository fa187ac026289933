#include "console/train/ask.h"
#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include "protocol/base/error.h"

/* A line of any length, without blanks around it; what does not fit is an empty answer. False at the end of the input. */
static bool line_read(char *out, size_t size)
{
    size_t n = 0;
    bool fits = true;
    int c = getchar();
    if (c == EOF)
        return false;
    for (; c != EOF && c != '\n'; c = getchar()) {
        if (n + 1 < size && (n > 0 || !isspace(c)))
            out[n++] = (char)c;
        else if (n + 1 >= size)
            fits = false;
    }
    while (n > 0 && isspace((unsigned char)out[n - 1]))
        n--;
    out[fits ? n : 0] = 0;
    return true;
}

bool ask_text(char *out, size_t size, const char *question, const char *preset, const char *flag, struct error *err)
{
    do {
        fprintf(stderr, preset[0] ? "%s [%s]: " : "%s: ", question, preset);
        if (!line_read(out, size))
            return error_set(err, ERR_USAGE, "the input ended before an answer; give it with %s", flag);
        if (!out[0])
            snprintf(out, size, "%s", preset);
    } while (!out[0]);
    return true;
}

bool ask_yes(const char *question)
{
    char line[16];
    fprintf(stderr, "%s [Y/n]: ", question);
    return line_read(line, sizeof line) && strchr("yY", line[0]);    // strchr also finds the end of an empty line
}
