/* SPDX-License-Identifier: Apache-2.0 */
/* The other run of a report: what of it is selected is what is selected of the first. */
#include "tools/view/view.h"

#include "core/cleanup.h"
#include "tools/common/opened.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* As the other run calls it. */
static struct dmi_read_name other_name(const struct dmi_read_name *pair)
{
    const char *equals = memchr(pair->text, '=', pair->bytes);
    size_t at = equals ? (size_t)(equals - pair->text) + 1 : 0;
    return (struct dmi_read_name){ pair->text + at, pair->bytes - at };
}

/* Return: as dmi_read_select(). */
static int select_in(const struct view_report *report, struct dmi_read_name *names)
{
    struct dmi_read_selection selection = report->selection;
    selection.requests = names;
    selection.n_requests = 0;
    for (size_t i = 0; i < report->n_pairs; i++) {
        struct dmi_read_name name = other_name(&report->pairs[i]);
        if (view_request(report->other, name.text, name.bytes) >= 0)
            names[selection.n_requests++] = name;
    }
    return report->n_pairs && !selection.n_requests ? -ENOENT
                                                    : dmi_read_select(report->other, &selection);
}

int view_other_maps(struct err *err, struct view_report *report)
{
    _cleanup_(freep) struct dmi_read_name *names = calloc(report->n_pairs + 1, sizeof *names);
    if (!names)
        return err_set_errno(err, ENOMEM, "cannot choose requests");
    int r = select_in(report, names);
    if (!r)
        return view_maps(err, report, report->other, "other_maps", view_room(report) / 2);
    document_begin(&report->document, "other_maps", '[');
    document_end(&report->document, ']');
    return r == -ENOENT ? 0 : err_set(err, r, "%s", dmi_read_error(report->other));
}

int view_other_open(struct err *err, struct view_report *report)
{
    char why[512] = "";
    int r = opened_run(report->other_path, &report->other, why, sizeof why);
    return r ? err_set(err, r, "%s", why) : 0;
}
