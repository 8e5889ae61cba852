/* SPDX-License-Identifier: Apache-2.0 */
/* The ladder of codecs: each rung takes less time than the one before, and more bytes. Source: docs/format.md 5. */
#pragma once

enum codec_rung {
    CODEC_SMALLEST, /* zstd's entropy coding */
    CODEC_PACKED,   /* fixed-width packing of exponents */
    CODEC_STORED,   /* raw bytes */
    CODEC_RUNGS
};
