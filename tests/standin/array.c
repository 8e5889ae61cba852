/* SPDX-License-Identifier: Apache-2.0 */
/*
 * array.c - arrays and mipmapped arrays: created, described, destroyed. copy.c copies, texture.c reads through them.
 */
#include "array.h"
#include "impl.h"

#include <string.h>

enum { ROW_ALIGN = 32, MAX_1D = 131072, MAX_2D_HEIGHT = 65536, MAX_3D = 16384, MAX_LAYERS = 2048 };
#define KNOWN_FLAGS                                                                                \
    (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_SURFACE_LDST | CUDA_ARRAY3D_CUBEMAP |                     \
     CUDA_ARRAY3D_TEXTURE_GATHER)

size_t array_format_bytes(CUarray_format format)
{
    switch (format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8: return 1;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF: return 2;
    case CU_AD_FORMAT_UNSIGNED_INT32:
    case CU_AD_FORMAT_SIGNED_INT32:
    case CU_AD_FORMAT_FLOAT: return 4;
    default: return 0;
    }
}

struct array *array_resolve(CUarray handle)
{
    return object_is(handle, OBJECT_ARRAY) ? (struct array *)handle : NULL;
}

struct mipmap *mipmap_resolve(CUmipmappedArray handle)
{
    return object_is(handle, OBJECT_MIPMAP) ? (struct mipmap *)handle : NULL;
}

/* cuArray3DCreate() in cuda.h: which of width, height and depth may be 0 says what kind of array it is. */
static CUresult check_extent(const CUDA_ARRAY3D_DESCRIPTOR *d)
{
    bool layered = d->Flags & CUDA_ARRAY3D_LAYERED, cube = d->Flags & CUDA_ARRAY3D_CUBEMAP;

    if (!d->Width || d->Width > MAX_1D || d->Height > MAX_2D_HEIGHT)
        return CUDA_ERROR_INVALID_VALUE;
    if (cube && (d->Width != d->Height || (layered ? !d->Depth || d->Depth % 6 : d->Depth != 6)))
        return CUDA_ERROR_INVALID_VALUE;
    if (layered)
        return d->Depth && d->Depth <= MAX_LAYERS ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    if (d->Depth && !cube &&
        (!d->Height || d->Width > MAX_3D || d->Height > MAX_3D || d->Depth > MAX_3D))
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

static CUresult check_descriptor(const CUDA_ARRAY3D_DESCRIPTOR *d)
{
    if (d->NumChannels != 1 && d->NumChannels != 2 && d->NumChannels != 4)
        return CUDA_ERROR_INVALID_VALUE;
    if (!array_format_bytes(d->Format) || (d->Flags & ~KNOWN_FLAGS))
        return CUDA_ERROR_NOT_SUPPORTED;
    return check_extent(d);
}

static CUresult array_new(struct context *ctx, const CUDA_ARRAY3D_DESCRIPTOR *desc,
                          struct array **out)
{
    struct array *array = object_new(OBJECT_ARRAY, sizeof(*array));
    CUresult res;

    if (!array)
        return CUDA_ERROR_OUT_OF_MEMORY;
    array->ctx = ctx;
    array->desc = *desc;
    array->element = array_format_bytes(desc->Format) * desc->NumChannels;
    array->rows = desc->Height ? desc->Height : 1;
    array->slices = desc->Depth ? desc->Depth : 1;
    array->pitch = (desc->Width * array->element + ROW_ALIGN - 1) / ROW_ALIGN * ROW_ALIGN;
    res = memory_alloc(ctx->device, ctx, array->pitch * array->rows * array->slices, ALLOC_ARRAY,
                       &array->address);
    if (res != CUDA_SUCCESS) {
        object_free(array);
        return res;
    }
    array->next = ctx->arrays;
    ctx->arrays = array;
    *out = array;
    return CUDA_SUCCESS;
}

/* The context has drained. */
static void array_destroy(struct array *array)
{
    struct array **link = &array->ctx->arrays;

    while (*link && *link != array)
        link = &(*link)->next;
    if (*link)
        *link = array->next;
    memory_free(array->address);
    object_free(array);
}

static void mipmap_destroy(struct mipmap *mipmap)
{
    struct mipmap **link = &mipmap->ctx->mipmaps;

    while (*link && *link != mipmap)
        link = &(*link)->next;
    if (*link)
        *link = mipmap->next;
    for (unsigned i = 0; i < mipmap->n_levels; i++)
        array_destroy(mipmap->levels[i]);
    object_free(mipmap);
}

void arrays_destroy(struct context *ctx)
{
    while (ctx->mipmaps)
        mipmap_destroy(ctx->mipmaps);
    while (ctx->arrays)
        array_destroy(ctx->arrays);
}

/* ---- entries: arrays ---- */

CUresult impl_cuArray3DCreate_v2(CUarray *pHandle, const CUDA_ARRAY3D_DESCRIPTOR *pAllocateArray)
{
    struct context *ctx;
    struct array *array;
    CUresult res;
    DRIVER_LOCKED;

    if (!pHandle || !pAllocateArray)
        return CUDA_ERROR_INVALID_VALUE;
    res = context_current(&ctx);
    if (res == CUDA_SUCCESS)
        res = capture_unsafe();
    if (res == CUDA_SUCCESS)
        res = check_descriptor(pAllocateArray);
    if (res == CUDA_SUCCESS)
        res = array_new(ctx, pAllocateArray, &array);
    if (res == CUDA_SUCCESS)
        *pHandle = (CUarray)array;
    return res;
}

CUresult impl_cuArrayCreate_v2(CUarray *pHandle, const CUDA_ARRAY_DESCRIPTOR *pAllocateArray)
{
    if (!pAllocateArray)
        return CUDA_ERROR_INVALID_VALUE;
    return impl_cuArray3DCreate_v2(
        pHandle, &(CUDA_ARRAY3D_DESCRIPTOR){ .Width = pAllocateArray->Width,
                                             .Height = pAllocateArray->Height,
                                             .Format = pAllocateArray->Format,
                                             .NumChannels = pAllocateArray->NumChannels });
}

CUresult impl_cuArray3DGetDescriptor_v2(CUDA_ARRAY3D_DESCRIPTOR *pArrayDescriptor, CUarray hArray)
{
    struct array *array;
    DRIVER_LOCKED;

    array = array_resolve(hArray);
    if (!array)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!pArrayDescriptor)
        return CUDA_ERROR_INVALID_VALUE;
    *pArrayDescriptor = array->desc;
    return CUDA_SUCCESS;
}

