/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/common/vectors.h"

#include "core/cleanup.h"
#include "core/regular.h"
#include "policy/report.h"
#include "read/safetensors.h"
#include "storage/elements.h"
#include "tools/common/npy.h"
#include "tools/common/vectors_foreign.h"
#include "tools/common/vectors_layers.h"
#include "tools/common/vectors_run.h"
#include "tools/common/vectors_said.h"

#include <dmi/dtype.h>

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LAYER "{layer}"
#define SAY_LAYERS                                                                                 \
    "expected \"layer_is: SITE\" with the vector in a file of edits (layer_is= of dmi.edit()), "   \
    "or "                                                                                          \
    "what \"python -m dmi vectors %s -o OUT.safetensors --layer-is SITE --shift N\" writes. "      \
    "hidden_states of "                                                                            \
    "transformers are resid_pre, from 0"
#define TYPES "its numbers are of another type than f64, f32, f16 and bf16"

/* The vector under way. */
struct reading {
    struct edits *edits;
    const struct spec *spec;
    struct text_report *report, *notes; /* what is wrong, and what could not be compared */
    uint32_t vector;
    char *const *command; /* whose Python reads the files of others */
    const char *path;     /* of its file */
    uint64_t n_left; /* bytes of the file that no tensor has taken: each has bytes of its own */
    int32_t shift;   /* from its layers to those of the edits' site */
    bool left_out;   /* a layer that is none of that site */
    bool bad;        /* said why */
};

static const struct edit_vector *vector_of(const struct reading *r)
{
    return &r->edits->vectors[r->vector];
}

static int complain(struct reading *r, const char *what)
{
    report_add(r->report, vector_of(r)->line, 1, "the vector \"%s\", %s: %s", vector_of(r)->name,
               r->path, what);
    r->bad = true;
    return 0;
}

/* Adds those that an edit takes. */
static int add_numbers(struct reading *r, int32_t layer, const float *numbers, uint64_t n)
{
    if (layer != EDIT_ANY_LAYER && (layer += r->shift) < 0) {
        r->left_out = true;
        return 0;
    }
    if (!layers_wanted(r->edits, r->vector, layer))
        return 0;
    int rc = edits_add_numbers(r->edits, r->vector, layer, numbers, n);
    if (rc == -EINVAL)
        return complain(r, "its numbers are not all finite, or are to have length 1 and are all 0");
    if (rc == -E2BIG)
        return complain(r, "all vectors together have more than 2^30 numbers");
    return rc;
}

/*
 * Before layers are taken: whose they are, and which layers of the edits' site. @said: the edits say which tensor is of which of
 * their layers. Return: false: said why.
 */
static bool place_layers(struct reading *r, bool said)
{
    const struct edit_vector *v = vector_of(r);
    char why[512 + 4096];
    if (!v->layer_is && !said) {
        snprintf(
            why, sizeof why,
            "it has a vector for each layer, and does not say whose layers these are; " SAY_LAYERS
            ". Heads of one layer lie in one row: reshape(-1)",
            r->path);
        complain(r, why);
        return false;
    }
    if (layers_shift(r->edits, r->vector, &r->shift))
        return true;
    complain(r, "its layers are those of resid_pre, and edits at resid_post and at other sites "
                "have it; expected a vector for each, of the same file");
    return false;
}

/* One tensor's numbers, for a layer or EDIT_ANY_LAYER. */
static int take(struct reading *r, int32_t layer, uint32_t dtype, const void *data, uint64_t n)
{
    uint64_t n_bytes = n * dmi_dtype_bytes(dtype);
    if (!n)
        return complain(r, "it holds no number");
    if (n_bytes > r->n_left)
        return complain(r, "its tensors lie on one another");
    r->n_left -= n_bytes;
    _cleanup_(freep) float *numbers = calloc(n + 1, sizeof *numbers);
    if (!numbers)
        return -ENOMEM;
    for (uint64_t i = 0; i < n; i++) {
        double v;
        elements_to_double(dtype, (const char *)data + i * dmi_dtype_bytes(dtype), 1, &v);
        numbers[i] = (float)v;
    }
    return add_numbers(r, layer, numbers, n);
}

