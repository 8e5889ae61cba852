/* SPDX-License-Identifier: Apache-2.0 */
/* manifest.json, the site dictionary, counters and spec.yaml of a run. */
#include "core/cleanup.h"
#include "storage/checksum.h"
#include "storage/codec/hash.h"
#include "storage/reader/reader_private.h"

#include <dmi/dtype.h>

#include <errno.h>
#include <string.h>

int reader_take_manifest(struct reader *r)
{
    _cleanup_(freep) uint8_t *data = NULL;
    size_t n;
    json_decref(r->said.manifest);
    r->said.manifest = NULL;
    int res = reader_load(r, "manifest.json", DMI_MAX_JSON, &data, &n);
    if (res == -ENOMEM)
        return res;
    if (res) {
        reader_note(&r->notes, true, "manifest.json", -1, 0, "missing or unreadable: %s",
                    strerror(-res));
        return 0;
    }
    /* version 1 had another hash: only its number is looked at */
    bool sound = checksum_holds((char *)data, n);
    json_t *m = object_parse((const char *)data, n);
    const char *format = object_text(m, "format");
    uint64_t version = format && !strcmp(format, "dmi-run") ? object_number(m, "version") : 0;
    if (version == 1 || (sound && version > DMI_FORMAT_VERSION)) {
        r->said.other_version = (uint32_t)version;
        json_decref(m);
        return 0;
    }
    if (!sound || version != DMI_FORMAT_VERSION || !object_uuid(m, "uuid", r->said.uuid)) {
        reader_note(&r->notes, true, "manifest.json", -1, 0,
                    sound ? "is no manifest"
                          : "does not match its checksum; what it says is not used");
        json_decref(m);
        return 0;
    }
    r->said.manifest = m;
    r->said.have_uuid = true;
    return 0;
}

bool reader_manifest_is_old(struct reader *r)
{
    _cleanup_(freep) uint8_t *data = NULL;
    size_t n;
    const char *sum = object_text(r->said.manifest, "checksum");
    return sum && !reader_load(r, "manifest.json", DMI_MAX_JSON, &data, &n) &&
           !memmem(data, n, sum, strlen(sum));
}

/* ------------------------------------------------------------------------- the dictionary */