CUresult impl_cuArrayGetDescriptor_v2(CUDA_ARRAY_DESCRIPTOR *pArrayDescriptor, CUarray hArray)
{
    CUDA_ARRAY3D_DESCRIPTOR desc;
    CUresult res;

    if (!pArrayDescriptor)
        return CUDA_ERROR_INVALID_VALUE;
    res = impl_cuArray3DGetDescriptor_v2(&desc, hArray);
    if (res == CUDA_SUCCESS)
        *pArrayDescriptor =
            (CUDA_ARRAY_DESCRIPTOR){ desc.Width, desc.Height, desc.Format, desc.NumChannels };
    return res;
}

CUresult impl_cuArrayDestroy(CUarray hArray)
{
    struct array *array;
    CUresult res;
    DRIVER_LOCKED;

    array = array_resolve(hArray);
    if (!array || array->mipmap)
        return CUDA_ERROR_INVALID_HANDLE;
    res = capture_unsafe();
    if (res != CUDA_SUCCESS)
        return res;
    context_drain(array->ctx);
    array_destroy(array);
    return CUDA_SUCCESS;
}

/* No array here has planes, is sparse or gets its memory later. */
CUresult impl_cuArrayGetPlane(CUarray *pPlaneArray, CUarray hArray, unsigned int planeIdx)
{
    (void)pPlaneArray;
    (void)planeIdx;
    return array_resolve(hArray) ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE;
}

CUresult impl_cuArrayGetSparseProperties(CUDA_ARRAY_SPARSE_PROPERTIES *sparseProperties,
                                         CUarray array)
{
    (void)sparseProperties;
    return array_resolve(array) ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE;
}

CUresult impl_cuArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *memoryRequirements,
                                           CUarray array, CUdevice device)
{
    (void)memoryRequirements;
    (void)device;
    return array_resolve(array) ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE;
}

/* ---- entries: mipmapped arrays ---- */

static size_t halved(size_t n, unsigned level)
{
    return n >> level ? n >> level : n ? 1 : 0;
}