static bool is_read(uint32_t dtype)
{
    return dmi_dtype_is_float(dtype) && dmi_dtype_bytes(dtype) > 1;
}

/* An array: a vector, or one for each layer from 0 on. */
static int take_array(struct reading *r, uint32_t dtype, const uint64_t *dims, uint32_t n_dims,
                      const char *data)
{
    if (!is_read(dtype))
        return complain(r, TYPES);
    if (n_dims == 1)
        return take(r, EDIT_ANY_LAYER, dtype, data, dims[0]);
    if (n_dims != 2)
        return complain(r, "expected one dimension, or two: layers, elements; heads of a layer lie "
                           "in one row");
    if (dims[0] == 1)
        return take(r, EDIT_ANY_LAYER, dtype, data, dims[1]);
    if (!dims[0] || !dims[1] || dims[0] > SPEC_MAX_PLACE_LAYER + 1)
        return complain(r, dims[0] && dims[1] ? "it has more layers than models have"
                                              : "it holds no number");
    int rc = 0;
    if (!place_layers(r, false))
        return 0;
    for (uint64_t i = 0; i < dims[0] && !rc && !r->bad; i++)
        rc = take(r, (int32_t)i, dtype, data + i * dims[1] * dmi_dtype_bytes(dtype), dims[1]);
    return rc;
}

/* ------------------------------------------------------------------------- safetensors */

/* A tensor's key with a layer's number in it. */
struct keyed {
    int32_t layer;
    const struct st_entry *entry;
};

static int by_layer(const void *a, const void *b)
{
    const struct keyed *x = a, *y = b;
    return x->layer < y->layer ? -1 : x->layer > y->layer;
}

/* Is the key @pattern with a number in place of {layer}? */
static bool has_layer(const char *key, const char *pattern, int32_t *layer)
{
    size_t before = (size_t)(strstr(pattern, LAYER) - pattern);
    const char *after = pattern + before + strlen(LAYER);
    if (strncmp(key, pattern, before) || !isdigit((unsigned char)key[before]))
        return false;
    char *end;
    unsigned long n = strtoul(key + before, &end, 10);
    *layer = (int32_t)n;
    return n <= SPEC_MAX_PLACE_LAYER && !strcmp(end, after);
}

/* All tensors whose keys fit the pattern, by layer. @said: as of place_layers(). */
static int take_layers(struct reading *r, const struct safetensors *st, const char *pattern,
                       bool said)
{
    _cleanup_(freep) struct keyed *found = calloc(st->n + 1, sizeof *found);
    size_t n = 0;
    if (!found)
        return -ENOMEM;
    for (size_t i = 0; i < st->n; i++)
        if (has_layer(st->entries[i].key, pattern, &found[n].layer))
            found[n++].entry = &st->entries[i];
    qsort(found, n, sizeof *found, by_layer);
    if (!n)
        return complain(r, "no tensor's name fits \"tensor\" with a layer's number in it");
    int rc = 0;
    if (!place_layers(r, said))
        return 0;
    for (size_t i = 0; i < n && !rc && !r->bad; i++) {
        const struct st_entry *e = found[i].entry;
        uint64_t elements = 1;
        for (uint32_t d = 0; d < e->n_dims; d++)
            elements *= e->dims[d];
        if (!is_read(e->dtype))
            return complain(r, TYPES);
        if (i && found[i].layer == found[i - 1].layer)
            return complain(r, "two tensors have one layer");
        rc = take(r, found[i].layer, e->dtype, e->data, elements);
    }
    return rc;
}

/* What all keys have in common, with {layer} in place of the number by which they differ. Return: NULL: they differ otherwise. */
static char *pattern_of(const struct safetensors *st)
{
    const char *key = st->entries[0].key;
    for (const char *p = key; *p; p++) {
        if (!isdigit((unsigned char)*p) || (p > key && isdigit((unsigned char)p[-1])))
            continue;
        char *pattern;
        int32_t layer;
        size_t n = strspn(p, "0123456789"), fit = 0;
        if (asprintf(&pattern, "%.*s" LAYER "%s", (int)(p - key), key, p + n) < 0)
            return NULL;
        for (size_t i = 0; i < st->n; i++)
            fit += has_layer(st->entries[i].key, pattern, &layer);
        if (fit == st->n)
            return pattern;
        free(pattern);
    }
    return NULL;
}

