/* SPDX-License-Identifier: Apache-2.0 */
#include "analyze/source.h"

#include "core/cleanup.h"
#include "core/err.h"
#include "core/grow.h"
#include "core/sorted.h"
#include "storage/elements.h"

#include <dmi/dtype.h>

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define ROWS_AT_ONCE     512  /* of whose places is asked */
#define ELEMENTS_AT_ONCE 4096 /* that are converted */

static int scale_of(struct err *err, struct dmi_read *run, uint32_t site, double *scale)
{
    struct dmi_read_site about = { .size = sizeof about };
    if (dmi_read_site(run, site, &about))
        return err_set(err, -EIO, "%s", dmi_read_error(run));
    *scale = about.scale == 0.0 ? 1.0 : about.scale;
    return 0;
}

static bool goes_on(const struct source_piece *p, const struct dmi_read_row *row, double scale)
{
    return p->position + (int64_t)p->n == row->position && p->scale == scale &&
           p->donated == (row->donor != 0);
}

static int add_row(struct err *err, struct tensor_source *s, const struct dmi_read_row *row,
                   uint64_t number)
{
    double scale = 1;
    struct source_piece *last = s->n ? &s->pieces[s->n - 1] : NULL;
    if (row->position < 0)
        return err_set(err, -EINVAL, "%s: the run does not say which tokens its rows are of",
                       s->about.key);
    if (last && row->position < last->position + (int64_t)last->n)
        return err_set(err, -EINVAL, "%s: position %" PRId64 " has several rows", s->about.key,
                       row->position);
    if (scale_of(err, s->run, row->site, &scale))
        return -EIO;
    if (last && goes_on(last, row, scale)) {
        last->n++;
        return 0;
    }
    if (PUSH(s->pieces, s->n, s->room, 64,
             (struct source_piece){ row->position, number, 1, scale, row->donor != 0 }))
        return err_set(err, -ENOMEM, "no memory for the rows of %s", s->about.key);
    return 0;
}

static int find_pieces(struct err *err, struct tensor_source *s)
{
    _cleanup_(freep) struct dmi_read_row *rows = calloc(ROWS_AT_ONCE, sizeof *rows);
    if (!rows)
        return err_set(err, -ENOMEM, "no memory for the rows of %s", s->about.key);
    for (uint64_t at = 0; at < s->about.n_rows;) {
        uint64_t n = s->about.n_rows - at < ROWS_AT_ONCE ? s->about.n_rows - at : ROWS_AT_ONCE;
        int r = dmi_read_rows(s->run, s->tensor, at, n, NULL, 0, rows, sizeof *rows);
        if (r)
            return err_set(err, r, "%s: %s", s->about.key, dmi_read_error(s->run));
        for (uint64_t i = 0; i < n; i++)
            if ((r = add_row(err, s, &rows[i], at + i)))
                return r;
        at += n;
    }
    return 0;
}

int sources_add(struct err *err, struct sources *sources, struct dmi_read *run, uint64_t tensor,
                bool bare, bool foreign)
{
    struct tensor_source *s = &sources->all[sources->n];
    *s = (struct tensor_source){ .run = run, .tensor = tensor, .bare = bare, .foreign = foreign };
    s->about.size = sizeof s->about;
    if (sources->n == SOURCES_MOST || dmi_read_tensor(run, tensor, &s->about))
        return err_set(err, -EIO, "%s", dmi_read_error(run));
    if (s->about.mixed == 1)
        return err_set(err, -EINVAL, "%s: its type or width changes from record to record",
                       s->about.key);
    if (!dmi_dtype_is_float(s->about.dtype))
        return err_set(err, -EINVAL, "%s holds %s, no floating-point numbers", s->about.key,
                       dmi_dtype_info(s->about.dtype) ? dmi_dtype_info(s->about.dtype)->name
                                                      : "an unknown type");
    sources->n++;
    return find_pieces(err, s);
}

void sources_deinit(struct sources *sources)
{
    for (size_t i = 0; i < sources->n; i++)
        free(sources->all[i].pieces);
    *sources = (struct sources){ 0 };
}

/* Index of the last piece that begins at or before a position, or -1. */
static int64_t piece_before(const struct tensor_source *s, int64_t position)
{
    size_t i;
    SEARCH(i, s->n, s->pieces[i].position <= position);
    return (int64_t)i - 1;
}

