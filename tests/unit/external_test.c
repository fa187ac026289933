/* Requests to external engines, and what is taken as an answer. The answers are as vLLM 0.26 and SGLang 0.5.23 print them, shortened. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "workers/engine/sampler/external_wire.h"

static struct error err;
static const int32_t prompt[] = { 5, 6, 7 };
static const uint64_t seed[] = { 1, 1 };

static struct generator_item item_make(void)
{
    struct generator_item it = { .item = 3,
                                 .prompt_row = 2,
                                 .rollout_step = 1,
                                 .prompt = prompt,
                                 .n_prompt = 3,
                                 .n_sample = 2,
                                 .seed = seed,
                                 .sampling = SAMPLING_DEFAULT };
    it.sampling.max_new_tok = 4;
    it.sampling.temperature = 0.7f;
    it.sampling.n_stop_token = 1;
    it.sampling.stop_token[0] = 9;
    strcpy(it.sampling.stop_string, "</a>\"");
    return it;
}

static json_t *request_parse(enum external_kind kind, const struct generator_item *it, const char *model, bool adapter, int64_t n_dead)
{
    struct buf out = BUF_INIT;
    external_request(&out, kind, it, model, adapter, 100, 100 + n_dead);
    json_t *root = json_loads(buf_text(&out), 0, NULL);
    assert_non_null(root);
    buf_release(&out);
    return root;
}

static void requests_say_everything_that_an_engine_would_have_a_default_for(UNUSED void **state)
{
    struct generator_item it = item_make();
    json_t *o = request_parse(EXTERNAL_VLLM, &it, "a \"model\"", false, 0);
    assert_string_equal(json_string_value(json_object_get(o, "model")), "a \"model\"");
    assert_int_equal(json_integer_value(json_array_get(json_object_get(o, "prompt"), 2)), 7);
    assert_int_equal(json_integer_value(json_object_get(o, "n")), 2);
    assert_int_equal(json_integer_value(json_object_get(o, "max_tokens")), 4);
    assert_int_equal(json_integer_value(json_object_get(o, "top_k")), -1);
    assert_int_equal(json_integer_value(json_object_get(o, "logprobs")), 0);
    assert_true(json_is_true(json_object_get(o, "return_token_ids")));
    assert_true(fabs(json_real_value(json_object_get(o, "temperature")) - 0.7) < 1e-7);
    assert_int_equal(json_integer_value(json_array_get(json_object_get(o, "stop_token_ids"), 0)), 9);
    assert_string_equal(json_string_value(json_array_get(json_object_get(o, "stop"), 0)), "</a>\"");
    json_t *seed_before = json_incref(json_object_get(o, "seed"));
    json_decref(o);
    it.item = 4;    // the same prompt in another item draws other samples
    o = request_parse(EXTERNAL_VLLM, &it, "m", false, 0);
    assert_int_not_equal(json_integer_value(seed_before), json_integer_value(json_object_get(o, "seed")));
    assert_in_range(json_integer_value(json_object_get(o, "seed")), 0, INT32_MAX);
    json_decref(seed_before);
    json_decref(o);
    it.sampling.ignore_eos = true;
    it.sampling.min_new_tok = 3;
    o = request_parse(EXTERNAL_VLLM, &it, "m", false, 0);
    assert_int_equal(json_integer_value(json_object_get(o, "min_tokens")), 3);
    json_decref(o);
    o = request_parse(EXTERNAL_SGLANG, &it, "adapter-1", true, 0);
    json_t *s = json_object_get(o, "sampling_params");
    assert_int_equal(json_integer_value(json_object_get(s, "min_new_tokens")), 3);
    assert_int_equal(json_integer_value(json_array_get(json_object_get(o, "input_ids"), 0)), 5);
    assert_string_equal(json_string_value(json_object_get(o, "lora_path")), "adapter-1");
    assert_true(json_is_true(json_object_get(o, "return_logprob")));
    assert_int_equal(json_integer_value(json_object_get(s, "max_new_tokens")), 4);
    assert_null(json_object_get(s, "stop_token_ids"));
    assert_true(json_is_true(json_object_get(s, "ignore_eos")));
    json_decref(o);
}

/* A vocabulary is padded to a round number of rows, and an engine that draws one of them has drawn no token. */
static void ids_that_stand_for_no_token_are_not_to_be_drawn(UNUSED void **state)
{
    static const enum external_kind kinds[] = { EXTERNAL_VLLM, EXTERNAL_SGLANG };
    struct generator_item it = item_make();
    for (size_t i = 0; i < ARRAY_SIZE(kinds); i++)
        for (int n_dead = 0; n_dead <= 3; n_dead += 3) {
            json_t *o = request_parse(kinds[i], &it, "m", false, n_dead), *s = json_object_get(o, "sampling_params");
            json_t *bias = json_object_get(kinds[i] == EXTERNAL_SGLANG ? s : o, "logit_bias");
            assert_int_equal(json_object_size(bias), n_dead);
            assert_true(n_dead == 0 || (json_integer_value(json_object_get(bias, "100")) == -100 && json_object_get(bias, "102")));
            json_decref(o);
        }
}

