/* SPDX-License-Identifier: Apache-2.0 */
/* manifest.json, the site dictionary, counters and spec.yaml of a run. */
#include "core/cleanup.h"
#include "storage/alive.h"
#include "storage/codec/hash.h"
#include "storage/names.h"
#include "storage/reader/reader_private.h"

#include <dmi/dtype.h>

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>

#define MAX_JSON_BYTES DMI_MAX_JSON

#define MAX_DEPTH 64

/* Brackets outside of strings; that they match is for the parser to see. */
static bool nesting_is_bounded(const char *text, size_t n)
{
    size_t depth = 0;
    bool in_string = false;
    for (size_t i = 0; i < n; i++) {
        char c = text[i];
        if (in_string && c == '\\')
            i++;
        else if (c == '"')
            in_string = !in_string;
        else if (!in_string && (c == '[' || c == '{') && ++depth > MAX_DEPTH)
            return false;
        else if (!in_string && (c == ']' || c == '}') && depth)
            depth--;
    }
    return true;
}

json_t *reader_parse_json(const char *text, size_t n)
{
    json_error_t error;
    if (!nesting_is_bounded(text, n))
        return NULL;
    json_t *v = json_loadb(text, n, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &error);
    if (v && !json_is_object(v)) {
        json_decref(v);
        v = NULL;
    }
    return v;
}

static const char *text_of(const json_t *object, const char *key)
{
    return json_string_value(json_object_get(object, key));
}

static uint64_t number_of(const json_t *object, const char *key)
{
    return (uint64_t)json_integer_value(json_object_get(object, key));
}

static bool flag_of(const json_t *object, const char *key)
{
    return json_is_true(json_object_get(object, key));
}

/* The checksum covers the file with its own sixteen digits as zeros. */
static bool checksum_holds(uint8_t *data, size_t n)
{
    static const char key[] = MANIFEST_CHECKSUM_KEY;
    uint8_t *at = memmem(data, n, key, sizeof key - 1);
    if (!at || (size_t)(data + n - at) < sizeof key - 1 + 16)
        return false;
    at += sizeof key - 1;
    char said[17] = { 0 }, is[17];
    memcpy(said, at, 16);
    memcpy(at, MANIFEST_CHECKSUM_ZERO, 16);
    snprintf(is, sizeof is, "%016" PRIx64, hash_bytes(data, n));
    memcpy(at, said, 16);
    return !strcmp(said, is);
}

static bool parse_uuid(const char *s, uint8_t out[16])
{
    unsigned v[16];
    if (!s || strlen(s) != 36 ||
        sscanf(s, "%2x%2x%2x%2x-%2x%2x-%2x%2x-%2x%2x-%2x%2x%2x%2x%2x%2x", &v[0], &v[1], &v[2],
               &v[3], &v[4], &v[5], &v[6], &v[7], &v[8], &v[9], &v[10], &v[11], &v[12], &v[13],
               &v[14], &v[15]) != 16)
        return false;
    for (int i = 0; i < 16; i++)
        out[i] = (uint8_t)v[i];
    return true;
}

int reader_take_manifest(struct reader *r)
{
    _cleanup_(freep) uint8_t *data = NULL;
    size_t n;
    json_decref(r->manifest);
    r->manifest = NULL;
    int res = reader_load(r, "manifest.json", MAX_JSON_BYTES, &data, &n);
    if (res == -ENOMEM)
        return res;
    if (res) {
        reader_note(r, true, "manifest.json", -1, 0, "missing or unreadable: %s", strerror(-res));
        return 0;
    }
    /* version 1 had another hash: only its number is looked at */
    bool sound = checksum_holds(data, n);
    json_t *m = reader_parse_json((const char *)data, n);
    const char *format = text_of(m, "format");
    uint64_t version = format && !strcmp(format, "dmi-run") ? number_of(m, "version") : 0;
    if (version == 1 || (sound && version > DMI_FORMAT_VERSION)) {
        r->other_version = (uint32_t)version;
        json_decref(m);
        return 0;
    }
    if (!sound || version != DMI_FORMAT_VERSION || !parse_uuid(text_of(m, "uuid"), r->uuid)) {
        reader_note(r, true, "manifest.json", -1, 0,
                    sound ? "is no manifest"
                          : "does not match its checksum; what it says is not used");
        json_decref(m);
        return 0;
    }
    r->manifest = m;
    r->have_uuid = true;
    return 0;
}

bool reader_manifest_is_old(struct reader *r)
{
    _cleanup_(freep) uint8_t *data = NULL;
    size_t n;
    const char *sum = text_of(r->manifest, "checksum");
    return sum && !reader_load(r, "manifest.json", MAX_JSON_BYTES, &data, &n) &&
           !memmem(data, n, sum, strlen(sum));
}

