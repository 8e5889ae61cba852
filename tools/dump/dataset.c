/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/dump/dataset.h"

#include "core/cleanup.h"
#include "core/grow.h"
#include "core/regular.h"
#include "read/utf8.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#define SAMPLES    "samples"
#define MOST_INDEX (1u << 30) /* bytes of an index */
#define MOST_SHOWN 120        /* bytes of a value in a sentence */

static void drop(struct dataset_sample *s)
{
    free(s->file);
    free(s->run);
    free(s->request);
}

void dataset_deinit(struct dataset *d)
{
    for (size_t i = 0; i < d->n; i++)
        drop(&d->all[i]);
    free(d->all);
    for (size_t i = 0; d->keys && i < d->n_kept; i++)
        text_deinit(&d->keys[i]);
    free(d->keys);
    map_deinit(&d->by_request);
    map_deinit(&d->by_file);
    json_decref(d->facts);
    closep(&d->fd);
    *d = (struct dataset){ .fd = -1 };
}

/* ------------------------------------------------------------------------- which samples there are */

static void add_key(struct text *to, const char *run, const char *request, size_t n_request)
{
    text_printf(to, "%s/", run);
    utf8_add_valid(to, request, n_request);
}

/* Of those that are kept. */
static int index_requests(struct dataset *d)
{
    map_deinit(&d->by_request);
    free(d->keys);
    d->keys = calloc(d->n_kept + 1, sizeof *d->keys);
    int r = d->keys ? 0 : -ENOMEM;
    for (size_t i = 0; !r && i < d->n_kept; i++) {
        const struct dataset_sample *s = &d->all[i];
        add_key(&d->keys[i], s->run, s->request, strlen(s->request));
        size_t *at =
            d->keys[i].failed ? NULL : map_at(&d->by_request, d->keys[i].data, d->keys[i].n);
        if (!at)
            r = -ENOMEM;
        else
            *at = i;
    }
    return r;
}

static int take_file(struct dataset *d, const char *file)
{
    size_t *at = map_at(&d->by_file, file, strlen(file));
    if (at)
        *at = 0;
    return at ? 0 : -ENOMEM;
}

int dataset_rewind(struct dataset *d)
{
    int r = 0;
    while (d->n > d->n_kept)
        drop(&d->all[--d->n]);
    map_deinit(&d->by_file);
    for (size_t i = 0; !r && i < d->n; i++)
        r = take_file(d, d->all[i].file);
    return r;
}

static int keep_all(struct dataset *d)
{
    for (size_t i = 0; d->keys && i < d->n_kept; i++)
        text_deinit(&d->keys[i]);
    d->n_kept = d->n;
    return index_requests(d);
}

const struct dataset_sample *dataset_find(const struct dataset *d, const char *run,
                                          const char *request, size_t n_request)
{
    _cleanup_(text_deinit) struct text key = { 0 };
    add_key(&key, run, request, n_request);
    size_t i = key.failed ? MAP_NONE : map_get(&d->by_request, key.data, key.n);
    return i == MAP_NONE ? NULL : &d->all[i];
}

bool dataset_has_file(const struct dataset *d, const char *file)
{
    return map_get(&d->by_file, file, strlen(file)) != MAP_NONE;
}

/* Whether the name is another sample's, or a file's that the index lacks: that is somebody else's. */
static bool is_taken(const struct dataset *d, const char *file)
{
    return dataset_has_file(d, file) ||
           (d->fd >= 0 && !faccessat(d->fd, file, F_OK, AT_SYMLINK_NOFOLLOW));
}

char *dataset_name(const struct dataset *d, const char *base, const char *suffix)
{
    char *file = NULL;
    for (unsigned k = 1; k; k++) {
        int n = k > 1 ? asprintf(&file, "%s~%u%s", base, k, suffix)
                      : asprintf(&file, "%s%s", base, suffix);
        if (n < 0)
            return NULL;
        if (!is_taken(d, file))
            return file;
        free(file);
    }
    return NULL;
}

/* Takes what @sample owns over. Return: 0 or -ENOMEM. */
static int append(struct dataset *d, struct dataset_sample *sample)
{
    bool good = sample->file && sample->run && sample->request &&
                !grow((void **)&d->all, d->n, &d->room, sizeof *d->all, 64) &&
                !take_file(d, sample->file);
    if (!good) {
        drop(sample);
        return -ENOMEM;
    }
    d->all[d->n++] = *sample;
    return 0;
}

int dataset_add(struct dataset *d, const char *run, const char *request, size_t n_request,
                uint64_t n_tokens, const char *file)
{
    struct text shown = { 0 };
    utf8_add_valid(&shown, request, n_request);
    text_add(&shown, "", 1);
    if (shown.failed)
        text_deinit(&shown);
    struct dataset_sample s = { strdup(file), strdup(run), shown.data, n_tokens };
    return append(d, &s);
}

/* ------------------------------------------------------------------------- reading the index */

static int no_dataset(struct err *err, const char *path, const char *why)
{
    return err_set(err, -EINVAL,
                   "the folder %s is no dataset to go on with: its " OUTFILE_INDEX " %s; name "
                   "another folder with --output",
                   path, why);
}

static bool is_file_name(const char *name)
{
    return name && *name && *name != '.' && *name != '/' && !strstr(name, "..");
}

