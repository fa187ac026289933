/* The server of scored groups without its HTTP: which groups make a batch, what is taken as a group, and what outlives a kill.
 * The vectors for batches were computed with the Python functions of atroposlib 0.4 (api/utils.py). */
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <dirent.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "protocol/base/file.h"
#include "protocol/record/bounds.h"
#include "protocol/record/drawn_book.h"
#include "workers/atropos/atropos.h"
#include "workers/atropos/atropos_client.h"
#include "workers/atropos/atropos_group.h"
#include "workers/atropos/atropos_pack.h"

static struct error err;

/* "4,4" as numbers. */
static int64_t numbers(const char *text, int64_t *out)
{
    int64_t n = 0;
    for (char *end; *text; text = *end == ',' ? end + 1 : end)
        out[n++] = strtoll(text, &end, 10);
    return n;
}

static void assert_taken(int64_t n, const int64_t *got, const char *want_text)
{
    int64_t want[16], n_want = numbers(want_text, want);
    assert_int_equal(n, n_want);
    for (int64_t i = 0; i < n; i++)
        assert_int_equal(got[i], want[i]);
}

static void batches_have_exactly_their_size_in_packs_of_the_largest_group(UNUSED void **state)
{
    static const struct {
        const char *sizes;
        int64_t want;
        const char *taken, *then;
    } cases[] = {
        { "4,4,4,4", 8, "0,1", "2,3" },
        { "2,4,2,4", 8, "1,0,2", "" },
        { "3,8,3,8", 16, "1,3", "" },
        { "8,8", 12, "", "" },
        { "8", 4, "", "" },
        { "1,1,1,4,1", 8, "3,0,1,2,4", "" },
        { "1,1,1,1,4", 4, "0,1,2,3", "4" },
        { "2,2,2", 4, "0,1", "" },
        { "2,2,8", 4, "", "" },
        { "2,2,2,2,8", 8, "0,1,2,3", "4" },
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        int64_t size[16], n = numbers(cases[i].sizes, size), out[16], left[16], n_left = 0, then[16], n_then;
        struct pack_item item[16];
        bool taken[16] = { false };
        for (int64_t k = 0; k < n; k++)
            item[k] = (struct pack_item){ size[k], -1 };
        int64_t n_out = pack_batch(item, n, cases[i].want, NULL, 0, out);
        assert_taken(n_out, out, cases[i].taken);
        for (int64_t k = 0; k < n_out; k++)
            taken[out[k]] = true;
        for (int64_t k = 0; k < n; k++)
            if (!taken[k])
                left[n_left++] = k;
        for (int64_t k = 0; k < n_left; k++)
            item[k] = (struct pack_item){ size[left[k]], -1 };
        n_then = n_out > 0 ? pack_batch(item, n_left, cases[i].want, NULL, 0, then) : 0;
        for (int64_t k = 0; k < n_then; k++)
            then[k] = left[then[k]];
        assert_taken(n_then, then, cases[i].then);
    }
    struct pack_item last = { 4, -1 };
    int64_t out[1];
    assert_int_equal(pack_batch(&last, 1, 4, NULL, 0, out), 1);
    assert_int_equal(pack_batch(&last, 1, 0, NULL, 0, out), 0);
    assert_int_equal(pack_batch(NULL, 0, 4, NULL, 0, out), 0);
}

static void shares_of_environments_are_kept(UNUSED void **state)
{
    static const struct {
        const char *envs, *sizes;
        struct pack_share share[2];
        int64_t n_share;
        const char *taken;
    } cases[] = {
        { "1,1,0,0", "4,4,4,4", { { 0, .5 } }, 1, "2,0" },
        { "1,1", "4,4", { { 0, .5 } }, 1, "" },
        { "0,0,1,1", "4,4,4,4", { { 0, .75 }, { 1, .75 } }, 2, "0,2" },
        { "-1,0,0", "4,4,4", { { 0, .5 } }, 1, "1,2" },
        { "1,1", "4,4", { { 0, .1 } }, 1, "0,1" },
        { "1,1,0", "4,4,4", { { 0, .3 } }, 1, "2,0" },
        { "0,1,0,1", "2,2,4,4", { { 0, .25 } }, 1, "2,3" },
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        int64_t env[8], size[8], out[8], n = numbers(cases[i].envs, env);
        struct pack_item item[8];
        assert_int_equal(numbers(cases[i].sizes, size), n);
        for (int64_t k = 0; k < n; k++)
            item[k] = (struct pack_item){ size[k], env[k] };
        assert_taken(pack_batch(item, n, 8, cases[i].share, cases[i].n_share, out), out, cases[i].taken);
    }
}

static void small_groups_are_added_up_exactly(UNUSED void **state)
{
    static const struct {
        const char *sizes;
        int64_t target;
        const char *taken;
    } cases[] = {
        { "1,2,1", 4, "0,1,2" }, { "3,1,4", 5, "1,2" }, { "2,4", 3, "" },          { "2,2,4", 4, "0,1" },
        { "3,3,2", 8, "0,1,2" }, { "5,2,3", 5, "0" },   { "2,3,5,1", 6, "0,1,3" }, { "2,2", 0, "" },
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        int64_t size[8], out[8], n = numbers(cases[i].sizes, size);
        assert_taken(pack_sum(size, n, cases[i].target, out), out, cases[i].taken);
    }
}

/* ---- what is taken as a group */
static struct scored *read_one(const char *text, struct scored_fault *fault)
{
    struct scored *g = NULL;
    return scored_read(text, strlen(text), &g, fault) ? g : NULL;
}

