/* SPDX-License-Identifier: Apache-2.0 */
/* What edits do in a step, row by row, and the tables that say it to the device. */
#include "policy/edit.h"
#include "tests/unit/edit_uses.h"

#include <check.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TENSOR "kernel: k, pointer: 'arg[0]', dims: [{row: true, count: 4}, {count: 4}]"
#define PLACES                                                                                     \
    "hookspec: 1\n"                                                                                \
    "sites:\n"                                                                                     \
    "- {name: mlp_out, " TENSOR ", dtype: f32, layer: occ, write: {}}\n"                           \
    "- {name: attn_out, " TENSOR ", dtype: bf16, write: {}, capture: before}\n"

static struct spec *spec_of(const char *text)
{
    struct spec_errors errors;
    struct spec *spec = NULL;
    int rc = spec_parse("spec.yaml", text, strlen(text), NULL, 0, &errors, &spec);
    ck_assert_msg(!rc, "%s", errors.n_lines ? errors.lines[0] : "?");
    return spec;
}

/* Edits, without the numbers of their vectors. */
static struct edits *edits_of(const char *text, const struct spec *spec)
{
    struct spec_errors errors;
    struct edits *edits = NULL;
    int rc = edits_parse("f.yaml", text, strlen(text), spec, &errors, &edits);
    ck_assert_msg(!rc, "%s", errors.n_lines ? errors.lines[0] : "?");
    return edits;
}

/* Appends to a text of 2,000 bytes. */
__attribute__((format(printf, 2, 3))) static void say(char *to, const char *format, ...)
{
    size_t n = strlen(to);
    va_list args;
    va_start(args, format);
    vsnprintf(to + n, 2000 - n, format, args);
    va_end(args);
}

/* ------------------------------------------------------------------------- rows */

#define HEAD                                                                                       \
    "editspec: 1\nvectors: {v: {file: v}, w: {file: w}, three: " DONOR("'3:6'") ", one: " DONOR(   \
        "'5'") ", back: " DONOR("'-3:'") "}\nedits:\n"
#define A(x) "- {name: a, site: mlp_out, do: [{add: v, times: 2}]" x "}\n"
#define B(x) "- {name: b, site: attn_out, do: [{scale: 3}, {add: w, times: -1}]" x "}\n"
#define T(x) "- {name: t, site: mlp_out, do: [{add: v, times: 'tag:c'}]" x "}\n"
#define P(x) "- {name: p, site: mlp_out, do: [{scale: {0: 2, 4: 0, 6: 1}}]" x "}\n"

#define DONOR(x) "{run: d, request: r, site: q, tokens: " x "}"
#define D(v, at) "- {name: d, site: mlp_out, do: [{patch: " v "}], tokens: " at "}\n"

#define SPAN(id, position, row, n, ...)                                                            \
    {                                                                                              \
        .request_id = (id), .first_position = (position), .first_row = (row), .n_tokens = (n),     \
        __VA_ARGS__                                                                                \
    }
#define PADDING(row, n)                                                                            \
    {                                                                                              \
        .first_row = (row), .n_tokens = (n), .flags = DMI_SPAN_PADDING                             \
    }

/*
 * What is said of rows: "FIRST-LAST EDIT@COUNTER(COEFFICIENTS)...;", rows of one program together; then of shares,
 * "EDIT@COUNTER#ROW(...)" where the row of the vectors is not 0; then "EDIT@COUNTER=ROWS", with the reason where they are missed. The counter is 10 for each edit, and 1 for request a, 2 for b, ...
 */
