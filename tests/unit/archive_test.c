/* tags: valgrind
 * The console looks back at what a run has kept: every group is found, searched, counted, and read token by token. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "console/fleet/archive.h"
#include "console/fleet/record.h"
#include "console/fleet/rollout_filter.h"
#include "console/tui/app.h"
#include "protocol/base/file.h"
#include "protocol/record/group_msg.h"
#include "protocol/record/rollout_file.h"
#include "protocol/wire/message.h"
#include "tests/unit/app_screen.h"

#define S ((int64_t)1000000000)

/* A run's folder as its controller leaves it. */
struct kept {
    char dir[64];
    struct journal *journal;
    struct rollout_file *file;
    struct run_view *m;
    struct archive *archive;
    int64_t now;
};

static void kept_make(struct kept *k)
{
    struct error err;
    char path[128];
    *k = (struct kept){ .dir = "/tmp/rc_archive_XXXXXX", .now = S };
    assert_non_null(mkdtemp(k->dir));
    snprintf(path, sizeof path, "%s/rollouts", k->dir);
    assert_true(dir_make(path, 0700, &err));
    snprintf(path, sizeof path, "%s/rollouts/groups.zst", k->dir);
    assert_non_null(k->journal = journal_open(k->dir, &err));
    assert_non_null(k->file = rollout_file_open(path, 0, NULL, &err));
    assert_non_null(k->m = view_new(&err));
    assert_non_null(k->archive = archive_new(k->dir));
}

static void kept_release(struct kept *k)
{
    struct error err;
    archive_free(k->archive);
    fleet_model_free(k->m);
    rollout_file_close(k->file);
    journal_close(k->journal);
    assert_true(dir_remove(k->dir, &err));
}

/* One group of item's prompt: text i is "ab i", of three tokens of 1, 0 and the other bytes, with reward[i]; the last sample is cut. */
static void group_keep(struct kept *k, int64_t item, int64_t row, const double *reward, int n, enum item_fate fate)
{
    struct error err;
    struct msg_out m = MSG_OUT_INIT;
    struct group *g = group_new(2, n, 3 * n, &err);
    char text[8][16], prompt[32];
    const char *texts[8];
    uint16_t piece[24];
    struct journal_item i = { .item = item,
                              .prompt_row = row,
                              .rollout_step = item / 2,
                              .weight_version = item / 2,
                              .fate = fate,
                              .step = fate == ITEM_TRAINED ? item / 2 + 1 : -1,
                              .reward_mean = NAN };
    assert_non_null(g);
    g->item = item;
    g->prompt_row = row;
    g->weight_version = item / 2;
    snprintf(g->gold, sizeof g->gold, "gold %" PRId64, item);
    snprintf(prompt, sizeof prompt, "question %" PRId64, row);
    for (int s = 0; s < n; s++) {
        bool scored = !isnan(reward[s]);
        snprintf(text[s], sizeof text[s], "ab %d", s);
        texts[s] = text[s];
        g->sample[s] = (struct sample){ .first_tok = 3 * s,
                                        .n_tok = 3,
                                        .finish = s == n - 1 ? FINISH_LENGTH : FINISH_STOP,
                                        .score = scored ? SCORE_OK : SCORE_TIMEOUT,
                                        .reward = scored ? reward[s] : 0,
                                        .ans_acc = scored && reward[s] > 0.5 };
        for (int p = 0; p < GROUP_PARTS_MAX; p++)
            g->sample[s].part[p] = p == 0 ? 0.25 : NAN;
        snprintf(g->sample[s].reason, sizeof g->sample[s].reason, "%s", scored ? "boxed" : "time-out");
        for (int t = 0; t < 3; t++) {
            g->token[3 * s + t] = 100 + t;
            g->logp[3 * s + t] = -0.5f * (float)(t + 1);
            g->newer[3 * s + t] = t == 2;
            g->entropy[3 * s + t] = 0.8f * (float)t;
            g->has_entropy = true;
            piece[3 * s + t] = t == 0 ? 1 : t == 1 ? 0 : 3;
        }
    }
    msg_begin(&m, MSG_GROUP);
    msg_i64(&m, "incarnation", 1);
    group_write(&m, g, &(struct group_texts){ .prompt = prompt, .sample = texts, .piece = piece });
    assert_true(msg_finish(&m, &err));
    assert_true(rollout_file_append(k->file, m.buf.data, m.buf.len, &i.file_offset, &i.file_bytes, &err));
    assert_true(journal_begin(k->journal, &err) && journal_item_put(k->journal, &i, &err) && journal_commit(k->journal, &err));
    msg_release(&m);
    group_free(g);
}

