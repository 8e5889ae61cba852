/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prints a run by <dmi/read.h> and libdmi_read.so alone, a JSON object a line, for test_read_abi.py; and pins the
 * layout of every struct that crosses the border:
 *
 *     read_abi RUN
 */
#include <dmi/dtype.h>
#include <dmi/read.h>

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define AT(type, field, offset) static_assert(offsetof(struct type, field) == (offset), "ABI")
static_assert(sizeof(struct dmi_read_run) == 160, "ABI");
AT(dmi_read_run, n_beside, 152);
AT(dmi_read_run, job, 136);
AT(dmi_read_run, path, 8);
AT(dmi_read_run, pid, 48);
AT(dmi_read_run, n_sites, 80);
AT(dmi_read_run, n_forwards, 128);
static_assert(sizeof(struct dmi_read_site) == 72, "ABI");
AT(dmi_read_site, name, 8);
AT(dmi_read_site, scale, 40);
AT(dmi_read_site, row, 56);
static_assert(sizeof(struct dmi_read_account) == 272, "ABI");
AT(dmi_read_account, expected, 16);
AT(dmi_read_account, lost, 88);
AT(dmi_read_account, dropped_by, 112);
AT(dmi_read_account, launches, 240);
static_assert(sizeof(struct dmi_read_tensor) == 96, "ABI");
AT(dmi_read_tensor, key, 8);
AT(dmi_read_tensor, n_rows, 40);
AT(dmi_read_tensor, site, 64);
AT(dmi_read_tensor, dims, 76);
AT(dmi_read_tensor, mixed, 92);
static_assert(sizeof(struct dmi_read_row) == 88, "ABI");
AT(dmi_read_row, row, 40);
AT(dmi_read_row, flags, 48);
AT(dmi_read_row, site, 52);
AT(dmi_read_row, donor, 56);
AT(dmi_read_row, dtype, 60);
AT(dmi_read_row, dims, 68);
static_assert(sizeof(struct dmi_read_request) == 176, "ABI");
AT(dmi_read_request, tags, 160);
AT(dmi_read_request, shed_step, 152);
AT(dmi_read_request, state, 80);
AT(dmi_read_request, n_preemptions, 112);
static_assert(sizeof(struct dmi_read_selection) == 112, "ABI");
AT(dmi_read_selection, request_bytes, 16);
AT(dmi_read_selection, first, 32);
AT(dmi_read_selection, ranks, 48);
AT(dmi_read_request, id, 8);
AT(dmi_read_request, end_position, 72);
static_assert(sizeof(struct dmi_read_stretch) == 64, "ABI");
AT(dmi_read_stretch, tensor, 8);
AT(dmi_read_stretch, data, 40);
AT(dmi_read_stretch, site, 60);
static_assert(sizeof(struct dmi_read_finding) == 40, "ABI");
AT(dmi_read_finding, chunk, 16);
static_assert(sizeof(struct dmi_read_problem) == 40, "ABI");
AT(dmi_read_problem, times, 32);
static_assert(sizeof(struct dmi_read_step) == 72, "ABI");
AT(dmi_read_step, step, 16);
AT(dmi_read_step, ranks, 40);
static_assert(sizeof(struct dmi_read_span) == 64, "ABI");
AT(dmi_read_span, cached_ids, 56);
AT(dmi_read_span, first_position, 24);
AT(dmi_read_span, flags, 48);
static_assert(sizeof(struct dmi_read_record) == 104, "ABI");
AT(dmi_read_record, dims, 24);
AT(dmi_read_record, launch, 56);
AT(dmi_read_record, stored_bytes, 96);

static void print_hex(const void *data, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        printf("%02x", ((const uint8_t *)data)[i]);
}

