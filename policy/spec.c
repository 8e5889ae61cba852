/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A HookSpec from its file to a struct spec, and back to nothing. Source: docs/hookspec.md.
 */
#include "policy/spec.h"

#include "core/cleanup.h"
#include "policy/spec_load.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define NUMERAL_(n) #n
#define NUMERAL(n)  NUMERAL_(n)

/* ------------------------------------------------------------------------------------ freeing */

static void free_pairs(struct spec_pair *pairs, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        free(pairs[i].key);
        free(pairs[i].value);
    }
    free(pairs);
}

void spec_site_deinit(struct spec_site *site)
{
    for (uint32_t d = 0; d < SPEC_MAX_DIMS; d++) {
        expr_free(site->dims[d].count);
        expr_free(site->dims[d].stride);
        expr_free(site->dims[d].slots.block);
        expr_free(site->dims[d].slots.block_stride);
    }
    expr_free(site->offset);
    expr_free(site->layer);
    write_deinit(&site->write);
    free((char *)site->about.name);
    free((char *)site->about.kernel);
    free((char *)site->about.tap);
    free((char *)site->about.note);
}

static void free_sites(struct spec *spec)
{
    for (uint32_t i = 0; i < spec->n_sites; i++)
        spec_site_deinit(&spec->sites[i]);
    free(spec->sites);
}

void spec_free(struct spec *spec)
{
    if (!spec)
        return;
    nvtx_free(spec);
    regexes_free(spec->regexes);
    selects_free(spec);
    overload_deinit(&spec->overload);
    free_sites(spec);
    for (uint32_t i = 0; i < spec->n_kinds; i++) {
        free(spec->kinds[i].name);
        free(spec->kinds[i].kernel);
    }
    for (size_t i = 0; i < spec->n_absent; i++) {
        free(spec->absent[i].name);
        free(spec->absent[i].why);
    }
    free(spec->absent);
    free_pairs(spec->conventions, spec->n_conventions);
    free_pairs(spec->vars, spec->n_vars);
    spec_errors_deinit(&spec->warnings);
    free(spec->path);
    free(spec->text);
    free(spec->name);
    free(spec->model);
    free(spec);
}

const char *spec_convention(const struct spec *spec, const char *key)
{
    for (size_t i = 0; i < spec->n_conventions; i++)
        if (spec->conventions[i].key && !strcmp(spec->conventions[i].key, key))
            return spec->conventions[i].value;
    return NULL;
}

static void spec_freep(struct spec **spec)
{
    spec_free(*spec);
}

void spec_errors_deinit(struct spec_errors *errors)
{
    for (size_t i = 0; i < errors->n_lines; i++)
        free(errors->lines[i]);
    free(errors->lines);
    *errors = (struct spec_errors){ 0 };
}

/* ------------------------------------------------------------------------------------- reading */

/* The file's name without folders and ending. */
static char *default_name(struct loader *l, const char *path)
{
    const char *slash = strrchr(path, '/');
    char *name = strdup(slash ? slash + 1 : path);
    if (!name)
        loader_no_memory(l);
    char *dot = name ? strrchr(name, '.') : NULL;
    if (dot && dot != name)
        *dot = 0;
    return name;
}

/* Return: false where another version makes everything else guesswork. */
static bool check_version(struct loader *l, const struct tree_node *root)
{
    char was[128];
    if (root->kind != TREE_MAP)
        return true; /* keys_read() reports it */
    if (keys_value(root, "editspec") && !keys_value(root, "hookspec")) {
        loader_complain(l, root,
                        "found a file of edits; expected a HookSpec: dmi-run --edits takes it, "
                        "beside --spec or --write");
        return false;
    }
    for (size_t i = 0; i < root->n_items; i += 2) {
        const struct tree_node *key = root->items[i], *value = root->items[i + 1];
        int64_t version;
        if (key->kind != TREE_SCALAR || strcmp(key->text, "hookspec"))
            continue;
        if (i)
            loader_complain(l, key, "found \"hookspec\" after other keys; expected it first");
        if (value->kind == TREE_SCALAR && parse_integer(value->text, &version) &&
            version == SPEC_VERSION)
            return true;
        loader_complain(l, value,
                        "found HookSpec version %s; expected %d, the one that this build reads",
                        node_found(value, was, sizeof was), SPEC_VERSION);
        return false;
    }
    return true;
}

/* In the order in which they are read: each may use what those before it have left. */
static const struct key top_keys[] = {
    { "hookspec", true, NULL, 0, NULL }, /* check_version() */
    { "name", false, value_string, offsetof(struct spec, name), NULL },
    { "model", false, value_string, offsetof(struct spec, model), NULL },
    { "vars", false, NULL, 0, NULL }, /* section_vars(), also where the key is missing */
    { "convention", false, section_convention, 0, NULL },
    { "ring", false, section_ring, 0, NULL },
    { "edits", false, section_edits, 0, NULL },
    { "overload", false, section_overload, 0, NULL },
    { "forward", false, section_forward, 0, NULL },
    { "sites", true, section_sites, 0, NULL },
    { "absent", false, section_absent, 0, NULL },
};

