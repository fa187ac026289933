/* Supervised data: which tokens carry loss, and that training on them lowers it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "protocol/base/file.h"
#include "workers/engine/trainer/sft.h"
#include "workers/engine/trainer/trainer.h"
#include "workers/engine/model/model.h"
#include "workers/engine/template/template.h"
#include "workers/engine/text/tokenizer.h"

static char root[] = "/tmp/sft_test.XXXXXX";
static struct tokenizer *tok;
static struct template *chat;

static struct sft_data *data_of(const char *lines, int64_t max_tok, struct error *err)
{
    char path[256];
    snprintf(path, sizeof path, "%s/data.jsonl", root);
    assert_true(file_write(path, lines, strlen(lines), err));
    return sft_data_open(path, tok, chat, max_tok, err);
}

/* Row i with what carries loss between [ and ]. */
static void row_text(const struct sft_data *d, int64_t i, struct buf *out)
{
    const int32_t *token;
    const float *weight;
    int64_t n = sft_data_row(d, i, &token, &weight);
    buf_clear(out);
    for (int64_t k = 0; k < n; k++) {
        bool in = weight[k] != 0, was = k > 0 && weight[k - 1] != 0;
        if (in != was)
            buf_char(out, in ? '[' : ']');
        assert_true(tokenizer_decode(tok, token + k, 1, false, out));
    }
    if (n > 0 && weight[n - 1] != 0)
        buf_char(out, ']');
}

static void only_answers_carry_loss(UNUSED void **state)
{
    static const struct {
        const char *line, *want;
    } cases[] = {
        { "{\"messages\":[{\"role\":\"user\",\"content\":\"1+1?\"},{\"role\":\"assistant\",\"content\":\"2\"}]}",
          "<|im_start|>user\n1+1?<|im_end|>\n<|im_start|>assistant\n[2<|im_end|>]" },
        { "{\"messages\":{\"role\":\"user\",\"content\":\"1+1?\"},\"answer\":\"2\"}",
          "<|im_start|>user\n1+1?<|im_end|>\n<|im_start|>assistant\n[2<|im_end|>]" },
        { "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"b\"},"
          "{\"role\":\"user\",\"content\":\"c\"},{\"role\":\"assistant\",\"content\":\"d\"}]}",
          "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n[b<|im_end|>]\n<|im_start|>user\nc<|im_end|>\n"
          "<|im_start|>assistant\n[d<|im_end|>]" },
        { "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"b\"}],\"tools\":\"[{\\\"f\\\":1}]\"}",
          "[{\"f\": 1}]<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n[b<|im_end|>]" },
    };
    struct buf text = BUF_INIT;
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct error err = { 0 };
        struct sft_data *d = data_of(cases[i].line, 100, &err);
        if (!d)
            fail_msg("%s", err.text);
        row_text(d, 0, &text);
        assert_string_equal(buf_text(&text), cases[i].want);
        sft_data_free(d);
    }
    buf_release(&text);
}

static void without_a_template_a_row_is_its_texts_and_the_end_token(UNUSED void **state)
{
    static const struct {
        const char *line, *want;    // want: the row, or what the error has
    } cases[] = {
        { "{\"messages\":[{\"role\":\"user\",\"content\":\"1+1=\"}],\"answer\":\"2\"}", "1+1=[2<|im_end|>]" },
        { "{\"messages\":[{\"role\":\"system\",\"content\":\"Add.\"},{\"role\":\"user\",\"content\":\"1+1=\"},"
          "{\"role\":\"assistant\",\"content\":\"2\"}]}",
          "Add.\n\n1+1=[2<|im_end|>]" },
        { "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"b\"},"
          "{\"role\":\"user\",\"content\":\"c\"},{\"role\":\"assistant\",\"content\":\"d\"}]}",
          "data.jsonl:1: only the text of one question and its answer" },
        { "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"b\"}],\"tools\":\"[{\\\"f\\\":1}]\"}",
          "chat_template.jinja" },
    };
    struct template *with = chat;
    struct buf text = BUF_INIT;
    chat = NULL;
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct error err = { 0 };
        struct sft_data *d = data_of(cases[i].line, 100, &err);
        buf_clear(&text);
        if (d)
            row_text(d, 0, &text);
        if (d ? strcmp(buf_text(&text), cases[i].want) != 0 : !strstr(err.text, cases[i].want))
            fail_msg("case %zu: '%s'", i, d ? buf_text(&text) : err.text);
        sft_data_free(d);
    }
    chat = with;
    buf_release(&text);
}

static void wrong_rows_are_named_and_long_ones_counted(UNUSED void **state)
{
    struct error err = { 0 };
    assert_null(data_of("{\"messages\":[{\"role\":\"user\",\"content\":\"1\"}],\"answer\":\"2\"}\n"
                        "{\"messages\":[{\"role\":\"user\",\"content\":\"1\"}]}\n",
                        100, &err));
    assert_non_null(strstr(err.text, "data.jsonl:2"));
    assert_non_null(strstr(err.text, "'answer'"));
    struct sft_data *d = data_of("{\"messages\":[{\"role\":\"user\",\"content\":\"1\"}],\"answer\":\"2\"}\n"
                                 "{\"messages\":[{\"role\":\"user\",\"content\":\"111111111111111111111111\"}],\"answer\":\"2\"}\n",
                                 30, &err);
    assert_non_null(d);
    assert_true(sft_data_n(d) == 1 && sft_data_n_too_long(d) == 1);
    sft_data_free(d);
    assert_null(data_of("{\"messages\":[{\"role\":\"user\",\"content\":\"1\"}],\"answer\":\"2\"}\n", 5, &err));
    assert_non_null(strstr(err.text, "no row of at most 5 tokens"));
}

