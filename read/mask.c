/* SPDX-License-Identifier: Apache-2.0 */
#include "read/mask.h"

#include "core/cleanup.h"
#include "core/grow.h"
#include "core/regular.h"
#include "core/words.h"
#include "read/utf8.h"
#include "read/value.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define MOST_SHOWN 60 /* bytes of a value in a sentence */

/* ------------------------------------------------------------------------- a line */

/* Where in the file something is wrong. */
struct at {
    struct err *err;
    const char *path;
    uint64_t line;
};

#define wrong(at, format, ...)                                                                     \
    err_set((at)->err, -EINVAL, "%s:%" PRIu64 ": " format, (at)->path, (at)->line, ##__VA_ARGS__)

/* A value as JSON text, cut where it is long. */
static void show(struct text *to, const json_t *value)
{
    value_add(to, value);
    if (to->n > MOST_SHOWN) {
        to->n = MOST_SHOWN;
        text_printf(to, "...");
    }
}

static int add_ones(struct mask *m, int64_t first, int64_t end)
{
    return PUSH(m->ones, m->n_ones, m->room, 4, (struct range){ first, end });
}

/* Ones that follow one another are one range. */
static int add_one(struct mask *m, int64_t at)
{
    struct range *last = m->n_ones ? &m->ones[m->n_ones - 1] : NULL;
    if (!last || last->end < at)
        return add_ones(m, at, at + 1);
    last->end++;
    return 0;
}

static int take_list(const struct at *at, struct mask *m, const json_t *list)
{
    size_t i;
    const json_t *v;
    m->is_list = true;
    m->n_tokens = (int64_t)json_array_size(list);
    json_array_foreach(list, i, v)
    {
        json_int_t one = json_is_integer(v) ? json_integer_value(v) : -1;
        if (one != 0 && one != 1) {
            _cleanup_(text_deinit) struct text t = { 0 };
            show(&t, v);
            return wrong(at, "entry %zu of \"mask\", %s, is neither 0 nor 1", i,
                         t.data ? t.data : "?");
        }
        if (one && add_one(m, (int64_t)i))
            return err_set_errno(at->err, ENOMEM, "cannot read %s", at->path);
    }
    return json_is_array(list) ? 0
                               : wrong(at, "\"mask\" is no list of numbers, each neither 0 nor 1");
}

static int take_spans(const struct at *at, struct mask *m, const json_t *list)
{
    size_t i;
    const json_t *v;
    json_array_foreach(list, i, v)
    {
        const json_t *first = json_array_get(v, 0), *end = json_array_get(v, 1);
        bool good = json_array_size(v) == 2 && json_is_integer(first) && json_is_integer(end) &&
                    json_integer_value(first) >= 0 &&
                    json_integer_value(end) >= json_integer_value(first);
        if (!good) {
            _cleanup_(text_deinit) struct text t = { 0 };
            show(&t, v);
            return wrong(at, "span %s is no half-open range [A, B] of token positions, 0 <= A <= B",
                         t.data ? t.data : "?");
        }
        if (add_ones(m, json_integer_value(first), json_integer_value(end)))
            return err_set_errno(at->err, ENOMEM, "cannot read %s", at->path);
    }
    return json_is_array(list) ? 0 : wrong(at, "\"spans\" is no list of ranges [A, B]");
}

static int take_id(const struct at *at, struct masks *out, struct mask *m, const json_t *id)
{
    if (!json_is_string(id))
        return wrong(at, "\"request\" must be there and be a request's id, a string");
    m->n_id = json_string_length(id);
    m->id = malloc(m->n_id + 1);
    size_t *index = NULL;
    if (m->id) {
        memcpy(m->id, json_string_value(id), m->n_id + 1);
        index = map_at(&out->by_id, m->id, m->n_id);
    }
    if (!index)
        return err_set_errno(at->err, ENOMEM, "cannot read %s", at->path);
    if (*index != MAP_NONE)
        return wrong(at, "request '%s' has a line already, line %" PRIu64 ": one line a request",
                     m->id, out->all[*index].line);
    *index = out->n - 1;
    return 0;
}

static int take_line(const struct at *at, struct masks *out, const char *line, size_t n)
{
    json_error_t e;
    json_t *o = json_loadb(line, n, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &e);
    if (!o)
        return wrong(at, "no JSON: %s (column %d)", e.text, e.column);
    const json_t *spans = json_object_get(o, "spans"), *list = json_object_get(o, "mask");
    int r = 0;
    if (grow((void **)&out->all, out->n, &out->room, sizeof *out->all, 64))
        r = err_set_errno(at->err, ENOMEM, "cannot read %s", at->path);
    else
        out->all[out->n++] = (struct mask){ .line = at->line };
    struct mask *m = r ? NULL : &out->all[out->n - 1];
    if (!r && !json_is_object(o))
        r = wrong(at, "a line is an object {\"request\": ID, \"spans\": [[A, B], ...]}");
    if (!r)
        r = take_id(at, out, m, json_object_get(o, "request"));
    if (!r && !spans == !list)
        r = wrong(at, "a line has either \"spans\" or \"mask\", and this one has %s",
                  spans ? "both" : "neither");
    if (!r)
        r = spans ? take_spans(at, m, spans) : take_list(at, m, list);
    json_decref(o);
    return r;
}

/* ------------------------------------------------------------------------- the file */

static bool is_empty(const char *line)
{
    return !line[strspn(line, " \t\r\n")];
}

int masks_read(struct err *err, const char *path, struct masks *out)
{
    uint64_t n_bytes;
    int fd = regular_open(err, path, INT64_MAX, &n_bytes);
    if (fd < 0)
        return fd;
    _cleanup_(fclosep) FILE *f = fdopen(fd, "re");
    _cleanup_(freep) char *line = NULL;
    size_t room = 0;
    struct at at = { err, path, 0 };
    *out = (struct masks){ .path = strdup(path) };
    int r = f && out->path ? 0 : err_set_errno(err, f ? ENOMEM : errno, "cannot read %s", path);
    for (ssize_t n; !r && (n = getline(&line, &room, f)) > 0;) {
        at.line++;
        if (memchr(line, 0, (size_t)n) || !is_empty(line))
            r = take_line(&at, out, line, (size_t)n);
    }
    if (!r && ferror(f))
        r = err_set_errno(err, errno, "cannot read %s", path);
    if (r)
        masks_deinit(out);
    return r;
}

void masks_deinit(struct masks *masks)
{
    for (size_t i = 0; i < masks->n; i++) {
        free(masks->all[i].id);
        free(masks->all[i].ones);
    }
    free(masks->all);
    free(masks->path);
    map_deinit(&masks->by_id);
    *masks = (struct masks){ 0 };
}

/* ------------------------------------------------------------------------- their requests */

static struct mask *find(const struct masks *masks, const char *id, size_t n_id, bool *failed)
{
    _cleanup_(text_deinit) struct text shown = { 0 };
    utf8_add_valid(&shown, id, n_id);
    *failed = shown.failed;
    size_t i = *failed ? MAP_NONE : map_get(&masks->by_id, shown.n ? shown.data : "", shown.n);
    return i == MAP_NONE ? NULL : &masks->all[i];
}

const struct mask *masks_find(const struct masks *masks, const char *id, size_t n_id)
{
    bool failed;
    return find(masks, id, n_id, &failed);
}

static int check(const struct at *at, const struct mask *m, const struct request *q)
{
    if (m->is_list && m->n_tokens != q->end)
        return wrong(at,
                     "the mask has %" PRId64 " %s, and %" PRId64 " %s of request '%s' %s computed: "
                     "one entry a token (a token that was sampled last was never computed)",
                     m->n_tokens, word_for((uint64_t)m->n_tokens, "entry", "entries"), q->end,
                     word_for((uint64_t)q->end, "token", "tokens"), m->id,
                     word_for((uint64_t)q->end, "was", "were"));
    for (size_t i = 0; i < m->n_ones; i++)
        if (m->ones[i].end > q->end)
            return wrong(at,
                         "span [%" PRId64 ", %" PRId64 "] ends after the %" PRId64
                         " %s of request '%s' that %s computed: half-open, [A, B] with B <= "
                         "%" PRId64,
                         m->ones[i].first, m->ones[i].end, q->end,
                         word_for((uint64_t)q->end, "token", "tokens"), m->id,
                         word_for((uint64_t)q->end, "was", "were"), q->end);
    return 0;
}

int masks_match(struct err *err, struct masks *masks, const struct requests *requests)
{
    int r = 0;
    for (size_t i = 0; !r && i < requests->n; i++) {
        const struct request *q = &requests->all[i];
        bool failed;
        struct mask *m = find(masks, q->id, q->n_id, &failed);
        if (failed)
            return err_set_errno(err, ENOMEM, "cannot match %s", masks->path);
        if (!m)
            continue;
        struct at at = { err, masks->path, m->line };
        r = m->met ? wrong(&at,
                           "'%s' are two requests: give each run a file of its own, and go on "
                           "with --append",
                           m->id)
                   : check(&at, m, q);
        m->met = true;
    }
    return r;
}

void mask_fill(const struct mask *m, int64_t first, size_t n, int64_t *out)
{
    memset(out, 0, n * sizeof *out);
    for (size_t i = 0; i < m->n_ones; i++) {
        int64_t at = m->ones[i].first > first ? m->ones[i].first : first;
        int64_t end = m->ones[i].end - first < (int64_t)n ? m->ones[i].end : first + (int64_t)n;
        for (; at < end; at++)
            out[at - first] = 1;
    }
}
