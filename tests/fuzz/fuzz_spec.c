/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Any bytes as a HookSpec: what loads must be usable, what does not must say why. A crash, a leak, a
 * hang or a broken promise of policy/spec.h is a finding.
 */
#include "policy/spec.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void require(bool holds)
{
    if (!holds)
        abort();
}

/* Parameters of a made-up launch: every byte is 3. */
static int threes(void *ctx, struct expr_ref ref, void *dst, size_t n)
{
    (void)ctx;
    memset(dst, 3, n);
    return ref.arg > 8;
}

static void use_expr(const struct expr *e, int64_t min)
{
    static const uint32_t grid[3] = { 3, 2, 1 }, block[3] = { 32, 1, 1 };
    struct expr_env env = {
        .grid = grid, .block = block, .shared_bytes = 48, .occ = 1, .param = threes
    };
    int64_t v = 0;
    if (!e)
        return;
    int rc = expr_eval(e, &env, &v);
    require(rc >= 0 && rc <= EXPR_E_PARAM);
    require(!expr_is_constant(e) || (rc == 0 && v == expr_constant(e) && v >= min));
}

static void use_site(const struct spec *spec, const struct spec_site *site)
{
    unsigned n_rows = 0;
    require(site->about.name && *site->about.name && site->n_row_dims >= 1);
    if (site->about.tap) {
        require(!site->about.kernel && !site->nvtx.pattern && !site->n_dims);
        return;
    }
    require(site->about.dtype && (site->about.kernel || site->nvtx.pattern));
    require(site->nvtx.pattern || (site->nvtx.which == SPEC_RANGE_ALL && !site->nvtx.layer));
    require(site->kind < (int)spec->n_kinds && site->first_occurrence <= site->last_occurrence &&
            site->every_occurrence >= 1);
    require(site->n_dims >= 1 && site->n_dims <= SPEC_MAX_DIMS && site->dims[0].is_row);
    require(site->pointer.arg <= (int)EXPR_MAX_ARG && site->pointer.offset <= EXPR_MAX_OFFSET);
    require(site->about.scale != 0);
    for (uint32_t d = 0; d < site->n_dims; d++) {
        require(site->dims[d].count && site->dims[d].stride);
        use_expr(site->dims[d].count, 1);
        use_expr(site->dims[d].stride, 0);
        n_rows += site->dims[d].is_row;
    }
    require(n_rows == site->n_row_dims);
    use_expr(site->offset, INT64_MIN);
    use_expr(site->layer, 0);
}

static void use_spec(const struct spec *spec)
{
    static const char *const kernels[] = { "k", "r_9_2_32_16_18_2",
                                           "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab", "" };
    static const char *const ranges[] = { "model.layers.3.mlp", "layer_7", "", "\xff" };
    struct spec_match match;
    struct spec_range_match range;
    require(spec->name && spec->n_sites >= 1 && spec->n_sites <= SPEC_MAX_SITES);
    for (uint32_t i = 0; i < spec->n_sites; i++) {
        require(spec->sites[i].about.id == i);
        use_site(spec, &spec->sites[i]);
    }
    for (uint32_t i = 0; i < spec->n_kinds; i++)
        require(spec->kinds[i].name != NULL);
    for (size_t i = 0; i < spec->n_absent; i++)
        require(spec->absent[i].name && spec->absent[i].why);
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++) {
        spec_match_kernel(spec, kernels[i], "void k<float>(float*)", &match);
        require(match.n_sites <= SPEC_MAX_MATCHES && match.n_ranged <= SPEC_MAX_RANGED);
        require(match.kind < (int)spec->n_kinds);
    }
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++) {
        require(spec_match_range(spec, ranges[i], &range) == (range.kind >= 0 || range.n_sites));
        require(range.n_sites <= spec->n_sites && range.kind < (int)spec->n_kinds);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static const char *const vars[] = { "a=7" };
    struct spec_errors errors;
    struct spec *spec = NULL;
    int rc = spec_parse("f", (const char *)data, n, vars, n & 1, &errors, &spec);
    require(rc == 0 || rc == SPEC_E_INVALID);
    require((rc == 0) == (spec != NULL) && (rc == 0) == (errors.n_lines == 0));
    for (size_t i = 0; i < errors.n_lines; i++)
        for (const char *p = errors.lines[i]; *p; p++)
            require((unsigned char)*p >= ' ');
    if (spec)
        use_spec(spec);
    spec_free(spec);
    spec_errors_deinit(&errors);
    return 0;
}
