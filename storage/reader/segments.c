/* SPDX-License-Identifier: Apache-2.0 */
/* Which segments a run has: those that came are added, those that were released are forgotten. */
#include "core/grow.h"
#include "storage/reader/reader_private.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>

int reader_add_segment(struct reader *r, int dir, const char *name, uint32_t number)
{
    struct reader_segment one;
    if (reader_find_segment(r, dir, name, number, &one))
        return 0;
    if (ONE_MORE(r->index.segments, r->index.n_segments)) {
        reader_close_segment(r, &one);
        return -ENOMEM;
    }
    r->index.segments[r->index.n_segments++] = one;
    return 0;
}

static bool is_known(const struct reader *r, size_t n_known, uint32_t number)
{
    size_t i;
    SEARCH(i, n_known, r->index.segments[i].number < number);
    return i < n_known && r->index.segments[i].number == number;
}

static int segment_order(const void *pa, const void *pb)
{
    const struct reader_segment *a = pa, *b = pb;
    return a->number < b->number ? -1 : a->number > b->number;
}

void reader_drop_released(struct reader *r)
{
    size_t n = 0;
    for (size_t i = 0; i < r->index.n_segments; i++) {
        struct reader_segment *s = &r->index.segments[i];
        if (!reader_released_chunks(r, s->number)) {
            r->index.segments[n++] = *s;
            continue;
        }
        reader_close_segment(r, s);
        reader_forget(&r->notes, s->number);
        reader_free_chunks(r, s);
    }
    r->index.n_segments = n;
}

int reader_list_segments(struct err *err, struct reader *r)
{
    DIR *dir = opendir(r->place.path);
    if (!dir)
        return err_set_errno(err, errno, "cannot open %s", r->place.path);
    size_t n_known = r->index.n_segments;
    const struct dirent *e;
    uint32_t number;
    int res = 0;
    while (!res && (e = readdir(dir)))
        if (reader_is_segment(e->d_name, &number) && !is_known(r, n_known, number) &&
            !reader_released_chunks(r, number))
            res = reader_add_segment(r, r->place.dir, e->d_name, number);
    closedir(dir);
    if (res)
        return err_set_errno(err, ENOMEM, "cannot open %s", r->place.path);
    SORT(r->index.segments, r->index.n_segments, segment_order);
    return 0;
}