/* Until nothing is left to do, in slices of one piece of work. */
static void pump(struct kept *k)
{
    k->now += S;
    for (int i = 0; archive_pump(k->archive, k->m, ARCHIVE_GROUPS, 1, k->now); i++)
        assert_true(i < 100000);
    k->now += S;
    archive_pump(k->archive, k->m, ARCHIVE_GROUPS, S, k->now);
}

static const double mixed[] = { 1, 0, 1, NAN }, solved[] = { 1, 1 }, failed[] = { 0, 0 };

static void every_kept_group_is_found_searched_and_read(UNUSED void **state)
{
    struct kept k;
    kept_make(&k);
    pump(&k);
    assert_int_equal(archive_rows(k.archive), 0);
    assert_string_equal(archive_why(k.archive), "");
    group_keep(&k, 0, 5, mixed, 4, ITEM_TRAINED);
    group_keep(&k, 1, 6, solved, 2, ITEM_FILTERED);
    group_keep(&k, 2, 5, failed, 2, ITEM_RETURNED);
    pump(&k);
    assert_int_equal(archive_rows(k.archive), 3);
    assert_int_equal(archive_row(k.archive, 0)->item, 2);    // newest first
    assert_int_equal(archive_find(k.archive, 1), 1);
    assert_memory_equal(archive_row(k.archive, 2)->sign, "101?", 5);
    archive_want(k.archive, 0);
    pump(&k);
    const struct rollout_view *g = archive_shown(k.archive);
    assert_non_null(g);
    assert_int_equal(g->step, 1);
    assert_string_equal(g->gold, "gold 0");
    assert_string_equal(g->prompt, "question 5");
    assert_int_equal(g->n_sample, 4);
    assert_string_equal(g->sample[1].text, "ab 1");
    assert_true(g->sample[1].part[0] == 0.25 && isnan(g->sample[1].part[1]));
    assert_true(g->sample[3].cut && isnan(g->sample[3].reward) && isnan(g->sample[3].adv));
    /* rewards 1 0 1: mean 2/3, deviation sqrt(1/3); GRPO's rule divides by that + 1e-4 */
    assert_true(fabs(g->sample[0].adv - (1.0 / 3) / (sqrt(1.0 / 3) + 1e-4)) < 1e-12);
    assert_true(fabs(g->sample[1].adv - (-2.0 / 3) / (sqrt(1.0 / 3) + 1e-4)) < 1e-12);
    assert_int_equal(g->sample[2].piece[2], 3);
    assert_int_equal(g->sample[2].newer[2], 1);
    assert_true(g->sample[2].logp[1] == -1.0f);
    static const struct {
        const char *words;
        int64_t item[3];    // newest first; -1: no more
    } cases[] = {
        { "is:mixed", { 0, -1, -1 } },    { "is:solved", { 1, -1, -1 } },       { "is:failed", { 2, -1, -1 } },
        { "reward>0.5", { 1, 0, -1 } },   { "reward<0.5", { 2, 0, -1 } },       { "is:unscored", { 0, -1, -1 } },
        { "reason:TIME", { 0, -1, -1 } }, { "question 6", { 1, -1, -1 } },      { "!question 6", { 2, 0, -1 } },
        { "step:1", { 2, 0, -1 } },       { "item:1", { 1, -1, -1 } },          { "reward=1 is:whole", { 1, 0, -1 } },
        { "is:cut ab 3", { 0, -1, -1 } }, { "is:cut reward=1", { 1, -1, -1 } }, { "nothing", { -1, -1, -1 } },
        { "reward<x", { -1, -1, -1 } },
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        archive_filter(k.archive, cases[i].words);
        pump(&k);
        for (int row = 0; row < 3; row++) {
            const struct archive_group *found = archive_row(k.archive, row);
            if ((found ? found->item : -1) != cases[i].item[row])
                fail_msg("'%s', row %d: item %" PRId64, cases[i].words, row, found ? found->item : -1);
        }
    }
    archive_filter(k.archive, "is:solved");
    group_keep(&k, 3, 7, solved, 2, ITEM_ISSUED);    // one that comes later is searched too
    pump(&k);
    assert_int_equal(archive_rows(k.archive), 2);
    assert_int_equal(archive_row(k.archive, 0)->item, 3);
    kept_release(&k);
}

