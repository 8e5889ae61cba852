/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/spec.h"
#include "policy/tap_names.h"

#include <dmi/dtype.h>

#include <check.h>
#include <errno.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Lines 1 and 2, and a site of five lines (its keys in column 3) that is right. */
#define HEAD    "hookspec: 1\nsites:\n"
#define REST    "  pointer: arg[0]\n  dtype: f32\n  dims: [{row: true, count: 4}]\n"
#define SITE    "- name: q\n  kernel: k\n" REST
#define GOOD    HEAD SITE /* lines 1 to 7 */
#define FORWARD "forward: [{kind: a, begin: {kernel: ka}}, {kind: b, begin: step}]\n"

static int parse(const char *text, struct spec_errors *errors, struct spec **spec)
{
    *spec = NULL;
    return spec_parse("f.yaml", text, strlen(text), NULL, 0, errors, spec);
}

/* Another entry of the name. */
#define TYPED(kernel, type)                                                                        \
    "- name: q\n  kernel: " kernel "\n  pointer: arg[0]\n  dtype: " type                           \
    "\n  dims: [{row: true, count: 4}]\n"
#define WIDE(kernel, width, more)                                                                  \
    "- name: q\n  kernel: " kernel                                                                 \
    "\n  pointer: arg[0]\n  dtype: f32\n  dims: [{row: true, count: 4}, {count: " width            \
    "}]\n" more
#define LOW  "  occurrences: {to: 4}\n"
#define HIGH "  occurrences: {from: 5}\n"