static int print_tensor(struct dmi_read *run, uint64_t index)
{
    struct dmi_read_tensor t = { .size = sizeof t };
    if (dmi_read_tensor(run, index, &t))
        return 1;
    uint64_t n_data = t.n_rows * t.row_bytes;
    void *data = malloc(n_data + 1);
    struct dmi_read_row *rows = calloc(t.n_rows + 1, sizeof *rows);
    int r =
        data && rows ? dmi_read_rows(run, index, 0, t.n_rows, data, n_data, rows, sizeof *rows) : 1;
    printf("{\"dtype\": %u, \"width\": %" PRIu64 ", \"layer\": %d, \"result\": %d, \"key\": \"",
           t.dtype, t.width, t.layer, r);
    print_hex(t.key, strlen(t.key));
    printf("\", \"positions\": [");
    for (uint64_t i = 0; i < t.n_rows; i++)
        printf("%s%" PRId64, i ? ", " : "", rows[i].position);
    printf("], \"damaged\": [");
    for (uint64_t i = 0; i < t.n_rows; i++)
        printf("%s%u", i ? ", " : "", rows[i].flags);
    printf("], \"data\": \"");
    print_hex(data, n_data);
    printf("\"}\n");
    free(data);
    free(rows);
    return 0;
}

/* What must not be written, and what must be refused. */
static int try_borders(struct dmi_read *run, uint64_t n_tensors)
{
    struct dmi_read_run none = { 0 };
    union {
        struct dmi_read_site s;
        uint8_t bytes[sizeof(struct dmi_read_site) + 16];
    } older = { 0 }, newer = { 0 };
    memset(&older, 0xaa, sizeof older);
    memset(&newer, 0xaa, sizeof newer);
    older.s.size = 16; /* up to the name */
    newer.s.size = sizeof newer;
    uint8_t one[1];
    int wrong = dmi_read_run(run, &none) == 0;
    wrong |= dmi_read_site(run, 0, &older.s) || older.bytes[16] != 0xaa || older.s.size != 16 ||
             !older.s.name || dmi_read_error(run)[0] == 0;
    wrong |= dmi_read_site(run, 0, &newer.s) || newer.bytes[sizeof newer - 1] != 0;
    wrong |= dmi_read_site(run, UINT64_MAX, &newer.s) == 0;
    wrong |= dmi_read_tensor(run, n_tensors, &(struct dmi_read_tensor){ .size = 96 }) == 0;
    wrong |= dmi_read_find(run, "no such key") >= 0;
    wrong |= dmi_read_select(run, &(struct dmi_read_selection){ .size = 0 }) == 0;
    wrong |= dmi_read_select(run, &(struct dmi_read_selection){ .size = 48, .tokens = 9 }) == 0;
    wrong |= dmi_read_rows(run, 0, 0, 1, one, 1, NULL, 0) == 0;
    wrong |= dmi_read_rows(run, 0, UINT64_MAX, 2, NULL, 0, NULL, 0) == 0;
    wrong |= dmi_read_rows(run, 0, 0, UINT64_MAX, one, 1, NULL, 0) == 0;
    return wrong;
}

enum { MOST = 64 };

/* All tensors at once, the last one first, are what they are one by one. */
static int try_several(struct dmi_read *run, uint64_t n_tensors)
{
    uint64_t indices[MOST] = { 0 }, n = 0;
    void *data[MOST] = { 0 }, *alone[MOST] = { 0 };
    int wrong = n_tensors > MOST, damaged = 0;
    for (uint64_t i = n_tensors; !wrong && i-- > 0;) {
        struct dmi_read_tensor t = { .size = sizeof t };
        if (dmi_read_tensor(run, i, &t) || t.mixed)
            continue;
        uint64_t n_data = t.n_rows * t.row_bytes;
        indices[n] = i;
        data[n] = calloc(n_data + 1, 1);
        alone[n] = calloc(n_data + 1, 1);
        if (!data[n] || !alone[n])
            abort();
        damaged |= dmi_read_rows(run, i, 0, t.n_rows, alone[n], n_data, NULL, 0);
        n++;
    }
    wrong |= dmi_read_several(run, indices, n, data) != damaged;
    for (uint64_t k = 0; k < n; k++) {
        struct dmi_read_tensor t = { .size = sizeof t };
        wrong |= dmi_read_tensor(run, indices[k], &t) ||
                 memcmp(data[k], alone[k], t.n_rows * t.row_bytes) != 0;
        free(data[k]);
        free(alone[k]);
    }
    wrong |= dmi_read_several(run, &n_tensors, 1, data) != -ENOENT;
    return wrong | dmi_read_several(run, NULL, 0, NULL);
}

