"""tags: long limit=1800
As rows_test.py, of the kinds whose headers half of the program includes: a setting, a metric, a form of the loss, a message."""
import unittest
import grow

EDITS = {
    "knob or setting": {
        "protocol/settings/run_config.h": [("    double clip_eps_low, ", "    double grown;\n    double clip_eps_low, ")],
        "protocol/settings/knobs.c": [('    { "clip_eps_low", NULL', '    { "grown", NULL, NULL, "algorithm", KNOB_F64, "", 0, 9, AT(grown), .def = "3", '
                                       '.applies = APPLY_NEXT_STEP, .help = "a setting that was added" },\n    { "clip_eps_low", NULL')],
    },
    "metric": {
        "protocol/settings/metrics.h": [("    M_LOSS,\n", "    M_GROWN,\n    M_LOSS,\n")],
        "protocol/settings/metrics.c": [('    [M_LOSS] = {', '    [M_GROWN] = { "train/grown", "grown", "", CHART_NONE, BY_CONTROLLER, "a metric that was added" },\n    [M_LOSS] = {')],
        "workers/controller/step_metrics.c": [("    metric_own(s, M_REWARD, mean);\n", "    metric_own(s, M_REWARD, mean);\n    metric_own(s, M_GROWN, mean);\n")],
    },
    "form of the loss": {
        "kernels/policy_form.h": [("    CLIP_DRO,\n", "    CLIP_DRO,\n    CLIP_GROWN,\n"),
                                  ("    case CLIP_ATROPOS: break;\n", "    case CLIP_GROWN:\n    case CLIP_ATROPOS: break;\n"),
                                  ("    case CLIP_CISPO: break;\n", "    case CLIP_CISPO: break;\n    case CLIP_GROWN: return 0;\n")],
        "protocol/settings/knobs.c": [('"ppo|cispo|atropos|sapo|gpg|gmpo|vespo|dppo_tv|dppo_kl|dro"', '"ppo|cispo|atropos|sapo|gpg|gmpo|vespo|dppo_tv|dppo_kl|dro|grown"')],
    },
    "message": {
        "protocol/wire/message.h": [("    MSG_STEPS,\n", "    MSG_GROWN,\n    MSG_STEPS,\n")],
        "protocol/wire/message_table.c": [('    [MSG_COMMAND] = {', '    [MSG_GROWN] = { "grown", "console", "controller", "a message that was added", NO_FIELDS, NO_FIELDS },\n    [MSG_COMMAND] = {')],
        "workers/controller/controller_cmd.c": [
            ("/* What is not here is not for the controller. A handler takes the request. */\n",
             "static void grown_came(struct controller *c, struct request *r, UNUSED const struct msg_in *in)\n"
             "{\n    struct error err;\n    error_set(&err, ERR_REFUSED, \"not now\");\n    refuse_later(c, r, &err);\n}\n\n"
             "/* What is not here is not for the controller. A handler takes the request. */\n"),
            ("    [MSG_GONE] = gone_told,\n", "    [MSG_GONE] = gone_told,\n    [MSG_GROWN] = grown_came,\n")],
    },
}

MESSAGES = r'''
#include <stdio.h>
#include "protocol/wire/message.h"

int main(void)
{
    struct buf text = BUF_INIT;
    msg_print_docs(&text);
    fputs(buf_text(&text), stdout);
    buf_release(&text);
    return 0;
}
'''


class Rows(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.grown = grow.Grown(grow.together(EDITS))
        cls.addClassCleanup(cls.grown.folder.cleanup)

    def test_the_table_names_the_files_that_were_changed_and_no_others(self):
        for kind, edits in EDITS.items():
            named = set(grow.row_of(kind)) - ({"workers/engine/trainer/trainer_metrics.c"} if kind == "metric" else set())    # another's metric
            self.assertEqual(named, set(edits), kind)

    def test_a_setting_is_listed_and_is_a_flag(self):
        self.assertRegex(self.grown.ask("settings"), r"`grown` .*`3`.*0 to 9.*a setting that was added")
        self.assertRegex(self.grown.ask("train", "--help"), r"--grown VALUE +a setting that was added")

    def test_a_metric_is_listed(self):
        self.assertRegex(self.grown.ask("metrics"), r"`train/grown` .*controller.*a metric that was added")

    def test_a_form_of_the_loss_is_a_choice(self):
        self.assertRegex(self.grown.ask("settings"), r"`clip_form` .*ppo, cispo, atropos, sapo, gpg, gmpo, vespo, dppo_tv, dppo_kl, dro, grown")

    def test_a_message_is_in_the_protocol(self):
        self.assertRegex(self.grown.program_of("messages.c", MESSAGES), r"### `grown`: console → controller\na message that was added\.")


if __name__ == "__main__":
    unittest.main()
