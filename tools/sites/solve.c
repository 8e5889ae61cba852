/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/sites/solve.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_VARIABLES 512u
#define MAX_PAIRED    64u /* variables of which two are tried together */

enum variable_type { VARIABLE_PARAM, VARIABLE_GRID, VARIABLE_BLOCK, VARIABLE_OCC };

struct variable {
    enum variable_type type;
    uint32_t at, size; /* of a parameter: byte in the packed buffer; of a grid: dimension */
};

struct variables {
    struct variable at[MAX_VARIABLES];
    uint32_t n;
};

/* ------------------------------------------------------------------------- what there is */

static void add(struct variables *v, enum variable_type type, uint32_t at, uint32_t size)
{
    if (v->n < MAX_VARIABLES)
        v->at[v->n++] = (struct variable){ type, at, size };
}

static bool is_pointer(const struct rec_launch *l, uint32_t at, uint32_t size)
{
    for (uint32_t i = 0; i < l->head.n_pointers; i++)
        if (at < l->pointers[i].offset + 8 && l->pointers[i].offset < at + size)
            return true;
    return false;
}

static struct dmi_recording_param param_of(const struct rec_kernel *k, uint32_t i)
{
    struct dmi_recording_param p;
    memcpy(&p, k->params + i, sizeof p);
    return p;
}

/* Integers among the parameters of @l: whole ones of 4 or 8 bytes, and 4-byte members of larger ones. */
static void add_params(const struct recording *rec, const struct rec_launch *l, struct variables *v)
{
    const struct rec_kernel *k = &rec->kernels[l->head.kernel];
    bool known = k->n_params != DMI_RECORDING_NO_LAYOUT;
    for (uint32_t i = 0; known && i < k->n_params; i++) {
        struct dmi_recording_param p = param_of(k, i);
        if (p.offset > l->head.n_params || p.size > l->head.n_params - p.offset)
            continue;
        if ((p.size == 4 || p.size == 8) && !is_pointer(l, p.offset, p.size))
            add(v, VARIABLE_PARAM, p.offset, p.size);
        for (uint32_t at = 0; p.size > 8 && at + 4 <= p.size; at += 4)
            if (!is_pointer(l, p.offset + at, 4))
                add(v, VARIABLE_PARAM, p.offset + at, 4);
    }
    for (uint32_t at = 0; !known && at + 4 <= l->head.n_params; at += 4)
        if (!is_pointer(l, at, 4))
            add(v, VARIABLE_PARAM, at, 4);
}

static void collect(const struct recording *rec, const struct rec_launch *l, struct variables *v)
{
    v->n = 0;
    add_params(rec, l, v);
    for (uint32_t d = 0; d < 3; d++)
        add(v, VARIABLE_GRID, d, 0);
    for (uint32_t d = 0; d < 3; d++)
        add(v, VARIABLE_BLOCK, d, 0);
    add(v, VARIABLE_OCC, 0, 0);
}

static int64_t value_of(const struct variable *v, const struct sample *s)
{
    int32_t narrow = 0;
    int64_t wide = 0;
    const struct dmi_recording_launch *head = &s->launch->head;
    switch (v->type) {
    case VARIABLE_GRID: return head->grid[v->at];
    case VARIABLE_BLOCK: return head->block[v->at];
    case VARIABLE_OCC: return s->occ;
    case VARIABLE_PARAM: break;
    }
    if (v->at > head->n_params || v->size > head->n_params - v->at)
        return 0;
    memcpy(v->size == 8 ? (void *)&wide : (void *)&narrow, s->launch->params + v->at, v->size);
    return v->size == 8 ? wide : narrow;
}

/* ------------------------------------------------------------------------- as text */

void solve_place(const struct recording *rec, const struct rec_launch *l, uint32_t offset,
                 char *text, size_t n_text)
{
    const struct rec_kernel *k = &rec->kernels[l->head.kernel];
    for (uint32_t i = 0; k->n_params != DMI_RECORDING_NO_LAYOUT && i < k->n_params; i++) {
        struct dmi_recording_param p = param_of(k, i);
        if (offset < p.offset || offset - p.offset >= p.size)
            continue;
        if (offset == p.offset)
            snprintf(text, n_text, "arg[%u]", i);
        else
            snprintf(text, n_text, "arg[%u][%u]", i, offset - p.offset);
        return;
    }
    snprintf(text, n_text, "param[%u]", offset);
}

static void print_variable(const struct recording *rec, const struct rec_launch *l,
                           const struct variable *v, char *text, size_t n)
{
    char place[48];
    switch (v->type) {
    case VARIABLE_GRID: snprintf(text, n, "grid.%c", "xyz"[v->at]); return;
    case VARIABLE_BLOCK: snprintf(text, n, "block.%c", "xyz"[v->at]); return;
    case VARIABLE_OCC: snprintf(text, n, "occ"); return;
    case VARIABLE_PARAM: break;
    }
    solve_place(rec, l, v->at, place, sizeof place);
    snprintf(text, n, "%s.%s", place, v->size == 8 ? "i64" : "i32");
}

/* A sum under construction. */
static void print_term(char *text, size_t n, int64_t factor, const char *name)
{
    size_t at = strlen(text);
    const char *sign = factor < 0 ? (at ? " - " : "-") : at ? " + " : "";
    uint64_t size = factor < 0 ? -(uint64_t)factor : (uint64_t)factor;
    if (!factor)
        return;
    if (!name)
        snprintf(text + at, n - at, "%s%" PRIu64, sign, size);
    else if (size == 1)
        snprintf(text + at, n - at, "%s%s", sign, name);
    else
        snprintf(text + at, n - at, "%s%s * %" PRIu64, sign, name, size);
}

