/* SPDX-License-Identifier: Apache-2.0 */
/* From records in launch order to tensors by request, site and layer. */
#include "core/cleanup.h"
#include "storage/hash.h"
#include "tools/dmi_dump.h"

#include <dmi/dmi.h>
#include <dmi/dtype.h>

#include <errno.h>
#include <string.h>

/* Rows that a forward computed, for runs whose engine did not say. */
struct forward {
    uint64_t number;
    uint64_t n_tokens;
    int64_t first_position;
};

struct build {
    const struct reader *reader;
    struct tensors *out;
    const char *implied;
    const struct alias *alias;
    struct forward *forwards;
    size_t n_forwards;
    size_t *slots; /* hash table of index + 1 */
    size_t n_slots;
};

static int forward_order(const void *pa, const void *pb)
{
    const struct forward *a = pa, *b = pb;
    return a->number < b->number ? -1 : a->number > b->number;
}

/* Each forward has as many tokens as its longest tensor with token rows. */
static int count_forwards(struct build *b)
{
    size_t n = reader_n_records(b->reader), kept = 0;
    struct forward *f = calloc(n + 1, sizeof *f);
    if (!f)
        return -ENOMEM;
    for (size_t i = 0; i < n; i++) {
        const struct reader_record *rec = reader_record(b->reader, i);
        bool token = reader_site(b->reader, rec->at.site)->row == DMI_ROW_TOKEN;
        f[i] = (struct forward){ rec->at.forward, token ? rec->at.dims[0] : 0, 0 };
    }
    qsort(f, n, sizeof *f, forward_order);
    for (size_t i = 0; i < n; i++) {
        if (!kept || f[kept - 1].number != f[i].number)
            f[kept++] = f[i];
        else if (f[i].n_tokens > f[kept - 1].n_tokens)
            f[kept - 1].n_tokens = f[i].n_tokens;
    }
    int64_t position = 0;
    for (size_t i = 0; i < kept; i++) {
        f[i].first_position = position;
        position += (int64_t)f[i].n_tokens;
    }
    b->forwards = f;
    b->n_forwards = kept;
    return 0;
}

static const struct forward *forward_of(const struct build *b, uint64_t number)
{
    struct forward key = { .number = number };
    return bsearch(&key, b->forwards, b->n_forwards, sizeof key, forward_order);
}

/* ------------------------------------------------------------------------- names */

static void add_utf8(struct text *t, const char *s, size_t n)
{
    struct text quoted = { 0 };
    text_json_n(&quoted, s, n);
    /* JSON's escapes of the replacement character and of controls, spelt out in UTF-8 */
    for (size_t i = 1; !quoted.failed && i + 1 < quoted.n; i++) {
        if (quoted.data[i] != '\\') {
            text_add(t, quoted.data + i, 1);
        } else if (quoted.data[i + 1] == 'u') {
            unsigned v = 0;
            sscanf(quoted.data + i + 2, "%4x", &v);
            char c = (char)v;
            v == 0xfffd ? text_add(t, "\xef\xbf\xbd", 3) : text_add(t, &c, 1);
            i += 5;
        } else {
            text_add(t, quoted.data + ++i, 1);
        }
    }
    t->failed |= quoted.failed;
    text_deinit(&quoted);
}

/* "q" and 3: "q.3"; "blocks.{layer}.q" and 3: "blocks.3.q". */
static void add_name(struct text *t, const char *name, int32_t layer)
{
    const char *hole = strstr(name, "{layer}");
    if (layer == DMI_NO_LAYER) {
        text_add(t, name, strlen(name));
    } else if (hole) {
        text_add(t, name, (size_t)(hole - name));
        text_printf(t, "%d", layer);
        text_add(t, hole + 7, strlen(hole + 7));
    } else {
        text_printf(t, "%s.%d", name, layer);
    }
}

/* ------------------------------------------------------------------------- tensors */

static uint64_t tensor_hash(const char *request, size_t n, const char *name, int32_t layer)
{
    uint64_t h = hash_bytes(request ? request : "", request ? n : 0);
    return (h ^ hash_bytes(name, strlen(name))) * 0x9E3779B97F4A7C15ull + (uint32_t)layer * 31u +
           (request != NULL);
}

static bool is_tensor(const struct tensor *t, const char *request, size_t n, const char *name,
                      int32_t layer)
{
    return t->layer == layer && !strcmp(t->site->name, name) && !t->request == !request &&
           (!request || (t->n_request == n && !memcmp(t->request, request, n)));
}

