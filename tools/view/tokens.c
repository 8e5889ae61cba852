/* SPDX-License-Identifier: Apache-2.0 */
/* Ids of the tokens of each request, and what these stand for where a vocabulary says it. */
#include "tools/view/view.h"

#include "analyze/ids.h"
#include "analyze/vocabulary.h"
#include "core/cleanup.h"
#include "read/value.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define HEAD_BYTES 200 /* of a request, beside its ids, at most */
#define TEXT_BYTES 24  /* of a token, beside its text */

enum met { NOT_MET = 0, MET = 1, MET_NOW = 2 };

struct tokens {
    struct view_report *report;
    const struct vocabulary *vocabulary; /* NULL: none */
    uint64_t room;                       /* bytes of the document that are left for it */
    uint8_t *met;                        /* enum met, one an id of the vocabulary */
    uint64_t n_left_out;                 /* requests */
};

/* Takes the texts of these ids in. Return: bytes in the document of those that are new. */
static uint64_t take_texts(const struct tokens *t, const int32_t *ids, int64_t n)
{
    uint64_t cost = 0;
    size_t length;
    for (int64_t i = 0; t->vocabulary && i < n; i++)
        if (vocabulary_bytes(t->vocabulary, ids[i], &length) && t->met[ids[i]] == NOT_MET) {
            cost += TEXT_BYTES + 6 * length; /* a byte may be written out */
            t->met[ids[i]] = MET_NOW;
        }
    return cost;
}

/* Keeps the texts that were taken in last, or leaves them out again. */
static void settle_texts(const struct tokens *t, const int32_t *ids, int64_t n, enum met as)
{
    for (int64_t i = 0; t->vocabulary && i < n; i++)
        if (ids[i] >= 0 && (uint64_t)ids[i] < t->vocabulary->n && t->met[ids[i]] == MET_NOW)
            t->met[ids[i]] = (uint8_t)as;
}

/* Ids as the page has them: -1 where the run has none, or one that no vocabulary has. */
static int32_t *narrow(const int64_t *ids, int64_t n)
{
    int32_t *out = calloc((size_t)n + 1, sizeof *out);
    for (int64_t i = 0; out && i < n; i++)
        out[i] = ids[i] < 0 || ids[i] > INT32_MAX ? -1 : (int32_t)ids[i];
    return out;
}

static int add_request(struct err *err, struct tokens *t, uint64_t index,
                       const struct dmi_read_request *r)
{
    struct document *d = &t->report->document;
    int64_t n = r->end_position;
    bool fits = n > 0 && (uint64_t)n < t->room / 4;
    _cleanup_(freep) int64_t *ids = fits ? calloc((size_t)n, sizeof *ids) : NULL;
    t->n_left_out += n > 0 && !fits;
    if (!fits)
        return 0;
    if (!ids)
        return err_set_errno(err, ENOMEM, "cannot read the tokens");
    int64_t known = ids_read(NULL, t->report->run, r->id, r->id_bytes, NULL, n, ids);
    if (known <= 0)
        return 0; /* no ids, or a site of this name that holds something else */
    _cleanup_(freep) int32_t *shown = narrow(ids, n);
    if (!shown)
        return err_set_errno(err, ENOMEM, "cannot read the tokens");
    uint64_t cost = HEAD_BYTES + document_cost(4 * (uint64_t)n) + take_texts(t, shown, n);
    settle_texts(t, shown, n, cost > t->room ? NOT_MET : MET);
    if (cost > t->room) {
        t->n_left_out++;
        return 0;
    }
    t->room -= cost;
    document_begin(d, NULL, '{');
    document_add(d, "request", value_u64(index));
    document_add(d, "id", document_bytes(r->id, r->id_bytes));
    document_integers(d, "ids", shown, (size_t)n);
    document_end(d, '}');
    return 0;
}

static int add_requests(struct err *err, struct tokens *t)
{
    struct dmi_read_request r = { .size = sizeof r };
    int e = 0;
    document_begin(&t->report->document, "tokens", '[');
    for (uint64_t i = 0; !e && !dmi_read_request(t->report->run, i, &r); i++)
        if (view_is_chosen(t->report, &r))
            e = add_request(err, t, i, &r);
    document_end(&t->report->document, ']');
    return e;
}

static void add_texts(const struct tokens *t)
{
    struct document *d = &t->report->document;
    document_begin(d, "texts", '{');
    for (uint64_t id = 0; t->vocabulary && id < t->vocabulary->n; id++) {
        char key[24];
        size_t n;
        const char *bytes = vocabulary_bytes(t->vocabulary, (int64_t)id, &n);
        snprintf(key, sizeof key, "%" PRIu64, id);
        if (t->met[id])
            document_add(d, key, document_bytes(bytes, n));
    }
    document_end(d, '}');
}

/* Rows of all sites and tokens, those that a prefix cache had, too. */
static int select_all(struct err *err, struct dmi_read *run)
{
    const struct dmi_read_selection all = { .size = sizeof all, .flags = DMI_READ_FILL_CACHED };
    int r = dmi_read_select(run, &all);
    return r ? err_set(err, r, "%s", dmi_read_error(run)) : 0;
}

int view_tokens(struct err *err, struct view_report *report)
{
    struct vocabulary vocabulary = { 0 };
    struct tokens t = { .report = report, .room = view_room(report) / 4 };
    int r = report->tokenizer ? vocabulary_open(err, report->tokenizer, &vocabulary) : 0;
    t.vocabulary = vocabulary.n ? &vocabulary : NULL;
    t.met = calloc(vocabulary.n + 1, sizeof *t.met);
    if (!r && !t.met)
        r = err_set_errno(err, ENOMEM, "cannot read the tokens");
    if (!r)
        r = select_all(err, report->run);
    if (!r)
        r = add_requests(err, &t);
    if (!r)
        add_texts(&t);
    if (t.n_left_out)
        view_leave_out(report, "the tokens of %" PRIu64 " requests are left out", t.n_left_out);
    free(t.met);
    vocabulary_deinit(&vocabulary);
    return r;
}