static const struct {
    const char *edits;
    struct dmi_span spans[4];
    const char *pairs, *shares;
} row_rows[] = {
    /* --- requests */
    { A(""), { SPAN("a", 0, 0, 3) }, "0-2 0@1(2);", "0@1=3 " },
    { A(""), { SPAN("a", 0, 4, 3), SPAN("b", 7, 0, 1) }, "0-0 0@2(2);4-6 0@1(2);", "0@1=3 0@2=1 " },
    { A(", requests: 'b*'"), { SPAN("a", 0, 0, 3), SPAN("b", 0, 3, 2) }, "3-4 0@2(2);", "0@2=2 " },
    { A(", requests: 'tag:team=x'"),
      { SPAN("a", 0, 0, 1, .tags = "{\"team\": \"x\"}"),
        SPAN("b", 0, 1, 1, .tags = "{\"team\": \"y\"}"), SPAN("c", 0, 2, 1) },
      "0-0 0@1(2);",
      "0@1=1 " },
    { A(", requests: 'tag:n=3'"),
      { SPAN("a", 0, 0, 1, .tags = "{\"n\": 3}") },
      "0-0 0@1(2);",
      "0@1=1 " },
    { A(", requests: 'tag:k=*q*'"), /* a whole word, or an element of a list */
      { SPAN("a", 0, 0, 1, .tags = "{\"k\": \"q_rot\"}"),
        SPAN("b", 0, 1, 1, .tags = "{\"k\": \"q_rot,q\"}"),
        SPAN("c", 0, 2, 1, .tags = "{\"k\": [\"qk\", \"q\"]}"),
        SPAN("d", 0, 3, 1, .tags = "{\"k\": [\"k_q\"]}") },
      "1-1 0@2(2);2-2 0@3(2);",
      "0@2=1 0@3=1 " },
    { A(", requests: c"), { SPAN("a", 0, 0, 3) }, "", "" },
    { A(""), { PADDING(0, 2), SPAN("a", 0, 2, 1), PADDING(3, 5) }, "2-2 0@1(2);", "0@1=1 " },
    { A(""), { SPAN("a", 0, 0, 0), SPAN("b", 0, 0, 1) }, "0-0 0@2(2);", "0@2=1 " },
    /* --- tokens: the prompt of four tokens, in one step, in chunks, and what comes after it */
    { A(", tokens: prompt"), { SPAN("a", 2, 0, 5, .n_prompt = 4) }, "0-1 0@1(2);", "0@1=2 " },
    { A(", tokens: generated"), { SPAN("a", 2, 0, 5, .n_prompt = 4) }, "2-4 0@1(2);", "0@1=3 " },
    { A(", tokens: prompt"), { SPAN("a", 4, 0, 1, .n_prompt = 4) }, "", "" },
    { A(", tokens: generated"), { SPAN("a", 0, 0, 4, .n_prompt = 4) }, "", "" },
    { A(", tokens: prompt"),
      { SPAN("a", 0, 0, 2, .phase = DMI_PHASE_PREFILL) },
      "0-1 0@1(2);",
      "0@1=2 " },
    { A(", tokens: generated"),
      { SPAN("a", 9, 0, 2, .phase = DMI_PHASE_DECODE) },
      "0-1 0@1(2);",
      "0@1=2 " },
    { A(", tokens: last"), { SPAN("a", 0, 0, 2, .n_prompt = 4) }, "1-1 0@1(2);", "0@1=1 " },
    { A(", tokens: last_prompt"), { SPAN("a", 0, 0, 2, .n_prompt = 4) }, "", "" },
    { A(", tokens: last_prompt"), { SPAN("a", 2, 0, 2, .n_prompt = 4) }, "1-1 0@1(2);", "0@1=1 " },
    { A(", tokens: last_prompt"), { SPAN("a", 2, 0, 5, .n_prompt = 4) }, "1-1 0@1(2);", "0@1=1 " },
    { A(", tokens: last_prompt"), { SPAN("a", 0, 0, 4) }, "", "" },
    { A(", tokens: '1:3'"),
      { SPAN("a", 0, 5, 2), SPAN("b", 2, 0, 4) },
      "0-0 0@2(2);6-6 0@1(2);",
      "0@1=1 0@2=1 " },
    { A(", tokens: '-2:'"), { SPAN("a", 0, 0, 5, .n_prompt = 4) }, "2-4 0@1(2);", "0@1=3 " },
    { A(", tokens: ':-3'"), { SPAN("a", 0, 0, 5, .n_prompt = 4) }, "0-0 0@1(2);", "0@1=1 " },
    { A(", tokens: '-2:-1'"), { SPAN("a", 0, 0, 4) }, "", "" },
    { A(", tokens: 'prompt[-2:]'"),
      { SPAN("a", 0, 0, 7, .n_prompt = 4) },
      "2-3 0@1(2);",
      "0@1=2 " },
    { A(", tokens: 'prompt[-9:]'"),
      { SPAN("a", 0, 0, 7, .n_prompt = 4) },
      "0-3 0@1(2);",
      "0@1=4 " },
    { A(", tokens: 'prompt[1:9]'"),
      { SPAN("a", 0, 0, 7, .n_prompt = 4) },
      "1-3 0@1(2);",
      "0@1=3 " },
    { A(", tokens: 'prompt[1:-1]'"),
      { SPAN("a", 0, 0, 7, .n_prompt = 4) },
      "1-2 0@1(2);",
      "0@1=2 " },
    { A(", tokens: 'prompt[2]'"), { SPAN("a", 0, 0, 7, .n_prompt = 4) }, "2-2 0@1(2);", "0@1=1 " },
    { A(", tokens: 'prompt[-1]'"), { SPAN("a", 0, 0, 7, .n_prompt = 4) }, "3-3 0@1(2);", "0@1=1 " },
    { A(", tokens: 'prompt[-2:]'"), { SPAN("a", 4, 0, 3, .n_prompt = 4) }, "", "" },
    { A(", tokens: 'prompt[-2:]'"), { SPAN("a", 0, 0, 7) }, "", "" },
    { A(", tokens: 'prompt[1:]'"),
      { SPAN("a", 0, 0, 3, .phase = DMI_PHASE_PREFILL),
        SPAN("b", 5, 3, 1, .phase = DMI_PHASE_DECODE) },
      "1-2 0@1(2);",
      "0@1=2 " },
    { D("back", "'prompt[-3:]'"),
      { SPAN("a", 6, 0, 4, .n_prompt = 8) },
      "0-0 0@1#1(1);1-1 0@1#2(1);",
      "0@1=2 " },
    /* --- rows that came from a prefix cache, beside others that the edit wants, and alone */
    { A(""), { SPAN("a", 4, 0, 2, .n_cached = 4) }, "0-1 0@1(2);", "0@1=4(cached) 0@1=2 " },
    { A(", tokens: '0:5'"),
      { SPAN("a", 4, 0, 2, .n_cached = 4) },
      "0-0 0@1(2);",
      "0@1=4(cached) 0@1=1 " },
    { A(", tokens: '0:4'"), { SPAN("a", 4, 0, 2, .n_cached = 4) }, "", "0@1=4(cached) " },
    { A(", tokens: '1:3'"), { SPAN("a", 4, 0, 2, .n_cached = 4) }, "", "0@1=2(cached) " },
    { A(", tokens: '1:3'"), { SPAN("a", 4, 0, 2, .n_cached = 2) }, "", "0@1=1(cached) " },
    { A(", tokens: '0:2'"), { SPAN("a", 4, 0, 2, .n_cached = 2) }, "", "" },
    { A(", tokens: 'prompt[:2]'"),
      { SPAN("a", 4, 0, 2, .n_cached = 4, .n_prompt = 5) },
      "",
      "0@1=2(cached) " },
    { A(", tokens: prompt"),
      { SPAN("a", 4, 0, 2, .n_cached = 4, .n_prompt = 4) },
      "",
      "0@1=4(cached) " },
    { A(", tokens: '0:4', requests: b"), { SPAN("a", 4, 0, 2, .n_cached = 4) }, "", "" },
    { T(", tokens: '0:4'"),
      { SPAN("a", 4, 0, 2, .n_cached = 4, .tags = "{\"c\": 2}"),
        SPAN("b", 4, 2, 2, .n_cached = 4) },
      "",
      "0@1=4(cached) " },
    { A(", tokens: '0:4'"), { SPAN("z", 4, 0, 2, .n_cached = 4) }, "", "0@26=4(cached) " },
    /* --- a request in several spans */
    { A(", tokens: last"),
      { SPAN("a", 8, 0, 2), SPAN("b", 0, 2, 1), SPAN("a", 4, 3, 4) },
      "1-1 0@1(2);2-2 0@2(2);",
      "0@1=1 0@2=1 " },
    { A(", tokens: generated"),
      { SPAN("a", 6, 0, 1, .n_prompt = 4), SPAN("a", 3, 1, 3, .n_prompt = 4) },
      "0-0 0@1(2);2-3 0@1(2);",
      "0@1=1 0@1=2 " },
    /* --- coefficients */
    { T(""),
      { SPAN("a", 0, 0, 1, .tags = "{\"c\": 1.5}"), SPAN("b", 0, 1, 1, .tags = "{\"c\": \"-2\"}"),
        SPAN("c", 0, 2, 1, .tags = "{\"d\": 1}"), SPAN("d", 0, 3, 1) },
      "0-0 0@1(1.5);1-1 0@2(-2);",
      "0@1=1 0@2=1 " },
    { T(""),
      { SPAN("a", 0, 0, 2, .tags = "{\"c\": \"x\"}"), SPAN("b", 0, 2, 1, .tags = "{\"c\": [1]}"),
        SPAN("c", 0, 3, 1, .tags = "{\"c\": null}"), SPAN("d", 0, 4, 1, .tags = "{\"c\": 1e39}") },
      "",
      "0@1=2(bad_tag) 0@2=1(bad_tag) 0@3=1(bad_tag) 0@4=1(bad_tag) " },
    { T(""), { SPAN("a", 0, 0, 1, .tags = "no JSON: [") }, "", "" },
    { T(", tokens: generated"),
      { SPAN("a", 0, 0, 2, .n_prompt = 4, .tags = "{\"c\": \"x\"}") },
      "",
      "" },
    { T(""), { SPAN("a", 0, 0, 1, .tags = "{\"c\": 0}") }, "0-0 0@1(0);", "0@1=1 " },
    { P(""),
      { SPAN("a", 3, 0, 9, .n_prompt = 4) },
      "0-0 0@1(2);1-1 0@1(2);2-2 0@1(1.5);3-3 0@1(1);4-4 0@1(0.5);5-5 0@1(0);6-6 0@1(0.5);7-7 "
      "0@1(1);8-8 0@1(1);",
      "0@1=9 " },
    { P(", tokens: generated"),
      { SPAN("a", 5, 0, 1, .n_prompt = 4), SPAN("b", 5, 1, 1, .n_prompt = 5) },
      "0-0 0@1(1.5);1-1 0@2(2);",
      "0@1=1 0@2=1 " },
    /* --- several edits of one row, in the order of the file; rows of one program have one */
    { A("") B(""), { SPAN("a", 0, 0, 2) }, "0-1 0@1(2)1@11(3,-1);", "0@1=2 1@11=2 " },
    { B("") A(""), { SPAN("a", 0, 0, 2) }, "0-1 0@1(3,-1)1@11(2);", "0@1=2 1@11=2 " },
    { A(", tokens: '1:3'") B(", tokens: '2:'"),
      { SPAN("a", 0, 0, 5) },
      "1-1 0@1(2);2-2 0@1(2)1@11(3,-1);3-4 1@11(3,-1);",
      "0@1=2 1@11=3 " },
    { A(", tokens: '0:1'") B(", tokens: '2:'"),
      { SPAN("a", 0, 0, 3) },
      "0-0 0@1(2);2-2 1@11(3,-1);",
      "0@1=1 1@11=1 " },
    { A("") T(""),
      { SPAN("a", 0, 0, 1, .tags = "{\"c\": 4}"), SPAN("b", 0, 1, 1, .tags = "{\"c\": true}") },
      "0-0 0@1(2)1@11(4);1-1 0@2(2);",
      "0@1=1 0@2=1 1@11=1 1@12=1(bad_tag) " },
    /* --- a row of the vector for each position, wherever a step begins */
    { D("three", "'1:4'"),
      { SPAN("a", 0, 0, 3), SPAN("b", 3, 3, 2) },
      "1-1 0@1(1);2-2 0@1#1(1);3-3 0@2#2(1);",
      "0@1=2 0@2=1 " },
    { D("back", "'-4:-1'"),
      { SPAN("a", 5, 0, 4, .n_prompt = 8) },
      "0-0 0@1#1(1);1-1 0@1#2(1);",
      "0@1=2 " },
    { D("three", "'1:4'"),
      { SPAN("a", 0, 0, 5, .n_prompt = 2) },
      "1-1 0@1(1);2-2 0@1#1(1);3-3 0@1#2(1);",
      "0@1=3(2 generated) " },
    { D("three", "'prompt[1:4]'"), { SPAN("a", 0, 0, 5, .n_prompt = 2) }, "1-1 0@1(1);", "0@1=1 " },
    { D("one", "'1:4'"),
      { SPAN("a", 2, 0, 3, .n_prompt = 2) },
      "0-1 0@1(1);",
      "0@1=2(2 generated) " },
    { D("one", "'1:'"), { SPAN("a", 2, 0, 3, .n_prompt = 2) }, "0-2 0@1(1);", "0@1=3 " },
    { D("one", "'1:3'"), { SPAN("a", 0, 0, 4) }, "1-2 0@1(1);", "0@1=2 " },
    /* --- rows that are missed whatever the edit says: the counter of request z has no room */
    { A(""), { SPAN("a", 0, 0, 1), SPAN("z", 0, 1, 3) }, "0-0 0@1(2);", "0@1=1 0@26=3(no_room) " },
    { T(""), { SPAN("z", 0, 0, 1, .tags = "{\"c\": \"x\"}") }, "", "0@26=1(no_room) " },
    { T(""), { SPAN("z", 0, 0, 1) }, "", "" },
};

