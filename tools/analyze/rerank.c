/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/analyze/rerank.h"

#include "core/cleanup.h"
#include "tools/analyze/asked.h"
#include "tools/analyze/heads_file.h"
#include "tools/analyze/passage.h"
#include "tools/common/edit_words.h"
#include "tools/common/report.h"

#include <dmi/analyze_heads.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_DOCUMENTS 100000

struct ranked {
    const char *name; /* borrowed from the file; NULL: its number */
    size_t number;
    double score;
};

struct reranking {
    const struct analyze_options *options;
    struct asked asked;
    json_t *file;
    struct dmi_analyze_span *spans;
    struct ranked *documents;
    size_t n;
    double *tokens[2]; /* of the query, of the null query */
    int64_t n_keys[2];
    double *scores;
};

/* ------------------------------------------------------------------------- the file */

/* [FIRST, LAST]: the last one is included, as CoRe has it. */
static bool take_span(const json_t *v, struct dmi_analyze_span *out)
{
    const json_t *first = json_array_get(v, 0), *last = json_array_get(v, 1);
    if (json_array_size(v) != 2 || !json_is_integer(first) || !json_is_integer(last) ||
        json_integer_value(first) < 0 || json_integer_value(last) < json_integer_value(first) ||
        json_integer_value(last) >= INT32_MAX)
        return false;
    *out = (struct dmi_analyze_span){ json_integer_value(first), json_integer_value(last) + 1 };
    return true;
}

static int usage(const char *what)
{
    complain("%s", what);
    return ANALYZE_USAGE;
}

static int no_span(const char *what)
{
    complain("--passages: %s has no span: [FIRST, LAST], of which the last one is included, or "
             "{\"ids\": [...]}, {\"text\": \"...\"} or {\"role\": \"...\"}",
             what);
    return ANALYZE_USAGE;
}

/* The passage of a document, which may have a name beside it. */
static const json_t *passage_of(const json_t *document)
{
    const json_t *span = json_object_get(document, "span");
    return span ? span : document;
}

static int read_documents(struct reranking *r)
{
    const json_t *list = json_object_get(r->file, "documents");
    r->n = json_array_size(list);
    if (!r->n || r->n > MOST_DOCUMENTS)
        return usage("--passages: expected {\"documents\": [[FIRST, LAST], ...], \"query\": "
                     "[FIRST, LAST], \"null\": [FIRST, LAST]}");
    r->spans = calloc(r->n, sizeof *r->spans);
    r->documents = calloc(r->n, sizeof *r->documents);
    r->scores = calloc(r->n, sizeof *r->scores);
    if (!r->spans || !r->documents || !r->scores)
        return usage("no memory");
    for (size_t i = 0; i < r->n; i++) {
        const char *name = json_string_value(json_object_get(json_array_get(list, i), "name"));
        r->documents[i] = (struct ranked){ name, i, 0 };
    }
    return ANALYZE_OK;
}

/* ------------------------------------------------------------------------- a request's tokens */

static int find_passage(const json_t *passage, const char *what, const struct prompt *prompt,
                        struct dmi_analyze_span *out)
{
    if (!passage_is_looked_for(passage))
        return take_span(passage, out) ? ANALYZE_OK : no_span(what);
    return passage_find(passage, what, prompt, out) ? ANALYZE_USAGE : ANALYZE_OK;
}

/* Those of the first request are kept; the second's must be the same. */
static int find_documents(struct reranking *r, int which, const struct prompt *prompt)
{
    const json_t *list = json_object_get(r->file, "documents");
    int status = ANALYZE_OK;
    for (size_t i = 0; i < r->n && !status; i++) {
        char what[64];
        struct dmi_analyze_span span;
        snprintf(what, sizeof what, "document %zu", i);
        status = find_passage(passage_of(json_array_get(list, i)), what, prompt, &span);
        if (!status && !which) {
            r->spans[i] = span;
        } else if (!status && (span.first != r->spans[i].first || span.end != r->spans[i].end)) {
            complain("--passages: document %zu lies at %lld to %lld in --query, and at %lld to "
                     "%lld in --null: both prompts begin with the same documents",
                     i, (long long)r->spans[i].first, (long long)r->spans[i].end,
                     (long long)span.first, (long long)span.end);
            status = ANALYZE_USAGE;
        }
    }
    return status;
}

/* Keys of the documents must come before the query, or another one would read other documents. */
static int set_queries(struct reranking *r, const char *key, const struct prompt *prompt)
{
    struct dmi_analyze_span span;
    struct asked *a = &r->asked;
    char what[16];
    snprintf(what, sizeof what, "\"%s\"", key);
    int status = find_passage(json_object_get(r->file, key), what, prompt, &span);
    if (status)
        return status;
    if (span.end - span.first > MOST_DOCUMENTS || span.end == span.first) {
        complain("--passages: \"%s\" has no token, or more than %d", key, MOST_DOCUMENTS);
        return ANALYZE_USAGE;
    }
    for (size_t i = 0; i < r->n; i++)
        if (r->spans[i].end > span.first) {
            complain("--passages: document %zu ends after \"%s\" begins", i, key);
            return ANALYZE_USAGE;
        }
    free(a->queries);
    a->n_queries = (uint64_t)(span.end - span.first);
    a->queries = calloc(a->n_queries, sizeof *a->queries);
    for (uint64_t i = 0; a->queries && i < a->n_queries; i++)
        a->queries[i] = span.first + (int64_t)i;
    return a->queries ? ANALYZE_OK : usage("no memory");
}

