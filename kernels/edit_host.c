/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/edit_host.h"

#include "kernels/edit_rows.h"

/*
 * How the thread rounds, and whether it takes what is below the least normal number for 0: the application may have set both (torch.set_flush_denormal()
 * does), the device has neither. Flags that operations raise are the application's, too.
 */
#if defined __x86_64__
static dmi_u64 take_rounding(void)
{
    dmi_u64 before = __builtin_ia32_stmxcsr();
    __builtin_ia32_ldmxcsr(0x1f80); /* to the nearest, no trap */
    return before;
}

static void give_rounding_back(dmi_u64 before)
{
    __builtin_ia32_ldmxcsr((dmi_u32)before);
}
#elif defined __aarch64__
static dmi_u64 take_rounding(void)
{
    dmi_u64 before;
    __asm__ volatile("mrs %0, fpcr\n\tmsr fpcr, xzr" : "=r"(before));
    return before;
}

static void give_rounding_back(dmi_u64 before)
{
    __asm__ volatile("msr fpcr, %0" ::"r"(before));
}
#else
#error "how does a thread of this machine round?"
#endif

static void do_rows(const struct dmi_edit *e, bool saves)
{
    dmi_u64 before = take_rounding();
    edit_rows(e, e->at, saves, (const dmi_u32 *)(uintptr_t)e->rows, e->n_rows);
    give_rounding_back(before);
}

void edit_host(const struct dmi_edit *edit)
{
    do_rows(edit, false);
}

void edit_host_save(const struct dmi_edit *edit)
{
    do_rows(edit, true);
}

void edit_host_drop(const struct dmi_bank_drop *drop)
{
    for (dmi_u32 i = 0; i < drop->n_cells; i++)
        drop_cell(drop, i);
}
