/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/base/own_stack.h"

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <ucontext.h>

#define STACK_BYTES (2u << 20)
#define GUARD_BYTES (64u << 10) /* below it: what outgrows it faults */

struct job {
    void (*work)(void *arg);
    void *arg;
};

static void *spare; /* the last stack that was used; atomic, so one thread at a time has it */

static void *stack_take(void)
{
    void *stack = __atomic_exchange_n(&spare, NULL, __ATOMIC_ACQUIRE); /* of stack_give() */
    if (stack)
        return stack;
    stack = mmap(NULL, GUARD_BYTES + STACK_BYTES, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
    if (stack == MAP_FAILED)
        return NULL;
    mprotect(stack, GUARD_BYTES, PROT_NONE);
    return stack;
}

static void stack_give(void *stack)
{
    void *other = __atomic_exchange_n(&spare, stack, __ATOMIC_RELEASE); /* to stack_take() */
    if (other)
        munmap(other, GUARD_BYTES + STACK_BYTES);
}

/* makecontext() passes numbers of 32 bits. */
static void begin(unsigned high, unsigned low)
{
    struct job *job = (struct job *)((uintptr_t)high << 32 | low);
    job->work(job->arg);
}

/* Return: false where it cannot be. */
static bool run_on(char *stack, struct job *job)
{
    ucontext_t here, there;
    uintptr_t at = (uintptr_t)job;
    if (getcontext(&there))
        return false;
    there.uc_stack.ss_sp = stack;
    there.uc_stack.ss_size = STACK_BYTES;
    there.uc_link = &here;
    sigfillset(&there.uc_sigmask); /* no handler of the application's runs on it */
    makecontext(&there, (void (*)(void))(uintptr_t)begin, 2, (unsigned)(at >> 32), (unsigned)at);
    return !swapcontext(&here, &there);
}

void own_stack_run(void (*work)(void *arg), void *arg)
{
    char *stack = stack_take();
    struct job job = { work, arg };
    if (!stack || !run_on(stack + GUARD_BYTES, &job))
        work(arg);
    if (stack)
        stack_give(stack);
}
