/* SPDX-License-Identifier: Apache-2.0 */
#include "storage/writer/manifest.h"

#include "core/any.h"
#include "core/grow.h"
#include "storage/checksum.h"
#include "storage/names.h"

#include <dmi/dtype.h>
#include <dmi/format.h>

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define MAX_PROBLEMS 1000
#define MAX_ABOUT    64u
#define MAX_KEY      64u
#define MAX_VALUE    (1u << 20)

static void add_pairs(struct text *t, const char *key, const struct run_text *pairs, size_t n)
{
    text_printf(t, ",\n  \"%s\": {", key);
    for (size_t i = 0; i < n; i++) {
        text_printf(t, "%s\n    ", i ? "," : "");
        text_json(t, pairs[i].key);
        text_printf(t, ": ");
        text_json(t, pairs[i].value);
    }
    text_printf(t, "%s}", n ? "\n  " : "");
}

static void add_site(struct text *t, const struct dmi_site *s, uint32_t id)
{
    const struct dmi_dtype_info *info = dmi_dtype_info(s->dtype);
    text_printf(t, "%s\n    {\"id\": %u, \"name\": ", id ? "," : "", id);
    text_json(t, s->name ? s->name : "");
    text_printf(
        t, ", \"dtype\": \"%s\", \"row\": \"%s\", \"row_dims\": %u, \"has_layer\": %s, \"scale\": ",
        info ? info->name : "none", dmi_row_name(s->row) ? dmi_row_name(s->row) : "none",
        s->n_row_dims ? s->n_row_dims : 1u, s->has_layer ? "true" : "false");
    text_json_double(t, s->scale);
    text_printf(t, ", \"expect\": %" PRId64 ", \"kind\": ", s->expect);
    text_json(t, s->kind);
    text_printf(t, ", \"kernel\": ");
    text_json(t, s->kernel);
    if (s->tap) {
        text_printf(t, ", \"tap\": ");
        text_json(t, s->tap);
    }
    text_printf(t, ", \"note\": ");
    text_json(t, s->note);
    if (s->shard == DMI_SHARD_DIM)
        text_printf(t, ", \"shard\": {\"dim\": %u, \"over\": \"%s\"}", s->shard_dim,
                    dmi_axis_name(s->shard_axis));
    else if (s->shard == DMI_SHARD_SUM)
        text_printf(t, ", \"shard\": {\"sum\": true, \"over\": \"%s\"}",
                    dmi_axis_name(s->shard_axis));
    if (s->writes)
        text_printf(t, ", \"action\": \"%s\"", s->saves ? "save" : "edit");
    text_printf(t, "}");
}

void manifest_sites(struct text *text, const struct run_options *options)
{
    text_printf(text, "{\n  \"model\": ");
    text_json(text, options->model);
    add_pairs(text, "conventions", options->conventions, options->n_conventions);
    text_printf(text, ",\n  \"sites\": [");
    for (uint32_t i = 0; i < options->n_sites; i++)
        add_site(text, &options->sites[i], i);
    text_printf(text, "%s]", options->n_sites ? "\n  " : "");
    add_pairs(text, "absent", options->absent, options->n_absent);
    text_printf(text, "\n}");
}

static void add_uuid(struct text *t, const uint8_t uuid[16])
{
    for (int i = 0; i < 16; i++)
        text_printf(t, "%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", uuid[i]);
}

static void add_segment(struct text *t, const struct manifest_segment *s, size_t number)
{
    text_printf(t, "%s\n  {\"file\": \"" DMI_SEGMENT_NAME "\", \"closed\": %s", number ? "," : "",
                (unsigned)number, s->closed ? "true" : "false");
    if (s->closed)
        text_printf(t, ", \"bytes\": %" PRIu64 ", \"chunks\": %" PRIu64 ", \"records\": %" PRIu64,
                    s->n_bytes, s->n_chunks, s->n_records);
    text_printf(t, "%s}", s->released ? ", \"released\": true" : "");
}

/* What released segments held, by site. */
static void add_released(struct text *t, const struct manifest *m)
{
    const char *comma = "";
    if (!m->gone)
        return;
    text_printf(t, ",\n\"released\": [");
    for (uint32_t i = 0; i < m->n_sites; i++)
        if (m->gone[i].records) {
            text_printf(t,
                        "%s\n  {\"site\": %u, \"records\": %" PRIu64 ", \"rows\": %" PRIu64
                        ", \"bytes\": %" PRIu64 "}",
                        comma, i, m->gone[i].records, m->gone[i].rows, m->gone[i].bytes);
            comma = ",";
        }
    text_printf(t, "\n]");
}

