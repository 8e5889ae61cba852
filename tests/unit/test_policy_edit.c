/* SPDX-License-Identifier: Apache-2.0 */
/* Edits: their text, what is wrong with it, and the block in which tools hand it to the library. */
#include "policy/edit.h"
#include "tests/unit/edit_uses.h"

#include <dmi/dtype.h>

#include <check.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TENSOR "kernel: k, pointer: 'arg[0]', dims: [{row: true, count: 4}, {count: 4}]"
#define PLACES                                                                                     \
    "hookspec: 1\n"                                                                                \
    "convention: {layer_base: 0, resid: before_norm}\n"                                            \
    "sites:\n"                                                                                     \
    "- {name: mlp_out, " TENSOR ", dtype: f32, layer: occ, write: {reach: [q]}}\n"                 \
    "- {name: attn_out, " TENSOR ", dtype: bf16, write: {}, capture: before}\n"                    \
    "- {name: q, " TENSOR ", dtype: f32}\n"

static struct spec *spec_of(const char *text)
{
    struct spec_errors errors;
    struct spec *spec = NULL;
    int rc = spec_parse("spec.yaml", text, strlen(text), NULL, 0, &errors, &spec);
    ck_assert_msg(!rc, "%s", errors.n_lines ? errors.lines[0] : "?");
    return spec;
}

static int parse(const char *text, const struct spec *spec, struct spec_errors *errors,
                 struct edits **edits)
{
    *edits = NULL;
    return edits_parse("f.yaml", text, strlen(text), spec, errors, edits);
}

static struct edits *edits_of(const char *text, const struct spec *spec)
{
    struct spec_errors errors;
    struct edits *edits;
    int rc = parse(text, spec, &errors, &edits);
    ck_assert_msg(!rc, "%s", errors.n_lines ? errors.lines[0] : "?");
    return edits;
}

/* ------------------------------------------------------------------------- errors */

#define HEAD "editspec: 1\nvectors: {v: {file: v.npy}, w: {file: w.npy}}\nedits:\n"
#define EDIT(x)                                                                                    \
    HEAD "- {name: a, site: mlp_out, " x "}\n" /* what is said stands in column 28 of line 4 */
#define DO(x)   EDIT("do: [" x "]")            /* in column 33 */
#define ALSO(x) EDIT("do: [zero], " x)         /* in column 40 */
#define FROM_ROWS(op, tokens)                                                                      \
    "editspec: 1\nvectors: {v: {run: d, request: r, site: q, tokens: '3:5'}}\nedits:\n"            \
    "- {name: a, site: mlp_out, do: [{" op ": v}], tokens: " tokens "}\n"
#define VECTOR(x) "editspec: 1\nvectors: " x "\nedits: []\n"

