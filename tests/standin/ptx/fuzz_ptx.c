/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzz target: any bytes become C or an error with a message, in bounded time and memory. The C is not
 * compiled. Seeds: corpus/ here. For libFuzzer, in this folder:
 *   clang -g -O1 -std=gnu17 -D_GNU_SOURCE -fsanitize=fuzzer,address,undefined -I../../.. -I. \
 *       -DRT_H="\"$PWD/rt.h\"" -DRT_MATRIX_H="\"$PWD/rt_matrix.h\"" fuzz_ptx.c build.c calls.c emit*.c indirect.c live.c parse.c print.c run.c texture.c -lxxhash -ldl -lm
 */
#include "ir.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct module_ir ir = { 0 };
    struct text c = { .data = NULL };
    int status = ptx_translate(&ir, (const char *)data, n, true, &c);

    if (status != PTX_OK && !ir.message[0])
        abort();
    ir_free(&ir);
    free(c.data);
    return 0;
}