/* Each text has one error, and that at this place. */
static const struct {
    const char *text;
    const char *place; /* "" for the file, not a place in it */
    const char *parts[3];
} error_rows[] = {
    /* --- YAML itself */
    { "", "1:1", { "empty file", "expected \"hookspec: 1\"" } },
    { "# nothing\n", "1:1", { "empty file" } },
    { "hookspec: 1\nsites: [\n", "3:1", { "not YAML", "node content" } },
    { "hookspec: 1\n\tsites: 1\n", "2:1", { "not YAML" } },
    { "hookspec: 'a\n", "2:1", { "not YAML", "quoted scalar" } },
    { "hookspec: 1\nname: \xff\xfe\n", "2:7", { "not YAML", "UTF-8" } },
    { "hookspec: 1\nname: a\x01z\n", "2:8", { "not YAML" } },
    { GOOD "name: \"a\\0b\"\n", "8:7", { "NUL" } },
    { GOOD "name: &x q\n", "8:7", { "anchor \"&x\"", "no anchors" } },
    { GOOD "name: *x\n", "8:7", { "alias \"*x\"" } },
    { GOOD "name: !!str q\n", "8:7", { "tag" } },
    { GOOD "---\nhookspec: 1\n", "8:1", { "second document" } },
    { "[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]", "1:17", { "levels of nesting" } },
    { "- 1\n", "1:1", { "found a list", "a HookSpec", "hookspec, name" } },
    { "hookspec\n", "1:1", { "found \"hookspec\"", "mapping" } },
    /* --- version */
    { "sites:\n" SITE, "1:1", { "no \"hookspec\" in a HookSpec" } },
    { "sites:\n" SITE "hookspec: 1\n", "7:1", { "after other keys", "first" } },
    { "hookspec: 2\nsitez: 3\n", "1:11", { "version \"2\"", "expected 1" } },
    { "hookspec: one\nsites: 3\n", "1:11", { "version \"one\"" } },
    { "hookspec:\nsites: 3\n", "1:10", { "version nothing" } },
    /* --- keys */
    { GOOD "site: 3\n",
      "8:1",
      { "unknown key \"site\" in a HookSpec", "expected hookspec, name, model",
        "did you mean \"sites\"?" } },
    { GOOD "zzz: 3\n", "8:1", { "unknown key \"zzz\" in a HookSpec" } },
    { GOOD "<<: 3\n", "8:1", { "unknown key \"<<\"" } },
    { GOOD "? [a]\n: 3\n", "8:3", { "found a list as a key" } },
    { GOOD "name: a\nname: b\n", "9:1", { "\"name\" a second time", "first at 8:1" } },
    { "hookspec: 1\n", "1:1", { "no \"sites\"" } },
    { "hookspec: 1\nsites: []\n", "2:8", { "found no site" } },
    { "hookspec: 1\nsites: 3\n", "2:8", { "found \"3\"", "a list of sites" } },
    { "hookspec: 1\nsites:\n", "2:7", { "found nothing", "a list of sites" } },
    { HEAD "- 3\n", "3:3", { "found \"3\"", "a site", "name, forward, kernel" } },
    { GOOD "name:\n", "8:6", { "found nothing", "a text" } },
    { GOOD "name: [1]\n", "8:7", { "found a list" } },
    { GOOD "model: ''\n", "8:8", { "expected a text" } },
    /* --- vars */
    { GOOD "vars: 3\n", "8:7", { "mapping of names to integers" } },
    { GOOD "vars: {a: b}\n", "8:11", { "found \"b\"", "integer of 64 bits" } },
    { GOOD "vars: {a: 1.5}\n", "8:11", { "integer of 64 bits" } },
    { GOOD "vars: {a: 9223372036854775808}\n", "8:11", { "integer of 64 bits" } },
    { GOOD "vars: {a: [1]}\n", "8:11", { "found a list" } },
    { GOOD "vars: {1a: 1}\n", "8:8", { "\"1a\" as a variable's name" } },
    { GOOD "vars: {a-b: 1}\n", "8:8", { "as a variable's name" } },
    { GOOD "vars: {occ: 1}\n", "8:8", { "\"occ\"", "means something" } },
    { GOOD "vars: {a: 1, a: 2}\n", "8:14", { "\"a\" a second time" } },
    /* --- convention */
    { GOOD "convention: [a]\n", "8:13", { "mapping of words to texts" } },
    { GOOD "convention: {layer_base: one}\n", "8:26", { "integer from 0" } },
    { GOOD "convention: {a: 1, a: 2}\n", "8:20", { "second time" } },
    { GOOD "convention: {a: [1]}\n", "8:17", { "found a list" } },
    { GOOD "convention: {'a b': 1}\n", "8:16", { "found ' ' in a name" } },
    /* --- ring, overload */
    { GOOD "ring: {byte: 1M}\n",
      "8:8",
      { "unknown key \"byte\" in ring", "did you mean \"bytes\"?" } },
    { GOOD "ring: {bytes: 1X}\n", "8:15", { "found \"1X\"", "K, M or G" } },
    { GOOD "ring: {bytes: -1M}\n", "8:15", { "found \"-1M\"" } },
    { GOOD "ring: {bytes: 1K}\n", "8:15", { "from 4096" } },
    { GOOD "ring: {bytes: 9999999999G}\n", "8:15", { "found \"9999999999G\"" } },
    { GOOD "ring: {bytes: 4100}\n", "8:15", { "multiple of 16" } },
    { GOOD "ring: {slots: 100}\n", "8:15", { "power of two" } },
    { GOOD "ring: {slots: 1}\n", "8:15", { "from 2 to" } },
    { GOOD "overload: {}\n", "8:11", { "no \"mode\" in overload" } },
    { GOOD "overload: {mode: dorp}\n",
      "8:18",
      { "found \"dorp\"; expected one of drop, best-effort, complete", "did you mean \"drop\"?" } },
    { GOOD "overload: {mode: drop, wait_ms: -1}\n", "8:33", { "integer from 0 to 60000" } },
    { GOOD "overload: {mode: complete, fallback: complete}\n",
      "8:38",
      { "expected one of drop, best-effort" } },
    { GOOD "overload: {mode: drop, strategy: samples}\n",
      "8:34",
      { "drop-recent, keep-by-pattern, sample", "did you mean \"sample\"?" } },
    { GOOD "overload: {mode: drop, strategy: sample}\n", "8:11", { "without \"share\"" } },
    { GOOD "overload: {mode: drop, share: 0.5}\n", "8:11", { "without strategy: sample" } },
    { GOOD "overload: {mode: drop, strategy: sample, share: 1.5}\n",
      "8:49",
      { "above 0 and at most 1" } },
    { GOOD "overload: {mode: drop, strategy: sample, share: half}\n",
      "8:49",
      { "decimal number" } },
    { GOOD "overload: {mode: best-effort, strategy: keep-by-pattern}\n",
      "8:11",
      { "without \"keep\"" } },
    { GOOD "overload: {mode: best-effort, keep: ['a*']}\n",
      "8:11",
      { "without strategy: keep-by-pattern" } },
    { GOOD "overload: {mode: best-effort, strategy: keep-by-pattern, keep: 'a*'}\n",
      "8:64",
      { "patterns of requests" } },
    { GOOD "overload: {mode: best-effort, strategy: keep-by-pattern, keep: ['tag:a']}\n",
      "8:65",
      { "tag without key or pattern" } },
    { GOOD "overload: {mode: drop, budget: 1M}\n", "8:32", { "found \"1M\"" } },
    { GOOD "overload: {mode: drop, budget: {proces: 1M}}\n",
      "8:33",
      { "unknown key \"proces\" in a budget", "did you mean \"process\"?" } },
    { GOOD "overload: {mode: drop, budget: {process: 0}}\n", "8:42", { "from 1 to" } },
    { GOOD "overload: {mode: drop, budget: {sites: 1M}}\n",
      "8:40",
      { "patterns of sites' names" } },
    { GOOD "overload: {mode: drop, budget: {sites: {no_such: 1M}}}\n",
      "8:41",
      { "found \"no_such\"", "name of a site" } },
    /* --- forward */
    { GOOD "forward: {kind: a, begin: step}\n", "8:10", { "found a mapping", "a list of" } },
    { GOOD "forward: [{kind: a}]\n", "8:11", { "no \"begin\"" } },
    { GOOD "forward: [{begin: step}]\n", "8:11", { "no \"kind\"" } },
    { GOOD "forward: [{kind: a, begin: steps}]\n",
      "8:28",
      { "found \"steps\"; expected step or" } },
    { GOOD "forward: [{kind: a, begin: {kernal: k}}]\n",
      "8:29",
      { "unknown key \"kernal\" in begin", "did you mean \"kernel\"?" } },
    { GOOD "forward: [{kind: a, begin: {kernel: '('}}]\n", "8:38", { "Unmatched (" } },
    { GOOD "forward: [{kind: a, begin: {kernel: k}}, {kind: a, begin: step}]\n",
      "8:49",
      { "kind \"a\" a second time" } },
    { GOOD "forward: [{kind: a, begin: step}, {kind: b, begin: step}]\n",
      "8:52",
      { "second forward that begins with a step" } },
    { GOOD "forward: [{kind: a, begin: {kernel: k}}, {kind: b, begin: {kernel: k}}]\n",
      "8:68",
      { "pattern that begins \"a\" again" } },
    /* --- taps */
    { HEAD "- {tap: 'resd_pre*'}\n",
      "3:9",
      { "found \"resd_pre*\"", "did you mean \"resid_pre\"?" } },
    { HEAD "- {tap: 'a b'}\n", "3:9", { "found \"a b\"", "a tap's name" } },
    { HEAD "- {tap: q, kernel: k}\n", "3:12", { "unknown key \"kernel\" in a tap" } },
    { HEAD "- {tap: 'resid_*', name: x}\n", "3:26", { "a pattern of 4 taps" } },
    { HEAD "- {tap: q, layers: '1,x'}\n", "3:23", { "found no layer", "last-N" } },
    { HEAD "- {tap: q, layers: '3-2'}\n", "3:21", { "found no layer" } },
    { HEAD "- {tap: q, layers: 'last-32'}\n", "3:21", { "found no layer" } },
    { HEAD "- {tap: q, layers: '1,'}\n", "3:23", { "found no layer" } },
    { HEAD "- {tap: q}\n- {tap: q}\n", "4:3", { "site \"q\" again for the same tap" } },
    { HEAD "- {tap: q, layers: 0-4}\n- {tap: q, layers: '4'}\n",
      "4:3",
      { "again for the same tap" } },
    /* --- sites */
    { HEAD "- name: q\n" REST, "3:3", { "no \"kernel\" in a site" } },
    { HEAD "- kernel: k\n" REST, "3:3", { "no \"name\" in a site" } },
    { HEAD "- name: a b\n  kernel: k\n" REST, "3:10", { "found ' ' in a name" } },
    { HEAD "- name: \"a\\u00e4\"\n  kernel: k\n" REST, "3:9", { "at character 2", "byte 0xc3" } },
    { HEAD "- name: 'a/b'\n  kernel: k\n" REST, "3:11", { "found '/' in a name" } },
    { HEAD "- name: 'a{layer}{layer}'\n  kernel: k\n" REST "  layer: 0\n",
      "3:18",
      { "found '{'" } },
    { HEAD "- name: 'a{layer}'\n  kernel: k\n" REST, "3:9", { "without \"layer\"" } },
    { HEAD "- name: q\n  kernal: k\n" REST,
      "4:3",
      { "unknown key \"kernal\" in a site", "did you mean \"kernel\"?" } },
    { HEAD "- name: q\n  kernel: 'a[b'\n" REST, "4:12", { "a[b", "Unmatched [" } },
    { HEAD "- name: q\n  kernel: 'a\\1'\n" REST, "4:13", { "back reference \"\\1\"" } },
    { HEAD "- name: q\n  kernel: '\xc3\xa4\\1'\n" REST, "4:13", { "back reference" } },
    { HEAD "- name: q\n  kernel: '(a{99}){99}'\n" REST, "4:19", { "repetitions" } },
    { HEAD "- name: q\n  kernel: 'a+++++++++++++'\n" REST, "4:25", { "repetitions" } },
    { HEAD "- name: q\n  kernel: '(a{99})*{99}'\n" REST, "4:20", { "repetitions" } },
    { HEAD "- name: q\n  kernel: '(((a{9,}){9,}){9,}){9,}'\n" REST, "4:31", { "repetitions" } },
    { HEAD "- name: q\n  kernel: '(((((((((((((((((a)))))))))))))))))'\n" REST,
      "4:28",
      { "nested parentheses" } },
    { HEAD "- name: q\n  kernel: ''\n" REST, "4:11", { "regular expression" } },
    { HEAD "- name: q\n  kernel: [k]\n" REST, "4:11", { "found a list" } },
    { GOOD "  forward: a\n", "8:12", { "no forward: section" } },
    { GOOD "  forward: aa\n" FORWARD,
      "8:12",
      { "found \"aa\"; expected one of a, b", "did you mean \"a\"?" } },
    { GOOD "  when: befor\n", "8:9", { "one of after, before", "did you mean \"before\"?" } },
    { GOOD "  action: steer\n", "8:11", { "found \"steer\"; expected one of capture" } },
    { GOOD "  action: captur\n", "8:11", { "did you mean \"capture\"?" } },
    { GOOD "  action: [capture]\n", "8:11", { "found a list; expected one of capture" } },
    { GOOD "  row: tokn\n", "8:8", { "did you mean \"token\"?" } },
    { GOOD "  tokens: lst\n",
      "8:11",
      { "found \"lst\"; expected prompt, generated, last, last_prompt, a position, 'A:B' or " } },
    { GOOD "  tokens: '7:3'\n", "8:11", { "'prompt[A:B]', positions of which B, above A" } },
    { GOOD "  tokens: '-:3'\n", "8:11", { "expected prompt" } },
    { GOOD "  tokens: '-1:-3'\n", "8:11", { "expected prompt" } },
    { GOOD "  tokens: '-2:0'\n", "8:11", { "expected prompt" } },
    { GOOD "  tokens: [1, 2]\n", "8:11", { "expected prompt" } },
    { GOOD "  requests: 'tag:=x'\n", "8:13", { "expected 'tag:KEY=PATTERN'" } },
    { GOOD "  requests: 'tag:capture'\n", "8:13", { "a tag without key or pattern" } },
    { GOOD "  requests: ''\n", "8:13", { "expected a text" } },
    { GOOD "  row: none\n  tokens: last\n", "3:3", { "expected row: token or row: request" } },
    { GOOD "  steps: {of: engine}\n", "8:10", { "\"every\"" } },
    { GOOD "  steps: {every: 0}\n", "8:18", { "expected an integer from 1" } },
    { GOOD "  steps: {every: 2, of: batch}\n", "8:25", { "expected one of forward, engine" } },
    { GOOD "  scale: big\n", "8:10", { "found \"big\"", "not 0" } },
    { GOOD "  scale: 0\n", "8:10", { "not 0" } },
    { GOOD "  scale: 1e999\n", "8:10", { "finite" } },
    { GOOD "  scale: nan\n", "8:10", { "finite" } },
    { GOOD "  scale: 0x10\n", "8:10", { "decimal" } },
    { GOOD "  offset: 4 *\n", "8:14", { "found the end" } },
    { GOOD "  offset: '4 + x'\n", "8:16", { "found \"x\"; expected a variable" } },
    { GOOD "  offset: >\n    4 +\n    x\n",
      "8:11",
      { "at character 5 of the text", "found \"x\"" } },
    { GOOD "  offset: \"4 +\\x20 x\"\n", "8:11", { "at character 6 of the text" } },
    { GOOD "  offset: [4]\n", "8:11", { "found a list; expected an expression" } },
    { GOOD "  occurrences: 3\n" FORWARD, "8:16", { "found \"3\"", "expect, from, to" } },
    { GOOD "  occurrences: {expect: 0}\n" FORWARD, "8:25", { "integer from 1" } },
    { GOOD "  occurrences: {expect: 3, from: 3}\n" FORWARD, "8:34", { "integer from 0 to 2" } },
    { GOOD "  occurrences: {expect: 3, to: 3}\n" FORWARD, "8:32", { "integer from 0 to 2" } },
    { GOOD "  occurrences: {from: 3, to: 2}\n" FORWARD, "8:30", { "\"to\" below \"from\"" } },
    { GOOD "  occurrences: {every: 0}\n" FORWARD, "8:24", { "integer from 1" } },
    { GOOD "  occurrences: {expect: 6, from: 1, every: 2}\n" SITE
           "  occurrences: {from: 2, every: 3}\n" FORWARD,
      "9:3",
      { "site \"q\" again" } },
    { GOOD "  layer: grid.x\n" FORWARD, "8:10", { "depends on the launch" } },
    { GOOD "  layer: -1\n", "8:10", { "found layer -1 for occurrence 0" } },
    { GOOD "  occurrences: {expect: 4}\n  layer: occ / 2\n" FORWARD,
      "9:10",
      { "found layer 0 for several occurrences" } },
    { GOOD "  occurrences: {expect: 4}\n  layer: 8 / (occ - 2)\n" FORWARD,
      "9:10",
      { "found layer -4 for occurrence 0" } },
    { GOOD "  occurrences: {expect: 4, from: 2}\n  layer: 8 / (occ - 2)\n" FORWARD,
      "9:10",
      { "no layer for occurrence 2: division by zero" } },
    { GOOD SITE, "8:3", { "site \"q\" again", "line 3" } },
    { GOOD SITE "  forward: b\n" FORWARD, "8:3", { "site \"q\" again" } },
    /* --- dtype, pointer */
    { HEAD
      "- name: q\n  kernel: k\n  pointer: arg[0]\n  dtype: f31\n  dims: [{row: true, count: 4}]\n",
      "6:10",
      { "found \"f31\"; expected one of f32, f16", "did you mean \"f32\"?" } },
    { HEAD "- name: q\n  kernel: k\n  pointer: arg[0]\n  dtype: bfloat16\n"
           "  dims: [{row: true, count: 4}]\n",
      "6:10",
      { "did you mean \"bf16\"?" } },
    { HEAD "- name: q\n  kernel: k\n  pointer: arg[0]\n  dtype: Float32\n"
           "  dims: [{row: true, count: 4}]\n",
      "6:10",
      { "did you mean \"f32\"?" } },
    { HEAD
      "- name: q\n  kernel: k\n  pointer: ar[0]\n  dtype: f32\n  dims: [{row: true, count: 4}]\n",
      "5:12",
      { "found \"ar\"", "did you mean \"arg\"?" } },
    { HEAD "- name: q\n  kernel: k\n  pointer: 'arg[0] + 8'\n  dtype: f32\n"
           "  dims: [{row: true, count: 4}]\n",
      "5:20",
      { "found \"+\"", "offset:" } },
#define DIMS(text)                                                                                 \
    HEAD "- name: q\n  kernel: k\n  pointer: arg[0]\n  dtype: f32\n  dims: " text "\n"
    { DIMS("4"), "7:9", { "a list of one to four" } },
    { DIMS("[]"), "7:9", { "found no dimension" } },
    { DIMS("[4]"), "7:10", { "found \"4\"", "a dimension", "row, count, stride" } },
    { DIMS("[{count: 4}]"), "7:9", { "no dimension with row: true" } },
    { DIMS("[{row: true, count: 4}, {row: true, count: 4}, {row: true, count: 4}]"),
      "7:56",
      { "third dimension with row" } },
    { DIMS("[{row: yes, count: 4}]"), "7:16", { "found \"yes\"; expected true or false" } },
    { DIMS("[{row: true}]"), "7:10", { "no \"count\"" } },
    { DIMS("[{row: true, count: 0}]"), "7:29", { "found the value 0; expected 1 to" } },
    { DIMS("[{row: true, count: 4294967296}]"), "7:29", { "expected 1 to 4294967295" } },
    { DIMS("[{row: true, count: 4, stride: -4}]"), "7:40", { "found the value -4" } },
    { DIMS("[{row: true, count: 4, strid: 4}]"), "7:32", { "did you mean \"stride\"?" } },
    { DIMS("[{row: true, count: 4, slots: 4}]"), "7:39", { "found", "slots" } },
    { DIMS("[{row: true, count: 4, slots: {pointer: 'arg[1]'}}]"), "7:39", { "no \"dtype\"" } },
    { DIMS("[{row: true, count: 4, slots: {pointer: 'arg[1]', dtype: f32}}]"),
      "7:66",
      { "found f32; expected i32 or i64" } },
    { DIMS("[{row: true, count: 4, slots: {pointer: 'arg[1]', dtype: i64, block: 16}}]"),
      "7:39",
      { "found \"block\" alone" } },
    { DIMS("[{row: true, count: 4, slots: {pointer: 'arg[1]', dtype: i64, block: 0}}]"),
      "7:78",
      { "found the value 0" } },
    { DIMS("[{row: true, count: 4}, {count: 4, slots: {pointer: 'arg[1]', dtype: i64}}]"),
      "7:51",
      { "found slots of another dimension than the rows" } },
    { DIMS("[{row: true, count: 4}, {row: true, count: 4, slots: {pointer: 'arg[1]', dtype: "
           "i64}}]"),
      "7:62",
      { "found slots of another dimension than the rows" } },
    { DIMS("[{count: 4}, {row: true, count: 4, slots: {pointer: 'arg[1]', dtype: i64}}]"),
      "7:10",
      { "no \"stride\", though the rows at 7:22 lie in any slots" } },
    { DIMS("[{row: true, count: 4}, {count: 2, stride: 999}]"),
      "7:10",
      { "no \"stride\", though the stride at 7:52" } },
    { DIMS("[{row: true, count: 4294967295}, {count: 4294967295}, {count: 4}]"),
      "7:10",
      { "do not fit in 64 bits" } },
    { DIMS("[{row: true, count: 1}, {count: 1}, {count: 1}, {count: 1}, {count: 1}]"),
      "7:9",
      { "found 5 entries; expected at most 4" } },
/* --- shard */
#define SHARD(text) DIMS("[{row: true, count: 4}, {count: 2}]\n  shard: " text)
    { GOOD "  shard: {dim: 1, of: tp}\n",
      "8:16",
      { "found a site with rows alone", "rows are not joined" } },
    { SHARD("{dim: 0, of: tp}"), "8:16", { "found \"0\"; expected an integer from 1 to 1" } },
    { SHARD("{dim: 2, of: tp}"), "8:16", { "found \"2\"; expected an integer from 1 to 1" } },
    { SHARD("{dim: 1}"), "8:10", { "found neither \"dim: N, of: AXIS\" nor \"sum: AXIS\"" } },
    { SHARD("{of: tp}"), "8:10", { "expected one of the two" } },
    { SHARD("{}"), "8:10", { "expected one of the two" } },
    { SHARD("{dim: 1, of: tpp}"), "8:23", { "one of tp, pp, dp, ep", "did you mean \"tp\"?" } },
    { SHARD("{sum: t}"), "8:16", { "one of tp, pp, dp, ep" } },
    { SHARD("{dim: 1, of: tp, sum: tp}"), "8:32", { "found \"sum\" beside \"dim\"" } },
    { SHARD("{sum: tp, of: tp}"), "8:10", { "expected one of the two" } },
    { SHARD("{dims: 1, of: tp}"), "8:11", { "did you mean \"dim\"?" } },
    { SHARD("tp"), "8:10", { "found \"tp\"" } },
    { SHARD("{dim: 1, of: tp, parts: 2}"), "8:34", { "found neither \"equal\" nor a list" } },
    { SHARD("{dim: 1, of: tp, parts: [2]}"), "8:34", { "the part of each rank, as [2, 1]" } },
    { SHARD("{dim: 1, of: tp, parts: [2, 0]}"), "8:38", { "an integer from 1 to 1048576" } },
    { SHARD("{sum: tp, parts: equal}"), "8:10", { "found \"parts\" without \"dim\"" } },
    /* --- entries of one name that no reader can make one tensor of */
    { GOOD LOW TYPED("k", "f16") HIGH,
      "9:3",
      { "\"q\" with dtype f16, and with dtype f32 at line 3", "no reader" } },
    { GOOD "  layer: occ\n" TYPED("k", "f16") "  layer: 2 * occ\n",
      "9:3",
      { "with dtype f16, and with dtype f32 at line 3" } },
    { GOOD "  forward: a\n" TYPED("k", "i32") "  forward: b\n" FORWARD,
      "9:3",
      { "with dtype i32, and with dtype f32 at line 3" } },
    { HEAD WIDE("k", "64", LOW) WIDE("k", "128", HIGH),
      "9:3",
      { "with rows of 128 elements, and with rows of 64 elements at line 3", "no reader" } },
    { HEAD WIDE("k", "64", "  shard: {dim: 1, of: tp}\n" LOW)
          WIDE("k", "128", "  shard: {dim: 1, of: tp}\n" HIGH),
      "10:3",
      { "with rows of 128 elements, and with rows of 64 elements at line 3" } },
    /* --- absent */
    { GOOD "absent: {a: b}\n", "8:9", { "a list of {name: NAME, why: TEXT}" } },
    { GOOD "absent: [{name: a}]\n", "8:10", { "no \"why\"" } },
    { GOOD "absent: [{name: q, why: it}]\n", "8:17", { "listed as absent", "line 3" } },
    { GOOD "absent: [{name: a, why: it, forward: c}]\n" FORWARD, "8:38", { "one of a, b" } },
};

