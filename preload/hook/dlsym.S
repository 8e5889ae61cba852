/* SPDX-License-Identifier: Apache-2.0 */
/*
 * void *dlsym(void *handle, const char *name)
 *
 * Ours answers by itself only for driver entry points (dlsym_route() in hook.c). All else is a
 * jump, not a call: glibc takes the caller from the return address on the stack, and a call from
 * here would make RTLD_NEXT start after the library instead of after the caller.
 */
#if defined(__x86_64__)
    .text
    .globl dlsym
    .type dlsym, @function
dlsym:
    .cfi_startproc
    endbr64
    push %rdi
    .cfi_adjust_cfa_offset 8
    push %rsi
    .cfi_adjust_cfa_offset 8
    sub $24, %rsp
    .cfi_adjust_cfa_offset 24
    mov %rsp, %rdx
    movq $0, (%rdx)
    call dlsym_route
    mov (%rsp), %rdx
    add $24, %rsp
    .cfi_adjust_cfa_offset -24
    pop %rsi
    .cfi_adjust_cfa_offset -8
    pop %rdi
    .cfi_adjust_cfa_offset -8
    test %al, %al
    jz 1f
    mov %rdx, %rax
    ret
1:
    mov dlsym_real(%rip), %rax
    jmp *%rax
    .cfi_endproc
    .size dlsym, . - dlsym
#elif defined(__aarch64__)
    .text
    .globl dlsym
    .type dlsym, %function
dlsym:
    .cfi_startproc
    stp x29, x30, [sp, #-48]!
    .cfi_def_cfa_offset 48
    .cfi_offset 29, -48
    .cfi_offset 30, -40
    mov x29, sp
    stp x0, x1, [sp, #16]
    str xzr, [sp, #32]
    add x2, sp, #32
    bl dlsym_route
    mov w9, w0
    ldr x10, [sp, #32]
    ldp x0, x1, [sp, #16]
    ldp x29, x30, [sp], #48
    .cfi_restore 29
    .cfi_restore 30
    .cfi_def_cfa_offset 0
    tbz w9, #0, 1f
    mov x0, x10
    ret
1:
    adrp x9, dlsym_real
    ldr x9, [x9, #:lo12:dlsym_real]
    br x9
    .cfi_endproc
    .size dlsym, . - dlsym
#else
#error "dlsym pass-through is written for x86-64 and aarch64"
#endif
    .section .note.GNU-stack, "", %progbits
