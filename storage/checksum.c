/* SPDX-License-Identifier: Apache-2.0 */
#include "storage/checksum.h"

#include "storage/codec/hash.h"
#include "storage/names.h"

#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define DIGITS (sizeof MANIFEST_CHECKSUM_ZERO - 1)

/* The digits in @text; NULL: there are none. */
static char *place(char *text, size_t n)
{
    static const char key[] = MANIFEST_CHECKSUM_KEY;
    char *at = memmem(text, n, key, sizeof key - 1);
    return at && (size_t)(text + n - at) >= sizeof key - 1 + DIGITS ? at + sizeof key - 1 : NULL;
}

bool checksum_write(char *text, size_t n)
{
    char sum[DIGITS + 1], *at = place(text, n);
    if (!at)
        return false;
    memcpy(at, MANIFEST_CHECKSUM_ZERO, DIGITS);
    snprintf(sum, sizeof sum, "%016" PRIx64, hash_bytes(text, n));
    memcpy(at, sum, DIGITS);
    return true;
}

bool checksum_holds(char *text, size_t n)
{
    char said[DIGITS], *at = place(text, n);
    if (!at)
        return false;
    memcpy(said, at, DIGITS);
    checksum_write(text, n);
    bool holds = !memcmp(said, at, DIGITS);
    memcpy(at, said, DIGITS);
    return holds;
}
