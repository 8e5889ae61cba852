/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dmi-dump export --format tensorrt-llm: the tree of TensorRT-LLM's debug dump, PP_x/TP_y/iteration_n/NAME.npy, with a
 * file a record: rows as the launch had them, rank by rank, nothing joined. index.jsonl says what each is, and whose
 * rows an iteration holds. Source: TensorRT-LLM 1.0, cpp/tensorrt_llm/batch_manager/utils/debugUtils.cpp (the tree) and
 * runtime/utils/numpyUtils.cpp (bf16 becomes f32).
 */
#include "tools/dump/export.h"

#include "core/any.h"
#include "core/cleanup.h"
#include "core/err.h"
#include "core/grow.h"
#include "core/whole.h"
#include "read/value.h"
#include "storage/map.h"
#include "read/record.h"
#include "tools/common/npy.h"
#include "tools/common/select.h"

#include <dmi/dtype.h>

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define INDEX     "index.jsonl"
#define AT_A_TIME 1024u /* elements that are converted together */
#define FULL      65536u

/* Names that are taken, and how often each was wanted. */
struct taken_names {
    struct map map;
    char **all; /* owned; the map borrows them */
    size_t n, room;
};

struct trtllm_folder {
    struct exporter *x;
    struct reader *reader;    /* of the rank that is written */
    int32_t pp, tp;           /* its own */
    struct taken_names names; /* of all files */
    struct text index;        /* not yet written */
    uint64_t n_index;         /* bytes written */
    int fd;                   /* of index.jsonl */
    const void *last_step;    /* whose spans were said last */
    uint64_t last_iteration;
    uint8_t *raw; /* the record's bytes */
    uint64_t room;
};

static void names_deinit(struct taken_names *names)
{
    map_deinit(&names->map);
    for (size_t i = 0; i < names->n; i++)
        free(names->all[i]);
    free(names->all);
}

static void tree_deinit(struct trtllm_folder *t)
{
    names_deinit(&t->names);
    text_deinit(&t->index);
    closep(&t->fd);
    free(t->raw);
}

/* ------------------------------------------------------------------------- names */

/* How often @path was wanted before, on whatever rank. Return: -ENOMEM. */
static int64_t count_name(struct taken_names *names, const char *path)
{
    size_t n = strlen(path);
    if (map_get(&names->map, path, n) == MAP_NONE) {
        char *kept = strdup(path);
        if (!kept || grow((void **)&names->all, names->n, &names->room, sizeof *names->all, 64)) {
            free(kept);
            return -ENOMEM;
        }
        names->all[names->n++] = kept;
        size_t *count = map_at(&names->map, kept, n);
        if (!count)
            return -ENOMEM;
        *count = 0;
    }
    return (int64_t)(*map_at(&names->map, path, n))++;
}

/* The engine's number of the step; of a record without one the forward. */
static uint64_t iteration_of(const struct reader_record *rec)
{
    return rec->step ? rec->step->entry->step : rec->at.forward;
}

static void add_folder(struct text *to, const struct trtllm_folder *t, uint64_t iteration,
                       int depth)
{
    text_printf(to, "PP_%" PRId32, t->pp);
    if (depth > 1)
        text_printf(to, "/TP_%" PRId32, t->tp);
    if (depth > 2)
        text_printf(to, "/iteration_%" PRIu64, iteration);
}

static int make_folders(const struct trtllm_folder *t, uint64_t iteration)
{
    for (int depth = 1; depth <= 3; depth++) {
        _cleanup_(text_deinit) struct text path = { 0 };
        add_folder(&path, t, iteration, depth);
        if (path.failed)
            return -ENOMEM;
        if (mkdirat(t->x->fd, path.data, 0700) && errno != EEXIST)
            return -errno;
    }
    return 0;
}

/* Path of a record's file; a name that the iteration has already gets ~2 and so on. Return: NULL: no memory. */
static char *path_of(struct trtllm_folder *t, const struct reader_record *rec)
{
    const struct dmi_site *site = reader_site(t->reader, rec->at.site);
    _cleanup_(text_deinit) struct text name = { 0 };
    tensor_add_name(&name, site->name, rec->at.layer);
    _cleanup_(freep) char *file = name.failed ? NULL : export_file_name(name.data, name.n, "");
    struct text path = { 0 };
    add_folder(&path, t, iteration_of(rec), 3);
    text_printf(&path, "/%s", file ? file : "");
    int64_t before = file && !path.failed ? count_name(&t->names, path.data) : -ENOMEM;
    if (before > 0)
        text_printf(&path, "~%" PRId64, before + 1);
    text_printf(&path, ".npy");
    if (before < 0 || path.failed) {
        text_deinit(&path);
        return NULL;
    }
    return path.data;
}

