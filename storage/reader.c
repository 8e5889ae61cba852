/* SPDX-License-Identifier: Apache-2.0 */
#include "storage/reader.h"

#include "core/cleanup.h"
#include "storage/chunk.h"
#include "storage/hash.h"
#include "storage/reader_private.h"

#include <errno.h>
#include <fcntl.h>
#include <dirent.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX_FINDINGS 10000
#define MAX_SEGMENTS 1000000

static void add_finding(struct reader *r, struct reader_finding finding, const char *fmt,
                        va_list ap)
{
    if (r->n_findings >= MAX_FINDINGS ||
        reader_grow((void **)&r->findings, r->n_findings, &r->findings_room, sizeof *r->findings))
        return;
    char *text = NULL;
    if (vasprintf(&text, fmt, ap) < 0)
        text = NULL;
    finding.file = strdup(finding.file);
    finding.text = text;
    r->findings[r->n_findings++] = finding;
}

void reader_note(struct reader *r, bool damage, const char *file, int64_t chunk, uint64_t offset,
                 const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    add_finding(
        r,
        (struct reader_finding){ .damage = damage, .file = file, .chunk = chunk, .offset = offset },
        fmt, ap);
    va_end(ap);
}

void reader_note_unknown(struct reader *r, const char *file, int64_t chunk, uint64_t offset,
                         const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    add_finding(
        r,
        (struct reader_finding){ .unknown = true, .file = file, .chunk = chunk, .offset = offset },
        fmt, ap);
    va_end(ap);
}

int reader_grow(void **array, size_t n, size_t *room, size_t size)
{
    if (n < *room)
        return 0;
    size_t more = *room ? 2 * *room : 64;
    void *grown = realloc(*array, more * size);
    if (!grown)
        return -ENOMEM;
    *array = grown;
    *room = more;
    return 0;
}

int reader_pread(int fd, void *out, size_t n, uint64_t offset)
{
    while (n) {
        ssize_t got = pread(fd, out, n, (off_t)offset);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return got < 0 ? -errno : -ENODATA;
        out = (char *)out + got;
        n -= (size_t)got;
        offset += (uint64_t)got;
    }
    return 0;
}

int reader_load(struct reader *r, const char *name, size_t most, uint8_t **out, size_t *n)
{
    _cleanup_(closep) int fd = openat(r->dir, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    struct stat st;
    if (fd < 0 || fstat(fd, &st))
        return -errno;
    if (!S_ISREG(st.st_mode))
        return -EINVAL;
    if ((uint64_t)st.st_size > most)
        return -EFBIG;
    *n = (size_t)st.st_size;
    if (!(*out = malloc(*n + 1)))
        return -ENOMEM;
    int res = reader_pread(fd, *out, *n, 0);
    if (res) {
        free(*out);
        *out = NULL;
    }
    return res;
}

/* ------------------------------------------------------------------------- finding the run */

static bool is_segment_name(const char *name, uint32_t *number)
{
    char again[32];
    unsigned n;
    if (sscanf(name, "seg-%6u.dmi", &n) != 1 || n >= MAX_SEGMENTS)
        return false;
    snprintf(again, sizeof again, DMI_SEGMENT_NAME, n);
    *number = n;
    return !strcmp(again, name);
}

static void closedirp(DIR **dir)
{
    if (*dir)
        closedir(*dir);
}

static bool is_run(int parent, const char *name)
{
    _cleanup_(closedirp) DIR *dir = NULL;
    int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 || !(dir = fdopendir(fd))) {
        closep(&fd);
        return false;
    }
    const struct dirent *e;
    uint32_t number;
    while ((e = readdir(dir)))
        if (!strcmp(e->d_name, "manifest.json") || is_segment_name(e->d_name, &number))
            return true;
    return false;
}

