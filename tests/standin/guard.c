/* SPDX-License-Identifier: Apache-2.0 */
/*
 * guard.c - a fault in a kernel or copy becomes the device's error and does not end the process
 *
 * One handler for SIGSEGV, SIGBUS and SIGFPE: inside ptx_launch() or guarded() it jumps back there;
 * anything else goes to the handler that was installed before.
 */
#include "driver.h"
#include "ptx/ptx.h"

#include <setjmp.h>
#include <signal.h>
#include <string.h>

static _Thread_local sigjmp_buf *guard_env __attribute__((tls_model("initial-exec")));
static struct sigaction old_actions[NSIG];

static void on_fault(int sig, siginfo_t *info, void *context)
{
    struct sigaction *old = &old_actions[sig];

    ptx_signal((uint64_t)(uintptr_t)info->si_addr);
    if (guard_env)
        siglongjmp(*guard_env, sig);
    object_wild();
    if (old->sa_flags & SA_SIGINFO) {
        old->sa_sigaction(sig, info, context);
    } else if (old->sa_handler != SIG_DFL && old->sa_handler != SIG_IGN) {
        old->sa_handler(sig);
    } else {
        /* Returning repeats the fault, now with the default action. */
        signal(sig, SIG_DFL);
    }
}

CUresult guard_init(void)
{
    static const int signals[] = { SIGSEGV, SIGBUS, SIGFPE };
    struct sigaction action;

    memset(&action, 0, sizeof(action));
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
    sigemptyset(&action.sa_mask);
    for (size_t i = 0; i < ARRAY_SIZE(signals); i++) {
        if (sigaction(signals[i], &action, &old_actions[signals[i]]) != 0)
            return CUDA_ERROR_OPERATING_SYSTEM;
    }
    return CUDA_SUCCESS;
}

bool guarded(void (*fn)(void *data), void *data)
{
    sigjmp_buf env;
    sigjmp_buf *outer = guard_env;
    bool ok;

    if (sigsetjmp(env, 0) == 0) {
        guard_env = &env;
        fn(data);
        ok = true;
    } else {
        ok = false;
    }
    guard_env = outer;
    return ok;
}
