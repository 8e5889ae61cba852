/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dmi-dump export --format npz: a zip file with an npy file a tensor, stored as they are, and index.json. Rows come in
 * the order of records, a zip file is written from its beginning to its end: they wait in a file without a name.
 * Sources: numpy.load() and numpy.savez() (2.4), numpy.lib.format 1.0, PKWARE's APPNOTE 6.3 by way of minizip.
 */
#include "tools/dump/export.h"
#include "tools/dump/export_lens.h"

#include "core/any.h"
#include "core/cleanup.h"
#include "core/err.h"
#include "core/whole.h"
#include "storage/map.h"
#include "tools/common/npy.h"

#include <dmi/format.h>

#include <errno.h>
#include <fcntl.h>
#include <minizip/zip.h>
#include <string.h>
#include <unistd.h>

#define INDEX     "index.json"
#define UTF8      (1u << 11) /* APPNOTE 4.4.4: names are UTF-8 */
#define UNIX      (3u << 8)  /* 4.4.2: made by */
#define MOST_NAME 1000u      /* bytes */
#define LARGE     (1u << 31) /* from there on an entry is written as zip64 */
#define AT_A_TIME 65536u

/* ------------------------------------------------------------------------- names */

/* Whether nothing that unpacks a name as a path leaves its folder, and no terminal trips over it. */
static bool is_safe(const char *name, size_t n)
{
    if (!n || n > MOST_NAME || *name == '/' || strpbrk(name, "\\:%"))
        return false;
    for (const char *part = name, *c = name;; c++) {
        unsigned char v = (unsigned char)*c;
        if ((v && v < ' ') || v == 0x7f || (v == 0xc2 && (unsigned char)c[1] < 0xa0))
            return false;
        if (*c && *c != '/')
            continue;
        if (c == part || (*part == '.' && (c == part + 1 || (part[1] == '.' && c == part + 2))))
            return false;
        if (!*c)
            return true;
        part = c + 1;
    }
}

static bool is_one_request(const struct exporter *x)
{
    return ALL(i, x->n_targets, export_same_request(x->targets[i].tensor, x->targets[0].tensor));
}

/* By TransformerLens's names; without the request where there is but one. */
static void add_lens_name(struct text *to, const struct tensor *t, bool bare)
{
    const char *theirs = lens_name(t->site->name);
    if (!bare)
        text_add(to, t->key, (size_t)(t->name - t->key));
    if (!theirs)
        text_printf(to, "%s", t->name);
    else if (t->layer == DMI_NO_LAYER)
        text_printf(to, "%s", theirs);
    else
        text_printf(to, "blocks.%d.%s", t->layer, theirs);
}

/* Of a member; the name as it is wherever it is safe. */
static char *member_name(struct text *name)
{
    bool safe = !name->failed && is_safe(name->data, name->n);
    char *out = NULL;
    if (safe && asprintf(&out, "%s.npy", name->data) < 0)
        out = NULL;
    else if (!safe && !name->failed)
        out = export_file_name(name->data, name->n, ".npy");
    text_deinit(name);
    *name = (struct text){ 0 };
    return out;
}

/* Takes the name unless it is taken. Return: 1: it is; 0; -ENOMEM. */
static int take_name(struct map *taken, struct target *t, struct text *name)
{
    char *file = member_name(name);
    size_t *owner = file ? map_at(taken, file, strlen(file)) : NULL;
    if (!owner || *owner != MAP_NONE) {
        free(file);
        return owner ? 1 : -ENOMEM;
    }
    *owner = 0;
    t->file = file;
    return 0;
}

/* By TransformerLens's name if it is wanted and free, else by the key, else with ~2 and so on. */
static int name_target(const struct exporter *x, struct map *taken, struct target *t, bool bare)
{
    const char *wanted = x->options->names;
    struct text name = { 0 };
    int r = 1;
    if (wanted && strcmp(wanted, "keys")) {
        add_lens_name(&name, t->tensor, bare);
        r = take_name(taken, t, &name);
    }
    for (unsigned k = 1; r == 1; k++) {
        text_printf(&name, k > 1 ? "%s~%u" : "%s", t->tensor->key, k);
        r = take_name(taken, t, &name);
    }
    return r;
}

static int arrange(struct err *err, struct exporter *x)
{
    struct map taken = { 0 };
    bool bare = is_one_request(x);
    size_t *index = map_at(&taken, INDEX ".npy", strlen(INDEX ".npy")); /* numpy leaves .npy out */
    int r = index ? 0 : -ENOMEM;
    if (index)
        *index = 0;
    for (size_t i = 0; !r && i < x->n_targets; i++)
        r = name_target(x, &taken, &x->targets[i], bare);
    map_deinit(&taken);
    return r ? err_set_errno(err, -r, "cannot name the tensors") : 0;
}

/* ------------------------------------------------------------------------- rows, waiting */

static int open_scratch(struct exporter *x)
{
    _cleanup_(freep) char *path = NULL;
    if (asprintf(&path, "%s.rows-XXXXXX", x->output) < 0) {
        path = NULL;
        return -ENOMEM;
    }
    x->scratch = mkostemp(path, O_CLOEXEC);
    return x->scratch < 0 || unlink(path) ? -errno : 0;
}

static int begin(struct err *err, struct exporter *x)
{
    uint64_t n = 0;
    for (size_t i = 0; i < x->n_targets; i++) {
        x->targets[i].offset = n;
        n += x->targets[i].n_bytes;
    }
    int r = open_scratch(x);
    if (!r && ftruncate(x->scratch, (off_t)n))
        r = -errno;
    export_complain_of_bits(x);
    return r ? err_set_errno(err, -r, "cannot make a file beside %s for its rows", x->output) : 0;
}

