/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Any bytes as a file of an answer, as dmi-view --with takes it. What is taken makes a document that JSON's parser reads, and in which
 * nothing ends a script; what is not says why. The run has one request, `a`.
 */
#include "core/cleanup.h"
#include "tools/view/view.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void require(bool holds)
{
    if (!holds)
        abort();
}

/* ------------------------------------------------------------------------- in the place of the tool's own */

int dmi_read_run(struct dmi_read *run, struct dmi_read_run *out)
{
    require(!run);
    out->uuid = "u";
    return 0;
}

const char *dmi_read_error(const struct dmi_read *run)
{
    require(!run);
    return "";
}

int64_t view_request(struct dmi_read *run, const char *id, uint64_t n)
{
    require(!run);
    return id && n == 1 && *id == 'a' ? 0 : -1;
}

uint64_t view_room(const struct view_report *report)
{
    return report->max_bytes;
}

void view_leave_out(struct view_report *report, const char *fmt, ...)
{
    require(report && fmt[0]);
}

/* ------------------------------------------------------------------------- an input */

static void use(struct view_report *report, int (*add)(struct err *err, struct view_report *report))
{
    struct err err = { 0 };
    struct document *d = &report->document;
    d->comma = false;
    document_begin(d, NULL, '{');
    int r = add(&err, report);
    document_end(d, '}');
    require(!r == !err.msg[0] && !d->out.failed);
    json_t *said = r ? NULL : json_loadb(d->out.data, d->out.n, 0, NULL);
    require(r || said);
    for (size_t i = 0; !r && i < d->out.n; i++)
        require(!strchr("<>&", d->out.data[i]) && (d->out.data[i] & 0x80) == 0);
    json_decref(said);
    text_deinit(&d->out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    char path[64];
    _cleanup_(closep) int fd = memfd_create("answer", MFD_CLOEXEC);
    require(fd >= 0 && write(fd, data, n) == (ssize_t)n);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    const struct dmi_read_name file = { path, strlen(path) };
    for (int i = 0; i < 4; i++) {
        struct view_report report = { .answers = &file,
                                      .n_answers = 1,
                                      .max_bytes = i & 1 ? 10000 : 1 << 20,
                                      .document = { .in_page = true } };
        use(&report, i & 2 ? view_dla : view_lens);
    }
    return 0;
}