static void numbers_are_coerced_as_pydantic_does(UNUSED void **state)
{
    static const struct {
        const char *tokens, *scores, *want_tokens, *want_scores;
    } cases[] = {
        { "[[1.0,\"7\",true,-3]]", "[\"0.5\",true,1]", "[[1,7,1,-3]]", "[0.5,1,1]" },
        { "[ [ 1 , 2 ] , [] ]", "[]", "[[1,2],[]]", "[]" },
        { "[[1e3,\" 8 \",\"2.0\",false]]", "[-1.1920928955078125e-07,1E2,0.0]", "[[1000,8,2,0]]", "[-1.1920928955078125e-07,1E2,0.0]" },
        { "[[123456789012345678901234567890]]", "[1]", "[[123456789012345678901234567890]]", "[1]" },
        { "[[0,1,2,3,4,5,6,7,8,9,10,11,12]]", "[0.25,-0.25,3,4,5,6,7]", "[[0,1,2,3,4,5,6,7,8,9,10,11,12]]", "[0.25,-0.25,3,4,5,6,7]" },
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        char text[1024], want[1024];
        struct scored_fault fault;
        snprintf(text, sizeof text, "{\"tokens\":%s,\"masks\":[[-100]],\"scores\":%s}", cases[i].tokens, cases[i].scores);
        struct scored *g = read_one(text, &fault);
        if (!g)
            fail_msg("%s: %s", text, fault.msg);
        snprintf(want, sizeof want,
                 "{\"tokens\":%s,\"masks\":[[-100]],\"scores\":%s,\"advantages\":null,\"ref_logprobs\":null,\"messages\":null,"
                 "\"generation_params\":null,\"inference_logprobs\":null,\"overrides\":null,\"group_overrides\":null,\"images\":null,"
                 "\"env_id\":null,\"distill_token_ids\":null,\"distill_logprobs\":null}",
                 cases[i].want_tokens, cases[i].want_scores);
        assert_string_equal(g->text, want);
        assert_int_equal(g->len, strlen(want));
        scored_drop(g);
    }
}

static void what_is_no_group_is_named(UNUSED void **state)
{
    static const struct {
        const char *fields, *loc, *type, *why;
    } cases[] = {
        { "\"tokens\":[[1.5]]", "[\"body\",\"tokens\"]", "int_from_float", "a token is whole" },
        { "\"tokens\":[[\"x\"]]", "[\"body\",\"tokens\"]", "int_parsing", "text that is not a number" },
        { "\"tokens\":[[null]]", "[\"body\",\"tokens\"]", "int_type", "null is not a token" },
        { "\"tokens\":[1]", "[\"body\",\"tokens\"]", "list_type", "a list of lists" },
        { "\"tokens\":[]", "[\"body\",\"tokens\"]", "too_short", "it would wait forever" },
        { "\"tokens\":null", "[\"body\",\"tokens\"]", "list_type", "it is needed" },
        { "\"tokens\":[[01]]", "[\"body\"", "json_invalid", "no JSON number" },
        { "\"tokens\":[[1,]]", "[\"body\",\"tokens\"]", "int_type", "nothing after the comma" },
        { "\"tokens\":[[1 2]]", "[\"body\",\"tokens\"]", "json_invalid", "no comma" },
        { "\"scores\":[null]", "[\"body\",\"scores\"]", "float_type", "a score is known" },
        { "\"scores\":[NaN]", "[\"body\",\"scores\"]", "finite_number", "no trainer could read it back" },
        { "\"scores\":[-Infinity]", "[\"body\",\"scores\"]", "finite_number", "the same" },
        { "\"scores\":[1e999]", "[\"body\",\"scores\"]", "finite_number", "it is infinite in double precision" },
        { "\"scores\":[\"nan\"]", "[\"body\",\"scores\"]", "float_parsing", "nor as text" },
        { "\"advantages\":[1]", "[\"body\",\"advantages\"]", "list_type", "a list of lists" },
        { "\"overrides\":{}", "[\"body\",\"overrides\"]", "list_type", "a list of objects" },
        { "\"overrides\":[1]", "[\"body\",\"overrides\"]", "dict_type", "a list of objects" },
        { "\"group_overrides\":[]", "[\"body\",\"group_overrides\"]", "dict_type", "an object" },
        { "\"messages\":[[{\"role\":\"user\"}]]", "[\"body\",\"messages\"]", "value_error", "no content" },
        { "\"messages\":[{}]", "[\"body\",\"messages\"]", "list_type", "turns are lists" },
        { "\"env_id\":\"a\"", "[\"body\",\"env_id\"]", "int_parsing", "it is a number" },
        { "\"images\":[1,}", "[\"body\",\"images\"]", "json_invalid", "broken inside" },
        { "\"images\":NaN", "[\"body\",\"images\"]", "json_invalid", "no JSON" },
        { "\"more\":[}", "[\"body\"]", "json_invalid", "unknown fields must be JSON as well" },
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        char text[1024];
        struct scored_fault fault = { .type = "none" };
        snprintf(text, sizeof text, "{\"tokens\":[[1]],\"masks\":[[1]],\"scores\":[1],%s}", cases[i].fields);
        if (read_one(text, &fault))
            fail_msg("%s was taken", text);
        if (strcmp(cases[i].type, fault.type) != 0 && !(strcmp(cases[i].fields, "\"tokens\":[[01]]") == 0))
            fail_msg("%s: %s, not %s (%s)", text, fault.type, cases[i].type, cases[i].why);
        assert_memory_equal(fault.loc, cases[i].loc, strlen(cases[i].loc));
    }
    static const char *const broken[] = { "",
                                          "{",
                                          "[",
                                          "{}",
                                          "{\"tokens\":[[1]],\"masks\":[[1]]}",
                                          "{\"tokens\"",
                                          "{\"tokens\":[[1]],}",
                                          "{\"tokens\":[[1]],\"masks\":[[1]],\"scores\":[1]} x",
                                          "{\"tokens\" [[1]]}",
                                          "7",
                                          "{,}" };
    for (size_t i = 0; i < ARRAY_SIZE(broken); i++) {
        struct scored_fault fault;
        assert_null(read_one(broken[i], &fault));
    }
}