START_TEST(error_has_its_place_and_says_what_was_expected)
{
    const char *text = error_rows[_i].text;
    struct spec_errors errors;
    struct spec *spec;
    ck_assert_int_eq(parse(text, &errors, &spec), SPEC_E_INVALID);
    ck_assert_ptr_null(spec);
    ck_assert_uint_ge(errors.n_lines, 1);
    char place[64];
    snprintf(place, sizeof place, "f.yaml:%s: ", error_rows[_i].place);
    ck_assert_msg(!strncmp(errors.lines[0], place, strlen(place)), "%s\n-> %s, expected at %s",
                  text, errors.lines[0], place);
    for (size_t i = 0; i < 3 && error_rows[_i].parts[i]; i++)
        ck_assert_msg(strstr(errors.lines[0], error_rows[_i].parts[i]), "%s\n-> %s lacks \"%s\"",
                      text, errors.lines[0], error_rows[_i].parts[i]);
    spec_errors_deinit(&errors);
}
END_TEST

/* No consequential errors: what was misspelt is not also missed, and so on. */
START_TEST(one_mistake_makes_one_line)
{
    const char *text = error_rows[_i].text;
    struct spec_errors errors;
    struct spec *spec;
    parse(text, &errors, &spec);
    ck_assert_msg(errors.n_lines == 1, "%s\n-> %s\n-> %s", text, errors.lines[0],
                  errors.n_lines > 1 ? errors.lines[1] : "");
    spec_errors_deinit(&errors);
}
END_TEST