/* The one run inside @path; an error that names them where there are several. */
static int descend(struct err *err, const char *path, char **out)
{
    _cleanup_(closedirp) DIR *dir = opendir(path);
    if (!dir)
        return err_set_errno(err, errno, "cannot open %s", path);
    _cleanup_(freep) char *found = NULL;
    char names[300] = "";
    size_t n = 0;
    const struct dirent *e;
    while ((e = readdir(dir))) {
        if (e->d_name[0] == '.' || !is_run(dirfd(dir), e->d_name))
            continue;
        if (n++ == 0 && !(found = strdup(e->d_name)))
            return err_set_errno(err, ENOMEM, "cannot open %s", path);
        size_t used = strlen(names);
        snprintf(names + used, sizeof names - used, "%s%s", used ? ", " : "", e->d_name);
    }
    if (!n)
        return err_set(err, -ENOENT,
                       "%s is no run: no manifest.json and no seg-*.dmi in it, nor in "
                       "a folder of it",
                       path);
    if (n > 1)
        return err_set(err, -ENOTUNIQ, "%s holds %zu runs, name one of them: %s", path, n, names);
    return asprintf(out, "%s/%s", path, found) < 0
               ? err_set_errno(err, ENOMEM, "cannot open %s", path)
               : 0;
}

/* ------------------------------------------------------------------------- opening */

static int add_segment(struct err *err, struct reader *r, int dir, const char *name,
                       uint32_t number)
{
    _cleanup_(closep) int fd = openat(dir, name, O_RDONLY | O_CLOEXEC);
    struct stat st;
    if (fd < 0 || fstat(fd, &st)) {
        reader_note(r, true, name, -1, 0, "cannot be read: %s", strerror(errno));
        return 0;
    }
    struct reader_segment *grown = realloc(r->segments, (r->n_segments + 1) * sizeof *grown);
    if (!grown)
        return err_set_errno(err, ENOMEM, "cannot open %s", name);
    r->segments = grown;
    struct reader_segment *s = &grown[r->n_segments++];
    *s = (struct reader_segment){ .number = number,
                                  .fd = steal_fd(&fd),
                                  .n_bytes = (uint64_t)st.st_size };
    snprintf(s->name, sizeof s->name, "%s", name);
    return 0;
}

static int segment_order(const void *pa, const void *pb)
{
    const struct reader_segment *a = pa, *b = pb;
    return a->number < b->number ? -1 : a->number > b->number;
}

