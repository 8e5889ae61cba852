/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/analyze/heads_file.h"

#include "core/cleanup.h"
#include "core/whole.h"
#include "read/value.h"
#include "tools/common/outfile.h"
#include "tools/common/say.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_BYTES (64u << 20) /* of a file of JSON that a user names */

json_t *json_file(const char *path)
{
    struct err err = { 0 };
    json_t *value = value_read(&err, path, MOST_BYTES, JSON_DECODE_ANY);
    if (!value)
        complain("%s", err.msg);
    return value;
}

/* ------------------------------------------------------------------------- heads */

static bool is_small(const json_t *v)
{
    return json_is_integer(v) && json_integer_value(v) >= 0 &&
           json_integer_value(v) < HEADS_FILE_MOST;
}

/* Digits to the end of the word, or to the point. */
static bool take_word(const char *word, char end, int64_t *out, const char **after)
{
    *out = 0;
    const char *at = word;
    for (; *at >= '0' && *at <= '9' && *out < HEADS_FILE_MOST; at++)
        *out = 10 * *out + *at - '0';
    *after = at + 1;
    return at > word && *at == end && *out < HEADS_FILE_MOST;
}

static bool take_head(const json_t *v, struct dmi_analyze_head *out)
{
    const json_t *layer = json_array_get(v, 0), *head = json_array_get(v, 1);
    const char *after;
    int64_t l, h;
    if (json_is_string(v) && take_word(json_string_value(v), '.', &l, &after) &&
        take_word(after, 0, &h, &after)) {
        *out = (struct dmi_analyze_head){ (int32_t)l, (uint32_t)h };
        return true;
    }
    if (json_array_size(v) != 2 || !is_small(layer) || !is_small(head))
        return false;
    *out = (struct dmi_analyze_head){ (int32_t)json_integer_value(layer),
                                      (uint32_t)json_integer_value(head) };
    return true;
}

static const json_t *list_of(const json_t *file)
{
    const json_t *list = json_object_get(json_object_get(file, "params"), "important_heads");
    list = list ? list : json_object_get(file, "heads");
    return list ? list : file;
}

static int take_heads(const char *path, const json_t *list, struct dmi_analyze_head **out,
                      uint64_t *n)
{
    size_t size = json_array_size(list);
    if (!size || size > HEADS_FILE_MOST) {
        complain("%s has no list of heads: [[LAYER, HEAD], ...]", path);
        return -1;
    }
    *out = calloc(size, sizeof **out);
    for (*n = 0; *out && *n < size; ++*n)
        if (!take_head(json_array_get(list, *n), &(*out)[*n])) {
            complain("%s: entry %zu is no head: [LAYER, HEAD], or \"LAYER.HEAD\"", path,
                     (size_t)*n);
            free(*out);
            *out = NULL;
            return -1;
        }
    return *out ? 0 : -1;
}

int heads_file_read(const char *path, struct dmi_analyze_head **out, uint64_t *n)
{
    json_t *file = json_file(path);
    *out = NULL;
    *n = 0;
    int r = file ? take_heads(path, list_of(file), out, n) : -1;
    json_decref(file);
    return r;
}

int heads_file_write(const char *path, const char *run, const struct dmi_analyze_head *heads,
                     uint64_t n)
{
    struct err err = { 0 };
    struct outfile place = { .fd = -1 };
    json_t *list = json_array();
    for (uint64_t i = 0; i < n; i++)
        json_array_append_new(list, json_pack("[i, i]", heads[i].layer, (int)heads[i].head));
    json_t *file = json_pack("{s:{s:o}}", "params", "important_heads", list);
    _cleanup_(freep) char *text = file ? json_dumps(file, 0) : NULL;
    json_decref(file);
    int r = text ? outfile_choose(&err, &place, path, run, ".json", false) : -1;
    if (!r)
        r = outfile_open(&err, &place);
    if (!r && whole_write(place.fd, text, strlen(text), 0))
        r = err_set(&err, -1, "cannot write %s", path);
    if (!r)
        r = outfile_keep(&err, &place);
    if (r)
        complain("%s", text ? err.msg : "no memory");
    outfile_deinit(&place);
    return r ? -1 : 0;
}
