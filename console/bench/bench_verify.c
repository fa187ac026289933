/* bench verify: how many answers one core compares per second, for short answers and for whole responses with known verdicts, and
 * how many of those are judged as expected; compared with Math-Verify in the same run if a Python that has it is given. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <jansson.h>
#include "console/bench/bench.h"
#include "protocol/base/cli.h"
#include "protocol/base/file.h"
#include "protocol/base/json_text.h"
#include "workers/engine/reward/math/math.h"

/* Short answers as in MATH, GSM8K and AIME; every other pair is unequal. */
// clang-format off
static const struct { const char *gold, *pred; bool equal; } short_answers[] = {
    { "42", "42", true }, { "204", "205", false }, { "72", "72.0", true }, { "1,234", "1235", false },
    { "\\frac{3}{4}", "0.75", true }, { "\\frac{3}{4}", "\\frac{4}{3}", false }, { "18", "\\$18", true },
    { "-5", "5", false },
    { "10\\%", "0.1", true }, { "x=7", "8", false }, { "(1,2)", "(1, 2)", true }, { "(1,2)", "(2,1)", false },
    { "2\\sqrt{3}", "\\sqrt{12}", true }, { "\\frac{\\pi}{2}", "\\frac{\\pi}{3}", false },
    { "x^2+2x+1", "(x+1)^2", true },
    { "x^2+2x+1", "x^2+x+1", false }, { "[0,1)", "[0, 1)", true }, { "[0,1)", "(0,1)", false },
    { "\\text{even}", "even", true },
    { "C", "B", false }, { "540", "540", true }, { "033", "34", false }, { "\\frac{14}{3}", "14/3", true },
    { "6 - 5i", "6 + 5i", false }, { "p - q", "-q+p", true }, { "3,5,7", "3,5", false }, { "70000", "70,000", true },
    { "11\\sqrt{2}", "11", false }, { "5\\text{ cm}", "5", true }, { "2k+2", "2k+1", false },
};
// clang-format on

struct pair {
    const char *gold, *pred;    // in the JSON line
    bool equal, judged;
    int decimals;
};

static double cpu_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Every pair repeatedly for about this long; checks per second of processor time, and how many were judged as expected. */
static bool measure(const char *what, const struct pair *pair, int n, bool whole, double seconds, struct error *err)
{
    struct math_config config = MATH_CONFIG_DEFAULT, other = config;
    struct math *m = math_new(&config, err), *special = NULL;
    if (!m)
        return false;
    bool ok = false;
    int64_t done = 0;
    int right = 0, unknown = 0, judged = 0;
    double start = cpu_s(), took = 0;
    for (int round = 0; round == 0 || took < seconds; round++) {
        for (int i = 0; i < n; i++) {
            struct math_result r;
            struct math *use = m;
            if (pair[i].decimals != config.decimals) {
                other.decimals = pair[i].decimals;
                math_free(special);
                use = special = math_new(&other, err);
                if (!use)
                    goto out;
            }
            (whole ? math_response : math_answer)(use, pair[i].pred, strlen(pair[i].pred), pair[i].gold, strlen(pair[i].gold), &r);
            if (round == 0) {
                judged += pair[i].judged;
                right += !pair[i].judged && (r.verdict == VERDICT_EQUAL) == pair[i].equal;
                unknown += r.verdict == VERDICT_CANNOT_TELL;
            }
        }
        done += n;
        took = cpu_s() - start;
    }
    printf("{\"bench\":\"verify\",\"case\":\"%s\",\"pairs\":%d,\"as_expected\":%d,\"judged_otherwise\":%d,\"cannot_tell\":%d,"
           "\"checks_per_s\":%.0f,\"us_per_check\":%.2f}\n",
           what, n, right, judged, unknown, (double)done / took, took / (double)done * 1e6);
    ok = true;
out:
    math_free(m);
    math_free(special);
    return ok;
}

static const char
    peer[] = "import json, sys, time\n"
             "from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify\n"
             "t = [LatexExtractionConfig(boxed_match_priority=0), ExprExtractionConfig()]\n"
             "cases = [json.loads(line) for line in open(sys.argv[1])]\n"
             "right = judged = 0\n"
             "verify(parse('$1$', t), parse('$1$', t))\n"
             "start = time.process_time()\n"
             "for c in cases:\n"
             "    try:\n"
             "        got = verify(parse(c['gold'], t), parse(c['pred'], t), float_rounding=c.get('precision', 6))\n"
             "    except Exception:\n"
             "        got = False\n"
             "    judged += 'judged' in c\n"
             "    right += 'judged' not in c and got == (c['want'] == 'equal')\n"
             "took = time.process_time() - start\n"
             "print(json.dumps({'bench': 'verify', 'case': 'math-verify on the suite', 'pairs': len(cases), 'as_expected': right,\n"
             "                  'judged_otherwise': judged, 'checks_per_s': round(len(cases) / took),\n"
             "                  'us_per_check': round(took / len(cases) * 1e6, 2)}))\n";