static int open_folder(struct err *err, struct reader *r)
{
    r->dir = open(r->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (r->dir < 0)
        return err_set_errno(err, errno, "cannot open %s", r->path);
    /* first: a segment that is made meanwhile is then in the folder, and not yet in the manifest */
    int res = reader_take_manifest(r);
    if (res)
        return err_set_errno(err, -res, "cannot open %s", r->path);
    _cleanup_(closedirp) DIR *dir = opendir(r->path);
    if (!dir)
        return err_set_errno(err, errno, "cannot open %s", r->path);
    const struct dirent *e;
    while ((e = readdir(dir))) {
        uint32_t number;
        res = is_segment_name(e->d_name, &number) ? add_segment(err, r, r->dir, e->d_name, number)
                                                  : 0;
        if (res)
            return res;
    }
    if (r->n_segments)
        qsort(r->segments, r->n_segments, sizeof *r->segments, segment_order);
    return 0;
}

static void check_segment_header(struct reader *r, struct reader_segment *s)
{
    struct dmi_segment_header h;
    if (s->n_bytes < sizeof h || reader_pread(s->fd, &h, sizeof h, 0)) {
        reader_note(r, s->number != r->segments[r->n_segments - 1].number, s->name, -1, s->n_bytes,
                    "the file ends within its header");
        s->n_torn = s->n_bytes;
        return;
    }
    if (h.magic == DMI_SEGMENT_MAGIC && h.version == 1) {
        r->other_version = 1;
        s->other_version = true;
        return;
    }
    if (h.magic != DMI_SEGMENT_MAGIC || h.n_bytes != sizeof h || h.version < 2 ||
        h.hash != hash_bytes(&h, offsetof(struct dmi_segment_header, hash))) {
        reader_note(r, true, s->name, -1, 0,
                    "the segment's header is damaged, or this is no "
                    "segment");
        return;
    }
    if (h.version != DMI_FORMAT_VERSION) {
        r->other_version = h.version;
        s->other_version = true;
        reader_note_unknown(r, s->name, -1, 8,
                            "the segment has format version %u, newer than this program's, which "
                            "reads version %d",
                            h.version, DMI_FORMAT_VERSION);
        return;
    }
    if (!parse_is_zero(h.reserved, sizeof h.reserved)) {
        reader_note(r, true, s->name, -1, 56, "a reserved field of the header is not 0");
        return;
    }
    if (!r->have_uuid) {
        memcpy(r->uuid, h.run_uuid, sizeof r->uuid);
        r->have_uuid = true;
    }
    if (memcmp(h.run_uuid, r->uuid, sizeof r->uuid))
        reader_note(r, true, s->name, -1, 16, "the segment is of another run");
    else if (r->dir >= 0 && h.segment != s->number)
        reader_note(r, true, s->name, -1, 32, "the segment says it is number %u", h.segment);
    s->header_ok = true;
    s->first_sequence = s->next_sequence = h.first_sequence;
}

static int walk_all(struct reader *r)
{
    for (size_t i = 0; i < r->n_segments; i++)
        check_segment_header(r, &r->segments[i]);
    for (size_t i = 0; i < r->n_segments; i++) {
        struct reader_segment *s = &r->segments[i];
        if (!s->header_ok && i)
            s->first_sequence = s->next_sequence = r->segments[i - 1].next_sequence;
        int res = s->other_version ? 0 : reader_walk(r, (uint32_t)i);
        if (res)
            return res;
        /* the dictionary of a first segment that lost its own comes from the manifest */
        if (!r->dictionary && r->manifest) {
            _cleanup_(freep) char *text =
                json_dumps(json_object_get(r->manifest, "dictionary"), JSON_COMPACT);
            res = text ? reader_take_dictionary(r, "manifest.json", text, strlen(text)) : 0;
            if (res)
                return res;
        }
    }
    return 0;
}

/* Tails and gaps between files, once it is known how the run ended. */
static void judge_segments(struct reader *r)
{
    for (size_t i = 0; i < r->n_segments; i++) {
        struct reader_segment *s = &r->segments[i];
        bool last = i + 1 == r->n_segments;
        bool must_be_closed = !last || (r->dir >= 0 && r->run.state == READER_CLOSED);
        if (s->n_torn && !must_be_closed) {
            r->run.n_torn += s->n_torn;
            reader_note(r, false, s->name, (int64_t)s->next_sequence, s->n_bytes - s->n_torn,
                        r->run.state == READER_RUNNING
                            ? "%" PRIu64 " bytes are just being written"
                            : "torn tail of %" PRIu64
                              " bytes: the process was killed while writing",
                        s->n_torn);
        } else if (must_be_closed && !s->closed) {
            reader_note(r, true, s->name, (int64_t)s->next_sequence, s->n_bytes - s->n_torn,
                        "truncated: a closed segment ends without its footer (%" PRIu64
                        " bytes hold no whole chunk)",
                        s->n_torn);
        }
        r->run.n_file_bytes += s->n_bytes;
        if (!i && s->first_sequence)
            reader_note(r, r->dir >= 0, s->name, 0, 0, "missing: %" PRIu64 " chunks before this",
                        s->first_sequence);
        else if (i && s->first_sequence != s[-1].next_sequence && s->header_ok)
            reader_note(r, true, s->name, (int64_t)s[-1].next_sequence, 0,
                        "missing: chunks %" PRIu64 " to %" PRIu64 " before this segment",
                        s[-1].next_sequence, s->first_sequence - 1);
    }
}

/* ------------------------------------------------------------------------- order */

static int step_order(const void *pa, const void *pb)
{
    const struct reader_step *a = pa, *b = pb;
    uint64_t x = a->entry->sequence, y = b->entry->sequence;
    return x < y ? -1 : x > y;
}

static int record_order(const void *pa, const void *pb)
{
    const struct reader_record *a = pa, *b = pb;
    if (a->at.launch != b->at.launch)
        return a->at.launch < b->at.launch ? -1 : 1;
    /* the records of one launch of a graph */
    if (a->at.forward != b->at.forward)
        return a->at.forward < b->at.forward ? -1 : 1;
    if (a->at.occurrence != b->at.occurrence)
        return a->at.occurrence < b->at.occurrence ? -1 : 1;
    if (a->at.site != b->at.site)
        return a->at.site < b->at.site ? -1 : 1;
    if (a->chunk != b->chunk)
        return a->chunk < b->chunk ? -1 : 1;
    if (a->at.group != b->at.group)
        return a->at.group < b->at.group ? -1 : 1;
    return a->at.offset < b->at.offset ? -1 : a->at.offset > b->at.offset;
}

static const struct reader_step *find_step(const struct reader *r, uint64_t sequence)
{
    size_t low = 0, high = r->n_steps;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        if (r->steps[mid].entry->sequence < sequence)
            low = mid + 1;
        else
            high = mid;
    }
    return low < r->n_steps && r->steps[low].entry->sequence == sequence ? &r->steps[low] : NULL;
}

