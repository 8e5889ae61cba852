/* SPDX-License-Identifier: Apache-2.0 */
/* Packing, byte planes and hashes: the instructions of this CPU and those of every CPU write and read the same bytes. */
#include "storage/codec/codec.h"
#include "storage/codec/hash.h"
#include "storage/codec/pack.h"
#include "storage/codec/planes.h"
#include "tests/unit/storage_kit.h"

#include <dmi/dtype.h>

#include <check.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define MOST 5000u

static uint64_t next(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* Exponents: close together, but for one in @far (0: none is), most of which are smaller. */
static void fill(uint8_t *to, size_t n, uint8_t around, uint32_t far, uint64_t *state)
{
    for (size_t i = 0; i < n; i++) {
        uint64_t r = next(state);
        bool away = far && r % far == 0;
        to[i] = (uint8_t)(around + (r >> 32) % 14);
        if (away)
            to[i] = (uint8_t)(r / far % 50 ? around - 16 - (r >> 40) % 64 : r >> 40);
    }
}

START_TEST(a_packing_is_the_one_of_the_document)
{
    /* docs/format.md 5.3 */
    static const uint8_t plane[9] = { 0x7b, 0x7f, 0x7c, 0x00, 0x7e, 0x7b, 0x7d, 0x81, 0x7c };
    static const uint8_t packed[7] = { 0x74, 0xb7, 0xf8, 0x7a, 0xd9, 0x08, 0x00 };
    uint8_t out[32], back[9];
    size_t used = pack_encode(plane, sizeof plane, out);
    ck_assert_uint_eq(used, sizeof packed);
    ck_assert_mem_eq(out, packed, sizeof packed);
    ck_assert_int_eq(pack_decode(packed, sizeof packed, back, sizeof back), 0);
    ck_assert_mem_eq(back, plane, sizeof plane);
}
END_TEST

START_TEST(every_size_comes_back_by_either_instructions)
{
    static const uint32_t rates[] = { 0, 200, 40, 12, 5 };
    uint64_t state = (uint64_t)_i;
    uint8_t plane[MOST], fast[2 * MOST], portable[2 * MOST], back[MOST + 1];
    size_t n = _i < 200 ? (size_t)_i : 200 + next(&state) % (MOST - 200);
    uint8_t around = (uint8_t)next(&state);
    fill(plane, n, around, rates[next(&state) % 5], &state);
    memset(fast, 0x55, sizeof fast);
    memset(portable, 0xaa, sizeof portable);
    size_t used = pack_encode(plane, n, fast);
    ck_assert_uint_eq(pack_encode_portable(plane, n, portable), used);
    ck_assert_uint_le(used, n - n / 8);
    if (!used)
        return;
    ck_assert_mem_eq(fast, portable, used);
    for (int way = 0; way < 2; way++) {
        memset(back, 0xaa, sizeof back);
        ck_assert_int_eq((way ? pack_decode_portable : pack_decode)(fast, used, back, n), 0);
        ck_assert_mem_eq(back, plane, n);
        ck_assert_uint_eq(back[n], 0xaa);
    }
}
END_TEST

START_TEST(a_wrong_number_of_escapes_is_refused)
{
    uint64_t state = 7;
    uint8_t plane[1001], packed[2 * sizeof plane], back[sizeof plane];
    fill(plane, sizeof plane, 0x70, 30, &state);
    size_t used = pack_encode(plane, sizeof plane, packed);
    ck_assert_uint_gt(used, 0);
    for (int way = 0; way < 2; way++) {
        int (*decode)(const uint8_t *, size_t, uint8_t *, size_t) =
            way ? pack_decode_portable : pack_decode;
        for (size_t n = 0; n < used; n++)
            ck_assert_int_eq(decode(packed, n, back, sizeof back), -EBADMSG);
        ck_assert_int_eq(decode(packed, used + 1, back, sizeof back), -EBADMSG);
        ck_assert_int_eq(decode(packed, used, back, sizeof back), 0);
        packed[501] |= 0x10; /* the half byte that no element has: 1 least value, 501 bytes */
        ck_assert_int_eq(decode(packed, used, back, sizeof back), -EBADMSG);
        packed[501] &= 0x0f;
    }
}
END_TEST

START_TEST(what_does_not_pay_is_stored_as_it_is)
{
    static uint8_t raw[DMI_BLOCK_BYTES], out[DMI_BLOCK_BYTES];
    struct codec *codec = codec_new();
    struct dmi_plane planes[CODEC_MAX_PLANES];
    uint64_t state = 3;
    codec_set_rung(codec, CODEC_PACKED);
    for (size_t i = 0; i < sizeof raw; i++)
        raw[i] = (uint8_t)next(&state);
    ck_assert_uint_eq(codec_encode(codec, DMI_ENCODING_ROTATED, 2, raw, sizeof raw, out, planes),
                      sizeof raw);
    ck_assert_uint_eq(planes[1].codec, DMI_CODEC_RAW);
    codec_free(codec);
}
END_TEST

START_TEST(each_rung_writes_more_than_the_one_before)
{
    static uint8_t raw[DMI_BLOCK_BYTES], out[DMI_BLOCK_BYTES];
    struct codec *codec = codec_new();
    struct dmi_plane planes[CODEC_MAX_PLANES];
    size_t used[CODEC_RUNGS];
    kit_fill(raw, DMI_DTYPE_BF16, sizeof raw / 2, 1);
    for (int rung = 0; rung < CODEC_RUNGS; rung++) {
        codec_set_rung(codec, (enum codec_rung)rung);
        uint32_t encoding = codec_encoding(DMI_DTYPE_BF16, (enum codec_rung)rung);
        used[rung] = codec_encode(codec, encoding, 2, raw, sizeof raw, out, planes);
        static const uint8_t last[] = { DMI_CODEC_ZSTD, DMI_CODEC_PACKED, DMI_CODEC_RAW };
        ck_assert_uint_eq(planes[codec_planes(encoding, 2) - 1].codec, last[rung]);
    }
    ck_assert_uint_lt(used[CODEC_SMALLEST], used[CODEC_PACKED]);
    ck_assert_uint_lt(used[CODEC_PACKED], used[CODEC_STORED]);
    ck_assert_uint_eq(used[CODEC_STORED], sizeof raw);
    codec_free(codec);
}
END_TEST

START_TEST(planes_are_the_same_by_either_instructions)
{
    static const uint32_t widths[] = { 1, 2, 4, 8 };
    static uint8_t in[8 * MOST + 8], fast[8 * MOST], portable[8 * MOST], back[8 * MOST];
    uint64_t state = (uint64_t)_i;
    uint32_t width = widths[_i % 4];
    bool rotate = _i / 4 % 2;
    size_t n = next(&state) % (_i % 3 ? 200 : MOST), off = next(&state) % 8;
    for (size_t i = 0; i < sizeof in; i++)
        in[i] = (uint8_t)next(&state);
    planes_split(in + off, fast, n, width, rotate);
    planes_split_portable(in + off, portable, n, width, rotate);
    ck_assert_mem_eq(fast, portable, n * width);
    planes_join(fast, back, n, width, rotate);
    ck_assert_mem_eq(back, in + off, n * width);
    memset(back, 0, sizeof back);
    planes_join_portable(fast, back, n, width, rotate);
    ck_assert_mem_eq(back, in + off, n * width);
}
END_TEST

START_TEST(hashes_are_the_same_by_either_instructions)
{
    static uint8_t in[4 * MOST + 64];
    uint64_t state = (uint64_t)_i;
    size_t n = next(&state) % (_i % 3 ? 1200 : 4 * MOST), off = next(&state) % 64;
    for (size_t i = 0; i < sizeof in; i++)
        in[i] = (uint8_t)next(&state);
    ck_assert_uint_eq(hash_bytes(in + off, n), hash_bytes_portable(in + off, n));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("packing");
    TCase *tcase = tcase_create("packing");
    tcase_add_test(tcase, a_packing_is_the_one_of_the_document);
    tcase_add_loop_test(tcase, every_size_comes_back_by_either_instructions, 0, 300);
    tcase_add_test(tcase, a_wrong_number_of_escapes_is_refused);
    tcase_add_test(tcase, what_does_not_pay_is_stored_as_it_is);
    tcase_add_test(tcase, each_rung_writes_more_than_the_one_before);
    tcase_add_loop_test(tcase, planes_are_the_same_by_either_instructions, 0, 96);
    tcase_add_loop_test(tcase, hashes_are_the_same_by_either_instructions, 0, 100);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