/* One of the index; what was on its way when an export was killed is passed over. */
static int take_sample(struct dataset *d, const json_t *o)
{
    const char *file = json_string_value(json_object_get(o, "file"));
    const char *run = json_string_value(json_object_get(o, "run"));
    const char *request = json_string_value(json_object_get(o, "request"));
    json_int_t n = json_integer_value(json_object_get(o, "tokens"));
    if (!is_file_name(file) || !run || !request || n < 0)
        return -EINVAL;
    if (faccessat(d->fd, file, F_OK, AT_SYMLINK_NOFOLLOW))
        return errno == ENOENT ? 0 : -errno;
    struct dataset_sample s = { strdup(file), strdup(run), strdup(request), (uint64_t)n };
    return append(d, &s);
}

static int take_index(struct err *err, struct dataset *d, const char *path, json_t *o)
{
    const json_t *samples = json_object_get(o, SAMPLES), *v;
    size_t i;
    if (!json_is_array(samples) || !json_is_string(json_object_get(o, "format")))
        return no_dataset(err, path, "lists no samples");
    json_array_foreach(samples, i, v)
    {
        int r = take_sample(d, v);
        if (r == -EINVAL)
            return no_dataset(err, path, "has a sample that no export wrote");
        if (r)
            return err_set_errno(err, -r, "cannot read %s/" OUTFILE_INDEX, path);
    }
    json_object_del(o, SAMPLES);
    d->facts = d->n ? json_incref(o) : NULL;
    return keep_all(d) ? err_set_errno(err, ENOMEM, "cannot read %s/" OUTFILE_INDEX, path) : 0;
}

static int read_index(struct err *err, struct dataset *d, const char *path)
{
    struct err why = { 0 };
    uint64_t n;
    _cleanup_(freep) char *text = regular_read_at(&why, d->fd, path, OUTFILE_INDEX, MOST_INDEX, &n);
    if (!text)
        return no_dataset(err, path, why.code == -ENOENT ? "is not there" : "cannot be read");
    json_t *o = object_load(&why, text, n, MOST_INDEX, JSON_REJECT_DUPLICATES);
    int r = o ? take_index(err, d, path, o) : no_dataset(err, path, "is no JSON");
    json_decref(o);
    return r;
}

/* Return: 0; -ENOENT: there is no such folder; -EBUSY, -errno; with a sentence in @err but for -ENOENT. */
static int lock_folder(struct err *err, struct dataset *d, const char *path)
{
    d->fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (d->fd < 0)
        return errno == ENOENT ? -ENOENT : err_set_errno(err, errno, "cannot read %s", path);
    if (!flock(d->fd, LOCK_EX | LOCK_NB) || errno != EWOULDBLOCK)
        return 0; /* a file system without locks has no exports that wait either */
    return err_set(err, -EBUSY, "another export goes on with %s: wait until it ends", path);
}

int dataset_open(struct err *err, struct dataset *d, const char *path)
{
    int r = lock_folder(err, d, path);
    if (r == -ENOENT)
        err_set_errno(err, ENOENT, "cannot read %s", path);
    return r ? r : read_index(err, d, path);
}

int dataset_keep(struct err *err, struct dataset *d, const char *path)
{
    int r = d->fd < 0 ? lock_folder(err, d, path) : 0;
    if (r == -ENOENT)
        err_set_errno(err, ENOENT, "cannot read %s", path);
    return r ? r : keep_all(d) ? err_set_errno(err, ENOMEM, "cannot go on with %s", path) : 0;
}

/* ------------------------------------------------------------------------- what all samples are */

static void show(struct text *to, const json_t *value)
{
    value ? value_add(to, value) : text_printf(to, "nothing");
    if (to->n > MOST_SHOWN) {
        to->n = MOST_SHOWN;
        text_printf(to, "...");
    }
}

int dataset_agree(struct err *err, struct dataset *d, const char *path, json_t *facts)
{
    const char *key;
    json_t *v;
    int r = facts ? 0 : err_set_errno(err, ENOMEM, "cannot export");
    if (!r && !d->n_kept) {
        json_decref(d->facts);
        d->facts = json_incref(facts);
    }
    json_object_foreach(facts, key, v)
    {
        const json_t *theirs = json_object_get(d->facts, key);
        if (r || json_equal(v, theirs))
            continue;
        _cleanup_(text_deinit) struct text has = { 0 }, wants = { 0 };
        show(&has, theirs);
        show(&wants, v);
        r = err_set(err, -EINVAL,
                    "the samples in %s have \"%s\" %s, and these have %s: name another folder with "
                    "--output",
                    path, key, has.data ? has.data : "?", wants.data ? wants.data : "?");
    }
    json_decref(facts);
    return r;
}

void dataset_add_text(struct text *to, const struct dataset *d)
{
    const char *key;
    json_t *v;
    text_printf(to, "{\n");
    json_object_foreach(d->facts, key, v)
    {
        text_json(to, key);
        text_printf(to, ": ");
        value_add(to, v);
        text_printf(to, ",\n");
    }
    text_printf(to, "\"" SAMPLES "\": [");
    for (size_t i = 0; i < d->n; i++) {
        const struct dataset_sample *s = &d->all[i];
        text_printf(to, "%s\n  ", i ? "," : "");
        value_add_new(to, json_pack("{s:o, s:o, s:o, s:o, s:o}", "sample", value_u64(i), "file",
                                    value_text(s->file), "run", value_text(s->run), "request",
                                    value_text(s->request), "tokens", value_u64(s->n_tokens)));
    }
    text_printf(to, "\n]\n}\n");
}