static int put_in_order(struct reader *r)
{
    if (r->n_steps)
        qsort(r->steps, r->n_steps, sizeof *r->steps, step_order);
    if (r->n_records)
        qsort(r->records, r->n_records, sizeof *r->records, record_order);
    r->found = calloc(r->n_sites + 1, sizeof *r->found);
    if (!r->found)
        return -ENOMEM;
    for (size_t i = 0; i < r->n_records; i++) {
        struct reader_record *rec = &r->records[i];
        rec->step = rec->at.step == DMI_NO_STEP ? NULL : find_step(r, rec->at.step);
        struct dmi_tally *t = &r->found[rec->at.site];
        t->records++;
        t->rows += rec->n_rows;
        t->bytes += rec->at.n_bytes;
    }
    return 0;
}

/* Sets @err where the run is of another format version. */
static int check_version(struct err *err, const struct reader *r)
{
    if (!r->other_version || r->manifest)
        return 0;
    return err_set(
        err, -ENOTSUP, "%s: this run has format version %u%s; this program reads version %d",
        r->path, r->other_version, r->other_version > DMI_FORMAT_VERSION ? ", which is newer" : "",
        DMI_FORMAT_VERSION);
}

static int read_structure(struct err *err, struct reader *r)
{
    int res = check_version(err, r);
    if (!res)
        res = walk_all(r);
    if (!res && !r->dictionary)
        res = check_version(err, r);
    if (res == -ENOTSUP)
        return res;
    if (!res && !r->dictionary)
        return err_set(err, -ENODATA,
                       "%s: no site dictionary can be read, so no record means "
                       "anything%s%s",
                       r->path, r->n_findings ? "; first of all: " : "",
                       r->n_findings && r->findings[0].text ? r->findings[0].text : "");
    if (!res)
        res = put_in_order(r);
    if (!res)
        res = reader_fill_run(r);
    if (!res && r->dir >= 0)
        res = reader_check_files(r);
    if (res)
        return err_set_errno(err, -res, "cannot read %s", r->path);
    if (r->dir < 0)
        r->run.state = r->segments[0].closed ? READER_CLOSED : READER_KILLED;
    judge_segments(r);
    r->run.path = r->path;
    r->run.n_segments = r->n_segments;
    return 0;
}