static int take_entry(struct reading *r, const struct st_entry *e)
{
    return take_array(r, e->dtype, e->dims, e->n_dims, e->data);
}

/* What dmi.vectors wrote of where the numbers come from; NULL: nothing. */
static const char *metadata(const struct safetensors *st, const char *key)
{
    return json_string_value(json_object_get(st->metadata, key));
}

/* Is no vector before it of the same file? What is said of a file is said once. */
static bool is_first(const struct reading *r)
{
    for (uint32_t i = 0; i < r->vector; i++) {
        const char *other = r->edits->vectors[i].file;
        if (other && !strcmp(other, vector_of(r)->file))
            return false;
    }
    return true;
}

/* @checkpoint: the name of a model, as SAELens has it, which says nothing of the model_type @wanted. */
static void note_checkpoint(struct reading *r, const char *checkpoint, const char *wanted)
{
    const struct edit_vector *v = vector_of(r);
    if (!is_first(r))
        return;
    report_add(r->notes, v->line, 1,
               "note: the vector \"%s\", %s: it is of the model %s. The HookSpec's convention says "
               "the model_type %s, with which such a name is not compared; site, widths and layers "
               "are",
               v->name, r->path, checkpoint, wanted);
}

/* Whose layers the numbers are, and of which model: the edits, or the HookSpec, may say it, too. */
static int take_origin(struct reading *r, const struct safetensors *st)
{
    struct edit_vector *v = &r->edits->vectors[r->vector];
    const char *layer_is = metadata(st, "dmi.layer_is"), *model = metadata(st, "dmi.model");
    const char *checkpoint = metadata(st, "dmi.checkpoint");
    const char *wanted = spec_convention(r->spec, "model");
    char why[256];
    if (layer_is && v->layer_is && edits_sites_differ(layer_is, v->layer_is)) {
        snprintf(why, sizeof why, "its layers are those of %s, and \"layer_is\" says %s", layer_is,
                 v->layer_is);
        return complain(r, why);
    }
    if (model && wanted && strcmp(model, wanted)) {
        snprintf(why, sizeof why, "it is of the model %s, and the HookSpec's convention says %s",
                 model, wanted);
        return complain(r, why);
    }
    if (checkpoint && wanted && strcmp(checkpoint, wanted))
        note_checkpoint(r, checkpoint, wanted);
    if (layer_is && !v->layer_is && !(v->layer_is = strdup(layer_is)))
        return -ENOMEM;
    return 0;
}

/* What the file says beside, and nothing here reads: noted, or refused where it may change what the numbers mean. */
static void take_metadata(struct reading *r, const struct safetensors *st)
{
    const char *key, *unused = metadata(st, "dmi.unused");
    json_t *value;
    char why[512];
    _cleanup_(text_deinit) struct text all = { 0 };
    text_printf(&all, "%s", unused ? unused : "");
    json_object_foreach(st->metadata, key, value)
    {
        const char *said = json_string_value(value);
        if (!strncmp(key, "dmi.", 4) || !strcmp(key, "format") || !strcmp(key, "made_by"))
            continue;
        if (said_bears(key, said)) {
            snprintf(
                why, sizeof why,
                "it says %.60s%s%.60s, which is not read here, and may change what its numbers "
                "mean: do what it says, and save the vectors without it",
                key, said ? ": " : "", said ? said : "");
            complain(r, why);
            return;
        }
        text_printf(&all, "%s%.60s", all.n ? ", " : "", key);
    }
    if (all.n && !all.failed && is_first(r))
        report_add(r->notes, vector_of(r)->line, 1, "note: the vector \"%s\", %s: not used: %s",
                   vector_of(r)->name, r->path, all.data);
}

/* Without "tensor" only the name tells. One with a number in it may be of one layer. */
static int take_only(struct reading *r, const struct safetensors *st)
{
    const struct st_entry *e = &st->entries[0];
    size_t digits = strcspn(e->key, "0123456789");
    const char *after = e->key + digits + strspn(e->key + digits, "0123456789");
    if (!e->key[digits] || (e->n_dims == 2 && e->dims[0] > 1))
        return take_entry(r, e);
    _cleanup_(freep) char *pattern = pattern_of(st);
    if (after[strcspn(after, "0123456789")])
        return complain(r, "which of the numbers in its tensor's name is a layer is not clear; "
                           "expected \"tensor: NAME\", in which {layer} may stand");
    return pattern ? take_layers(r, st, pattern, false) : -ENOMEM;
}