static void add_problems(struct text *t, const struct manifest *m)
{
    text_printf(t, ",\n\"problems\": [");
    for (size_t i = 0; i < m->n_problems; i++) {
        const struct manifest_problem *p = &m->problems[i];
        text_printf(t, "%s\n  {\"site\": ", i ? "," : "");
        text_json(t, p->site);
        text_printf(t, ", \"reason\": ");
        text_json(t, p->reason);
        text_printf(t, ", \"times\": %" PRIu64 ", \"sentence\": ", p->n);
        text_json(t, p->sentence);
        text_printf(t, "}");
    }
}

static void add_about(struct text *t, const struct manifest *m)
{
    for (size_t i = 0; i < m->n_about; i++) {
        text_printf(t, i ? ",\n  " : ",\n\"about\": {\n  ");
        text_json(t, m->about[i].key);
        text_printf(t, ": ");
        text_json(t, m->about[i].value);
    }
    text_printf(t, m->n_about ? "\n}" : "");
}

static void add_process(struct text *t, const struct alive_process *p)
{
    if (!p->start_ticks)
        return;
    text_printf(t, "\"process\": {\"start_ticks\": %" PRIu64 ", \"counters_inode\": %" PRIu64,
                p->start_ticks, p->inode);
    text_printf(t, ", \"boot_id\": ");
    text_json(t, p->boot_id);
    text_printf(t, ", \"namespaces\": ");
    text_json(t, p->namespaces);
    text_printf(t, "},\n");
}

/* The file of accounts of edits, null where there is none. */
static void add_edits(struct text *t, const struct manifest *m)
{
    if (!m->n_edits) {
        text_printf(t, ",\n\"edits\": null");
        return;
    }
    text_printf(t, ",\n\"edits\": {\"file\": \"edits\", \"bytes\": %" PRIu64, m->n_edits);
    if (m->closed)
        text_printf(t, ", \"xxh3\": \"%016" PRIx64 "\"", m->edits_hash);
    text_printf(t, "}");
}

void manifest_write(struct text *text, const struct manifest *m)
{
    text_printf(text, "{\n\"format\": \"dmi-run\",\n\"version\": %d,\n", DMI_FORMAT_VERSION);
    text_printf(text, MANIFEST_CHECKSUM_KEY MANIFEST_CHECKSUM_ZERO "\",\n\"uuid\": \"");
    add_uuid(text, m->run_uuid);
    text_printf(text, "\",\n\"job\": ");
    text_json(text, m->job);
    text_printf(text, ",\n\"host\": ");
    text_json(text, m->host);
    text_printf(text,
                ",\n\"pid\": %" PRIu64 ",\n\"start_realtime_ns\": %" PRIu64
                ",\n\"library_version\": ",
                m->pid, m->start_ns);
    text_json(text, m->library_version);
    text_printf(text, ",\n");
    add_process(text, &m->process);
    text_printf(text,
                "\"state\": \"%s\",\n\"spec\": {\"path\": ", m->closed ? "closed" : "running");
    text_json(text, m->spec_path);
    text_printf(text,
                ", \"file\": \"spec.yaml\", \"bytes\": %" PRIu64 ", \"xxh3\": \"%016" PRIx64
                "\"},\n\"counters\": {\"file\": \"counters\", "
                "\"bytes\": %" PRIu64,
                m->n_spec, m->spec_hash, m->n_counters);
    if (m->closed)
        text_printf(text, ", \"xxh3\": \"%016" PRIx64 "\"", m->counters_hash);
    text_printf(text, "}");
    if (m->has_places)
        add_edits(text, m);
    text_printf(text, ",\n\"segments\": [");
    for (size_t i = 0; i < m->n_segments; i++)
        add_segment(text, &m->segments[i], i);
    text_printf(text, "%s]", m->n_segments ? "\n" : "");
    add_released(text, m);
    add_problems(text, m);
    text_printf(text, "%s]", m->n_problems ? "\n" : "");
    add_about(text, m);
    text_printf(text, ",\n\"dictionary\": ");
    text_add(text, m->sites, strlen(m->sites));
    text_printf(text, "\n}\n");
    if (!text->failed)
        checksum_write(text->data, text->n);
}

static bool same(const char *a, const char *b)
{
    return a == b || (a && b && !strcmp(a, b));
}

static int copy_of(const char *s, char **out)
{
    *out = NULL;
    if (s && !(*out = strdup(s)))
        return -ENOMEM;
    return 0;
}

/* The entry of a problem, a new one where there is none. NULL: no memory, or too many of them. */
static struct manifest_problem *problem_of(struct manifest *m, const char *site, const char *reason,
                                           const char *sentence, int *failed)
{
    *failed = 0;
    for (size_t i = 0; i < m->n_problems; i++) {
        struct manifest_problem *p = &m->problems[i];
        if (same(p->site, site) && same(p->reason, reason) && same(p->sentence, sentence))
            return p;
    }
    if (m->n_problems == MAX_PROBLEMS)
        return NULL;
    *failed = -ENOMEM;
    if (ONE_MORE(m->problems, m->n_problems))
        return NULL;
    struct manifest_problem p = { 0 };
    if (copy_of(site, &p.site) || copy_of(reason, &p.reason) || copy_of(sentence, &p.sentence)) {
        free(p.site);
        free(p.reason);
        free(p.sentence);
        return NULL;
    }
    *failed = 0;
    m->problems[m->n_problems] = p;
    return &m->problems[m->n_problems++];
}

