/* SPDX-License-Identifier: Apache-2.0 */
/*
 * texture.c - texture and surface objects: created, asked, destroyed, and found by kernels that read through them
 */
#include "array.h"
#include "impl.h"
#include "ptx/ptx.h"

#include <string.h>

/** struct texture - a texture or surface object; what it reads stays the application's */
struct texture {
    struct object object; /* OBJECT_TEXTURE or OBJECT_SURFACE: its address is the handle */
    struct texture *next;
    struct context *ctx;
    CUDA_RESOURCE_DESC resource;
    CUDA_TEXTURE_DESC texture;
    CUDA_RESOURCE_VIEW_DESC view;
    bool has_view;
    struct ptx_texture
        reads; /* of textures: what tex instructions read, of mipmapped arrays level 0 */
};

enum { TEXTURE_ALIGN = 512, PITCH_ALIGN = 32 };

static struct texture *texture_resolve(unsigned long long handle, enum object_kind kind)
{
    void *pointer = (void *)(uintptr_t)handle;

    return object_is(pointer, kind) ? pointer : NULL;
}

static void texture_destroy(struct texture *texture)
{
    struct texture **link = &texture->ctx->textures;

    while (*link && *link != texture)
        link = &(*link)->next;
    if (*link)
        *link = texture->next;
    object_free(texture);
}

void textures_destroy(struct context *ctx)
{
    while (ctx->textures)
        texture_destroy(ctx->textures);
}

/* Memory that the application gave: known, aligned, as long as it says */
static CUresult check_memory(uint64_t address, size_t bytes, CUarray_format format,
                             unsigned n_channels)
{
    bool known;

    if (!array_format_bytes(format) || address % TEXTURE_ALIGN || !bytes ||
        (n_channels != 1 && n_channels != 2 && n_channels != 4))
        return CUDA_ERROR_INVALID_VALUE;
    return memory_check(address, bytes, &known) == CUDA_SUCCESS && known ? CUDA_SUCCESS
                                                                         : CUDA_ERROR_INVALID_VALUE;
}

static CUresult check_resource(const CUDA_RESOURCE_DESC *r)
{
    size_t row;

    if (r->flags)
        return CUDA_ERROR_INVALID_VALUE;
    switch (r->resType) {
    case CU_RESOURCE_TYPE_ARRAY:
        return array_resolve(r->res.array.hArray) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    case CU_RESOURCE_TYPE_MIPMAPPED_ARRAY:
        return mipmap_resolve(r->res.mipmap.hMipmappedArray) ? CUDA_SUCCESS
                                                             : CUDA_ERROR_INVALID_VALUE;
    case CU_RESOURCE_TYPE_LINEAR:
        return check_memory(r->res.linear.devPtr, r->res.linear.sizeInBytes, r->res.linear.format,
                            r->res.linear.numChannels);
    case CU_RESOURCE_TYPE_PITCH2D:
        row = r->res.pitch2D.width * array_format_bytes(r->res.pitch2D.format) *
              r->res.pitch2D.numChannels;
        if (!r->res.pitch2D.height || r->res.pitch2D.pitchInBytes % PITCH_ALIGN ||
            r->res.pitch2D.pitchInBytes < row)
            return CUDA_ERROR_INVALID_VALUE;
        return check_memory(r->res.pitch2D.devPtr,
                            r->res.pitch2D.pitchInBytes * (r->res.pitch2D.height - 1) + row,
                            r->res.pitch2D.format, r->res.pitch2D.numChannels);
    default: return CUDA_ERROR_INVALID_VALUE;
    }
}

