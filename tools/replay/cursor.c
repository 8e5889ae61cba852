/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/replay/cursor.h"

#include "core/cleanup.h"
#include "read/value.h"
#include "storage/file.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define FORMAT  "dmi-cursor"
#define VERSION 1

/* Numbers of 64 bits go as two's complement: JSON's integers are signed. */
static json_t *number(uint64_t v)
{
    return json_integer((json_int_t)v);
}

static uint64_t number_of(const json_t *object, const char *key)
{
    return (uint64_t)json_integer_value(json_object_get(object, key));
}

static const char *text_of(const json_t *object, const char *key)
{
    const char *s = json_string_value(json_object_get(object, key));
    return s ? s : "";
}

/* ------------------------------------------------------------------------- reading */

int cursor_read(struct err *err, struct cursor *c)
{
    json_error_t why;
    c->n_bytes = c->n_items = c->n_requests = 0;
    c->read = NULL;
    if (!c->path)
        return 0;
    FILE *f = fopen(c->path, "re");
    if (!f && errno == ENOENT)
        return 0;
    if (!f)
        return err_set_errno(err, errno, "cannot read the cursor %s", c->path);
    c->read = json_loadf(f, 0, &why);
    fclose(f);
    if (!c->read || strcmp(text_of(c->read, "format"), FORMAT) ||
        number_of(c->read, "version") != VERSION)
        return err_set(err, -EINVAL, "%s is no cursor of this version: name another file", c->path);
    if (strcmp(text_of(c->read, "choice"), c->choice))
        return err_set(err, -EINVAL,
                       "the cursor %s is of another replay (%s), not of this one (%s): give the "
                       "same options, or another cursor",
                       c->path, text_of(c->read, "choice"), c->choice);
    c->n_bytes = number_of(c->read, "bytes");
    c->n_items = number_of(c->read, "items");
    c->n_requests = number_of(c->read, "requests");
    return 0;
}

void cursor_deinit(struct cursor *c)
{
    json_decref(c->read);
    c->read = NULL;
}

static int apply(struct err *err, struct source *s, const json_t *o)
{
    const json_t *sent = json_object_get(o, "sent"), *said = json_object_get(o, "said");
    s->sent = (struct position){ .any = json_is_object(sent),
                                 .chunk = number_of(sent, "chunk"),
                                 .launch = number_of(sent, "launch"),
                                 .forward = number_of(sent, "forward"),
                                 .occurrence = (uint32_t)number_of(sent, "occurrence"),
                                 .site = (uint32_t)number_of(sent, "site"),
                                 .record = (uint32_t)number_of(sent, "record") };
    s->said = (struct moment){ number_of(said, "time_ns"), number_of(said, "step"),
                               (uint32_t)number_of(said, "span") };
    s->n_records = number_of(o, "records");
    s->n_rows = number_of(o, "rows");
    s->n_bytes = number_of(o, "payload");
    s->n_lost = number_of(o, "not_decoded");
    s->done = json_is_true(json_object_get(o, "done"));
    return source_seek(err, s);
}

static struct source *find(struct source *sources, size_t n, const char *uuid)
{
    for (size_t i = 0; i < n; i++)
        if (!strcmp(reader_run(sources[i].reader)->uuid, uuid))
            return &sources[i];
    return NULL;
}

int cursor_apply(struct err *err, const struct cursor *c, struct source *sources, size_t n)
{
    size_t i;
    const json_t *o;
    json_array_foreach(json_object_get(c->read, "runs"), i, o)
    {
        struct source *s = find(sources, n, text_of(o, "uuid"));
        if (!s)
            return err_set(err, -EINVAL,
                           "the cursor %s is of run %s, which is not among those that are given: "
                           "give that run, or another cursor",
                           c->path, text_of(o, "uuid"));
        int r = apply(err, s, o);
        if (r)
            return r;
    }
    return 0;
}

bool cursor_is_done(const struct source *sources, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!sources[i].done)
            return false;
    return true;
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

static json_t *source_value(const struct source *s)
{
    json_t *said = json_pack("{s:o, s:o, s:I}", "time_ns", number(s->said.time_ns), "step",
                             number(s->said.step), "span", (json_int_t)s->said.span);
    return json_pack("{s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:b}", "uuid",
                     reader_run(s->reader)->uuid, "sent", position_value(&s->sent), "said", said,
                     "records", number(s->n_records), "rows", number(s->n_rows), "payload",
                     number(s->n_bytes), "not_decoded", number(s->n_lost), "done", s->done);
}

int cursor_write(struct err *err, const struct cursor *c, const struct source *sources, size_t n)
{
    _cleanup_(text_deinit) struct text t = { 0 };
    if (!c->path)
        return 0;
    json_t *runs = json_array();
    for (size_t i = 0; i < n; i++)
        json_array_append_new(runs, source_value(&sources[i]));
    value_add_new(&t,
                  json_pack("{s:s, s:i, s:s, s:o, s:o, s:o, s:o}", "format", FORMAT, "version",
                            VERSION, "choice", c->choice, "bytes", number(c->n_bytes), "items",
                            number(c->n_items), "requests", number(c->n_requests), "runs", runs));
    text_add(&t, "\n", 1);
    int r = t.failed ? -ENOMEM : file_replace(c->path, t.data, t.n, 0);
    return r ? err_set_errno(err, -r, "cannot write the cursor %s", c->path) : 0;
}
