/* SPDX-License-Identifier: Apache-2.0 */
/* A run: its files are found, its structure is read, and read on when it has grown. */
#include "core/cleanup.h"
#include "core/err.h"
#include "storage/codec/hash.h"
#include "storage/reader/reader_steps.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

/* ------------------------------------------------------------------------- segments */

#define MOST_LOOKS 100 /* at a run whose segments go as fast as they are read */
#define MOST_ENDS  3   /* of a process; more is what a damaged run says */

static void take_header(struct reader *r, struct reader_segment *s)
{
    struct dmi_segment_header h;
    if (s->n_bytes < sizeof h || reader_read(r, s, &h, sizeof h, 0))
        return; /* judged when all of the run is known */
    s->header_read = true;
    if (h.magic == DMI_SEGMENT_MAGIC && h.version == 1) {
        r->said.other_version = 1;
        s->other_version = true;
        return;
    }
    if (h.magic != DMI_SEGMENT_MAGIC || h.n_bytes != sizeof h || h.version < 2 ||
        h.hash != hash_bytes(&h, offsetof(struct dmi_segment_header, hash))) {
        reader_note(&r->notes, true, s->name, -1, 0,
                    "the segment's header is damaged, or this is no segment");
        return;
    }
    if (h.version != DMI_FORMAT_VERSION) {
        r->said.other_version = h.version;
        s->other_version = true;
        reader_note_unknown(&r->notes, s->name, -1, 8,
                            "the segment has format version %u, newer than this program's, which "
                            "reads version %d",
                            h.version, DMI_FORMAT_VERSION);
        return;
    }
    if (!parse_is_zero(h.reserved, sizeof h.reserved)) {
        reader_note(&r->notes, true, s->name, -1, 56, "a reserved field of the header is not 0");
        return;
    }
    if (!r->said.have_uuid) {
        memcpy(r->said.uuid, h.run_uuid, sizeof r->said.uuid);
        r->said.have_uuid = true;
    }
    if (memcmp(h.run_uuid, r->said.uuid, sizeof r->said.uuid))
        reader_note(&r->notes, true, s->name, -1, 16, "the segment is of another run");
    else if (r->place.dir >= 0 && h.segment != s->number)
        reader_note(&r->notes, true, s->name, -1, 32, "the segment says it is number %u",
                    h.segment);
    s->header_ok = true;
    s->first_sequence = s->next_sequence = h.first_sequence;
}

static bool is_last(const struct reader *r, const struct reader_segment *s)
{
    return s == &r->index.segments[r->index.n_segments - 1];
}

/*
 * A segment that was walked while it grew, and is closed now: its footer, which the walk has compared with its chunks, takes the
 * place of what is known of each. Not where more is known of a chunk.
 */
static int go_by_footer(struct reader *r, uint32_t i)
{
    struct reader_segment *s = &r->index.segments[i];
    bool plain = s->closed && s->have_footer && s->footer_holds && reader_is_by_window(r);
    for (size_t k = 0; plain && k < s->n_chunks; k++) {
        const struct reader_chunk *c = &s->chunks[k];
        plain = !c->strange && !c->in_part && (c->type == DMI_CHUNK_RECORDS || !c->noted);
    }
    if (!plain)
        return 0;
    reader_free_chunks(r, s);
    int res = reader_by_index(r, i);
    return res ? (res < 0 ? res : 0) : reader_walk_anew(r, i);
}

/* A segment that is new to the reader, or that has grown. */
static int take_segment(struct reader *r, uint32_t i)
{
    struct reader_segment *s = &r->index.segments[i];
    bool is_known = s->walked != 0;
    if (!s->header_ok && i && s->walked == 0)
        s->first_sequence = s->next_sequence = r->index.segments[i - 1].next_sequence;
    if (s->other_version || s->closed)
        return 0;
    int res = s->walked ? 0 : reader_by_index(r, i);
    if (!res)
        res = reader_walk(r, i);
    if (!res && is_known)
        res = go_by_footer(r, i);
    if (res < 0)
        return res;
    /* the dictionary of a first segment that lost its own comes from the manifest */
    return r->said.dictionary ? 0 : reader_dictionary_from_manifest(r);
}