static CUresult check_sampling(const CUDA_TEXTURE_DESC *t)
{
    for (int i = 0; i < 3; i++)
        if ((unsigned)t->addressMode[i] > CU_TR_ADDRESS_MODE_BORDER)
            return CUDA_ERROR_INVALID_VALUE;
    if ((unsigned)t->filterMode > CU_TR_FILTER_MODE_LINEAR ||
        (unsigned)t->mipmapFilterMode > CU_TR_FILTER_MODE_LINEAR)
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

static CUresult texture_new(enum object_kind kind, const CUDA_RESOURCE_DESC *resource,
                            struct texture **out)
{
    struct texture *texture;
    struct context *ctx;
    CUresult res = context_current(&ctx);

    if (res == CUDA_SUCCESS)
        res = check_resource(resource);
    if (res != CUDA_SUCCESS)
        return res;
    texture = object_new(kind, sizeof(*texture));
    if (!texture)
        return CUDA_ERROR_OUT_OF_MEMORY;
    texture->ctx = ctx;
    texture->resource = *resource;
    texture->next = ctx->textures;
    ctx->textures = texture;
    *out = texture;
    return CUDA_SUCCESS;
}

static void read_format(struct ptx_texture *t, CUarray_format format, unsigned n_channels)
{
    bool is_signed = format == CU_AD_FORMAT_SIGNED_INT8 || format == CU_AD_FORMAT_SIGNED_INT16 ||
                     format == CU_AD_FORMAT_SIGNED_INT32;

    t->n_channels = n_channels;
    t->channel_bytes = (unsigned)array_format_bytes(format);
    t->channel = format == CU_AD_FORMAT_HALF || format == CU_AD_FORMAT_FLOAT ? PTX_FLOATING
                 : is_signed                                                 ? PTX_SIGNED
                                                                             : PTX_UNSIGNED;
}

static void read_extent(struct ptx_texture *t, size_t width, size_t height, size_t depth)
{
    t->extent[0] = width;
    t->extent[1] = height;
    t->extent[2] = depth;
}

static void read_array(struct ptx_texture *t, const struct array *array)
{
    t->address = array->address;
    t->pitch = array->pitch;
    t->slice = array->pitch * array->rows;
    read_extent(t, array->desc.Width, array->rows, array->slices);
    read_format(t, array->desc.Format, array->desc.NumChannels);
}

static void read_resource(struct ptx_texture *t, const CUDA_RESOURCE_DESC *r)
{
    switch (r->resType) {
    case CU_RESOURCE_TYPE_ARRAY: read_array(t, array_resolve(r->res.array.hArray)); break;
    case CU_RESOURCE_TYPE_MIPMAPPED_ARRAY:
        read_array(t, mipmap_resolve(r->res.mipmap.hMipmappedArray)->levels[0]);
        break;
    case CU_RESOURCE_TYPE_LINEAR:
        t->address = r->res.linear.devPtr;
        read_format(t, r->res.linear.format, r->res.linear.numChannels);
        read_extent(t, r->res.linear.sizeInBytes / (t->n_channels * t->channel_bytes), 1, 1);
        break;
    default:
        t->address = r->res.pitch2D.devPtr;
        t->pitch = r->res.pitch2D.pitchInBytes;
        read_format(t, r->res.pitch2D.format, r->res.pitch2D.numChannels);
        read_extent(t, r->res.pitch2D.width, r->res.pitch2D.height, 1);
    }
}

/* Linear memory has no filter and no modes: what lies outside is 0. */
static void read_sampling(struct ptx_texture *t, const CUDA_TEXTURE_DESC *d, bool linear_memory)
{
    t->as_fraction = !(d->flags & CU_TRSF_READ_AS_INTEGER) && t->channel_bytes < 4;
    t->linear_filter = d->filterMode == CU_TR_FILTER_MODE_LINEAR && !linear_memory &&
                       (t->channel == PTX_FLOATING || t->as_fraction);
    t->normalized_coordinates = (d->flags & CU_TRSF_NORMALIZED_COORDINATES) && !linear_memory;
    for (int i = 0; i < 3; i++)
        t->mode[i] = linear_memory                                    ? PTX_BORDER
                     : d->addressMode[i] == CU_TR_ADDRESS_MODE_WRAP   ? PTX_WRAP
                     : d->addressMode[i] == CU_TR_ADDRESS_MODE_MIRROR ? PTX_MIRROR
                     : d->addressMode[i] == CU_TR_ADDRESS_MODE_BORDER ? PTX_BORDER
                                                                      : PTX_CLAMP;
    if (!linear_memory)
        memcpy(t->border, d->borderColor, sizeof(t->border));
}

/** texture_find() - what a kernel reads through a handle, or NULL; any thread that runs kernels, no lock */
const struct ptx_texture *texture_find(uint64_t handle)
{
    struct texture *texture = texture_resolve(handle, OBJECT_TEXTURE);

    return texture ? &texture->reads : NULL;
}

/* ---- entries ---- */

CUresult impl_cuTexObjectCreate(CUtexObject *pTexObject, const CUDA_RESOURCE_DESC *pResDesc,
                                const CUDA_TEXTURE_DESC *pTexDesc,
                                const CUDA_RESOURCE_VIEW_DESC *pResViewDesc)
{
    struct texture *texture;
    CUresult res;
    DRIVER_LOCKED;

    if (!pTexObject || !pResDesc || !pTexDesc)
        return CUDA_ERROR_INVALID_VALUE;
    /* cuda.h: a view is for arrays only */
    if (pResViewDesc && pResDesc->resType != CU_RESOURCE_TYPE_ARRAY &&
        pResDesc->resType != CU_RESOURCE_TYPE_MIPMAPPED_ARRAY)
        return CUDA_ERROR_INVALID_VALUE;
    if ((pTexDesc->flags & CU_TRSF_SRGB) ||
        (pResViewDesc && pResViewDesc->format != CU_RES_VIEW_FORMAT_NONE))
        return CUDA_ERROR_NOT_SUPPORTED;
    res = check_sampling(pTexDesc);
    if (res == CUDA_SUCCESS)
        res = texture_new(OBJECT_TEXTURE, pResDesc, &texture);
    if (res != CUDA_SUCCESS)
        return res;
    texture->texture = *pTexDesc;
    read_resource(&texture->reads, pResDesc);
    read_sampling(&texture->reads, pTexDesc, pResDesc->resType == CU_RESOURCE_TYPE_LINEAR);
    texture->has_view = pResViewDesc != NULL;
    if (pResViewDesc)
        texture->view = *pResViewDesc;
    *pTexObject = (uintptr_t)texture;
    return CUDA_SUCCESS;
}

CUresult impl_cuTexObjectDestroy(CUtexObject texObject)
{
    struct texture *texture;
    DRIVER_LOCKED;

    texture = texture_resolve(texObject, OBJECT_TEXTURE);
    if (!texture)
        return CUDA_ERROR_INVALID_VALUE;
    texture_destroy(texture);
    return CUDA_SUCCESS;
}

CUresult impl_cuTexObjectGetResourceDesc(CUDA_RESOURCE_DESC *pResDesc, CUtexObject texObject)
{
    struct texture *texture;
    DRIVER_LOCKED;

    texture = texture_resolve(texObject, OBJECT_TEXTURE);
    if (!texture || !pResDesc)
        return CUDA_ERROR_INVALID_VALUE;
    *pResDesc = texture->resource;
    return CUDA_SUCCESS;
}

CUresult impl_cuTexObjectGetTextureDesc(CUDA_TEXTURE_DESC *pTexDesc, CUtexObject texObject)
{
    struct texture *texture;
    DRIVER_LOCKED;

    texture = texture_resolve(texObject, OBJECT_TEXTURE);
    if (!texture || !pTexDesc)
        return CUDA_ERROR_INVALID_VALUE;
    *pTexDesc = texture->texture;
    return CUDA_SUCCESS;
}

CUresult impl_cuTexObjectGetResourceViewDesc(CUDA_RESOURCE_VIEW_DESC *pResViewDesc,
                                             CUtexObject texObject)
{
    struct texture *texture;
    DRIVER_LOCKED;

    texture = texture_resolve(texObject, OBJECT_TEXTURE);
    if (!texture || !pResViewDesc || !texture->has_view)
        return CUDA_ERROR_INVALID_VALUE;
    *pResViewDesc = texture->view;
    return CUDA_SUCCESS;
}

/* cuda.h: of an array that was created for it */
CUresult impl_cuSurfObjectCreate(CUsurfObject *pSurfObject, const CUDA_RESOURCE_DESC *pResDesc)
{
    struct texture *surface;
    struct array *array;
    CUresult res;
    DRIVER_LOCKED;

    if (!pSurfObject || !pResDesc || pResDesc->resType != CU_RESOURCE_TYPE_ARRAY)
        return CUDA_ERROR_INVALID_VALUE;
    array = array_resolve(pResDesc->res.array.hArray);
    if (!array || !(array->desc.Flags & CUDA_ARRAY3D_SURFACE_LDST))
        return CUDA_ERROR_INVALID_VALUE;
    res = texture_new(OBJECT_SURFACE, pResDesc, &surface);
    if (res == CUDA_SUCCESS)
        *pSurfObject = (uintptr_t)surface;
    return res;
}

CUresult impl_cuSurfObjectDestroy(CUsurfObject surfObject)
{
    struct texture *surface;
    DRIVER_LOCKED;

    surface = texture_resolve(surfObject, OBJECT_SURFACE);
    if (!surface)
        return CUDA_ERROR_INVALID_VALUE;
    texture_destroy(surface);
    return CUDA_SUCCESS;
}

CUresult impl_cuSurfObjectGetResourceDesc(CUDA_RESOURCE_DESC *pResDesc, CUsurfObject surfObject)
{
    struct texture *surface;
    DRIVER_LOCKED;

    surface = texture_resolve(surfObject, OBJECT_SURFACE);
    if (!surface || !pResDesc)
        return CUDA_ERROR_INVALID_VALUE;
    *pResDesc = surface->resource;
    return CUDA_SUCCESS;
}
