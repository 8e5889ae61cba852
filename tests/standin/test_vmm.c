/* SPDX-License-Identifier: Apache-2.0 */
/* Reserved addresses, pieces of memory, access to them. */
#include "test_standin.h"

#include <stdbool.h>
#include <sys/wait.h>
#include <unistd.h>

#define PIECE ((size_t)2 << 20)

static CUmemAllocationProp prop = { .type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                    .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE } };

static CUdeviceptr reserve(size_t n)
{
    CUdeviceptr p;

    ok(cuMemAddressReserve(&p, n * PIECE, 0, 0, 0));
    return p;
}

/* A piece whose handle is given up at once, as allocators do. */
static void map(CUdeviceptr p, size_t n)
{
    CUmemGenericAllocationHandle handle;

    ok(cuMemCreate(&handle, n * PIECE, &prop, 0));
    ok(cuMemMap(p, n * PIECE, 0, handle, 0));
    ok(cuMemRelease(handle));
}

static CUresult allow(CUdeviceptr p, size_t n, CUmemAccess_flags flags)
{
    CUmemAccessDesc desc = { .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE }, .flags = flags };

    return cuMemSetAccess(p, n * PIECE, &desc, 1);
}

START_TEST(a_range_is_the_piece_and_not_the_reservation)
{
    CUdeviceptr p = reserve(16), base, seen;
    size_t size, before = test_free_bytes();
    unsigned mapped;

    fails(cuMemGetAddressRange_v2(&base, &size, p), CUDA_ERROR_NOT_FOUND);
    map(p, 1);
    map(p + PIECE, 10);
    ok(allow(p, 11, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
    ck_assert_uint_eq(test_free_bytes(), before - 11 * PIECE);
    ok(cuMemGetAddressRange_v2(&base, &size, p + 100));
    ck_assert_uint_eq(base, p);
    ck_assert_uint_eq(size, PIECE);
    ok(cuMemGetAddressRange_v2(&base, &size, p + 3 * PIECE));
    ck_assert_uint_eq(base, p + PIECE);
    ck_assert_uint_eq(size, 10 * PIECE);
    fails(cuMemGetAddressRange_v2(&base, &size, p + 11 * PIECE), CUDA_ERROR_NOT_FOUND);
    ok(cuPointerGetAttribute(&seen, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, p + 3 * PIECE));
    ck_assert_uint_eq(seen, p);
    ok(cuPointerGetAttribute(&size, CU_POINTER_ATTRIBUTE_MAPPING_SIZE, p + 3 * PIECE));
    ck_assert_uint_eq(size, 10 * PIECE);
    ok(cuPointerGetAttribute(&mapped, CU_POINTER_ATTRIBUTE_MAPPED, p + 3 * PIECE));
    ck_assert_uint_eq(mapped, 1);
    ok(cuPointerGetAttribute(&mapped, CU_POINTER_ATTRIBUTE_MAPPED, p + 12 * PIECE));
    ck_assert_uint_eq(mapped, 0);
}
END_TEST

START_TEST(kernels_and_copies_cross_pieces)
{
    CUdeviceptr p = reserve(2), q = test_zeros(8);
    uint32_t out[2];

    map(p, 1);
    map(p + PIECE, 1);
    ok(allow(p, 2, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
    ok(cuMemsetD32_v2(p + PIECE - 4, 7, 2));
    ok(test_launch_add(p + PIECE - 4, 2, 3, NULL));
    ok(cuMemcpyDtoDAsync_v2(q, p + PIECE - 4, 8, NULL));
    ok(cuMemcpyDtoH_v2(out, q, 8));
    ck_assert_uint_eq(out[0], 10);
    ck_assert_uint_eq(out[1], 10);
    fails(cuMemcpyDtoH_v2(out, p + 2 * PIECE - 4, 8), CUDA_ERROR_INVALID_VALUE);
}
END_TEST

static void poke_faults(CUdeviceptr p)
{
    ok(test_launch_poke(p, 1, NULL));
    fails(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
}

START_TEST(reserved_addresses_fault)
{
    poke_faults(reserve(1));
}
END_TEST

START_TEST(mapped_memory_faults_until_access_is_given)
{
    CUdeviceptr p = reserve(1);

    map(p, 1);
    poke_faults(p);
}
END_TEST

START_TEST(memory_for_reading_faults_when_written)
{
    CUdeviceptr p = reserve(1);
    unsigned long long flags;

    map(p, 1);
    ok(allow(p, 1, CU_MEM_ACCESS_FLAGS_PROT_READ));
    ok(cuMemGetAccess(&flags, &prop.location, p));
    ck_assert_uint_eq(flags, CU_MEM_ACCESS_FLAGS_PROT_READ);
    ck_assert_uint_eq(test_read(p), 0xffffffff);
    poke_faults(p);
}
END_TEST

START_TEST(unmapped_memory_faults_and_the_addresses_serve_again)
{
    CUdeviceptr p = reserve(2);
    size_t before = test_free_bytes();

    map(p, 1);
    map(p + PIECE, 1);
    ok(allow(p, 2, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
    ok(cuMemsetD32_v2(p, 7, 1));
    ok(cuCtxSynchronize());
    ok(cuMemUnmap(p, 2 * PIECE));
    ck_assert_uint_eq(test_free_bytes(), before);
    map(p, 2);
    ok(allow(p, 2, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
    ck_assert_uint_eq(test_read(p), 0xffffffff); /* memory of its own */
    ok(cuMemUnmap(p, 2 * PIECE));
    poke_faults(p);
}
END_TEST

START_TEST(what_does_not_fit_is_refused)
{
    CUdeviceptr p = reserve(4), q;
    CUmemGenericAllocationHandle handle, again;
    CUmemAllocationProp seen;
    size_t granularity;

    ok(cuMemGetAllocationGranularity(&granularity, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    ck_assert_uint_eq(granularity, PIECE);
    fails(cuMemCreate(&handle, PIECE + 4096, &prop, 0), CUDA_ERROR_INVALID_VALUE);
    fails(cuMemAddressReserve(&q, 100, 0, 0, 0), CUDA_ERROR_INVALID_VALUE);
    fails(cuMemAddressReserve(&q, PIECE, 3, 0, 0), CUDA_ERROR_INVALID_VALUE);
    ok(cuMemAddressReserve(&q, PIECE, 0, p, 0)); /* the hint is taken */
    ck_assert_uint_ne(q, p);
    ok(cuMemCreate(&handle, 2 * PIECE, &prop, 0));
    fails(cuMemMap(p + 3 * PIECE, 2 * PIECE, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
    fails(cuMemMap(p, 4 * PIECE, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
    fails(cuMemMap(p + 4096, PIECE, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
    ok(cuMemMap(p, 2 * PIECE, 0, handle, 0));
    fails(cuMemMap(p + PIECE, 2 * PIECE, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
    ok(cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)(p + PIECE)));
    ck_assert_uint_eq(again, handle);
    ok(cuMemGetAllocationPropertiesFromHandle(&seen, handle));
    ck_assert_int_eq(seen.location.type, CU_MEM_LOCATION_TYPE_DEVICE);
    fails(allow(p, 1, CU_MEM_ACCESS_FLAGS_PROT_READ), CUDA_ERROR_INVALID_VALUE);
    fails(allow(p, 3, CU_MEM_ACCESS_FLAGS_PROT_READ), CUDA_ERROR_INVALID_VALUE);
    fails(cuMemUnmap(p, PIECE), CUDA_ERROR_INVALID_VALUE);
    fails(cuMemAddressFree(p, 4 * PIECE), CUDA_ERROR_INVALID_VALUE);
    fails(cuMemFree_v2(p), CUDA_ERROR_INVALID_VALUE);
    ok(cuMemUnmap(p, 2 * PIECE));
    ok(cuMemRelease(handle));
    ok(cuMemRelease(again));
    fails(cuMemAddressFree(p, PIECE), CUDA_ERROR_INVALID_VALUE);
    ok(cuMemAddressFree(p, 4 * PIECE));
    ok(cuMemAddressReserve(&q, PIECE, 0, p, 0));
    ck_assert_uint_eq(q, p);
}
END_TEST

START_TEST(pieces_are_taken_from_the_devices_memory)
{
    CUmemGenericAllocationHandle handle, more;

    setenv("DMI_STANDIN_MEMORY", "8M", 1);
    test_setup();
    ok(cuMemCreate(&handle, 3 * PIECE, &prop, 0));
    fails(cuMemCreate(&more, 2 * PIECE, &prop, 0), CUDA_ERROR_OUT_OF_MEMORY);
    ok(cuMemRelease(handle));
    ok(cuMemCreate(&more, 2 * PIECE, &prop, 0));
}
END_TEST

START_TEST(one_piece_can_be_seen_at_two_places)
{
    CUmemGenericAllocationHandle handle, imported;
    CUmemAllocationProp shared = prop;
    CUdeviceptr p = reserve(3);
    int fd;

    ok(cuMemCreate(&handle, PIECE, &prop, 0));
    fails(cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
          CUDA_ERROR_INVALID_VALUE); /* not asked for when it was created */
    ok(cuMemRelease(handle));
    shared.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    ok(cuMemCreate(&handle, PIECE, &shared, 0));
    ok(cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    ok(cuMemImportFromShareableHandle(&imported, (void *)(intptr_t)fd,
                                      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    close(fd);
    fails(cuMemImportFromShareableHandle(&imported, (void *)(intptr_t)STDERR_FILENO,
                                         CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
          CUDA_ERROR_INVALID_VALUE);
    ok(cuMemMap(p, PIECE, 0, handle, 0));
    ok(cuMemMap(p + PIECE, PIECE, 0, imported, 0));
    ok(allow(p, 2, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
    ok(test_launch_poke(p, 42, NULL));
    ck_assert_uint_eq(test_read(p + PIECE), 42);
}
END_TEST

/* As on a GPU: a host thread that touches it dies. */
START_TEST(the_host_cannot_touch_mapped_memory)
{
    CUdeviceptr p = reserve(1);
    int status;
    pid_t child;

    map(p, 1);
    ok(allow(p, 1, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
    child = fork();
    if (child == 0) {
        *(volatile int *)(uintptr_t)p = 1;
        _exit(0);
    }
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("vmm");
    TCase *vmm = tcase_create("vmm"), *small = tcase_create("small device");

    tcase_add_checked_fixture(vmm, test_setup_module, NULL);
    tcase_add_test(vmm, a_range_is_the_piece_and_not_the_reservation);
    tcase_add_test(vmm, kernels_and_copies_cross_pieces);
    tcase_add_test(vmm, reserved_addresses_fault);
    tcase_add_test(vmm, mapped_memory_faults_until_access_is_given);
    tcase_add_test(vmm, memory_for_reading_faults_when_written);
    tcase_add_test(vmm, unmapped_memory_faults_and_the_addresses_serve_again);
    tcase_add_test(vmm, what_does_not_fit_is_refused);
    tcase_add_test(vmm, one_piece_can_be_seen_at_two_places);
    tcase_add_test(vmm, the_host_cannot_touch_mapped_memory);
    suite_add_tcase(suite, vmm);
    tcase_add_test(small, pieces_are_taken_from_the_devices_memory);
    suite_add_tcase(suite, small);
    return test_run(suite);
}