static void prompts_are_counted_over_all_their_groups(UNUSED void **state)
{
    struct kept k;
    struct error err;
    int64_t n, uncounted;
    kept_make(&k);
    group_keep(&k, 0, 5, failed, 2, ITEM_TRAINED);
    group_keep(&k, 1, 2, solved, 2, ITEM_FILTERED);
    group_keep(&k, 2, 5, mixed, 4, ITEM_RETURNED);
    assert_true(journal_begin(k.journal, &err) && journal_value_put(k.journal, "quarantine", "9\n", 2, &err)
                && journal_commit(k.journal, &err));
    pump(&k);
    const struct archive_prompt *p = archive_prompts(k.archive, &n, &uncounted);
    assert_int_equal(uncounted, 0);
    assert_int_equal(n, 3);
    assert_true(p[0].row == 5 && p[0].n_group == 2 && p[0].n_sample == 6 && p[0].n_scored == 5 && p[0].solved == 2);    // hardest first
    assert_true(p[0].first == 0 && fabs(p[0].last - 2.0 / 3) < 1e-6);                                                   // the rate as float
    assert_true(p[1].row == 2 && p[1].n_group == 1 && p[1].n_filtered == 1 && p[1].solved == 2 && p[1].last == 1);
    assert_true(p[2].row == 9 && p[2].quarantined && p[2].n_group == 0);
    assert_true(journal_begin(k.journal, &err) && journal_value_put(k.journal, "quarantine", "2\n", 2, &err)
                && journal_commit(k.journal, &err));
    pump(&k);
    p = archive_prompts(k.archive, &n, &uncounted);
    assert_true(n == 2 && p[1].row == 2 && p[1].quarantined);    // another prompt is in quarantine
    group_keep(&k, 2, 5, solved, 2, ITEM_TRAINED);               // sampled again after a return to a checkpoint
    k.m->incarnation++;
    pump(&k);
    p = archive_prompts(k.archive, &n, &uncounted);
    assert_true(n == 2 && p[0].row == 5 && p[0].n_sample == 4 && p[0].last == 1);
    kept_release(&k);
}

static void a_folder_without_a_journal_is_an_empty_archive_that_says_why(UNUSED void **state)
{
    struct error err;
    struct run_view *m = view_new(&err);
    struct archive *a = archive_new("/nonexistent/run");
    archive_pump(a, m, 100, S, S);
    assert_false(archive_pump(a, m, 100, S, S));
    assert_int_equal(archive_rows(a), 0);
    assert_non_null(strstr(archive_why(a), "/nonexistent/run"));
    archive_free(a);
    fleet_model_free(m);
}

/* What the folder of a run that is over shows, with these settings: item 0 after step 1, items 0 and 2 at the end. */
static void kept_groups_check(struct kept *k, const char *settings)
{
    struct error err;
    char path[128];
    struct run_view *m = view_new(&err);
    snprintf(path, sizeof path, "%s/run.yaml", k->dir);
    assert_true(file_write(path, settings, strlen(settings), &err));
    struct feed *feed = record_new(k->dir, m, S, &err);
    assert_non_null(feed);
    for (int64_t step = 2; step >= 1; step--) {
        const struct rollout_view *g = view_rollout_at(m, 0);
        assert_non_null(g);
        assert_int_equal(g->item, 2 * (step - 1));
        assert_int_equal(g->step, step);
        assert_int_equal(m->n_rollout, step);
        assert_string_equal(g->sample[1].text, "ab 1");
        assert_true(feed->seek(feed, m, 1, S));
    }
    struct archive *a = archive_new(k->dir);
    archive_want(a, -1);
    for (int i = 0; archive_pump(a, m, ARCHIVE_GROUPS, S, (i + 1) * S) || i < 2; i++)
        assert_true(i < 1000);
    assert_non_null(archive_shown(a));
    assert_int_equal(archive_shown(a)->item, 2);
    archive_free(a);
    feed->free(feed);
    fleet_model_free(m);
}