/* Each text has one error, and that at this place. */
static const struct row {
    const char *text;
    const char *place;
    const char *parts[3];
} error_rows[] = {
    /* --- the file */
    { "", "1:1", { "found an empty file; expected \"editspec: 1\"" } },
    { "editspec: [\n", "2:1", { "not YAML" } },
    { "- 1\n", "1:1", { "found a list", "edits", "editspec, convention, vectors, edits" } },
    { "edits: []\n", "1:1", { "no \"editspec\" in edits" } },
    { "editspec: 2\nedits: []\n", "1:11", { "found version \"2\"; expected 1" } },
    { "editspec: [1]\nedits: []\n", "1:11", { "found version a list; expected 1" } },
    { "editspec: 1\n", "1:1", { "no \"edits\" in edits" } },
    { "editspec: 1\nedit: []\nedits: []\n",
      "2:1",
      { "unknown key \"edit\" in edits", "did you mean \"edits\"?" } },
    { "editspec: 1\nedits: 3\n", "2:8", { "found \"3\"; expected a list of edits" } },
    { "editspec: 1\nedits: [zero]\n", "2:9", { "found \"zero\"", "an edit" } },
    /* --- conventions */
    { "editspec: 1\nconvention: 3\nedits: []\n",
      "2:13",
      { "found \"3\"; expected a mapping, as {layer_base: 0}" } },
    { "editspec: 1\nconvention: {layer_base: 1}\nedits: []\n",
      "2:26",
      { "found the convention \"1\"; expected what the HookSpec says: 0" } },
    { "editspec: 1\nconvention: {resid: [before_norm]}\nedits: []\n",
      "2:21",
      { "found the convention a list", "says: before_norm" } },
    { "editspec: 1\nconvention: {heads: 9}\nedits: []\n",
      "2:21",
      { "found the convention \"9\"", "says: nothing of it" } },
    /* --- vectors */
    { VECTOR("[v]"),
      "2:10",
      { "found a list; expected a mapping of at most 1024 names to {file: PATH}" } },
    { VECTOR("{v: v.npy}"), "2:14", { "found \"v.npy\"", "a vector" } },
    { VECTOR("{v: {tensor: t}}"), "2:14", { "neither a file nor rows of a run", "{file: PATH}" } },
    { VECTOR("{v: {file: f, run: d}}"), "2:14", { "neither a file nor rows of a run" } },
    { VECTOR("{v: {run: d, request: r, tokens: 1}}"), "2:14", { "neither a file nor rows" } },
    { VECTOR("{v: {run: d, request: r, site: q}}"), "2:14", { "neither a file nor rows" } },
    { VECTOR("{v: {run: d, request: r, site: q, tokens: all}}"),
      "2:52",
      { "found \"all\"; expected positions of the donor, as '5', '2:7', '-1' or '-3:'" } },
    { VECTOR("{v: {run: d, request: r, site: q, tokens: '2:'}}"), "2:52", { "found \"2:\"" } },
    { VECTOR("{v: {run: d, request: r, site: q, tokens: '-1:3'}}"), "2:52", { "\"-1:3\"" } },
    { FROM_ROWS("patch", "'1:4'"), "4:3", { "found a vector of 2 rows", "as 'prompt[0:2]'" } },
    { FROM_ROWS("patch", "generated"), "4:3", { "found a vector of 2 rows" } },
    { FROM_ROWS("patch", "'-2:'"), "4:3", { "found a vector of 2 rows" } },
    { FROM_ROWS("add", "'1:3'"), "4:3", { "found a vector of 2 rows; expected it in \"patch\"" } },
    { VECTOR("{v: {file: ''}}"), "2:21", { "expected a text" } },
    { VECTOR("{v: {file: v.npy, norm: one}}"),
      "2:34",
      { "found \"one\"; expected one of as_is, unit" } },
    { VECTOR("{'a b': {file: v.npy}}"), "2:13", { "found ' ' in a name" } },
    { VECTOR("{v: {file: a}, v: {file: b}}"), "2:25", { "found the vector \"v\" a second time" } },
    /* --- an edit */
    { HEAD "- {site: mlp_out, do: [zero]}\n", "4:3", { "no \"name\" in an edit" } },
    { HEAD "- {name: a, do: [zero]}\n", "4:3", { "no \"site\" in an edit" } },
    { HEAD "- {name: a, site: mlp_out}\n", "4:3", { "no \"do\" in an edit" } },
    { HEAD "- {name: a/b, site: mlp_out, do: [zero]}\n", "4:11", { "found '/' in a name" } },
    { DO("zero") "- {name: a, site: mlp_out, do: [zero]}\n",
      "5:10",
      { "found the edit \"a\" a second time; expected it once" } },
    { ALSO("token: all"),
      "4:40",
      { "unknown key \"token\" in an edit", "did you mean \"tokens\"?" } },
    { HEAD "- {name: a, site: mlp_ou, do: [zero]}\n",
      "4:19",
      { "found \"mlp_ou\"; expected a site of the HookSpec with \"write\": mlp_out, attn_out",
        "did you mean \"mlp_out\"?" } },
    { HEAD "- {name: a, site: q, do: [zero]}\n", "4:19", { "found \"q\"; expected a site" } },
    { HEAD "- {name: a, site: [q], do: [zero]}\n", "4:19", { "found a list" } },
    { ALSO("layers: last"), "4:48", { "found a layer by a word", "how many layers there are" } },
    { ALSO("layers: '0-1022'"), "4:48", { "found layer 1022; expected 0 to 1021" } },
    { ALSO("layers: '3-1'"), "4:49", { "found no layer" } },
    { ALSO("requests: 'tag:a'"), "4:50", { "a tag without key or pattern" } },
    { ALSO("tokens: first"), "4:48", { "found \"first\"; expected prompt, generated, last" } },
    { ALSO("tokens: 'prompt[5:2]'"), "4:48", { "found \"prompt[5:2]\"" } },
    { ALSO("tokens: 'prompt[1:'"), "4:48", { "found \"prompt[1:\"; expected", "'prompt[A:B]'" } },
    { ALSO("tokens: 'prompt[]'"), "4:48", { "found \"prompt[]\"" } },
    { ALSO("tokens: '5:2'"), "4:48", { "found \"5:2\"" } },
    { ALSO("columns: '0', heads: '0'"),
      "4:61",
      { "found columns and heads; expected one of them" } },
    { ALSO("columns: []"), "4:49", { "found a list; expected numbers and ranges" } },
    { ALSO("columns: ''"), "4:49", { "expected numbers and ranges of them, as '3,7,16:64'" } },
    { ALSO("columns: '-1'"), "4:49", { "found \"-1\"" } },
    { ALSO("columns: '+1'"), "4:49", { "found \"+1\"" } },
    { ALSO("columns: '4:4'"), "4:49", { "found \"4:4\"" } },
    { ALSO("columns: '4-7'"), "4:49", { "found \"4-7\"" } },
    { ALSO("columns: '1,'"), "4:49", { "found \"1,\"" } },
    { ALSO("columns: '1:'"), "4:49", { "found \"1:\"" } },
    { ALSO("columns: '1:-1'"), "4:49", { "found \"1:-1\"" } },
    { ALSO("columns: '0x10'"), "4:49", { "found \"0x10\"" } },
    { ALSO("columns: '4294967295'"), "4:49", { "found \"4294967295\"" } },
    { ALSO("columns: '99999999999999999999'"), "4:49", { "found \"9999999999" } },
    { ALSO("columns: '0:65537'"), "4:49", { "at most 65536" } },
    { ALSO("columns: '0:40000,40000:80000'"), "4:49", { "at most 65536" } },
    { ALSO("heads: '0:4,2'"), "4:47", { "found 2 after 3; expected them to ascend" } },
    { ALSO("columns: '5,5'"), "4:49", { "found 5 after 5; expected them to ascend" } },
    { ALSO("cache: yes"), "4:47", { "found \"yes\"; expected one of salted, ignore" } },
    { ALSO("live: 3"), "4:46", { "found \"3\"" } },
    { ALSO("pass: last"),
      "4:46",
      { "found \"last\"; expected how often the layer has run before" } },
    { ALSO("pass: -1"), "4:46", { "found \"-1\"", "0 to 61" } },
    { ALSO("pass: 62"), "4:46", { "found \"62\"", "0 to 61" } },
    { ALSO("pass: [0, 1]"), "4:46", { "found a list" } },
    { ALSO("on_miss: stop"), "4:49", { "expected one of mark, abort" } },
    /* --- operations */
    { EDIT("do: zero"),
      "4:32",
      { "found \"zero\"; expected a list of operations, as [{add: VECTOR" } },
    { EDIT("do: []"), "4:32", { "found no operation; expected one or more" } },
    { DO("zero,zero,zero,zero,zero,zero,zero,zero,zero,zero,zero,zero,zero,zero,zero,zero,zero"),
      "4:32",
      { "17", "16" } },
    { DO("ad"),
      "4:33",
      { "found \"ad\"; expected an operation: add, scale, set, zero, clamp, project_out",
        "did you mean \"add\"?" } },
    { DO("{ad: v}"), "4:34", { "found \"ad\"; expected an operation" } },
    { DO("[zero]"), "4:33", { "found a list; expected an operation" } },
    { DO("{}"), "4:33", { "expected an operation" } },
    { DO("[]"), "4:33", { "expected an operation" } },
    { DO("{[a]: 1}"), "4:34", { "found a list; expected an operation" } },
    { DO("{times: 2, to: v}"), "4:34", { "found \"times\"; expected an operation" } },
    { DO("{save: v}"),
      "4:3",
      { "found \"save\" without a bank; expected \"edits: {bank: 64M}\"" } },
    { DO("{patch: 'bank:b'}"), "4:3", { "found \"patch\" without a bank" } },
    { DO("{feature: v}"), "4:33", { "found \"feature\" without \"encoder\"" } },
    { DO("{feature: v, encoder: w}"), "4:33", { "without \"to\"", "to: NUMBER}" } },
    { DO("{feature: v, encoder: x, to: 1}"),
      "4:55",
      { "found \"x\"; expected one of \"vectors\"" } },
    { DO("{feature: v, encoder: w, to: 1, times: 2}"),
      "4:65",
      { "found \"times\" beside \"feature\"; expected encoder, to, bias, threshold" } },
    { DO("{feature: v, encoder: w, to: 1, bias: [1]}"), "4:71", { "found a list" } },
    { DO("save"), "4:33", { "found \"save\" alone; expected {save: ...}" } },
    { DO("add"), "4:33", { "found \"add\" alone; expected {add: ...}" } },
    { DO("{zero: 1}"), "4:33", { "found a value of \"zero\"; expected the word alone: zero" } },
    { DO("{add: x}"), "4:39", { "found \"x\"; expected one of \"vectors\": v, w" } },
    { DO("{add: [v]}"), "4:39", { "found a list; expected one of \"vectors\"" } },
    { DO("{add: 2}"), "4:39", { "found \"2\"; expected one of \"vectors\"" } },
    { "editspec: 1\nedits:\n- {name: a, site: mlp_out, do: [{add: v}]}\n",
      "3:39",
      { "found \"v\"; expected one of \"vectors\": there are none" } },
    { DO("{set: '2'}"), "4:39", { "found \"2\"; expected one of \"vectors\"" } },
    { DO("{set: 4e38}"), "4:39", { "found \"4e38\"; expected a decimal number" } },
    { DO("{scale: x}"), "4:41", { "found \"x\"; expected a decimal number" } },
    { DO("{scale: .nan}"), "4:41", { "found \".nan\"" } },
    { DO("{scale: inf}"), "4:41", { "found \"inf\"" } },
    { DO("{scale: 1e39}"), "4:41", { "found \"1e39\"" } },
    { DO("{scale: [2]}"), "4:41", { "found a list; expected a decimal number" } },
    { DO("{scale: 'tag:'}"), "4:41", { "found a tag without a name; expected 'tag:NAME'" } },
    { DO("{scale: {}}"), "4:41", { "found 0 points; expected 1 to 16" } },
    { DO("{scale: {0: 1, 1: 1, 2: 1, 3: 1, 4: 1, 5: 1, 6: 1, 7: 1, 8: 1, 9: 1, 10: 1, 11: 1, 12: "
         "1, 13: 1, 14: 1, 15: 1, 16: 1}}"),
      "4:41",
      { "found 17 points; expected 1 to 16" } },
    { DO("{scale: {-1: 2}}"), "4:42", { "found \"-1\"", "0 to 2147483647" } },
    { DO("{scale: {0: x}}"), "4:45", { "found \"x\"; expected a decimal number" } },
    { DO("{scale: {4: 1, 2: 1}}"),
      "4:48",
      { "found generated token 2 after 4; expected them to ascend" } },
    { DO("{add: v, to: 1}"), "4:42", { "found \"to\" beside \"add\"; expected times" } },
    { DO("{scale: 2, times: 3}"),
      "4:44",
      { "found \"times\" beside \"scale\"; expected nothing" } },
    { DO("{adjust_rs: v, times: 3, to: 1}"),
      "4:48",
      { "found \"times\" beside \"adjust_rs\"; expected to" } },
    { DO("{limit_along: v, between: [0, 1], to: 1}"),
      "4:67",
      { "beside \"limit_along\"; expected times, between" } },
    { DO("{add: v, add: w}"), "4:42", { "found \"add\" beside \"add\"; expected times" } },
    { DO("{add: v, scale: 2}"), "4:42", { "found \"scale\" beside \"add\"" } },
    { DO("{add: v, times: 1, times: 2}"), "4:52", { "found \"times\" a second time" } },
    { DO("{adjust_rs: v}"),
      "4:33",
      { "found \"adjust_rs\" without \"to\"; expected {adjust_rs: VECTOR, to: NUMBER}" } },
    { DO("{limit_along: v}"),
      "4:33",
      { "without \"between\"; expected {limit_along: VECTOR, between: [LOW, HIGH]}" } },
    { DO("{adjust_rs: v, to: [1]}"), "4:52", { "found a list; expected a decimal number" } },
    { DO("{clamp: 1}"), "4:41", { "found \"1\"; expected two numbers, as [-1, 1]" } },
    { DO("{clamp: [1]}"), "4:41", { "found a list; expected two numbers" } },
    { DO("{clamp: [a, 1]}"), "4:42", { "found \"a\"; expected a decimal number" } },
    { DO("{clamp: [1, -1]}"),
      "4:41",
      { "found bounds of which the first is the greater one; expected [low, high]" } },
    { DO("{limit_along: v, between: [2, 1]}"), "4:59", { "the first is the greater one" } },
    { DO("{add: v, times: [2]}"), "4:49", { "found a list; expected a decimal number" } },
};