static int take_safetensors(struct reading *r, const struct safetensors *st)
{
    const char *tensor = vector_of(r)->tensor;
    bool said = tensor != NULL;
    int rc = take_origin(r, st);
    if (!rc && !r->bad)
        take_metadata(r, st);
    if (rc || r->bad)
        return rc;
    if (!tensor)
        tensor = metadata(st, "dmi.tensor");
    if (tensor && strstr(tensor, LAYER))
        return take_layers(r, st, tensor, said);
    if (tensor) {
        const struct st_entry *e = safetensors_find(st, tensor);
        return e ? take_entry(r, e) : complain(r, "it has no tensor of the name in \"tensor\"");
    }
    if (st->n == 1)
        return take_only(r, st);
    _cleanup_(freep) char *pattern = st->n ? pattern_of(st) : NULL;
    return pattern ? take_layers(r, st, pattern, false)
                   : complain(r, "which of its tensors is meant is not clear; expected \"tensor: "
                                 "NAME\", in which {layer} may stand");
}

/* ------------------------------------------------------------------------- npy */

static int take_npy(struct reading *r, const char *data, size_t n)
{
    uint64_t dims[2];
    uint32_t dtype, n_dims;
    size_t head;
    const char *why = npy_read(data, n, &dtype, dims, &n_dims, &head);
    return why ? complain(r, why) : take_array(r, dtype, dims, n_dims, data + head);
}

/* ------------------------------------------------------------------------- files */

static bool ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), k = strlen(end);
    return n >= k && !strcmp(text + n - k, end);
}

/* @path: of the file itself, or of what Python wrote of it. */
static int read_safetensors(struct reading *r, const char *path)
{
    struct err err = { 0 };
    struct safetensors st = { 0 };
    int rc = safetensors_open(&err, path, &st);
    r->n_left = st.n_map;
    rc = rc ? complain(r, err.msg) : take_safetensors(r, &st);
    safetensors_deinit(&st);
    return rc;
}

static int read_npy(struct reading *r)
{
    struct err err = { 0 };
    uint64_t n = 0;
    _cleanup_(freep) char *data =
        regular_read(&err, r->path, 4 * (uint64_t)EDITS_MAX_NUMBERS + 65536, &n);
    r->n_left = n;
    return data ? take_npy(r, data, n) : complain(r, err.msg);
}

static int take_layer(void *arg, int32_t layer, const float *numbers, uint64_t n)
{
    struct reading *r = arg;
    int rc = add_numbers(r, layer, numbers, n);
    return rc ? rc : r->bad ? -ECANCELED : 0;
}

static int read_run(struct reading *r)
{
    struct err err = { 0 };
    int rc = vectors_read_run(&err, r->path, vector_of(r), take_layer, r);
    if (r->bad)
        return 0;
    return rc == -EINVAL ? complain(r, err.msg) : rc;
}

/* GGUF and .pt, in Python. */
static int read_foreign(struct reading *r)
{
    struct err err = { 0 };
    char path[64];
    _cleanup_(closep) int fd = foreign_convert(&err, r->command, r->path, vector_of(r)->layer_is);
    if (fd < 0)
        return fd == -EINVAL ? complain(r, err.msg) : fd;
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    return read_safetensors(r, path);
}

static int read_file(struct reading *r)
{
    if (vector_of(r)->run)
        return read_run(r);
    if (ends_with(r->path, ".safetensors"))
        return read_safetensors(r, r->path);
    if (ends_with(r->path, ".npy"))
        return read_npy(r);
    if (ends_with(r->path, ".gguf") || ends_with(r->path, ".pt") || ends_with(r->path, ".pth"))
        return read_foreign(r);
    return complain(r, "expected a file that ends with .safetensors, .npy, .gguf, .pt or .pth");
}

