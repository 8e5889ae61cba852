/* SPDX-License-Identifier: Apache-2.0 */
#include "storage/reader/release.h"

#include "core/any.h"
#include "core/cleanup.h"
#include "storage/checksum.h"
#include "storage/file.h"
#include "storage/folder.h"
#include "storage/names.h"
#include "storage/reader/reader_private.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Segments before this number were read and are closed. */
static uint32_t read_to(const struct reader *r)
{
    uint32_t n = 0;
    for (size_t i = 0; i < r->index.n_segments && r->index.segments[i].closed; i++)
        n = r->index.segments[i].number + 1;
    return n;
}

/* The process deletes them when it sees the number. */
static int ask_writer(const struct reader *r, uint32_t n)
{
    char text[16];
    _cleanup_(freep) char *path = folder_file(r->place.path, RUN_CONSUMED);
    if (!path)
        return -ENOMEM;
    int length = snprintf(text, sizeof text, "%" PRIu32 "\n", n);
    return file_replace(path, text, (size_t)length, 1);
}

/* ------------------------------------------------------------------------- a run that nobody writes */

static void delete_file(const struct reader *r, const struct reader_segment *s)
{
    unlinkat(r->place.dir, s->name, 0); /* what is still there is not read: the manifest says so */
}

/*
 * The manifest's entry of @s, which is closed. Its process may have been killed before the manifest said so, or named it. What a
 * reader knows of a segment that is gone is what the manifest says.
 */
static json_t *entry_of(json_t *list, const struct reader_segment *s)
{
    size_t n_records;
    if (json_array_size(list) == s->number)
        json_array_append_new(list, json_pack("{s:s}", "file", s->name));
    json_t *said = json_array_get(list, s->number);
    reader_entries(s, &n_records);
    if (!object_flag(said, "closed")) {
        json_object_set_new(said, "closed", json_true());
        json_object_set_new(said, "bytes", json_integer((json_int_t)s->n_bytes));
        json_object_set_new(said, "chunks", json_integer((json_int_t)s->n_seen));
        json_object_set_new(said, "records", json_integer((json_int_t)n_records));
    }
    return said;
}

/* The manifest's list of what is gone. */
static json_t *list_of(const struct dmi_tally *sums, uint32_t n)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < n; i++)
        if (sums[i].records)
            json_array_append_new(list, json_pack("{s:i, s:I, s:I, s:I}", "site", (int)i, "records",
                                                  (json_int_t)sums[i].records, "rows",
                                                  (json_int_t)sums[i].rows, "bytes",
                                                  (json_int_t)sums[i].bytes));
    return list;
}

/* Return: the manifest without these segments, to be freed; NULL: no memory. */
static char *manifest_without(const struct reader *r, uint32_t n)
{
    const struct dmi_counters *c = r->counters; /* they have what the manifest said of before */
    _cleanup_(freep) struct dmi_tally *sums = calloc(c->n_sites + 1, sizeof *sums);
    if (!sums)
        return NULL;
    for (uint32_t i = 0; i < c->n_sites; i++)
        sums[i] = c->sites[i].released;
    json_t *m = json_deep_copy(r->said.manifest);
    json_object_set_new(m, "checksum", json_string(MANIFEST_CHECKSUM_ZERO));
    for (size_t i = 0; i < r->index.n_segments && r->index.segments[i].number < n; i++) {
        const struct reader_segment *s = &r->index.segments[i];
        json_object_set_new(entry_of(json_object_get(m, "segments"), s), "released", json_true());
        reader_add_held(sums, c->n_sites, s);
    }
    json_object_set_new(m, "released", list_of(sums, c->n_sites));
    char *text = json_dumps(m, JSON_INDENT(1));
    json_decref(m);
    if (text)
        checksum_write(text, strlen(text));
    return text;
}

static int release_here(const struct reader *r, uint32_t n)
{
    _cleanup_(freep) char *path = folder_file(r->place.path, "manifest.json");
    _cleanup_(freep) char *text = path ? manifest_without(r, n) : NULL;
    int res = text ? file_replace(path, text, strlen(text), 1) : -ENOMEM;
    for (size_t i = 0; !res && i < r->index.n_segments && r->index.segments[i].number < n; i++)
        delete_file(r, &r->index.segments[i]);
    return res;
}

/* ------------------------------------------------------------------------- both */

static const struct reader_finding *damage_of(const struct reader *r)
{
    return FIRST(i, reader_n_findings(r), reader_finding(r, i)->damage, reader_finding(r, i), NULL);
}

int release_read(struct err *err, const struct reader *r)
{
    const struct reader_finding *damage = damage_of(r);
    uint32_t n = read_to(r);
    if (r->place.dir < 0 || r->ranks)
        return err_set(err, -EINVAL, "%s is not the folder of one run", r->place.path);
    if (damage || !r->said.manifest)
        return err_set(err, -EBADMSG, "%s: no segment is released, as %s: %s", r->place.path,
                       damage ? damage->file : "manifest.json",
                       damage ? damage->text : "it cannot be read");
    if (!n)
        return 0;
    int res = r->run.state == READER_RUNNING ? ask_writer(r, n) : release_here(r, n);
    return res ? err_set_errno(err, -res, "cannot release segments of %s", r->place.path) : 0;
}
