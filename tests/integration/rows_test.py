"""tags: limit=600
The table of CONTRIBUTING.md names every file that a new row needs: a script adds one of each kind in the files of its row alone, and the
program that is built from them has it. rows_long_test.py has the kinds whose headers the whole program includes."""
import contextlib
import http.client
import json
import os
import re
import subprocess
import unittest
import grow
import tiny_model
from run_tools import ROLLCALL

REWARD = r'''
/* One for each vowel. */
#include <string.h>
#include "workers/engine/reward/kind.h"

static void vowels_score(UNUSED void *self, UNUSED const struct reward_config *config, const struct reward_input *in, struct reward_output *out,
                         int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        out[i].score = SCORE_OK;
        for (size_t k = 0; k < in[i].response_len; k++)
            out[i].reward += strchr("aeiou", in[i].response[k]) != NULL;
    }
}

const struct reward_kind reward_kind_vowels = { .name = "vowels", .score = vowels_score };
'''
EXPORT = r'''
#include <stdio.h>
#include "workers/export/export.h"
#include "workers/export/rows.h"

static bool row_see(void *arg, const struct journal_step *row)
{
    *(int64_t *)arg = row->step;
    return true;
}

bool export_newest(const struct export_request *r, struct error *err)
{
    struct cursor cursor = CURSOR_START;
    int64_t step = 0;
    struct journal *journal = rows_open(r->run_dir, err);
    bool ok = journal && rows_read(journal, &cursor, row_see, &step, err);
    if (ok)
        printf("newest step %lld\n", (long long)step);
    journal_close(journal);
    return ok;
}
'''
PANE = r'''
#include "console/tui/app.h"

static void grown_draw(UNUSED const struct pane *p, UNUSED const struct app *a, struct cells *c, struct rect r, UNUSED int64_t now_ns)
{
    cells_fmt(c, r.x, r.y, r.w, ROLE_TITLE, "a pane that was added");
}

const struct pane_type pane_grown = { .name = "Grown", .size = sizeof(struct pane), .draw = grown_draw };
'''
SUBCOMMAND = r'''
#include <stdio.h>
#include "protocol/base/cli.h"
#include "protocol/base/subcommand.h"

static bool grown_cmd(int argc, char **argv, struct error *err)
{
    struct cli cli = { .command = "rollcall grown", .about = "Says that it is there." };
    if (!cli_parse(&cli, argc, argv, err) || cli.help_wanted)
        return cli.help_wanted;
    puts("it is there");
    return true;
}

const struct subcommand grown_subcommand = { "grown", grown_cmd, "a command that was added" };
'''
RUN_FORM = r'''
#include <stdio.h>
#include "workers/engine/pass/run_impl.h"

static struct run_form form;

static bool grown_forward(struct model_run *r, const struct pass *p, struct error *err)
{
    fputs("a pass of a form that was added\n", stderr);
    return run_one.forward(r, p, err);
}

const struct run_form *run_grown(void)
{
    form = run_one;
    form.forward = grown_forward;
    return &form;
}
'''
WEIGHTS_FORM = r'''
#include <stdio.h>
#include "workers/engine/model/model_impl.h"

static struct weights_form form;

static const struct layer_w *grown_layer(const struct model *m, int64_t l)
{
    fputs("weights of a form that was added\n", stderr);
    return weights_whole.layer(m, l);
}

const struct weights_form *weights_grown(void)
{
    form = weights_whole;
    form.layer = grown_layer;
    return &form;
}
'''
STATE_FORM = r'''
#include <stdio.h>
#include "workers/engine/trainer/trainer_impl.h"

static struct state_form form;

static bool grown_run(struct trainer *t, const struct trainer_hyper *h, struct error *err)
{
    fputs("an update of a form that was added\n", stderr);
    return state_here.run(t, h, err);
}

const struct state_form *state_grown(void)
{
    form = state_here;
    form.run = grown_run;
    return &form;
}
'''
# Kind of row: what a script changes.
EDITS = {
    "alarm": {
        "protocol/settings/alarm_book.c": [('    { "left_out", ', '    { "grown", M_REWARD, ALARM_ABOVE, 7, 2, false, "{} is more than there was", "an alarm that was added" },\n    { "left_out", ')],
    },
    "algorithm": {
        "protocol/settings/knobs.c": [('"GRPO|DAPO|', '"GRPO|GROWN|DAPO|')],
        "protocol/settings/preset.c": [('    { "algo", "DAPO", "kl_coeff", "0" },\n',
                                        '    { "algo", "DAPO", "kl_coeff", "0" },\n    { "algo", "GROWN", "kl_coeff", "0" },\n')],
    },
    "reward": {
        "workers/engine/reward/reward.c": [("&reward_kind_environment,", "&reward_kind_environment, &reward_kind_vowels,")],
        "workers/engine/reward/kind.h": [("reward_kind_judge;", "reward_kind_judge, reward_kind_vowels;")],
        "workers/engine/reward/NAME.c": REWARD,
    },
    "exporter": {
        "protocol/settings/export_kinds.h": [("    EXPORT_JSONL,\n", "    EXPORT_JSONL,\n    EXPORT_NEWEST,\n")],
        "protocol/settings/export_kinds.c": [("    [EXPORT_TENSORBOARD]", '    [EXPORT_NEWEST] = { "newest", NULL, "the newest step" },\n    [EXPORT_TENSORBOARD]')],
        "workers/export/export.h": [("bool export_csv(", "bool export_newest(const struct export_request *r, struct error *err);\nbool export_csv(")],
        "workers/export/table.c": [("    [EXPORT_CSV] = {", "    [EXPORT_NEWEST] = { export_newest, true }, [EXPORT_CSV] = {")],
        "workers/export/NAME.c": EXPORT,
    },
    "pane": {
        "console/tui/keys.h": [('    row(DATA,  ', '    row(GROWN,        grown,        \'W\', "W", "grown: a pane that was added")                      \\\n    row(DATA,  ')],
        "console/tui/pane_NAME.c": PANE,
    },
    "route": {
        "workers/serve/routes.c": [
            ("// clang-format off\nstatic const struct web_route routes[] = {\n",
             'static void grown_get(UNUSED void *ctx, UNUSED const struct web_request *q, struct web_answer *a)\n'
             '{\n    buf_str(&a->body, "{\\"grown\\": true}");\n}\n\n'
             '// clang-format off\nstatic const struct web_route routes[] = {\n    { "GET", "/grown", grown_get },\n')],
    },
    "command": {
        "protocol/wire/message_table.c": [('    { "resume", "", ARG_NONE', '    { "greet", "", ARG_NONE, "", "", "a command that was added", 30, false },\n    { "resume", "", ARG_NONE')],
        "workers/controller/orders.c": [
            ("/* ---- all of them ---- */\n",
             "static bool greet_begin(UNUSED struct controller *c, UNUSED struct order *o, UNUSED const struct mval *args, struct effect *effect,\n"
             "                        UNUSED struct error *err)\n{\n    return buf_str(&effect->text, \"hello\");\n}\n\n/* ---- all of them ---- */\n"),
            ('    { "revert", revert_begin, NULL },\n', '    { "greet", greet_begin, NULL },\n    { "revert", revert_begin, NULL },\n')],
    },
    "form of a run": {
        "workers/engine/pass/run_NAME.c": RUN_FORM,
        "workers/engine/pass/run_impl.h": [("extern const struct run_form run_one,", "const struct run_form *run_grown(void);\nextern const struct run_form run_one,")],
        "workers/engine/pass/run.c": [("&run_team : &run_one;", "&run_team : run_grown();")],
    },
    "form of weights": {
        "workers/engine/model/NAME.c": WEIGHTS_FORM,
        "workers/engine/model/model_impl.h": [("void weights_form_set(struct model *m);", "const struct weights_form *weights_grown(void);\nvoid weights_form_set(struct model *m);")],
        "workers/engine/model/whole.c": [("m->weights   ? &weights_whole", "m->weights   ? weights_grown()")],
    },
    "form of a trainer's state": {
        "workers/engine/trainer/NAME.c": STATE_FORM,
        "workers/engine/trainer/trainer_impl.h": [("extern const struct state_form state_here,", "const struct state_form *state_grown(void);\nextern const struct state_form state_here,")],
        "workers/engine/trainer/update.c": [("&state_sliced : &state_here;", "&state_sliced : state_grown();")],
    },
    "subcommand": {
        "console/NAME_cmd.c": SUBCOMMAND,
        "console/main.c": [("X(quickstart) X(init)", "X(quickstart) X(grown) X(init)")],
    },
}


