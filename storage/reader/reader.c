/* SPDX-License-Identifier: Apache-2.0 */
/* What programs call: one run, or those of ranks as one. */
#include "storage/reader/reader.h"

#include "core/any.h"
#include "core/cleanup.h"
#include "storage/reader/reader_steps.h"

#include <errno.h>
#include <string.h>

/* ------------------------------------------------------------------------- opening */

static int open_found(struct err *err, const struct reader_found *found, bool distrust,
                      struct reader **out)
{
    int res = found->n > 1 ? reader_open_ranks(err, found, out)
                           : reader_open_one(err, found->paths[0], distrust, out);
    if (res == -ENOTUNIQ && found->is_named)
        return *err = (struct err){ 0 },
               reader_open_one(err, found->paths[found->newest], distrust, out);
    if (res || found->n > 1 || !found->folder || !reader_note_alone(*out))
        return res;
    reader_close(*out);
    *out = NULL;
    return err_set_errno(err, ENOMEM, "cannot open %s", found->folder);
}

static int open_any(struct err *err, const char *path, bool distrust, struct reader **out)
{
    _cleanup_(reader_found_deinit) struct reader_found found = { 0 };
    TRY(reader_find_runs(err, path, &found));
    TRY(open_found(err, &found, distrust, out));
    (*out)->run.n_beside = found.n_beside;
    return 0;
}

static int open_all(struct err *err, const char *path, bool distrust, struct reader **out)
{
    int res = open_any(err, path, distrust, out);
    if (!res && (res = reader_select(err, *out, NULL))) {
        reader_close(*out);
        *out = NULL;
    }
    return res;
}

int reader_open_index(struct err *err, const char *path, struct reader **out)
{
    return open_any(err, path, false, out);
}

int reader_open(struct err *err, const char *path, struct reader **out)
{
    return open_all(err, path, false, out);
}

int reader_open_distrusting(struct err *err, const char *path, struct reader **out)
{
    return open_all(err, path, true, out);
}

void reader_close(struct reader *r)
{
    if (!r)
        return;
    reader_free_ranks(r);
    reader_close_one(r);
}

void reader_closep(struct reader **reader)
{
    reader_close(*reader);
}

/* ------------------------------------------------------------------------- what is done with it */

/* All steps once, some at a time. Return: also -EAGAIN. */
static int name_by_window(struct reader *r, struct reader_naming *naming)
{
    struct reader_step_place place = { 0 };
    struct reader_steps steps = { 0 };
    int res = 0;
    while (!res && !place.done) {
        res = reader_fill_steps(r, &place, &steps);
        if (!res)
            res = reader_name_take(naming, &steps);
    }
    reader_free_steps(&steps);
    return res;
}

static int name_once(struct reader *r)
{
    struct reader_naming *naming = reader_name_begin(&r->names, reader_is_by_window(r));
    if (!naming)
        return -ENOMEM;
    int res = reader_is_by_window(r) ? name_by_window(r, naming)
                                     : reader_name_take(naming, &r->selection.steps);
    reader_name_end(naming, !res);
    return res;
}

static int name_all(struct err *err, struct reader *r)
{
    int res = -EAGAIN;
    while (res == -EAGAIN) { /* at most once a segment */
        res = name_once(r);
        if (res == -EAGAIN && reader_select_again(err, r))
            return err->code;
        if (res == -EAGAIN && reader_sum(r)) /* of what was walked */
            res = -ENOMEM;
    }
    return res ? err_set_errno(err, -res, "cannot read the requests of %s", r->run.path) : 0;
}

/* Ids as they are shown, where all steps are selected. */
static int show_ids(struct err *err, struct reader *r)
{
    const struct reader_selection *s = &r->selection;
    bool all_steps = r->ranks || (s->made && (!s->have_query || s->query.all_steps));
    if (reader_is_by_window(r)) {
        reader_unname(&r->names); /* until a window is asked for */
        return 0;
    }
    int res = all_steps ? name_all(err, r) : 0;
    if (!res && all_steps && reader_show_ids(&r->names, &r->selection.steps))
        res = err_set_errno(err, ENOMEM, "cannot read the requests of %s", r->run.path);
    return res;
}

int reader_select(struct err *err, struct reader *r, const struct reader_query *query)
{
    int res = r->ranks ? reader_select_ranks(err, r, query) : reader_select_one(err, r, query);
    return res ? res : show_ids(err, r);
}

int reader_window(struct err *err, struct reader *r, uint64_t first, size_t most, uint64_t *next,
                  uint64_t *n_gone)
{
    if (r->ranks)
        return err_set(err, -EINVAL, "%s: runs of ranks are not read by window", r->run.path);
    int res = r->names.wanted ? name_all(err, r) : 0;
    if (!res)
        res = reader_window_one(err, r, first, most, next, n_gone);
    if (res == READER_E_AGAIN)
        reader_unname(&r->names);
    return res;
}

int reader_next_steps(struct err *err, struct reader *r, struct reader_step_place *place,
                      struct reader_steps *out)
{
    int res = r->names.wanted ? name_all(err, r) : 0;
    if (!res)
        res = reader_next_steps_one(err, r, place, out);
    if (res == READER_E_AGAIN)
        reader_unname(&r->names);
    return res;
}

int reader_refresh(struct err *err, struct reader *r)
{
    int res = r->ranks ? reader_refresh_ranks(err, r) : reader_refresh_one(err, r);
    return res ? res : show_ids(err, r);
}

int reader_decode(struct err *err, struct reader *r, const struct reader_record *rec, void *out)
{
    return r->ranks ? reader_decode_parts(err, r, rec, out) : reader_decode_one(err, r, rec, out);
}

int reader_verify(struct reader *r)
{
    struct err err = { 0 };
    if (!r->ranks)
        return reader_verify_one(r);
    int res = reader_verify_ranks(r);
    return res ? res : show_ids(&err, r);
}

/* ------------------------------------------------------------------------- what it is */

const struct reader_run *reader_run(const struct reader *r)
{
    return &r->run;
}

const char *reader_convention(const struct reader *r, const char *key)
{
    for (size_t i = 0; r->ranks && i < r->ranks->n; i++) {
        const char *value = reader_convention(r->ranks->runs[i], key);
        if (value)
            return value;
    }
    return FIRST(i, r->run.n_conventions, !strcmp(r->run.conventions[i].key, key),
                 r->run.conventions[i].value, NULL);
}

size_t reader_n_sites(const struct reader *r)
{
    return r->said.n_sites;
}

const struct dmi_site *reader_site(const struct reader *r, size_t i)
{
    return i < r->said.n_sites ? &r->said.sites[i] : NULL;
}
