/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dmi-dump export: tensors in their final order and shape, written in what others read. Records
 * are decoded in launch order, each once, and scattered to where their rows belong.
 */
#include "core/cleanup.h"
#include "storage/hash.h"
#include "tools/dmi_dump.h"

#include <dmi/dtype.h>

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct target {
    const struct tensor *tensor;
    uint64_t offset; /* of its first byte in its file */
    uint64_t n_bytes;
    char *file; /* npy: its name in the folder */
};

struct exporter {
    struct reader *reader;
    const struct tensors *tensors;
    const struct options *options;
    const char *output;
    struct target *targets;
    size_t n_targets;
    uint64_t n_bytes;
    int fd; /* safetensors: the file; npy: the folder */
    bool made_folder;
};

/* A format: what is written before the rows, how a run of rows is written, and what after. */
struct format {
    const char *name;
    int (*begin)(struct err *err, struct exporter *x);
    int (*write)(struct exporter *x, const struct target *t, const void *data, size_t n,
                 uint64_t at);
    int (*finish)(struct err *err, struct exporter *x);
};

static int write_at(int fd, const void *data, size_t n, uint64_t at)
{
    while (n) {
        ssize_t w = pwrite(fd, data, n, (off_t)at);
        if (w < 0 && errno == EINTR)
            continue;
        if (w <= 0)
            return w < 0 ? -errno : -EIO;
        data = (const char *)data + w;
        n -= (size_t)w;
        at += (uint64_t)w;
    }
    return 0;
}

/* ------------------------------------------------------------------------- metadata */

static void add_positions(struct text *t, const struct tensor *tensor)
{
    text_printf(t, "[");
    bool first = true;
    for (size_t p = 0; p < tensor->n_pieces; p++)
        for (uint32_t i = 0; i < tensor->pieces[p].n_rows; i++) {
            int64_t at = tensor->pieces[p].position;
            text_printf(t, "%s%" PRId64, first ? "" : ",", at < 0 ? -1 : at + i);
            first = false;
        }
    text_printf(t, "]");
}

/* What a reader must know of one tensor, as a JSON object. */
static void add_facts(struct text *t, const struct tensor *tensor)
{
    text_printf(t, "{\"site\": ");
    text_json(t, tensor->site->name);
    text_printf(t, ", \"layer\": ");
    tensor->layer == DMI_NO_LAYER ? text_printf(t, "null") : text_printf(t, "%d", tensor->layer);
    text_printf(t, ", \"request\": ");
    if (tensor->request)
        text_json_n(t, tensor->request, tensor->n_request);
    else
        text_printf(t, "null");
    text_printf(t, ", \"row\": \"%s\", \"scale\": ", dmi_row_name(tensor->site->row));
    text_json_double(t, tensor->site->scale);
    text_printf(t, ", \"shape\": [");
    for (uint32_t d = 0; d < tensor->n_tail; d++)
        text_printf(t, "%s%u", d ? ", " : "", tensor->tail[d]);
    text_printf(t, "], \"note\": ");
    text_json(t, tensor->site->note);
    text_printf(t, ", \"positions\": ");
    add_positions(t, tensor);
    text_printf(t, "}");
}

static void add_pairs(struct text *t, const struct reader_pair *pairs, size_t n)
{
    text_printf(t, "{");
    for (size_t i = 0; i < n; i++) {
        text_printf(t, i ? ", " : "");
        text_json(t, pairs[i].key);
        text_printf(t, ": ");
        text_json(t, pairs[i].value);
    }
    text_printf(t, "}");
}

/* Adds @inner, a JSON text, as a JSON string: safetensors' metadata holds strings only. */
static void add_as_string(struct text *t, const char *key, struct text *inner)
{
    text_printf(t, ", \"%s\": ", key);
    text_json_n(t, inner->data ? inner->data : "", inner->n);
    t->failed |= inner->failed;
    text_deinit(inner);
}

/* ------------------------------------------------------------------------- safetensors */

