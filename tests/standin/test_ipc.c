/* SPDX-License-Identifier: Apache-2.0 */
/* Memory and events of another process: each test is two, which both use the driver. */
#include "test_standin.h"

#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static int link_fd; /* to the other process */

static void say(const void *data, size_t n)
{
    ck_assert_int_eq(write(link_fd, data, n), (ssize_t)n);
}

static void hear(void *data, size_t n)
{
    ck_assert_int_eq(read(link_fd, data, n), (ssize_t)n);
}

static void say_done(void)
{
    say("", 1);
}

static void hear_done(void)
{
    char c;

    hear(&c, 1);
}

static void say_fd(int fd)
{
    char control[CMSG_SPACE(sizeof(int))] = { 0 };
    struct iovec io = { .iov_base = "", .iov_len = 1 };
    struct msghdr msg = {
        .msg_iov = &io, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control)
    };
    struct cmsghdr *c = CMSG_FIRSTHDR(&msg);

    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(c), &fd, sizeof(int));
    ck_assert_int_eq(sendmsg(link_fd, &msg, 0), 1);
}

static int hear_fd(void)
{
    char control[CMSG_SPACE(sizeof(int))], byte;
    struct iovec io = { .iov_base = &byte, .iov_len = 1 };
    struct msghdr msg = {
        .msg_iov = &io, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control)
    };
    int fd;

    ck_assert_int_eq(recvmsg(link_fd, &msg, 0), 1);
    memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&msg)), sizeof(int));
    return fd;
}

/* Both sides run in processes that have not used the driver before. */
static void run(void (*exporter)(void), void (*importer)(void))
{
    int pair[2], status;
    pid_t child;

    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair), 0);
    child = fork();
    if (child == 0) {
        link_fd = pair[1];
        test_setup_module();
        importer();
        _exit(0);
    }
    close(pair[1]);
    link_fd = pair[0];
    test_setup_module();
    exporter();
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_int_eq(status, 0);
}

/* ---- memory ---- */

static void export_memory(void)
{
    CUdeviceptr first = test_zeros(256), p = test_zeros(256), q, pooled;
    CUipcMemHandle handle, again;
    unsigned capable;

    ok(cuMemsetD32_v2(p, 11, 64));
    ok(cuCtxSynchronize());
    ok(cuIpcGetMemHandle(&handle, p));
    ok(cuPointerGetAttribute(&capable, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, p));
    ck_assert_uint_eq(capable, 1);
    fails(cuIpcGetMemHandle(&again, p + 4), CUDA_ERROR_INVALID_VALUE);
    fails(cuIpcOpenMemHandle_v2(&q, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS),
          CUDA_ERROR_INVALID_CONTEXT);
    ok(cuMemAllocAsync(&pooled, 256, NULL));
    fails(cuIpcGetMemHandle(&again, pooled), CUDA_ERROR_INVALID_VALUE);
    ok(cuPointerGetAttribute(&capable, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, pooled));
    ck_assert_uint_eq(capable, 0);
    say(&handle, sizeof(handle));
    hear_done();
    ck_assert_uint_eq(test_read(p), 16);
    ck_assert_uint_eq(test_read(first), 0);
    say_done();
    hear_done();
    ok(cuMemFree_v2(p));
    ok(cuMemAlloc_v2(&q, 256));
    ok(cuIpcGetMemHandle(&again, q));
    ck_assert_int_ne(memcmp(&again, &handle, sizeof(handle)), 0); /* another allocation */
}

