/* SPDX-License-Identifier: Apache-2.0 */
#include "storage/codec/codec.h"
#include "storage/codec/hash.h"
#include "storage/text.h"
#include "tests/unit/storage_kit.h"

#include <dmi/dtype.h>

#include <check.h>
#include <errno.h>
#include <locale.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <zstd.h>

static uint8_t raw[DMI_BLOCK_BYTES], again[DMI_BLOCK_BYTES];

START_TEST(every_dtype_and_size_comes_back)
{
    static const size_t counts[] = { 0, 1, 2, 3, 7, 8, 63, 64, 65, 1000, 8191, 8192 };
    uint32_t dtype = (uint32_t)_i + 1, element = dmi_dtype_bytes(dtype);
    struct codec *codec = codec_new();
    for (uint32_t way = 0; way < 3 * CODEC_RUNGS; way++) {
        uint32_t encoding = way % 3;
        codec_set_rung(codec, (enum codec_rung)(way / 3));
        for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
            size_t n = counts[c] * element;
            struct dmi_plane planes[CODEC_MAX_PLANES];
            uint8_t *out = malloc(n + 1);
            kit_fill(raw, dtype, counts[c], c);
            size_t used = codec_encode(codec, encoding, element, raw, n, out, planes);
            ck_assert_uint_le(used, n);
            uint32_t bad;
            memset(again, 0xaa, sizeof again);
            ck_assert_int_eq(
                codec_decode(codec, encoding, element, planes, out, used, again, n, &bad), 0);
            ck_assert_mem_eq(raw, again, n);
            free(out);
        }
    }
    codec_free(codec);
}
END_TEST

START_TEST(special_values_keep_their_bits)
{
    static const uint32_t bits[] = { 0x7f800000, 0xff800000, 0x7fc00000, 0x7f800001, 0xffffffff,
                                     0x80000000, 0x00000001, 0x00000000, 0x7f7fffff, 0x00800000 };
    struct codec *codec = codec_new();
    struct dmi_plane planes[CODEC_MAX_PLANES];
    uint8_t out[4096];
    uint32_t bad, back[10];
    size_t used = codec_encode(codec, DMI_ENCODING_ROTATED, 4, bits, sizeof bits, out, planes);
    ck_assert_int_eq(
        codec_decode(codec, DMI_ENCODING_ROTATED, 4, planes, out, used, back, sizeof back, &bad),
        0);
    ck_assert_mem_eq(bits, back, sizeof bits);
    codec_free(codec);
}
END_TEST

START_TEST(a_rotated_element_is_the_one_of_the_document)
{
    /* docs/format.md 5.2: 0x3f80 rotated left is 0x7f00, 0xbf81 is 0x7f03 */
    const uint16_t values[2] = { 0x3f80, 0xbf81 };
    const uint8_t expected[4] = { 0x00, 0x03, 0x7f, 0x7f };
    struct codec *codec = codec_new();
    struct dmi_plane planes[2];
    uint8_t out[1024];
    ck_assert_uint_eq(codec_encode(codec, DMI_ENCODING_ROTATED, 2, values, 4, out, planes), 4);
    ck_assert_uint_eq(planes[0].codec, DMI_CODEC_RAW);
    ck_assert_mem_eq(out, expected, 4);
    codec_free(codec);
}
END_TEST

START_TEST(activations_shrink_and_noise_does_not_grow)
{
    struct codec *codec = codec_new();
    struct dmi_plane planes[CODEC_MAX_PLANES];
    uint8_t *out = malloc(sizeof raw);
    kit_fill(raw, DMI_DTYPE_BF16, sizeof raw / 2, 1);
    ck_assert_uint_lt(codec_encode(codec, DMI_ENCODING_ROTATED, 2, raw, sizeof raw, out, planes),
                      sizeof raw * 4 / 5);
    kit_fill(raw, DMI_DTYPE_U64, sizeof raw / 8, 1);
    ck_assert_uint_eq(codec_encode(codec, DMI_ENCODING_RAW, 8, raw, sizeof raw, out, planes),
                      sizeof raw);
    free(out);
    codec_free(codec);
}
END_TEST

