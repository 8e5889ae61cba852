/* SPDX-License-Identifier: Apache-2.0 */
/* Arrays: creation, descriptors, copies, levels; texture and surface objects made of them. */
#include "test_standin.h"

static CUarray make(size_t width, size_t height, size_t depth, CUarray_format format, unsigned n,
                    unsigned flags)
{
    CUDA_ARRAY3D_DESCRIPTOR desc = { width, height, depth, format, n, flags };
    CUarray array;

    ok(cuArray3DCreate_v2(&array, &desc));
    return array;
}

START_TEST(an_array_says_what_it_is)
{
    CUDA_ARRAY_DESCRIPTOR plain = { 30, 7, CU_AD_FORMAT_HALF, 2 }, got;
    CUDA_ARRAY3D_DESCRIPTOR got3;
    size_t before, during, after, total;
    CUarray array;

    ok(cuMemGetInfo_v2(&before, &total));
    ok(cuArrayCreate_v2(&array, &plain));
    ok(cuMemGetInfo_v2(&during, &total));
    ck_assert_uint_lt(during, before);
    ok(cuArrayGetDescriptor_v2(&got, array));
    ck_assert_mem_eq(&got, &plain, sizeof(got));
    ok(cuArray3DGetDescriptor_v2(&got3, array));
    ck_assert(got3.Width == 30 && got3.Height == 7 && !got3.Depth && !got3.Flags);
    ok(cuArrayDestroy(array));
    ok(cuMemGetInfo_v2(&after, &total));
    ck_assert_uint_eq(after, before);
}
END_TEST

/* Extents by cuArray3DCreate() in cuda.h; what is refused */
static const struct {
    CUDA_ARRAY3D_DESCRIPTOR desc;
    CUresult want;
} extents[] = {
    { { 16, 0, 0, CU_AD_FORMAT_FLOAT, 1, 0 }, CUDA_SUCCESS },
    { { 16, 8, 4, CU_AD_FORMAT_UNSIGNED_INT8, 4, 0 }, CUDA_SUCCESS },
    { { 16, 0, 3, CU_AD_FORMAT_FLOAT, 1, CUDA_ARRAY3D_LAYERED }, CUDA_SUCCESS },
    { { 16, 8, 3, CU_AD_FORMAT_FLOAT, 1, CUDA_ARRAY3D_LAYERED }, CUDA_SUCCESS },
    { { 8, 8, 6, CU_AD_FORMAT_FLOAT, 1, CUDA_ARRAY3D_CUBEMAP }, CUDA_SUCCESS },
    { { 8, 8, 12, CU_AD_FORMAT_FLOAT, 1, CUDA_ARRAY3D_CUBEMAP | CUDA_ARRAY3D_LAYERED },
      CUDA_SUCCESS },
    { { 0, 8, 0, CU_AD_FORMAT_FLOAT, 1, 0 }, CUDA_ERROR_INVALID_VALUE },
    { { 16, 0, 3, CU_AD_FORMAT_FLOAT, 1, 0 }, CUDA_ERROR_INVALID_VALUE },
    { { 16, 8, 0, CU_AD_FORMAT_FLOAT, 1, CUDA_ARRAY3D_LAYERED }, CUDA_ERROR_INVALID_VALUE },
    { { 16, 8, 6, CU_AD_FORMAT_FLOAT, 1, CUDA_ARRAY3D_CUBEMAP }, CUDA_ERROR_INVALID_VALUE },
    { { 16, 8, 0, CU_AD_FORMAT_FLOAT, 3, 0 }, CUDA_ERROR_INVALID_VALUE },
    { { 1 << 20, 0, 0, CU_AD_FORMAT_FLOAT, 1, 0 }, CUDA_ERROR_INVALID_VALUE },
    { { 16, 8, 0, CU_AD_FORMAT_NV12, 1, 0 }, CUDA_ERROR_NOT_SUPPORTED },
    { { 16, 8, 0, CU_AD_FORMAT_FLOAT, 1, CUDA_ARRAY3D_SPARSE }, CUDA_ERROR_NOT_SUPPORTED },
};