static int read_vector(struct reading *r)
{
    uint32_t before = r->edits->n_tensors;
    int rc = read_file(r);
    if (rc || r->bad || !r->left_out)
        return rc;
    if (r->edits->n_tensors == before)
        return complain(r, "it holds nothing but what enters the first layer, which no layer "
                           "returns: an edit at resid_post cannot have it");
    report_add(
        r->notes, vector_of(r)->line, 1,
        "note: the vector \"%s\", %s: layer L of resid_pre is layer L - 1 of resid_post, and "
        "goes there; left out: layer 0, which enters the first layer",
        vector_of(r)->name, r->path);
    return 0;
}

/* A file's path, seen from the folder of the edits' own. Return: NULL without memory. */
static char *path_of(const struct edits *edits, const char *file)
{
    const char *slash = strrchr(edits->path, '/');
    char *path = NULL;
    if (*file == '/' || !slash)
        return strdup(file);
    return asprintf(&path, "%.*s/%s", (int)(slash - edits->path), edits->path, file) < 0 ? NULL
                                                                                         : path;
}

/**
 * vectors_read() - the numbers of all vectors of @edits
 * Files are named from the folder in which the edits' own file lies. What a file says of its vectors is compared with @spec.
 * @command: whose Python reads files of others (python_of()); NULL: python3 of PATH
 * @errors: a line "FILE:LINE:COLUMN: ..." for each vector that cannot be; @notes: for each file of which something could not be
 * compared; free both with spec_errors_deinit()
 * Return: 0, SPEC_E_INVALID, -ENOMEM.
 */
static int vectors_read(struct edits *edits, const struct spec *spec, char *const *command,
                        struct spec_errors *errors, struct spec_errors *notes)
{
    struct text_report report = { .path = edits->path },
                       noted = { .path = edits->path, .what = "notes" };
    int rc = 0;
    *errors = *notes = (struct spec_errors){ 0 };
    for (uint32_t i = 0; i < edits->n_vectors && !rc; i++) {
        _cleanup_(freep) char *path =
            path_of(edits, edits->vectors[i].run ? edits->vectors[i].run : edits->vectors[i].file);
        struct reading r = { .edits = edits,
                             .spec = spec,
                             .report = &report,
                             .notes = &noted,
                             .vector = i,
                             .command = command,
                             .path = path };
        rc = path ? read_vector(&r) : -ENOMEM;
    }
    int finished = report_finish(&report, &errors->lines, &errors->n_lines);
    rc = rc ? rc : finished;
    finished = report_finish(&noted, &notes->lines, &notes->n_lines);
    rc = rc ? rc : finished;
    if (!rc && errors->n_lines)
        rc = SPEC_E_INVALID;
    rc = rc ? rc : edits_check_sites(edits, errors);
    rc = rc ? rc : edits_check_widths(edits, spec, errors);
    return rc ? rc : edits_check_layers(edits, errors);
}

static void say_lines(const struct spec_errors *lines)
{
    for (size_t i = 0; i < lines->n_lines; i++)
        fprintf(stderr, "%s\n", lines->lines[i]);
}

static void say_errors(const char *path, int rc, struct spec_errors *errors)
{
    say_lines(errors);
    if (rc && !errors->n_lines)
        fprintf(stderr, "%s: %s\n", path, rc < 0 ? strerror(-rc) : "no edits");
    spec_errors_deinit(errors);
}

struct edits *vectors_edits_of(const char *name, const char *text, size_t n_text,
                               const struct spec *spec, char *const *command)
{
    struct spec_errors errors = { 0 }, notes = { 0 };
    struct edits *edits = NULL;
    int rc = edits_parse(name, text, n_text, spec, &errors, &edits);
    if (!rc)
        rc = vectors_read(edits, spec, command, &errors, &notes);
    say_lines(&notes);
    spec_errors_deinit(&notes);
    say_errors(name, rc, &errors);
    if (!rc)
        return edits;
    edits_free(edits);
    return NULL;
}

struct edits *vectors_edits(const char *path, const struct spec *spec, char *const *command)
{
    struct err err = { 0 };
    uint64_t n = 0;
    _cleanup_(freep) char *text = regular_read(&err, path, EDITS_MAX_BYTES, &n);
    if (text)
        return vectors_edits_of(path, text, n, spec, command);
    fprintf(stderr, "%s\n", err.msg);
    return NULL;
}