static void a_group_comes_back_as_it_was_posted(UNUSED void **state)
{
    static const char text[] =
        "{\"scores\":[1,0.5],\"unknown\":{\"a\":[1,\"]\"]},\"masks\":[[-100,5],[-100,6]],\"tokens\":[[4,5],[4,6]],"
        "\"messages\":[[{\"role\":\"dog\",\"content\":[{\"type\":\"text\",\"text\":\"a \\\"b\\\\\"}],\"reward\":null}],[]],\"env_id\":\"3\","
        "\"images\":[\"data:,x\",null,{\"deep\":[[[]]]}],\"generation_params\":{\"temperature\":0.7},\"overrides\":[{},"
        "{\"set_advantage_to_zero\":true}],\"group_overrides\":{\"group_size\":2},\"inference_logprobs\":[[1.0,-0.25],[1.0,-1e-05]],"
        "\"advantages\":[],\"distill_token_ids\":[[[1,2],[3]],[]],\"distill_logprobs\":[[[-0.5,-1],[0]],[]],\"\\u0074okens\":[[7,5],[4,6]]}";
    struct scored_fault fault;
    struct scored *g = read_one(text, &fault);
    assert_non_null(g);
    assert_int_equal(g->n_seq, 2);
    assert_int_equal(g->env_id, 3);
    json_t *got = json_loads(g->text, 0, NULL), *want = json_loads(text, 0, NULL);
    assert_non_null(got);
    json_object_del(want, "unknown");
    json_object_set_new(want, "ref_logprobs", json_null());
    json_object_set_new(want, "env_id", json_integer(3));
    assert_true(json_equal(got, want));    // jansson, too, takes the later of two equal keys
    json_decref(got);
    json_decref(want);
    scored_drop(g);
    struct scored *list[2];
    int64_t n;
    assert_true(scored_read_list("[ ]", 3, list, 2, &n, &fault) && n == 0);
    static const char two[] = "[{\"tokens\":[[1]],\"masks\":[],\"scores\":[]} , {\"tokens\":[[1],[2]],\"masks\":[],\"scores\":[]}]";
    assert_true(scored_read_list(two, sizeof two - 1, list, 2, &n, &fault) && n == 2 && list[1]->n_seq == 2);
    scored_drop(list[0]);
    scored_drop(list[1]);
    assert_false(scored_read_list(two, sizeof two - 1, list, 1, &n, &fault));
    static const char second[] = "[{\"tokens\":[[1]],\"masks\":[],\"scores\":[]},{\"tokens\":[[1]],\"masks\":[],\"scores\":0}]";
    assert_false(scored_read_list(second, sizeof second - 1, list, 2, &n, &fault));
    assert_string_equal(fault.loc, "[\"body\",1,\"scores\"]");
}

/* ---- the state */
static char folder[] = "/tmp/rc-atropos-XXXXXX";
static int64_t fake_ms;

static int64_t fake_now(void)
{
    return fake_ms;
}