static uint32_t counter_of(void *arg, const struct edit_use *use, const struct dmi_span *span,
                           int *miss)
{
    (void)arg;
    uint32_t edit = (uint32_t)(use->edit - use->of->list);
    uint32_t request = span ? (uint32_t)(span->request_id[0] - 'a' + 1) : 0;
    if (request == 26)
        *miss = DMI_EDIT_MISS_NO_ROOM;
    return 10 * edit + request;
}

static void say_program(char *to, const struct edit_rows *rows, uint32_t at)
{
    const uint32_t *w = rows->words + at;
    ck_assert_uint_eq(*w++, 7); /* the table */
    for (uint32_t n = *w++; n; n--) {
        uint32_t n_ops = w[0] >> 16;
        say(to, "%u@%u", w[0] & 0xffff, w[1]);
        if (w[2])
            say(to, "#%u", w[2]);
        say(to, "(");
        for (uint32_t k = 0; k < n_ops; k++) {
            float c;
            memcpy(&c, &w[DMI_EDIT_BEFORE_OPS + k], sizeof c);
            say(to, "%s%g", k ? "," : "", (double)c);
        }
        say(to, ")");
        w += DMI_EDIT_BEFORE_OPS + n_ops;
    }
    ck_assert_uint_eq(*w++, 0); /* no other section */
    ck_assert(w <= rows->words + rows->n_words);
}

