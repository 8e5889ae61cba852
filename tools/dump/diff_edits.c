/* SPDX-License-Identifier: Apache-2.0 */
/* dmi-dump diff, of runs whose edits differ: what an edit changed first, and what it should have changed and did not. */
#include "tools/dump/diff.h"
#include "read/edit_packs.h"

#include "core/cleanup.h"

#include <inttypes.h>
#include <string.h>

/* ------------------------------------------------------------------------- what differs */

/* Each version of the edits in order, as far as it says what they do. Return: a new reference; NULL without memory. */
static json_t *versions_of(const struct edit_history *h)
{
    json_t *all = json_array();
    for (size_t i = 0; i < h->n; i++) {
        json_t *edits = json_deep_copy(h->changes[i].in_force);
        for (size_t k = 0; k < json_array_size(edits); k++)
            json_object_del(json_array_get(edits, k), "uid");
        if (json_array_append_new(all, edits)) {
            json_decref(all);
            return NULL;
        }
    }
    return all;
}

static bool has_edit(const json_t *versions, const json_t *edit)
{
    for (size_t i = 0; i < json_array_size(versions); i++)
        for (size_t k = 0; k < json_array_size(json_array_get(versions, i)); k++)
            if (json_equal(json_array_get(json_array_get(versions, i), k), edit))
                return true;
    return false;
}

/* Adds to @places the sites of edits that are in @versions, not off, and not in @other. */
static void add_places(json_t *places, const json_t *versions, const json_t *other)
{
    for (size_t i = 0; i < json_array_size(versions); i++)
        for (size_t k = 0; k < json_array_size(json_array_get(versions, i)); k++) {
            const json_t *edit = json_array_get(json_array_get(versions, i), k);
            if (*edit_text(edit, "site") && !edit_is_off(edit) && !has_edit(other, edit))
                json_object_set_new(places, edit_text(edit, "site"), json_true());
        }
}

/* Names of what was in force at any time. */
static json_t *names_of(const struct edit_history *h)
{
    json_t *set = json_object(), *list = json_array(), *value;
    const char *name;
    for (size_t i = 0; i < h->n; i++)
        for (size_t k = 0; k < json_array_size(h->changes[i].in_force); k++)
            json_object_set_new(set, edit_text(json_array_get(h->changes[i].in_force, k), "name"),
                                json_true());
    json_object_foreach(set, name, value) json_array_append_new(list, json_string(name));
    json_decref(set);
    return list;
}

/* ------------------------------------------------------------------------- what they reach */

enum reached { NOT_COMPARED, NOT_CHANGED, CHANGED };

static enum reached reached(const struct differ *d, const char *site)
{
    enum reached is = NOT_COMPARED;
    for (size_t i = 0; i < d->run.tensors.n && is != CHANGED; i++) {
        const struct difference *x = &d->results[i];
        if (!x->other || strcmp(d->run.tensors.all[i].site->name, site))
            continue;
        is = x->bad_shape || x->n_same < x->n_rows ? CHANGED : NOT_CHANGED;
    }
    return is;
}

static const struct spec_site *place_of(const struct spec *spec, const char *name)
{
    for (uint32_t i = 0; spec && i < spec->n_sites; i++)
        if (spec->sites[i].action == SPEC_EDIT && !strcmp(spec->sites[i].about.name, name))
            return &spec->sites[i];
    return NULL;
}

static void reach_lines(struct report *report, const char *place, json_t *const lists[3])
{
    static const char *const words[] = { "is not in both runs", "did NOT change", "changed" };
    for (int is = CHANGED; is >= NOT_COMPARED; is--)
        for (size_t i = 0; i < json_array_size(lists[is]); i++)
            report_line(report, "Reach of %s: %s %s.", place,
                        json_string_value(json_array_get(lists[is], i)), words[is]);
}

