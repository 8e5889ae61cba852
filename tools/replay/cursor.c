/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/replay/cursor.h"

#include "core/any.h"
#include "core/cleanup.h"
#include "core/err.h"
#include "read/value.h"
#include "storage/codec/hash.h"
#include "storage/file.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define FORMAT  "dmi-cursor"
#define VERSION 2 /* 1 had neither a checksum nor a tail */
#define MOST    (64u << 20)

/* Numbers of 64 bits go as two's complement: JSON's integers are signed. */
static json_t *number(uint64_t v)
{
    return json_integer((json_int_t)v);
}

/* ------------------------------------------------------------------------- reading */

/* Of the object without it, as JSON in one form: a disk or an editor that changes a cursor does not change its checksum. */
static uint64_t checksum(const json_t *cursor)
{
    char *text = json_dumps(cursor, JSON_COMPACT | JSON_SORT_KEYS);
    uint64_t hash = text ? hash_bytes(text, strlen(text)) : 0;
    free(text);
    return hash;
}

static bool is_sound(json_t *cursor)
{
    bool said = json_is_integer(json_object_get(cursor, "checksum"));
    uint64_t hash = object_number(cursor, "checksum");
    json_object_del(cursor, "checksum");
    return said && hash == checksum(cursor);
}

int cursor_read(struct err *err, struct cursor *c)
{
    c->mark = (struct sink_mark){ 0 };
    c->n_items = c->n_requests = 0;
    c->read = NULL;
    if (!c->path)
        return 0;
    struct err why = { 0 };
    c->read = value_read(&why, c->path, MOST, 0);
    if (why.code && why.code != -EINVAL && why.code != -EFBIG && why.code != -EBADMSG)
        return why.code == -ENOENT
                   ? 0
                   : err_set_errno(err, -why.code, "cannot read the cursor %s", c->path);
    if (!c->read || strcmp(object_text_or(c->read, "format", ""), FORMAT) ||
        object_number(c->read, "version") != VERSION)
        return err_set(err, -EINVAL, "%s is no cursor of this version: name another file", c->path);
    if (!is_sound(c->read))
        return err_set(err, -EINVAL,
                       "the cursor %s does not match its checksum: it is not known what was taken; "
                       "remove it and the output to begin again",
                       c->path);
    if (strcmp(object_text_or(c->read, "choice", ""), c->choice))
        return err_set(err, -EINVAL,
                       "the cursor %s is of another replay (%s), not of this one (%s): give the "
                       "same options, or another cursor",
                       c->path, object_text_or(c->read, "choice", ""), c->choice);
    c->mark = (struct sink_mark){ object_number(c->read, "bytes"), object_number(c->read, "tail") };
    c->n_items = object_number(c->read, "items");
    c->n_requests = object_number(c->read, "requests");
    return 0;
}

void cursor_deinit(struct cursor *c)
{
    json_decref(c->read);
    c->read = NULL;
}

static int apply(struct err *err, struct replay_source *s, const json_t *o)
{
    const json_t *sent = json_object_get(o, "sent"), *said = json_object_get(o, "said");
    s->sent = (struct position){ .any = json_is_object(sent),
                                 .chunk = object_number(sent, "chunk"),
                                 .launch = object_number(sent, "launch"),
                                 .forward = object_number(sent, "forward"),
                                 .occurrence = (uint32_t)object_number(sent, "occurrence"),
                                 .site = (uint32_t)object_number(sent, "site"),
                                 .record = (uint32_t)object_number(sent, "record") };
    s->said = (struct moment){ object_number(said, "time_ns"), object_number(said, "step"),
                               (uint32_t)object_number(said, "span") };
    s->n_records = object_number(o, "records");
    s->n_rows = object_number(o, "rows");
    s->n_bytes = object_number(o, "payload");
    s->n_lost = object_number(o, "not_decoded");
    s->done = json_is_true(json_object_get(o, "done"));
    return source_seek(err, s);
}

static struct replay_source *find(struct replay_source *sources, size_t n, const char *uuid)
{
    return FIRST(i, n, !strcmp(reader_run(sources[i].reader)->uuid, uuid), &sources[i], NULL);
}

int cursor_apply(struct err *err, const struct cursor *c, struct replay_source *sources, size_t n)
{
    size_t i;
    const json_t *o;
    json_array_foreach(json_object_get(c->read, "runs"), i, o)
    {
        struct replay_source *s = find(sources, n, object_text_or(o, "uuid", ""));
        if (!s)
            return err_set(err, -EINVAL,
                           "the cursor %s is of run %s, which is not among those that are given: "
                           "give that run, or another cursor",
                           c->path, object_text_or(o, "uuid", ""));
        TRY(apply(err, s, o));
    }
    return 0;
}

const char **cursor_taken(const struct replay_source *sources, size_t n)
{
    const char **all = calloc(n + 1, sizeof *all);
    size_t n_taken = 0;
    for (size_t i = 0; all && i < n; i++)
        if (sources[i].n_records)
            all[n_taken++] = reader_run(sources[i].reader)->uuid;
    return all;
}

bool cursor_is_done(const struct replay_source *sources, size_t n)
{
    return ALL(i, n, sources[i].done);
}

/* ------------------------------------------------------------------------- writing */

static json_t *position_value(const struct position *p)
{
    if (!p->any)
        return json_null();
    return json_pack("{s:o, s:o, s:o, s:I, s:I, s:I}", "chunk", number(p->chunk), "launch",
                     number(p->launch), "forward", number(p->forward), "occurrence",
                     (json_int_t)p->occurrence, "site", (json_int_t)p->site, "record",
                     (json_int_t)p->record);
}

static json_t *source_value(const struct replay_source *s)
{
    json_t *said = json_pack("{s:o, s:o, s:I}", "time_ns", number(s->said.time_ns), "step",
                             number(s->said.step), "span", (json_int_t)s->said.span);
    return VALUE_OBJECT({ "uuid", json_string(reader_run(s->reader)->uuid) },
                        { "sent", position_value(&s->sent) }, { "said", said },
                        { "records", number(s->n_records) }, { "rows", number(s->n_rows) },
                        { "payload", number(s->n_bytes) }, { "not_decoded", number(s->n_lost) },
                        { "done", json_boolean(s->done) });
}

int cursor_write(struct err *err, const struct cursor *c, const struct replay_source *sources,
                 size_t n)
{
    _cleanup_(text_deinit) struct text t = { 0 };
    if (!c->path)
        return 0;
    json_t *runs = json_array();
    for (size_t i = 0; i < n; i++)
        json_array_append_new(runs, source_value(&sources[i]));
    json_t *cursor =
        VALUE_OBJECT({ "format", json_string(FORMAT) }, { "version", json_integer(VERSION) },
                     { "choice", json_string(c->choice) }, { "bytes", number(c->mark.n_bytes) },
                     { "tail", number(c->mark.tail) }, { "items", number(c->n_items) },
                     { "requests", number(c->n_requests) }, { "runs", runs });
    if (cursor)
        json_object_set_new(cursor, "checksum", number(checksum(cursor)));
    value_add_new(&t, cursor);
    text_add(&t, "\n", 1);
    int r = t.failed ? -ENOMEM : file_replace(c->path, t.data, t.n, 0);
    return r ? err_set_errno(err, -r, "cannot write the cursor %s", c->path) : 0;
}
