/* SPDX-License-Identifier: Apache-2.0 */
/* tex: what is read at a point, by filter, address mode, format and dimensions. */
#include "test_device.h"

#include <math.h>

#define TEX(name, form, coordinates)                                                               \
    ".visible .entry " name "(.param .u64 t, .param .u64 p)\n{ .reg .b64 %d<3>; .reg .b32 %r<8>; " \
    ".reg .f32 %f<4>;\n"                                                                           \
    "ld.param.u64 %d1, [t]; ld.param.u64 %d2, [p]; ld.global.f32 %f1, [%d2]; ld.global.f32 %f2, "  \
    "[%d2+4]; ld.global.f32 %f3, [%d2+8];\n"                                                       \
    "ld.global.s32 %r5, [%d2]; ld.global.s32 %r6, [%d2+4];\n"                                      \
    "tex." form " {%r1, %r2, %r3, %r4}, [%d1, " coordinates "]; st.global.v4.b32 [%d2+16], {%r1, " \
    "%r2, %r3, %r4}; ret; }\n"

static const char text[] = PTX_HEAD TEX("one", "1d.v4.f32.f32", "{%f1}")
    TEX("two", "2d.v4.f32.f32", "{%f1, %f2}") TEX("three", "3d.v4.f32.f32", "{%f1, %f2, %f3, %f3}")
        TEX("fetch", "1d.v4.u32.s32", "{%r5}") TEX("fetch2", "2d.v4.s32.s32", "{%r5, %r6}");

#define AT    (DEVICE_BASE + 4096)
#define PITCH 64

static struct ptx_module *module;
static struct ptx_texture texture;

static const struct ptx_texture *find(uint64_t handle)
{
    return handle == 5 ? &texture : NULL;
}

/* Eight rows of eight floats: 10 * y + x, in two slices 100 apart */
static void floats(void)
{
    texture = (struct ptx_texture){ .address = AT,
                                    .extent = { 8, 8, 2 },
                                    .pitch = PITCH,
                                    .slice = 8 * PITCH,
                                    .n_channels = 1,
                                    .channel_bytes = 4,
                                    .channel = PTX_FLOATING,
                                    .mode = { PTX_CLAMP, PTX_CLAMP, PTX_CLAMP },
                                    .border = { -7 } };
    for (int z = 0; z < 2; z++)
        for (int y = 0; y < 8; y++)
            for (int x = 0; x < 8; x++)
                *(float *)device_at(AT + (uint64_t)(z * 8 * PITCH + y * PITCH + x * 4)) =
                    (float)(100 * z + 10 * y + x);
}

static const uint32_t *read_bits(const char *name, const void *at, int want)
{
    uint64_t p[] = { 5, DEVICE_BASE };
    memcpy(device_at(p[1]), at, 12);
    ck_assert_int_eq(device_run(device_kernel(module, name), 1, 1, p), want);
    return (const uint32_t *)device_at(p[1]) + 4;
}

static float read_float(const char *name, float x, float y, float z)
{
    float v;
    memcpy(&v, read_bits(name, (float[]){ x, y, z }, PTX_OK), 4);
    return v;
}

#define GIVES(expr, want)                                                                          \
    do {                                                                                           \
        float got_ = (expr);                                                                       \
        ck_assert_msg(fabsf(got_ - (want)) < 1e-5f, #expr ": %g, expected %g", (double)got_,       \
                      (double)(want));                                                             \
    } while (0)

START_TEST(the_nearest_element)
{
    floats();
    GIVES(read_float("two", 2.0f, 3.0f, 0), 32.0f);
    GIVES(read_float("two", 2.99f, 3.99f, 0), 32.0f);
    GIVES(read_float("two", 100, -1, 0), 7.0f);
    GIVES(read_float("two", INFINITY, NAN, 0), 7.0f);
    GIVES(read_float("one", 5.5f, 0, 0), 5.0f);
    GIVES(read_float("three", 1.5f, 2.5f, 1.5f), 121.0f);
    texture.mode[0] = PTX_BORDER;
    GIVES(read_float("two", 8.0f, 3.0f, 0), -7.0f);
    texture.mode[0] = PTX_WRAP; /* needs normalized coordinates: else it clamps */
    GIVES(read_float("two", 9.0f, 0, 0), 7.0f);
}
END_TEST