static const char whole[] =
    "hookspec: 1\n"
    "name: tinygrad-smollm2\n"
    "model: SmolLM2-135M-Instruct\n"
    "vars: {max_context: 512, width: 0x40}\n"
    "convention: {layer_base: 0, resid: before the norm}\n"
    "ring: {bytes: 64M, slots: 8K}\n"
    "overload: {mode: complete, wait_ms: 250, fallback: best-effort, strategy: "
    "keep-by-pattern, keep: ['vip-*', 'tag:tier=gold'], budget: {process: 100M, "
    "sites: {'h.*': 2K}}}\n"
    "forward:\n"
    "  - {kind: decode, begin: {kernel: '^r_576_16_16$'}}\n"
    "  - {kind: prefill, begin: step}\n"
    "sites:\n"
    "  - name: 'h.{layer}.q'\n"
    "    forward: prefill\n"
    "    kernel: '^r_9_2$'\n"
    "    pointer: arg[2][24]\n"
    "    offset: arg[5].i32 * 256\n"
    "    dtype: bf16\n"
    "    dims:\n"
    "      - {count: 9}\n"
    "      - {row: true, count: 'arg[3].i32'}\n"
    "      - {count: width}\n"
    "    occurrences: {expect: 30, from: 1, to: 28}\n"
    "    layer: occ - 1\n"
    "    when: before\n"
    "    action: capture\n"
    "    row: request\n"
    "    scale: 1e12\n"
    "    note: divided\n"
    "  - name: x\n"
    "    kernel: y\n"
    "    pointer: param[16]\n"
    "    dtype: i64\n"
    "    dims: [{row: true, count: 1}]\n"
    "absent:\n"
    "  - {name: attn_out, why: fused}\n"
    "  - {name: x2, why: fused too, forward: decode}\n";

static int64_t value_of(const struct expr *e)
{
    static const uint32_t three[3] = { 1, 1, 1 };
    struct expr_env env = { .grid = three, .block = three, .occ = 5 };
    int64_t v = -1;
    ck_assert_int_eq(expr_eval(e, &env, &v), 0);
    return v;
}

/* arg[3].i32 is 7 */
static int seven(void *ctx, struct expr_ref ref, void *dst, size_t n)
{
    (void)ctx;
    int32_t v = 7;
    if (ref.arg != 3 || n != sizeof v)
        return -1;
    memcpy(dst, &v, n);
    return 0;
}

START_TEST(everything_that_a_spec_says_is_in_the_struct)
{
    struct spec_errors errors;
    struct spec *s;
    int rc = parse(whole, &errors, &s);
    ck_assert_msg(rc == 0, "%s", errors.n_lines ? errors.lines[0] : "?");
    ck_assert_uint_eq(errors.n_lines, 0);
    ck_assert_str_eq(s->path, "f.yaml");
    ck_assert_str_eq(s->text, whole);
    ck_assert_uint_eq(s->n_text, strlen(whole));
    ck_assert_str_eq(s->name, "tinygrad-smollm2");
    ck_assert_str_eq(s->model, "SmolLM2-135M-Instruct");
    ck_assert_uint_eq(s->n_vars, 2);
    ck_assert_str_eq(s->vars[1].key, "width");
    ck_assert_str_eq(s->vars[1].value, "64");
    ck_assert_uint_eq(s->n_conventions, 2);
    ck_assert_str_eq(s->conventions[1].key, "resid");
    ck_assert_str_eq(s->conventions[1].value, "before the norm");
    ck_assert_uint_eq(s->ring_bytes, 64 << 20);
    ck_assert_uint_eq(s->ring_slots, 8192);
    ck_assert_int_eq(s->overload.mode, OVERLOAD_COMPLETE);
    ck_assert_uint_eq(s->overload.wait_ns, 250000000);
    ck_assert_int_eq(s->overload.fallback, OVERLOAD_BEST_EFFORT);
    ck_assert_int_eq(s->overload.strategy, OVERLOAD_KEEP_BY_PATTERN);
    ck_assert_uint_eq(s->overload.n_keep, 2);
    ck_assert_str_eq(s->overload.keep[0].requests, "vip-*");
    ck_assert_str_eq(s->overload.keep[1].tag, "tier");
    ck_assert_uint_eq(s->overload.n_budgets, 2);
    ck_assert_ptr_null(s->overload.budgets[0].sites);
    ck_assert_uint_eq(s->overload.budgets[0].bytes_per_s, 100 << 20);
    ck_assert_str_eq(s->overload.budgets[1].sites, "h.*");
    ck_assert_uint_eq(s->overload.budgets[1].bytes_per_s, 2048);
    ck_assert_uint_eq(overload_budgets_of(&s->overload, 0), 3);
    ck_assert_uint_eq(overload_budgets_of(&s->overload, 1), 1);
    ck_assert_uint_eq(s->n_kinds, 2);
    ck_assert_str_eq(s->kinds[0].name, "decode");
    ck_assert_str_eq(s->kinds[0].kernel, "^r_576_16_16$");
    ck_assert_str_eq(s->kinds[1].name, "prefill");
    ck_assert_ptr_null(s->kinds[1].kernel);
    ck_assert_uint_eq(s->n_absent, 2);
    ck_assert_str_eq(s->absent[0].name, "attn_out");
    ck_assert_str_eq(s->absent[0].why, "fused");
    ck_assert_int_eq(s->absent[0].kind, -1);
    ck_assert_int_eq(s->absent[1].kind, 0);

    ck_assert_uint_eq(s->n_sites, 2);
    const struct spec_site *q = &s->sites[0];
    ck_assert_uint_eq(q->about.id, 0);
    ck_assert_str_eq(q->about.name, "h.{layer}.q");
    ck_assert_str_eq(q->about.kernel, "^r_9_2$");
    ck_assert_int_eq(q->kind, 1);
    ck_assert_int_eq(q->pointer.arg, 2);
    ck_assert_uint_eq(q->pointer.offset, 24);
    ck_assert(!expr_is_constant(q->offset));
    ck_assert_uint_eq(q->about.dtype, DMI_DTYPE_BF16);
    ck_assert_uint_eq(q->first_occurrence, 1);
    ck_assert_uint_eq(q->last_occurrence, 28);
    ck_assert_int_eq(q->about.expect, 30);
    ck_assert_int_eq(value_of(q->layer), 4);
    ck_assert_int_eq(q->when, SPEC_BEFORE);
    ck_assert_int_eq(q->action, SPEC_CAPTURE);
    ck_assert_int_eq(q->about.row, DMI_ROW_REQUEST);
    ck_assert(q->about.scale == 1e12);
    ck_assert_str_eq(q->about.note, "divided");
    ck_assert_int_eq(q->line, 12);
    /* the row first, then the others as they stood; strides packed in the file's order */
    ck_assert_uint_eq(q->n_dims, 3);
    ck_assert(q->dims[0].is_row && !q->dims[1].is_row && !q->dims[2].is_row);
    ck_assert_int_eq(value_of(q->dims[0].stride), 128);
    ck_assert_int_eq(value_of(q->dims[1].count), 9);
    ck_assert_int_eq(value_of(q->dims[2].count), 64);
    ck_assert_int_eq(value_of(q->dims[2].stride), 2);
    static const uint32_t one[3] = { 1, 1, 1 };
    struct expr_env env = { .grid = one, .block = one, .param = seven };
    int64_t stride;
    ck_assert_int_eq(expr_eval(q->dims[1].stride, &env, &stride), 0);
    ck_assert_int_eq(stride, 7 * 64 * 2);

    const struct spec_site *x = &s->sites[1];
    ck_assert_uint_eq(x->about.id, 1);
    ck_assert_int_eq(x->kind, -1);
    ck_assert_int_eq(x->pointer.arg, -1);
    ck_assert_uint_eq(x->pointer.offset, 16);
    ck_assert_ptr_null(x->offset);
    ck_assert_uint_eq(x->first_occurrence, 0);
    ck_assert_uint_eq(x->last_occurrence, UINT32_MAX);
    ck_assert_int_eq(x->about.expect, -1);
    ck_assert_ptr_null(x->layer);
    ck_assert_int_eq(x->when, SPEC_AFTER);
    ck_assert_int_eq(x->action, SPEC_CAPTURE); /* without the key, too */
    ck_assert_int_eq(x->about.row, DMI_ROW_TOKEN);
    ck_assert(x->about.scale == 1);
    ck_assert_ptr_null(x->about.note);
    spec_free(s);
}
END_TEST