static int take_segments(struct reader *r)
{
    /* all headers first: they say the version of the run and its UUID */
    for (size_t i = 0; i < r->index.n_segments; i++)
        if (!r->index.segments[i].header_read)
            take_header(r, &r->index.segments[i]);
    for (uint32_t i = 0; i < r->index.n_segments; i++) {
        TRY(take_segment(r, i));
    }
    return 0;
}

/* ------------------------------------------------------------------------- judging */

static void judge_tail(struct reader *r, const struct reader_segment *s)
{
    bool must_be_closed = !is_last(r, s) || (r->place.dir >= 0 && r->run.state == READER_CLOSED);
    if (s->n_bytes < sizeof(struct dmi_segment_header))
        reader_note(&r->notes, must_be_closed, s->name, -1, s->n_bytes,
                    "the file ends within its header");
    else if (s->n_torn && !must_be_closed)
        reader_note(&r->notes, false, s->name, (int64_t)s->next_sequence, s->n_bytes - s->n_torn,
                    r->run.state == READER_RUNNING ? "%" PRIu64 " bytes are just being written"
                                                   : "torn tail of %" PRIu64
                                                     " bytes: the process was killed while writing",
                    s->n_torn);
    else if (must_be_closed && !s->closed)
        reader_note(&r->notes, true, s->name, (int64_t)s->next_sequence, s->n_bytes - s->n_torn,
                    "truncated: a closed segment ends without its footer (%" PRIu64
                    " bytes hold no complete chunk)",
                    s->n_torn);
    if (!must_be_closed)
        r->run.n_torn += s->n_bytes < sizeof(struct dmi_segment_header) ? s->n_bytes : s->n_torn;
}

/* Chunks between what was read before and this segment: none, or those of released ones. */
static void judge_gap(struct reader *r, const struct reader_segment *s, uint64_t expected)
{
    if (!s->header_ok || s->first_sequence == expected)
        return;
    if (s->first_sequence > expected)
        reader_note(&r->notes, r->place.dir >= 0, s->name, (int64_t)expected, 0,
                    "missing: chunks %" PRIu64 " to %" PRIu64 " before this segment", expected,
                    s->first_sequence - 1);
    else
        reader_note(&r->notes, true, s->name, (int64_t)s->first_sequence, 0,
                    "its first chunk has number %" PRIu64 ", %" PRIu64 " was expected",
                    s->first_sequence, expected);
}

/* Tails and gaps between files, once it is known how the run ended. */
static void judge_segments(struct reader *r)
{
    uint64_t expected = 0;
    size_t number = 0;
    r->run.n_torn = r->run.n_file_bytes = 0;
    for (size_t i = 0; i < r->index.n_segments; i++) {
        struct reader_segment *s = &r->index.segments[i];
        for (; r->place.dir >= 0 && number < s->number; number++) {
            uint64_t released = reader_released_chunks(r, number);
            if (!released)
                number = s->number - 1u; /* missing: said by whoever reads the manifest */
            expected += released;
        }
        number = s->number + 1u;
        judge_tail(r, s);
        judge_gap(r, s, expected);
        expected = s->next_sequence;
        r->run.n_file_bytes += s->n_bytes;
    }
}

/* Sets @err where the run is of another format version. */
static int check_version(struct err *err, const struct reader *r)
{
    if (!r->said.other_version || r->said.manifest || r->said.dictionary)
        return 0;
    return err_set(
        err, -ENOTSUP, "%s: this run has format version %u%s; this program reads version %d",
        r->place.path, r->said.other_version,
        r->said.other_version > DMI_FORMAT_VERSION ? ", which is newer" : "", DMI_FORMAT_VERSION);
}