/* A meaning that is not known gives rows no positions, as "none" does. */
static uint32_t row_of(struct reader *r, const char *file, const char *site, const char *name)
{
    uint32_t row = name ? dmi_row_from_name(name) : DMI_ROW_TOKEN;
    if (row < DMI_ROW_COUNT)
        return row;
    reader_note_unknown(&r->notes, file, -1, sizeof(struct dmi_segment_header),
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
    const char *over = object_text(shard, "over");
    uint32_t axis = 0;
    if (!shard || json_is_null(shard))
        return;
    while (over && axis < DMI_AXIS_COUNT && strcmp(over, dmi_axis_name(axis)))
        axis++;
    site->shard_axis = over ? axis : DMI_AXIS_COUNT;
    site->shard_dim = (uint32_t)json_integer_value(dim);
    if (object_flag(shard, "sum"))
        site->shard = DMI_SHARD_SUM;
    else if (json_is_integer(dim) && json_integer_value(dim) >= site->n_row_dims &&
             json_integer_value(dim) < DMI_MAX_DIMS)
        site->shard = DMI_SHARD_DIM;
    if (site->shard && site->shard_axis < DMI_AXIS_COUNT)
        return;
    site->shard = DMI_SHARD_NONE;
    site->shard_axis = 0;
    reader_note_unknown(&r->notes, file, -1, sizeof(struct dmi_segment_header),
                        "site %s: how its ranks have parts of it is not known here: the ranks are "
                        "not joined",
                        site->name);
}

/* A text of C ends at a zero byte: two names would be one. Return: NULL: it is no name. */
static const char *name_of(const json_t *site)
{
    const json_t *name = json_object_get(site, "name");
    const char *s = json_string_value(name);
    return s && *s && strlen(s) == json_string_length(name) ? s : NULL;
}

static bool action_is(const json_t *site, const char *word)
{
    const char *action = object_text(site, "action");
    return action && !strcmp(action, word);
}

static bool fill_sites(struct reader *r, const char *file, const json_t *list)
{
    size_t n = json_array_size(list);
    struct dmi_site *sites = n <= DMI_MAX_SITES ? calloc(n + 1, sizeof *sites) : NULL;
    if (!sites)
        return false;
    for (size_t i = 0; i < n; i++) {
        const json_t *o = json_array_get(list, i);
        const char *dtype = object_text(o, "dtype"), *name = name_of(o);
        const json_t *scale = json_object_get(o, "scale");
        if (!name || !dtype || object_number(o, "id") != i) {
            free(sites);
            return false;
        }
        sites[i] = (struct dmi_site){
            .id = (uint32_t)i,
            .name = name,
            .kernel = object_text(o, "kernel"),
            .tap = object_text(o, "tap"),
            .kind = object_text(o, "kind"),
            .note = object_text(o, "note"),
            .dtype = dmi_dtype_from_name(dtype),
            .row = row_of(r, file, name, object_text(o, "row")),
            .scale = json_is_number(scale) ? json_number_value(scale) : 1.0,
            .expect = json_integer_value(json_object_get(o, "expect")),
            .has_layer = object_flag(o, "has_layer"),
            .n_row_dims = row_dims_of(o),
            .writes = action_is(o, "edit") || action_is(o, "save"),
            .saves = action_is(o, "save"),
        };
        take_shard(r, file, o, &sites[i]);
    }
    r->said.sites = sites;
    r->said.n_sites = n;
    return true;
}

static int take_dictionary(struct reader *r, const char *file, const char *json, size_t n)
{
    json_t *d = n <= DMI_MAX_JSON ? object_parse(json, n) : NULL;
    if (!d || !fill_sites(r, file, json_object_get(d, "sites"))) {
        reader_note(&r->notes, true, file, -1, sizeof(struct dmi_segment_header),
                    "the site dictionary is not what docs/format.md 4 says");
        json_decref(d);
        return 0;
    }
    r->said.dictionary = d;
    return 0;
}

int reader_take_dictionary(struct reader *r, const char *file, const char *json, size_t n)
{
    uint64_t hash = hash_bytes(json, n);
    if (r->said.own_dictionary) {
        if (hash != r->said.dictionary_hash)
            reader_note(&r->notes, true, file, -1, sizeof(struct dmi_segment_header),
                        "the site dictionary differs from that of the first segment");
        return 0;
    }
    int res = r->said.dictionary ? 0 : take_dictionary(r, file, json, n);
    r->said.own_dictionary = r->said.dictionary != NULL;
    r->said.dictionary_hash = hash;
    return res;
}

int reader_dictionary_from_manifest(struct reader *r)
{
    if (!r->said.manifest)
        return 0;
    _cleanup_(freep) char *text =
        json_dumps(json_object_get(r->said.manifest, "dictionary"), JSON_COMPACT);
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
    const json_t *list = json_object_get(r->said.manifest, "problems");
    size_t n = json_array_size(list);
    struct reader_problem *problems = calloc(n + 1, sizeof *problems);
    if (!problems)
        return -ENOMEM;
    for (size_t i = 0; i < n; i++) {
        const json_t *o = json_array_get(list, i);
        const char *reason = object_text(o, "reason"), *sentence = object_text(o, "sentence");
        problems[i] =
            (struct reader_problem){ object_text(o, "site"), reason ? reason : "",
                                     sentence ? sentence : "", object_number(o, "times") };
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
                i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", r->said.uuid[i]);
    run->model = object_text(r->said.dictionary, "model");
    run->job = object_text(r->said.manifest, "job");
    run->host = object_text(r->said.manifest, "host");
    run->library_version = object_text(r->said.manifest, "library_version");
    run->spec_path = object_text(json_object_get(r->said.manifest, "spec"), "path");
    run->pid = object_number(r->said.manifest, "pid");
    run->start_ns = object_number(r->said.manifest, "start_realtime_ns");
    int res = fill_pairs(json_object_get(r->said.dictionary, "conventions"), &run->conventions,
                         &run->n_conventions);
    if (!res)
        res =
            fill_pairs(json_object_get(r->said.dictionary, "absent"), &run->absent, &run->n_absent);
    if (!res)
        res = fill_pairs(json_object_get(r->said.manifest, "about"), &run->about, &run->n_about);
    return res ? res : fill_problems(r);
}

uint64_t reader_released_chunks(const struct reader *r, size_t number)
{
    const json_t *said = json_array_get(json_object_get(r->said.manifest, "segments"), number);
    return object_flag(said, "released") ? object_number(said, "chunks") : 0;
}