static json_t *reach_of(const struct differ *d, struct report *report, const struct spec *spec,
                        const char *place)
{
    const struct spec_site *site = place_of(spec, place);
    json_t *lists[3] = { json_array(), json_array(), json_array() };
    for (uint32_t i = 0; site && i < site->write.n_reach; i++)
        json_array_append_new(lists[reached(d, site->write.reach[i])],
                              value_text(site->write.reach[i]));
    reach_lines(report, place, lists);
    return json_pack("{s:o, s:o, s:o, s:o}", "place", value_text(place), "not_compared", lists[0],
                     "not_changed", lists[1], "changed", lists[2]);
}

static json_t *reaches(const struct differ *d, struct report *report, const json_t *places)
{
    struct err err = { 0 };
    json_t *list = json_array(), *value;
    const char *place;
    /* the edited run has the places: either may be that */
    struct spec *theirs = edit_packs_spec(&err, reader_run(d->other.reader));
    struct spec *ours = edit_packs_spec(&err, reader_run(d->run.reader));
    json_object_foreach((json_t *)(uintptr_t)places, place, value) json_array_append_new(
        list, reach_of(d, report, place_of(theirs, place) ? theirs : ours, place));
    spec_free(theirs);
    spec_free(ours);
    return list;
}

/* ------------------------------------------------------------------------- all of it */

static json_t *first_value(const struct divergence *first)
{
    if (!first->tensor)
        return json_null();
    return json_pack("{s:o, s:o}", "site", value_text(first->tensor->site->name), "layer",
                     value_layer(first->tensor->layer));
}

static void first_edited_line(struct report *report, const struct divergence *first)
{
    char layer[32] = "";
    if (first->tensor && first->tensor->layer >= 0)
        snprintf(layer, sizeof layer, ", layer %d", first->tensor->layer);
    if (first->tensor)
        report_line(report, "The first that they changed, in the order of a forward: site %s%s.",
                    first->tensor->site->name, layer);
    else
        report_line(report, "They changed nothing that both runs have.");
}

static void differ_line(struct report *report, const json_t *ours, const json_t *theirs)
{
    _cleanup_(text_deinit) struct text t = { 0 };
    for (int side = 0; side < 2; side++) {
        const json_t *names = side ? theirs : ours;
        text_printf(&t, side ? "; the other one: " : "the first run had in force: ");
        for (size_t i = 0; i < json_array_size(names); i++)
            text_printf(&t, "%s%s", i ? ", " : "", json_string_value(json_array_get(names, i)));
        if (!json_array_size(names))
            text_printf(&t, "none");
    }
    report_line(report, "Edits differ, so what differs may be their work: %s.",
                t.failed ? "?" : t.data);
}

static void report_differing(const struct differ *d, struct report *report, const json_t *ours,
                             const json_t *theirs, json_t *names[2])
{
    json_t *places = json_object();
    differ_line(report, names[0], names[1]);
    first_edited_line(report, &d->first);
    report_member(report, "first_edited", first_value(&d->first));
    add_places(places, ours, theirs);
    add_places(places, theirs, ours);
    report_member(report, "reach", reaches(d, report, places));
    json_decref(places);
}

int diff_edits(const struct differ *d, struct report *report)
{
    _cleanup_(edit_history_deinit) struct edit_history ours = { 0 }, theirs = { 0 };
    if (edit_history_build(d->run.reader, &ours) || edit_history_build(d->other.reader, &theirs))
        return no_memory();
    json_t *mine = versions_of(&ours), *other = versions_of(&theirs);
    json_t *names[2] = { names_of(&ours), names_of(&theirs) };
    bool differ = !json_equal(mine, other) && (ours.any || theirs.any);
    report_member(report, "edits_differ", json_boolean(differ));
    report_member(report, "edits", json_pack("{s:O, s:O}", "run", names[0], "other", names[1]));
    if (differ)
        report_differing(d, report, mine, other, names);
    if (ours.lacks || theirs.lacks)
        report_line(report,
                    "Notes of edits are missing in %s: edits may have been in force that it does "
                    "not name, and what differs may be their work.",
                    ours.lacks && theirs.lacks ? "both runs"
                    : ours.lacks               ? "the first run"
                                               : "the other one");
    json_decref(mine);
    json_decref(other);
    json_decref(names[0]);
    json_decref(names[1]);
    return DUMP_OK;
}
