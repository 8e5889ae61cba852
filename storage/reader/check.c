/* SPDX-License-Identifier: Apache-2.0 */
/* What manifest and counters say, against what is there. */
#include "core/cleanup.h"
#include "storage/alive.h"
#include "storage/codec/hash.h"
#include "storage/reader/reader_private.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static bool hash_holds(const uint8_t *data, size_t n, const char *said)
{
    char is[17];
    snprintf(is, sizeof is, "%016" PRIx64, hash_bytes(data, n));
    return said && !strcmp(is, said);
}

static bool is_tally(const struct reader *r, const json_t *one)
{
    json_t *const numbers[] = { json_object_get(one, "site"), json_object_get(one, "records"),
                                json_object_get(one, "rows"), json_object_get(one, "bytes") };
    for (int i = 0; i < 4; i++)
        if (!json_is_integer(numbers[i]) || json_integer_value(numbers[i]) < 0)
            return false;
    return object_number(one, "site") < r->said.n_sites;
}

/* One finding for all. Return: the list can be used. */
static bool check_released(struct reader *r, const json_t *list)
{
    const json_t *one;
    size_t i;
    if (list && !json_is_array(list)) {
        reader_note(&r->notes, true, "manifest.json", -1, 0,
                    "what it says of released segments is no list");
        return false;
    }
    json_array_foreach(list, i, one) if (!is_tally(r, one))
    {
        reader_note(&r->notes, true, "manifest.json", -1, 0,
                    "entry %zu in its list of what released segments held is none of a site", i);
        return false;
    }
    return list;
}

/* Where the manifest has the sums they count: it says in the same file which segments are gone. */
static void take_released(struct reader *r)
{
    const json_t *list = json_object_get(r->said.manifest, "released"), *one;
    size_t i;
    if (!check_released(r, list))
        return;
    for (uint32_t k = 0; k < r->counters->n_sites; k++)
        r->counters->sites[k].released = (struct dmi_tally){ 0 };
    json_array_foreach(list, i, one)
    {
        const struct dmi_tally t = { object_number(one, "records"), object_number(one, "rows"),
                                     object_number(one, "bytes") };
        reader_add_tally(&r->counters->sites[object_number(one, "site")].released, &t);
    }
}

static int check_counters(struct reader *r, bool manifest_closed)
{
    uint8_t *data = NULL;
    size_t n;
    int res = reader_load(r, "counters", DMI_MAX_JSON, &data, &n);
    if (res == -ENOMEM)
        return res;
    if (res) {
        reader_note(&r->notes, true, "counters", -1, 0, "missing or unreadable: %s",
                    strerror(-res));
        return 0;
    }
    struct dmi_counters *c = (struct dmi_counters *)data;
    const json_t *said = json_object_get(r->said.manifest, "counters");
    if (n < sizeof *c || c->magic != DMI_COUNTERS_MAGIC || c->version != DMI_COUNTERS_VERSION ||
        n != sizeof *c + (uint64_t)c->n_sites * sizeof c->sites[0] ||
        c->n_sites != r->said.n_sites ||
        (r->said.have_uuid && memcmp(c->run_uuid, r->said.uuid, 16)) ||
        (c->state != DMI_COUNTERS_RUNNING && c->state != DMI_COUNTERS_CLOSED)) {
        reader_note(&r->notes, true, "counters", -1, 0, "damaged or of another run; not used");
        free(data);
        return 0;
    }
    r->counters = c;
    if (manifest_closed) {
        /* a kill between the manifest's last writing and this mark is no damage */
        uint64_t state = c->state;
        c->state = DMI_COUNTERS_CLOSED;
        if (!hash_holds(data, n, object_text(said, "xxh3")))
            reader_note(&r->notes, true, "counters", -1, 0,
                        "do not match the checksum in the manifest");
        else if (state != DMI_COUNTERS_CLOSED)
            reader_note(&r->notes, false, "counters", -1, 0,
                        "the process was killed in the last instant of closing: all is there");
    }
    take_released(r);
    r->run.counters = c;
    return 0;
}

static int check_spec(struct reader *r)
{
    _cleanup_(freep) uint8_t *data = NULL;
    size_t n;
    const json_t *said = json_object_get(r->said.manifest, "spec");
    int res = reader_load(r, "spec.yaml", DMI_MAX_JSON, &data, &n);
    if (res == -ENOMEM)
        return res;
    if (res)
        reader_note(&r->notes, true, "spec.yaml", -1, 0, "missing or unreadable: %s",
                    strerror(-res));
    else if (n != object_number(said, "bytes") || !hash_holds(data, n, object_text(said, "xxh3")))
        reader_note(&r->notes, true, "spec.yaml", -1, 0,
                    "does not match the checksum in the manifest");
    return 0;
}