static void say_pairs(char *to, const struct edit_rows *rows)
{
    for (uint32_t i = 0, n; i < rows->n_rows; i += n) {
        const uint32_t *pair = &rows->words[2 * i];
        ck_assert(!i || pair[0] > pair[-2]);
        for (n = 1;
             i + n < rows->n_rows && pair[2 * n] == pair[0] + n && pair[2 * n + 1] == pair[1];)
            n++;
        say(to, "%u-%u ", pair[0], pair[0] + n - 1);
        say_program(to, rows, pair[1]);
        say(to, ";");
    }
}

static void say_shares(char *to, const struct edit_rows *rows)
{
    for (uint32_t i = 0; i < rows->n_shares; i++) {
        const struct edit_share *s = &rows->shares[i];
        say(to, "%u@%u=%u", s->edit, s->counter, s->n_rows);
        if (s->n_generated)
            say(to, "(%u generated)", s->n_generated);
        if (s->miss != EDIT_NO_MISS)
            say(to, "(%s)", dmi_edit_miss_name((uint32_t)s->miss));
        say(to, " ");
    }
}

static struct edit_rows_ask ask_of(const struct spec *spec, struct edits *edits)
{
    return (struct edit_rows_ask){ .spec = spec,
                                   .sections = whole_section,
                                   .counter = counter_of,
                                   .has_cached = never_cached,
                                   .arg = edits };
}