#define PLACE(more) "hookspec: 1\nsites:\n- {name: m, " TENSOR ", " more "}\n"

/* The same of places, in a HookSpec. */
static const struct {
    const char *text;
    const char *place;
    const char *parts[2];
} place_rows[] = {
    { PLACE("dtype: f32, write: 3"), "3:105", { "found \"3\"", "write" } },
    { PLACE("dtype: f32, write: {reach: q}"), "3:113", { "expected a list of names of sites" } },
    { PLACE("dtype: f32, write: {reach: [q]}"),
      "3:1",
      { "found \"q\" in \"reach\"; expected names of sites of this HookSpec" } },
    { PLACE("dtype: f32, write: {reach: [a, a, a, a, a, a, a, a, a, a, a, a, a, a, a, a, a]}"),
      "3:113",
      { "17", "16" } },
    { PLACE("dtype: f32, write: {reaches: []}"), "3:106", { "unknown key \"reaches\" in write" } },
    { PLACE("dtype: i32, write: {}"),
      "3:93",
      { "found a place for edits of another type; expected f32, f16 or bf16" } },
    { PLACE("dtype: f32, row: none, write: {}"), "3:103", { "whose rows are no tokens" } },
    { PLACE("dtype: f32, row: request, write: {}"), "3:103", { "whose rows are no tokens" } },
    { PLACE("dtype: f32, shared_memory: allow, write: {}"),
      "3:113",
      { "found shared_memory: allow at a place for edits" } },
    { PLACE("dtype: f32, write: {}, shard: {dim: 1, of: tp}"),
      "3:116",
      { "found a place for edits that ranks divide, without \"parts\"" } },
    { PLACE("dtype: f32, capture: after"),
      "3:107",
      { "found \"capture\" without \"write\"; expected \"write: {}\" too" } },
    { PLACE("dtype: f32, write: {}, capture: later"),
      "3:118",
      { "found \"later\"; expected one of after, before, none" } },
    { "hookspec: 1\nedits: {bytes: 1X}\nsites: [{tap: q}]\n", "2:16", { "found \"1X\"" } },
};

