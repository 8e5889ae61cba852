/* SPDX-License-Identifier: Apache-2.0 */
/* The run of a command line, opened and selected, and an answer about its request. A program of one thread. */
#pragma once

#include "analyze/vocabulary.h"
#include "tools/analyze/options.h"

#include <dmi/analyze.h>

struct asked {
    struct dmi_read *run;
    struct dmi_read *prefix;    /* NULL: none was named */
    const char *prefix_request; /* NULL: the only one */
    const char *request;        /* any bytes; NULL: the only one */
    uint64_t request_bytes;
    struct dmi_analyze_model *model; /* NULL: none is known */
    struct dmi_analyze *answer;      /* NULL: asked_open() alone was called */
    int64_t *queries;                /* that --tokens names; NULL: all */
    uint64_t n_queries;
    struct dmi_analyze_head *heads; /* that --heads names; NULL: all */
    uint64_t n_heads;
    struct vocabulary vocabulary; /* of --tokenizer */
};

/* Opens the run and selects request and ranks. What is wrong is said. Return: ANALYZE_OK or an exit status; asked_close() in any case. */
int asked_open(const struct analyze_options *options, struct asked *out);

/* The same, and the answer that heads, layers and tokens of the options mean. */
int asked_answer(const struct analyze_options *options, struct asked *out);
/* The same without heads and tokens of the options, and no answer yet: for several requests. */
int asked_several(const struct analyze_options *options, struct asked *out);

/*
 * The answer about request, heads and queries that @asked has now, in the place of the one before. Return: 0; -errno, and @why says it.
 */
int asked_next(const struct analyze_options *options, struct asked *asked, char *why,
               uint64_t n_why);

/* The request of an id. Return: 0; -ENOENT: the run has none. */
int asked_request(const struct asked *asked, const char *id, uint64_t n_id,
                  struct dmi_read_request *out);

/* What --tokenizer says of tokens; NULL: it was not given. */
static inline const struct vocabulary *asked_vocabulary(const struct asked *asked)
{
    return asked->vocabulary.n ? &asked->vocabulary : NULL;
}

/**
 * asked_ids() - the ids of a request's tokens, as far as the run has them
 * Return: to be freed; NULL: it has none, or what is wrong is said.
 */
int64_t *asked_ids(struct asked *asked, const char *request, uint64_t n_request, int64_t n_tokens);

/* Whether the run may grow still. */
bool asked_goes_on(const struct asked *asked);

/* Accepts a zeroed struct. */
void asked_close(struct asked *asked);

/**
 * asked_judge() - whether an answer may be given, once it was computed
 * Says why it may not be, or (--unchecked) why it should not. Return: ANALYZE_OK or ANALYZE_REFUSED.
 */
int asked_judge(const struct analyze_options *options, struct asked *asked);