static void import_memory(void)
{
    CUipcMemHandle handle, wrong;
    CUdeviceptr mine = test_zeros(256), p, q, base;
    size_t size;
    unsigned capable;

    hear(&handle, sizeof(handle));
    memset(&wrong, 1, sizeof(wrong));
    fails(cuIpcOpenMemHandle_v2(&p, handle, 0), CUDA_ERROR_INVALID_VALUE);
    fails(cuIpcOpenMemHandle_v2(&p, wrong, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS),
          CUDA_ERROR_INVALID_HANDLE);
    ok(cuIpcOpenMemHandle_v2(&p, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    ok(cuIpcOpenMemHandle_v2(&q, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    ck_assert_uint_eq(q, p);
    ck_assert_uint_ne(p, mine);
    ok(cuMemGetAddressRange_v2(&base, &size, p + 8));
    ck_assert_uint_eq(base, p);
    ck_assert_uint_eq(size, 256);
    ok(cuPointerGetAttribute(&capable, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, p));
    ck_assert_uint_eq(capable, 0); /* it cannot be passed on */
    fails(cuMemFree_v2(p), CUDA_ERROR_INVALID_VALUE);
    ok(test_launch_add(p, 64, 5, NULL));
    ok(cuCtxSynchronize());
    say_done();
    hear_done();
    ok(cuIpcCloseMemHandle(p));
    ck_assert_uint_eq(test_read(p), 16);
    ok(cuIpcCloseMemHandle(p));
    fails(cuIpcCloseMemHandle(p), CUDA_ERROR_INVALID_VALUE);
    say_done();
    ok(test_launch_poke(p, 1, NULL));
    fails(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
}

START_TEST(memory_is_opened_in_another_process)
{
    run(export_memory, import_memory);
}
END_TEST

/* ---- events ---- */

static void export_event(void)
{
    CUipcEventHandle handle;
    CUdeviceptr p = test_zeros(4);
    CUevent event, local;
    CUstream stream;

    ok(cuEventCreate(&local, CU_EVENT_DISABLE_TIMING));
    fails(cuIpcGetEventHandle(&handle, local), CUDA_ERROR_INVALID_HANDLE);
    ok(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS));
    ok(cuEventQuery(event));
    ok(cuIpcGetEventHandle(&handle, event));
    ok(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    ok(test_launch_poke(p, 0, stream)); /* loaded before it would have to wait */
    ok(test_launch_slow(p, 20000000, stream));
    ok(cuEventRecord(event, stream));
    say(&handle, sizeof(handle));
    hear_done(); /* the other has waited for it */
    ok(cuEventQuery(event));
    ck_assert_uint_eq(test_read(p), 20000000);
    say_done();
    hear_done(); /* the other has recorded it anew, after work that waits for us */
    fails(cuEventQuery(event), CUDA_ERROR_NOT_READY);
    ok(cuStreamWaitEvent(stream, event, 0));
    ok(test_launch_poke(p, 9, stream));
    fails(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
    say_done();
    ok(cuStreamSynchronize(stream));
    ok(cuEventSynchronize(event));
    ck_assert_uint_eq(test_read(p), 9);
}

static void wait_for_other(void *unused)
{
    (void)unused;
    hear_done();
}

static void import_event(void)
{
    CUipcEventHandle handle;
    CUstream stream;
    CUevent event;

    hear(&handle, sizeof(handle));
    ok(cuIpcOpenEventHandle(&event, handle));
    ok(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    ok(cuStreamWaitEvent(stream, event, 0));
    ok(cuStreamSynchronize(stream));
    ok(cuEventQuery(event));
    say_done();
    hear_done();
    ok(cuLaunchHostFunc(stream, wait_for_other, NULL));
    ok(cuEventRecord(event, stream));
    say_done();
    ok(cuEventSynchronize(event));
    ok(cuEventDestroy_v2(event));
}

START_TEST(events_order_work_of_two_processes)
{
    run(export_event, import_event);
}
END_TEST

/* ---- what is passed as a file ---- */

static void export_pool(void)
{
    CUmemPoolProps props = { .allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                             .handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                             .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE } };
    CUmemPoolPtrExportData data;
    CUmemoryPool pool, other;
    CUdeviceptr first, p;
    int fd;

    ok(cuMemPoolCreate(&pool, &props));
    ok(cuMemPoolExportToShareableHandle(&fd, pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    say_fd(fd);
    ok(cuMemPoolCreate(&other, &props));
    ok(cuMemAllocFromPoolAsync(&p, 256, other, NULL));
    ok(cuMemPoolExportPointer(&data, p));
    say(&data, sizeof(data));
    ok(cuMemAllocFromPoolAsync(&first, 256, pool, NULL));
    ok(cuMemAllocFromPoolAsync(&p, 256, pool, NULL));
    ok(cuMemsetD32_v2(first, 0, 64));
    ok(cuMemsetD32_v2(p, 3, 64));
    ok(cuCtxSynchronize());
    ok(cuMemPoolExportPointer(&data, p));
    say(&data, sizeof(data));
    hear_done();
    ck_assert_uint_eq(test_read(p), 8);
    ck_assert_uint_eq(test_read(first), 0);
}

static void import_pool(void)
{
    CUmemPoolPtrExportData data;
    CUmemoryPool pool, seen;
    CUdeviceptr p;

    ok(cuMemPoolImportFromShareableHandle(&pool, (void *)(intptr_t)hear_fd(),
                                          CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    fails(cuMemAllocFromPoolAsync(&p, 256, pool, NULL), CUDA_ERROR_INVALID_VALUE);
    hear(&data, sizeof(data));
    fails(cuMemPoolImportPointer(&p, pool, &data), CUDA_ERROR_INVALID_VALUE); /* of another pool */
    hear(&data, sizeof(data));
    ok(cuMemPoolImportPointer(&p, pool, &data));
    ok(cuPointerGetAttribute(&seen, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, p));
    ck_assert_ptr_eq(seen, pool);
    ok(test_launch_add(p, 64, 5, NULL));
    ok(cuMemFreeAsync(p, NULL));
    ok(cuCtxSynchronize());
    say_done();
    fails(cuMemFreeAsync(p, NULL), CUDA_ERROR_INVALID_VALUE);
}

START_TEST(pools_and_their_pointers_are_imported)
{
    run(export_pool, import_pool);
}
END_TEST

static CUdeviceptr map(CUmemGenericAllocationHandle handle)
{
    CUmemAccessDesc desc = { .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE },
                             .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
    CUdeviceptr p;

    ok(cuMemAddressReserve(&p, 2 << 20, 0, 0, 0));
    ok(cuMemMap(p, 2 << 20, 0, handle, 0));
    ok(cuMemSetAccess(p, 2 << 20, &desc, 1));
    return p;
}

static void export_piece(void)
{
    CUmemAllocationProp prop = { .type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                 .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE } };
    CUmemGenericAllocationHandle handle;
    CUdeviceptr p;
    int fd;

    ok(cuMemCreate(&handle, 2 << 20, &prop, 0));
    ok(cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    p = map(handle);
    ok(cuMemsetD32_v2(p, 20, 64));
    ok(cuCtxSynchronize());
    say_fd(fd);
    hear_done();
    ck_assert_uint_eq(test_read(p), 22);
}

static void import_piece(void)
{
    CUmemGenericAllocationHandle handle;

    ok(cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)hear_fd(),
                                      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    ok(test_launch_add(map(handle), 64, 2, NULL));
    ok(cuCtxSynchronize());
    say_done();
}

START_TEST(pieces_are_imported)
{
    run(export_piece, import_piece);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("ipc");
    TCase *ipc = tcase_create("ipc");

    tcase_add_test(ipc, memory_is_opened_in_another_process);
    tcase_add_test(ipc, events_order_work_of_two_processes);
    tcase_add_test(ipc, pools_and_their_pointers_are_imported);
    tcase_add_test(ipc, pieces_are_imported);
    suite_add_tcase(suite, ipc);
    return test_run(suite);
}