static void find_error(const struct spec_errors *errors, const char *place,
                       const char *const *parts, size_t n_parts)
{
    char start[64];
    ck_assert_uint_eq(errors->n_lines, 1);
    int n = snprintf(start, sizeof start, "f.yaml:%s: ", place);
    ck_assert_msg(!strncmp(errors->lines[0], start, (size_t)n), "%s, wanted at %s",
                  errors->lines[0], place);
    for (size_t i = 0; i < n_parts && parts[i]; i++)
        ck_assert_msg(strstr(errors->lines[0], parts[i]), "%s\nwanted: %s", errors->lines[0],
                      parts[i]);
}

START_TEST(error_has_its_place_and_says_what_was_expected)
{
    struct spec *spec = spec_of(PLACES);
    struct spec_errors errors;
    struct edits *edits;
    int rc = parse(error_rows[_i].text, spec, &errors, &edits);
    ck_assert_msg(rc == SPEC_E_INVALID, "%s", error_rows[_i].text);
    ck_assert_ptr_null(edits);
    find_error(&errors, error_rows[_i].place, error_rows[_i].parts, 3);
    spec_errors_deinit(&errors);
    spec_free(spec);
}
END_TEST

/* With a bank in the HookSpec. */
#define WITH_BANK PLACES "edits: {bank: 64K}\n"
static const struct row bank_rows[] = {
    { DO("{save: b}, zero"), "4:3", { "found \"save\" beside other operations" } },
    { EDIT("columns: 1, do: [{save: b}]"), "4:3", { "columns or heads; expected it alone" } },
    { DO("{save: 'a/b'}"), "4:42", { "found '/' in a name" } },
    { DO("{save: b, keep: 3}"), "4:49", { "found \"3\"" } },
    { DO("{save: b, times: 3}"), "4:43", { "found \"times\" beside \"save\"; expected keep" } },
    { DO("{patch: 'bank:'}"), "4:41", { "found" } },
    { DO("{patch: 'bank:b'}, {patch: 'bank:c'}"),
      "4:3",
      { "found rows of \"b\" and of \"c\"; expected those of one" } },
    { DO("{save: b}") "- {name: b, site: mlp_out, do: [{save: b}]}\n",
      "5:3",
      { "found rows saved as \"b\" a second time" } },
    { DO("{add: 'bank:b'}"), "4:39", { "found \"bank:b\"; expected one of \"vectors\"" } },
};

START_TEST(error_of_rows_of_a_bank)
{
    struct spec *spec = spec_of(WITH_BANK);
    struct spec_errors errors;
    struct edits *edits;
    ck_assert_int_eq(parse(bank_rows[_i].text, spec, &errors, &edits), SPEC_E_INVALID);
    find_error(&errors, bank_rows[_i].place, bank_rows[_i].parts, 3);
    spec_errors_deinit(&errors);
    spec_free(spec);
}
END_TEST

