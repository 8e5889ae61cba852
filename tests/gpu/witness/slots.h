/* SPDX-License-Identifier: Apache-2.0 */
/* What the witness's C and assembly agree on. */
#ifndef TESTS_GPU_WITNESS_SLOTS_H
#define TESTS_GPU_WITNESS_SLOTS_H

#define WITNESS_SLOTS      1024
#define WITNESS_SLOT_BYTES 32

#ifndef __ASSEMBLER__
#include <stdint.h>

/* One function that was looked up: by address, as a name may have several. */
struct witness_slot {
    uint64_t n_calls; /* thunks.S counts */
    void *target;     /* what the lookup found, where the thunk jumps to */
    const char *name;
    uint32_t by_dlsym, by_resolver; /* how often it was looked up */
};

extern struct witness_slot witness_slots[WITNESS_SLOTS];
extern char witness_thunks[];
#endif

#endif