START_TEST(extents_say_which_kind)
{
    CUarray array;

    fails(cuArray3DCreate_v2(&array, &extents[_i].desc), extents[_i].want);
    if (extents[_i].want == CUDA_SUCCESS)
        ok(cuArrayDestroy(array));
}
END_TEST

START_TEST(rows_are_copied_in_and_out)
{
    CUarray a = make(10, 6, 0, CU_AD_FORMAT_UNSIGNED_INT32, 1, 0);
    CUarray b = make(10, 6, 0, CU_AD_FORMAT_UNSIGNED_INT32, 1, 0);
    uint32_t in[6][10], out[4][5];
    CUdeviceptr p = test_zeros(4096);

    for (unsigned i = 0; i < 60; i++)
        in[i / 10][i % 10] = i;
    ok(cuMemcpy2D_v2(&(CUDA_MEMCPY2D){ .srcMemoryType = CU_MEMORYTYPE_HOST,
                                       .srcHost = in,
                                       .srcPitch = 40,
                                       .dstMemoryType = CU_MEMORYTYPE_ARRAY,
                                       .dstArray = a,
                                       .WidthInBytes = 40,
                                       .Height = 6 }));
    ok(cuMemcpy2D_v2(&(CUDA_MEMCPY2D){ .srcMemoryType = CU_MEMORYTYPE_ARRAY,
                                       .srcArray = a,
                                       .dstMemoryType = CU_MEMORYTYPE_ARRAY,
                                       .dstArray = b,
                                       .WidthInBytes = 40,
                                       .Height = 6 }));
    /* a window of it, through device memory */
    ok(cuMemcpy2DAsync_v2(&(CUDA_MEMCPY2D){ .srcMemoryType = CU_MEMORYTYPE_ARRAY,
                                            .srcArray = b,
                                            .srcXInBytes = 12,
                                            .srcY = 2,
                                            .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                                            .dstDevice = p,
                                            .dstPitch = 20,
                                            .WidthInBytes = 20,
                                            .Height = 4 },
                          NULL));
    ok(cuMemcpyDtoH_v2(out, p, sizeof(out)));
    for (unsigned y = 0; y < 4; y++)
        for (unsigned x = 0; x < 5; x++)
            ck_assert_uint_eq(out[y][x], in[y + 2][x + 3]);
    ok(cuMemcpyAtoH_v2(out, b, 8, 12));
    ck_assert_uint_eq(out[0][2], 4);
    ok(cuMemcpyHtoA_v2(a, 0, in[5], 40));
    ok(cuMemcpyAtoA_v2(b, 4, a, 8, 16));
    ok(cuMemcpyAtoD_v2(p, b, 0, 40));
    ck_assert_uint_eq(test_read(p + 4), 52);
    ok(cuMemcpyDtoA_v2(a, 36, p, 4));
    ok(cuMemcpyAtoH_v2(out, a, 36, 4));
    ck_assert_uint_eq(out[0][0], 0);
}
END_TEST

START_TEST(slices_are_copied_too)
{
    CUarray a = make(5, 4, 3, CU_AD_FORMAT_UNSIGNED_INT8, 4, 0);
    uint32_t in[3][4][5], out[2][3][2];

    for (unsigned i = 0; i < 60; i++)
        in[i / 20][i / 5 % 4][i % 5] = 0x01010101u * i;
    ok(cuMemcpy3D_v2(&(CUDA_MEMCPY3D){ .srcMemoryType = CU_MEMORYTYPE_HOST,
                                       .srcHost = in,
                                       .srcPitch = 20,
                                       .srcHeight = 4,
                                       .dstMemoryType = CU_MEMORYTYPE_ARRAY,
                                       .dstArray = a,
                                       .WidthInBytes = 20,
                                       .Height = 4,
                                       .Depth = 3 }));
    ok(cuMemcpy3D_v2(&(CUDA_MEMCPY3D){ .srcMemoryType = CU_MEMORYTYPE_ARRAY,
                                       .srcArray = a,
                                       .srcXInBytes = 8,
                                       .srcY = 1,
                                       .srcZ = 1,
                                       .dstMemoryType = CU_MEMORYTYPE_HOST,
                                       .dstHost = out,
                                       .dstPitch = 8,
                                       .dstHeight = 3,
                                       .WidthInBytes = 8,
                                       .Height = 3,
                                       .Depth = 2 }));
    for (unsigned z = 0; z < 2; z++)
        for (unsigned y = 0; y < 3; y++)
            for (unsigned x = 0; x < 2; x++)
                ck_assert_uint_eq(out[z][y][x], in[z + 1][y + 1][x + 2]);
}
END_TEST

