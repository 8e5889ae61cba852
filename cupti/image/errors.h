/* SPDX-License-Identifier: Apache-2.0 */
/* What the readers of images share: limits and errors. */
#pragma once

#define IMAGE_MAX_BYTES    (1ull << 31) /* of an image */
#define IMAGE_MAX_UNPACKED (1ull << 29) /* of an entry in a fatbin, once it is decompressed */

enum {
    IMAGE_E_KIND = 1,   /* no image of a kind that is known */
    IMAGE_E_BOUNDS = 2, /* its headers point out of it, or beyond the limits */
    IMAGE_E_PACKED = 3, /* an entry cannot be decompressed */
    IMAGE_E_END = 4,    /* there is no more of what was asked for */
};