#define VLLM_ONE                                                                                                                           \
    "{\"index\":0,\"text\":\"x\",\"finish_reason\":\"stop\",\"token_ids\":[8,9],\"logprobs\":{\"token_logprobs\":[-0.5,-0.25]}}"
#define VLLM_TWO                                                                                                                           \
    "{\"index\":1,\"text\":\"\\u0000\",\"finish_reason\":\"length\",\"token_ids\":[1,2,3,4],\"logprobs\":{\"token_logprobs\":[-1,-2,-3,0]}}"
#define SGLANG_ONE                                                                                                                         \
    "{\"text\":\"x\",\"meta_info\":{\"finish_reason\":{\"type\":\"stop\",\"matched\":9},\"weight_version\":\"12\",\"output_token_logprobs\":[[-0.5,8,null],[-0.25,9,null]]}}"
#define SGLANG_TWO                                                                                                                         \
    "{\"text\":\"y\",\"meta_info\":{\"finish_reason\":{\"type\":\"length\"},\"weight_version\":\"12\",\"output_token_logprobs\":[[-1,1,null],[-2,2,null],[-3,3,null],[0,4,null]]}}"

static void an_answer_becomes_the_group_that_was_drawn(UNUSED void **state)
{
    static const struct {
        enum external_kind kind;
        const char *text;
        int64_t version;
    } cases[] = {
        { EXTERNAL_VLLM, "{\"id\":\"c\",\"choices\":[" VLLM_ONE "," VLLM_TWO "],\"usage\":{}}", -1 },
        { EXTERNAL_VLLM, "{\"weight_version\":7,\"choices\":[" VLLM_ONE "," VLLM_TWO "]}", 7 },
        { EXTERNAL_SGLANG, "[" SGLANG_ONE "," SGLANG_TWO "]", 12 },
    };
    static const int32_t token[] = { 8, 9, 1, 2, 3, 4 };
    static const float logp[] = { -0.5f, -0.25f, -1, -2, -3, 0 };
    struct generator_item it = item_make();
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        int64_t version = -2;
        struct group *g = external_answer(cases[i].kind, &it, 100, cases[i].text, strlen(cases[i].text), &version, &err);
        if (!g)
            fail_msg("%s", err.text);
        assert_int_equal(version, cases[i].version);
        assert_int_equal(g->item, 3);
        assert_int_equal(g->n_sample, 2);
        assert_int_equal(g->n_tok, 6);
        assert_memory_equal(g->prompt, prompt, sizeof prompt);
        assert_memory_equal(g->token, token, sizeof token);
        assert_memory_equal(g->logp, logp, sizeof logp);
        assert_int_equal(g->sample[0].finish, FINISH_STOP);
        assert_int_equal(g->sample[1].finish, FINISH_LENGTH);
        assert_int_equal(g->sample[1].first_tok, 2);
        assert_int_equal(g->sample[1].n_tok, 4);
        assert_true(g->temperature == 0.7f && isnan(g->sample[0].part[0]));
        group_free(g);
    }
}