/* The piece with a position. Return: NULL, and *@next is the first position after it that has one, or @limit. */
static const struct source_piece *piece_at(const struct tensor_source *s, int64_t position,
                                           int64_t limit, int64_t *next)
{
    int64_t i = piece_before(s, position);
    if (i >= 0 && position < s->pieces[i].position + (int64_t)s->pieces[i].n)
        return &s->pieces[i];
    *next = i + 1 < (int64_t)s->n && s->pieces[i + 1].position < limit ? s->pieces[i + 1].position
                                                                       : limit;
    return NULL;
}

const struct tensor_source *sources_at(const struct sources *sources, int64_t position,
                                       uint64_t most, uint64_t *n)
{
    int64_t end = position + (int64_t)most, next = end;
    for (size_t i = 0; i < sources->n; i++) {
        const struct tensor_source *s = &sources->all[i];
        const struct source_piece *p = piece_at(s, position, end, &next);
        if (p) {
            int64_t after = p->position + (int64_t)p->n;
            *n = (uint64_t)((after < end ? after : end) - position);
            return s;
        }
        end = next; /* from there on this one has it */
    }
    *n = (uint64_t)(end - position);
    return NULL;
}

/* Counts borrowed rows among @n positions, which one source holds. */
static uint64_t borrowed_of(const struct tensor_source *s, int64_t position, uint64_t n)
{
    uint64_t found = 0;
    for (int64_t at = position, end = position + (int64_t)n, next; at < end; at = next) {
        const struct source_piece *p = piece_at(s, at, end, &next);
        next = p ? p->position + (int64_t)p->n : next;
        next = next < end ? next : end;
        found += p && (s->foreign || p->donated) ? (uint64_t)(next - at) : 0;
    }
    return found;
}

bool sources_borrow(const struct sources *sources, int64_t position)
{
    uint64_t n;
    const struct tensor_source *s = sources_at(sources, position, 1, &n);
    return s && borrowed_of(s, position, 1);
}

uint64_t sources_borrowed(const struct sources *sources, int64_t end)
{
    uint64_t found = 0, n;
    for (int64_t at = 0; at < end; at += (int64_t)n) {
        const struct tensor_source *s = sources_at(sources, at, (uint64_t)(end - at), &n);
        found += s ? borrowed_of(s, at, n) : 0;
    }
    return found;
}

/* Rows of one piece, as they are stored, to floats. */
static void convert(const struct tensor_source *s, const struct source_piece *p, const uint8_t *raw,
                    uint64_t n, float *out)
{
    double values[ELEMENTS_AT_ONCE];
    uint32_t size = dmi_dtype_bytes(s->about.dtype);
    for (uint64_t at = 0; at < n; at += ELEMENTS_AT_ONCE) {
        uint64_t some = n - at < ELEMENTS_AT_ONCE ? n - at : ELEMENTS_AT_ONCE;
        elements_to_true(s->about.dtype, raw + at * size, some, p->scale, values);
        for (uint64_t i = 0; i < some; i++)
            out[at + i] = (float)values[i];
    }
}

static int read_piece(struct err *err, const struct tensor_source *s, const struct source_piece *p,
                      int64_t position, uint64_t n, float *out)
{
    bool as_is = s->about.dtype == DMI_DTYPE_F32 && p->scale == 1;
    uint64_t n_bytes = n * s->about.row_bytes;
    _cleanup_(freep) void *room = as_is ? NULL : malloc(n_bytes + 1);
    void *raw = as_is ? out : room;
    if (!raw)
        return err_set(err, -ENOMEM, "no memory for rows of %s", s->about.key);
    int r = dmi_read_rows(s->run, s->tensor, p->row + (uint64_t)(position - p->position), n, raw,
                          n_bytes, NULL, 0);
    if (r == -EBADMSG)
        return err_set(err, r, "%s: rows of positions %" PRId64 " to %" PRId64 " are damaged",
                       s->about.key, position, position + (int64_t)n - 1);
    if (r)
        return err_set(err, r, "%s: %s", s->about.key, dmi_read_error(s->run));
    if (!as_is)
        convert(s, p, raw, n * s->about.width, out);
    return 0;
}

int source_read(struct err *err, const struct tensor_source *s, int64_t position, uint64_t n,
                float *out)
{
    while (n) {
        int64_t next, end = position + (int64_t)n;
        const struct source_piece *p = piece_at(s, position, end, &next);
        if (!p)
            return err_set(err, -ERANGE, "%s has no row of position %" PRId64, s->about.key,
                           position);
        int64_t after = p->position + (int64_t)p->n;
        uint64_t some = (uint64_t)((after < end ? after : end) - position);
        TRY(read_piece(err, s, p, position, some, out));
        out += some * s->about.width;
        position += (int64_t)some;
        n -= some;
    }
    return 0;
}