/* Closed between our reading its manifest and its counters. */
static bool closed_meanwhile(const struct reader *r)
{
    return r->dir >= 0 && r->manifest && r->run.state != READER_CLOSED && r->counters &&
           r->counters->state == DMI_COUNTERS_CLOSED;
}

static int open_once(struct err *err, const char *path, struct reader **out)
{
    _cleanup_(reader_closep) struct reader *r = calloc(1, sizeof *r);
    if (!r)
        return err_set_errno(err, ENOMEM, "cannot open %s", path);
    r->dir = -1;
    struct stat st;
    if (stat(path, &st))
        return err_set_errno(err, errno, "cannot open %s", path);
    int res;
    if (!S_ISDIR(st.st_mode)) {
        r->path = strdup(path);
        const char *slash = strrchr(path, '/');
        char name[32];
        snprintf(name, sizeof name, "%.31s", slash ? slash + 1 : path);
        res = r->path ? add_segment(err, r, AT_FDCWD, path, 0)
                      : err_set_errno(err, ENOMEM, "cannot open %s", path);
        if (!res && !r->n_segments)
            return err_set_errno(err, EACCES, "cannot open %s", path);
        if (!res)
            memcpy(r->segments[0].name, name, sizeof name);
    } else {
        res = is_run(AT_FDCWD, path) ? (r->path = strdup(path)) ? 0 : -ENOMEM
                                     : descend(err, path, &r->path);
        if (!res)
            res = open_folder(err, r);
    }
    if (!res)
        res = read_structure(err, r);
    if (res)
        return err_set_errno(err, -res, "cannot open %s", path);
    *out = steal_ptr(r);
    return 0;
}

int reader_open(struct err *err, const char *path, struct reader **out)
{
    struct reader *r = NULL;
    int res = open_once(err, path, &r);
    for (int again = 0; !res && again < 3 && closed_meanwhile(r); again++) {
        reader_close(r);
        r = NULL;
        res = open_once(err, path, &r);
    }
    if (!res)
        *out = r;
    return res;
}

void reader_close(struct reader *r)
{
    if (!r)
        return;
    for (size_t i = 0; i < r->n_segments; i++) {
        closep(&r->segments[i].fd);
        footer_deinit(&r->segments[i].index);
    }
    for (size_t i = 0; i < r->n_chunks; i++)
        free(r->chunks[i].meta);
    for (size_t i = 0; i < r->n_findings; i++) {
        free((char *)(uintptr_t)r->findings[i].file);
        free((char *)(uintptr_t)r->findings[i].text);
    }
    free(r->findings);
    free(r->segments);
    free(r->chunks);
    free(r->records);
    free(r->steps);
    free(r->found);
    free(r->counters);
    free(r->sites);
    free((void *)(uintptr_t)r->run.conventions);
    free((void *)(uintptr_t)r->run.absent);
    free((void *)(uintptr_t)r->run.problems);
    json_decref(r->manifest);
    json_decref(r->dictionary);
    codec_free(r->codec);
    free(r->cache);
    closep(&r->dir);
    free(r->path);
    free(r);
}

void reader_closep(struct reader **reader)
{
    reader_close(*reader);
}

/* ------------------------------------------------------------------------- what was read */

const struct reader_run *reader_run(const struct reader *r)
{
    return &r->run;
}

size_t reader_n_sites(const struct reader *r)
{
    return r->n_sites;
}

const struct dmi_site *reader_site(const struct reader *r, size_t i)
{
    return i < r->n_sites ? &r->sites[i] : NULL;
}

size_t reader_n_records(const struct reader *r)
{
    return r->n_records;
}

const struct reader_record *reader_record(const struct reader *r, size_t i)
{
    return i < r->n_records ? &r->records[i] : NULL;
}

size_t reader_n_steps(const struct reader *r)
{
    return r->n_steps;
}

const struct reader_step *reader_step(const struct reader *r, size_t i)
{
    return i < r->n_steps ? &r->steps[i] : NULL;
}