int manifest_add_problem(struct manifest *m, const char *site, const char *reason,
                         const char *sentence)
{
    int r;
    struct manifest_problem *p = problem_of(m, site, reason, sentence, &r);
    if (p)
        p->n++;
    return r;
}

int manifest_set_problem(struct manifest *m, const char *reason, const char *sentence,
                         uint64_t times)
{
    int r = 0;
    struct manifest_problem *p = times ? problem_of(m, NULL, reason, sentence, &r) : NULL;
    if (p)
        p->n = times;
    return r;
}

static bool is_key(const char *key)
{
    size_t n = strspn(key, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.");
    return n && !key[n] && n <= MAX_KEY;
}

/* The entry of a key, a new one where there is none. NULL: no room, as *@failed says. */
static struct manifest_text *about_of(struct manifest *m, const char *key, int *failed)
{
    for (size_t i = 0; i < m->n_about; i++)
        if (!strcmp(m->about[i].key, key))
            return &m->about[i];
    *failed = -ENOSPC;
    if (m->n_about == MAX_ABOUT)
        return NULL;
    *failed = -ENOMEM;
    if (ONE_MORE(m->about, m->n_about))
        return NULL;
    m->about[m->n_about] = (struct manifest_text){ .key = strdup(key) };
    return m->about[m->n_about].key ? &m->about[m->n_about++] : NULL;
}

int manifest_describe(struct manifest *m, const char *key, const char *value)
{
    int r = -EINVAL;
    if (!key || !value || !is_key(key) || strlen(value) > MAX_VALUE)
        return r;
    char *copy = strdup(value);
    struct manifest_text *entry = copy ? about_of(m, key, &r) : NULL;
    if (!entry) {
        free(copy);
        return copy ? r : -ENOMEM;
    }
    free(entry->value);
    entry->value = copy;
    return 0;
}

const char *manifest_described(const struct manifest *m, const char *key)
{
    return FIRST(i, m->n_about, !strcmp(m->about[i].key, key), m->about[i].value, NULL);
}

/* ------------------------------------------------------------------------- released segments */

void manifest_keep_tallies(struct manifest_segment *segment, const struct text *sites)
{
    const struct dmi_footer_site *all = (const void *)sites->data;
    segment->tallies = malloc(sites->n + 1);
    for (size_t i = 0; segment->tallies && i < sites->n / sizeof *all; i++)
        if (all[i].records)
            segment->tallies[segment->n_tallies++] = all[i];
}

/* Adds what the segment holds to what is gone, or takes it away. */
static void move_tallies(struct manifest *m, const struct manifest_segment *s, uint64_t sign)
{
    for (size_t i = 0; i < s->n_tallies; i++) {
        struct dmi_tally *to = &m->gone[s->tallies[i].site];
        to->records += sign * s->tallies[i].records;
        to->rows += sign * s->tallies[i].rows;
        to->bytes += sign * s->tallies[i].bytes;
    }
}

int manifest_release(struct manifest *m, size_t number, uint32_t n_sites)
{
    struct manifest_segment *s = &m->segments[number];
    if (!s->tallies)
        return -ENODATA;
    if (!m->gone && !(m->gone = calloc(n_sites + 1u, sizeof *m->gone)))
        return -ENOMEM;
    m->n_sites = n_sites;
    move_tallies(m, s, 1);
    s->released = true;
    m->n_released = number + 1;
    return 0;
}

void manifest_take_back(struct manifest *m, size_t number)
{
    move_tallies(m, &m->segments[number], UINT64_MAX);
    m->segments[number].released = false;
    m->n_released = number;
}

void manifest_forget_tallies(struct manifest *m, size_t number)
{
    free(m->segments[number].tallies);
    m->segments[number].tallies = NULL;
    m->segments[number].n_tallies = 0;
}

void manifest_deinit(struct manifest *m)
{
    for (size_t i = 0; i < m->n_segments; i++)
        free(m->segments[i].tallies);
    free(m->gone);
    for (size_t i = 0; i < m->n_problems; i++) {
        free(m->problems[i].site);
        free(m->problems[i].reason);
        free(m->problems[i].sentence);
    }
    for (size_t i = 0; i < m->n_about; i++) {
        free(m->about[i].key);
        free(m->about[i].value);
    }
    free(m->about);
    free(m->problems);
    free(m->segments);
    free(m->spec_path);
    free(m->job);
    free(m->library_version);
    free(m->sites);
    *m = (struct manifest){ 0 };
}