static int folder_setup(UNUSED void **state)
{
    strcpy(strrchr(folder, '-'), "-XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static int folder_teardown(UNUSED void **state)
{
    return dir_remove(folder, &err) ? 0 : -1;
}

static struct atropos *start(const char *dir)
{
    struct atropos_config config = { .dir = dir, .max_bytes = (size_t)256 << 20, .env_expire_ms = 1000, .now_ms = fake_now };
    struct atropos *a = atropos_new(&config, &err);
    if (!a)
        fail_msg("%s", err.text);
    return a;
}

/* Freeing writes nothing, so the folder has only what was acknowledged, as after a kill. */
static struct atropos *restart(struct atropos *a)
{
    atropos_free(a);
    return start(folder);
}

static void trainer_comes(struct atropos *a, int64_t batch_size)
{
    struct atropos_trainer t = { .batch_size = batch_size, .max_token_len = 512, .num_steps = 10, .group = "g" };
    struct atropos_batch b;
    assert_true(atropos_register(a, &t, false, &err));
    assert_true(atropos_batch(a, &b, &err));
    atropos_sent(a, b.number, false);    // given back
}

static int64_t env_comes(struct atropos *a, const char *name, int64_t group_size, double share)
{
    struct atropos_env e = { .max_token_len = 512, .group_size = group_size, .weight = 1, .has_share = share >= 0, .share = share };
    int64_t id = -1;
    snprintf(e.desired_name, sizeof e.desired_name, "%s", name);
    assert_true(atropos_env_add(a, &e, &id, &err));
    return id;
}

/* Post a group of n_seq sequences that says number; pad: more bytes. */
static bool post(struct atropos *a, int64_t env_id, int64_t n_seq, int64_t number, size_t pad, struct atropos_posted *p)
{
    struct buf text = BUF_INIT;
    struct scored_fault fault;
    struct scored *g;
    buf_str(&text, "{\"tokens\":[");
    for (int64_t i = 0; i < n_seq; i++)
        buf_fmt(&text, "%s[%d]", i ? "," : "", (int)number);
    buf_str(&text, "],\"masks\":[],\"scores\":[]");
    if (env_id >= 0)
        buf_fmt(&text, ",\"env_id\":%d", (int)env_id);
    if (pad > 0) {
        buf_str(&text, ",\"images\":\"");
        memset(buf_reserve(&text, pad), 'x', pad);
        text.len += pad;
        buf_char(&text, '"');
    }
    buf_char(&text, '}');
    assert_true(scored_read(buf_text(&text), text.len, &g, &fault));
    buf_release(&text);
    return atropos_post(a, &g, 1, p, &err);
}

static void must_post(struct atropos *a, int64_t env_id, int64_t n_seq, int64_t number)
{
    struct atropos_posted p;
    if (!post(a, env_id, n_seq, number, 0, &p))
        fail_msg("%s", err.text);
}

static int64_t number_of(const struct scored *g)
{
    return strtoll(strstr(g->text, "[[") + 2, NULL, 10);
}

/* The numbers of the next batch are these; it arrives. */
static void assert_batch(struct atropos *a, const char *want_text, bool arrives)
{
    int64_t want[16], n = numbers(want_text, want);
    struct atropos_batch b;
    assert_true(atropos_batch(a, &b, &err));
    assert_int_equal(b.n, n);
    for (int64_t i = 0; i < n; i++)
        assert_int_equal(number_of(b.group[i]), want[i]);
    if (n > 0 && arrives)
        atropos_sent(a, b.number, true);
}

static void everything_acknowledged_outlives_a_kill(UNUSED void **state)
{
    struct atropos *a = start(folder);
    must_post(a, -1, 4, 1);    // before any trainer
    a = restart(a);
    assert_int_equal(atropos_queued(a), 1);
    assert_null(atropos_trainer(a));
    trainer_comes(a, 8);
    int64_t id = env_comes(a, "gsm", 4, -1);
    assert_int_equal(env_comes(a, "gsm", 4, 0.5), id + 1);
    must_post(a, id, 2, 2);    // waits in the buffer
    a = restart(a);
    assert_true(atropos_is_started(a));
    assert_string_equal(atropos_trainer(a)->group, "g");
    assert_string_equal(atropos_env(a, id + 1)->name, "gsm_1");
    assert_true(atropos_env(a, id + 1)->has_share);
    assert_true(atropos_env_leave(a, id + 1, &err));
    must_post(a, id, 2, 3);    // fills the group size: both go to the queue
    assert_int_equal(atropos_queued(a), 3);
    a = restart(a);
    assert_int_equal(atropos_queued(a), 3);
    assert_batch(a, "1,2,3", false);    // killed while it is sent: comes again
    assert_int_equal(atropos_step(a), 1);
    a = restart(a);
    assert_int_equal(atropos_queued(a), 0);
    assert_int_equal(atropos_step(a), 1);
    assert_batch(a, "1,2,3", true);
    a = restart(a);
    assert_batch(a, "", true);
    assert_false(atropos_env(a, id + 1)->connected);
    must_post(a, id, 4, 4);
    assert_true(atropos_reset(a, &err));
    a = restart(a);
    assert_null(atropos_trainer(a));
    assert_null(atropos_env(a, 0));
    assert_int_equal(atropos_queued(a), 0);
    atropos_free(a);
}

static void newest_segment(char path[512])
{
    struct dirent **e;
    int n = scandir(folder, &e, NULL, alphasort), found = -1;
    for (int i = 0; i < n; i++)
        if (strstr(e[i]->d_name, ".log"))
            found = i;
    assert_true(found >= 0);
    snprintf(path, 512, "%s/%s", folder, e[found]->d_name);
    for (int i = 0; i < n; i++)
        free(e[i]);
    free(e);
}

static void a_record_that_was_cut_off_was_never_acknowledged(UNUSED void **state)
{
    struct buf whole = BUF_INIT;
    struct atropos *a = start(folder);
    struct stat before, after;
    char path[512], kept[600];
    trainer_comes(a, 8);
    must_post(a, -1, 4, 1);
    newest_segment(path);
    assert_int_equal(stat(path, &before), 0);
    must_post(a, -1, 4, 2);
    atropos_free(a);
    assert_int_equal(stat(path, &after), 0);
    assert_true(file_read(&whole, path, 1 << 20, &err));
    for (off_t size = before.st_size; size <= after.st_size; size += 31) {
        assert_true(dir_remove(folder, &err) && dir_make(folder, 0700, &err));
        assert_true(file_write(path, whole.data, (size_t)size, &err));
        a = start(folder);
        assert_int_equal(atropos_queued(a), size < after.st_size ? 1 : 2);
        must_post(a, -1, 4, 3);
        a = restart(a);    // what is left of the broken record stands in nobody's way
        assert_batch(a, size < after.st_size ? "1,3" : "1,2", true);
        atropos_free(a);
    }
    whole.data[before.st_size - 4] ^= 1;    // a damaged byte: no kill leaves whole records after it, and they count
    assert_true(dir_remove(folder, &err) && dir_make(folder, 0700, &err) && file_write(path, whole.data, whole.len, &err));
    a = start(folder);
    assert_int_equal(atropos_queued(a), 1);
    snprintf(kept, sizeof kept, "%s.damaged", path);
    assert_true(path_exists(kept));
    must_post(a, -1, 4, 3);    // its number is its own
    a = restart(a);
    assert_batch(a, "2,3", true);
    atropos_free(a);
    assert_true(dir_remove(folder, &err) && dir_make(folder, 0700, &err) && file_write(path, "nonsense", 8, &err));
    struct atropos_config config = { .dir = folder, .max_bytes = 1 << 20 };
    assert_null(atropos_new(&config, &err));
    assert_non_null(strstr(err.text, "damaged"));
    buf_release(&whole);
}

/* What the server logged while body ran, for tests of what it says. */
static void logged(void (*body)(void), struct buf *out)
{
    char path[] = "/tmp/rc-atropos-log-XXXXXX";
    int fd = mkstemp(path), own = dup(STDERR_FILENO);
    assert_true(fd >= 0 && own >= 0);
    fflush(stderr);
    dup2(fd, STDERR_FILENO);
    body();
    fflush(stderr);
    dup2(own, STDERR_FILENO);
    close(own);
    close(fd);
    buf_clear(out);
    assert_true(file_read(out, path, 1 << 20, &err));
    unlink(path);
}

static void kills_between_every_two_changes(void)
{
    struct atropos *a = start(folder);
    trainer_comes(a, 4);
    int64_t id = env_comes(a, "gsm", 4, -1);
    for (int64_t i = 1; i < 12; i++) {
        a = restart(a);
        must_post(a, i % 3 ? -1 : id, 4, i);
        a = restart(a);    // the group is in an older segment than what follows
        if (i % 4 == 0) {
            must_post(a, id, 2, 100 + i);
            a = restart(a);
            must_post(a, id, 2, 200 + i);    // two from the buffer
        }
        char want[16];
        snprintf(want, sizeof want, "%" PRId64, i);
        assert_batch(a, want, i % 2);
        a = restart(a);
        if (i % 2 == 0)
            assert_batch(a, want, true);
        if (i % 4 == 0) {
            a = restart(a);
            snprintf(want, sizeof want, "%" PRId64 ",%" PRId64, 100 + i, 200 + i);
            assert_batch(a, want, true);
        }
    }
    atropos_free(restart(a));
}

static void segment_is_deleted(void)
{
    char path[512];
    newest_segment(path);
    assert_int_equal(unlink(path), 0);
    atropos_free(start(folder));
}

static void a_kill_is_no_loss_and_a_loss_is_said(UNUSED void **state)
{
    struct buf said = BUF_INIT;
    logged(kills_between_every_two_changes, &said);
    assert_null(strstr(buf_text(&said), "lost"));
    assert_null(strstr(buf_text(&said), "damaged"));
    assert_true(dir_remove(folder, &err) && dir_make(folder, 0700, &err));
    struct atropos *a = start(folder);
    must_post(a, -1, 4, 1);    // so that the first segment stays
    a = restart(a);
    must_post(a, -1, 4, 2);
    atropos_free(a);
    logged(segment_is_deleted, &said);
    assert_non_null(strstr(buf_text(&said), "another segment follows it, and there is none"));
    buf_release(&said);
}

static int64_t folder_bytes(void)
{
    struct dirent **e;
    int64_t bytes = 0;
    for (int i = 0, n = scandir(folder, &e, NULL, NULL); i < n || (free(e), false); free(e[i++])) {
        char path[512];
        struct stat st;
        snprintf(path, sizeof path, "%s/%s", folder, e[i]->d_name);
        if (e[i]->d_name[0] != '.' && stat(path, &st) == 0)
            bytes += st.st_size;
    }
    return bytes;
}

static void the_folder_does_not_grow_with_what_was_fetched(UNUSED void **state)
{
    enum { BIG = 6 << 20 };
    struct atropos *a = start(folder);
    struct atropos_posted p;
    trainer_comes(a, 4);
    int64_t id = env_comes(a, "e", 4, -1);
    must_post(a, id, 2, 77);              // stays in the buffer to the end
    for (int64_t i = 0; i < 24; i++) {    // 144 MiB go through
        if (!post(a, -1, 4, i, BIG, &p))
            fail_msg("%s", err.text);
        char want[16];
        snprintf(want, sizeof want, "%d", (int)i);
        assert_batch(a, want, true);
        if (i % 8 == 7)
            a = restart(a);
    }
    assert_in_range(folder_bytes(), 0, 140 << 20);
    must_post(a, id, 2, 78);
    a = restart(a);
    assert_in_range(folder_bytes(), 0, 8 << 20);
    assert_batch(a, "77,78", true);
    atropos_free(a);
}

static void memory_is_bounded(UNUSED void **state)
{
    struct atropos_config config = { .max_bytes = 10000 };
    struct atropos *a = atropos_new(&config, &err);
    struct atropos_posted p;
    int64_t n = 0;
    trainer_comes(a, 4);
    while (n < 100 && post(a, -1, 4, n, 0, &p))
        n++;
    assert_in_range(n, 10, 99);
    assert_int_equal(err.code, ERR_FULL);
    assert_non_null(strstr(err.text, "wait for the trainer"));
    assert_batch(a, "0", true);
    assert_true(post(a, -1, 4, n, 0, &p));    // one left, one fits
    assert_false(post(a, -1, 4, n, 0, &p));
    atropos_free(a);
    config.max_bytes = 1 << 20;
    a = atropos_new(&config, &err);
    trainer_comes(a, 4);
    int64_t id = env_comes(a, "odd", 4, -1);
    for (n = 0; n < 1000 && post(a, id, 3, n, 0, &p); n++)    // threes never add up to four
        assert_int_equal(p.buffer_seqs, 3 * (n + 1));
    assert_int_equal(n, ATROPOS_BUFFER_MAX);
    assert_int_equal(err.code, ERR_FULL);
    assert_non_null(strstr(err.text, "do not add up"));
    must_post(a, id, 4, 1);    // whole groups of it still come through
    atropos_free(a);
}

static void a_silent_environment_does_not_hold_up_batches(UNUSED void **state)
{
    struct atropos_env_status s;
    struct atropos *a = start(NULL);
    fake_ms = 5000;
    trainer_comes(a, 8);
    int64_t dead = env_comes(a, "dead", 4, 0.5), lives = env_comes(a, "lives", 4, -1);
    must_post(a, lives, 4, 1);
    must_post(a, lives, 4, 2);
    assert_batch(a, "", true);    // half of it belongs to the other one
    fake_ms += 999;
    assert_true(atropos_env_status(a, lives, &s, &err));
    assert_true(s.unallocated_fraction == 0.5 && s.env_weight == 0.5);
    assert_batch(a, "", true);
    fake_ms += 1;
    assert_true(atropos_env_status(a, lives, &s, &err));
    assert_true(s.unallocated_fraction == 1 && s.env_weight == 1);
    assert_batch(a, "1,2", true);
    assert_true(atropos_env_status(a, dead, &s, &err));    // it was only slow
    assert_true(s.unallocated_fraction == 0.5 && s.env_weight == 0.5);
    atropos_free(a);
}

static void status_counts_as_atropos_does(UNUSED void **state)
{
    struct atropos_env_status s;
    struct atropos *a = start(NULL);
    trainer_comes(a, 16);
    int64_t mine = env_comes(a, "a", 4, -1), other = env_comes(a, "b", 2, 0.25);
    must_post(a, mine, 4, 1);
    for (int i = 0; i < 5; i++)
        must_post(a, other, 2, 2);    // 10 sequences in packs of 4 are 12, less its share of 4
    must_post(a, -1, 3, 3);           // 3 are 4
    assert_true(atropos_env_status(a, mine, &s, &err));
    assert_int_equal(s.max_group_size, 4);
    assert_int_equal(s.self_queue_size, 1);
    assert_int_equal(s.queue_size, (4 + 8 + 4) / 4);
    assert_true(s.unallocated_fraction == 0.75 && s.env_weight == 0.5);
    assert_false(atropos_env_status(a, 7, &s, &err));
    atropos_free(a);
    a = start(NULL);
    trainer_comes(a, 16);
    struct atropos_env e = { .max_token_len = 512, .group_size = 4, .weight = -1, .desired_name = "ignored" };
    assert_true(atropos_env_add(a, &e, &mine, &err));    // the sum of weights is 0
    assert_true(atropos_env_status(a, mine, &s, &err) && s.env_weight == 1);
    atropos_free(a);
}

static void the_newest_batch_comes_first_where_that_is_asked_for(UNUSED void **state)
{
    struct atropos_config config = { .max_bytes = 1 << 20, .lifo = true };
    struct atropos *a = atropos_new(&config, &err);
    trainer_comes(a, 4);
    for (int64_t i = 0; i < 3; i++)
        must_post(a, -1, 4, i);
    assert_batch(a, "2", true);
    assert_int_equal(atropos_step(a), 3);    // all were formed
    assert_batch(a, "1", true);
    assert_batch(a, "0", true);
    atropos_free(a);
}

static void a_second_trainer_changes_nothing_unless_it_takes_over(UNUSED void **state)
{
    struct atropos *a = start(NULL);
    struct atropos_trainer t = { .batch_size = 2, .group = "second" };
    trainer_comes(a, 8);
    must_post(a, -1, 2, 1);
    assert_true(atropos_register(a, &t, false, &err));
    assert_int_equal(atropos_trainer(a)->batch_size, 8);
    assert_true(atropos_register(a, &t, true, &err));
    assert_string_equal(atropos_trainer(a)->group, "second");
    assert_batch(a, "1", true);
    atropos_free(a);
}

static void an_item_keeps_its_group_over_a_kill(UNUSED void **state)
{
    struct atropos *a = start(folder);
    struct atropos_trainer t = { .batch_size = 8, .num_steps = 10 };
    const struct scored *g;
    int64_t taken[4];
    assert_true(atropos_begin(a, &t, &err) && atropos_is_started(a));
    for (int64_t i = 1; i <= 4; i++)
        must_post(a, -1, 2, i);
    assert_true(atropos_take(a, 70, &g, &err) && number_of(g) == 1);
    assert_true(atropos_take(a, 71, &g, &err) && number_of(g) == 2);
    assert_true(atropos_take(a, 70, &g, &err) && number_of(g) == 1);    // asked again
    a = restart(a);
    assert_true(atropos_begin(a, &t, &err));
    assert_int_equal(atropos_taken(a, taken, 4), 2);
    assert_true(taken[0] == 70 && taken[1] == 71 && atropos_queued(a) == 2);
    assert_true(atropos_take(a, 71, &g, &err) && number_of(g) == 2);
    atropos_sent(a, 71, true);
    assert_true(atropos_give_back(a, 70, &err) && atropos_give_back(a, 70, &err));
    a = restart(a);
    assert_int_equal(atropos_taken(a, taken, 4), 0);
    static const int64_t left[] = { 1, 3, 4 };    // the one given back is the first again
    for (int64_t i = 0; i < 3; i++)
        assert_true(atropos_take(a, 80 + i, &g, &err) && number_of(g) == left[i]);
    assert_true(atropos_take(a, 90, &g, &err) && !g);
    atropos_free(a);
}

static struct group *made_by(const struct posted_rules *rules, const char *more, const char *tokens, const char *masks,
                             const char *logprobs)
{
    struct scored_fault fault;
    char text[1024];
    snprintf(text, sizeof text, "{\"tokens\":%s,\"masks\":%s,\"scores\":[1,0],\"inference_logprobs\":%s%s}", tokens, masks, logprobs, more);
    struct scored *posted = read_one(text, &fault);
    assert_non_null(posted);
    posted->version = posted_version(posted, 9);
    struct group *g = posted_group(posted, rules, 42, &err);
    scored_drop(posted);
    return g;
}

static struct group *made_of(const char *more, const char *tokens, const char *masks, const char *logprobs)
{
    return made_by(&(struct posted_rules){ .max_seq_tok = 6, .n_id = 100 }, more, tokens, masks, logprobs);
}

static void a_group_may_come_without_logprobs(UNUSED void **state)
{
    static const char tokens[] = "[[1,2,3],[1,2,4,5]]", masks[] = "[[-100,2,3],[-100,2,-100,5]]";
    static const float none[7] = { 0 };
    static const char *const forms[] = { "null", "[]" };
    for (size_t i = 0; i < ARRAY_SIZE(forms); i++) {
        struct group *g = made_of("", tokens, masks, forms[i]);
        if (!g)
            fail_msg("%s: %s", forms[i], err.text);
        assert_true(g->no_logp && g->n_prompt == 1 && g->n_tok == 5);
        assert_memory_equal(g->logp, none, (size_t)g->n_tok * sizeof *none);
        assert_true(group_bounds_check(g, 100, &err));
        group_free(g);
        assert_null(made_by(&(struct posted_rules){ .max_seq_tok = 6, .n_id = 100, .needs_logp = "what a teacher says" }, "", tokens, masks,
                            forms[i]));
        assert_true(err.code == ERR_DATA && strstr(err.text, "'inference_logprobs' is missing, and what a teacher says is made of it"));
    }
    struct group *g = made_of("", tokens, masks, "[[1,-1,-1],[1,-1,1,-1]]");
    assert_true(g && !g->no_logp);
    group_free(g);
    assert_null(made_of("", tokens, masks, "[[],[]]"));    // as many lists as sequences: they were to have some
    assert_non_null(strstr(err.text, "0 log-probs"));
}

static void a_group_is_dated_by_the_weights_that_drew_its_tokens(UNUSED void **state)
{
    static const int32_t prompt[] = { 1, 2 }, a[] = { 3, 4, 9 }, b[] = { 5, 6, 9 }, turn[] = { 1, 2, 3, 4, 9, 8 }, second[] = { 7 };
    static const struct posted_rules rules = { .max_seq_tok = 20, .n_id = 100 };
    // clang-format off
    static const struct { const char *tokens, *masks; int64_t version; const char *why; } cases[] = {
        { "[[1,2,3,4,9],[1,2,3,4,9]]", "[[-100,-100,3,4,9],[-100,-100,3,4,9]]", 7, "as drawn" },
        { "[[1,2,3,4,9],[1,2,5,6,9]]", "[[-100,-100,3,4,9],[-100,-100,5,6,9]]", 4, "the oldest of the group's" },
        { "[[1,2,3,4],[1,2,3,4]]", "[[-100,-100,3,4],[-100,-100,3,4]]", 7, "without the end token" },
        { "[[1,2,3,4,9,50],[1,2,3,4,50]]", "[[-100,-100,3,4,9,50],[-100,-100,3,4,50]]", 7, "with a line's end after it" },
        { "[[1,2,3,4,9,8,7],[1,2,3,4,9,8,7]]", "[[-100,-100,3,4,9,-100,7],[-100,-100,3,4,9,-100,7]]", 6, "two turns, the second older" },
        { "[[1,2,3,60,61],[1,2,60,61,62]]", "[[-100,-100,3,60,61],[-100,-100,60,61,62]]", -1, "drawn by others" },
        { "[[2,3,4,9],[2,3,4,9]]", "[[-100,3,4,9],[-100,3,4,9]]", -1, "the answer to another prompt" },
        { "[[1,2,3,4,9],[1,2,3,60,9]]", "[[-100,-100,3,4,9],[-100,-100,3,60,9]]", 7, "one of its samples is known" },
    };
    // clang-format on
    char path[300];
    snprintf(path, sizeof path, "/tmp/rollcall-drawn-%ld/drawn", (long)getpid());
    struct drawn_book *book = drawn_book_open(path, &err);
    assert_non_null(book);
    struct drawn_book *reader = drawn_book_open(path, &err);    // another process
    assert_non_null(reader);
    assert_int_equal(drawn_book_given(reader), -1);
    drawn_book_add(book, prompt, 2, a, 3, 7);
    drawn_book_add(book, prompt, 2, b, 3, 4);
    drawn_book_add(book, turn, 6, second, 1, 6);
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct group *g = made_by(&rules, "", cases[i].tokens, cases[i].masks, "null");
        assert_true(g && drawn_book_find(NULL, g) == -1);
        if (drawn_book_find(reader, g) != cases[i].version)
            fail_msg("%s: version %" PRId64, cases[i].why, drawn_book_find(reader, g));
        group_free(g);
    }
    drawn_book_add(book, prompt, 2, a, 3, 9);    // drawn again, by newer weights
    struct group *g = made_by(&rules, "", cases[0].tokens, cases[0].masks, "null");
    assert_true(g && g->weight_version == -1 && drawn_book_find(reader, g) == 9);
    group_free(g);
    g = made_by(&rules, ",\"group_overrides\":{\"weight_version\":3}", cases[0].tokens, cases[0].masks, "null");
    assert_true(g && g->weight_version == 3);
    group_free(g);
    drawn_book_given_set(book, 5);
    assert_int_equal(drawn_book_given(reader), 5);
    drawn_book_given_set(book, -1);
    assert_int_equal(drawn_book_given(reader), -1);
    drawn_book_clear(reader);
    g = made_by(&rules, "", cases[0].tokens, cases[0].masks, "null");
    assert_true(g && drawn_book_find(book, g) == -1);
    group_free(g);
    drawn_book_close(book);
    drawn_book_close(reader);
    *strrchr(path, '/') = 0;
    assert_true(dir_remove(path, &err));
}

static void a_posted_group_becomes_what_the_run_trains_on(UNUSED void **state)
{
    static const char tokens[] = "[[1,2,3,4,5],[1,2,7,8]]", masks[] = "[[-100,-100,3,-100,5],[-100,-100,-100,8]]",
                      logprobs[] = "[[1.0,1.0,-0.5,1.0,-2],[1,1,1,-0.25]]";
    struct group *g = made_of(",\"generation_params\":{\"temperature\":0.7,\"weight_version\":3},\"group_overrides\":{\"temperature\":2},"
                              "\"overrides\":[{},{\"temperature\":0.5,\"set_advantage_to_zero\":true}],\"advantages\":[[0,0,3,0,-1],[0.5]]",
                              tokens, masks, logprobs);
    static const int32_t token[] = { 3, 4, 5, 7, 8 };
    static const uint8_t mask[] = { 1, 0, 1, 0, 1 };
    static const float logp[] = { -0.5f, 0, -2, 0, -0.25f }, adv[] = { 3, 0, -1, 0, 0.5f };
    assert_non_null(g);
    assert_true(g->item == 42 && g->weight_version == 3 && g->n_sample == 2 && g->n_prompt == 2 && g->prompt[0] == 1 && g->prompt[1] == 2);
    assert_int_equal(g->n_tok, 5);
    assert_memory_equal(g->token, token, sizeof token);
    assert_memory_equal(g->mask, mask, sizeof mask);
    assert_memory_equal(g->logp, logp, sizeof logp);
    assert_true(g->has_adv);
    assert_memory_equal(g->adv, adv, sizeof adv);
    assert_true(g->temperature == 0.7f && g->sample[0].temperature == 0 && g->sample[1].temperature == 0.5f);
    assert_true(g->sample[0].reward == 1 && g->sample[1].reward == 0 && !g->sample[0].adv_zero && g->sample[1].adv_zero);
    group_free(g);
    g = made_of(",\"advantages\":[],\"group_overrides\":{\"temperature\":2,\"weight_version\":20}", tokens, masks, logprobs);
    assert_non_null(g);
    assert_true(!g->has_adv && g->temperature == 2 && g->weight_version == 9);    // no weights are newer than the run's
    group_free(g);
    /* the first token cannot be predicted; each sequence needs one after the prompt */
    g = made_of("", "[[1,2],[1,2]]", "[[1,2],[-100,-100]]", "[[-1,-1],[1,1]]");
    assert_non_null(g);
    assert_true(g->n_prompt == 1 && g->n_tok == 2 && sample_n_own(g, 0) == 1 && sample_n_own(g, 1) == 0);
    group_free(g);
    static const struct {
        const char *tokens, *masks, *logprobs, *words, *more;
    } refused[] = {
        { "[[1,2,3],[4,2,3]]", "[[1,2,3],[4,2,3]]", "[[-1,-1,-1],[-1,-1,-1]]", "begin with different tokens" },
        { "[[1],[1]]", "[[1],[1]]", "[[-1],[-1]]", "has 1 tokens" },
        { "[[1,2,3,4,5,6,7],[1,2]]", "[[1],[1]]", "[[-1],[-1]]", "has 7 tokens; the run trains on 2 to 6" },
        { "[[1,2],[1,100]]", "[[1,2],[1,2]]", "[[-1,-1],[-1,-1]]", "the token 100" },
        { "[[1,2],[1,2]]", "[[1,2],[1]]", "[[-1,-1],[-1,-1]]", "1 masks" },
        { "[[1,2],[1,2]]", "[[1,2],[1,2]]", "[[-1,-1],[-1,1.0]]", "the log-prob 1" },
        { "[[1,2],[1,2]]", "[[1,2],[1,2]]", "[[-1,-1]]", "'inference_logprobs' has 1 entries" },
        { "[[1,2]]", "[[1,2]]", "[[-1,-1]]", "'scores' has 2 entries" },
        { "[[1,2],[1,-1]]", "[[1,2],[1,2]]", "[[-1,-1],[-1,-1]]", "the token -1" },
        { "[[1,2],[1,2]]", "[[1,2],[1,2]]", "[[-1,-1],[-1,-41]]", "the log-prob -41 is not from -40 to 0.5" },
        { "[[1,2],[1,2]]", "[[1,2],[1,2]]", "[[-1,-1],[-1,-1e300]]", "the log-prob -1e+300" },
        { "[[1,2],[1,2]]", "[[1,2],[1,2]]", "[[-1,-1],[-1,-1]]", "sequence 1, token 1: the advantage 1e+30",
          ",\"advantages\":[[1],[1e30]]" },
        { "[[1,2],[1,2]]", "[[1,2],[1,2]]", "[[-1,-1],[-1,-39]]", "the advantage 5 and the log-prob -39", ",\"advantages\":[[1],[0,5]]" },
        { "[[1,2],[1,2]]", "[[1,2],[1,2]]", "[[-1,-1],[-1,-1]]", "the temperature 1e-300", ",\"overrides\":[{},{\"temperature\":1e-300}]" },
        { "[[1,2],[1,2]]", "[[1,2],[1,2]]", "[[-1,-1],[-1,-1]]", "the temperature 1e+300",
          ",\"generation_params\":{\"temperature\":1e300}" },
        { "[[1,2],[1,2]]", "[[1,2],[1,2]]", "[[-1,-1],[-1,-1]]", "sequence 0: the reward -1e+300", ",\"scores\":[-1e300,1]" },
    };
    for (size_t i = 0; i < ARRAY_SIZE(refused); i++) {
        assert_null(made_of(refused[i].more ? refused[i].more : "", refused[i].tokens, refused[i].masks, refused[i].logprobs));
        if (!strstr(err.text, refused[i].words))
            fail_msg("%s", err.text);
    }
    g = posted_none(42, 3, &err);    // in place of one that had been accepted: it can be computed with, and its sample is left out
    assert_true(g && g->item == 42 && g->weight_version == 3 && g->n_sample == 1 && g->sample[0].score == SCORE_ERROR);
    assert_true(group_bounds_check(g, 1, &err));
    group_free(g);
}

static void an_answer_to_batch_is_groups_or_nothing_yet_or_an_error(UNUSED void **state)
{
#define ONE "{\"tokens\":[[1,2]],\"masks\":[[-100,2]],\"scores\":[1.5]}"
    static const struct {
        const char *text;
        int64_t n;
        bool ok, registered;
        const char *why;
    } cases[] = {
        { "{\"batch\":[" ONE "," ONE "]}", 2, true, true, "as Python's server prints it" },
        { "{\"batch\":[" ONE "]}\n", 1, true, true, "with an end of line" },
        { "{ \"batch\" : [ " ONE " ] }", 1, true, true, "printed by somebody else" },
        { "{\"x\":1,\"batch\":[" ONE "]}", 1, true, true, "with more fields" },
        { "{\"batch\":null}", 0, true, true, "nothing yet" },
        { "{\"batch\":[]}", 0, true, true, "nothing in it" },
        { "{\"status\":\"error\",\"message\":\"Trainer not registered. Call /register first.\",\"batch\":[]}", 0, true, false,
          "restarted" },
        { "{\"batch\":[" ONE "", 0, false, true, "cut off" },
        { "{\"batch\":[{\"tokens\":[[1]]}]}", 0, false, true, "no group" },
        { "{\"batch\":7}", 0, false, true, "no list" },
        { "[]", 0, false, true, "no object" },
        { "", 0, false, true, "empty" },
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct scored **g = NULL;
        int64_t n = -1;
        bool registered;
        bool ok = atropos_batch_read(cases[i].text, strlen(cases[i].text), &g, &n, &registered, &err);
        if (ok != cases[i].ok || (ok && (n != cases[i].n || registered != cases[i].registered)))
            fail_msg("%s: %d, %d groups", cases[i].why, ok, (int)n);
        for (int64_t k = 0; ok && k < n; k++)
            scored_drop(g[k]);
        free(g);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(batches_have_exactly_their_size_in_packs_of_the_largest_group),
        cmocka_unit_test(shares_of_environments_are_kept),
        cmocka_unit_test(small_groups_are_added_up_exactly),
        cmocka_unit_test(numbers_are_coerced_as_pydantic_does),
        cmocka_unit_test(what_is_no_group_is_named),
        cmocka_unit_test(a_group_comes_back_as_it_was_posted),
        cmocka_unit_test_setup_teardown(everything_acknowledged_outlives_a_kill, folder_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(a_record_that_was_cut_off_was_never_acknowledged, folder_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(a_kill_is_no_loss_and_a_loss_is_said, folder_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(the_folder_does_not_grow_with_what_was_fetched, folder_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(an_item_keeps_its_group_over_a_kill, folder_setup, folder_teardown),
        cmocka_unit_test(a_group_is_dated_by_the_weights_that_drew_its_tokens),
        cmocka_unit_test(a_posted_group_becomes_what_the_run_trains_on),
        cmocka_unit_test(a_group_may_come_without_logprobs),
        cmocka_unit_test(an_answer_to_batch_is_groups_or_nothing_yet_or_an_error),
        cmocka_unit_test(memory_is_bounded),
        cmocka_unit_test(a_silent_environment_does_not_hold_up_batches),
        cmocka_unit_test(status_counts_as_atropos_does),
        cmocka_unit_test(the_newest_batch_comes_first_where_that_is_asked_for),
        cmocka_unit_test(a_second_trainer_changes_nothing_unless_it_takes_over),
    };
    setenv("RC_LOG", "error", 1);    // each end that was cut off would be logged
    return cmocka_run_group_tests(tests, NULL, NULL);
}