START_TEST(rows_of_a_bank_are_in_the_struct)
{
    struct spec *spec = spec_of(WITH_BANK);
    ck_assert_uint_eq(spec->bank_bytes, 64 << 10);
    struct edits *edits =
        edits_of("editspec: 1\nedits:\n"
                 "- {name: s, site: mlp_out, do: [{save: b, keep: true}], tokens: '3:5'}\n"
                 "- {name: t, site: attn_out, do: [{scale: 2}, {patch: 'bank:b', times: 0.5}]}\n",
                 spec);
    const struct edit *s = &edits->list[0], *t = &edits->list[1];
    ck_assert_str_eq(edit_saves(s), "b");
    ck_assert_ptr_null(edit_takes(s));
    ck_assert(s->ops[0].keep);
    ck_assert_str_eq(edit_takes(t), "b");
    ck_assert_ptr_null(edit_saves(t));
    ck_assert(t->ops[1].vector == EDIT_NO_VECTOR && t->ops[1].times.number == 0.5f);
    edits_free(edits);
    spec_free(spec);
}
END_TEST

START_TEST(error_of_a_place_has_its_place)
{
    struct spec *spec = NULL;
    struct spec_errors errors;
    const char *text = place_rows[_i].text;
    int rc = spec_parse("f.yaml", text, strlen(text), NULL, 0, &errors, &spec);
    ck_assert_msg(rc == SPEC_E_INVALID, "%s", text);
    find_error(&errors, place_rows[_i].place, place_rows[_i].parts, 2);
    spec_errors_deinit(&errors);
}
END_TEST

START_TEST(a_hookspec_without_places_has_none_for_edits)
{
    struct spec *spec = spec_of("hookspec: 1\nsites: [{tap: q}]\n");
    struct spec_errors errors;
    struct edits *edits;
    ck_assert_int_eq(parse(DO("zero"), spec, &errors, &edits), SPEC_E_INVALID);
    static const char *const parts[] = { "with \"write\": it has none" };
    find_error(&errors, "4:19", parts, 1);
    spec_errors_deinit(&errors);
    spec_free(spec);
}
END_TEST

/* @n edits, or places, with @head before them. */
static char *many(const char *head, const char *format, int n)
{
    char *text = calloc(1, 300 * (size_t)n + 200);
    strcpy(text, head);
    for (int i = 0; i < n; i++)
        sprintf(text + strlen(text), format, i);
    return text;
}

START_TEST(more_than_256_edits_or_63_places_are_refused)
{
    struct spec *spec = spec_of(PLACES);
    for (int n = EDITS_MAX; n <= EDITS_MAX + 1; n++) {
        struct spec_errors errors;
        struct edits *edits;
        char *text = many(HEAD, "- {name: e%d, site: mlp_out, do: [zero]}\n", n);
        ck_assert_int_eq(parse(text, spec, &errors, &edits), n > EDITS_MAX ? SPEC_E_INVALID : 0);
        ck_assert(n > EDITS_MAX || edits->n == EDITS_MAX);
        edits_free(edits);
        spec_errors_deinit(&errors);
        free(text);
    }
    spec_free(spec);
    for (int n = SPEC_MAX_PLACES; n <= SPEC_MAX_PLACES + 1; n++) {
        struct spec_errors errors;
        struct spec *places = NULL;
        char *text = many(
            "hookspec: 1\nsites:\n",
            "- {name: p%d, kernel: '^k%1$d$', pointer: 'arg[0]', dtype: f32, dims: [{row: true, "
            "count: 4}], write: {}, capture: none}\n",
            n);
        int rc = spec_parse("f.yaml", text, strlen(text), NULL, 0, &errors, &places);
        ck_assert_int_eq(rc, n > SPEC_MAX_PLACES ? SPEC_E_INVALID : 0);
        ck_assert(rc || places->n_places == SPEC_MAX_PLACES);
        ck_assert(!rc || strstr(errors.lines[0], "found more than 63 places for edits"));
        spec_free(places);
        spec_errors_deinit(&errors);
        free(text);
    }
}
END_TEST

/* ------------------------------------------------------------------------- what is right */

START_TEST(an_entry_with_write_is_two_sites)
{
    struct spec *spec = spec_of(PLACES);
    ck_assert_uint_eq(spec->n_sites, 5);
    ck_assert_uint_eq(spec->n_places, 2);
    static const struct {
        const char *name;
        enum spec_action action;
    } wanted[] = { { "mlp_out", SPEC_EDIT },
                   { "mlp_out", SPEC_CAPTURE },
                   { "attn_out", SPEC_CAPTURE },
                   { "attn_out", SPEC_EDIT },
                   { "q", SPEC_CAPTURE } };
    for (uint32_t i = 0; i < 5; i++) {
        ck_assert_str_eq(spec->sites[i].about.name, wanted[i].name);
        ck_assert_int_eq(spec->sites[i].action, wanted[i].action);
        ck_assert_int_eq(spec->sites[i].about.writes, wanted[i].action == SPEC_EDIT);
        ck_assert(!spec->sites[i].about.saves);
    }
    ck_assert_uint_eq(spec->sites[0].write.place, 0);
    ck_assert_uint_eq(spec->sites[3].write.place, 1);
    ck_assert_str_eq(spec->sites[0].write.reach[0], "q");
    spec_free(spec);
}
END_TEST