START_TEST(a_changed_bit_is_found)
{
    struct codec *codec = codec_new();
    struct dmi_plane planes[CODEC_MAX_PLANES];
    uint8_t *out = malloc(4000);
    kit_fill(raw, DMI_DTYPE_F32, 1000, 1);
    size_t used = codec_encode(codec, DMI_ENCODING_ROTATED, 4, raw, 4000, out, planes);
    for (size_t bit = 0; bit < 8 * used; bit += 37) {
        uint32_t bad;
        out[bit / 8] ^= (uint8_t)(1u << bit % 8);
        ck_assert_int_eq(
            codec_decode(codec, DMI_ENCODING_ROTATED, 4, planes, out, used, again, 4000, &bad),
            -EBADMSG);
        out[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    free(out);
    codec_free(codec);
}
END_TEST

START_TEST(numbers_that_cannot_be_are_refused)
{
    static const struct {
        uint32_t encoding, element;
        size_t n_raw, n_stored;
        uint32_t plane_stored;
        uint8_t codec;
    } rows[] = {
        { 3, 4, 16, 16, 4, 0 },                  /* no such encoding */
        { 1, 3, 15, 15, 5, 0 },                  /* no such element */
        { 1, 4, 15, 15, 4, 0 },                  /* not a multiple */
        { 1, 4, DMI_BLOCK_BYTES + 4, 16, 4, 0 }, /* larger than a block */
        { 1, 4, 16, 16, 5, 0 },                  /* raw plane of another size */
        { 1, 4, 16, 16, 4, 2 },                  /* no such codec */
        { 1, 4, 16, 8, 4, 0 },                   /* planes beyond the stored bytes */
        { 1, 4, 16, 20, 4, 0 },                  /* stored bytes beyond the planes */
        { 0, 1, 64, 3, 3, 1 },                   /* no zstd frame */
    };
    struct codec *codec = codec_new();
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        uint8_t stored[64] = { 0 };
        struct dmi_plane planes[CODEC_MAX_PLANES];
        uint32_t bad;
        for (int p = 0; p < CODEC_MAX_PLANES; p++)
            planes[p] = (struct dmi_plane){ .codec = rows[i].codec,
                                            .n_stored = rows[i].plane_stored,
                                            .hash = hash_bytes(stored, rows[i].plane_stored) };
        int r = codec_decode(codec, rows[i].encoding, rows[i].element, planes, stored,
                             rows[i].n_stored, again, rows[i].n_raw, &bad);
        ck_assert_msg(r == -EINVAL || r == -EBADMSG || r == -ENOTSUP, "row %zu: %d", i, r);
    }
    codec_free(codec);
}
END_TEST

START_TEST(a_plane_is_one_zstd_frame_and_nothing_else)
{
    static const uint8_t zeros[4096], skippable[12] = { 0x50, 0x2a, 0x4d, 0x18, 4 };
    uint8_t frame[256], stored[1024];
    size_t n = ZSTD_compress(frame, sizeof frame, zeros, sizeof zeros, 1), n_half, n_stored = 0;
    uint8_t half[256];
    n_half = ZSTD_compress(half, sizeof half, zeros, sizeof zeros / 2, 1);
    struct codec *codec = codec_new();
    for (int form = 0; form < 4; form++) {
        n_stored = 0;
        if (form == 1) /* a skippable frame first */
            memcpy(stored, skippable, n_stored = sizeof skippable);
        if (form == 2) { /* two frames that together have the right size */
            memcpy(stored, half, n_half);
            memcpy(stored + n_half, half, n_half);
            n_stored = 2 * n_half;
        } else {
            memcpy(stored + n_stored, frame, n);
            n_stored += n;
        }
        if (form == 3) /* bytes after it */
            stored[n_stored++] = 0;
        struct dmi_plane plane = { .codec = DMI_CODEC_ZSTD,
                                   .n_stored = (uint32_t)n_stored,
                                   .hash = hash_bytes(stored, n_stored) };
        uint32_t bad;
        int r =
            codec_decode(codec, DMI_ENCODING_RAW, 1, &plane, stored, n_stored, again, 4096, &bad);
        ck_assert_msg(form ? r == -EBADMSG : r == 0, "form %d: %d", form, r);
    }
    codec_free(codec);
}
END_TEST

START_TEST(json_strings_are_escaped_and_always_utf8)
{
    static const struct {
        const char *in;
        size_t n;
        const char *out;
    } rows[] = {
        { "plain", 5, "\"plain\"" },
        { "a\"b\\c", 5, "\"a\\\"b\\\\c\"" },
        { "\n\t\0", 3, "\"\\u000a\\u0009\\u0000\"" },
        { "\xc3\xa9", 2, "\"\xc3\xa9\"" },
        { "\xff", 1, "\"\\ufffd\"" },
        { "\xc3", 1, "\"\\ufffd\"" },                       /* cut off */
        { "\xed\xa0\x80", 3, "\"\\ufffd\\ufffd\\ufffd\"" }, /* a surrogate */
        { "\xf0\x9f\x98\x80", 4, "\"\xf0\x9f\x98\x80\"" },
        { "\xc0\xaf", 2, "\"\\ufffd\\ufffd\"" }, /* overlong */
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct text t = { 0 };
        text_json_n(&t, rows[i].in, rows[i].n);
        ck_assert_str_eq(t.data, rows[i].out);
        text_deinit(&t);
    }
}
END_TEST

START_TEST(json_numbers_read_back_the_same)
{
    static const double values[] = { 0, 1, -1, 0.1, 1e12, 1e-300, 3.141592653589793, -2.5e17 };
    setlocale(LC_ALL, "de_DE.UTF-8"); /* a comma for the point, where that locale exists */
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        struct text t = { 0 };
        text_json_double(&t, values[i]);
        setlocale(LC_ALL, "C");
        ck_assert_double_eq(strtod(t.data, NULL), values[i]);
        text_deinit(&t);
    }
    struct text t = { 0 };
    text_json_double(&t, NAN);
    ck_assert_str_eq(t.data, "null");
    text_deinit(&t);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("storage_codec");
    TCase *tc = tcase_create("codec");
    tcase_add_loop_test(tc, every_dtype_and_size_comes_back, 0, DMI_DTYPE_COUNT - 1);
    tcase_add_test(tc, special_values_keep_their_bits);
    tcase_add_test(tc, a_rotated_element_is_the_one_of_the_document);
    tcase_add_test(tc, activations_shrink_and_noise_does_not_grow);
    tcase_add_test(tc, a_changed_bit_is_found);
    tcase_add_test(tc, numbers_that_cannot_be_are_refused);
    tcase_add_test(tc, a_plane_is_one_zstd_frame_and_nothing_else);
    suite_add_tcase(suite, tc);
    tc = tcase_create("text");
    tcase_add_test(tc, json_strings_are_escaped_and_always_utf8);
    tcase_add_test(tc, json_numbers_read_back_the_same);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
