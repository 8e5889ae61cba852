/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/analyze/result.h"

#include "core/cleanup.h"
#include "core/whole.h"
#include "read/value.h"
#include "tools/common/edit_words.h"

#include <dmi/dtype.h>

#include <errno.h>

int result_open(struct err *err, struct result *r, const char *path, bool force,
                struct dmi_read *run)
{
    struct dmi_read_run about = { .size = sizeof about };
    *r = (struct result){ .place = { .force = force, .fd = -1 } };
    dmi_read_run(run, &about);
    return outfile_choose(err, &r->place, path, about.path, ".safetensors", false);
}

void result_deinit(struct result *r)
{
    text_deinit(&r->header.text);
    outfile_deinit(&r->place);
}

void result_say(json_t *m, const char *key, json_t *value)
{
    _cleanup_(text_deinit) struct text t = { 0 };
    value_add_new(&t, value);
    if (t.failed || json_object_set_new(m, key, json_stringn(t.data, t.n)))
        json_object_clear(m);
}

json_t *result_metadata(const char *what, const char *formula, struct dmi_read *run,
                        json_t *parameters)
{
    struct dmi_read_run about = { .size = sizeof about };
    dmi_read_run(run, &about);
    json_t *m = json_pack("{s:s, s:s, s:s, s:s}", "what", what, "formula", formula, "checks", "[]",
                          "tool", "dmi-analyze " DMI_VERSION);
    if (m && about.uuid)
        json_object_set_new(m, "run", value_text(about.uuid));
    result_say(m, "parameters", parameters);
    return m;
}

void result_say_edits(json_t *m, struct dmi_read *run, const char *id, uint64_t n_id)
{
    json_t *edits = edit_words_value(run, edit_words_request(run, id, n_id));
    if (edits)
        result_say(m, "edits", edits);
}

void result_say_edits_of_all(json_t *m, struct dmi_read *run)
{
    json_t *edits = edit_words_of_run(run);
    if (edits)
        result_say(m, "edits", edits);
}

int result_begin(struct err *err, struct result *r, json_t *m)
{
    if (!m || !json_object_size(m)) {
        json_decref(m);
        return err_set_errno(err, ENOMEM, "cannot describe the answer");
    }
    safetensors_begin(&r->header, m);
    json_decref(m);
    return 0;
}

uint64_t result_add(struct result *r, const char *key, uint32_t dtype, const uint64_t *dims,
                    uint32_t n_dims)
{
    uint64_t n = dmi_dtype_bytes(dtype);
    for (uint32_t i = 0; i < n_dims; i++)
        n *= dims[i];
    return safetensors_add_dims(&r->header, key, dtype, dims, n_dims, n);
}

int result_end_header(struct err *err, struct result *r)
{
    int e = safetensors_end(&r->header);
    if (e == -EFBIG)
        return err_set(err, e,
                       "the answer has more tensors than a safetensors header may name: choose "
                       "some with --site, --layers or --request");
    if (e)
        return err_set_errno(err, -e, "cannot describe the answer");
    if ((e = outfile_open(err, &r->place)))
        return e;
    e = safetensors_put(r->place.fd, &r->header, &r->start);
    return e ? err_set_errno(err, -e, "cannot write %s", r->place.path) : 0;
}

int result_write(struct err *err, struct result *r, const void *data, size_t n, uint64_t at)
{
    int e = whole_write(r->place.fd, data, n, r->start + at);
    return e ? err_set_errno(err, -e, "cannot write %s", r->place.path) : 0;
}

int result_keep(struct err *err, struct result *r)
{
    return outfile_keep(err, &r->place);
}