static void groups_are_found_where_the_settings_keep_them(UNUSED void **state)
{
    struct error err;
    struct kept k;
    char from[128], to[128], settings[160];
    kept_make(&k);
    group_keep(&k, 0, 5, solved, 2, ITEM_TRAINED);
    group_keep(&k, 2, 6, solved, 2, ITEM_TRAINED);
    assert_true(journal_begin(k.journal, &err));
    for (int64_t s = 1; s <= 2; s++)
        assert_true(journal_step_add(k.journal, 1, s, 1000.0 * (double)s, &(struct journal_metric){ metrics[M_REWARD].name, 1 }, 1, &err));
    assert_true(journal_commit(k.journal, &err));
    kept_groups_check(&k, "# as it is\n");
    snprintf(from, sizeof from, "%s/rollouts", k.dir);
    snprintf(to, sizeof to, "%s/elsewhere", k.dir);
    assert_int_equal(rename(from, to), 0);
    snprintf(settings, sizeof settings, "rollout_save_dir: %s\n", to);
    kept_groups_check(&k, settings);
    kept_release(&k);
}

static void a_replay_that_cannot_be_read_says_so(UNUSED void **state)
{
    struct error err;
    struct kept k;
    struct app app;
    char settings[128], journal[128], away[128];
    kept_make(&k);
    snprintf(settings, sizeof settings, "%s/run.yaml", k.dir);
    snprintf(journal, sizeof journal, "%s/journal.db", k.dir);
    snprintf(away, sizeof away, "%s/away.db", k.dir);
    assert_true(journal_begin(k.journal, &err));
    for (int64_t s = 1; s <= 3; s++)
        assert_true(journal_step_add(k.journal, 1, s, 1000.0 * (double)s, &(struct journal_metric){ metrics[M_REWARD].name, 1 }, 1, &err));
    assert_true(journal_commit(k.journal, &err));
    assert_true(file_write(settings, "# as it is\n", 11, &err));
    struct feed *feed = record_new(k.dir, k.m, S, &err);
    assert_non_null(feed);
    assert_true(app_init(&app, k.m, feed, 80, 24, &err));
    assert_int_equal(rename(journal, away), 0);
    app_key(&app, &(struct key_event){ .key = ',' }, S);
    assert_non_null(strstr(app.flash, "cannot be shown as it was"));
    assert_false(app.replay);
    assert_int_equal(k.m->step, 3);
    assert_int_equal(rename(away, journal), 0);
    app.flash[0] = 0;
    app_key(&app, &(struct key_event){ .key = ',' }, S);
    assert_string_equal(app.flash, "");
    assert_true(app.replay);
    assert_int_equal(k.m->step, 2);
    app_release(&app);
    feed->free(feed);
    kept_release(&k);
}

/* ---- the pane ---- */

static void keys(struct app *app, struct kept *k, const char *text)
{
    for (; *text; text++)
        app_key(app, &(struct key_event){ .key = (unsigned char)*text }, k->now);
    for (int i = 0; i < 2; i++) {    // what has been found changes what is wanted
        app_archive_wants(app);
        pump(k);
    }
}