/* ------------------------------------------------------------------------- the index */

static int flush_index(struct trtllm_folder *t)
{
    int r = t->index.failed ? -ENOMEM : whole_write(t->fd, t->index.data, t->index.n, t->n_index);
    t->n_index += t->index.n;
    t->index.n = 0;
    return r;
}

static json_t *spans_of(const struct reader_step *step)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < step->entry->n_spans; i++) {
        const struct dmi_span_entry *s = &step->spans[i];
        size_t n;
        const char *id = reader_span_id(step, i, &n);
        json_array_append_new(list, json_pack("{s:o, s:o, s:o, s:o}", "request", value_bytes(id, n),
                                              "first_row", value_u64(s->first_row), "rows",
                                              value_u64(s->n_tokens), "first_position",
                                              value_u64((uint64_t)s->first_position)));
    }
    return list;
}

/* Whose rows they are, once a step. */
static void add_step(struct trtllm_folder *t, const struct reader_step *step)
{
    if (!step || step == t->last_step)
        return;
    t->last_step = step;
    value_add_new(&t->index, json_pack("{s:i, s:i, s:o, s:o, s:o}", "pp", t->pp, "tp", t->tp,
                                       "iteration", value_u64(step->entry->step), "rows",
                                       value_u64(step->entry->n_rows), "spans", spans_of(step)));
    text_printf(&t->index, "\n");
}

static json_t *kept_rows(const struct reader_record *rec)
{
    json_t *list = record_kept(rec) ? json_array() : json_null();
    for (uint32_t i = 0; record_kept(rec) && i < rec->n_rows; i++)
        json_array_append_new(list, json_integer(record_kept(rec)[i]));
    return list;
}

static int add_record(struct trtllm_folder *t, const struct reader_record *rec, const char *path)
{
    const struct dmi_site *site = reader_site(t->reader, rec->at.site);
    add_step(t, rec->step);
    value_add_new(&t->index,
                  VALUE_OBJECT({ "file", value_text(path) }, { "site", value_text(site->name) },
                               { "layer", value_layer(rec->at.layer) },
                               { "dtype", json_string(dmi_dtype_info(rec->at.dtype)->name) },
                               { "scale", value_double(site->scale) },
                               { "forward", value_u64(rec->at.forward) },
                               { "launch", value_u64(rec->at.launch) },
                               { "occurrence", value_u64(rec->at.occurrence) },
                               { "kept_rows", kept_rows(rec) },
                               { "time_ns", value_u64(rec->at.time_ns) }));
    text_printf(&t->index, "\n");
    return t->index.n < FULL && !t->index.failed ? 0 : flush_index(t);
}

/* ------------------------------------------------------------------------- a file */

/* bf16 as f32: the upper half of one. */
static int write_converted(int fd, const uint8_t *data, uint64_t n, uint64_t at)
{
    uint32_t wide[AT_A_TIME];
    int r = 0;
    for (uint64_t done = 0, some; !r && done < n; done += some) {
        some = n - done < AT_A_TIME ? n - done : AT_A_TIME;
        for (uint64_t i = 0; i < some; i++) {
            uint16_t half;
            memcpy(&half, data + 2 * (done + i), sizeof half);
            wide[i] = (uint32_t)half << 16;
        }
        r = whole_write(fd, wide, 4 * some, at + 4 * done);
    }
    return r;
}