/* ------------------------------------------------------------------------- the dictionary */

/* A meaning that is not known gives rows no positions, as "none" does. */
static uint32_t row_of(struct reader *r, const char *file, const char *site, const char *name)
{
    uint32_t row = name ? dmi_row_from_name(name) : DMI_ROW_TOKEN;
    if (row < DMI_ROW_COUNT)
        return row;
    reader_note_unknown(r, file, -1, sizeof(struct dmi_segment_header),
                        "site %s: row \"%s\" is not known here and read as \"none\"", site, name);
    return DMI_ROW_NONE;
}

static uint32_t row_dims_of(const json_t *site)
{
    json_int_t n = json_integer_value(json_object_get(site, "row_dims"));
    return n >= 1 && n <= DMI_MAX_DIMS ? (uint32_t)n : 1;
}

/* What is not known leaves every rank's tensor by itself, and is named. */
static void take_shard(struct reader *r, const char *file, const json_t *o, struct dmi_site *site)
{
    const json_t *shard = json_object_get(o, "shard"), *dim = json_object_get(shard, "dim");
    const char *over = text_of(shard, "over");
    uint32_t axis = 0;
    if (!shard || json_is_null(shard))
        return;
    while (over && axis < DMI_AXIS_COUNT && strcmp(over, dmi_axis_name(axis)))
        axis++;
    site->shard_axis = over ? axis : DMI_AXIS_COUNT;
    site->shard_dim = (uint32_t)json_integer_value(dim);
    if (flag_of(shard, "sum"))
        site->shard = DMI_SHARD_SUM;
    else if (json_is_integer(dim) && json_integer_value(dim) >= site->n_row_dims &&
             json_integer_value(dim) < DMI_MAX_DIMS)
        site->shard = DMI_SHARD_DIM;
    if (site->shard && site->shard_axis < DMI_AXIS_COUNT)
        return;
    site->shard = DMI_SHARD_NONE;
    site->shard_axis = 0;
    reader_note_unknown(r, file, -1, sizeof(struct dmi_segment_header),
                        "site %s: how its ranks have parts of it is not known here: the ranks are "
                        "not joined",
                        site->name);
}

static bool fill_sites(struct reader *r, const char *file, const json_t *list)
{
    size_t n = json_array_size(list);
    struct dmi_site *sites = n <= DMI_MAX_SITES ? calloc(n + 1, sizeof *sites) : NULL;
    if (!sites)
        return false;
    for (size_t i = 0; i < n; i++) {
        const json_t *o = json_array_get(list, i);
        const char *dtype = text_of(o, "dtype"), *name = text_of(o, "name");
        const json_t *scale = json_object_get(o, "scale");
        if (!name || !dtype || number_of(o, "id") != i) {
            free(sites);
            return false;
        }
        sites[i] = (struct dmi_site){
            .id = (uint32_t)i,
            .name = name,
            .kernel = text_of(o, "kernel"),
            .tap = text_of(o, "tap"),
            .kind = text_of(o, "kind"),
            .note = text_of(o, "note"),
            .dtype = dmi_dtype_from_name(dtype),
            .row = row_of(r, file, name, text_of(o, "row")),
            .scale = json_is_number(scale) ? json_number_value(scale) : 1.0,
            .expect = json_integer_value(json_object_get(o, "expect")),
            .has_layer = flag_of(o, "has_layer"),
            .n_row_dims = row_dims_of(o),
        };
        take_shard(r, file, o, &sites[i]);
    }
    r->sites = sites;
    r->n_sites = n;
    return true;
}

static int take_dictionary(struct reader *r, const char *file, const char *json, size_t n)
{
    json_t *d = n <= DMI_MAX_JSON ? reader_parse_json(json, n) : NULL;
    if (!d || !fill_sites(r, file, json_object_get(d, "sites"))) {
        reader_note(r, true, file, -1, sizeof(struct dmi_segment_header),
                    "the site dictionary is not what docs/format.md 4 says");
        json_decref(d);
        return 0;
    }
    r->dictionary = d;
    return 0;
}

int reader_take_dictionary(struct reader *r, const char *file, const char *json, size_t n)
{
    uint64_t hash = hash_bytes(json, n);
    if (r->own_dictionary) {
        if (hash != r->dictionary_hash)
            reader_note(r, true, file, -1, sizeof(struct dmi_segment_header),
                        "the site dictionary differs from that of the first segment");
        return 0;
    }
    int res = r->dictionary ? 0 : take_dictionary(r, file, json, n);
    r->own_dictionary = r->dictionary != NULL;
    r->dictionary_hash = hash;
    return res;
}