static int read_structure(struct err *err, struct reader *r)
{
    TRY(check_version(err, r));
    int res = take_segments(r);
    if (!res && !r->said.dictionary && (res = check_version(err, r)))
        return res;
    if (!res && !r->said.dictionary) /* all segments were released */
        res = reader_dictionary_from_manifest(r);
    if (!res && !r->said.dictionary)
        return err_set(err, -ENODATA,
                       "%s: no site dictionary can be read, so no record means anything%s%s",
                       r->place.path, r->notes.n ? "; first of all: " : "",
                       r->notes.n ? r->notes.list[0].finding.text : "");
    r->notes.judging = true;
    if (!res)
        res = reader_fill_run(r);
    if (!res)
        res = reader_fill_changes(r);
    if (!res && r->place.dir >= 0)
        res = reader_check_files(r);
    if (!res && r->place.dir >= 0)
        res = reader_take_edits(r);
    if (!res)
        res = reader_sum(r);
    if (!res && r->place.dir < 0)
        r->run.state = r->index.segments[0].closed ? READER_CLOSED : READER_KILLED;
    if (!res)
        judge_segments(r);
    r->notes.judging = false;
    r->run.path = r->place.path;
    r->run.n_segments = r->index.n_segments;
    r->run.n_runs = 1;
    return res ? err_set_errno(err, -res, "cannot read %s", r->place.path) : 0;
}

/* ------------------------------------------------------------------------- its files */

static int open_lone(struct err *err, struct reader *r, const char *path)
{
    const char *slash = strrchr(path, '/');
    char name[32];
    snprintf(name, sizeof name, "%.31s", slash ? slash + 1 : path);
    if (!(r->place.path = strdup(path)) || reader_add_segment(r, AT_FDCWD, path, 0))
        return err_set_errno(err, ENOMEM, "cannot open %s", path);
    if (!r->index.n_segments)
        return err_set(err, -EACCES, "cannot open %s: %s", path,
                       r->notes.n ? r->notes.list[0].finding.text : "it cannot be read");
    memcpy(r->index.segments[0].name, name, sizeof name);
    return 0;
}

/*
 * The manifest first: a segment that is created meanwhile is then in the folder and not yet in the
 * manifest, which is no damage in a run that goes on.
 */
