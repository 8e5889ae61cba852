/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/common/edit_words.h"

#include "core/words.h"
#include "read/value.h"
#include "storage/map.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

uint64_t edit_words_request(struct dmi_read *run, const char *id, uint64_t n_id)
{
    struct dmi_read_request q = { .size = sizeof q };
    for (uint64_t i = 0; id && !dmi_read_request(run, i, &q); i++)
        if (q.id_bytes == n_id && !memcmp(q.id, id, n_id))
            return i;
    return DMI_READ_NOBODY;
}

static json_t *edit_value(const struct dmi_read_edit *e)
{
    return json_pack(
        "{s:o, s:o, s:o, s:o, s:o, s:o}", "name", value_text(e->name), "site", value_text(e->site),
        "layers", value_text(e->layers), "first", json_integer(e->first), "end",
        e->end == INT64_MAX ? json_null() : json_integer(e->end), "text", value_text(e->text));
}

json_t *edit_words_value(struct dmi_read *run, uint64_t request)
{
    struct dmi_read_edit e = { .size = sizeof e };
    json_t *list = NULL;
    for (uint64_t i = 0; !dmi_read_edit(run, request, i, &e); i++) {
        list = list ? list : json_array();
        json_array_append_new(list, edit_value(&e));
    }
    return list;
}

/* Counts the request among those of the edit. */
static void count(json_t *by_uid, const struct dmi_read_edit *e)
{
    char key[32];
    snprintf(key, sizeof key, "%" PRIu64, e->name ? e->uid : 0);
    json_t *known = json_object_get(by_uid, key);
    if (!known) {
        known = json_pack("{s:o, s:o, s:o, s:i}", "name", value_text(e->name), "site",
                          value_text(e->site), "layers", value_text(e->layers), "requests", 0);
        json_object_set_new(by_uid, key, known);
    }
    json_object_set_new(known, "requests",
                        json_integer(json_integer_value(json_object_get(known, "requests")) + 1));
}

/* Of the requests that have a tensor among those selected. */
static void count_selected(struct dmi_read *run, json_t *by_uid)
{
    struct dmi_read_tensor t = { .size = sizeof t }, before = { 0 };
    struct dmi_read_request q = { .size = sizeof q };
    struct dmi_read_edit e = { .size = sizeof e };
    struct map ids = { 0 };
    size_t *at = NULL;
    for (uint64_t i = 0; !dmi_read_request(run, i, &q); i++)
        if ((at = map_at(&ids, q.id, q.id_bytes)))
            *at = i;
    bool any = false;
    for (uint64_t i = 0; !dmi_read_tensor(run, i, &t); i++, before = t, any = true) {
        if (any && before.request == t.request && before.request_bytes == t.request_bytes)
            continue; /* tensors come by request */
        size_t known = t.request ? map_get(&ids, t.request, t.request_bytes) : MAP_NONE;
        uint64_t request = known == MAP_NONE ? DMI_READ_NOBODY : known;
        for (uint64_t k = 0; !dmi_read_edit(run, request, k, &e); k++)
            count(by_uid, &e);
    }
    map_deinit(&ids);
}

json_t *edit_words_of_run(struct dmi_read *run)
{
    json_t *by_uid = json_object(), *list = json_array(), *edit;
    const char *key;
    count_selected(run, by_uid);
    json_object_foreach(by_uid, key, edit) json_array_append(list, edit);
    json_decref(by_uid);
    if (json_array_size(list))
        return list;
    json_decref(list);
    return NULL;
}

void edit_words_report(struct report *report, struct dmi_read *run, uint64_t request)
{
    struct dmi_read_edit e = { .size = sizeof e };
    json_t *list = edit_words_value(run, request);
    for (uint64_t i = 0; list && !dmi_read_edit(run, request, i, &e); i++)
        report_line(report, "%s %s", i ? "        " : "edits   ", e.text);
    if (list)
        report_member(report, "edits", list);
}

void edit_words_report_run(struct report *report, struct dmi_read *run)
{
    json_t *list = edit_words_of_run(run);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *e = json_array_get(list, i);
        const char *name = json_string_value(json_object_get(e, "name"));
        json_int_t n = json_integer_value(json_object_get(e, "requests"));
        if (name)
            report_line(report,
                        "%s %s wrote %s (layers: %s) in %" JSON_INTEGER_FORMAT " %s: what is "
                        "computed after it is in these numbers",
                        i ? "        " : "edits   ", name,
                        json_string_value(json_object_get(e, "site")),
                        json_string_value(json_object_get(e, "layers")), n,
                        word_for((uint64_t)n, "request", "requests"));
        else
            report_line(report, "%s edits may have been in force: the run lacks notes of them",
                        i ? "        " : "edits   ");
    }
    if (list)
        report_member(report, "edits", list);
}

void edit_words_add(char *sentence, size_t n, struct dmi_read *run, uint64_t request)
{
    struct dmi_read_edit e = { .size = sizeof e };
    for (uint64_t i = 0; !dmi_read_edit(run, request, i, &e); i++) {
        size_t used = strlen(sentence);
        snprintf(sentence + used, n - used, "%s%s",
                 i ? ", " : "; edits wrote in the request: ", e.text);
    }
}