class Rows(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.grown = grow.Grown(grow.together(EDITS))
        cls.addClassCleanup(cls.grown.folder.cleanup)

    def test_the_table_names_the_files_that_were_changed_and_no_others(self):
        for kind, edits in EDITS.items():
            self.assertEqual(set(grow.row_of(kind)), set(edits), kind)

    def test_an_alarm_is_in_the_book(self):
        self.assertRegex(self.grown.ask("settings", "--alarms"), r"\ngrown:\n  metric: metrics/reward\n  above: 7\n  steps: 2\n")

    def test_an_algorithm_sets_what_its_rows_say(self):
        self.assertRegex(self.grown.ask("settings"), r"`algo` .*GRPO, GROWN, DAPO")
        folder = self.grown.path("model")
        tiny_model.write(folder)
        with open(self.grown.path("data.jsonl"), "w") as f:
            f.write(json.dumps({"messages": [{"role": "user", "content": "a"}], "gt_answer": "2"}) + "\n")
        words = ("train", "--dry-run", "--model", folder, "--dataset", self.grown.path("data.jsonl"), "--system_prompt", "none", "--max_steps", "1",
                 "--max_prompt_tokens", "64", "--max_new_tokens", "64", "--runs-dir", self.grown.path("runs"))
        self.assertRegex(self.grown.ask(*words), r"\n +reference ")
        self.assertNotRegex(self.grown.ask(*words, "--algo", "GROWN"), r"\n +reference ")    # its penalty is 0

    def test_a_reward_scores(self):
        said = self.grown.ask("score", "--reward-type", "vowels", "--input", "-", stdin='{"response": "a queue of boxes", "gt_answer": ""}\n')
        self.assertEqual(json.loads(said)["reward"], 8)
        self.assertIn("vowels", self.grown.ask("score", "--reward-type", "vowel", "--input", "-", stdin="{}\n", status=2))

    def test_an_exporter_is_listed(self):
        self.assertRegex(self.grown.ask("export", "--help"), r"\n  newest +the newest step\n")
        self.assertIn("no journal", self.grown.ask("export", "newest", self.grown.path("."), status=1))

    def test_a_pane_is_opened_by_its_key_and_is_on_the_page_of_help(self):
        driver = os.path.join(grow.BUILD, "tests", "tui_screenshot")
        if not os.path.exists(driver):
            self.skipTest("libvterm or cmocka was not there when the tests were built")
        done = subprocess.run([driver, self.grown.path("screen.svg"), "120x50", "dark", "wait:verview", "keys:W", "wait:a pane that was added",
                               "keys:?", "wait:grown: a pane", "keys:q", "--", self.grown.program, "simulate"],
                              capture_output=True, text=True, timeout=400)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_a_route_answers(self):
        folder = self.grown.path("served")
        tiny_model.write(folder)
        p = subprocess.Popen([self.grown.program, "serve", "--model", folder, "--listen", "127.0.0.1:0", "--threads", "1"],
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            port = re.search(r"127\.0\.0\.1:(\d+)", p.stdout.readline())
            self.assertTrue(port, "the server does not say where it listens")
            with contextlib.closing(http.client.HTTPConnection("127.0.0.1", int(port[1]), timeout=120)) as c:
                c.request("GET", "/grown")
                self.assertEqual(json.load(c.getresponse()), {"grown": True})
        finally:
            p.kill()
            p.wait()
            p.stdout.close()
            p.stderr.close()

    def test_a_command_is_listed(self):
        self.assertRegex(self.grown.ask("ctl", "--help"), r"\n  greet +a command that was added\n")

    def test_forms_of_runs_and_of_weights_compute_the_same(self):
        folder = self.grown.path("computed")
        tiny_model.write(folder)
        words = ("generate", "--model", folder, "--json", "--max-new-tokens", "8", "--seed", "3", "--threads", "1")
        want = subprocess.run([ROLLCALL, *words], input='{"prompt": "a b"}\n', capture_output=True, text=True, check=True)
        got = subprocess.run([self.grown.program, *words], input='{"prompt": "a b"}\n', capture_output=True, text=True, check=True)
        self.assertEqual(got.stdout, want.stdout)
        self.assertIn("a pass of a form that was added\n", got.stderr)
        self.assertIn("weights of a form that was added\n", got.stderr)

    def test_a_form_of_a_trainers_state_trains_to_the_same_bytes(self):
        folder, rows = self.grown.path("untrained"), self.grown.path("told.jsonl")
        tiny_model.write(folder)
        with open(rows, "w", encoding="utf-8") as f:
            f.write(json.dumps({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}) + "\n")
        said, trained = {}, {}
        for program in (ROLLCALL, self.grown.program):
            out = self.grown.path("trained-" + str(len(said)))
            said[program] = subprocess.run([program, "sft", "--model", folder, "--out", out, "--threads", "1", rows + ",steps=2,batch=1"],
                                           capture_output=True, text=True, check=True).stderr
            with open(os.path.join(out, "model.safetensors"), "rb") as f:
                trained[program] = f.read()
        self.assertEqual(trained[ROLLCALL], trained[self.grown.program])
        self.assertEqual([said[program].count("an update of a form that was added\n") for program in said], [0, 2])

    def test_a_subcommand_is_listed_and_runs(self):
        self.assertRegex(self.grown.ask("--help"), r"\n  grown +a command that was added\n")
        self.assertEqual(self.grown.ask("grown"), "it is there\n")


if __name__ == "__main__":
    unittest.main()