/* From the command line or the environment. */
struct given_vars {
    const char *const *all;
    size_t n;
};

static void read_root(struct loader *l, const struct tree_node *root, const void *arg)
{
    const struct given_vars *vars = arg;
    struct spec *spec = l->spec;
    if (!check_version(l, root))
        return;
    if (root->kind == TREE_MAP)
        section_vars(l, keys_value(root, "vars"), vars->all, vars->n);
    if (keys_read(l, root, "a HookSpec", top_keys, N_OF(top_keys), spec))
        overload_settle(l, keys_value(root, "overload"));
    if (!spec->name)
        spec->name = default_name(l, spec->path);
}

/* Takes ownership of @text, which may be NULL. */
static struct spec *spec_new(const char *path, char *text, size_t n_text)
{
    _cleanup_(spec_freep) struct spec *spec = calloc(1, sizeof *spec);
    if (!spec) {
        free(text);
        return NULL;
    }
    spec->text = text;
    spec->n_text = n_text;
    spec->path = strdup(path);
    overload_init(&spec->overload);
    spec->regexes = regexes_new();
    if (!text || !spec->path || !spec->regexes)
        return NULL;
    return steal_ptr(spec);
}

/* Reads spec->text. Takes no ownership. Return: 0, SPEC_E_INVALID, -ENOMEM. */
static int parse_text(struct spec *spec, const char *const *vars, size_t n_vars,
                      struct spec_errors *errors)
{
    _cleanup_(freep) struct loader *l = calloc(1, sizeof *l);
    if (!l)
        return -ENOMEM;
    l->spec = spec;
    l->report.path = l->warnings.path = spec->path;
    l->warnings.what = "warnings";
    l->pattern_room = PATTERN_MAX_TOTAL;
    int rc = loader_read(l, spec->text, spec->n_text,
                         "found an empty file; expected \"hookspec: " NUMERAL(SPEC_VERSION) "\"",
                         read_root, &(const struct given_vars){ vars, n_vars }, errors);
    int warned = report_finish(&l->warnings, &spec->warnings.lines, &spec->warnings.n_lines);
    return warned ? warned : rc;
}

/* ------------------------------------------------------------------------------------- loading */

/* Takes ownership of @text. */
static int load_text(const char *path, char *text, size_t n_text, const char *const *vars,
                     size_t n_vars, struct spec_errors *errors, struct spec **out)
{
    _cleanup_(spec_freep) struct spec *spec = spec_new(path, text, n_text);
    if (!spec)
        return -ENOMEM;
    int rc = parse_text(spec, vars, n_vars, errors);
    if (!rc)
        *out = steal_ptr(spec);
    return rc;
}

static int one_error(const char *path, struct spec_errors *errors, const char *what)
{
    struct text_report report = { .path = path };
    report_add(&report, 0, 0, "%s", what);
    int rc = report_finish(&report, &errors->lines, &errors->n_lines);
    return rc ? rc : SPEC_E_INVALID;
}

int spec_parse(const char *path, const char *text, size_t n_text, const char *const *vars,
               size_t n_vars, struct spec_errors *errors, struct spec **out)
{
    *errors = (struct spec_errors){ 0 };
    if (n_text > SPEC_MAX_BYTES)
        return one_error(path, errors, "found a file of more than 1 MiB; expected a HookSpec");
    char *own = malloc(n_text + 1);
    if (!own)
        return -ENOMEM;
    if (n_text)
        memcpy(own, text, n_text);
    own[n_text] = 0;
    return load_text(path, own, n_text, vars, n_vars, errors, out);
}

/* The file's bytes, at most @max of them. Return: 0 or -errno. */
static int read_all(int fd, char *text, size_t max, size_t *n)
{
    *n = 0;
    while (*n < max) {
        ssize_t got = read(fd, text + *n, max - *n);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return -errno;
        if (got == 0)
            break;
        *n += (size_t)got;
    }
    return 0;
}

int spec_load(const char *path, const char *const *vars, size_t n_vars, struct spec_errors *errors,
              struct spec **out)
{
    *errors = (struct spec_errors){ 0 };
    /* O_NONBLOCK: a FIFO without a writer must not stop the application */
    _cleanup_(closep) int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    struct stat st;
    if (fd < 0 || fstat(fd, &st))
        return -errno;
    if (!S_ISREG(st.st_mode))
        return one_error(path, errors,
                         S_ISDIR(st.st_mode) ? "found a folder; expected a file"
                                             : "found a pipe or device; expected a file, which "
                                               "processes that start later can read again");
    _cleanup_(freep) char *text = malloc(SPEC_MAX_BYTES + 2);
    if (!text)
        return -ENOMEM;
    size_t n;
    int rc = read_all(fd, text, SPEC_MAX_BYTES + 1, &n);
    return rc ? rc : spec_parse(path, text, n, vars, n_vars, errors, out);
}

size_t spec_split_vars(char *text, const char **out, size_t max)
{
    size_t n = 0;
    for (char *save = NULL, *p = strtok_r(text, ",", &save); p; p = strtok_r(NULL, ",", &save)) {
        if (n == max)
            return SIZE_MAX;
        out[n++] = p;
    }
    return n;
}
