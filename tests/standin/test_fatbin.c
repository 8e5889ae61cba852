/* SPDX-License-Identifier: Apache-2.0 */
/* Finding PTX in images: which entry is chosen, and that no header leads a read astray. */
#include "test_standin.h"
#include "fatbin.h"
#include "version.h"

static unsigned char image[4096];
static size_t n_image;

static void put(size_t at, uint64_t value, size_t n)
{
    memcpy(image + at, &value, n);
}

static void begin(void)
{
    memset(image, 0, sizeof(image));
    put(0, 0xba55ed50u, 4);
    put(4, 1, 2);
    put(6, 16, 2);
    n_image = 16;
}

static size_t entry(unsigned kind, unsigned arch, uint64_t flags, const char *payload)
{
    size_t at = n_image, bytes = (strlen(payload) + 8) & ~(size_t)7;

    put(at, kind, 2);
    put(at + 4, 64, 4);
    put(at + 8, bytes, 8);
    put(at + 28, arch, 4);
    put(at + 40, flags, 8);
    memcpy(image + at + 64, payload, strlen(payload));
    n_image += 64 + bytes;
    put(8, n_image - 16, 8);
    return at;
}

static const char *find_up_to(const void *from, int sm, int newest, CUresult want)
{
    static char text[64];
    const char *found = NULL;
    size_t n = 0;

    fails(fatbin_find_ptx(from, sm, newest, &found, &n), want);
    if (want != CUDA_SUCCESS)
        return NULL;
    snprintf(text, sizeof(text), "%.*s", (int)n, found);
    return text;
}

static const char *find(const void *from, int sm, CUresult want)
{
    return find_up_to(from, sm, 90, want);
}

START_TEST(the_newest_ptx_that_the_device_can_run_is_chosen)
{
    begin();
    entry(1, 75, 0, "seventy-five");
    entry(2, 80, 0, "machine code");
    entry(1, 90, 0, "ninety");
    entry(1, 80, 0, "eighty");
    ck_assert_str_eq(find(image, 80, CUDA_SUCCESS), "eighty");
    ck_assert_str_eq(find(image, 100, CUDA_SUCCESS), "ninety");
    ck_assert_str_eq(find(image, 75, CUDA_SUCCESS), "seventy-five");
    find(image, 70, CUDA_ERROR_NO_BINARY_FOR_GPU);
}
END_TEST

START_TEST(machine_code_and_compressed_ptx_alone_are_no_binary)
{
    begin();
    entry(2, 80, 0, "machine code");
    entry(1, 80, 0x2000, "lz4");
    entry(1, 80, 0x8000, "zstd");
    find(image, 80, CUDA_ERROR_NO_BINARY_FOR_GPU);
    begin();
    find(image, 80, CUDA_ERROR_NO_BINARY_FOR_GPU);
    find("\177ELF\2\1\1", 80, CUDA_ERROR_NO_BINARY_FOR_GPU);
}
END_TEST

START_TEST(a_wrapper_leads_to_its_fatbin)
{
    struct {
        uint32_t magic, version;
        const void *data, *unused;
    } wrapper = { 0x466243b1u, 1, image, NULL };

    begin();
    entry(1, 75, 0, "text");
    ck_assert_str_eq(find(&wrapper, 80, CUDA_SUCCESS), "text");
    wrapper.data = NULL;
    find(&wrapper, 80, CUDA_ERROR_INVALID_IMAGE);
    wrapper.data = "no fatbin at all";
    find(&wrapper, 80, CUDA_ERROR_INVALID_IMAGE);
}
END_TEST

START_TEST(text_is_what_it_is)
{
    ck_assert_str_eq(find(".version 6.4\n", 80, CUDA_SUCCESS), ".version 6.4\n");
    find("", 80, CUDA_ERROR_INVALID_IMAGE);
    find("abc", 80, CUDA_ERROR_INVALID_IMAGE);
}
END_TEST

START_TEST(ptx_newer_than_the_driver_is_refused)
{
    static const struct {
        const char *text;
        int version;
    } texts[] = {
        { ".version 7.8\n", 78 },
        { "\n// .version 1.0\n/* .version 1.0 */ .version\t8.2 .target sm_75", 82 },
        { "/* never closed .version 9.0", 0 },
        { ".version 9", 0 },
        { ".version", 0 },
        { ".target sm_75\n.version 9.0", 0 },
        { ".version 99999999999.1", 0 },
    };

    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
        ck_assert_int_eq(ptx_version(texts[i].text, strlen(texts[i].text)), texts[i].version);
    find_up_to(".version 8.3", 80, 82, CUDA_ERROR_UNSUPPORTED_PTX_VERSION);
    find_up_to(".version 8.2", 80, 82, CUDA_SUCCESS);
    find_up_to(".version 10.0", 80, 82, CUDA_ERROR_UNSUPPORTED_PTX_VERSION);
    begin();
    entry(1, 80, 0, ".version 9.0");
    find_up_to(image, 80, 82, CUDA_ERROR_UNSUPPORTED_PTX_VERSION);
    find_up_to(image, 75, 82, CUDA_ERROR_NO_BINARY_FOR_GPU);
    entry(1, 75, 0, ".version 7.0");
    ck_assert_str_eq(find_up_to(image, 80, 82, CUDA_SUCCESS), ".version 7.0");
    ck_assert_str_eq(find_up_to(image, 80, 90, CUDA_SUCCESS), ".version 9.0");
}
END_TEST

/* Headers that lie, one field at a time; the payloads are never terminated within their bounds. */
START_TEST(lying_headers_are_refused)
{
    static const struct {
        size_t at, n;
        uint64_t value;
    } lies[] = {
        { 6, 2, 0 },
        { 6, 2, 15 },
        { 8, 8, UINT64_MAX },
        { 8, 8, 1ull << 40 },
        { 16 + 4, 4, 0 },
        { 16 + 4, 4, 47 },
        { 16 + 4, 4, 1u << 30 },
        { 16 + 8, 8, 4000 },
        { 16 + 8, 8, UINT64_MAX },
    };

    for (size_t i = 0; i < sizeof(lies) / sizeof(lies[0]); i++) {
        begin();
        entry(1, 75, 0, "text");
        put(lies[i].at, lies[i].value, lies[i].n);
        find(image, 80, CUDA_ERROR_INVALID_IMAGE);
    }
    begin();
    entry(1, 75, 0, "text");
    put(8, 30, 8); /* shorter than one entry's header */
    find(image, 80, CUDA_ERROR_NO_BINARY_FOR_GPU);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("fatbin");
    TCase *tcase = tcase_create("fatbin");

    tcase_add_test(tcase, the_newest_ptx_that_the_device_can_run_is_chosen);
    tcase_add_test(tcase, machine_code_and_compressed_ptx_alone_are_no_binary);
    tcase_add_test(tcase, a_wrapper_leads_to_its_fatbin);
    tcase_add_test(tcase, text_is_what_it_is);
    tcase_add_test(tcase, ptx_newer_than_the_driver_is_refused);
    tcase_add_test(tcase, lying_headers_are_refused);
    suite_add_tcase(suite, tcase);
    return test_run(suite);
}