static int build(const struct spec *spec, struct edits *edits, const struct dmi_step *step,
                 struct edit_rows *rows)
{
    const struct edit_rows_ask ask = ask_of(spec, edits);
    return edit_rows_build(step, &ask, rows);
}

static int build_every(const struct spec *spec, struct edits *edits, struct edit_rows *rows)
{
    const struct edit_rows_ask ask = ask_of(spec, edits);
    return edit_rows_build_every(&ask, rows);
}

START_TEST(rows_of_a_step)
{
    char text[2000] = HEAD, pairs[2000] = "", shares[2000] = "";
    struct spec *spec = spec_of(PLACES);
    struct dmi_step step = { .n_rows = 12,
                             .span_size = sizeof(struct dmi_span),
                             .spans = row_rows[_i].spans };
    struct edit_rows rows;
    while (step.n_spans < 4 &&
           (step.spans[step.n_spans].request_id || step.spans[step.n_spans].flags))
        step.n_spans++;
    say(text, "%s", row_rows[_i].edits);
    struct edits *edits = edits_of(text, spec);
    ck_assert_int_eq(build(spec, edits, &step, &rows), 0);
    say_pairs(pairs, &rows);
    say_shares(shares, &rows);
    ck_assert_str_eq(pairs, row_rows[_i].pairs);
    ck_assert_str_eq(shares, row_rows[_i].shares);
    ck_assert(!rows.every);
    /* a tensor with fewer rows than the batch has the first ones */
    for (uint32_t n = 0; n <= 12; n++) {
        uint32_t below = edit_rows_below(&rows, n);
        ck_assert(below <= rows.n_rows && (!below || rows.words[2 * below - 2] < n) &&
                  (below == rows.n_rows || rows.words[2 * below] >= n));
    }
    edit_rows_deinit(&rows);
    edits_free(edits);
    spec_free(spec);
}
END_TEST

