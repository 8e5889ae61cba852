/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Structs of a stable C ABI, which begin with their size as the caller knows them: what is handed out is cut to it, what is taken in
 * is filled up with 0. Any thread.
 */
#pragma once

#include <errno.h>
#include <stdint.h>
#include <string.h>

/*
 * Copies as much of @from as the caller's struct has room for; its size stands first and stays. What it has beyond ours becomes 0.
 * Return: 0; -EINVAL: the caller did not set it.
 */
static inline int abi_hand_out(void *to, const void *from, uint32_t n_ours)
{
    uint32_t n_theirs;
    memcpy(&n_theirs, to, sizeof n_theirs);
    if (n_theirs < sizeof n_theirs)
        return -EINVAL;
    uint32_t n = n_theirs < n_ours ? n_theirs : n_ours;
    memcpy((char *)to + sizeof n, (const char *)from + sizeof n, n - sizeof n);
    if (n_theirs > n_ours)
        memset((char *)to + n_ours, 0, n_theirs - n_ours);
    return 0;
}

/* Copies what the caller's struct has of ours; the rest becomes 0. Return: as abi_hand_out(). */
static inline int abi_take_in(void *to, uint32_t n_ours, const void *from)
{
    uint32_t n_theirs;
    memcpy(&n_theirs, from, sizeof n_theirs);
    if (n_theirs < sizeof n_theirs)
        return -EINVAL;
    memset(to, 0, n_ours);
    memcpy(to, from, n_theirs < n_ours ? n_theirs : n_ours);
    return 0;
}
