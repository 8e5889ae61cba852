/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of a report share: its room, what it leaves out, whose tensors it has. */
#include "tools/common/edit_words.h"
#include "tools/common/say.h"
#include "tools/view/view.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

uint64_t view_room(const struct view_report *report)
{
    uint64_t used = report->n_around + document_bytes_so_far(&report->document) +
                    4096; /* what is left out is said, too */
    return used < report->max_bytes ? report->max_bytes - used : 0;
}

bool view_is_chosen(const struct view_report *report, const struct dmi_read_request *r)
{
    bool chosen = !report->n_requests;
    for (size_t i = 0; i < report->n_requests && !chosen; i++)
        chosen = report->requests[i].bytes == r->id_bytes &&
                 !memcmp(report->requests[i].text, r->id, r->id_bytes);
    return chosen;
}

void view_leave_out(struct view_report *report, const char *fmt, ...)
{
    char sentence[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(sentence, sizeof sentence, fmt, ap);
    va_end(ap);
    json_array_append_new(report->left_out, document_text(sentence));
    complain("%s (--max-bytes, --request, --site, --layers and --tokens choose)", sentence);
}

int64_t view_request(struct dmi_read *run, const char *id, uint64_t n)
{
    uint64_t i = edit_words_request(run, id, n);
    return i == DMI_READ_NOBODY ? -1 : (int64_t)i;
}

int64_t view_request_of(struct dmi_read *run, const struct dmi_read_tensor *tensor)
{
    return view_request(run, tensor->request, tensor->request_bytes);
}

json_t *view_id_of(const struct dmi_read_tensor *tensor)
{
    return tensor->request ? document_bytes(tensor->request, tensor->request_bytes) : json_null();
}