const char *reader_span_id(const struct reader_step *step, uint32_t span, size_t *n_bytes)
{
    *n_bytes = step->spans[span].id_bytes;
    return (const char *)step->entry + step->spans[span].id_offset;
}

size_t reader_n_findings(const struct reader *r)
{
    return r->n_findings;
}

const struct reader_finding *reader_finding(const struct reader *r, size_t i)
{
    return i < r->n_findings ? &r->findings[i] : NULL;
}

static bool has_tokens(const struct reader_record *rec, const struct reader_query *q)
{
    if (!rec->step)
        return false;
    for (uint32_t i = 0; i < rec->step->entry->n_spans; i++) {
        const struct dmi_span_entry *span = &rec->step->spans[i];
        size_t n;
        const char *id = reader_span_id(rec->step, i, &n);
        if (n != q->n_request || memcmp(id, q->request, n))
            continue;
        if (q->end_position <= q->first_position)
            return true;
        int64_t end;
        if (!__builtin_add_overflow(span->first_position, (int64_t)span->n_tokens, &end) &&
            span->first_position < q->end_position && end > q->first_position)
            return true;
    }
    return false;
}

size_t reader_find(const struct reader *r, const struct reader_query *q, size_t from)
{
    for (; from < r->n_records; from++) {
        const struct reader_record *rec = &r->records[from];
        if (q->site && strcmp(q->site, r->sites[rec->at.site].name))
            continue;
        if (q->by_layer && rec->at.layer != q->layer)
            continue;
        if (q->request && !has_tokens(rec, q))
            continue;
        return from;
    }
    return r->n_records;
}

double reader_stored_bytes(const struct reader *r, const struct reader_record *rec)
{
    const struct dmi_group *g = &r->chunks[rec->chunk].view.groups[rec->at.group];
    return g->n_raw ? (double)g->n_stored * (double)rec->at.n_bytes / (double)g->n_raw : 0;
}

bool reader_account(const struct reader *r, uint32_t site, struct reader_account *a)
{
    *a = (struct reader_account){ .found = r->found[site] };
    if (!r->counters || site >= r->counters->n_sites)
        return false;
    const struct dmi_site_counters *c = &r->counters->sites[site];
    a->expected = c->expected;
    a->counted = c->captured;
    a->launches = c->launches;
    for (int d = 0; d < DMI_DROP_ROOM; d++) {
        a->dropped.records += c->dropped[d].records;
        a->dropped.rows += c->dropped[d].rows;
        a->dropped.bytes += c->dropped[d].bytes;
    }
    const struct dmi_tally *e = &a->expected, *f = &a->found, *d = &a->dropped;
    a->lost.records = e->records - f->records - d->records; /* wraps where the sum is wrong */
    a->lost.rows = e->rows - f->rows - d->rows;
    a->lost.bytes = e->bytes - f->bytes - d->bytes;
    bool enough = f->records + d->records <= e->records && f->rows + d->rows <= e->rows &&
                  f->bytes + d->bytes <= e->bytes && a->counted.records <= f->records &&
                  a->counted.rows <= f->rows && a->counted.bytes <= f->bytes;
    bool exact = !a->lost.records && !a->lost.rows && !a->lost.bytes &&
                 a->counted.records == f->records && a->counted.rows == f->rows &&
                 a->counted.bytes == f->bytes;
    /* of a run that goes on, files and counters were not read at one moment */
    a->holds = r->run.state == READER_CLOSED    ? exact
               : r->run.state == READER_RUNNING ? true
                                                : enough;
    return true;
}

/* ------------------------------------------------------------------------- payload */