static int open_folder(struct err *err, struct reader *r)
{
    if (r->place.dir < 0)
        r->place.dir = open(r->place.path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (r->place.dir < 0)
        return err_set_errno(err, errno, "cannot open %s", r->place.path);
    r->notes.judging = true;
    int res = reader_take_manifest(r);
    if (res)
        err_set_errno(err, -res, "cannot open %s", r->place.path);
    else
        reader_drop_released(r);
    if (!res)
        res = reader_list_segments(err, r);
    r->notes.judging = false;
    return res;
}

/* ------------------------------------------------------------------------- growing */

/* Whether what was walked still stands there: a write that failed is cut back. */
static bool was_cut_back(struct reader *r, struct reader_segment *s)
{
    struct dmi_chunk_header h;
    if (!s->last_offset)
        return s->walked > s->n_bytes;
    return s->walked > s->n_bytes || reader_read(r, s, &h, sizeof h, s->last_offset) ||
           h.hash != s->last_hash;
}

static int grow_segment(struct reader *r, uint32_t i)
{
    struct reader_segment *s = &r->index.segments[i];
    if (s->closed || s->other_version)
        return 0;
    if (reader_measure(r, s))
        return 0; /* gone: what was read of it stays */
    return s->header_ok && was_cut_back(r, s) ? reader_walk_anew(r, i) : 0;
}

static void forget_files(struct reader *r)
{
    reader_forget(&r->notes, UINT32_MAX);
    free(r->counters);
    r->counters = NULL;
    r->run.counters = NULL;
    free((void *)(uintptr_t)r->run.conventions);
    free((void *)(uintptr_t)r->run.absent);
    free((void *)(uintptr_t)r->run.about);
    free((void *)(uintptr_t)r->run.problems);
    reader_forget_changes(r);
    reader_forget_edits(r);
    r->run.conventions = r->run.absent = r->run.about = NULL;
    r->run.problems = NULL;
}

static int refresh_once(struct err *err, struct reader *r)
{
    reader_free_selection(r);
    reader_forget_blocks(&r->decoder);
    forget_files(r);
    int res = r->place.dir >= 0 ? open_folder(err, r) : 0;
    for (uint32_t i = 0; !res && i < r->index.n_segments; i++)
        res = grow_segment(r, i);
    if (!res)
        res = read_structure(err, r);
    if (!res && r->selection.made)
        res = reader_select_again(err, r);
    return res ? err_set_errno(err, -res, "cannot read %s again", r->place.path) : 0;
}

static size_t count_released(const struct reader *r)
{
    size_t n = 0;
    while (reader_released_chunks(r, n))
        n++;
    return n;
}

static int settle(struct err *err, struct reader *r, int res)
{
    for (int i = 0; r->notes.vanished && i < MOST_LOOKS; i++) {
        size_t before = count_released(r);
        r->notes.vanished = false;
        *err = (struct err){ 0 };
        res = refresh_once(err, r);
        r->notes.missing_is_damage = count_released(r) == before;
    }
    r->notes.missing_is_damage = r->notes.vanished = false;
    return res;
}

/* Closed between our reading its manifest and its counters, or ended after it had written another manifest. */
static bool ended_meanwhile(struct reader *r)
{
    if (r->place.dir < 0 || !r->said.manifest || r->run.state == READER_CLOSED)
        return false;
    if (r->counters && r->counters->state == DMI_COUNTERS_CLOSED)
        return true;
    return r->run.state == READER_KILLED && reader_manifest_is_old(r);
}

/* @res: of the first look. What a process left that has ended since is looked at again. */
static int settle_all(struct err *err, struct reader *r, int res)
{
    res = settle(err, r, res);
    for (int again = 0; !res && again < MOST_ENDS && ended_meanwhile(r); again++)
        res = settle(err, r, refresh_once(err, r));
    return res;
}

int reader_refresh_one(struct err *err, struct reader *r)
{
    return settle_all(err, r, refresh_once(err, r));
}

int reader_select_one(struct err *err, struct reader *r, const struct reader_query *query)
{
    int res = reader_keep_query(err, r, query);
    if (!res)
        res = settle(err, r, reader_select_again(err, r));
    return res             ? res
           : reader_sum(r) ? err_set_errno(err, ENOMEM, "cannot read %s", r->place.path)
                           : 0;
}

/* ------------------------------------------------------------------------- all of it */

int reader_open_one(struct err *err, const char *path, bool distrust, struct reader **out)
{
    _cleanup_(reader_close_onep) struct reader *r = calloc(1, sizeof *r);
    if (!r)
        return err_set_errno(err, ENOMEM, "cannot open %s", path);
    r->place.dir = -1;
    r->notes.walking = UINT32_MAX;
    r->index.distrust = distrust;
    struct stat st;
    if (stat(path, &st))
        return err_set_errno(err, errno, "cannot open %s", path);
    int res;
    if (!S_ISDIR(st.st_mode))
        res = open_lone(err, r, path);
    else if (!(r->place.path = strdup(path)))
        res = err_set_errno(err, ENOMEM, "cannot open %s", path);
    else
        res = open_folder(err, r);
    if (!res)
        res = settle_all(err, r, read_structure(err, r));
    if (!res)
        *out = steal_ptr(r);
    return res;
}

/* ------------------------------------------------------------------------- closing */

void reader_close_one(struct reader *r)
{
    if (!r)
        return;
    reader_close_files(r);
    reader_free_selection(r);
    reader_free_query(r);
    for (size_t i = 0; i < r->index.n_segments; i++)
        reader_free_chunks(r, &r->index.segments[i]);
    free(r->index.segments);
    free(r->selection.records);
    reader_free_steps(&r->selection.steps);
    reader_free_names(&r->names);
    free(r->selection.kept);
    free(r->found);
    free(r->said.sites);
    forget_files(r);
    reader_forget_all(&r->notes);
    free(r->notes.list);
    json_decref(r->said.manifest);
    json_decref(r->said.dictionary);
    codec_free(r->decoder.codec);
    reader_forget_blocks(&r->decoder);
    free(r->place.path);
    free(r);
}
