/* SPDX-License-Identifier: Apache-2.0 */
/* Names of NVTX ranges and what a HookSpec says of them: policy/range_name.c, policy/spec_nvtx.c. */
#include "policy/range_name.h"
#include "policy/spec.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *text, *name;
    int32_t layer;
} name_rows[] = {
    { "", "", -1 },
    { "gpu_model_runner: forward", "gpu_model_runner: forward", -1 },
    { "model.layers.3.mlp.experts.7", "model.layers.3.mlp.experts.7", 3 },
    { "layer_12", "layer_12", 12 },
    { "0", "0", 0 },
    { "gpt3.h.4", "gpt3.h.4", 4 },
    { "3d.conv", "3d.conv", -1 },
    { "x.2147483648.2147483647", "x.2147483648.2147483647", 2147483647 },
    { "x.99999999999999999999999.1", "x.99999999999999999999999.1", 1 },
    { "a\tb\nc", "a?b?c", -1 },
    { "{'Module': 'm.layers.0.qkv_proj', 'Inputs': [[8, 4096]]}", "m.layers.0.qkv_proj", 0 },
    { "{'Inputs': [[8, '}'], {'a': (1,)}], 'Module': \"it's.5\"}", "it's.5", 5 },
    { "{'Module': 'a\\'b\\\\c'}", "a'b\\c", -1 },
    { " { 'Module' : 'a' }", "a", -1 },
    { "{'Module': 3}", "{'Module': 3}", 3 },
    { "{'module': 'a'}", "{'module': 'a'}", -1 },
    { "{'x': {'Module': 'inner'}, 'Module': 'outer'}", "outer", -1 },
    { "{'Module': 'a", "{'Module': 'a", -1 },
    { "{'x': ]], 'Module': 'a'}", "{'x': ]], 'Module': 'a'}", -1 },
    { "{", "{", -1 },
};

START_TEST(a_range_has_the_name_of_its_module)
{
    char name[RANGE_NAME_MAX];
    size_t n = range_name_parse(name_rows[_i].text, strlen(name_rows[_i].text), name);
    ck_assert_str_eq(name, name_rows[_i].name);
    ck_assert_uint_eq(n, strlen(name));
    ck_assert_int_eq(range_name_layer(name), name_rows[_i].layer);
}
END_TEST

START_TEST(a_long_text_is_cut)
{
    static char text[5000];
    char name[RANGE_NAME_MAX];
    memset(text, 'a', sizeof text);
    ck_assert_uint_eq(range_name_parse(text, sizeof text, name), RANGE_NAME_MAX - 1);
    memcpy(text, "{'Module': '", 12);
    memcpy(text + 4990, "'}", 2);
    ck_assert_uint_eq(range_name_parse(text, sizeof text, name), RANGE_NAME_MAX - 1);
    ck_assert_int_eq(name[0], 'a');
}
END_TEST

#define SITE(keys)                                                                                 \
    "hookspec: 1\nsites:\n- name: q\n  pointer: arg[0]\n  dtype: f32\n"                            \
    "  dims: [{row: true, count: 4}]\n" keys
#define FORWARD(begin) SITE("  kernel: k\n") "forward: [{kind: a, begin: " begin "}]\n"

/* What is wrong makes one line, at its place. */
static const struct {
    const char *text, *place, *part;
} error_rows[] = {
    { SITE("  nvtx: a\n"), "3:3", "neither \"kernel\" nor \"range_kernel\"" },
    { SITE("  nvtx: ''\n  kernel: k\n"), "7:9", "a shell's pattern, or /REGEX/" },
    { SITE("  nvtx: '/(/'\n  kernel: k\n"), "7:11", "Unmatched (" },
    { SITE("  nvtx: '/a\\1/'\n  kernel: k\n"), "7:12", "back reference" },
    { SITE("  nvtx: [a]\n  kernel: k\n"), "7:9", "found a list" },
    { SITE("  nvtx: a\n  range_kernel: lst\n"), "8:17", "first, all or a number from 0" },
    { SITE("  nvtx: a\n  range_kernel: last\n"), "8:17",
      "\"kernel: PATTERN\" with a number names it" },
    { SITE("  nvtx: a\n  range_kernel: -1\n"), "8:17", "found \"-1\"" },
    { SITE("  nvtx: a\n  range_kernle: first\n"), "8:3", "did you mean \"range_kernel\"?" },
    { SITE("  kernel: k\n  range_kernel: first\n"), "8:17", "at a site without \"nvtx\"" },
    { SITE("  kernel: k\n  layer: range\n"), "8:10", "at a site without \"nvtx\"" },
    { SITE(""), "3:3", "found no \"kernel\" in a site" },
    { SITE("  nvxt: a\n"), "7:3", "did you mean \"nvtx\"?" },
    { FORWARD("{}"), "8:28", "found no \"kernel\" in begin" },
    { FORWARD("{kernel: k, nvtx: a}"), "8:28", "both a kernel and a range" },
    { FORWARD("{nvtx: a}}, {kind: b, begin: {nvtx: a}"), "8:64", "begins \"a\" again" },
    { SITE("  nvtx: a\n  kernel: k\n- name: q\n  pointer: arg[1]\n  dtype: f32\n"
           "  dims: [{row: true, count: 4}]\n  nvtx: a\n  kernel: k\n"),
      "9:3", "found the site \"q\" again" },
};