START_TEST(with_a_bank_it_is_three)
{
    struct spec *spec = spec_of(WITH_BANK);
    static const enum spec_action wanted[] = { SPEC_SAVE, SPEC_EDIT, SPEC_CAPTURE, SPEC_CAPTURE,
                                               SPEC_SAVE, SPEC_EDIT, SPEC_CAPTURE };
    ck_assert_uint_eq(spec->n_sites, 7);
    ck_assert_uint_eq(spec->n_places, 2);
    for (uint32_t i = 0; i < 7; i++) {
        ck_assert_int_eq(spec->sites[i].action, wanted[i]);
        ck_assert_int_eq(spec->sites[i].about.writes, wanted[i] != SPEC_CAPTURE);
        ck_assert_int_eq(spec->sites[i].about.saves, wanted[i] == SPEC_SAVE);
        ck_assert(wanted[i] == SPEC_CAPTURE || spec->sites[i].write.place == (i > 3));
    }
    spec_free(spec);
}
END_TEST

START_TEST(everything_that_edits_say_is_in_the_struct)
{
    struct spec *spec = spec_of(PLACES);
    struct edits *edits = edits_of(
        "editspec: 1\n"
        "convention: {resid: before_norm, layer_base: 0}\n"
        "vectors:\n"
        "  calm: {file: calm.safetensors, tensor: 'layers.{layer}.calm', norm: unit}\n"
        "  v: {file: /x/v.npy, norm: as_is}\n"
        "edits:\n"
        "- name: first.1\n"
        "  site: attn_out\n"
        "  layers: '0,3-7'\n"
        "  requests: 'tag:team=a*'\n"
        "  tokens: '2:-1'\n"
        "  columns: '3, 16:18'\n"
        "  cache: ignore\n"
        "  live: true\n"
        "  on_miss: abort\n"
        "  pass: 0\n"
        "  do: [{add: calm, times: 'tag:calm'}, {scale: {0: 2.0, 64: -1}}, {set: v}, {set: -0.5},\n"
        "    zero, {clamp: [-1, 1.5]}, {project_out: v, times: 2}, {to: 3, adjust_rs: v}]\n"
        "- {name: second, site: mlp_out, layers: all, requests: '*', tokens: all, heads: 2,\n"
        "   do: [{limit_along: v, between: [0, 2], times: 0.5}, keep_norm], cache: salted, "
        "on_miss: mark, pass: '61'}\n"
        "- {name: third, site: mlp_out, do: [zero]}\n",
        spec);
    ck_assert_uint_eq(edits->n, 3);
    ck_assert_uint_eq(edits->n_vectors, 2);
    ck_assert_str_eq(edits->vectors[0].tensor, "layers.{layer}.calm");
    ck_assert(edits->vectors[0].unit && !edits->vectors[1].unit);
    ck_assert_str_eq(edits->vectors[1].file, "/x/v.npy");
    const struct edit *e = &edits->list[0];
    ck_assert_str_eq(e->name, "first.1");
    ck_assert_str_eq(e->site, "attn_out");
    ck_assert(e->layers.n == 2 && e->layers.at[1].first == 3 && e->layers.at[1].last == 7);
    ck_assert_str_eq(e->who.tag, "team");
    ck_assert_str_eq(e->who.requests, "a*");
    ck_assert(e->who.tokens == SELECT_RANGE && e->who.first == 2 && e->who.end == -1);
    ck_assert(e->n_columns == 3 && e->columns[0] == 3 && e->columns[2] == 17 && !e->of_heads);
    ck_assert(e->any_cache && e->live && e->aborts && e->pass == DMI_EDIT_PASS(0));
    ck_assert_uint_eq(e->n_ops, 8);
    ck_assert(e->ops[0].kind == DMI_EDIT_ADD && e->ops[0].vector == 0 &&
              e->ops[0].times.from == EDIT_TAG && !strcmp(e->ops[0].times.tag, "calm"));
    const struct edit_coefficient *c = &e->ops[1].times;
    ck_assert(e->ops[1].kind == DMI_EDIT_SCALE && c->from == EDIT_POINTS && c->n_points == 2 &&
              c->points[1].token == 64 && c->points[1].value == -1);
    ck_assert(e->ops[2].kind == DMI_EDIT_SET && e->ops[2].vector == 1);
    ck_assert(e->ops[3].vector == EDIT_NO_VECTOR && e->ops[3].a == -0.5f);
    ck_assert(e->ops[4].kind == DMI_EDIT_ZERO && e->ops[5].a == -1 && e->ops[5].b == 1.5f);
    ck_assert(e->ops[6].kind == DMI_EDIT_PROJECT_OUT && e->ops[6].times.number == 2);
    ck_assert(e->ops[7].kind == DMI_EDIT_ADJUST && e->ops[7].a == 3);
    e = &edits->list[1];
    ck_assert(!e->layers.n && select_is_default(&e->who) && e->of_heads && e->columns[0] == 2);
    ck_assert(!e->any_cache && !e->live && !e->aborts);
    ck_assert(e->pass == DMI_EDIT_PASS(DMI_EDIT_MAX_PASS) && !edits->list[2].pass);
    ck_assert(e->ops[0].kind == DMI_EDIT_LIMIT && e->ops[0].b == 2 &&
              e->ops[0].times.number == 0.5f);
    ck_assert(e->ops[1].kind == DMI_EDIT_KEEP_NORM && e->ops[1].vector == EDIT_NO_VECTOR);
    edits_free(edits);
    spec_free(spec);
}
END_TEST

