/* The order in which console --batch tells what comes to it, and what console --plain makes of what is typed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <jansson.h>
#include "console/batch/plain.h"
#include "console/batch/watch.h"
#include "protocol/base/clock.h"

struct story {    // a feed that has something new each time it is asked
    struct feed feed;
    int n;    // how often it has been
};

static void steps_add(struct run_view *m, int64_t end)
{
    for (int64_t s = MAX(m->n_step, (int64_t)1); s < end; s++) {
        view_step_begin(m, s);
        view_metric(m, s, metrics[M_REWARD].name, 0.5);
    }
}

static void event_add(struct run_view *m, int64_t id, int64_t step, const char *kind, const char *facts)
{
    struct event_view e = { .id = id, .step = step, .time_s = clock_wall_s() + 1 };
    snprintf(e.kind, sizeof e.kind, "%s", kind);
    view_event_facts(m, &e, facts, strlen(facts));
}

static void story_pump(struct feed *f, struct run_view *m, int64_t now_ns)
{
    struct story *s = (struct story *)f;
    switch (s->n++) {
    case 0:    // events are here before the steps that they came after
        m->told_ns = now_ns;
        m->state = RUN_RUNNING;
        m->step = 3;
        view_eval(m, "all", 1, 4, 0.125);
        event_add(m, 1, 2, "checkpoint", "{\"step\":2,\"path\":\"step-2\"}");
        break;
    case 1: steps_add(m, 4); break;
    case 2:    // two evaluations of one set between two looks, and the end
        event_add(m, 2, 3, "eval", "{\"set\":\"all\",\"step\":3,\"n\":4,\"mean\":0.25}");
        event_add(m, 3, 5, "eval", "{\"set\":\"all\",\"step\":5,\"n\":4,\"mean\":0.5}");
        m->step = 5;
        m->state = RUN_FINISHED;
        break;
    default: steps_add(m, 6); m->ended = true;
    }
}

static int64_t story_due(UNUSED const struct feed *f)
{
    return 0;
}

static void an_event_is_printed_after_the_step_it_follows(UNUSED void **state)
{
    static const struct {
        const char *event;
        int64_t step;
    } want[] = {
        { "step", 1 }, { "step", 2 }, { "step", 3 }, { "eval", 1 }, { "checkpoint", 2 },
        { "eval", 3 }, { "step", 4 }, { "step", 5 }, { "eval", 5 }, { "finished", 5 },
    };
    struct error err;
    struct story story = { .feed = { .fd = -1, .pump = story_pump, .due_ns = story_due } };
    struct run_view *m = view_new(&err);
    char *text = NULL;
    size_t len = 0, n = 0;
    FILE *out = open_memstream(&text, &len);
    assert_true(batch_watch(&story.feed, m, &(struct batch_config){ .format = BATCH_JSONL, .out = out },
                            &(struct watch_options){ .from = 1 }, &err));
    fclose(out);
    for (char *save = NULL, *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save), n++) {
        json_t *o = json_loads(line, 0, NULL);
        assert_non_null(o);
        assert_true(n < ARRAY_SIZE(want));
        assert_string_equal(json_string_value(json_object_get(o, "event")), want[n].event);
        assert_int_equal(json_integer_value(json_object_get(o, "step")), want[n].step);
        json_decref(o);
    }
    assert_int_equal(n, ARRAY_SIZE(want));
    free(text);
    fleet_model_free(m);
}

struct typed {    // a feed that keeps the last command it was given
    struct feed feed;
    char text[2048];
};

static bool typed_command(struct feed *f, UNUSED struct run_view *m, UNUSED const struct command *c, const char *text,
                          UNUSED int64_t now_ns, UNUSED struct error *err)
{
    struct typed *t = (struct typed *)f;
    snprintf(t->text, sizeof t->text, "%s", text);
    return true;
}

/* Type a text into a console of lines; what it says stays in out. */
static void type(struct plain *p, const char *text)
{
    int fd[2];
    assert_int_equal(pipe(fd), 0);
    assert_int_equal(write(fd[1], text, strlen(text)), strlen(text));
    close(fd[1]);
    while (!p->quit)
        plain_read(p, fd[0], 0);
    p->quit = false;
    close(fd[0]);
}

static void a_long_command_is_sent_whole_or_not_at_all(UNUSED void **state)
{
    struct error err;
    struct typed typed = { .feed = { .fd = -1, .command = typed_command } };
    struct run_view *m = view_new(&err);
    char *said = NULL, line[2048] = "set learning_rate=0.5";
    size_t len = 0;
    struct plain p = { .feed = &typed.feed, .model = m, .out = open_memstream(&said, &len) };
    view_knob(m, "learning_rate", "1e-6", 1);
    while (strlen(line) < 400)    // asked about, then sent as it was typed
        strcat(line, " learning_rate=0.5");
    type(&p, line);
    assert_string_equal(typed.text, "");
    p.len = 0;
    type(&p, strcat(line, "\n"));
    assert_non_null(strstr(said, "yes or no"));
    assert_string_equal(typed.text, "");
    type(&p, "yes\n");
    line[strcspn(line, "\n")] = 0;
    assert_string_equal(typed.text, line);
    typed.text[0] = 0;
    snprintf(line, sizeof line, "%1500s\n", "pause step");    // what has room is no command
    type(&p, line);
    snprintf(line, sizeof line, "pause step%1500s\nresume\n", "x");
    type(&p, line);
    fflush(p.out);
    assert_non_null(strstr(said, "refused: a line has at most 1023 bytes, and this one has 1510"));
    assert_string_equal(typed.text, "resume");
    fclose(p.out);
    free(said);
    fleet_model_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_event_is_printed_after_the_step_it_follows),
        cmocka_unit_test(a_long_command_is_sent_whole_or_not_at_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
