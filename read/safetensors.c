/* SPDX-License-Identifier: Apache-2.0 */
#include "read/safetensors.h"

#include "core/regular.h"
#include "core/whole.h"
#include "read/value.h"

#include <dmi/dtype.h>

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static uint32_t dtype_of(const char *name)
{
    for (uint32_t d = 1; name && d < DMI_DTYPE_COUNT; d++)
        if (!strcmp(dmi_dtype_info(d)->safetensors, name))
            return d;
    return DMI_DTYPE_NONE;
}

static int entry_order(const void *pa, const void *pb)
{
    return strcmp(((const struct st_entry *)pa)->key, ((const struct st_entry *)pb)->key);
}

/* Fills one entry from its JSON. Return: false if it is not what the format says. */
static bool take_entry(struct st_entry *e, const char *key, const json_t *o, const char *data,
                       uint64_t n_data)
{
    const json_t *shape = json_object_get(o, "shape"), *span = json_object_get(o, "data_offsets");
    uint64_t first = (uint64_t)json_integer_value(json_array_get(span, 0));
    uint64_t end = (uint64_t)json_integer_value(json_array_get(span, 1));
    e->dtype = dtype_of(json_string_value(json_object_get(o, "dtype")));
    e->n_dims = (uint32_t)json_array_size(shape);
    if (!e->dtype || e->n_dims > 8 || first > end || end > n_data || json_array_size(span) != 2)
        return false;
    uint64_t n = dmi_dtype_bytes(e->dtype);
    for (uint32_t d = 0; d < e->n_dims; d++) {
        e->dims[d] = (uint64_t)json_integer_value(json_array_get(shape, d));
        if (__builtin_mul_overflow(n, e->dims[d], &n))
            return false;
    }
    e->data = data + first;
    e->n_bytes = end - first;
    return n == e->n_bytes && (e->key = strdup(key));
}

static int take_header(struct err *err, const char *path, struct safetensors *st)
{
    uint64_t n_header;
    if (st->n_map < 8)
        return err_set(err, -EINVAL, "%s is no safetensors file: too short", path);
    memcpy(&n_header, st->map, 8);
    if (n_header > st->n_map - 8 || n_header > (100u << 20))
        return err_set(err, -EINVAL,
                       "%s is no safetensors file: its header would be %" PRIu64 " bytes long",
                       path, n_header);
    json_error_t error;
    json_t *header =
        json_loadb((const char *)st->map + 8, n_header, JSON_REJECT_DUPLICATES, &error);
    if (!json_is_object(header)) {
        json_decref(header);
        return err_set(err, -EINVAL, "%s is no safetensors file: %s", path, error.text);
    }
    int r = 0;
    st->entries = calloc(json_object_size(header) + 1, sizeof *st->entries);
    const char *key;
    json_t *value;
    if (!st->entries)
        r = err_set_errno(err, ENOMEM, "cannot read %s", path);
    else
        json_object_foreach(header, key, value)
        {
            if (!strcmp(key, "__metadata__")) {
                st->metadata = json_incref(value);
                continue;
            }
            if (take_entry(&st->entries[st->n], key, value, (const char *)st->map + 8 + n_header,
                           st->n_map - 8 - n_header)) {
                st->n++;
            } else {
                r = err_set(err, -EINVAL,
                            "%s: the entry %s lies outside the file, or its dtype or "
                            "shape is not known",
                            path, key);
                break;
            }
        }
    json_decref(header);
    if (!r)
        qsort(st->entries, st->n, sizeof *st->entries, entry_order);
    return r;
}

int safetensors_open(struct err *err, const char *path, struct safetensors *out)
{
    *out = (struct safetensors){ 0 };
    uint64_t n;
    uint8_t *map = regular_map(err, path, &n);
    if (!map)
        return err->code;
    out->map = map;
    out->n_map = n;
    int r = n < 8 ? err_set(err, -EINVAL, "%s is no safetensors file", path)
                  : take_header(err, path, out);
    if (r)
        safetensors_deinit(out);
    return r;
}

void safetensors_deinit(struct safetensors *st)
{
    for (size_t i = 0; i < st->n; i++)
        free(st->entries[i].key);
    free(st->entries);
    json_decref(st->metadata);
    if (st->map)
        munmap(st->map, st->n_map);
    *st = (struct safetensors){ 0 };
}

const struct st_entry *safetensors_find(const struct safetensors *st, const char *key)
{
    struct st_entry probe = { .key = (char *)(uintptr_t)key };
    return bsearch(&probe, st->entries, st->n, sizeof probe, entry_order);
}

/* ------------------------------------------------------------------------- writing */

void safetensors_begin(struct st_header *header, const json_t *metadata)
{
    *header = (struct st_header){ 0 };
    text_printf(&header->text, "{\"__metadata__\": ");
    value_add(&header->text, metadata);
}

uint64_t safetensors_add_dims(struct st_header *header, const char *key, uint32_t dtype,
                              const uint64_t *dims, uint32_t n_dims, uint64_t n_bytes)
{
    uint64_t first = header->n_data;
    header->n_data += n_bytes;
    text_printf(&header->text, ", ");
    value_add_new(&header->text, value_text(key));
    text_printf(&header->text, ": {\"dtype\": \"%s\", \"shape\": [",
                dmi_dtype_info(dtype)->safetensors);
    for (uint32_t d = 0; d < n_dims; d++)
        text_printf(&header->text, d ? ", %" PRIu64 : "%" PRIu64, dims[d]);
    text_printf(&header->text, "], \"data_offsets\": [%" PRIu64 ", %" PRIu64 "]}", first,
                header->n_data);
    return first;
}

uint64_t safetensors_add(struct st_header *header, const char *key, uint32_t dtype, uint64_t n_rows,
                         uint64_t width, uint64_t n_bytes)
{
    return safetensors_add_dims(header, key, dtype, (const uint64_t[]){ n_rows, width }, 2,
                                n_bytes);
}

int safetensors_end(struct st_header *header)
{
    text_printf(&header->text, "}");
    while (header->text.n % 8)
        text_add(&header->text, " ", 1);
    if (header->text.failed)
        return -ENOMEM;
    return header->text.n > SAFETENSORS_MAX_HEADER ? -EFBIG : 0;
}

int safetensors_put(int fd, const struct st_header *header, uint64_t *data)
{
    uint64_t n = header->text.n;
    *data = sizeof n + n;
    int r = whole_write(fd, &n, sizeof n, 0);
    if (!r)
        r = whole_write(fd, header->text.data, n, sizeof n);
    return r || !ftruncate(fd, (off_t)(*data + header->n_data)) ? r : -errno;
}