static int write_rows(struct exporter *x, const struct target *t, const void *data, size_t n,
                      uint64_t at)
{
    return whole_write(x->scratch, data, n, t->offset + at);
}

/* ------------------------------------------------------------------------- minizip's way to the file */

struct zip_out {
    int fd;
    uint64_t at, end;
    int failed; /* -errno */
};

static voidpf sink_open(voidpf opaque, const void *name, int mode)
{
    (void)name, (void)mode;
    return opaque;
}

static uLong sink_read(voidpf opaque, voidpf stream, void *to, uLong n)
{
    (void)opaque, (void)stream, (void)to, (void)n;
    return 0; /* nothing is added to an archive that is there */
}

static uLong sink_write(voidpf opaque, voidpf stream, const void *data, uLong n)
{
    struct zip_out *s = stream;
    int r = whole_write(s->fd, data, n, s->at);
    (void)opaque;
    if (r) {
        s->failed = s->failed ? s->failed : r;
        return 0;
    }
    s->at += n;
    s->end = s->at > s->end ? s->at : s->end;
    return n;
}

static ZPOS64_T sink_tell(voidpf opaque, voidpf stream)
{
    (void)opaque;
    return ((struct zip_out *)stream)->at;
}

static long sink_seek(voidpf opaque, voidpf stream, ZPOS64_T offset, int origin)
{
    struct zip_out *s = stream;
    (void)opaque;
    s->at = offset + (origin == ZLIB_FILEFUNC_SEEK_CUR   ? s->at
                      : origin == ZLIB_FILEFUNC_SEEK_END ? s->end
                                                         : 0);
    return 0;
}

static int sink_close(voidpf opaque, voidpf stream)
{
    (void)opaque, (void)stream;
    return 0; /* the exporter's */
}

static int sink_error(voidpf opaque, voidpf stream)
{
    (void)opaque;
    return ((struct zip_out *)stream)->failed;
}

/* ------------------------------------------------------------------------- the archive */

static int begin_member(zipFile zip, const char *name, uint64_t n_bytes)
{
    const zip_fileinfo info = { .tmz_date = { .tm_mday = 1, .tm_year = 1980 },
                                .external_fa = 0600ul << 16 };
    return zipOpenNewFileInZip4_64(zip, name, &info, NULL, 0, NULL, 0, NULL, 0, 0, 0, -MAX_WBITS,
                                   DEF_MEM_LEVEL, Z_DEFAULT_STRATEGY, NULL, 0, UNIX, UTF8,
                                   n_bytes >= LARGE)
               ? -EIO
               : 0;
}

static int put_bytes(zipFile zip, const void *data, size_t n)
{
    return zipWriteInFileInZip(zip, data, (unsigned)n) ? -EIO : 0;
}

static int copy_rows(zipFile zip, const struct exporter *x, const struct target *t)
{
    uint8_t data[AT_A_TIME];
    int r = 0;
    for (uint64_t done = 0; !r && done < t->n_bytes;) {
        uint64_t left = t->n_bytes - done;
        ssize_t n =
            pread(x->scratch, data, left < AT_A_TIME ? left : AT_A_TIME, (off_t)(t->offset + done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n ? -errno : -EIO;
        r = put_bytes(zip, data, (size_t)n);
        done += (uint64_t)n;
    }
    return r;
}

static int put_tensor(zipFile zip, const struct exporter *x, const struct target *target)
{
    const struct tensor *t = target->tensor;
    _cleanup_(text_deinit) struct text head = { 0 };
    uint64_t dims[1 + DMI_MAX_DIMS] = { t->n_rows };
    for (uint32_t d = 0; d < t->n_tail; d++)
        dims[1 + d] = t->tail[d];
    npy_header(&head, t->dtype, dims, 1 + t->n_tail);
    TRY(head.failed ? -ENOMEM : begin_member(zip, target->file, head.n + target->n_bytes));
    TRY(put_bytes(zip, head.data, head.n));
    TRY(copy_rows(zip, x, target));
    return zipCloseFileInZip(zip) ? -EIO : 0;
}

static int put_index(zipFile zip, const struct exporter *x)
{
    _cleanup_(text_deinit) struct text t = { 0 };
    export_index(&t, x);
    int r = t.failed ? -ENOMEM : begin_member(zip, INDEX, t.n);
    for (size_t done = 0, n; !r && done < t.n; done += n) {
        n = t.n - done < AT_A_TIME ? t.n - done : AT_A_TIME;
        r = put_bytes(zip, t.data + done, n);
    }
    return r ? r : zipCloseFileInZip(zip) ? -EIO : 0;
}

static int finish(struct err *err, struct exporter *x)
{
    struct zip_out sink = { .fd = x->fd };
    zlib_filefunc64_def way = { sink_open, sink_read,  sink_write, sink_tell,
                                sink_seek, sink_close, sink_error, &sink };
    zipFile zip = zipOpen2_64(x->output, APPEND_STATUS_CREATE, NULL, &way);
    int r = zip ? 0 : -ENOMEM;
    for (size_t i = 0; !r && i < x->n_targets; i++)
        r = put_tensor(zip, x, &x->targets[i]);
    if (!r)
        r = put_index(zip, x);
    if (zip && zipClose(zip, NULL) && !r)
        r = -EIO;
    r = sink.failed ? sink.failed : r;
    return r ? err_set_errno(err, -r, "cannot write %s", x->output) : 0;
}

const struct format format_npz = {
    .name = "npz",
    .what = "one file, as numpy.savez() writes it, with index.json in it",
    .suffix = ".npz",
    .takes_names = true,
    .arrange = arrange,
    .begin = begin,
    .write = write_rows,
    .finish = finish,
};