/* Each level has half the extent of the one before; layers and faces stay. */
static CUresult level_new(struct mipmap *mipmap, unsigned level)
{
    CUDA_ARRAY3D_DESCRIPTOR desc = mipmap->desc;
    CUresult res;

    desc.Width = halved(desc.Width, level);
    desc.Height = halved(desc.Height, level);
    if (!(desc.Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP)))
        desc.Depth = halved(desc.Depth, level);
    res = array_new(mipmap->ctx, &desc, &mipmap->levels[level]);
    if (res != CUDA_SUCCESS)
        return res;
    mipmap->levels[level]->mipmap = mipmap;
    mipmap->n_levels = level + 1;
    return CUDA_SUCCESS;
}

/* As many as there are until the largest extent is 1 */
static unsigned most_levels(const CUDA_ARRAY3D_DESCRIPTOR *d)
{
    size_t largest = d->Width > d->Height ? d->Width : d->Height;
    unsigned n = 1;

    if (!(d->Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP)) && d->Depth > largest)
        largest = d->Depth;
    while (largest >>= 1)
        n++;
    return n;
}

static CUresult mipmap_new(struct context *ctx, const CUDA_ARRAY3D_DESCRIPTOR *desc, unsigned n,
                           struct mipmap **out)
{
    struct mipmap *mipmap = object_new(OBJECT_MIPMAP, sizeof(*mipmap));
    CUresult res = CUDA_SUCCESS;

    if (!mipmap)
        return CUDA_ERROR_OUT_OF_MEMORY;
    mipmap->ctx = ctx;
    mipmap->desc = *desc;
    mipmap->next = ctx->mipmaps;
    ctx->mipmaps = mipmap;
    for (unsigned i = 0; i < n && res == CUDA_SUCCESS; i++)
        res = level_new(mipmap, i);
    if (res != CUDA_SUCCESS) {
        mipmap_destroy(mipmap);
        return res;
    }
    *out = mipmap;
    return CUDA_SUCCESS;
}

CUresult impl_cuMipmappedArrayCreate(CUmipmappedArray *pHandle,
                                     const CUDA_ARRAY3D_DESCRIPTOR *pMipmappedArrayDesc,
                                     unsigned int numMipmapLevels)
{
    struct context *ctx;
    struct mipmap *mipmap;
    unsigned n;
    CUresult res;
    DRIVER_LOCKED;

    if (!pHandle || !pMipmappedArrayDesc || !numMipmapLevels)
        return CUDA_ERROR_INVALID_VALUE;
    res = context_current(&ctx);
    if (res == CUDA_SUCCESS)
        res = capture_unsafe();
    if (res == CUDA_SUCCESS)
        res = check_descriptor(pMipmappedArrayDesc);
    if (res != CUDA_SUCCESS)
        return res;
    n = most_levels(pMipmappedArrayDesc); /* cuda.h: more levels than there can be are clamped */
    res = mipmap_new(ctx, pMipmappedArrayDesc, numMipmapLevels < n ? numMipmapLevels : n, &mipmap);
    if (res == CUDA_SUCCESS)
        *pHandle = (CUmipmappedArray)mipmap;
    return res;
}

CUresult impl_cuMipmappedArrayGetLevel(CUarray *pLevelArray, CUmipmappedArray hMipmappedArray,
                                       unsigned int level)
{
    struct mipmap *mipmap;
    DRIVER_LOCKED;

    mipmap = mipmap_resolve(hMipmappedArray);
    if (!mipmap)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!pLevelArray || level >= mipmap->n_levels)
        return CUDA_ERROR_INVALID_VALUE;
    *pLevelArray = (CUarray)mipmap->levels[level];
    return CUDA_SUCCESS;
}

CUresult impl_cuMipmappedArrayDestroy(CUmipmappedArray hMipmappedArray)
{
    struct mipmap *mipmap;
    CUresult res;
    DRIVER_LOCKED;

    mipmap = mipmap_resolve(hMipmappedArray);
    if (!mipmap)
        return CUDA_ERROR_INVALID_HANDLE;
    res = capture_unsafe();
    if (res != CUDA_SUCCESS)
        return res;
    context_drain(mipmap->ctx);
    mipmap_destroy(mipmap);
    return CUDA_SUCCESS;
}
