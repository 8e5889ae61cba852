/* SPDX-License-Identifier: Apache-2.0 */
/* The C ABI of <dmi/read.h>: what is selected, and what the run has of it. */
#include <dmi/read.h>

#include "core/abi.h"
#include "core/err.h"
#include "read/handle.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static int add_names(struct selection_names *to, const struct dmi_read_name *names, uint64_t n)
{
    int r = 0;
    for (uint64_t i = 0; !r && i < n; i++)
        r = selection_add_name(to, names[i].text, names[i].bytes);
    return r;
}

static int add_tokens(struct err *err, const struct dmi_read_selection *s, struct selection *out)
{
    struct token_word word = { (enum token_kind)s->tokens, { 0, INT64_MAX } };
    if (s->tokens > DMI_READ_TOKENS_LAST)
        return err_set(err, -EINVAL, "the selection has a kind of tokens that is none");
    if (s->tokens == DMI_READ_TOKENS_RANGE)
        word.slice = (struct slice){ s->first, s->end };
    if (s->tokens)
        out->tokens[out->n_tokens++] = word;
    return s->positions ? selection_add_tokens(err, "tokens", s->positions, out) : 0;
}

static int add_all(struct err *err, const struct dmi_read_selection *s, struct selection *out)
{
    const struct dmi_read_name request = { s->request, s->request_bytes };
    int r = add_names(&out->requests, &request, s->request != NULL);
    if (!r)
        r = add_names(&out->requests, s->requests, s->n_requests);
    if (!r)
        r = add_names(&out->sites, s->sites, s->n_sites);
    if (r)
        return err_set_errno(err, -r, "cannot select");
    if (s->layers)
        r = selection_add_layers(err, "layers", s->layers, out);
    return r ? r : add_tokens(err, s, out);
}

/* What the caller's struct says; what its size leaves out is 0. Return: 0, -EINVAL, -ENOMEM with a sentence in @err. */
static int take_selection(struct err *err, const struct dmi_read_selection *given,
                          struct selection *out, int32_t ranks[DMI_AXIS_COUNT])
{
    struct dmi_read_selection s = { 0 };
    *out = (struct selection){ 0 };
    if (given && abi_take_in(&s, sizeof s, given))
        return err_set(err, -EINVAL, "the struct's size was not set");
    if (s.reserved ||
        s.flags & ~(uint32_t)(DMI_READ_REJECTED | DMI_READ_SUPERSEDED | DMI_READ_FILL_CACHED))
        return err_set(err, -EINVAL, "the selection has a flag that is none");
    for (int a = 0; a < DMI_AXIS_COUNT; a++)
        ranks[a] = (int32_t)(s.ranks[a] - 1u);
    out->rejected = s.flags & DMI_READ_REJECTED;
    out->superseded = s.flags & DMI_READ_SUPERSEDED;
    out->fill_cached = s.flags & DMI_READ_FILL_CACHED;
    int r = add_all(err, &s, out);
    if (r)
        selection_deinit(out);
    return r;
}

static int check(struct err *err, const struct dmi_read *run, const struct selection *select)
{
    const struct view *v = &run->view;
    return missing_check(
        err, &(struct missing_from){ v->reader, &v->sites, &v->requests, &v->seen }, select);
}

/* From now on these, whose ranks the reader has. Return: 0; -errno, then nothing of the view is left. */
static int apply(struct err *err, struct dmi_read *run, const struct selection *select,
                 const int32_t ranks[DMI_AXIS_COUNT])
{
    run->select = *select;
    memcpy(run->ranks, ranks, sizeof run->ranks);
    view_empty(&run->view);
    handle_forget(run);
    int r =
        reader_run(run->view.reader)->n_runs > 1 ? reader_select(err, run->view.reader, NULL) : 0;
    if (!r)
        r = view_fill(err, &run->view, &run->select);
    run->failed = r != 0;
    return r;
}

static bool any_rank(const int32_t ranks[DMI_AXIS_COUNT])
{
    bool any = true;
    for (int a = 0; a < DMI_AXIS_COUNT; a++)
        any &= ranks[a] < 0;
    return any;
}

/* What the run has not only the records of these ranks say: then all is as before. */
static int replace(struct err *err, struct dmi_read *run, struct selection *select,
                   const int32_t ranks[DMI_AXIS_COUNT])
{
    struct selection before = run->select;
    int32_t ranks_before[DMI_AXIS_COUNT];
    struct err own = { 0 };
    memcpy(ranks_before, run->ranks, sizeof ranks_before);
    int r = apply(err, run, select, ranks);
    if (!r && !(r = check(err, run, &run->select))) {
        selection_deinit(&before);
        return 0;
    }
    *select = run->select;
    run->select = before;
    if (run->failed)
        return r;
    reader_only_ranks(run->view.reader, ranks_before);
    int undone = apply(&own, run, &before, ranks_before);
    return undone ? undone : r;
}

int dmi_read_select(struct dmi_read *run, const struct dmi_read_selection *selection)
{
    struct selection select;
    int32_t ranks[DMI_AXIS_COUNT];
    if (run->failed)
        return -EBADF;
    run->err = (struct err){ 0 };
    int r = take_selection(&run->err, selection, &select, ranks);
    if (r)
        return r;
    if (any_rank(ranks))
        reader_only_ranks(run->view.reader, ranks);
    else
        r = missing_ranks(&run->err, run->view.reader, ranks);
    if (r)
        reader_only_ranks(run->view.reader, run->ranks);
    else
        r = replace(&run->err, run, &select, ranks);
    if (r)
        selection_deinit(&select);
    return r;
}

int64_t dmi_read_match(struct dmi_read *run, const struct dmi_read_selection *selection,
                       uint64_t *tensors, uint64_t n_room)
{
    struct selection select;
    int32_t ranks[DMI_AXIS_COUNT];
    int64_t n = 0;
    if (run->failed)
        return -EBADF;
    run->err = (struct err){ 0 };
    TRY(take_selection(&run->err, selection, &select, ranks));
    selection_find_last(&select, run->view.reader);
    int r = check(&run->err, run, &select);
    for (size_t i = 0; !r && i < run->view.tensors.n; i++)
        if (selection_wants(&select, &run->view.tensors.all[i])) {
            if ((uint64_t)n < n_room)
                tensors[n] = i;
            n++;
        }
    selection_deinit(&select);
    return r ? r : n;
}
