/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What tokens stand for, as libdmi_analyze.so reads it of a tokenizer: bytes by id, as Hugging Face's tokenizers and llama.cpp decode them, but for
 * the blank that some strip from the beginning of a whole text. The promise of the ABI is that of <dmi/analyze.h>.
 */
#ifndef DMI_ANALYZE_VOCABULARY_H
#define DMI_ANALYZE_VOCABULARY_H

#include <dmi/analyze.h>

#ifdef __cplusplus
extern "C" {
#endif

enum dmi_vocabulary_kind {
    DMI_VOCABULARY_ABSENT = 0, /* no token has this id */
    DMI_VOCABULARY_TEXT = 1,   /* a text, which may be a part of a UTF-8 character */
    DMI_VOCABULARY_BYTE =
        2, /* one byte, as <0x41>: a tokenizer takes it where no other token has that byte */
};

struct dmi_vocabulary_piece {
    uint64_t first; /* of struct dmi_vocabulary's bytes */
    uint32_t n;
    uint32_t kind; /* enum dmi_vocabulary_kind */
};

struct dmi_vocabulary {
    const struct dmi_vocabulary_piece *pieces; /* by id */
    uint64_t n_pieces;
    const void *bytes;
};

/**
 * dmi_vocabulary_open() - reads a tokenizer.json, the one in a folder, or a GGUF's vocabulary
 * @why: gets a sentence on failure, cut to @n_why bytes; may be NULL
 * Return: 0; -EINVAL: no vocabulary, or one that is decoded in another way; -errno. Not changed afterwards: any thread.
 */
DMI_ANALYZE_API int dmi_vocabulary_open(const char *path, struct dmi_vocabulary **out, char *why,
                                        uint64_t n_why);
/* Accepts NULL. */
DMI_ANALYZE_API void dmi_vocabulary_close(struct dmi_vocabulary *vocabulary);

#ifdef __cplusplus
}
#endif

#endif