static int rehash(struct build *b)
{
    size_t n = b->n_slots ? 2 * b->n_slots : 1024;
    size_t *slots = calloc(n, sizeof *slots);
    if (!slots)
        return -ENOMEM;
    for (size_t i = 0; i < b->out->n; i++) {
        const struct tensor *t = &b->out->all[i];
        size_t at = tensor_hash(t->request, t->n_request, t->site->name, t->layer) & (n - 1);
        while (slots[at])
            at = (at + 1) & (n - 1);
        slots[at] = i + 1;
    }
    free(b->slots);
    b->slots = slots;
    b->n_slots = n;
    return 0;
}

static uint32_t first_of_name(const struct reader *reader, const struct dmi_site *site)
{
    uint32_t i = 0;
    while (i < site->id && strcmp(reader_site(reader, i)->name, site->name))
        i++;
    return i;
}

static struct tensor *find_tensor(struct build *b, const char *request, size_t n_request,
                                  const struct dmi_site *site, int32_t layer)
{
    if (2 * b->out->n >= b->n_slots && rehash(b))
        return NULL;
    size_t at = tensor_hash(request, n_request, site->name, layer) & (b->n_slots - 1);
    for (; b->slots[at]; at = (at + 1) & (b->n_slots - 1)) {
        struct tensor *t = &b->out->all[b->slots[at] - 1];
        if (is_tensor(t, request, n_request, site->name, layer))
            return t;
    }
    if (b->out->n == b->out->room) {
        size_t room = b->out->room ? 2 * b->out->room : 256;
        struct tensor *grown = realloc(b->out->all, room * sizeof *grown);
        if (!grown)
            return NULL;
        b->out->all = grown;
        b->out->room = room;
    }
    struct text key = { 0 };
    if (request) {
        add_utf8(&key, request, n_request);
        text_add(&key, "/", 1);
    }
    size_t n_prefix = key.n;
    add_name(&key, site->name, layer);
    if (key.failed) {
        text_deinit(&key);
        return NULL;
    }
    struct tensor *t = &b->out->all[b->out->n++];
    *t = (struct tensor){ .key = key.data,
                          .name = key.data + n_prefix,
                          .request = request,
                          .n_request = n_request,
                          .site = site,
                          .order = first_of_name(b->reader, site),
                          .layer = layer };
    b->slots[at] = b->out->n;
    return t;
}

static int add_piece(struct build *b, size_t index, const char *request, size_t n_request,
                     uint32_t first_row, uint32_t n_rows, int64_t position)
{
    const struct reader_record *rec = reader_record(b->reader, index);
    struct tensor *t =
        find_tensor(b, request, n_request, reader_site(b->reader, rec->at.site), rec->at.layer);
    if (!t)
        return -ENOMEM;
    uint64_t width = 1;
    for (uint32_t d = 1; d < rec->at.n_dims; d++)
        width *= rec->at.dims[d];
    if (!t->n_pieces) {
        t->dtype = rec->at.dtype;
        t->width = width;
        t->n_tail = rec->at.n_dims - 1u;
        memcpy(t->tail, rec->at.dims + 1, t->n_tail * sizeof t->tail[0]);
    } else if (t->dtype != rec->at.dtype || t->width != width) {
        t->mixed = true;
    }
    if (t->n_pieces == t->room) {
        size_t room = t->room ? 2 * t->room : 4;
        struct piece *grown = realloc(t->pieces, room * sizeof *grown);
        if (!grown)
            return -ENOMEM;
        t->pieces = grown;
        t->room = room;
    }
    t->pieces[t->n_pieces++] = (struct piece){ index, first_row, n_rows, position };
    t->n_rows += n_rows;
    return 0;
}

static const char *request_of(const struct build *b, const struct reader_step *step, uint32_t span,
                              size_t *n_id)
{
    const char *id = reader_span_id(step, span, n_id);
    if (!b->alias || *n_id != b->alias->n_id || memcmp(id, b->alias->id, *n_id))
        return id;
    *n_id = strlen(b->alias->name);
    return b->alias->name;
}

/* Rows that are tokens: each span takes its own. */
static int join_tokens(struct build *b, size_t index, const struct reader_record *rec)
{
    uint32_t n_rows = rec->at.dims[0], owned = 0;
    bool is_short = false;
    for (uint32_t i = 0; i < rec->step->entry->n_spans; i++) {
        const struct dmi_span_entry *span = &rec->step->spans[i];
        if (span->flags & DMI_SPAN_PADDING)
            continue;
        uint32_t room = span->first_row < n_rows ? n_rows - span->first_row : 0;
        uint32_t n = span->n_tokens < room ? span->n_tokens : room;
        is_short |= n < span->n_tokens;
        size_t n_id;
        const char *id = request_of(b, rec->step, i, &n_id);
        int r = n ? add_piece(b, index, id, n_id, span->first_row, n, span->first_position) : 0;
        if (r)
            return r;
        owned += n;
    }
    b->out->n_short += is_short;
    b->out->n_nobody += owned < n_rows ? n_rows - owned : 0;
    return 0;
}