int reader_dictionary_from_manifest(struct reader *r)
{
    if (!r->manifest)
        return 0;
    _cleanup_(freep) char *text =
        json_dumps(json_object_get(r->manifest, "dictionary"), JSON_COMPACT);
    return text ? take_dictionary(r, "manifest.json", text, strlen(text)) : 0;
}

/* ------------------------------------------------------------------------- the run */

static int fill_pairs(const json_t *object, const struct reader_pair **out, size_t *n_out)
{
    struct reader_pair *pairs = calloc(json_object_size(object) + 1, sizeof *pairs);
    if (!pairs)
        return -ENOMEM;
    size_t n = 0;
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)object, key, value)
    {
        const char *s = json_string_value(value);
        pairs[n++] = (struct reader_pair){ key, s ? s : "" };
    }
    *out = pairs;
    *n_out = n;
    return 0;
}

static int fill_problems(struct reader *r)
{
    const json_t *list = json_object_get(r->manifest, "problems");
    size_t n = json_array_size(list);
    struct reader_problem *problems = calloc(n + 1, sizeof *problems);
    if (!problems)
        return -ENOMEM;
    for (size_t i = 0; i < n; i++) {
        const json_t *o = json_array_get(list, i);
        const char *reason = text_of(o, "reason"), *sentence = text_of(o, "sentence");
        problems[i] = (struct reader_problem){ text_of(o, "site"), reason ? reason : "",
                                               sentence ? sentence : "", number_of(o, "times") };
    }
    r->run.problems = problems;
    r->run.n_problems = n;
    return 0;
}