static bool progress_stop(void *arg, const struct sft_progress *p)
{
    *(int64_t *)arg = p->step;
    return p->step < 3;
}

static void training_lowers_the_loss_and_repeats_to_the_bit(UNUSED void **state)
{
    struct error err = { 0 };
    struct model_config c = *config_shape("starter", &err);
    uint64_t hash[2];
    struct sft_data *d = data_of("{\"messages\":[{\"role\":\"user\",\"content\":\"1+1?\"}],\"answer\":\"2\"}\n"
                                 "{\"messages\":[{\"role\":\"user\",\"content\":\"1+2?\"}],\"answer\":\"3\"}\n"
                                 "{\"messages\":[{\"role\":\"user\",\"content\":\"2+2?\"}],\"answer\":\"4\"}\n",
                                 100, &err);
    assert_non_null(d);
    c.n_layer = 1;
    for (int run = 0; run < 2; run++) {
        struct device *dev = device_new("cpu:0", 1 + run, &err);
        struct model *m = model_new_random(&c, 1, dev, DT_F32, &err);
        struct trainer_settings set = TRAINER_SETTINGS_DEFAULT;
        set.token_budget_max = 64;
        struct trainer *t = trainer_new(m, NULL, &set, &err);
        struct sft_stage stage = {
            .data = d, .n_step = 20, .batch_rows = 2, .lr = 3e-3, .max_norm = 1, .seed = 1, .schedule = { .kind = SCHEDULE_CONSTANT }
        };
        double before, after, n = 0;
        if (!t || !sft_evaluate(t, d, &before, &n, &err) || !sft_run(t, &stage, NULL, NULL, &err) || !sft_evaluate(t, d, &after, &n, &err)
            || !model_weights_hash(m, &hash[run], &err))
            fail_msg("%s", err.text);
        assert_true(n == 6 && before > 4 && after < 1);    // two loss tokens a row; ln 320 is 5.8
        int64_t step = 0;
        assert_false(sft_run(t, &stage, progress_stop, &step, &err));
        assert_true(err.code == ERR_STOPPED && step == 3);
        trainer_free(t);
        model_free(m);
        device_free(dev);
    }
    assert_true(hash[0] == hash[1]);    // one thread or two
    sft_data_free(d);
}

/* A byte-level tokenizer without merges, and Qwen's turn markers. */
static int setup(UNUSED void **state)
{
    struct error err = { 0 };
    char path[256];
    struct buf b = BUF_INIT;
    if (!mkdtemp(root))
        return -1;
    buf_str(&b, "{\"added_tokens\":[{\"id\":256,\"content\":\"<|im_start|>\",\"special\":true},{\"id\":257,\"content\":"
                "\"<|im_end|>\",\"special\":true}],\"normalizer\":null,\"pre_tokenizer\":{\"type\":\"ByteLevel\","
                "\"add_prefix_space\":false,\"use_regex\":true},\"post_processor\":null,\"decoder\":{\"type\":\"ByteLevel\"},"
                "\"model\":{\"type\":\"BPE\",\"merges\":[],\"vocab\":{");
    for (int i = 0, other = 256; i < 256; i++) {    // GPT-2's stand-ins: printable bytes are themselves
        bool keep = (i >= 33 && i < 127) || (i >= 161 && i != 173);
        buf_fmt(&b, "%s\"\\u%04x\":%d", i ? "," : "", keep ? i : other, i);
        other += !keep;
    }
    buf_str(&b, "}}}");
    snprintf(path, sizeof path, "%s/tokenizer.json", root);
    bool ok = file_write(path, b.data, b.len, &err);
    static const char config[] =
        "{\"eos_token\":\"<|im_end|>\",\"chat_template\":\"{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}{{ '<|im_start|>' + m['role'] "
        "+ '\\\\n' + m['content'] + '<|im_end|>\\\\n' }}{% endfor %}{% if add_generation_prompt %}{{ "
        "'<|im_start|>assistant\\\\n' }}"
        "{% endif %}\"}";
    snprintf(path, sizeof path, "%s/tokenizer_config.json", root);
    ok = ok && file_write(path, config, sizeof config - 1, &err) && (tok = tokenizer_load(root, &err))
         && (chat = template_load(root, &err));
    buf_release(&b);
    if (!ok)
        fprintf(stderr, "%s\n", err.text);
    return ok ? 0 : -1;
}

static int teardown(UNUSED void **state)
{
    struct error err;
    template_free(chat);
    tokenizer_free(tok);
    return dir_remove(root, &err) ? 0 : -1;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_answers_carry_loss),
        cmocka_unit_test(without_a_template_a_row_is_its_texts_and_the_end_token),
        cmocka_unit_test(wrong_rows_are_named_and_long_ones_counted),
        cmocka_unit_test(training_lowers_the_loss_and_repeats_to_the_bit),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