/* A row a request, in the order of the spans: the token that it stands for is the span's last. */
static int join_requests(struct build *b, size_t index, const struct reader_record *rec)
{
    const struct dmi_step_entry *e = rec->step->entry;
    uint32_t n_rows = rec->at.dims[0], n_real = 0, row = 0;
    for (uint32_t i = 0; i < e->n_spans; i++)
        n_real += !(rec->step->spans[i].flags & DMI_SPAN_PADDING);
    bool padded = n_rows >= e->n_spans; /* else padding has no rows here */
    b->out->n_short += n_rows < n_real;
    for (uint32_t i = 0; i < e->n_spans && row < n_rows; i++) {
        const struct dmi_span_entry *span = &rec->step->spans[i];
        if (span->flags & DMI_SPAN_PADDING) {
            row += padded;
            continue;
        }
        size_t n_id;
        const char *id = request_of(b, rec->step, i, &n_id);
        int64_t position = (int64_t)((uint64_t)span->first_position + span->n_tokens - 1u);
        int r = add_piece(b, index, id, n_id, row++, 1, position);
        if (r)
            return r;
    }
    b->out->n_nobody += n_rows - (row < n_real ? row : n_real);
    return 0;
}

static int join_record(struct build *b, size_t index)
{
    const struct reader_record *rec = reader_record(b->reader, index);
    uint32_t meaning = reader_site(b->reader, rec->at.site)->row;
    if (rec->step && meaning == 0)
        return join_tokens(b, index, rec);
    if (rec->step && meaning == 1)
        return join_requests(b, index, rec);
    int64_t position = -1;
    const char *request = NULL;
    if (!b->out->by_request && meaning != 2) {
        const struct forward *f = forward_of(b, rec->at.forward);
        position = f->first_position;
        /* rows a request: one request, so the last token of the forward */
        if (meaning == 1 && f->n_tokens)
            position += (int64_t)f->n_tokens - 1;
        else if (meaning == 0)
            b->out->n_short += rec->at.dims[0] < f->n_tokens;
        request = b->implied;
    }
    return add_piece(b, index, request, request ? strlen(request) : 0, 0, rec->at.dims[0],
                     position);
}

static int piece_order(const void *pa, const void *pb)
{
    const struct piece *a = pa, *b = pb;
    if (a->position != b->position)
        return a->position < b->position ? -1 : 1;
    return a->record < b->record ? -1 : a->record > b->record;
}

static int tensor_order(const void *pa, const void *pb)
{
    const struct tensor *a = pa, *b = pb;
    size_t n = a->n_request < b->n_request ? a->n_request : b->n_request;
    int c = n ? memcmp(a->request, b->request, n) : 0;
    if (c || a->n_request != b->n_request)
        return c ? c : a->n_request < b->n_request ? -1 : 1;
    if (a->order != b->order)
        return a->order < b->order ? -1 : 1;
    return a->layer < b->layer ? -1 : a->layer > b->layer;
}

static int key_order(const void *pa, const void *pb)
{
    return strcmp((*(struct tensor *const *)pa)->key, (*(struct tensor *const *)pb)->key);
}

/* Ids that differ only in bytes that are no UTF-8, or in templates, would share a key. */
static int make_unique(struct tensors *out)
{
    _cleanup_(freep) struct tensor **sorted = calloc(out->n + 1, sizeof *sorted);
    if (!sorted)
        return -ENOMEM;
    for (size_t i = 0; i < out->n; i++)
        sorted[i] = &out->all[i];
    qsort(sorted, out->n, sizeof *sorted, key_order);
    for (size_t i = 1, same = 1; i < out->n; i++) {
        if (strcmp(sorted[i]->key, sorted[i - same]->key)) {
            same = 1;
            continue;
        }
        char *key = NULL;
        size_t n_prefix = (size_t)(sorted[i]->name - sorted[i]->key);
        if (asprintf(&key, "%s~%zu", sorted[i]->key, ++same) < 0)
            return -ENOMEM;
        free(sorted[i]->key);
        sorted[i]->key = key;
        sorted[i]->name = key + n_prefix;
    }
    return 0;
}