static void what_is_no_such_answer_is_named(UNUSED void **state)
{
    static const struct {
        enum external_kind kind;
        const char *text, *why;
    } cases[] = {
        { EXTERNAL_VLLM, "<html>", "is not JSON" },
        { EXTERNAL_VLLM, "{\"choices\":[" VLLM_ONE "," VLLM_TWO, "is not JSON" },
        { EXTERNAL_VLLM, "[]", "has no 'choices'" },
        { EXTERNAL_VLLM, "{\"object\":\"error\"}", "has no 'choices'" },
        { EXTERNAL_VLLM, "{\"choices\":[" VLLM_ONE "]}", "1 samples instead of 2" },
        { EXTERNAL_VLLM, "{\"choices\":[{\"finish_reason\":\"stop\",\"text\":\"x\"}," VLLM_TWO "]}", "choice 0 has no 'token_ids'" },
        { EXTERNAL_VLLM, "{\"choices\":[{\"finish_reason\":\"stop\",\"token_ids\":[1]}," VLLM_TWO "]}",
          "1 token_ids and 0 token_logprobs" },
        { EXTERNAL_VLLM, "{\"choices\":[" VLLM_ONE ",{\"finish_reason\":\"abort\",\"token_ids\":[],\"logprobs\":{\"token_logprobs\":[]}}]}",
          "'abort'" },
        { EXTERNAL_VLLM, "{\"choices\":[" VLLM_ONE ",{\"finish_reason\":\"stop\",\"token_ids\":[],\"logprobs\":{\"token_logprobs\":[]}}]}",
          "has 0 tokens" },
        { EXTERNAL_VLLM,
          "{\"choices\":[" VLLM_ONE ",{\"finish_reason\":\"stop\",\"token_ids\":[100],\"logprobs\":{\"token_logprobs\":[-1]}}]}",
          "the token 100 is none of the tokenizer's 100" },
        { EXTERNAL_VLLM,
          "{\"choices\":[" VLLM_ONE ",{\"finish_reason\":\"stop\",\"token_ids\":[1],\"logprobs\":{\"token_logprobs\":[-9999.0]}}]}",
          "the log-prob -9999 is not from -40" },
        { EXTERNAL_VLLM,
          "{\"choices\":[" VLLM_ONE ",{\"finish_reason\":\"stop\",\"token_ids\":[1],\"logprobs\":{\"token_logprobs\":[null]}}]}",
          "has no log-prob" },
        { EXTERNAL_SGLANG, SGLANG_ONE, "1 samples instead of 2" },
        { EXTERNAL_SGLANG, "[" SGLANG_ONE ",{\"meta_info\":{\"finish_reason\":\"stop\"}}]", "no 'output_token_logprobs'" },
        { EXTERNAL_SGLANG, "[" SGLANG_ONE ",{\"meta_info\":{\"finish_reason\":\"stop\",\"output_token_logprobs\":[[-1,true]]}}]",
          "it has no id" },
        { EXTERNAL_SGLANG, "[" SGLANG_ONE ",{\"meta_info\":{\"finish_reason\":\"stop\",\"output_token_logprobs\":[[-3.4e38,1,null]]}}]",
          "the log-prob -3.4e+38 is not from -40" },
        { EXTERNAL_SGLANG, "[" SGLANG_ONE ",{\"meta_info\":{\"finish_reason\":\"stop\",\"output_token_logprobs\":[7]}}]", "it has no id" },
    };
    struct generator_item it = item_make();
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        int64_t version;
        struct group *g = external_answer(cases[i].kind, &it, 100, cases[i].text, strlen(cases[i].text), &version, &err);
        if (g || err.code != ERR_DATA || !strstr(err.text, cases[i].why))
            fail_msg("case %zu: '%s' instead of '%s'", i, g ? "taken" : err.text, cases[i].why);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(requests_say_everything_that_an_engine_would_have_a_default_for),
        cmocka_unit_test(ids_that_stand_for_no_token_are_not_to_be_drawn),
        cmocka_unit_test(an_answer_becomes_the_group_that_was_drawn),
        cmocka_unit_test(what_is_no_such_answer_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