/* Source: https://github.com/huggingface/safetensors, "Format" (0.5). */
static int safetensors_begin(struct err *err, struct exporter *x)
{
    const struct reader_run *run = reader_run(x->reader);
    _cleanup_(text_deinit) struct text t = { 0 };
    struct text inner = { 0 };
    text_printf(&t,
                "{\"__metadata__\": {\"format\": \"pt\", \"producer\": \"dmi-dump\", "
                "\"run\": \"%s\"",
                run->uuid);
    if (run->model) {
        text_printf(&t, ", \"model\": ");
        text_json(&t, run->model);
    }
    add_pairs(&inner, run->conventions, run->n_conventions);
    add_as_string(&t, "conventions", &inner);
    add_pairs(&inner, run->absent, run->n_absent);
    add_as_string(&t, "absent", &inner);
    text_printf(&inner, "{");
    for (size_t i = 0; i < x->n_targets; i++) {
        text_printf(&inner, i ? ", " : "");
        text_json(&inner, x->targets[i].tensor->key);
        text_printf(&inner, ": ");
        add_facts(&inner, x->targets[i].tensor);
    }
    text_printf(&inner, "}");
    add_as_string(&t, "tensors", &inner);
    text_printf(&t, "}");
    uint64_t at = 0;
    for (size_t i = 0; i < x->n_targets; i++) {
        struct target *target = &x->targets[i];
        text_printf(&t, ", ");
        text_json(&t, target->tensor->key);
        text_printf(&t,
                    ": {\"dtype\": \"%s\", \"shape\": [%" PRIu64 ", %" PRIu64
                    "], \"data_offsets\": [%" PRIu64 ", %" PRIu64 "]}",
                    dmi_dtype_info(target->tensor->dtype)->safetensors, target->tensor->n_rows,
                    target->tensor->width, at, at + target->n_bytes);
        target->offset = at;
        at += target->n_bytes;
    }
    text_printf(&t, "}");
    while (t.n % 8)
        text_add(&t, " ", 1);
    if (t.failed)
        return err_set_errno(err, ENOMEM, "cannot describe the tensors");
    x->fd = open(x->output, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (x->fd < 0)
        return err_set_errno(err, errno, "cannot write %s", x->output);
    uint64_t n_header = t.n;
    int r = write_at(x->fd, &n_header, 8, 0);
    if (!r)
        r = write_at(x->fd, t.data, t.n, 8);
    for (size_t i = 0; i < x->n_targets; i++)
        x->targets[i].offset += 8 + t.n;
    if (!r && ftruncate(x->fd, (off_t)(8 + t.n + at)))
        r = -errno;
    return r ? err_set_errno(err, -r, "cannot write %s", x->output) : 0;
}

static int safetensors_write(struct exporter *x, const struct target *t, const void *data, size_t n,
                             uint64_t at)
{
    return write_at(x->fd, data, n, t->offset + at);
}

static int safetensors_finish(struct err *err, struct exporter *x)
{
    (void)err;
    (void)x;
    return 0;
}

/* ------------------------------------------------------------------------- npy */

/* A file name of a key: what is not harmless becomes %XX, and long ones end in a hash. */
static char *file_name(const char *key)
{
    struct text t = { 0 };
    for (const char *c = key; *c; c++) {
        bool harmless = (*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z') ||
                        (*c >= '0' && *c <= '9') || *c == '_' || *c == '-' ||
                        (*c == '.' && c != key);
        harmless ? text_add(&t, c, 1) : text_printf(&t, "%%%02X", (unsigned char)*c);
    }
    if (t.n > 200) {
        t.n = 180;
        text_printf(&t, "~%016" PRIx64, hash_bytes(key, strlen(key)));
    }
    text_printf(&t, ".npy");
    if (t.failed)
        text_deinit(&t);
    return t.data;
}

/* numpy has no bf16 and no 8-bit floats: their bits go out as integers, and index.json says so. */
static const char *npy_type(uint32_t dtype)
{
    const struct dmi_dtype_info *info = dmi_dtype_info(dtype);
    return info->npy ? info->npy : info->n_bytes == 2 ? "<u2" : "|u1";
}

/* Source: numpy.lib.format, version 1.0. */
static int npy_begin_file(struct exporter *x, struct target *target)
{
    _cleanup_(text_deinit) struct text t = { 0 };
    text_add(&t, "\x93NUMPY\x01\x00\x00\x00", 10);
    text_printf(&t,
                "{'descr': '%s', 'fortran_order': False, 'shape': (%" PRIu64 ", %" PRIu64 "), }",
                npy_type(target->tensor->dtype), target->tensor->n_rows, target->tensor->width);
    while ((t.n + 1) % 64)
        text_add(&t, " ", 1);
    text_add(&t, "\n", 1);
    target->file = file_name(target->tensor->key);
    if (t.failed || !target->file)
        return -ENOMEM;
    uint16_t n_header = (uint16_t)(t.n - 10);
    memcpy(t.data + 8, &n_header, 2);
    target->offset = t.n;
    _cleanup_(closep) int fd =
        openat(x->fd, target->file, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return -errno;
    int r = write_at(fd, t.data, t.n, 0);
    if (!r && ftruncate(fd, (off_t)(t.n + target->n_bytes)))
        r = -errno;
    return r;
}

static int npy_begin(struct err *err, struct exporter *x)
{
    x->made_folder = !mkdir(x->output, 0700);
    if (!x->made_folder && errno != EEXIST)
        return err_set_errno(err, errno, "cannot make the folder %s", x->output);
    x->fd = open(x->output, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (x->fd < 0)
        return err_set_errno(err, errno, "cannot open the folder %s", x->output);
    bool bits = false;
    for (size_t i = 0; i < x->n_targets; i++) {
        int r = npy_begin_file(x, &x->targets[i]);
        if (r)
            return err_set_errno(err, -r, "cannot write %s/%s", x->output,
                                 x->targets[i].file ? x->targets[i].file : "?");
        bits |= !dmi_dtype_info(x->targets[i].tensor->dtype)->npy;
    }
    if (bits)
        fprintf(stderr,
                "dmi-dump: numpy has no bf16 and no 8-bit floats: their bits are written as "
                "unsigned integers; export as safetensors to keep the type\n");
    return 0;
}

static int npy_write(struct exporter *x, const struct target *t, const void *data, size_t n,
                     uint64_t at)
{
    _cleanup_(closep) int fd = openat(x->fd, t->file, O_WRONLY | O_CLOEXEC | O_NOFOLLOW);
    return fd < 0 ? -errno : write_at(fd, data, n, t->offset + at);
}

static int npy_finish(struct err *err, struct exporter *x)
{
    const struct reader_run *run = reader_run(x->reader);
    _cleanup_(text_deinit) struct text t = { 0 };
    text_printf(&t, "{\n\"run\": \"%s\",\n\"model\": ", run->uuid);
    text_json(&t, run->model);
    text_printf(&t, ",\n\"conventions\": ");
    add_pairs(&t, run->conventions, run->n_conventions);
    text_printf(&t, ",\n\"tensors\": {");
    for (size_t i = 0; i < x->n_targets; i++) {
        text_printf(&t, "%s\n  ", i ? "," : "");
        text_json(&t, x->targets[i].tensor->key);
        text_printf(&t, ": {\"file\": ");
        text_json(&t, x->targets[i].file);
        text_printf(&t, ", \"dtype\": \"%s\", \"stored_as\": \"%s\", \"facts\": ",
                    dmi_dtype_info(x->targets[i].tensor->dtype)->name,
                    npy_type(x->targets[i].tensor->dtype));
        add_facts(&t, x->targets[i].tensor);
        text_printf(&t, "}");
    }
    text_printf(&t, "\n}\n}\n");
    if (t.failed)
        return err_set_errno(err, ENOMEM, "cannot write %s/index.json", x->output);
    _cleanup_(closep) int fd =
        openat(x->fd, "index.json", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    int r = fd < 0 ? -errno : write_at(fd, t.data, t.n, 0);
    return r ? err_set_errno(err, -r, "cannot write %s/index.json", x->output) : 0;
}

static const struct format formats[] = {
    { "safetensors", safetensors_begin, safetensors_write, safetensors_finish },
    { "npy", npy_begin, npy_write, npy_finish },
};

/* ------------------------------------------------------------------------- rows */

struct move {
    size_t record, target;
    uint64_t from, to, n; /* bytes within the record, within the tensor */
};

static int move_order(const void *pa, const void *pb)
{
    const struct move *a = pa, *b = pb;
    return a->record < b->record ? -1 : a->record > b->record;
}

static struct move *plan(const struct exporter *x, size_t *n_moves)
{
    size_t n = 0;
    for (size_t i = 0; i < x->n_targets; i++)
        n += x->targets[i].tensor->n_pieces;
    struct move *moves = calloc(n + 1, sizeof *moves);
    *n_moves = n;
    n = 0;
    for (size_t i = 0; moves && i < x->n_targets; i++) {
        const struct tensor *t = x->targets[i].tensor;
        uint64_t n_row = t->width * dmi_dtype_bytes(t->dtype), to = 0;
        for (size_t p = 0; p < t->n_pieces; p++) {
            const struct piece *piece = &t->pieces[p];
            moves[n++] = (struct move){ piece->record, i, piece->first_row * n_row, to,
                                        piece->n_rows * n_row };
            to += piece->n_rows * n_row;
        }
    }
    if (moves)
        qsort(moves, *n_moves, sizeof *moves, move_order);
    return moves;
}

static int write_rows(struct err *err, struct exporter *x, const struct format *format)
{
    size_t n_moves, room = 0, loaded = SIZE_MAX;
    _cleanup_(freep) struct move *moves = plan(x, &n_moves);
    _cleanup_(freep) uint8_t *raw = NULL;
    if (!moves)
        return err_set_errno(err, ENOMEM, "cannot export");
    for (size_t i = 0; i < n_moves; i++) {
        const struct reader_record *rec = reader_record(x->reader, moves[i].record);
        if (rec->at.n_bytes > room) {
            uint8_t *grown = realloc(raw, rec->at.n_bytes);
            if (!grown)
                return err_set_errno(err, ENOMEM, "cannot export");
            raw = grown;
            room = rec->at.n_bytes;
        }
        if (loaded != moves[i].record && reader_decode(err, x->reader, rec, raw))
            return err->code;
        loaded = moves[i].record;
        int r = moves[i].n ? format->write(x, &x->targets[moves[i].target], raw + moves[i].from,
                                           moves[i].n, moves[i].to)
                           : 0;
        if (r)
            return err_set_errno(err, -r, "cannot write %s", x->output);
    }
    return 0;
}

static bool wanted(const struct options *o, const struct tensor *t)
{
    return (!o->site || !strcmp(o->site, t->site->name)) &&
           (!o->by_layer || (t->layer >= o->layers.first && t->layer < o->layers.end)) &&
           (!o->request || !t->request ||
            (strlen(o->request) == t->n_request && !memcmp(o->request, t->request, t->n_request)));
}

static int choose(struct exporter *x, size_t *n_mixed)
{
    x->targets = calloc(x->tensors->n + 1, sizeof *x->targets);
    if (!x->targets)
        return -ENOMEM;
    for (size_t i = 0; i < x->tensors->n; i++) {
        const struct tensor *t = &x->tensors->all[i];
        if (!wanted(x->options, t))
            continue;
        if (t->mixed) {
            fprintf(stderr,
                    "dmi-dump: %s is left out: its dtype or width changes from record to "
                    "record, so it is not one tensor (dmi-dump list --records --site %s)\n",
                    t->key, t->site->name);
            ++*n_mixed;
            continue;
        }
        uint64_t n = t->n_rows * t->width * dmi_dtype_bytes(t->dtype);
        x->targets[x->n_targets++] = (struct target){ .tensor = t, .n_bytes = n };
        x->n_bytes += n;
    }
    return 0;
}

static char *default_output(const struct exporter *x, const char *format)
{
    _cleanup_(freep) char *path = strdup(reader_run(x->reader)->path);
    if (!path)
        return NULL;
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/')
        path[--n] = 0;
    const char *name = strrchr(path, '/') ? strrchr(path, '/') + 1 : path;
    char *out = NULL;
    return asprintf(&out, "%s%s%s", *name && *name != '.' ? name : "run",
                    strcmp(format, "npy") ? "." : "-", format) < 0
               ? NULL
               : out;
}

static int export_to(struct err *err, struct exporter *x, const struct format *format)
{
    int r = format->begin(err, x);
    if (!r)
        r = write_rows(err, x, format);
    if (!r)
        r = format->finish(err, x);
    return r;
}

int dump_export(struct reader *reader, const struct options *o)
{
    const struct format *format = NULL;
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++)
        if (!strcmp(o->format, formats[i].name))
            format = &formats[i];
    if (!format) {
        fprintf(stderr, "dmi-dump: no format '%s': safetensors, npy\n", o->format);
        return DUMP_USAGE;
    }
    _cleanup_(tensors_deinit) struct tensors ts = { 0 };
    struct exporter x = { .reader = reader, .tensors = &ts, .options = o, .fd = -1 };
    size_t n_mixed = 0;
    _cleanup_(freep) char *automatic = NULL;
    if (tensors_build(reader, NULL, NULL, &ts) || choose(&x, &n_mixed) ||
        !(automatic = default_output(&x, format->name))) {
        fprintf(stderr, "dmi-dump: no memory\n");
        free(x.targets);
        return DUMP_USAGE;
    }
    x.output = o->output ? o->output : automatic;
    struct err err = { 0 };
    int r = export_to(&err, &x, format);
    if (r)
        fprintf(stderr, "dmi-dump: %s\n", err.msg);
    struct stat st;
    if (r && x.fd >= 0 && !fstat(x.fd, &st) && S_ISREG(st.st_mode))
        unlink(x.output); /* half a file would read as a whole one */
    closep(&x.fd);
    size_t n_damage = report_findings(reader, NULL);
    if (!r && o->json) {
        struct text t = { 0 };
        text_printf(&t, "{\"output\": ");
        text_json(&t, x.output);
        text_printf(&t,
                    ", \"format\": \"%s\", \"tensors\": %zu, \"bytes\": %" PRIu64
                    ", \"left_out\": %zu}",
                    format->name, x.n_targets, x.n_bytes, n_mixed);
        if (!t.failed)
            puts(t.data);
        text_deinit(&t);
    } else if (!r) {
        printf("%zu tensors, %" PRIu64 " bytes, to %s\n", x.n_targets, x.n_bytes, x.output);
        if (ts.n_nobody)
            printf("%" PRIu64 " rows belong to no request (padding) and are left out\n",
                   ts.n_nobody);
    }
    for (size_t i = 0; i < x.n_targets; i++)
        free(x.targets[i].file);
    free(x.targets);
    return r ? DUMP_USAGE : n_mixed || n_damage ? DUMP_FAILED : DUMP_OK;
}