/* An older caller's spans have other sizes. */
START_TEST(spans_have_the_callers_size)
{
    struct spec *spec = spec_of(PLACES);
    struct edits *edits = edits_of(HEAD A(""), spec);
    struct {
        struct dmi_span span;
        char more[8];
    } spans[2] = { { SPAN("a", 0, 0, 1), "" }, { SPAN("b", 0, 1, 1), "" } };
    struct dmi_step step = {
        .n_rows = 2, .n_spans = 2, .span_size = sizeof *spans, .spans = &spans[0].span
    };
    struct edit_rows rows;
    char pairs[2000] = "";
    ck_assert_int_eq(build(spec, edits, &step, &rows), 0);
    say_pairs(pairs, &rows);
    ck_assert_str_eq(pairs, "0-0 0@1(2);1-1 0@2(2);");
    edit_rows_deinit(&rows);
    edits_free(edits);
    spec_free(spec);
}
END_TEST

START_TEST(rows_of_many_spans_ascend)
{
    struct spec *spec = spec_of(PLACES);
    struct edits *edits = edits_of(HEAD A(", tokens: last") B(""), spec);
    struct dmi_span spans[300];
    for (uint32_t i = 0; i < 300; i++)
        spans[i] = (struct dmi_span)SPAN(i % 2 ? "a" : "b", 10 * (int64_t)i, 2 * (i * 7 % 300), 2);
    struct dmi_step step = {
        .n_rows = 600, .n_spans = 300, .span_size = sizeof *spans, .spans = spans
    };
    struct edit_rows rows;
    ck_assert_int_eq(build(spec, edits, &step, &rows), 0);
    ck_assert_uint_eq(rows.n_rows, 600);
    uint32_t n_both = 0;
    for (uint32_t i = 0; i < 600; i++) {
        ck_assert_uint_eq(rows.words[2 * i], i);
        n_both += rows.words[rows.words[2 * i + 1] + 1] == 2;
    }
    ck_assert_uint_eq(n_both, 2); /* the last row of each request */
    edit_rows_deinit(&rows);
    edits_free(edits);
    spec_free(spec);
}
END_TEST

START_TEST(without_steps_edits_of_all_rows_are_done)
{
    struct spec *spec = spec_of(PLACES);
    struct edits *edits = edits_of(
        HEAD A("") B(", requests: a") "- {name: c, site: mlp_out, do: [zero], tokens: last}\n"
                                      "- {name: d, site: mlp_out, do: [{set: 4}, {scale: 5}]}\n"
                                      "- {name: e, site: mlp_out, do: [{scale: {0: 1}}]}\n"
                                      "- {name: f, site: mlp_out, do: [{scale: 'tag:c'}]}\n",
        spec);
    char all[2000] = "";
    struct edit_rows rows;
    ck_assert_int_eq(build_every(spec, edits, &rows), 0);
    ck_assert(rows.every && !rows.n_rows && rows.words[0] == DMI_EDIT_EVERY);
    say_program(all, &rows, rows.words[1]);
    say(all, "; ");
    say_shares(all, &rows);
    ck_assert_str_eq(all, "0@0(2)3@30(1,5); 0@0=0 1@10=0(no_step) 2@20=0(no_step) 3@30=0 "
                          "4@40=0(no_step) 5@50=0(no_step) ");
    edit_rows_deinit(&rows);
    edits_free(edits);
    edits = edits_of(HEAD B(", requests: a"), spec);
    ck_assert_int_eq(build_every(spec, edits, &rows), 0);
    ck_assert(rows.every && !rows.words && rows.n_shares == 1);
    edit_rows_deinit(&rows);
    edits_free(edits);
    spec_free(spec);
}
END_TEST

/* ------------------------------------------------------------------------- tables */