int reader_fill_run(struct reader *r)
{
    struct reader_run *run = &r->run;
    run->uuid[0] = 0;
    for (int i = 0; i < 16; i++)
        sprintf(run->uuid + strlen(run->uuid), "%s%02x",
                i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", r->uuid[i]);
    run->model = text_of(r->dictionary, "model");
    run->job = text_of(r->manifest, "job");
    run->host = text_of(r->manifest, "host");
    run->library_version = text_of(r->manifest, "library_version");
    run->spec_path = text_of(json_object_get(r->manifest, "spec"), "path");
    run->pid = number_of(r->manifest, "pid");
    run->start_ns = number_of(r->manifest, "start_realtime_ns");
    int res = fill_pairs(json_object_get(r->dictionary, "conventions"), &run->conventions,
                         &run->n_conventions);
    if (!res)
        res = fill_pairs(json_object_get(r->dictionary, "absent"), &run->absent, &run->n_absent);
    if (!res)
        res = fill_problems(r);
    return res ? res : reader_fill_changes(r);
}

/* ------------------------------------------------------------------------- other files */

static bool hash_holds(const uint8_t *data, size_t n, const char *said)
{
    char is[17];
    snprintf(is, sizeof is, "%016" PRIx64, hash_bytes(data, n));
    return said && !strcmp(is, said);
}

/* Where the manifest has the sums they count: it says in the same file which segments are gone. */
static void take_released(struct reader *r)
{
    const json_t *list = json_object_get(r->manifest, "released"), *one;
    size_t i;
    if (!json_is_array(list))
        return;
    for (uint32_t k = 0; k < r->counters->n_sites; k++)
        r->counters->sites[k].released = (struct dmi_tally){ 0 };
    json_array_foreach(list, i, one)
    {
        uint64_t site = number_of(one, "site");
        if (site < r->counters->n_sites)
            r->counters->sites[site].released =
                (struct dmi_tally){ number_of(one, "records"), number_of(one, "rows"),
                                    number_of(one, "bytes") };
    }
}

static int check_counters(struct reader *r, bool manifest_closed)
{
    uint8_t *data = NULL;
    size_t n;
    int res = reader_load(r, "counters", MAX_JSON_BYTES, &data, &n);
    if (res == -ENOMEM)
        return res;
    if (res) {
        reader_note(r, true, "counters", -1, 0, "missing or unreadable: %s", strerror(-res));
        return 0;
    }
    struct dmi_counters *c = (struct dmi_counters *)data;
    const json_t *said = json_object_get(r->manifest, "counters");
    if (n < sizeof *c || c->magic != DMI_COUNTERS_MAGIC || c->version != DMI_COUNTERS_VERSION ||
        n != sizeof *c + (uint64_t)c->n_sites * sizeof c->sites[0] || c->n_sites != r->n_sites ||
        (r->have_uuid && memcmp(c->run_uuid, r->uuid, 16)) ||
        (c->state != DMI_COUNTERS_RUNNING && c->state != DMI_COUNTERS_CLOSED)) {
        reader_note(r, true, "counters", -1, 0, "damaged or of another run; not used");
        free(data);
        return 0;
    }
    r->counters = c;
    if (manifest_closed) {
        /* a kill between the manifest's last writing and this mark is no damage */
        uint64_t state = c->state;
        c->state = DMI_COUNTERS_CLOSED;
        if (!hash_holds(data, n, text_of(said, "xxh3")))
            reader_note(r, true, "counters", -1, 0, "do not match the checksum in the manifest");
        else if (state != DMI_COUNTERS_CLOSED)
            reader_note(r, false, "counters", -1, 0,
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
    const json_t *said = json_object_get(r->manifest, "spec");
    int res = reader_load(r, "spec.yaml", MAX_JSON_BYTES, &data, &n);
    if (res == -ENOMEM)
        return res;
    if (res)
        reader_note(r, true, "spec.yaml", -1, 0, "missing or unreadable: %s", strerror(-res));
    else if (n != number_of(said, "bytes") || !hash_holds(data, n, text_of(said, "xxh3")))
        reader_note(r, true, "spec.yaml", -1, 0, "does not match the checksum in the manifest");
    return 0;
}

uint64_t reader_released_chunks(const struct reader *r, size_t number)
{
    const json_t *said = json_array_get(json_object_get(r->manifest, "segments"), number);
    return flag_of(said, "released") ? number_of(said, "chunks") : 0;
}

static void check_listed(struct reader *r, const struct reader_segment *s, const json_t *said)
{
    if (!flag_of(said, "closed"))
        return;
    if (s->n_bytes != number_of(said, "bytes"))
        reader_note(r, true, s->name, -1, s->n_bytes,
                    "%s: %" PRIu64 " bytes, the manifest says %" PRIu64,
                    s->n_bytes < number_of(said, "bytes") ? "truncated" : "grown", s->n_bytes,
                    number_of(said, "bytes"));
    size_t n_records;
    reader_entries(s, &n_records);
    if (s->n_bytes == number_of(said, "bytes") &&
        (s->n_seen != number_of(said, "chunks") || n_records != number_of(said, "records")))
        reader_note(r, true, s->name, -1, 0,
                    "%" PRIu64 " chunks with %zu records can be read, the manifest says %" PRIu64
                    " with %" PRIu64,
                    s->n_seen, n_records, number_of(said, "chunks"), number_of(said, "records"));
}

/* Segments from @from to before @to that nobody has, but for those that were released. */
static void note_missing(struct reader *r, size_t from, size_t to)
{
    for (size_t end; from < to; from = end) {
        end = from + 1;
        if (reader_released_chunks(r, from))
            continue;
        while (end < to && !reader_released_chunks(r, end))
            end++;
        if (reader_note_vanished(r))
            return;
        char first[32], last[32];
        snprintf(first, sizeof first, DMI_SEGMENT_NAME, (unsigned)from);
        snprintf(last, sizeof last, DMI_SEGMENT_NAME, (unsigned)(end - 1));
        if (end == from + 1)
            reader_note(r, true, first, -1, 0,
                        "missing: the run has this segment, the folder has not");
        else
            reader_note(r, true, first, -1, 0,
                        "missing: the run has the segments from here to %s, the folder has not",
                        last);
    }
}

static void check_segment_list(struct reader *r, bool closed)
{
    const json_t *list = json_object_get(r->manifest, "segments");
    size_t n = json_array_size(list), next = 0;
    for (size_t i = 0; i < r->n_segments; i++) {
        const struct reader_segment *s = &r->segments[i];
        note_missing(r, next, s->number);
        next = s->number + 1u;
        if (s->number < n)
            check_listed(r, s, json_array_get(list, s->number));
        else if (closed && r->manifest)
            reader_note(r, true, s->name, -1, 0,
                        "the manifest of the closed run does not list this segment");
    }
    note_missing(r, next, n);
}

static void check_dictionary(struct reader *r)
{
    if (r->manifest && r->own_dictionary &&
        !json_equal(r->dictionary, json_object_get(r->manifest, "dictionary")))
        reader_note(r, true, "manifest.json", -1, 0,
                    "its site dictionary is not that of the segments, which is used");
}

int reader_check_files(struct reader *r)
{
    const char *state = text_of(r->manifest, "state");
    bool closed = state && !strcmp(state, "closed");
    struct alive_process process;
    /* before the counters: a process that closes the run and ends meanwhile is seen as such by them */
    bool alive = alive_is(r->dir, alive_said(r->manifest, &process));
    int res = check_counters(r, closed);
    if (!res && r->manifest)
        res = check_spec(r);
    if (res)
        return res;
    check_segment_list(r, closed);
    check_dictionary(r);
    if (!r->manifest)
        closed = r->counters && r->counters->state == DMI_COUNTERS_CLOSED;
    r->run.state = closed ? READER_CLOSED : alive ? READER_RUNNING : READER_KILLED;
    return 0;
}