START_TEST(copies_beyond_an_array_are_refused)
{
    CUarray a = make(10, 6, 0, CU_AD_FORMAT_UNSIGNED_INT32, 1, 0);
    uint32_t bytes[64] = { 0 };
    CUDA_MEMCPY2D copy = { .srcMemoryType = CU_MEMORYTYPE_HOST,
                           .srcHost = bytes,
                           .srcPitch = 40,
                           .dstMemoryType = CU_MEMORYTYPE_ARRAY,
                           .dstArray = a,
                           .WidthInBytes = 40,
                           .Height = 6 };

    copy.dstXInBytes = 4;
    fails(cuMemcpy2D_v2(&copy), CUDA_ERROR_INVALID_VALUE);
    copy.dstXInBytes = 2;
    copy.WidthInBytes = 8; /* half an element */
    fails(cuMemcpy2D_v2(&copy), CUDA_ERROR_INVALID_VALUE);
    copy.dstXInBytes = 0;
    copy.dstY = 1;
    fails(cuMemcpy2D_v2(&copy), CUDA_ERROR_INVALID_VALUE);
    fails(cuMemcpyHtoA_v2(a, 4, bytes, 40), CUDA_ERROR_INVALID_VALUE);
    ok(cuArrayDestroy(a));
}
END_TEST

START_TEST(a_graph_copies_into_an_array)
{
    CUarray a = make(8, 0, 0, CU_AD_FORMAT_UNSIGNED_INT32, 1, 0);
    CUdeviceptr p = test_zeros(32);
    uint32_t out[8];
    CUgraph graph;
    CUgraphExec exec;
    CUgraphNode node;
    CUDA_MEMCPY3D copy = { .srcMemoryType = CU_MEMORYTYPE_DEVICE,
                           .srcDevice = p,
                           .dstMemoryType = CU_MEMORYTYPE_ARRAY,
                           .dstArray = a,
                           .WidthInBytes = 32,
                           .Height = 1,
                           .Depth = 1 };

    ok(cuMemsetD32_v2(p, 77, 8));
    ok(cuGraphCreate(&graph, 0));
    ok(cuGraphAddMemcpyNode(&node, graph, NULL, 0, &copy, test_ctx));
    ok(cuGraphInstantiateWithFlags(&exec, graph, 0));
    ok(cuGraphLaunch(exec, NULL));
    ok(cuStreamSynchronize(NULL));
    ok(cuMemcpyAtoH_v2(out, a, 0, 32));
    ck_assert_uint_eq(out[7], 77);
}
END_TEST

START_TEST(levels_halve)
{
    CUDA_ARRAY3D_DESCRIPTOR desc = { 64, 20, 0, CU_AD_FORMAT_FLOAT, 2, 0 }, got;
    static const size_t want[][2] = { { 64, 20 }, { 32, 10 }, { 16, 5 }, { 8, 2 },
                                      { 4, 1 },   { 2, 1 },   { 1, 1 } };
    CUmipmappedArray mipmap;
    CUarray level, again;

    ok(cuMipmappedArrayCreate(&mipmap, &desc, 99)); /* no more than there can be */
    for (unsigned i = 0; i < 7; i++) {
        ok(cuMipmappedArrayGetLevel(&level, mipmap, i));
        ok(cuMipmappedArrayGetLevel(&again, mipmap, i));
        ck_assert_ptr_eq(level, again);
        ok(cuArray3DGetDescriptor_v2(&got, level));
        ck_assert(got.Width == want[i][0] && got.Height == want[i][1] && got.NumChannels == 2);
        fails(cuArrayDestroy(level), CUDA_ERROR_INVALID_HANDLE);
    }
    fails(cuMipmappedArrayGetLevel(&level, mipmap, 7), CUDA_ERROR_INVALID_VALUE);
    ok(cuMipmappedArrayDestroy(mipmap));
    fails(cuMipmappedArrayCreate(&mipmap, &desc, 0), CUDA_ERROR_INVALID_VALUE);
}
END_TEST

