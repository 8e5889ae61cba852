/* SPDX-License-Identifier: Apache-2.0 */
#include "core/own_stack.h"

#include <signal.h>
#include <stdint.h>
#include <sys/mman.h>
#include <ucontext.h>

#define SPARE_BYTES ((size_t)4 << 20)  /* of the stack that is kept */
#define GUARD_BYTES ((size_t)64 << 10) /* below it: what outgrows it faults */

struct stack_work {
    void (*work)(void *arg);
    void *arg;
};

static char *spare; /* the last stack of that size; atomic, so one thread at a time has it */

static char *stack_take(size_t n_bytes)
{
    char *stack = NULL;
    if (n_bytes == SPARE_BYTES)
        stack = __atomic_exchange_n(&spare, NULL, __ATOMIC_ACQUIRE); /* of stack_give() */
    if (stack)
        return stack;
    stack = mmap(NULL, GUARD_BYTES + n_bytes, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
    if (stack == MAP_FAILED)
        return NULL;
    mprotect(stack, GUARD_BYTES, PROT_NONE);
    return stack;
}

static void stack_give(char *stack, size_t n_bytes)
{
    if (n_bytes == SPARE_BYTES)
        stack = __atomic_exchange_n(&spare, stack, __ATOMIC_RELEASE); /* to stack_take() */
    if (stack)
        munmap(stack, GUARD_BYTES + n_bytes);
}

/* makecontext() passes numbers of 32 bits. */
static void begin(unsigned high, unsigned low)
{
    struct stack_work *job = (struct stack_work *)((uintptr_t)high << 32 | low);
    job->work(job->arg);
}

/* Return: false where it cannot be. */
static bool run_on(char *stack, size_t n_bytes, struct stack_work *job)
{
    ucontext_t here, there;
    uintptr_t at = (uintptr_t)job;
    if (getcontext(&there))
        return false;
    there.uc_stack.ss_sp = stack;
    there.uc_stack.ss_size = n_bytes;
    there.uc_link = &here;
    sigfillset(&there.uc_sigmask); /* no handler of the application's runs on it */
    makecontext(&there, (void (*)(void))(uintptr_t)begin, 2, (unsigned)(at >> 32), (unsigned)at);
    return !swapcontext(&here, &there);
}

bool own_stack_run(void (*work)(void *arg), void *arg, size_t n_bytes)
{
    n_bytes = n_bytes > SPARE_BYTES ? (n_bytes + 4095) / 4096 * 4096 : SPARE_BYTES;
    char *stack = stack_take(n_bytes);
    if (!stack)
        return false;
    struct stack_work job = { work, arg };
    bool ran = run_on(stack + GUARD_BYTES, n_bytes, &job);
    stack_give(stack, n_bytes);
    return ran;
}