static int write_file(struct trtllm_folder *t, const struct reader_record *rec, const char *path)
{
    bool converts = rec->at.dtype == DMI_DTYPE_BF16;
    uint64_t dims[DMI_MAX_DIMS];
    for (uint32_t d = 0; d < rec->at.n_dims; d++)
        dims[d] = rec->at.dims[d];
    _cleanup_(text_deinit) struct text head = { 0 };
    npy_header(&head, converts ? DMI_DTYPE_F32 : rec->at.dtype, dims, rec->at.n_dims);
    if (head.failed)
        return -ENOMEM;
    _cleanup_(closep) int fd =
        openat(t->x->fd, path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    TRY(fd < 0 ? -errno : whole_write(fd, head.data, head.n, 0));
    t->x->n_files++;
    t->x->n_bytes += converts ? 2 * rec->at.n_bytes : rec->at.n_bytes;
    return converts ? write_converted(fd, t->raw, rec->at.n_bytes / 2, head.n)
                    : whole_write(fd, t->raw, rec->at.n_bytes, head.n);
}

/* Return: 0, 1 (it cannot be decoded, which is said), -errno. */
static int decode(struct trtllm_folder *t, const struct reader_record *rec)
{
    struct err why = { 0 };
    if (RESERVE(t->raw, rec->at.n_bytes, t->room))
        return -ENOMEM;
    int r = reader_decode(&why, t->reader, rec, t->raw);
    if (!r || r == -ENOMEM)
        return r;
    complain_undecoded(&why);
    t->x->n_damaged++;
    t->x->n_missing += rec->n_rows;
    return 1;
}

static int write_record(struct trtllm_folder *t, const struct reader_record *rec)
{
    int r = decode(t, rec);
    if (r)
        return r < 0 ? r : 0;
    _cleanup_(freep) char *path = path_of(t, rec);
    r = path ? make_folders(t, iteration_of(rec)) : -ENOMEM;
    if (!r)
        r = write_file(t, rec, path);
    return r ? r : add_record(t, rec, path);
}

/* ------------------------------------------------------------------------- ranks */

static int write_rank(struct err *err, struct trtllm_folder *t, struct reader *reader,
                      const int32_t ranks[8])
{
    const struct selection *select = &t->x->options->select;
    t->reader = reader;
    t->tp = ranks[2 * DMI_AXIS_TP];
    t->pp = ranks[2 * DMI_AXIS_PP];
    t->last_step = NULL;
    int r = 0;
    for (size_t i = 0; !r && i < reader_n_records(reader); i++) {
        const struct reader_record *rec = reader_record(reader, i);
        if (rec->at.n_bytes &&
            selection_wants_record(select, reader_site(reader, rec->at.site), rec->at.layer))
            r = write_record(t, rec);
    }
    return r ? err_set_errno(err, -r, "cannot write the records of %s", reader_run(reader)->path)
             : 0;
}

static int write_one(struct err *err, struct trtllm_folder *t)
{
    static const int32_t zero[8];
    struct reader *reader = t->x->reader;
    const struct reader_step *step = reader_n_steps(reader) ? reader_step(reader, 0) : NULL;
    return write_rank(err, t, reader, step ? step->entry->ranks : zero);
}

/* By --rank. */
static bool is_chosen(const struct reader_rank *rank, const struct dump_options *o)
{
    return FIRST(a, DMI_AXIS_COUNT, o->ranks[a] >= 0 && o->ranks[a] != rank->ranks[2 * a], false,
                 rank->known);
}

/* Two ranks that would be one folder. */
static int check_places(struct err *err, const struct reader_run *run, const struct dump_options *o)
{
    for (size_t i = 0; i < run->n_runs; i++)
        for (size_t k = 0; k < i; k++) {
            const struct reader_rank *a = &run->ranks[k], *b = &run->ranks[i];
            if (is_chosen(a, o) && is_chosen(b, o) && a->ranks[0] == b->ranks[0] &&
                a->ranks[2] == b->ranks[2])
                return err_set(err, -EINVAL,
                               "two ranks would be PP_%d/TP_%d: this layout has no place for data "
                               "or expert parallel ranks; choose one with --rank dp=R or ep=R",
                               a->ranks[2], a->ranks[0]);
        }
    return 0;
}

static int write_ranks(struct err *err, struct trtllm_folder *t)
{
    const struct dump_options *o = t->x->options;
    const struct reader_run *run = reader_run(t->x->reader);
    int r = check_places(err, run, o);
    for (size_t i = 0; !r && i < run->n_runs; i++) {
        _cleanup_(reader_closep) struct reader *one = NULL;
        if (!is_chosen(&run->ranks[i], o))
            continue;
        r = reader_open_index(err, run->ranks[i].path, &one);
        if (!r)
            r = select_records(err, one, &o->select, false);
        if (!r)
            r = write_rank(err, t, one, run->ranks[i].ranks);
    }
    return r;
}

static int copy(struct err *err, struct exporter *x)
{
    _cleanup_(tree_deinit) struct trtllm_folder t = { .x = x, .fd = -1 };
    const struct selection *s = &x->options->select;
    if (s->requests.n || s->n_tokens || s->rejected || s->superseded)
        return err_set(err, -EINVAL,
                       "a file of this format holds the rows that a launch had: --request, "
                       "--tokens, --rejected and --superseded do not go with it");
    t.fd = openat(x->fd, INDEX, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (t.fd < 0)
        return err_set_errno(err, errno, "cannot write %s/" INDEX, x->output);
    int r = reader_run(x->reader)->n_runs > 1 ? write_ranks(err, &t) : write_one(err, &t);
    if (!r && (r = flush_index(&t)))
        err_set_errno(err, -r, "cannot write %s/" INDEX, x->output);
    return r;
}

const struct format format_tensorrt_llm = {
    .name = "tensorrt-llm",
    .what = "a folder PP_x/TP_y/iteration_n/NAME.npy: rows as each launch and rank had them",
    .suffix = "-tensorrt-llm",
    .is_folder = true,
    .copy = copy,
};
