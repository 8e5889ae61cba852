/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/common/npy.h"

#include <dmi/dtype.h>

#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

const char *npy_type(uint32_t dtype)
{
    const struct dmi_dtype_info *info = dmi_dtype_info(dtype);
    return info->npy ? info->npy : info->n_bytes == 2 ? "<u2" : "|u1";
}

void npy_header(struct text *to, uint32_t dtype, const uint64_t *dims, uint32_t n_dims)
{
    text_add(to, "\x93NUMPY\x01\x00\x00\x00", 10);
    text_printf(to, "{'descr': '%s', 'fortran_order': False, 'shape': (", npy_type(dtype));
    for (uint32_t d = 0; d < n_dims; d++)
        text_printf(to, d && n_dims > 1 ? ", %" PRIu64 : "%" PRIu64, dims[d]);
    text_printf(to, n_dims == 1 ? ",), }" : "), }");
    while ((to->n + 1) % 64)
        text_add(to, " ", 1);
    text_add(to, "\n", 1);
    uint16_t n_header = (uint16_t)(to->n - 10);
    if (!to->failed)
        memcpy(to->data + 8, &n_header, sizeof n_header);
}

#define MAX_HEAD 65536u

/* What follows the key and its colon. Return: NULL: the head has no such key. */
static const char *value_of(const char *head, const char *key)
{
    const char *at = strstr(head, key);
    at = at ? strchr(at + strlen(key), ':') : NULL;
    return at ? at + 1 + strspn(at + 1, " ") : NULL;
}

/* (30, 576) or (576,) */
static bool take_shape(const char *text, uint64_t dims[2], uint32_t *n_dims)
{
    *n_dims = 0;
    if (*text++ != '(')
        return false;
    while (*(text += strspn(text, ", ")) != ')') {
        char *end;
        if (*n_dims == 2 || *text < '0' || *text > '9')
            return false;
        dims[(*n_dims)++] = strtoull(text, &end, 10);
        text = end;
    }
    return *n_dims > 0;
}

static uint32_t dtype_of(const char *text)
{
    for (uint32_t d = 1; d < DMI_DTYPE_COUNT; d++) {
        const char *npy = dmi_dtype_info(d)->npy;
        if (npy && *text && !strncmp(text + 1, npy, strlen(npy)) && text[1 + strlen(npy)] == *text)
            return d;
    }
    return DMI_DTYPE_NONE;
}

/* Where the head begins, and its bytes. Return: false: there is none. */
static bool find_head(const char *data, size_t n, size_t *first, size_t *n_head)
{
    const unsigned char *u = (const unsigned char *)data;
    if (n < 12 || memcmp(data, "\x93NUMPY", 6) || u[6] < 1 || u[6] > 3)
        return false;
    *first = u[6] == 1 ? 10 : 12;
    *n_head = u[8] | (size_t)u[9] << 8;
    if (u[6] > 1)
        *n_head |= (size_t)u[10] << 16 | (size_t)u[11] << 24;
    return *n_head < MAX_HEAD && *n_head <= n - *first;
}

const char *npy_read(const char *data, size_t n, uint32_t *dtype, uint64_t dims[2],
                     uint32_t *n_dims, size_t *head)
{
    char text[MAX_HEAD];
    size_t first, n_head;
    if (!find_head(data, n, &first, &n_head))
        return "it is no npy file";
    memcpy(text, data + first, n_head);
    text[n_head] = 0;
    const char *descr = value_of(text, "'descr'"), *shape = value_of(text, "'shape'");
    const char *fortran = value_of(text, "'fortran_order'");
    *dtype = descr ? dtype_of(descr) : DMI_DTYPE_NONE;
    if (!*dtype)
        return "its elements are of no type that is read here";
    if (!shape || !take_shape(shape, dims, n_dims))
        return "expected one dimension, or two: layers, elements";
    if (!fortran || strncmp(fortran, "False", 5))
        return "its elements lie in Fortran's order; expected C's";
    uint64_t elements = dims[0];
    *head = first + n_head;
    if ((*n_dims == 2 && __builtin_mul_overflow(elements, dims[1], &elements)) ||
        elements > (n - *head) / dmi_dtype_bytes(*dtype))
        return "it holds fewer elements than its head says";
    return NULL;
}