START_TEST(normalized_coordinates_repeat_and_reflect)
{
    floats();
    texture.normalized_coordinates = true;
    GIVES(read_float("two", 0.5f, 0.25f, 0), 24.0f);
    texture.mode[0] = PTX_WRAP;
    GIVES(read_float("two", 1.125f, 0, 0), 1.0f);
    GIVES(read_float("two", -0.125f, 0, 0), 7.0f);
    texture.mode[0] = PTX_MIRROR;
    GIVES(read_float("two", 1.0625f, 0, 0), 7.0f);
    GIVES(read_float("two", -0.0625f, 0, 0), 0.0f);
    GIVES(read_float("two", -0.1875f, 0, 0), 1.0f);
}
END_TEST

START_TEST(linear_filtering)
{
    floats();
    texture.linear_filter = true;
    GIVES(read_float("two", 2.5f, 3.5f, 0), 32.0f); /* centres of elements */
    GIVES(read_float("two", 3.0f, 3.5f, 0), 32.5f);
    GIVES(read_float("two", 3.0f, 4.0f, 0), 37.5f);
    GIVES(read_float("two", 0, 0, 0), 0.0f);
    GIVES(read_float("two", 2.5f + 1.0f / 512, 0.5f, 0),
          2.0f); /* 8 bits of fraction; ties to even */
    GIVES(read_float("two", 2.5f + 3.0f / 512, 0.5f, 0), 2 + 2.0f / 256);
    GIVES(read_float("one", 7.9f, 0, 0), 7.0f);
    GIVES(read_float("three", 1.0f, 1.0f, 1.0f), 55.5f);
    texture.mode[0] = PTX_BORDER;
    GIVES(read_float("two", 0, 0.5f, 0), -3.5f);
}
END_TEST

START_TEST(formats)
{
    static const signed char bytes[8] = { 0, 127, -128, -1, 64, 2, 3, 4 };
    floats();
    memcpy(device_at(AT), bytes, 8);
    texture = (struct ptx_texture){ .address = AT,
                                    .extent = { 2, 1, 1 },
                                    .n_channels = 4,
                                    .channel_bytes = 1,
                                    .channel = PTX_SIGNED,
                                    .mode = { PTX_BORDER, PTX_BORDER, PTX_BORDER } };
    const int32_t *s = (const int32_t *)read_bits("fetch2", (int[]){ 0, 0, 0 }, PTX_OK);
    ck_assert(s[0] == 0 && s[1] == 127 && s[2] == -128 && s[3] == -1);
    texture.channel = PTX_UNSIGNED;
    const uint32_t *u = read_bits("fetch", (int[]){ 1, 0, 0 }, PTX_OK);
    ck_assert(u[0] == 64 && u[3] == 4);
    u = read_bits("fetch", (int[]){ 2, 0, 0 }, PTX_OK);
    ck_assert(u[0] == 0 && u[3] == 0);
    texture.as_fraction = true;
    GIVES(read_float("one", 1, 0, 0), 64 / 255.0f);
    texture.channel = PTX_SIGNED;
    GIVES(read_float("one", 1, 0, 0), 64 / 127.0f);
    float v[4];
    memcpy(v, read_bits("one", (float[]){ 0, 0, 0 }, PTX_OK), 16);
    GIVES(v[2], -1.0f);
    texture.channel_bytes = 2;
    texture.n_channels = 1;
    texture.channel = PTX_FLOATING;
    memcpy(device_at(AT), &(uint16_t){ 0xc500 }, 2);
    GIVES(read_float("one", 0, 0, 0), -5.0f);
}
END_TEST

START_TEST(what_is_no_texture_faults)
{
    uint64_t p[] = { 6, DEVICE_BASE };
    floats();
    ck_assert_int_eq(device_run(device_kernel(module, "one"), 1, 1, p), PTX_E_FAULT);
    texture.address = DEVICE_BASE + DEVICE_BYTES;
    read_bits("one", (float[3]){ 0 }, PTX_E_FAULT);
}
END_TEST

int main(void)
{
    device_fresh_cache();
    module = device_load(text);
    ptx_texture_find = find;
    Suite *s = suite_create("ptx_texture");
    TCase *t = tcase_create("texture");
    tcase_add_test(t, the_nearest_element);
    tcase_add_test(t, normalized_coordinates_repeat_and_reflect);
    tcase_add_test(t, linear_filtering);
    tcase_add_test(t, formats);
    tcase_add_test(t, what_is_no_texture_faults);
    suite_add_tcase(s, t);
    SRunner *runner = srunner_create(s);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    ptx_module_free(module);
    device_remove_cache();
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
