/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/analyze/asked.h"

#include "analyze/ids.h"
#include "core/cleanup.h"
#include "tools/common/edit_words.h"
#include "tools/common/opened.h"
#include "tools/common/proof.h"
#include "tools/common/queries.h"
#include "tools/common/say.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MOST_TOKENS (1 << 26) /* of a prompt in which passages are looked for */

static int status_of(int r)
{
    return r == -ENODATA ? ANALYZE_FAILED : ANALYZE_USAGE;
}

/* ------------------------------------------------------------------------- the run */

static int select_run(const struct analyze_options *o, const char *positions, struct dmi_read *run)
{
    struct dmi_read_selection s = { .size = sizeof s,
                                    .flags = o->fill_cached ? DMI_READ_FILL_CACHED : 0,
                                    .request = o->request,
                                    .request_bytes = o->request ? strlen(o->request) : 0,
                                    .positions = positions };
    if (o->command->selects) {
        s.sites = o->names;
        s.n_sites = o->n_names;
        s.layers = o->layers;
        s.positions = o->tokens;
    }
    for (int a = 0; a < 4; a++)
        s.ranks[a] = (uint32_t)(o->ranks[a] + 1);
    int r = dmi_read_select(run, &s);
    if (r)
        complain("%s", dmi_read_error(run));
    return r ? status_of(r) : ANALYZE_OK;
}

int asked_open(const struct analyze_options *o, struct asked *a)
{
    char why[512];
    *a = (struct asked){ 0 };
    if (opened_run(o->run, &a->run, why, sizeof why)) {
        complain("%s", why);
        return ANALYZE_USAGE;
    }
    return select_run(o, NULL, a->run);
}

bool asked_goes_on(const struct asked *asked)
{
    struct dmi_read_run about = { .size = sizeof about };
    return !dmi_read_run(asked->run, &about) && about.state == DMI_READ_RUNNING;
}

void asked_close(struct asked *a)
{
    dmi_analyze_close(a->answer);
    dmi_analyze_model_close(a->model);
    dmi_read_close(a->run);
    dmi_read_close(a->prefix);
    free(a->queries);
    free(a->heads);
    vocabulary_deinit(&a->vocabulary);
    *a = (struct asked){ 0 };
}

/* ------------------------------------------------------------------------- queries and heads */

int asked_next(const struct analyze_options *o, struct asked *a, char *why, uint64_t n_why)
{
    uint64_t n_prefix = a->prefix_request ? strlen(a->prefix_request) : 0;
    const struct dmi_analyze_options options = { .size = sizeof options,
                                                 .n_threads = o->n_threads,
                                                 .request = a->request,
                                                 .request_bytes = a->request_bytes,
                                                 .layers = o->layers,
                                                 .heads = a->heads,
                                                 .n_heads = a->n_heads,
                                                 .queries = a->queries,
                                                 .n_queries = a->n_queries,
                                                 .sites = o->sites,
                                                 .model = a->model,
                                                 .multiplier = o->multiplier,
                                                 .n_memory = o->n_memory,
                                                 .rope_order = o->rope_order,
                                                 .prefix = a->prefix,
                                                 .prefix_request = a->prefix_request,
                                                 .prefix_request_bytes = n_prefix };
    dmi_analyze_close(a->answer);
    return dmi_analyze_open(a->run, &options, &a->answer, why, n_why);
}

static int open_answer(const struct analyze_options *o, struct asked *a)
{
    char why[512];
    int r = asked_next(o, a, why, sizeof why);
    if (r)
        complain("%s", why);
    return r ? status_of(r) : ANALYZE_OK;
}

static int no_memory(void)
{
    complain("no memory");
    return ANALYZE_USAGE;
}

/* Selects by the words, and notes which positions the first layer of the answer has rows of then. */
static int find_positions(const struct analyze_options *o, struct asked *a, bool *wanted,
                          int64_t n_keys)
{
    int status = select_run(o, o->tokens, a->run);
    if (status)
        return status;
    queries_note(a->run, dmi_analyze_layer(a->answer, 0), wanted, n_keys);
    return select_run(o, NULL, a->run);
}

/* Words for tokens mean positions by what the run says of the request: those of its queries that are among them. */
static int find_queries(const struct analyze_options *o, struct asked *a)
{
    struct dmi_analyze_shape shape = { .size = sizeof shape };
    dmi_analyze_shape(a->answer, &shape);
    _cleanup_(freep) bool *wanted = calloc((size_t)shape.n_keys + 1, sizeof *wanted);
    a->queries = calloc(shape.n_queries + 1, sizeof *a->queries);
    if (!wanted || !a->queries)
        return no_memory();
    int status = find_positions(o, a, wanted, shape.n_keys);
    for (uint64_t i = 0; i < shape.n_queries && !status; i++)
        if (wanted[shape.queries[i]])
            a->queries[a->n_queries++] = shape.queries[i];
    if (status || a->n_queries)
        return status;
    complain("--tokens %s: no query of the request is among them", o->tokens);
    return ANALYZE_FAILED;
}