/* What a visit has seen. */
struct seen {
    struct dmi_read *run;
    uint64_t n_rows, last_launch;
    int wrong, end_after;
};

/* The rows of a stretch are those that dmi_read_rows() gives, and come in the order of their launches. */
static int expect_stretch(void *ctx, const struct dmi_read_stretch *s)
{
    struct seen *seen = ctx;
    struct dmi_read_row row = { 0 };
    uint64_t n_data = s->n_rows * s->width * dmi_dtype_bytes(s->dtype);
    void *alone = calloc(n_data + 1, 1);
    int r = dmi_read_rows(seen->run, s->tensor, s->first, s->n_rows, alone, n_data, NULL, 0);
    int r2 = dmi_read_rows(seen->run, s->tensor, s->first, 1, NULL, 0, &row, sizeof row);
    seen->wrong |= s->size != sizeof *s || r2 || row.position != s->position ||
                   row.site != s->site || row.launch < seen->last_launch ||
                   (row.flags | (r ? DMI_READ_ROW_DAMAGED : 0u)) != s->flags;
    seen->wrong |= r ? s->data != NULL || r != -EBADMSG : memcmp(alone, s->data, n_data) != 0;
    seen->n_rows += s->n_rows;
    seen->last_launch = row.launch;
    free(alone);
    return seen->end_after && --seen->end_after == 0 ? 77 : 0;
}

static int try_visit(struct dmi_read *run, uint64_t n_tensors)
{
    uint64_t indices[MOST] = { 0 }, n_rows = 0;
    for (uint64_t i = 0; i < n_tensors && i < MOST; i++) {
        struct dmi_read_tensor t = { .size = sizeof t };
        indices[i] = i;
        n_rows += dmi_read_tensor(run, i, &t) ? 0 : t.n_rows;
    }
    struct seen seen = { .run = run }, some = { .run = run, .end_after = 2 };
    int wrong = n_tensors > MOST || dmi_read_visit(run, indices, n_tensors, expect_stretch, &seen);
    wrong |= seen.wrong || seen.n_rows != n_rows;
    wrong |= dmi_read_visit(run, indices, n_tensors, expect_stretch, &some) != 77;
    wrong |= dmi_read_visit(run, &n_tensors, 1, expect_stretch, &seen) != -ENOENT;
    return wrong | dmi_read_visit(run, NULL, 0, expect_stretch, &seen);
}

int main(int argc, char **argv)
{
    char why[8] = "";
    struct dmi_read *run = NULL;
    if (argc != 2 || dmi_read_version() != DMI_READ_VERSION)
        return 2;
    if (dmi_read_open("/nonexistent", &run, why, sizeof why) == 0 || run || strlen(why) != 7)
        return 3;
    if (dmi_read_open(argv[1], &run, NULL, 0))
        return 4;
    struct dmi_read_run facts = { .size = sizeof facts };
    if (dmi_read_refresh(run) || dmi_read_run(run, &facts))
        return 5;
    for (uint64_t i = 0; i < facts.n_tensors; i++)
        if (print_tensor(run, i))
            return 6;
    if (try_borders(run, facts.n_tensors))
        return 7;
    if (try_several(run, facts.n_tensors))
        return 8;
    if (try_visit(run, facts.n_tensors))
        return 9;
    dmi_read_close(run);
    dmi_read_close(NULL);
    return 0;
}