int tensors_build(const struct reader *reader, const char *implied, const struct alias *alias,
                  struct tensors *out)
{
    *out = (struct tensors){ .by_request = reader_n_steps(reader) > 0 };
    struct build b = { .reader = reader, .out = out, .implied = implied, .alias = alias };
    int r = count_forwards(&b);
    for (size_t i = 0; !r && i < reader_n_records(reader); i++)
        r = join_record(&b, i);
    for (size_t i = 0; !r && i < out->n; i++)
        if (out->all[i].request)
            qsort(out->all[i].pieces, out->all[i].n_pieces, sizeof(struct piece), piece_order);
    if (!r && out->n) {
        qsort(out->all, out->n, sizeof *out->all, tensor_order);
        r = make_unique(out);
    }
    free(b.forwards);
    free(b.slots);
    if (r)
        tensors_deinit(out);
    return r;
}

void tensors_deinit(struct tensors *tensors)
{
    for (size_t i = 0; i < tensors->n; i++) {
        free(tensors->all[i].key);
        free(tensors->all[i].pieces);
    }
    free(tensors->all);
    *tensors = (struct tensors){ 0 };
}

/* ------------------------------------------------------------------------- elements */

static double small_float(uint32_t bits, int n_exponent, int n_mantissa, bool finite_only)
{
    uint32_t exponent = bits >> n_mantissa & ((1u << n_exponent) - 1u);
    uint32_t mantissa = bits & ((1u << n_mantissa) - 1u);
    int bias = (1 << (n_exponent - 1)) - 1;
    double sign = bits >> (n_exponent + n_mantissa) & 1 ? -1.0 : 1.0;
    uint32_t top = (1u << n_exponent) - 1u;
    if (exponent == top && (!finite_only || mantissa == (1u << n_mantissa) - 1u))
        return mantissa ? __builtin_nan("") : sign * __builtin_inf();
    double value = exponent ? 1.0 + (double)mantissa / (double)(1u << n_mantissa)
                            : (double)mantissa / (double)(1u << n_mantissa);
    return sign * __builtin_ldexp(value, (exponent ? (int)exponent : 1) - bias);
}

#define CONVERT(TYPE)                                                                              \
    for (size_t i = 0; i < n; i++) {                                                               \
        TYPE v;                                                                                    \
        memcpy(&v, (const char *)data + i * sizeof v, sizeof v);                                   \
        out[i] = (double)v;                                                                        \
    }                                                                                              \
    break

void elements_to_double(uint32_t dtype, const void *data, size_t n, double *out)
{
    const uint8_t *b = data;
    switch (dtype) {
    case DMI_DTYPE_F32: CONVERT(float);
    case DMI_DTYPE_F64: CONVERT(double);
    case DMI_DTYPE_I8: CONVERT(int8_t);
    case DMI_DTYPE_I16: CONVERT(int16_t);
    case DMI_DTYPE_I32: CONVERT(int32_t);
    case DMI_DTYPE_I64: CONVERT(int64_t);
    case DMI_DTYPE_BOOL:
    case DMI_DTYPE_U8: CONVERT(uint8_t);
    case DMI_DTYPE_U16: CONVERT(uint16_t);
    case DMI_DTYPE_U32: CONVERT(uint32_t);
    case DMI_DTYPE_U64: CONVERT(uint64_t);
    case DMI_DTYPE_F16:
        for (size_t i = 0; i < n; i++)
            out[i] = small_float((uint32_t)b[2 * i] | (uint32_t)b[2 * i + 1] << 8, 5, 10, false);
        break;
    case DMI_DTYPE_BF16:
        for (size_t i = 0; i < n; i++) {
            uint32_t bits = (uint32_t)b[2 * i] << 16 | (uint32_t)b[2 * i + 1] << 24;
            float v;
            memcpy(&v, &bits, sizeof v);
            out[i] = (double)v;
        }
        break;
    case DMI_DTYPE_F8E4M3: /* the "fn" form: no infinity, NaN is all ones */
        for (size_t i = 0; i < n; i++)
            out[i] = small_float(b[i], 4, 3, true);
        break;
    case DMI_DTYPE_F8E5M2:
        for (size_t i = 0; i < n; i++)
            out[i] = small_float(b[i], 5, 2, false);
        break;
    default:
        for (size_t i = 0; i < n; i++)
            out[i] = __builtin_nan("");
    }
}

void print_shape(char *out, size_t n_out, const struct tensor *tensor)
{
    size_t n = 0;
    out[0] = 0;
    for (uint32_t d = 0; d < tensor->n_tail && n < n_out; d++)
        n += (size_t)snprintf(out + n, n_out - n, "%s%u", d ? "x" : "", tensor->tail[d]);
    if (!tensor->n_tail)
        snprintf(out, n_out, "1");
}