static const char *const good_texts[] = {
    "editspec: 1\nedits: []\n",
    "{\"editspec\": 1, \"edits\": [{\"name\": \"a\", \"site\": \"mlp_out\", \"do\": [\"zero\"]}]}",
    DO("{scale: 1e-3}"),
    DO("{scale: 'tag:a:b'}"),
    DO("{times: 2, add: v}"), /* in any order, as those who sort keys write it */
    DO("{between: [0, 1], limit_along: v}"),
    DO("{set: v}"),
    DO("{set: 0}"),
    DO("{clamp: [1, 1]}"),
    DO("{add: v, times: {5: 1}}"),
    ALSO("layers: '0-1021'"),
    ALSO("layers: 3"),
    ALSO("columns: 3"),
    ALSO("columns: '0:65536'"),
    ALSO("tokens: last_prompt"),
    ALSO("tokens: ':-1'"),
};

START_TEST(right_edits_are_accepted)
{
    struct spec *spec = spec_of(PLACES);
    edits_free(edits_of(good_texts[_i], spec));
    spec_free(spec);
}
END_TEST

/* ------------------------------------------------------------------------- numbers of vectors */

#define VECTORS                                                                                    \
    "editspec: 1\n"                                                                                \
    "vectors: {v: {file: v}, u: {file: u, norm: unit}, d: {file: d}}\n"                            \
    "edits:\n"                                                                                     \
    "- {name: a, site: mlp_out, layers: '0-2', do: [{add: v}, {add: u}, {project_out: d}]}\n"

START_TEST(numbers_that_no_vector_can_have_are_refused)
{
    struct spec *spec = spec_of(PLACES);
    struct edits *edits = edits_of(VECTORS, spec);
    static const float good[] = { 3, 4 }, none[] = { 0, 0 }, odd[] = { 1, 1e30f * 1e30f },
                       nan[] = { 0, 0.0f / 0.0f }, huge[] = { 3e38f, 3e38f },
                       small[] = { 1e-30f, 0 };
    ck_assert_int_eq(edits_add_numbers(edits, 0, 0, odd, 2), -EINVAL);
    ck_assert_int_eq(edits_add_numbers(edits, 0, 0, nan, 2), -EINVAL);
    ck_assert_int_eq(edits_add_numbers(edits, 0, 0, good, 0), -EINVAL);
    ck_assert_int_eq(edits_add_numbers(edits, 3, 0, good, 2), -EINVAL);
    ck_assert_int_eq(edits_add_numbers(edits, 0, -2, good, 2), -EINVAL);
    ck_assert_int_eq(edits_add_numbers(edits, 0, SPEC_MAX_PLACE_LAYER + 1, good, 2), -EINVAL);
    ck_assert_int_eq(edits_add_numbers(edits, 0, 1, none, 2), 0);
    ck_assert_int_eq(edits_add_numbers(edits, 0, 1, good, 2), -EINVAL); /* a second time */
    ck_assert_int_eq(edits_add_numbers(edits, 0, 0, good, 2), -EINVAL);
    ck_assert_int_eq(edits_add_numbers(edits, 1, EDIT_ANY_LAYER, none, 2), -EINVAL);
    ck_assert_int_eq(edits_add_numbers(edits, 1, EDIT_ANY_LAYER, small, 2), 0);
    ck_assert_int_eq(edits_add_numbers(edits, 2, 0, none, 2), -EINVAL); /* a direction */
    ck_assert_int_eq(edits_add_numbers(edits, 2, 0, huge, 2), 0);
    ck_assert_int_eq(edits_add_numbers(edits, 0, 5, good, 2),
                     -EINVAL); /* a vector that was before */
    ck_assert(edits_numbers(edits, 0, 1) && !edits_numbers(edits, 0, 0) &&
              edits_numbers(edits, 1, 17)->vector == 1);
    edits_free(edits);
    spec_free(spec);
}
END_TEST

START_TEST(a_layer_that_a_vector_lacks_is_named)
{
    struct spec *spec = spec_of(PLACES);
    struct edits *edits = edits_of(VECTORS, spec);
    struct spec_errors errors;
    static const float good[] = { 3, 4 };
    ck_assert_int_eq(edits_add_numbers(edits, 0, 0, good, 2), 0);
    ck_assert_int_eq(edits_add_numbers(edits, 0, 2, good, 2), 0);
    ck_assert_int_eq(edits_add_numbers(edits, 1, EDIT_ANY_LAYER, good, 2), 0);
    ck_assert_int_eq(edits_add_numbers(edits, 2, EDIT_ANY_LAYER, good, 2), 0);
    ck_assert_int_eq(edits_check_layers(edits, &errors), SPEC_E_INVALID);
    static const char *const parts[] = {
        "found layer 1 in \"layers\" of the edit \"a\", which the vector \"v\" lacks"
    };
    find_error(&errors, "4:1", parts, 1);
    spec_errors_deinit(&errors);
    edits_free(edits);
    spec_free(spec);
}
END_TEST

/* ------------------------------------------------------------------------- the block */

/* Vectors of two elements are those that a second division by their length would change most often. */
static struct edits *with_numbers(const struct spec *spec)
{
    struct edits *edits = edits_of(VECTORS, spec);
    static const float a[] = { 1, -2.5f, 3 }, b[] = { 7, 0, 1 };
    for (int32_t layer = 0; layer < 3; layer++)
        ck_assert_int_eq(edits_add_numbers(edits, 0, layer, layer ? a : b, 3), 0);
    for (int32_t layer = 0; layer < 3; layer++) {
        const float pair[] = { 0.3f + (float)layer, 1.7f / (float)(layer + 1) };
        ck_assert_int_eq(edits_add_numbers(edits, 1, layer, pair, 2), 0);
    }
    ck_assert_int_eq(edits_add_numbers(edits, 2, EDIT_ANY_LAYER, b, 3), 0);
    return edits;
}