/* What no one would call an error. */
static const char *const good_texts[] = {
    GOOD,
    "\xef\xbb\xbf" GOOD,
    "---\n" GOOD "...\n",
    GOOD "forward: []\n",
    /* without a forward all of the run is one */
    GOOD "  occurrences: {expect: 3}\n  layer: occ\n",
    GOOD "  layer: occ\n",
    "{\"hookspec\": 1, \"sites\": [{\"name\": \"q\", \"kernel\": \"k\", \"pointer\": \"arg[0]\",\n"
    " \"dtype\": \"f32\", \"scale\": 0.5, \"dims\": [{\"row\": true, \"count\": 4}]}]}",
    "hookspec: 0x1\r\nsites:\r\n- {name: q, kernel: k, pointer: 'arg[0]', dtype: f32, "
    "dims: [{row: true, count: 4}]}\r\n",
    /* the same name in two kinds of forward, for two kernels, for other layers of one launch */
    GOOD "  forward: a\n" SITE "  forward: b\n" FORWARD,
    GOOD "- name: q\n  kernel: k2\n" REST,
    GOOD "  occurrences: {to: 4}\n" SITE "  occurrences: {from: 5}\n" FORWARD,
    GOOD "  occurrences: {every: 4}\n" SITE "  occurrences: {from: 6, every: 4}\n" FORWARD,
    GOOD "  occurrences: {expect: 9, from: 1, to: 8, every: 4}\n  layer: (occ - 1) / 4\n" FORWARD,
    GOOD "  layer: occ * 2\n" SITE "  layer: occ * 2 + 1\n" FORWARD,
    GOOD "  forward: a\n" FORWARD "absent: [{name: q, why: fused, forward: b}]\n",
    /* explicit strides that are the packed ones leave no doubt */
    DIMS("[{row: true, count: grid.x}, {count: 4, stride: 256}, {count: 64, stride: 4}]"),
    DIMS("[{row: true, count: grid.x, stride: 0}]"),
    DIMS("[{count: 3, stride: 9999}, {row: true, count: 4}]"),
    GOOD "  layer: 3\n",
    HEAD "- name: q\n  kernel: '^(a|b[[:digit:]]+)*_[]x^-]{2,}(c{63}){64}\\($'\n" REST,
    GOOD "  scale: -2.5e-3\n",
    GOOD "name: 'it''s a \xc3\xa4'\n",
    GOOD "overload: {mode: drop}\nring: {bytes: 4096, slots: 2}\n",
};

START_TEST(right_spec_is_accepted)
{
    struct spec_errors errors;
    struct spec *spec;
    int rc = parse(good_texts[_i], &errors, &spec);
    ck_assert_msg(rc == 0, "%s\n-> %s", good_texts[_i], errors.n_lines ? errors.lines[0] : "?");
    spec_free(spec);
    spec_errors_deinit(&errors);
}
END_TEST

START_TEST(patterns_of_taps_are_sites_of_their_own)
{
    struct spec_errors errors;
    struct spec *spec;
    struct spec_match match;
    const char *text = HEAD "- {tap: 'resid_*', layers: '3,7-9,last', note: n}\n"
                            "- {tap: resid_mid, row: request}\n"
                            "- {tap: my.own-tap_1}\n"
                            "- {tap: blocks.*.attn.hook_q, name: query}\n"
                            "- {tap: k, layers: 0-4}\n"
                            "- {tap: k, layers: 5-9}\n"
                            "- {tap: k, name: k2}\n"
                            "- {tap: 't*_*s.grad'}\n";
    static const char *const names[][2] = {
        { "resid_pre", "resid_pre" },
        { "resid_post", "resid_post" },
        { "resid_final", "resid_final" },
        { "resid_mid", "resid_mid" },
        { "my.own-tap_1", "my.own-tap_1" },
        { "query", "q" },
        { "k", "k" },
        { "k", "k" },
        { "k2", "k" },
        { "topk_weights.grad", "topk_weights.grad" },
    };
    ck_assert_int_eq(parse(text, &errors, &spec), 0);
    ck_assert(spec->has_taps && !spec->has_kernels);
    ck_assert_uint_eq(spec->n_sites, sizeof names / sizeof *names);
    for (uint32_t i = 0; i < spec->n_sites; i++) {
        const struct dmi_site *about = &spec->sites[i].about;
        ck_assert_uint_eq(about->id, i);
        ck_assert_str_eq(about->name, names[i][0]);
        ck_assert_str_eq(about->tap, names[i][1]);
        ck_assert_ptr_null(about->kernel);
        ck_assert(about->has_layer);
    }
    ck_assert_uint_eq(spec->sites[3].about.row, DMI_ROW_REQUEST);
    ck_assert_str_eq(spec->sites[2].about.note, "n");
    ck_assert(spec_match_tap(spec, "k", &match));
    ck_assert_uint_eq(match.n_sites, 3);
    ck_assert_uint_eq(match.sites[2], 8);
    ck_assert(!spec_match_tap(spec, "v", &match));
    ck_assert(!spec_match_kernel(spec, "k", NULL, &match));
    spec_free(spec);
}
END_TEST

START_TEST(taps_that_may_be_written)
{
    static const struct {
        const char *name;
        enum spec_action action;
    } rows[] = { { "resid_pre", SPEC_EDIT },  { "resid_pre", SPEC_CAPTURE },
                 { "resid_post", SPEC_EDIT }, { "resid_post", SPEC_CAPTURE },
                 { "mine", SPEC_EDIT },       { "resid_mid", SPEC_CAPTURE },
                 { "resid_mid", SPEC_EDIT } };
    const char *text = HEAD "- {tap: 'resid_p*', layers: 3-9, write: {reach: [mine]}}\n"
                            "- {tap: mine, write: {}, capture: none}\n"
                            "- {tap: resid_mid, write: {}, capture: before}\n";
    struct spec_errors errors = { 0 };
    struct spec *spec;
    ck_assert_int_eq(spec_parse("t", text, strlen(text), NULL, 0, &errors, &spec), 0);
    ck_assert_int_eq(spec->n_sites, 7);
    ck_assert_int_eq(spec->n_places, 4);
    for (uint32_t i = 0; i < spec->n_sites; i++) {
        ck_assert_str_eq(spec->sites[i].about.name, rows[i].name);
        ck_assert_int_eq(spec->sites[i].action, rows[i].action);
        ck_assert(spec->sites[i].layers.n == (i < 4));
    }
    spec_free(spec);
}
END_TEST