static int find_heads(const struct analyze_options *o, struct asked *a)
{
    struct dmi_analyze_shape shape = { .size = sizeof shape };
    dmi_analyze_shape(a->answer, &shape);
    struct ranges heads = slices_of(&o->heads, shape.n_heads);
    a->heads = calloc(shape.n_heads + 1u, sizeof *a->heads);
    if (!a->heads)
        return no_memory();
    for (uint32_t h = 0; h < shape.n_heads; h++)
        if (ranges_have(&heads, h))
            a->heads[a->n_heads++] = (struct dmi_analyze_head){ -1, h };
    if (a->n_heads)
        return ANALYZE_OK;
    complain("--heads: there is none of these: layers have %u heads", shape.n_heads);
    return ANALYZE_USAGE;
}

/* RUN or RUN:ID, either of which may hold colons: RUN is what lies there. */
static int open_prefix(const struct analyze_options *o, struct asked *a)
{
    char why[512];
    _cleanup_(freep) char *path = strdup(o->prefix);
    if (!path)
        return no_memory();
    const char *colon = o->prefix;
    while (access(path, F_OK) && (colon = strchr(colon, ':'))) {
        strcpy(path, o->prefix);
        path[colon - o->prefix] = 0;
        a->prefix_request = ++colon;
    }
    if (!opened_run(path, &a->prefix, why, sizeof why))
        return ANALYZE_OK;
    complain("--prefix: %s", why);
    return ANALYZE_USAGE;
}

static int open_vocabulary(const struct analyze_options *o, struct asked *a)
{
    struct err err = { 0 };
    if (!o->tokenizer || !vocabulary_open(&err, o->tokenizer, &a->vocabulary))
        return ANALYZE_OK;
    complain("--tokenizer: %s", err.msg);
    return ANALYZE_USAGE;
}

int asked_several(const struct analyze_options *o, struct asked *a)
{
    char why[512];
    int status = asked_open(o, a);
    a->request = o->request;
    a->request_bytes = o->request ? strlen(o->request) : 0;
    if (!status && o->prefix)
        status = open_prefix(o, a);
    if (!status && o->config && dmi_analyze_model_open(o->config, &a->model, why, sizeof why)) {
        complain("%s", why);
        status = ANALYZE_USAGE;
    }
    return status ? status : open_vocabulary(o, a);
}

int asked_request(const struct asked *a, const char *id, uint64_t n_id,
                  struct dmi_read_request *out)
{
    *out = (struct dmi_read_request){ .size = sizeof *out };
    for (uint64_t i = 0; !dmi_read_request(a->run, i, out); i++)
        if (out->id_bytes == n_id && !memcmp(out->id, id, n_id))
            return 0;
    return -ENOENT;
}

int64_t *asked_ids(struct asked *a, const char *request, uint64_t n_request, int64_t n_tokens)
{
    struct err err = { 0 };
    if (n_tokens < 0 || n_tokens > MOST_TOKENS) {
        complain("request %.*s: a prompt of %lld tokens", (int)n_request, request,
                 (long long)n_tokens);
        return NULL;
    }
    _cleanup_(freep) int64_t *ids = calloc((size_t)n_tokens + 1, sizeof *ids);
    int64_t n = ids ? ids_read(&err, a->run, request, n_request, NULL, n_tokens, ids) : -ENOMEM;
    if (n < 0)
        complain("%s", ids ? err.msg : "no memory");
    return n > 0 ? steal_ptr(ids) : NULL;
}

int asked_answer(const struct analyze_options *o, struct asked *a)
{
    int status = asked_several(o, a);
    if (!status)
        status = open_answer(o, a);
    if (!status && o->heads.n)
        status = find_heads(o, a);
    if (!status && o->tokens)
        status = find_queries(o, a);
    return status || !(o->heads.n || o->tokens) ? status : open_answer(o, a);
}

/* ------------------------------------------------------------------------- the proof */

int asked_judge(const struct analyze_options *o, struct asked *a)
{
    struct dmi_analyze_proof p = { .size = sizeof p };
    struct dmi_analyze_shape shape = { .size = sizeof shape };
    char why[1024];
    dmi_analyze_shape(a->answer, &shape);
    dmi_analyze_proof(a->answer, -1, -1, &p);
    if (!proof_refuses(&p, &shape, why, sizeof why))
        return ANALYZE_OK;
    edit_words_add(why, sizeof why, a->run,
                   edit_words_request(a->run, shape.request, shape.request_bytes));
    complain("%s%s", why, o->unchecked ? "" : "; --unchecked prints the answer");
    return o->unchecked ? ANALYZE_OK : ANALYZE_REFUSED;
}