START_TEST(textures_and_surfaces_keep_their_descriptions)
{
    CUDA_RESOURCE_DESC of_array = { .resType = CU_RESOURCE_TYPE_ARRAY }, r;
    CUDA_RESOURCE_DESC linear = { .resType = CU_RESOURCE_TYPE_LINEAR };
    CUDA_RESOURCE_DESC pitched = { .resType = CU_RESOURCE_TYPE_PITCH2D };
    CUDA_TEXTURE_DESC sampling = { .addressMode = { CU_TR_ADDRESS_MODE_CLAMP },
                                   .filterMode = CU_TR_FILTER_MODE_LINEAR,
                                   .flags = CU_TRSF_NORMALIZED_COORDINATES },
                      t;
    CUdeviceptr p = test_zeros(4096);
    CUtexObject texture;
    CUsurfObject surface;

    of_array.res.array.hArray = make(8, 8, 0, CU_AD_FORMAT_FLOAT, 1, 0);
    ok(cuTexObjectCreate(&texture, &of_array, &sampling, NULL));
    ok(cuTexObjectGetResourceDesc(&r, texture));
    ck_assert_ptr_eq(r.res.array.hArray, of_array.res.array.hArray);
    ok(cuTexObjectGetTextureDesc(&t, texture));
    ck_assert_mem_eq(&t, &sampling, sizeof(t));
    ok(cuTexObjectDestroy(texture));
    fails(cuSurfObjectCreate(&surface, &of_array), CUDA_ERROR_INVALID_VALUE); /* not made for it */
    of_array.res.array.hArray = make(8, 8, 0, CU_AD_FORMAT_FLOAT, 1, CUDA_ARRAY3D_SURFACE_LDST);
    ok(cuSurfObjectCreate(&surface, &of_array));
    ok(cuSurfObjectGetResourceDesc(&r, surface));
    ok(cuSurfObjectDestroy(surface));
    linear.res.linear.devPtr = p;
    linear.res.linear.format = CU_AD_FORMAT_FLOAT;
    linear.res.linear.numChannels = 1;
    linear.res.linear.sizeInBytes = 4096;
    ok(cuTexObjectCreate(&texture, &linear, &sampling, NULL));
    linear.res.linear.devPtr = p + 4;
    fails(cuTexObjectCreate(&texture, &linear, &sampling, NULL), CUDA_ERROR_INVALID_VALUE);
    pitched.res.pitch2D.devPtr = p;
    pitched.res.pitch2D.format = CU_AD_FORMAT_UNSIGNED_INT8;
    pitched.res.pitch2D.numChannels = 4;
    pitched.res.pitch2D.width = 16;
    pitched.res.pitch2D.height = 64;
    pitched.res.pitch2D.pitchInBytes = 64;
    ok(cuTexObjectCreate(&texture, &pitched, &sampling, NULL));
    pitched.res.pitch2D.height = 65;
    fails(cuTexObjectCreate(&texture, &pitched, &sampling, NULL), CUDA_ERROR_INVALID_VALUE);
    fails(cuSurfObjectCreate(&surface, &linear), CUDA_ERROR_INVALID_VALUE);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("arrays");
    TCase *tcase = tcase_create("arrays");

    tcase_add_checked_fixture(tcase, test_setup, NULL);
    tcase_add_test(tcase, an_array_says_what_it_is);
    tcase_add_loop_test(tcase, extents_say_which_kind, 0,
                        (int)(sizeof(extents) / sizeof(extents[0])));
    tcase_add_test(tcase, rows_are_copied_in_and_out);
    tcase_add_test(tcase, slices_are_copied_too);
    tcase_add_test(tcase, copies_beyond_an_array_are_refused);
    tcase_add_test(tcase, a_graph_copies_into_an_array);
    tcase_add_test(tcase, levels_halve);
    tcase_add_test(tcase, textures_and_surfaces_keep_their_descriptions);
    suite_add_tcase(suite, tcase);
    return test_run(suite);
}
