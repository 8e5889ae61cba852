/* SPDX-License-Identifier: Apache-2.0 */
/* The recorded speed: when an item is due. A program of one thread. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct pace {
    double speed; /* recorded seconds a second; 0: as fast as it goes */
    bool begun;
    uint64_t first_ns,
        start_ns; /* recorded time of the first item; when it was sent (CLOCK_MONOTONIC) */
};

/* "max", "1", "0.5", "10x". Return: false: it is none of these. */
bool pace_parse(const char *text, double *speed);

/* Nanoseconds that an item of that recorded time is still to wait for; the first one begins the count. */
uint64_t pace_wait_ns(struct pace *pace, uint64_t time_ns);