static void a_token_has_its_number_under_the_cursor(UNUSED void **state)
{
    struct kept k;
    struct app app;
    struct cells c = { 0 };
    struct error err;
    kept_make(&k);
    for (int64_t i = 0; i < 40; i++)
        group_keep(&k, i, i, i % 2 ? mixed : solved, i % 2 ? 4 : 2, ITEM_TRAINED);
    k.m->told_ns = k.now;
    assert_true(app_init(&app, k.m, NULL, 120, 30, &err));
    app.archive = k.archive;
    keys(&app, &k, "3");
    app_must_show(&app, &c, k.now, "1/40");
    app_must_show(&app, &c, k.now, "right answer: gold 39");
    app_must_show(&app, &c, k.now, "#2  reward 0 (0.250)  advantage -1.15  3 tok  boxed");
    app_must_show(&app, &c, k.now, "trained at 20");
    keys(&app, &k, "t");
    app_must_show(&app, &c, k.now, "#1 token 1/3 'a'  log-prob -0.500 (60.7 %)  entropy 0.000  weights of step 19");
    keys(&app, &k, "ll");    // the second token gave no text of its own
    app_must_show(&app, &c, k.now, "#1 token 3/3 'b 0'  log-prob -1.500 (22.3 %)  entropy 1.600  weights of step 20");
    assert_true(c.cell[c.cursor_y * c.w + c.cursor_x].ch == 'b');
    assert_true(c.cell[c.cursor_y * c.w + c.cursor_x].attr & ATTR_UNDERLINE);    // below one half, also without colour
    keys(&app, &k, "l");                                                         // on to the next sample
    app_must_show(&app, &c, k.now, "#2 token 1/3");
    keys(&app, &k, "tll");
    app_must_show(&app, &c, k.now, "by entropy");
    assert_true(c.cell[c.cursor_y * c.w + c.cursor_x].attr & ATTR_REVERSE);    // 1.6 nat
    keys(&app, &k, "hht");
    app_must_show(&app, &c, k.now, "by weights");
    keys(&app, &k, "tv");
    const char *text = app_screen(&app, &c, k.now), *second = strstr(text, "#2  reward 0"), *third = strstr(text, "#3  reward 1");
    assert_non_null(second);
    assert_non_null(third);
    assert_true(third > second && !memchr(second, '\n', (size_t)(third - second)));    // in one row
    keys(&app, &k, "vs");
    app_must_show(&app, &c, k.now, "Score this group again?");
    app_must_show(&app, &c, k.now, "nothing is replaced");    // it has been trained on
    assert_string_equal(app.dialog.choice[0].command, "rescore 39");
    app_key(&app, &(struct key_event){ .key = KEY_ESCAPE }, k.now);
    keys(&app, &k, "\r/is:solved\r");
    app_must_show(&app, &c, k.now, "1/20");
    app_must_show(&app, &c, k.now, "right answer: gold 38");
    app_must_show(&app, &c, k.now, "#1*  reward 1");
    keys(&app, &k, "G");
    app_must_show(&app, &c, k.now, "right answer: gold 0");
    for (int w = 40; w <= 200; w += 40)
        for (int h = 10; h <= 50; h += 10)
            for (const char *view = "tvv\rtt"; *view; view++) {
                app_resize(&app, w, h);
                keys(&app, &k, (const char[]){ *view, 0 });
                app_screen(&app, &c, k.now);
                assert_true(c.cursor_x < w && c.cursor_y < h);
            }
    app_release(&app);
    cells_release(&c);
    kept_release(&k);
}

static void an_item_that_is_not_back_is_listed_and_can_be_dropped(UNUSED void **state)
{
    struct kept k;
    struct app app;
    struct cells c = { 0 };
    struct error err;
    kept_make(&k);
    group_keep(&k, 0, 0, mixed, 4, ITEM_RETURNED);
    struct journal_item out = { .item = 1, .fate = ITEM_ISSUED, .step = -1, .reward_mean = NAN, .file_offset = -1, .file_bytes = -1 };
    assert_true(journal_begin(k.journal, &err) && journal_item_put(k.journal, &out, &err) && journal_commit(k.journal, &err));
    k.m->told_ns = k.now;
    assert_true(app_init(&app, k.m, NULL, 120, 30, &err));
    app.archive = k.archive;
    keys(&app, &k, "3");
    app_must_show(&app, &c, k.now, "2/2");    // the newest that is back is followed
    app_must_show(&app, &c, k.now, "right answer: gold 0");
    app_must_show(&app, &c, k.now, "not back");
    keys(&app, &k, "k");
    app_must_show(&app, &c, k.now, "1/2");
    app_must_show(&app, &c, k.now, "item 1 is not back yet; X drops it");
    keys(&app, &k, "X");
    app_must_show(&app, &c, k.now, "Drop this item?");
    assert_string_equal(app.dialog.choice[0].command, "drop 1");
    app_key(&app, &(struct key_event){ .key = KEY_ESCAPE }, k.now);
    out.fate = ITEM_STOPPED;
    assert_true(journal_begin(k.journal, &err) && journal_item_put(k.journal, &out, &err) && journal_commit(k.journal, &err));
    keys(&app, &k, "");
    app_must_show(&app, &c, k.now, "1/1");
    assert_null(strstr(app_screen(&app, &c, k.now), "not back"));
    app_release(&app);
    cells_release(&c);
    kept_release(&k);
}