START_TEST(a_block_holds_text_and_numbers)
{
    struct spec *spec = spec_of(PLACES);
    struct edits *before = with_numbers(spec), *after = NULL;
    struct edit_table first, second;
    struct spec_errors errors;
    void *block;
    size_t n;
    ck_assert_int_eq(edits_pack(before, &block, &n), 0);
    ck_assert_int_eq(edits_unpack("block", block, n, spec, &errors, &after), 0);
    ck_assert_str_eq(after->path, "block");
    ck_assert_str_eq(after->text, before->text);
    ck_assert(after->n == 1 && after->n_vectors == 3 && after->n_tensors == before->n_tensors &&
              after->n_numbers == before->n_numbers);
    ck_assert_mem_eq(after->numbers, before->numbers, after->n_numbers * sizeof *after->numbers);
    /* what the device gets is the same, too */
    ck_assert_int_eq(edit_table_build(uses_of(before), before->n, spec, &first), 0);
    ck_assert_int_eq(edit_table_build(uses_of(after), after->n, spec, &second), 0);
    ck_assert_uint_eq(first.n, second.n);
    ck_assert_mem_eq(first.bytes, second.bytes, first.n);
    edit_table_deinit(&first);
    edit_table_deinit(&second);
    free(block);
    edits_free(before);
    edits_free(after);
    spec_free(spec);
}
END_TEST

/* Reads a copy that ends where it ends. Return: as edits_unpack(). */
static int unpack(const struct spec *spec, const void *block, size_t n)
{
    char *own = malloc(n ? n : 1);
    struct edits *edits = NULL;
    struct spec_errors errors = { 0 };
    memcpy(own, block, n);
    int rc = edits_unpack("block", own, n, spec, &errors, &edits);
    ck_assert((rc == 0) == (edits != NULL) && (rc == SPEC_E_INVALID) == (errors.n_lines > 0));
    edits_free(edits);
    spec_errors_deinit(&errors);
    free(own);
    return rc;
}

START_TEST(a_block_that_ends_early_is_none)
{
    struct spec *spec = spec_of(PLACES);
    struct edits *edits = with_numbers(spec);
    char *block;
    size_t n;
    ck_assert_int_eq(edits_pack(edits, (void **)&block, &n), 0);
    for (size_t k = 0; k < n; k++)
        ck_assert_int_eq(unpack(spec, block, k), SPEC_E_INVALID);
    ck_assert_int_eq(unpack(spec, block, n), 0);
    free(block);
    edits_free(edits);
    spec_free(spec);
}
END_TEST

START_TEST(a_block_with_a_bit_changed_harms_nobody)
{
    struct spec *spec = spec_of(PLACES);
    struct edits *edits = with_numbers(spec);
    char *block;
    size_t n, refused = 0;
    ck_assert_int_eq(edits_pack(edits, (void **)&block, &n), 0);
    for (size_t bit = 0; bit < 8 * n; bit++) {
        block[bit / 8] ^= (char)(1 << bit % 8);
        refused += unpack(spec, block, n) != 0;
        block[bit / 8] ^= (char)(1 << bit % 8);
    }
    ck_assert_msg(refused > 2 * n, "%zu of %zu", refused, 8 * n); /* all of the head, at least */
    free(block);
    edits_free(edits);
    spec_free(spec);
}
END_TEST

/* Tensors that share numbers would ask for more memory than the file has. */
START_TEST(a_block_gives_each_tensor_numbers_of_its_own)
{
    struct spec *spec = spec_of(PLACES);
    struct edits *edits = with_numbers(spec);
    char *block;
    size_t n;
    edits->tensors[1].first = edits->tensors[0].first;
    ck_assert_int_eq(edits_pack(edits, (void **)&block, &n), 0);
    ck_assert_int_eq(unpack(spec, block, n), SPEC_E_INVALID);
    free(block);
    edits_free(edits);
    spec_free(spec);
}
END_TEST

int main(void)
{
#define ROWS(table) (int)(sizeof(table) / sizeof *(table))
    Suite *suite = suite_create("policy/edit");
    TCase *tc = tcase_create("edit");
    tcase_add_loop_test(tc, error_has_its_place_and_says_what_was_expected, 0, ROWS(error_rows));
    tcase_add_loop_test(tc, error_of_rows_of_a_bank, 0, ROWS(bank_rows));
    tcase_add_test(tc, rows_of_a_bank_are_in_the_struct);
    tcase_add_test(tc, with_a_bank_it_is_three);
    tcase_add_loop_test(tc, error_of_a_place_has_its_place, 0, ROWS(place_rows));
    tcase_add_test(tc, a_hookspec_without_places_has_none_for_edits);
    tcase_add_test(tc, more_than_256_edits_or_63_places_are_refused);
    tcase_add_test(tc, an_entry_with_write_is_two_sites);
    tcase_add_test(tc, everything_that_edits_say_is_in_the_struct);
    tcase_add_loop_test(tc, right_edits_are_accepted, 0, ROWS(good_texts));
    tcase_add_test(tc, numbers_that_no_vector_can_have_are_refused);
    tcase_add_test(tc, a_layer_that_a_vector_lacks_is_named);
    tcase_add_test(tc, a_block_holds_text_and_numbers);
    tcase_add_test(tc, a_block_that_ends_early_is_none);
    tcase_add_test(tc, a_block_with_a_bit_changed_harms_nobody);
    tcase_add_test(tc, a_block_gives_each_tensor_numbers_of_its_own);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? 1 : 0;
}