START_TEST(an_error_has_its_place)
{
    struct spec_errors errors;
    struct spec *spec = NULL;
    const char *text = error_rows[_i].text;
    char place[32];
    ck_assert_int_eq(spec_parse("f", text, strlen(text), NULL, 0, &errors, &spec), SPEC_E_INVALID);
    ck_assert_msg(errors.n_lines == 1, "%s\n-> %zu lines: %s\n%s", text, errors.n_lines,
                  errors.lines[0], errors.n_lines > 1 ? errors.lines[1] : "");
    snprintf(place, sizeof place, "f:%s: ", error_rows[_i].place);
    ck_assert_msg(!strncmp(errors.lines[0], place, strlen(place)) &&
                      strstr(errors.lines[0], error_rows[_i].part),
                  "%s\n-> %s, wanted %s %s", text, errors.lines[0], place, error_rows[_i].part);
    spec_errors_deinit(&errors);
}
END_TEST

static struct spec *load(const char *text)
{
    struct spec_errors errors;
    struct spec *spec = NULL;
    int rc = spec_parse("f", text, strlen(text), NULL, 0, &errors, &spec);
    ck_assert_msg(rc == 0, "%s", errors.n_lines ? errors.lines[0] : "?");
    spec_errors_deinit(&errors);
    return spec;
}

static const struct {
    const char *pattern, *name;
    bool matches;
} pattern_rows[] = {
    { "a.b", "a.b", true },          { "a.b", "aXb", false },
    { "*.mlp", "h.0.mlp", true },    { "*.mlp", "h.0.mlp.up", false },
    { "h.?.mlp", "h.7.mlp", true },  { "h.?.mlp", "h.17.mlp", false },
    { "h.[0-3].x", "h.2.x", true },  { "h.[!0-3].x", "h.2.x", false },
    { "h.[!0-3].x", "h.7.x", true }, { "h.[", "h.[", true },
    { "a\\*", "a*", true },          { "a\\*", "ab", false },
    { "a+(b)|c", "a+(b)|c", true },  { "/a+b/", "xaaby", true },
    { "/^a+b$/", "xaaby", false },   { "//", "//", true },
    { "{x}", "{x}", true },          { "a$", "a$", true },
};

START_TEST(a_pattern_matches_names)
{
    char text[256];
    struct spec_range_match match;
    snprintf(text, sizeof text, SITE("  kernel: k\n  nvtx: '%s'\n"), pattern_rows[_i].pattern);
    struct spec *spec = load(text);
    ck_assert_msg(spec_match_range(spec, pattern_rows[_i].name, &match) == pattern_rows[_i].matches,
                  "%s and %s", pattern_rows[_i].pattern, pattern_rows[_i].name);
    ck_assert_uint_eq(match.n_sites, pattern_rows[_i].matches);
    spec_free(spec);
}
END_TEST

START_TEST(sites_of_ranges_are_no_sites_of_kernels_alone)
{
    struct spec *spec =
        load(SITE("  kernel: '^k$'\n  nvtx: a\n  range_kernel: 3\n  layer: range\n- name: r\n"
                  "  pointer: arg[1]\n  dtype: f32\n  dims: [{row: true, count: 4}]\n  nvtx: '*'\n"
                  "  range_kernel: first\n"
                  "forward: [{kind: x, begin: {nvtx: b}}, {kind: y, begin: step}]\n"));
    struct spec_match match;
    struct spec_range_match range;
    ck_assert(spec_has_nvtx(spec));
    ck_assert(spec_match_kernel(spec, "k", NULL, &match));
    ck_assert(match.n_sites == 0 && match.n_ranged == 2 && match.ranged[0] == 0);
    ck_assert(spec_match_kernel(spec, "other", NULL, &match));
    ck_assert(match.n_sites == 0 && match.n_ranged == 1 && match.ranged[0] == 1);
    ck_assert(spec_match_range(spec, "b", &range) && range.kind == 0 && range.n_sites == 1);
    ck_assert(spec_match_range(spec, "a", &range) && range.kind == -1 && range.n_sites == 2);
    ck_assert(spec->sites[0].nvtx.which == SPEC_RANGE_NTH && spec->sites[0].nvtx.n == 3);
    ck_assert(spec->sites[0].nvtx.layer && !spec->sites[0].layer && spec->sites[0].about.has_layer);
    ck_assert(spec->sites[1].nvtx.which == SPEC_RANGE_NTH && spec->sites[1].nvtx.n == 0);
    ck_assert(!spec_kind_is_step(&spec->kinds[0]) && spec_kind_is_step(&spec->kinds[1]));
    spec_free(spec);
}
END_TEST

START_TEST(a_spec_without_ranges_has_none)
{
    struct spec *spec = load(SITE("  kernel: k\n"));
    struct spec_range_match range;
    ck_assert(!spec_has_nvtx(spec));
    ck_assert(!spec_match_range(spec, "a", &range) && !range.n_sites);
    spec_free(spec);
}
END_TEST

#define N_OF(rows) ((int)(sizeof(rows) / sizeof *(rows)))

int main(void)
{
    Suite *suite = suite_create("policy_nvtx");
    TCase *all = tcase_create("all");
    tcase_add_loop_test(all, a_range_has_the_name_of_its_module, 0, N_OF(name_rows));
    tcase_add_test(all, a_long_text_is_cut);
    tcase_add_loop_test(all, an_error_has_its_place, 0, N_OF(error_rows));
    tcase_add_loop_test(all, a_pattern_matches_names, 0, N_OF(pattern_rows));
    tcase_add_test(all, sites_of_ranges_are_no_sites_of_kernels_alone);
    tcase_add_test(all, a_spec_without_ranges_has_none);
    suite_add_tcase(suite, all);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
