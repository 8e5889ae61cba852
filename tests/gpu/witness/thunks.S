/* SPDX-License-Identifier: Apache-2.0 */
/*
 * witness_thunks: WITNESS_SLOTS functions of 32 bytes. Thunk i adds one to the first word of witness_slots[i] and jumps to
 * the address in the second: no argument, no return address and no stack is touched, so one form fits all functions.
 */
#include "slots.h"

    .text
    .globl witness_thunks
    .hidden witness_thunks
    .balign 64
#if defined(__x86_64__)
    .type witness_thunks, @function
witness_thunks:
    .cfi_startproc
    .rept WITNESS_SLOTS
    .balign 32
1:
    endbr64
    lock incq witness_slots + (1b - witness_thunks)(%rip)
    jmp *witness_slots + 8 + (1b - witness_thunks)(%rip)
    .endr
    .balign 32
    .cfi_endproc
    .size witness_thunks, . - witness_thunks
    .section .note.GNU-stack, "", %progbits
#elif defined(__aarch64__)
    .type witness_thunks, %function
witness_thunks:
    .cfi_startproc
    .rept WITNESS_SLOTS
    .balign 32
1:
    adr x16, 1b
    b witness_count
    .endr
    .balign 32
/* x16: the thunk that was called. Slots lie as the thunks do. x14 to x17 are free at a call. */
witness_count:
    adrp x17, witness_thunks
    add x17, x17, :lo12:witness_thunks
    sub x16, x16, x17
    adrp x17, witness_slots
    add x17, x17, :lo12:witness_slots
    add x16, x16, x17
2:
    ldxr x17, [x16]
    add x17, x17, #1
    stxr w15, x17, [x16]
    cbnz w15, 2b
    ldr x16, [x16, #8]
    br x16
    .cfi_endproc
    .size witness_thunks, . - witness_thunks
    .section .note.GNU-stack, "", %progbits
#else
#error "the witness is written for x86-64 and aarch64"
#endif