static bool looks(const struct reranking *r, const char *key)
{
    const json_t *list = json_object_get(r->file, "documents");
    bool any = passage_is_looked_for(json_object_get(r->file, key));
    for (size_t i = 0; i < r->n && !any; i++)
        any = passage_is_looked_for(passage_of(json_array_get(list, i)));
    return any;
}

static int find_passages(struct reranking *r, int which, const char *request, const char *key)
{
    struct dmi_read_request q;
    struct asked *a = &r->asked;
    _cleanup_(freep) int64_t *ids = NULL;
    _cleanup_(prompt_deinit) struct prompt prompt = { 0 };
    int64_t n = 0;
    if (looks(r, key)) {
        if (asked_request(a, request, strlen(request), &q)) {
            complain("request %s: the run has no such request", request);
            return ANALYZE_USAGE;
        }
        n = q.n_prompt > 0 ? q.n_prompt : q.end_position;
        ids = asked_ids(a, request, strlen(request), n);
    }
    if (prompt_init(&prompt, n, ids, asked_vocabulary(a)))
        return usage("no memory");
    int status = find_documents(r, which, &prompt);
    return status ? status : set_queries(r, key, &prompt);
}

static int compute(struct reranking *r, int which, const char *request, const char *key)
{
    char why[512];
    struct asked *a = &r->asked;
    struct dmi_analyze_shape shape = { .size = sizeof shape };
    int status = find_passages(r, which, request, key);
    if (status)
        return status;
    a->request = request;
    a->request_bytes = strlen(request);
    if (asked_next(r->options, a, why, sizeof why)) {
        complain("request %s: %s", request, why);
        return ANALYZE_USAGE;
    }
    dmi_analyze_shape(a->answer, &shape);
    r->n_keys[which] = shape.n_keys;
    r->tokens[which] = calloc((size_t)shape.n_keys + 1, sizeof(double));
    if (!r->tokens[which])
        return usage("no memory");
    if (!dmi_analyze_tokens(a->answer, r->tokens[which], (uint64_t)shape.n_keys))
        return asked_judge(r->options, a);
    complain("%s", dmi_analyze_error(a->answer));
    return ANALYZE_FAILED;
}

/* ------------------------------------------------------------------------- the answer */

static int by_score(const void *a, const void *b)
{
    const struct ranked *x = a, *y = b;
    return x->score != y->score ? (x->score < y->score ? 1 : -1) : x->number < y->number ? -1 : 1;
}

static void cell_score(struct text *to, const json_t *row)
{
    text_printf(to, "%.5f", json_number_value(json_object_get(row, "score")));
}

static const struct column columns[] = {
    { "DOCUMENT", "document", -28, NULL },
    { "SCORE", "score", 10, cell_score },
};

/* Of both requests, on stderr: the table is of documents. */
static void say_edits(struct reranking *r)
{
    const char *const requests[] = { r->options->query, r->options->null };
    for (size_t i = 0; i < 2; i++) {
        char line[1024];
        snprintf(line, sizeof line, "request %.255s", requests[i]);
        size_t n = strlen(line);
        edit_words_add(line, sizeof line, r->asked.run,
                       edit_words_request(r->asked.run, requests[i], strlen(requests[i])));
        if (strlen(line) > n)
            complain("%s", line);
    }
}

static int print(struct reranking *r)
{
    struct report report = { .json = r->options->json };
    uint64_t n_keys = (uint64_t)(r->n_keys[0] < r->n_keys[1] ? r->n_keys[0] : r->n_keys[1]);
    if (dmi_analyze_rerank(r->tokens[0], r->tokens[1], n_keys, r->spans, r->n, r->scores))
        return usage("--passages: a document ends after the queries");
    for (size_t i = 0; i < r->n; i++)
        r->documents[i].score = r->scores[i];
    qsort(r->documents, r->n, sizeof *r->documents, by_score);
    report_table(&report, "documents", columns, sizeof columns / sizeof *columns);
    for (size_t i = 0; i < r->n; i++) {
        char number[24];
        const struct ranked *d = &r->documents[i];
        snprintf(number, sizeof number, "%zu", d->number);
        report_row(&report,
                   json_pack("{s:o, s:I, s:o}", "document", value_text(d->name ? d->name : number),
                             "number", (json_int_t)d->number, "score", value_double(d->score)));
    }
    report_table_end(&report);
    say_edits(r);
    return report_end(&report, ANALYZE_OK);
}

static int open_all(struct reranking *r)
{
    const struct analyze_options *o = r->options;
    if (!o->passages || !o->query || !o->null)
        return usage("rerank needs --passages FILE, --query ID and --null ID");
    if (!(r->file = json_file(o->passages)))
        return ANALYZE_USAGE;
    int status = read_documents(r);
    if (!status)
        status = asked_several(o, &r->asked);
    if (!status && o->heads_file && !o->all_heads &&
        heads_file_read(o->heads_file, &r->asked.heads, &r->asked.n_heads))
        status = ANALYZE_USAGE;
    return status;
}

int analyze_rerank(const struct analyze_options *o)
{
    struct reranking r = { .options = o };
    int status = open_all(&r);
    if (!status)
        status = compute(&r, 0, o->query, "query");
    if (!status)
        status = compute(&r, 1, o->null, "null");
    if (!status)
        status = print(&r);
    json_decref(r.file);
    asked_close(&r.asked);
    free(r.spans);
    free(r.documents);
    free(r.scores);
    free(r.tokens[0]);
    free(r.tokens[1]);
    return status;
}