/* Of v in layer l: l + 1, l + 2; of w in each layer: 3, 4; of u: 3, 4 at length 1. */
#define TABLE                                                                                      \
    "editspec: 1\n"                                                                                \
    "vectors: {v: {file: v}, w: {file: w}, u: {file: u, norm: unit}, wide: {file: x}}\n"           \
    "edits:\n"                                                                                     \
    "- {name: e0, site: attn_out, do: [{set: 7}, {clamp: [-1, 2]}]}\n"                             \
    "- {name: e1, site: mlp_out, do: [{add: v}]}\n"                                                \
    "- {name: e2, site: mlp_out, do: [{project_out: w}, {add: w}, {add: u}], columns: '2,5', "     \
    "layers: '1,3-4'}\n"                                                                           \
    "- {name: e3, site: mlp_out, do: [{adjust_rs: w, to: 9}, keep_norm], heads: '1:3'}\n"          \
    "- {name: e4, site: mlp_out, do: [{add: v}, {add: wide}], layers: 1, pass: 4}\n"

static void say_op(char *to, const struct edit_table *table, const struct dmi_edit_op *op)
{
#define OP(NAME, word, traits) #word,
    static const char *const words[DMI_EDIT_KINDS] = { DMI_EDIT_OPS(OP) };
#undef OP
    const float *numbers =
        (const float *)((const char *)table->bytes + (size_t)op->vector * DMI_EDIT_ALIGN);
    say(to, " %s", words[op->kind]);
    for (uint32_t i = 0; i < op->n_vector; i++)
        say(to, "%c%g", i ? ',' : ':', (double)numbers[i]);
    if (op->a != 0 || op->b != 0)
        say(to, "[%g,%g]", (double)op->a, (double)op->b);
}

static void say_parts(char *to, const struct edit_table *table, uint32_t place, int32_t layer)
{
    const struct dmi_edit_table *head = table->bytes;
    const char *base = table->bytes;
    uint32_t n;
    const struct dmi_edit_part *p = edit_table_parts(table, place, layer, &n);
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t *list = (const uint32_t *)(base + (size_t)p[i].columns * DMI_EDIT_ALIGN);
        say(to, "%se%u w%d", i ? "; " : "", p[i].edit, (int)p[i].width);
        for (uint32_t pass = 0; pass < 70 && p[i].pass; pass++)
            if (DMI_EDIT_IN_PASS(&p[i], DMI_EDIT_AT(layer, DMI_EDIT_PASS(pass))))
                say(to, " pass %u", pass);
        for (uint32_t k = 0; k < p[i].n_columns; k++)
            say(to, "%s%u", k ? "," : p[i].of_heads ? " heads " : " columns ", list[k]);
        for (uint32_t k = 0; k < p[i].n_ops; k++)
            say_op(to, table,
                   (const struct dmi_edit_op *)(base + (size_t)head->ops * DMI_EDIT_ALIGN) +
                       p[i].first_op + k);
    }
}

#define E2 "e2 w2 columns 2,5 project_out:0.6,0.8 add:3,4 add:0.6,0.8"
#define E3 "e3 w2 heads 1,2 adjust_rs:3,4[9,0] keep_norm"

/* What is done at a place in a layer. */
static const struct {
    uint32_t place;
    int32_t layer;
    const char *parts;
} table_rows[] = {
    { 0, -1, E3 },
    { 0, 0, "e1 w2 add:1,2; " E3 },
    { 0, 1,
      "e1 w2 add:2,3; " E2 "; " E3
      "; e4 w-1 pass 4 add:2,3 add:9,9,9" }, /* no tensor has both widths */
    { 0, 2, "e1 w2 add:3,4; " E3 },
    { 0, 3, E2 "; " E3 }, /* v ends with layer 2 */
    { 0, 4, E2 "; " E3 },
    { 0, 5, E3 }, /* beyond all layers that are named */
    { 0, SPEC_MAX_PLACE_LAYER, E3 },
    { 0, SPEC_MAX_PLACE_LAYER + 1, "" },
    { 0, INT32_MAX, "" },
    { 1, -1, "e0 w0 set[7,0] clamp[-1,2]" },
    { 1, 3, "e0 w0 set[7,0] clamp[-1,2]" },
    { 1, 5, "e0 w0 set[7,0] clamp[-1,2]" },
    { 2, 0, "" }, /* no such place */
};