static void check_listed(struct reader *r, const struct reader_segment *s, const json_t *said)
{
    if (!object_flag(said, "closed"))
        return;
    if (s->n_bytes != object_number(said, "bytes"))
        reader_note(&r->notes, true, s->name, -1, s->n_bytes,
                    "%s: %" PRIu64 " bytes, the manifest says %" PRIu64,
                    s->n_bytes < object_number(said, "bytes") ? "truncated" : "grown", s->n_bytes,
                    object_number(said, "bytes"));
    size_t n_records;
    reader_entries(s, &n_records);
    if (s->n_bytes == object_number(said, "bytes") &&
        (s->n_seen != object_number(said, "chunks") || n_records != object_number(said, "records")))
        reader_note(&r->notes, true, s->name, -1, 0,
                    "%" PRIu64 " chunks with %zu records can be read, the manifest says %" PRIu64
                    " with %" PRIu64,
                    s->n_seen, n_records, object_number(said, "chunks"),
                    object_number(said, "records"));
}

/* Segments from @from to before @to that are not there, but for those that were released. */
static void note_missing(struct reader *r, size_t from, size_t to)
{
    for (size_t end; from < to; from = end) {
        end = from + 1;
        if (reader_released_chunks(r, from))
            continue;
        while (end < to && !reader_released_chunks(r, end))
            end++;
        if (reader_note_vanished(&r->notes))
            return;
        char first[32], last[32];
        snprintf(first, sizeof first, DMI_SEGMENT_NAME, (unsigned)from);
        snprintf(last, sizeof last, DMI_SEGMENT_NAME, (unsigned)(end - 1));
        if (end == from + 1)
            reader_note(&r->notes, true, first, -1, 0,
                        "missing: the run has this segment, the folder has not");
        else
            reader_note(&r->notes, true, first, -1, 0,
                        "missing: the run has the segments from here to %s, the folder has not",
                        last);
    }
}

/* An entry of the list, as docs/format.md 7 has it. @closed: the manifest is that of a closed run. */
static bool names_segment(const json_t *said, size_t number, bool closed)
{
    char name[32];
    const char *file = object_text(said, "file");
    if (object_flag(said, "released") && object_number(said, "chunks"))
        return true;
    snprintf(name, sizeof name, DMI_SEGMENT_NAME, (unsigned)number);
    return file && !strcmp(file, name) && json_is_boolean(json_object_get(said, "closed")) &&
           (!closed || object_flag(said, "closed"));
}

/* One finding for all: a list may be long. */
static void check_entries(struct reader *r, const json_t *list, bool closed)
{
    size_t n = json_array_size(list), n_wrong = 0, first = 0;
    for (size_t i = n; i-- > 0;)
        if (!names_segment(json_array_get(list, i), i, closed)) {
            first = i;
            n_wrong++;
        }
    if (n_wrong)
        reader_note(&r->notes, true, "manifest.json", -1, 0,
                    "%zu of the %zu entries in its list of segments name none%s: the first is "
                    "number %zu",
                    n_wrong, n, closed ? " that is closed" : "", first);
    else if (r->said.manifest && !json_is_array(list))
        reader_note(&r->notes, true, "manifest.json", -1, 0, "it has no list of segments");
}

static void check_segment_list(struct reader *r, bool closed)
{
    const json_t *list = json_object_get(r->said.manifest, "segments");
    size_t n = json_array_size(list), next = 0;
    check_entries(r, list, closed);
    for (size_t i = 0; i < r->index.n_segments; i++) {
        const struct reader_segment *s = &r->index.segments[i];
        note_missing(r, next, s->number);
        next = s->number + 1u;
        if (s->number < n)
            check_listed(r, s, json_array_get(list, s->number));
        else if (closed && r->said.manifest)
            reader_note(&r->notes, true, s->name, -1, 0,
                        "the manifest of the closed run does not list this segment");
    }
    note_missing(r, next, n);
}

static void check_dictionary(struct reader *r)
{
    if (r->said.manifest && r->said.own_dictionary &&
        !json_equal(r->said.dictionary, json_object_get(r->said.manifest, "dictionary")))
        reader_note(&r->notes, true, "manifest.json", -1, 0,
                    "its site dictionary is not that of the segments, which is used");
}

int reader_check_files(struct reader *r)
{
    const char *state = object_text(r->said.manifest, "state");
    bool closed = state && !strcmp(state, "closed");
    struct alive_process process;
    /* before the counters: a process that closes the run and ends meanwhile is seen as such by them */
    bool alive = alive_is(r->place.dir, alive_said(r->said.manifest, &process));
    int res = check_counters(r, closed);
    if (!res && r->said.manifest)
        res = check_spec(r);
    if (res)
        return res;
    check_segment_list(r, closed);
    check_dictionary(r);
    if (!r->said.manifest)
        closed = r->counters && r->counters->state == DMI_COUNTERS_CLOSED;
    r->run.state = closed ? READER_CLOSED : alive ? READER_RUNNING : READER_KILLED;
    return 0;
}
