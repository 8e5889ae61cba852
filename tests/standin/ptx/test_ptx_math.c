/* SPDX-License-Identifier: Apache-2.0 */
/* CUDA's mathematical functions, from nvcc/math.cu, against libm: special values and a thousand others. */
#include "test_device.h"

#include <float.h>
#include <math.h>

enum { N = 1024 };

struct function {
    const char *name;
    double (*one)(double), (*two)(double, double);
    float (*one_float)(float), (*two_float)(float, float);
};

#define ONE(name) { #name, name, NULL, name##f, NULL },
#define TWO(name) { #name, NULL, name, NULL, name##f },
static const struct function functions[] = {
#include "nvcc/math_functions.inc"
};

static struct ptx_module *module;
static double x[N], y[N];

static void take_inputs(void)
{
    static const double special[] = { 0,      -0.0,  1,      -1,   INFINITY, -INFINITY, NAN, 0.5,
                                      -0.5,   1e-40, -1e-40, 1e30, -1e30,    3,         -3,  170,
                                      1e-310, 88,    2,      0.25, 1e10,     -104 };
    size_t n = sizeof special / sizeof special[0];

    srand48(1);
    for (size_t i = 0; i < N; i++) {
        x[i] = i < n * n ? special[i / n] : (drand48() - 0.5) * pow(10, (int)(i % 4) - 1);
        y[i] = i < n * n ? special[i % n] : (drand48() - 0.5) * 10;
    }
}

/* As far apart as @tolerance of the wanted value; NaN equals NaN, infinities and zeros only themselves. */
static bool near(const struct function *f, double got, double want, double tolerance, double least)
{
    if (isnan(got) || isnan(want))
        return isnan(got) && isnan(want);
    if (isinf(got) || isinf(want))
        return got == want;
    if (got == 0 && want == 0) /* C leaves open which zero is the larger */
        return !signbit(got) == !signbit(want) || f->two == fmin || f->two == fmax;
    return fabs(got - want) <= tolerance * fmax(fabs(want), least);
}

static const struct ptx_kernel *kernel_of(const struct function *f, const char *type)
{
    char name[64];

    snprintf(name, sizeof name, "%s_%s", f->name, type);
    return device_kernel(module, name);
}

START_TEST(doubles_agree_with_libm)
{
    const struct function *f = &functions[_i];
    uint64_t at[] = { DEVICE_BASE + 4096, DEVICE_BASE + 65536 };
    const double *got = device_at(at[1]);

    memcpy(device_at(at[0]), x, sizeof x);
    memcpy(device_at(at[1]), y, sizeof y);
    ck_assert_int_eq(device_run(kernel_of(f, "double"), 1, N, at), PTX_OK);
    for (int i = 0; i < N; i++) {
        double want = f->one ? f->one(x[i]) : f->two(x[i], y[i]);

        ck_assert_msg(near(f, got[i], want, 1e-13, DBL_MIN), "%s(%g, %g): %.17g, expected %.17g",
                      f->name, x[i], y[i], got[i], want);
    }
}
END_TEST

START_TEST(floats_agree_with_libm)
{
    const struct function *f = &functions[_i];
    uint64_t at[] = { DEVICE_BASE + 4096, DEVICE_BASE + 65536 };
    float *in = device_at(at[0]), *got = device_at(at[1]);

    for (int i = 0; i < N; i++) {
        in[i] = (float)x[i];
        got[i] = (float)y[i];
    }
    ck_assert_int_eq(device_run(kernel_of(f, "float"), 1, N, at), PTX_OK);
    for (int i = 0; i < N; i++) {
        float a = (float)x[i], b = (float)y[i],
              want = f->one ? f->one_float(a) : f->two_float(a, b);

        ck_assert_msg(near(f, (double)got[i], (double)want, 2e-5, 1e-36),
                      "%s(%g, %g): %.9g, expected %.9g", f->name, (double)a, (double)b,
                      (double)got[i], (double)want);
    }
}
END_TEST

int main(int argc, char **argv)
{
    static char text[4 << 20];
    FILE *f = argc > 1 ? fopen(argv[1], "r") : NULL;

    DEVICE_MUST(f && fread(text, 1, sizeof text - 1, f) > 0, "usage: test_ptx_math MATH.ptx");
    fclose(f);
    device_fresh_cache();
    module = device_load(text);
    for (size_t i = 0; i < ptx_module_n_globals(module); i++) {
        const struct ptx_global *g = ptx_module_global(module, i);
        uint64_t at = DEVICE_BASE + (1 << 20) + i * 65536;

        ptx_module_bind(module, i, at);
        if (g->init)
            memcpy(device_at(at), g->init, g->size);
    }
    take_inputs();
    Suite *s = suite_create("ptx_math");
    TCase *t = tcase_create("math");
    tcase_add_loop_test(t, doubles_agree_with_libm, 0,
                        (int)(sizeof functions / sizeof functions[0]));
    tcase_add_loop_test(t, floats_agree_with_libm, 0,
                        (int)(sizeof functions / sizeof functions[0]));
    suite_add_tcase(s, t);
    SRunner *runner = srunner_create(s);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    ptx_module_free(module);
    device_remove_cache();
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