static struct edits *with_numbers(const struct spec *spec)
{
    static const float w[] = { 3, 4 }, wide[] = { 9, 9, 9 };
    struct edits *edits = edits_of(TABLE, spec);
    for (int32_t layer = 0; layer < 3; layer++) {
        const float v[] = { (float)layer + 1, (float)layer + 2 };
        ck_assert_int_eq(edits_add_numbers(edits, 0, layer, v, 2), 0);
    }
    ck_assert_int_eq(edits_add_numbers(edits, 1, EDIT_ANY_LAYER, w, 2), 0);
    ck_assert_int_eq(edits_add_numbers(edits, 2, EDIT_ANY_LAYER, w, 2), 0);
    ck_assert_int_eq(edits_add_numbers(edits, 3, EDIT_ANY_LAYER, wide, 3), 0);
    return edits;
}

START_TEST(parts_of_a_place_in_a_layer)
{
    struct spec *spec = spec_of(PLACES);
    struct edits *edits = with_numbers(spec);
    struct edit_table table;
    char parts[2000] = "";
    ck_assert_int_eq(edit_table_build(uses_of(edits), edits->n, spec, &table), 0);
    ck_assert(table.n % DMI_EDIT_ALIGN == 0 && table.n_places == 2 && table.n_layers == 5);
    say_parts(parts, &table, table_rows[_i].place, table_rows[_i].layer);
    ck_assert_str_eq(parts, table_rows[_i].parts);
    edit_table_deinit(&table);
    edits_free(edits);
    spec_free(spec);
}
END_TEST

/* As the kernel looks it up: by place and layer in one word. */
START_TEST(the_device_finds_the_same_parts)
{
    struct spec *spec = spec_of(PLACES);
    struct edits *edits = with_numbers(spec);
    struct edit_table table;
    ck_assert_int_eq(edit_table_build(uses_of(edits), edits->n, spec, &table), 0);
    const struct dmi_edit_table *t = table.bytes;
    const struct dmi_edit_parts *entries =
        (const struct dmi_edit_parts *)((const char *)table.bytes +
                                        (size_t)t->entries * DMI_EDIT_ALIGN);
    const struct dmi_edit_part *first =
        (const struct dmi_edit_part *)((const char *)table.bytes +
                                       (size_t)t->parts * DMI_EDIT_ALIGN);
    ck_assert_uint_eq(t->n_places, 2);
    for (uint32_t place = 0; place < 2; place++)
        for (int32_t layer = -1; layer <= SPEC_MAX_PLACE_LAYER; layer++) {
            uint32_t n, at = DMI_EDIT_AT(layer, DMI_EDIT_PASS(DMI_EDIT_MAX_PASS + 1));
            const struct dmi_edit_part *p = edit_table_parts(&table, place, layer, &n);
            ck_assert_uint_lt(at, 0xffff);
            ck_assert_uint_eq(n, entries[DMI_EDIT_ENTRY(t, place, at)].n);
            ck_assert(!n || p == first + entries[DMI_EDIT_ENTRY(t, place, at)].first);
        }
    edit_table_deinit(&table);
    edits_free(edits);
    spec_free(spec);
}
END_TEST

START_TEST(no_edits_are_a_table_without_parts)
{
    struct spec *spec = spec_of(PLACES);
    struct edits *edits = edits_of("editspec: 1\nedits: []\n", spec);
    struct edit_table table;
    uint32_t n = 1;
    ck_assert_int_eq(edit_table_build(uses_of(edits), edits->n, spec, &table), 0);
    edit_table_parts(&table, 1, 7, &n);
    ck_assert_uint_eq(n, 0);
    edit_table_deinit(&table);
    edits_free(edits);
    spec_free(spec);
}
END_TEST

int main(void)
{
#define ROWS(table) (int)(sizeof(table) / sizeof *(table))
    Suite *suite = suite_create("policy/edit_rows");
    TCase *tc = tcase_create("edit_rows");
    tcase_add_loop_test(tc, rows_of_a_step, 0, ROWS(row_rows));
    tcase_add_test(tc, spans_have_the_callers_size);
    tcase_add_test(tc, rows_of_many_spans_ascend);
    tcase_add_test(tc, without_steps_edits_of_all_rows_are_done);
    tcase_add_loop_test(tc, parts_of_a_place_in_a_layer, 0, ROWS(table_rows));
    tcase_add_test(tc, the_device_finds_the_same_parts);
    tcase_add_test(tc, no_edits_are_a_table_without_parts);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? 1 : 0;
}