/* ------------------------------------------------------------------------- solving */

/* The samples and what is known of them. */
struct problem {
    const struct recording *rec;
    const struct sample *samples;
    size_t n;
    struct variables variables;
};

static bool all_equal(const struct problem *p)
{
    for (size_t i = 1; i < p->n; i++)
        if (p->samples[i].value != p->samples[0].value)
            return false;
    return true;
}

static bool bears_out(const struct problem *p, const struct variable *x, int64_t a,
                      const struct variable *y, int64_t b, int64_t c)
{
    for (size_t i = 0; i < p->n; i++) {
        int64_t ax, by, sum;
        if (__builtin_mul_overflow(a, value_of(x, &p->samples[i]), &ax) ||
            __builtin_mul_overflow(b, y ? value_of(y, &p->samples[i]) : 0, &by) ||
            __builtin_add_overflow(ax, by, &sum) || __builtin_add_overflow(sum, c, &sum) ||
            sum != p->samples[i].value)
            return false;
    }
    return true;
}

static void print_sum(const struct problem *p, const struct variable *x, int64_t a,
                      const struct variable *y, int64_t b, int64_t c, struct solution *out)
{
    char name[64];
    *out = (struct solution){ 0 };
    print_variable(p->rec, p->samples[0].launch, x, name, sizeof name);
    print_term(out->text, sizeof out->text, a, name);
    if (y) {
        print_variable(p->rec, p->samples[0].launch, y, name, sizeof name);
        print_term(out->text, sizeof out->text, b, name);
    }
    print_term(out->text, sizeof out->text, c, NULL);
}

/* a * x + c from two samples in which x differs. */
static bool solve_one(const struct problem *p, const struct variable *x, bool with_constant,
                      struct solution *out)
{
    int64_t x0 = value_of(x, &p->samples[0]);
    for (size_t i = 1; i < p->n; i++) {
        int64_t dx = value_of(x, &p->samples[i]) - x0;
        int64_t dv = p->samples[i].value - p->samples[0].value;
        if (!dx)
            continue;
        if (dv % dx || !dv)
            return false;
        int64_t a = dv / dx, c = p->samples[0].value - a * x0;
        if ((c && !with_constant) || !bears_out(p, x, a, NULL, 0, c))
            return false;
        print_sum(p, x, a, NULL, 0, c, out);
        return true;
    }
    return false;
}

/* a * x + b * y + c from three samples. */
static bool solve_two(const struct problem *p, const struct variable *x, const struct variable *y,
                      struct solution *out)
{
    const struct sample *s = p->samples;
    int64_t x0 = value_of(x, s), y0 = value_of(y, s), x1 = 0, y1 = 0, v1 = 0;
    for (size_t i = 1; i < p->n; i++) {
        int64_t dx = value_of(x, &s[i]) - x0, dy = value_of(y, &s[i]) - y0;
        int64_t dv = s[i].value - s[0].value, det = x1 * dy - y1 * dx;
        if (!x1 && !y1) {
            x1 = dx, y1 = dy, v1 = dv;
            continue;
        }
        if (!det)
            continue;
        int64_t a = v1 * dy - y1 * dv, b = x1 * dv - v1 * dx;
        if (a % det || b % det)
            return false;
        a /= det, b /= det;
        int64_t c = s[0].value - a * x0 - b * y0;
        if (!bears_out(p, x, a, y, b, c))
            return false;
        print_sum(p, x, a, y, b, c, out);
        return true;
    }
    return false;
}

static bool solve_pairs(const struct problem *p, struct solution *out)
{
    uint32_t n = p->variables.n < MAX_PAIRED ? p->variables.n : MAX_PAIRED;
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t k = i + 1; k < n; k++)
            if (solve_two(p, &p->variables.at[i], &p->variables.at[k], out))
                return true;
    return false;
}

/* The variable that is never less than the value, and the least more in all. */
static bool solve_padded(const struct problem *p, struct solution *out)
{
    const struct variable *best = NULL;
    int64_t least = INT64_MAX;
    for (uint32_t i = 0; i < p->variables.n; i++) {
        int64_t more = 0;
        for (size_t k = 0; k < p->n && more >= 0; k++) {
            int64_t over = value_of(&p->variables.at[i], &p->samples[k]) - p->samples[k].value;
            more = over < 0 || over > p->samples[k].value + 64 ? -1 : more + over;
        }
        if (more >= 0 && more < least) {
            least = more;
            best = &p->variables.at[i];
        }
    }
    if (best)
        print_sum(p, best, 1, NULL, 0, 0, out);
    out->padded = best && least;
    return best != NULL;
}

bool solve(const struct recording *rec, const struct sample *samples, size_t n, bool padded,
           struct solution *out)
{
    struct problem p = { rec, samples, n, { .n = 0 } };
    *out = (struct solution){ 0 };
    if (!n)
        return false;
    if (all_equal(&p)) {
        out->constant = true;
        snprintf(out->text, sizeof out->text, "%" PRId64, samples[0].value);
        return true;
    }
    collect(rec, samples[0].launch, &p.variables);
    for (int with_constant = 0; with_constant < 2; with_constant++)
        for (uint32_t i = 0; i < p.variables.n; i++)
            if (solve_one(&p, &p.variables.at[i], with_constant, out))
                return true;
    return padded ? solve_padded(&p, out) : solve_pairs(&p, out);
}