/* Where a block's stored bytes begin in the file, and how many there are. */
static void locate_block(const struct reader_chunk *c, const struct dmi_group *g, uint64_t block,
                         uint64_t *offset, uint64_t *n_stored)
{
    uint32_t each = codec_planes(g->encoding, g->element_bytes);
    const struct dmi_plane *planes = c->view.planes + g->first_plane;
    uint64_t at = c->offset + sizeof c->header + chunk_pad(c->header.n_meta) + g->offset;
    for (uint64_t p = 0; p < block * each; p++)
        at += planes[p].n_stored;
    *n_stored = 0;
    for (uint32_t p = 0; p < each; p++)
        *n_stored += planes[block * each + p].n_stored;
    *offset = at;
}

static int explain_block(struct err *err, int res, const struct reader_segment *s,
                         const struct reader_chunk *c, const struct dmi_group *g, uint64_t block,
                         uint32_t bad)
{
    uint32_t group = (uint32_t)(g - c->view.groups);
    uint32_t each = codec_planes(g->encoding, g->element_bytes);
    if (res == -ENOTSUP && !each)
        return err_set(err, res,
                       "%s, chunk %" PRIu64 ": group %u: encoding %u of %u-byte elements is not "
                       "known here",
                       s->name, c->header.sequence, group, g->encoding, g->element_bytes);
    if (res == -ENOTSUP)
        return err_set(err, res,
                       "%s, chunk %" PRIu64 ": plane %u of block %" PRIu64
                       " of group %u: codec %u is not known here",
                       s->name, c->header.sequence, bad, block, group,
                       c->view.planes[g->first_plane + block * each + bad].codec);
    return err_set(err, res == -ENOMEM || res == -EIO ? res : -EBADMSG,
                   "%s, chunk %" PRIu64 ", offset %" PRIu64 ": plane %u of block %" PRIu64
                   " of group %u does not match its checksum or is no valid frame (%s)",
                   s->name, c->header.sequence, c->offset, bad, block, group, strerror(-res));
}

static int load_block(struct err *err, struct reader *r, uint32_t chunk, uint32_t group,
                      uint64_t block)
{
    if (!r->cache) {
        r->cache = malloc(sizeof *r->cache);
        if (r->cache)
            r->cache->n = 0;
    }
    if (!r->codec)
        r->codec = codec_new();
    if (!r->cache || !r->codec)
        return err_set_errno(err, ENOMEM, "cannot decode");
    if (r->cache->n && r->cache->chunk == chunk && r->cache->group == group &&
        r->cache->block == block)
        return 0;
    r->cache->n = 0;
    const struct reader_chunk *c = &r->chunks[chunk];
    const struct reader_segment *s = &r->segments[c->segment];
    const struct dmi_group *g = &c->view.groups[group];
    uint64_t offset, n_stored;
    if (!codec_planes(g->encoding, g->element_bytes))
        return explain_block(err, -ENOTSUP, s, c, g, block, 0);
    locate_block(c, g, block, &offset, &n_stored);
    uint64_t left = g->n_raw - block * DMI_BLOCK_BYTES;
    size_t n = left < DMI_BLOCK_BYTES ? (size_t)left : DMI_BLOCK_BYTES;
    uint32_t bad = 0;
    int res = n_stored > DMI_BLOCK_BYTES ? -EBADMSG
                                         : reader_pread(s->fd, r->cache->stored, n_stored, offset);
    if (!res)
        res = codec_decode(r->codec, g->encoding, g->element_bytes,
                           c->view.planes + g->first_plane +
                               block * codec_planes(g->encoding, g->element_bytes),
                           r->cache->stored, n_stored, r->cache->raw, n, &bad);
    if (res)
        return explain_block(err, res, s, c, g, block, bad);
    r->cache->chunk = chunk;
    r->cache->group = group;
    r->cache->block = block;
    r->cache->n = n;
    return 0;
}