static bool peer_run(const char *python, const char *suite, struct error *err)
{
    fflush(stdout);
    pid_t pid = fork();
    if (pid < 0)
        return error_errno(err, "cannot start '%s'", python);
    if (pid == 0) {
        execlp(python, python, "-c", peer, suite, (char *)NULL);
        _exit(127);
    }
    int status;
    if (waitpid(pid, &status, 0) < 0)
        return error_errno(err, "cannot wait for '%s'", python);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        return error_set(err, ERR_UNSUPPORTED, "'%s' did not run Math-Verify (exit %d); it needs the package math-verify", python,
                         WIFEXITED(status) ? WEXITSTATUS(status) : -1);
    return true;
}

static bool suite_read(const char *path, struct pair **pair, json_t **all, int *n, struct error *err)
{
    struct buf text = BUF_INIT;
    bool ok = false;
    int64_t line = 0;
    *all = json_array();
    TRY(file_read(&text, path, (size_t)64 << 20, err));
    for (char *s = text.data, *next; s && *s; s = next) {
        json_error_t je;
        next = strchr(s, '\n');
        size_t len = next ? (size_t)(next - s) : strlen(s);
        next = next ? next + 1 : NULL;
        line++;
        if (len == 0)
            continue;
        json_t *row = json_text_read(s, len, 0, &je);
        const char *want = json_string_value(json_object_get(row, "want"));
        if (!row || !want || !json_string_value(json_object_get(row, "gold")) || !json_string_value(json_object_get(row, "pred"))) {
            json_decref(row);
            error_set(err, ERR_DATA, "%s:%" PRId64 ": a line needs 'gold', 'pred' and 'want'", path, line);
            goto out;
        }
        json_array_append_new(*all, row);
    }
    *n = (int)json_array_size(*all);
    *pair = calloc((size_t)MAX(*n, 1), sizeof **pair);
    if (!*pair || *n == 0) {
        error_set(err, ERR_DATA, "'%s' holds no pairs", path);
        goto out;
    }
    for (int i = 0; i < *n; i++) {
        const json_t *row = json_array_get(*all, (size_t)i), *precision = json_object_get(row, "precision");
        (*pair)[i] = (struct pair){ json_string_value(json_object_get(row, "gold")), json_string_value(json_object_get(row, "pred")),
                                    strcmp(json_string_value(json_object_get(row, "want")), "equal") == 0,
                                    json_object_get(row, "judged") != NULL,
                                    precision ? (int)json_integer_value(precision) : MATH_CONFIG_DEFAULT.decimals };
    }
    ok = true;
out:
    buf_release(&text);
    return ok;
}

bool bench_verify(int argc, char **argv, struct error *err)
{
    const char *suite = NULL, *python = NULL;
    double seconds = 1;
    struct cli_option options[] = {
        { "suite", NULL, CLI_STR, &suite, "FILE", "JSON lines with gold, pred and want, compared as whole responses" },
        { "seconds", NULL, CLI_F64, &seconds, "S", "processor time to measure for (1)" },
        { "math-verify", NULL, CLI_STR, &python, "PYTHON", "a Python that has math-verify; needs --suite" },
    };
    struct cli cli = { .command = "rollcall bench verify",
                       .about = "Compares answers repeatedly on one core.",
                       .options = options,
                       .n_options = ARRAY_SIZE(options) };
    if (!cli_parse(&cli, argc, argv, err) || cli.help_wanted)
        return cli.help_wanted;
    if (python && !suite)
        return error_set(err, ERR_USAGE, "'--math-verify' needs '--suite', e.g. tests/golden/math/math_verify_suite.jsonl");
    struct pair small[ARRAY_SIZE(short_answers)], *pair = NULL;
    for (size_t i = 0; i < ARRAY_SIZE(small); i++)
        small[i] = (struct pair){ short_answers[i].gold, short_answers[i].pred, short_answers[i].equal, false,
                                  MATH_CONFIG_DEFAULT.decimals };
    if (!measure("short answers", small, ARRAY_SIZE(small), false, seconds, err))
        return false;
    if (!suite)
        return true;
    json_t *all = NULL;
    int n = 0;
    bool ok = suite_read(suite, &pair, &all, &n, err) && measure("suite", pair, n, true, seconds, err)
              && (!python || peer_run(python, suite, err));
    free(pair);
    json_decref(all);
    return ok;
}