static void a_group_that_cannot_be_read_says_so(UNUSED void **state)
{
    struct kept k;
    struct app app;
    struct cells c = { 0 };
    struct error err;
    kept_make(&k);
    group_keep(&k, 0, 0, mixed, 4, ITEM_TRAINED);
    struct journal_item lost = {
        .item = 1, .fate = ITEM_TRAINED, .step = 1, .reward_mean = 0.5, .file_offset = 1 << 20, .file_bytes = 100
    };
    assert_true(journal_begin(k.journal, &err) && journal_item_put(k.journal, &lost, &err) && journal_commit(k.journal, &err));
    k.m->told_ns = k.now;
    assert_true(app_init(&app, k.m, NULL, 120, 30, &err));
    app.archive = k.archive;
    keys(&app, &k, "3");
    app_must_show(&app, &c, k.now, "the record of this group cannot be read");
    keys(&app, &k, "j");
    app_must_show(&app, &c, k.now, "right answer: gold 0");
    app_release(&app);
    cells_release(&c);
    kept_release(&k);
}

static void the_data_pane_sorts_prompts_by_how_hard_they_are(UNUSED void **state)
{
    struct kept k;
    struct app app;
    struct cells c = { 0 };
    struct error err;
    int64_t pair[] = { 0, 11 };    // prompt 0 stands on line 11, those after it on the lines after that
    kept_make(&k);
    assert_true(journal_begin(k.journal, &err) && journal_value_put(k.journal, "lines", pair, sizeof pair, &err)
                && journal_commit(k.journal, &err));
    group_keep(&k, 0, 0, solved, 2, ITEM_TRAINED);
    group_keep(&k, 1, 1, failed, 2, ITEM_FILTERED);
    group_keep(&k, 2, 2, mixed, 4, ITEM_TRAINED);
    k.m->told_ns = k.now;
    assert_true(app_init(&app, k.m, NULL, 120, 30, &err));
    app.archive = k.archive;
    keys(&app, &k, "D");
    app_must_show(&app, &c, k.now, "3 prompts by pass rate; 1 filtered, 0 in quarantine");
    app_must_show(&app, &c, k.now, "      0 %       1");    // each prompt is in one class
    app_must_show(&app, &c, k.now, "    100 %       1");
    app_must_show(&app, &c, k.now, "  unknown       0");
    app_must_show(&app, &c, k.now, "      12      1       2     0      0   1 filtered");
    app_must_show(&app, &c, k.now, "question 1");    // the newest group of the hardest one
    app_must_show(&app, &c, k.now, "right answer: gold 1");
    keys(&app, &k, "v");
    app_must_show(&app, &c, k.now, "prompts never solved: 1");
    keys(&app, &k, "vv");
    app_must_show(&app, &c, k.now, "prompts always solved: 1");
    keys(&app, &k, "x");
    app_must_show(&app, &c, k.now, "Line 11 of the dataset is not issued any more");
    app_key(&app, &(struct key_event){ .key = KEY_ESCAPE }, k.now);
    keys(&app, &k, "vv");
    app_must_show(&app, &c, k.now, "no prompt is like that");    // in quarantine
    keys(&app, &k, "v/line 13\r\r");
    assert_int_equal(app.shown, PANE_ROLLOUTS);
    app_must_show(&app, &c, k.now, "filter: line:13");
    app_must_show(&app, &c, k.now, "right answer: gold 2");
    app_release(&app);
    cells_release(&c);
    kept_release(&k);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_kept_group_is_found_searched_and_read),
        cmocka_unit_test(prompts_are_counted_over_all_their_groups),
        cmocka_unit_test(a_folder_without_a_journal_is_an_empty_archive_that_says_why),
        cmocka_unit_test(groups_are_found_where_the_settings_keep_them),
        cmocka_unit_test(a_replay_that_cannot_be_read_says_so),
        cmocka_unit_test(an_item_that_is_not_back_is_listed_and_can_be_dropped),
        cmocka_unit_test(a_group_that_cannot_be_read_says_so),
        cmocka_unit_test(the_data_pane_sorts_prompts_by_how_hard_they_are),
        cmocka_unit_test(a_token_has_its_number_under_the_cursor),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
