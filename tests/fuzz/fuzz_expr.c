/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Any bytes as an expression. If it reads nothing of a launch, its value is compared with what it has
 * when nothing can be folded: every number N in it then reads (occ+N), with occ 0.
 */
#include "policy/expr.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void require(bool holds)
{
    if (!holds)
        abort();
}

static int threes(void *ctx, struct expr_ref ref, void *dst, size_t n)
{
    (void)ctx;
    require(ref.arg <= (int)EXPR_MAX_ARG && ref.offset <= EXPR_MAX_OFFSET && n <= 8);
    memset(dst, 3, n);
    return ref.arg > 8;
}

static int evaluate(const struct expr *e, int64_t *out)
{
    static const uint32_t grid[3] = { 3, 2, 1 }, block[3] = { 32, 1, 1 };
    struct expr_env env = {
        .grid = grid, .block = block, .shared_bytes = 48, .occ = 0, .param = threes
    };
    int rc = expr_eval(e, &env, out);
    require(rc >= 0 && rc <= EXPR_E_PARAM);
    return rc;
}

/* The text with every decimal number N written (occ+N), or NULL if that gets too long. */
static char *unfolded(const char *text, size_t n, size_t *n_out)
{
    char *out = malloc(EXPR_MAX_TEXT);
    size_t used = 0;
    for (size_t i = 0; out && i < n;) {
        size_t digits = 0;
        bool in_word = i && (text[i - 1] == '_' || (text[i - 1] | 32) >= 'a') && text[i - 1] < 127;
        while (!in_word && i + digits < n && text[i + digits] >= '0' && text[i + digits] <= '9')
            digits++;
        bool hex = i + 1 < n && text[i] == '0' && (text[i + 1] | 32) == 'x';
        if (used + digits + 8 > EXPR_MAX_TEXT || hex) {
            free(out);
            return NULL;
        }
        if (digits) {
            memcpy(out + used, "(occ+", 5);
            memcpy(out + used + 5, text + i, digits);
            out[used + 5 + digits] = ')';
            used += digits + 6;
            i += digits;
        } else {
            out[used++] = text[i++];
        }
    }
    *n_out = used;
    return out;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static const struct expr_var vars[] = { { "a", 7 }, { "big", INT64_MAX } };
    struct expr_error error = { .offset = SIZE_MAX };
    struct expr_ref ref;
    struct expr *e = NULL, *slow = NULL, *product = NULL;
    int64_t v = 0, slow_v = 0;
    char *text = NULL;
    size_t n_text = 0;

    int rc = expr_parse_ref((const char *)data, n, vars, 2, &error, &ref);
    require(rc == 0 || (rc == EXPR_E_SYNTAX && error.offset <= n && *error.msg));
    error.offset = SIZE_MAX;
    rc = expr_parse((const char *)data, n, vars, 2, &error, &e);
    require(rc == 0 || (rc == EXPR_E_SYNTAX && error.offset <= n && *error.msg));
    if (rc)
        return 0;
    rc = evaluate(e, &v);
    require(!expr_is_constant(e) || (rc == 0 && v == expr_constant(e)));
    require(expr_same(e, e));
    text = unfolded((const char *)data, n, &n_text);
    if (text && expr_parse(text, n_text, vars, 2, &error, &slow) == 0)
        require(evaluate(slow, &slow_v) == rc && slow_v == v);
    const struct expr *factors[] = { e, e };
    if (expr_product(factors, 2, 4, &product) == 0)
        evaluate(product, &v);
    free(text);
    expr_free(e);
    expr_free(slow);
    expr_free(product);
    return 0;
}