int reader_decode(struct err *err, struct reader *r, const struct reader_record *rec, void *out)
{
    uint64_t at = rec->at.offset, left = rec->at.n_bytes;
    uint8_t *to = out;
    while (left) {
        int res = load_block(err, r, rec->chunk, rec->at.group, at / DMI_BLOCK_BYTES);
        if (res)
            return res;
        size_t from = at % DMI_BLOCK_BYTES, n = r->cache->n - from;
        if (n > left)
            n = (size_t)left;
        memcpy(to, r->cache->raw + from, n);
        to += n;
        at += n;
        left -= n;
    }
    if (hash_bytes(out, rec->at.n_bytes) != rec->at.hash) {
        const struct reader_chunk *c = &r->chunks[rec->chunk];
        return err_set(err, -EBADMSG,
                       "%s, chunk %" PRIu64 ", offset %" PRIu64 ": the record of launch %" PRIu64
                       " does not match its checksum though its planes do",
                       r->segments[c->segment].name, c->header.sequence, c->offset, rec->at.launch);
    }
    return 0;
}

/* ------------------------------------------------------------------------- verifying */

static void verify_padding(struct reader *r, const struct reader_chunk *c)
{
    const struct reader_segment *s = &r->segments[c->segment];
    uint64_t n = chunk_pad(c->header.n_payload) - c->header.n_payload;
    uint64_t at = c->offset + sizeof c->header + chunk_pad(c->header.n_meta) + c->header.n_payload;
    uint8_t pad[DMI_CHUNK_ALIGN] = { 0 }, zero[DMI_CHUNK_ALIGN] = { 0 };
    if (reader_pread(s->fd, pad, n, at) || memcmp(pad, zero, n))
        reader_note(r, true, s->name, (int64_t)c->header.sequence, at,
                    "the padding behind the payload is not zero");
}

static int verify_chunk(struct reader *r, uint32_t index, uint8_t **buffer, size_t *room)
{
    const struct reader_chunk *c = &r->chunks[index];
    char told[sizeof((struct err *)0)->msg] = "";
    for (uint32_t i = 0; i < c->view.n_records; i++) {
        struct reader_record rec = { .at = c->view.records[i], .chunk = index };
        if (rec.at.n_bytes > *room) {
            uint8_t *grown = realloc(*buffer, rec.at.n_bytes);
            if (!grown)
                return -ENOMEM;
            *buffer = grown;
            *room = rec.at.n_bytes;
        }
        struct err err = { 0 };
        int res = reader_decode(&err, r, &rec, *buffer);
        if (res == -ENOMEM)
            return res;
        /* records that share a damaged block give the same sentence: once is enough */
        if (res && strcmp(told, err.msg)) {
            memcpy(told, err.msg, sizeof told);
            (res == -ENOTSUP
                 ? reader_note_unknown(r, r->segments[c->segment].name, (int64_t)c->header.sequence,
                                       c->offset, "%s", err.msg)
                 : reader_note(r, true, r->segments[c->segment].name, (int64_t)c->header.sequence,
                               c->offset, "%s", err.msg));
        }
    }
    return 0;
}

int reader_verify(struct reader *r)
{
    _cleanup_(freep) uint8_t *buffer = NULL;
    size_t room = 0;
    for (uint32_t i = 0; i < r->n_chunks; i++) {
        int res = r->chunks[i].view.n_records ? verify_chunk(r, i, &buffer, &room) : 0;
        if (res)
            return res;
        verify_padding(r, &r->chunks[i]);
    }
    for (uint32_t i = 0; i < r->n_sites; i++) {
        struct reader_account a;
        if (reader_account(r, i, &a) && !a.holds)
            reader_note(r, true, "counters", -1,
                        sizeof(struct dmi_counters) + i * sizeof(struct dmi_site_counters),
                        "site %s: captured + dropped is not expected: %" PRIu64 " records found "
                        "(%" PRIu64 " counted as written) + %" PRIu64 " dropped, %" PRIu64
                        " expected",
                        r->sites[i].name, a.found.records, a.counted.records, a.dropped.records,
                        a.expected.records);
    }
    return 0;
}