START_TEST(layers_of_a_tap)
{
    static const struct {
        const char *list;
        int32_t n_layers;
        const char *takes; /* of layers -1 to 9 */
    } rows[] = {
        { "'0,3-5,9'", 0, "11001110001" },  { "last", 10, "10000000001" },
        { "last", 0, "10000000000" },       { "'last-2,last'", 10, "10000000101" },
        { "middle", 10, "10000010000" },    { "'2,middle,last-2'", 8, "10010110000" },
        { "' 1 , 2 '", 10, "10110000000" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct spec_errors errors;
        struct spec *spec;
        char text[128], takes[12] = "";
        snprintf(text, sizeof text, HEAD "- {tap: q, layers: %s}\n", rows[i].list);
        ck_assert_int_eq(parse(text, &errors, &spec), 0);
        for (int32_t layer = -1; layer < 10; layer++)
            takes[layer + 1] =
                spec_takes_layer(&spec->sites[0].layers, layer, rows[i].n_layers) ? '1' : '0';
        ck_assert_msg(!strcmp(takes, rows[i].takes), "%s of %d: %s", rows[i].list, rows[i].n_layers,
                      takes);
        spec_free(spec);
    }
    struct spec_layers all = { 0 };
    ck_assert(spec_takes_layer(&all, -1, 0) && spec_takes_layer(&all, 9999, 0));
}
END_TEST

START_TEST(positions_of_a_site)
{
    static const struct {
        const char *text;
        enum select_tokens tokens;
        int64_t first, end;
        bool of_prompt;
    } rows[] = {
        { "5", SELECT_RANGE, 5, 6 },
        { "'3:8'", SELECT_RANGE, 3, 8 },
        { "':8'", SELECT_RANGE, 0, 8 },
        { "'-5:'", SELECT_RANGE, -5, INT64_MAX },
        { "'-1:'", SELECT_RANGE, -1, INT64_MAX },
        { "'2:-1'", SELECT_RANGE, 2, -1 },
        { "'-4:9'", SELECT_RANGE, -4, 9 },
        { "-2", SELECT_RANGE, -2, -1 },
        { "-1", SELECT_LAST_PROMPT, 0, 0 },
        { "'prompt[-3:]'", SELECT_RANGE, -3, INT64_MAX, true },
        { "'prompt[2:5]'", SELECT_RANGE, 2, 5, true },
        { "'prompt[4]'", SELECT_RANGE, 4, 5, true },
        { "'prompt[-1]'", SELECT_LAST_PROMPT, 0, 0, true },
        { "last_prompt", SELECT_LAST_PROMPT, 0, 0 },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct spec_errors errors;
        struct spec *spec;
        char text[256];
        snprintf(text, sizeof text, GOOD "  row: token\n  tokens: %s\n", rows[i].text);
        ck_assert_int_eq(parse(text, &errors, &spec), 0);
        const struct select *s = &spec->selects[spec->sites[0].select];
        ck_assert_msg(s->tokens == rows[i].tokens && s->first == rows[i].first &&
                          s->end == rows[i].end && s->of_prompt == rows[i].of_prompt,
                      "%s", rows[i].text);
        spec_free(spec);
    }
}
END_TEST

START_TEST(a_spec_of_names_alone)
{
    static const struct {
        const char *names, *write, *layers, *text;
    } rows[] = {
        { "q,resid_*", NULL, "1,last",
          "  - {tap: 'q', layers: '1,last'}\n  - {tap: 'resid_*', layers: '1,last'}\n" },
        { " q, q ,,k", "", NULL, "  - {tap: 'q'}\n  - {tap: 'k'}\n" },
        { "a'b", NULL, "'\n", "  - {tap: 'a''b', layers: ''' '}\n" },
        { "", NULL, "", "" },
        { NULL, "q", NULL, "  - {tap: 'q', write: {}, capture: none}\n" },
        { "k,q", "q,v,q", "3",
          "  - {tap: 'k', layers: '3'}\n  - {tap: 'q', layers: '3', write: {}}\n"
          "  - {tap: 'v', layers: '3', write: {}, capture: none}\n" },
        { "resid_*", "resid_post", NULL,
          "  - {tap: 'resid_*'}\n  - {tap: 'resid_post', write: {}}\n" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char want[256];
        char *text = tap_spec(rows[i].names, rows[i].write, rows[i].layers);
        snprintf(want, sizeof want, "hookspec: 1\nname: taps\nsites:\n%s", rows[i].text);
        ck_assert_str_eq(text, want);
        free(text);
    }
    ck_assert_str_eq(tap_preset("eagle3")->taps, "resid_pre");
    ck_assert_ptr_null(tap_preset("eagle"));
    ck_assert_str_eq(tap_canonical("blocks.*.hook_mlp_out"), "mlp_out");
    ck_assert_str_eq(tap_canonical("blocks.0.hook_mlp_out"), "blocks.0.hook_mlp_out");
}
END_TEST

START_TEST(all_errors_come_in_one_go_in_order)
{
    static const char text[] = "hookspec: 1\n"
                               "nam: x\n"
                               "vars: {a: b}\n"
                               "overload: {mode: no}\n"
                               "sites:\n"
                               "- name: q\n"
                               "  kernel: '('\n"
                               "  pointer: arg\n"
                               "  offset: 1 +\n"
                               "  dtype: f33\n"
                               "  dims: [{count: a}, {row: true, count: b}]\n"
                               "  when: now\n"
                               "- name: q\n";
    static const char *const places[] = {
        "f.yaml:2:1: ",  "f.yaml:3:11: ",  "f.yaml:4:18: ",  "f.yaml:7:12: ", "f.yaml:8:15: ",
        "f.yaml:9:14: ", "f.yaml:10:10: ", "f.yaml:11:41: ", "f.yaml:12:9: ", "f.yaml:13:3: ",
        "f.yaml:13:3: ", "f.yaml:13:3: ",  "f.yaml:13:3: "
    };
    struct spec_errors errors;
    struct spec *spec;
    ck_assert_int_eq(parse(text, &errors, &spec), SPEC_E_INVALID);
    ck_assert_uint_eq(errors.n_lines, sizeof places / sizeof *places);
    for (size_t i = 0; i < errors.n_lines; i++)
        ck_assert_msg(!strncmp(errors.lines[i], places[i], strlen(places[i])), "%zu: %s", i,
                      errors.lines[i]);
    spec_errors_deinit(&errors);
}
END_TEST

START_TEST(flood_of_errors_is_cut)
{
    static char text[100000] = "hookspec: 1\nsites: [";
    for (int i = 0; i < 300; i++)
        strcat(text, "3,");
    strcat(text, "3]\n");
    struct spec_errors errors;
    struct spec *spec;
    ck_assert_int_eq(parse(text, &errors, &spec), SPEC_E_INVALID);
    ck_assert_uint_eq(errors.n_lines, 101);
    ck_assert_ptr_nonnull(strstr(errors.lines[100], "201 more errors"));
    spec_errors_deinit(&errors);
}
END_TEST

/* Each is right, and has these warnings. */
static const struct {
    const char *text;
    const char *warnings[4];
} warned_rows[] = {
    { GOOD "- {tap: q, scale: 0.5}\n",
      { "f.yaml:8:3: warning: found the site \"q\" with scale 0.5, and with scale 1 at line 3" } },
    { HEAD "- {tap: q, layers: 0-4, scale: 2}\n- {tap: p, name: q, scale: 4}\n- {tap: r, name: q, "
           "scale: 2}\n",
      { "f.yaml:4:3: warning: found the site \"q\" with scale 4, and with scale 2 at line 3",
        "f.yaml:5:3: warning: found the site \"q\" with scale 2, and with scale 4 at line 4" } },
    { GOOD TYPED("k2", "f32") "  row: request\n  scale: 3\n  shard: {sum: tp}\n",
      { "8:3: warning: found the site \"q\" with scale 3, and with scale 1 at line 3",
        "8:3: warning: found the site \"q\" with \"row: request\", and with \"row: token\" at line "
        "3",
        "8:3: warning: found the site \"q\" with \"shard: {sum: tp}\", and with no shard at line "
        "3" } },
    { HEAD "- {tap: q, shard: {dim: 1, of: tp}}\n- {tap: p, name: q, shard: {dim: 2, of: tp}}\n",
      { "4:3: warning: found the site \"q\" with \"shard: {dim: 2, of: tp}\", and with \"shard: "
        "{dim: 1, of: tp}\" "
        "at line 3" } },
    /* whether they meet in a layer or a request is not known before the run */
    { GOOD TYPED("k2", "f16"),
      { "8:3: warning: found the site \"q\" with dtype f16, and with dtype f32 at line 3" } },
    { HEAD TYPED("k2", "f16") "- name: p\n  kernel: k\n" REST SITE "- name: p\n  kernel: k2\n" REST
                              "- {tap: p, scale: 2}\n"
                              "- {tap: q, scale: 2}\n",
      { "13:3: warning: found the site \"q\" with dtype f32, and with dtype f16 at line 3; "
        "expected",
        "23:3: warning: found the site \"p\" with scale 2, and with scale 1 at line 8; so does 1 "
        "more "
        "site; expected" } },
    { GOOD "  requests: 'a-*'\n" LOW TYPED("k", "f16") "  requests: 'b-*'\n" HIGH,
      { "10:3: warning: found the site \"q\" with dtype f16, and with dtype f32 at line 3" } },
    { GOOD "  layer: occ\n" TYPED("k", "f16") "  layer: 1000 + occ\n",
      { "3:3: warning: found the site \"q\" with a layer that is counted, and no \"forward\"",
        "9:3: warning: found the site \"q\" with dtype f16, and with dtype f32 at line 3" } },
    { GOOD "  offset: 4096 * occ\n",
      { "3:3: warning: found the site \"q\" with a place that is counted, and no \"forward\"" } },
    { "hookspec: 1\nforward: [{kind: a, begin: step}]\nsites:\n" SITE "  layer: occ\n", { NULL } },
    /* no tensor of both */
    { HEAD "- {tap: q, layers: 0-4, scale: 2}\n- {tap: q, layers: '5-9', scale: 4}\n", { NULL } },
    { GOOD "  layer: 0\n" TYPED("k", "f16") "  scale: 7\n", { NULL } },
    { GOOD "  occurrences: {expect: 4}\n  layer: 2 * occ\n" TYPED(
          "k", "f16") "  occurrences: {expect: 4}\n  layer: 2 * occ + 1\n  scale: 7\n",
      { "with a layer that is counted" } },
    { GOOD "  layer: 0\n" TYPED("k", "f16") "  layer: 1\n  row: none\n", { NULL } },
    { GOOD "- name: p\n  kernel: k\n" REST "  scale: 4\n", { NULL } },
    { HEAD WIDE("k", "64", "  shard: {dim: 1, of: tp}\n") WIDE("k2", "128", "  shard: {sum: tp}\n"),
      { "with \"shard: {sum: tp}\", and with \"shard: {dim: 1, of: tp}\" at line 3" } },
};

START_TEST(entries_of_one_name_that_mean_different_values_are_named)
{
    const char *text = warned_rows[_i].text;
    struct spec_errors errors;
    struct spec *spec;
    ck_assert_msg(!parse(text, &errors, &spec), "%s\n-> %s", text,
                  errors.n_lines ? errors.lines[0] : "?");
    size_t n = 0;
    for (; warned_rows[_i].warnings[n]; n++) {
        const char *said = n < spec->warnings.n_lines ? spec->warnings.lines[n] : "nothing";
        ck_assert_msg(strstr(said, warned_rows[_i].warnings[n]), "%s\n-> %s lacks \"%s\"", text,
                      said, warned_rows[_i].warnings[n]);
    }
    ck_assert_msg(n == spec->warnings.n_lines, "%s\n-> %s", text, spec->warnings.lines[n]);
    spec_free(spec);
}
END_TEST

static const struct {
    const char *vars[3];
    int rc;
    const char *expected; /* value of a, or a part of the message */
} var_rows[] = {
    { { NULL }, 0, "1" },
    { { "a=5" }, 0, "5" },
    { { "a=0x10" }, 0, "16" },
    { { "a=-5" }, 0, "-5" },
    { { "a=5", "a=6" }, 0, "6" },
    { { "b=7" }, 0, "1" },
    { { "ab=5" },
      SPEC_E_INVALID,
      "\"ab=5\", set from outside (-D, DMI_VARS), of which vars: says nothing; "
      "expected a, b; did you mean \"a\"?" },
    { { "a" }, SPEC_E_INVALID, "expected NAME=INTEGER" },
    { { "=5" }, SPEC_E_INVALID, "expected NAME=INTEGER" },
    { { "" }, SPEC_E_INVALID, "expected NAME=INTEGER" },
    { { "a=" }, SPEC_E_INVALID, "an integer of 64 bits" },
    { { "a=5x" }, SPEC_E_INVALID, "an integer of 64 bits" },
    { { "a=9223372036854775808" }, SPEC_E_INVALID, "an integer of 64 bits" },
};

START_TEST(variables_are_set_from_outside)
{
    static const char text[] = GOOD "vars: {a: 1, b: 2}\n";
    struct spec_errors errors;
    struct spec *spec = NULL;
    size_t n = 0;
    while (n < 3 && var_rows[_i].vars[n])
        n++;
    int rc = spec_parse("f", text, strlen(text), var_rows[_i].vars, n, &errors, &spec);
    ck_assert_int_eq(rc, var_rows[_i].rc);
    if (rc) {
        ck_assert_uint_eq(errors.n_lines, 1);
        ck_assert_msg(strstr(errors.lines[0], var_rows[_i].expected), "%s", errors.lines[0]);
    } else {
        ck_assert_str_eq(spec->vars[0].value, var_rows[_i].expected);
    }
    spec_free(spec);
    spec_errors_deinit(&errors);
}
END_TEST

START_TEST(variables_of_the_environment_are_split)
{
    const char *out[3];
    char text[] = ",a=1,,b=2,";
    ck_assert_uint_eq(spec_split_vars(text, out, 3), 2);
    ck_assert_str_eq(out[0], "a=1");
    ck_assert_str_eq(out[1], "b=2");
    char many[] = "a,b,c,d";
    ck_assert_uint_eq(spec_split_vars(many, out, 3), SIZE_MAX);
    char none[] = "";
    ck_assert_uint_eq(spec_split_vars(none, out, 3), 0);
}
END_TEST

static const struct {
    const char *name, *demangled;
    int kind;
    uint32_t n_sites, sites[4];
} match_rows[] = {
    { "begin_a", NULL, 0, 0, { 0 } },    { "xbegin_a", NULL, -1, 0, { 0 } },
    { "begin_b_7", NULL, 1, 1, { 3 } },  { "gemm", NULL, -1, 2, { 0, 1 } },
    { "gemm2", NULL, -1, 1, { 1 } },     { "_Z4normPf", "norm(float*)", -1, 1, { 2 } },
    { "_Z4normPf", NULL, -1, 0, { 0 } }, { "norm(float*)", "nothing", -1, 1, { 2 } },
    { "", NULL, -1, 0, { 0 } },          { "nobody", "nobody()", -1, 0, { 0 } },
};

START_TEST(kernel_is_matched_by_raw_and_demangled_name)
{
    static const char text[] =
        "hookspec: 1\n"
        "forward: [{kind: a, begin: {kernel: ^begin_a$}}, {kind: s, begin: step},\n"
        "  {kind: b, begin: {kernel: '^begin_b_[0-9]+$'}}]\n"
        "sites:\n"
        "- {name: s0, kernel: '^gemm$', pointer: 'arg[0]', dtype: f32, dims: [{row: true, count: "
        "1}]}\n"
        "- {name: s1, kernel: '^gemm', pointer: 'arg[0]', dtype: f32, dims: [{row: true, count: "
        "1}]}\n"
        "- {name: s2, kernel: '^norm\\(float\\*\\)$', pointer: 'arg[0]', dtype: f32, dims: [{row: "
        "true, "
        "count: 1}]}\n"
        "- {name: s3, kernel: '_7$|_8$', pointer: 'arg[0]', dtype: f32, dims: [{row: true, count: "
        "1}]}\n";
    struct spec_errors errors;
    struct spec *spec;
    struct spec_match match;
    int rc = parse(text, &errors, &spec);
    ck_assert_msg(rc == 0, "%s", errors.n_lines ? errors.lines[0] : "?");
    bool any = spec_match_kernel(spec, match_rows[_i].name, match_rows[_i].demangled, &match);
    int kind = match_rows[_i].kind == 1 ? 2 : match_rows[_i].kind;
    ck_assert_int_eq(match.kind, kind);
    ck_assert_uint_eq(match.n_sites, match_rows[_i].n_sites);
    for (uint32_t i = 0; i < match.n_sites; i++)
        ck_assert_uint_eq(match.sites[i], match_rows[_i].sites[i]);
    ck_assert_int_eq(any, kind >= 0 || match.n_sites);
    spec_free(spec);
}
END_TEST

/* @n sites on @kernel, with distinct names */
static char *crowd(const char *kernel, int n, const char *last_kernel)
{
    char *text = calloc(1, 200 * (size_t)n + 100);
    strcpy(text, "hookspec: 1\nsites:\n");
    for (int i = 0; i < n; i++)
        sprintf(text + strlen(text),
                "- {name: s%d, kernel: '%s', pointer: 'arg[0]', dtype: f32, dims: [{row: true, "
                "count: 1}]}\n",
                i, i == n - 1 ? last_kernel : kernel);
    return text;
}

START_TEST(more_than_sixteen_sites_on_one_kernel_are_refused)
{
    static const struct {
        const char *kernel, *last;
        int n, errors;
    } rows[] = {
        { "^k$", "^k$", 16, 0 }, { "^k$", "^k$", 17, 1 }, { "^k$", "k", 17, 1 },
        { "k", "^k$", 17, 2 },   { "k", "^x$", 17, 0 },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct spec_errors errors;
        struct spec *spec;
        char *text = crowd(rows[i].kernel, rows[i].n, rows[i].last);
        parse(text, &errors, &spec);
        ck_assert_msg(!errors.n_lines == !rows[i].errors, "row %zu: %zu errors: %s", i,
                      errors.n_lines, errors.n_lines ? errors.lines[0] : "");
        if (errors.n_lines)
            ck_assert_msg(!strncmp(errors.lines[0], "f.yaml:19:3: ", 13) &&
                              strstr(errors.lines[0], "more than 16 sites"),
                          "%s", errors.lines[0]);
        free(text);
        spec_free(spec);
        spec_errors_deinit(&errors);
    }
}
END_TEST

START_TEST(patterns_that_are_large_together_are_refused)
{
    struct spec_errors errors;
    struct spec *spec;
    char *text = calloc(1, 100000);
    strcpy(text, "hookspec: 1\nsites:\n");
    for (int i = 0; i < 40; i++)
        sprintf(
            text + strlen(text),
            "- {name: s%d, kernel: 'k%d.{4090}', pointer: 'arg[0]', dtype: f32, dims: [{row: true, "
            "count: 1}]}\n",
            i, i);
    ck_assert_int_eq(parse(text, &errors, &spec), SPEC_E_INVALID);
    ck_assert_uint_eq(errors.n_lines, 40 - 32);
    ck_assert_msg(!strncmp(errors.lines[0], "f.yaml:35:24: found patterns that together", 42), "%s",
                  errors.lines[0]);
    free(text);
    spec_errors_deinit(&errors);
}
END_TEST

START_TEST(crowd_that_could_not_be_seen_gives_the_first_sixteen)
{
    struct spec_errors errors;
    struct spec *spec;
    struct spec_match match;
    char *text = crowd("^k", 17, "^.$");
    ck_assert_int_eq(parse(text, &errors, &spec), 0);
    ck_assert(spec_match_kernel(spec, "k", NULL, &match));
    ck_assert_uint_eq(match.n_sites, SPEC_MAX_MATCHES);
    ck_assert_uint_eq(match.sites[15], 15);
    free(text);
    spec_free(spec);
}
END_TEST

START_TEST(file_is_read_and_named_in_messages)
{
    char path[] = "/tmp/test_policy_XXXXXX";
    int fd = mkstemp(path);
    struct spec_errors errors;
    struct spec *spec = NULL;
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(write(fd, GOOD, strlen(GOOD)), (ssize_t)strlen(GOOD));
    ck_assert_int_eq(spec_load(path, NULL, 0, &errors, &spec), 0);
    ck_assert_str_eq(spec->text, GOOD);
    ck_assert_str_eq(spec->name, strrchr(path, '/') + 1); /* none was given */
    spec_free(spec);
    spec = NULL;
    ck_assert_int_eq(write(fd, "x: y\n", 5), 5);
    ck_assert_int_eq(spec_load(path, NULL, 0, &errors, &spec), SPEC_E_INVALID);
    ck_assert_int_eq(strncmp(errors.lines[0], path, strlen(path)), 0);
    ck_assert_ptr_null(spec);
    spec_errors_deinit(&errors);
    ck_assert_int_eq(ftruncate(fd, SPEC_MAX_BYTES + 1), 0);
    ck_assert_int_eq(spec_load(path, NULL, 0, &errors, &spec), SPEC_E_INVALID);
    ck_assert_ptr_nonnull(strstr(errors.lines[0], "1 MiB"));
    spec_errors_deinit(&errors);
    close(fd);
    unlink(path);
    ck_assert_int_eq(spec_load(path, NULL, 0, &errors, &spec), -ENOENT);
    ck_assert_uint_eq(errors.n_lines, 0);
}
END_TEST

START_TEST(what_is_no_file_neither_blocks_nor_is_read)
{
    char folder[] = "/tmp/test_policy_XXXXXX", fifo[64];
    struct spec_errors errors;
    struct spec *spec = NULL;
    ck_assert_ptr_nonnull(mkdtemp(folder));
    ck_assert_int_eq(spec_load(folder, NULL, 0, &errors, &spec), SPEC_E_INVALID);
    ck_assert_ptr_nonnull(strstr(errors.lines[0], "folder"));
    spec_errors_deinit(&errors);
    snprintf(fifo, sizeof fifo, "%s/fifo", folder);
    ck_assert_int_eq(mkfifo(fifo, 0600), 0);
    ck_assert_int_eq(spec_load(fifo, NULL, 0, &errors, &spec), SPEC_E_INVALID);
    ck_assert_ptr_nonnull(strstr(errors.lines[0], "pipe"));
    spec_errors_deinit(&errors);
    unlink(fifo);
    rmdir(folder);
}
END_TEST

/* The application may have called setlocale(). */
START_TEST(numbers_do_not_depend_on_the_locale)
{
    struct spec_errors errors;
    struct spec *spec;
    if (!setlocale(LC_ALL, "de_DE.UTF-8") && !setlocale(LC_ALL, "fr_FR.UTF-8")) {
        printf("numbers_do_not_depend_on_the_locale: SKIP: no locale with a decimal comma here\n");
        return;
    }
    ck_assert_int_eq(parse(GOOD "  scale: 2.5\n", &errors, &spec), 0);
    ck_assert(spec->sites[0].about.scale == 2.5);
    spec_free(spec);
}
END_TEST

START_TEST(a_shard_says_how_ranks_have_parts)
{
    struct spec_errors errors;
    struct spec *spec;
    ck_assert_int_eq(parse(SHARD("{of: ep, dim: 1}\n"), &errors, &spec), 0);
    const struct dmi_site *site = &spec->sites[0].about;
    ck_assert(site->shard == DMI_SHARD_DIM && site->shard_dim == 1 &&
              site->shard_axis == DMI_AXIS_EP);
    spec_free(spec);
    ck_assert_int_eq(parse(SHARD("{dim: 1, of: tp, parts: [2, 1]}\n"), &errors, &spec), 0);
    const struct spec_parts *parts = &spec->sites[0].parts;
    ck_assert(parts->said && parts->n == 2 && parts->of[0] == 2 && parts->of[1] == 1);
    spec_free(spec);
    ck_assert_int_eq(parse(GOOD "  shard: {sum: pp}\n", &errors, &spec), 0);
    site = &spec->sites[0].about;
    ck_assert(site->shard == DMI_SHARD_SUM && site->shard_axis == DMI_AXIS_PP);
    spec_free(spec);
    ck_assert_int_eq(parse(GOOD, &errors, &spec), 0);
    ck_assert(spec->sites[0].about.shard == DMI_SHARD_NONE);
    spec_free(spec);
}
END_TEST

START_TEST(hostile_text_reaches_messages_defused)
{
    struct spec_errors errors;
    struct spec *spec;
    ck_assert_int_eq(parse(GOOD "\"k\\e[31m\\n%s%n\\x9b1m\": 3\n", &errors, &spec), SPEC_E_INVALID);
    ck_assert_uint_eq(errors.n_lines, 1);
    for (const char *p = errors.lines[0]; *p; p++)
        ck_assert_msg((unsigned char)*p >= ' ', "%s", errors.lines[0]);
    ck_assert_ptr_nonnull(strstr(errors.lines[0], "\"k [31m %s%n  1m\""));
    spec_errors_deinit(&errors);
}
END_TEST

int main(void)
{
#define ROWS(table) (int)(sizeof(table) / sizeof *(table))
    Suite *suite = suite_create("policy/spec");
    TCase *tc = tcase_create("spec");
    tcase_add_loop_test(tc, error_has_its_place_and_says_what_was_expected, 0, ROWS(error_rows));
    tcase_add_loop_test(tc, one_mistake_makes_one_line, 0, ROWS(error_rows));
    tcase_add_test(tc, everything_that_a_spec_says_is_in_the_struct);
    tcase_add_loop_test(tc, right_spec_is_accepted, 0, ROWS(good_texts));
    tcase_add_test(tc, patterns_of_taps_are_sites_of_their_own);
    tcase_add_test(tc, taps_that_may_be_written);
    tcase_add_test(tc, layers_of_a_tap);
    tcase_add_test(tc, positions_of_a_site);
    tcase_add_test(tc, a_spec_of_names_alone);
    tcase_add_test(tc, all_errors_come_in_one_go_in_order);
    tcase_add_test(tc, flood_of_errors_is_cut);
    tcase_add_loop_test(tc, entries_of_one_name_that_mean_different_values_are_named, 0,
                        ROWS(warned_rows));
    tcase_add_loop_test(tc, variables_are_set_from_outside, 0, ROWS(var_rows));
    tcase_add_test(tc, variables_of_the_environment_are_split);
    tcase_add_loop_test(tc, kernel_is_matched_by_raw_and_demangled_name, 0, ROWS(match_rows));
    tcase_add_test(tc, more_than_sixteen_sites_on_one_kernel_are_refused);
    tcase_add_test(tc, patterns_that_are_large_together_are_refused);
    tcase_add_test(tc, crowd_that_could_not_be_seen_gives_the_first_sixteen);
    tcase_add_test(tc, file_is_read_and_named_in_messages);
    tcase_add_test(tc, what_is_no_file_neither_blocks_nor_is_read);
    tcase_add_test(tc, numbers_do_not_depend_on_the_locale);
    tcase_add_test(tc, a_shard_says_how_ranks_have_parts);
    tcase_add_test(tc, hostile_text_reaches_messages_defused);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? 1 : 0;
}
