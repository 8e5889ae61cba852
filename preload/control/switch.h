/* SPDX-License-Identifier: Apache-2.0 */
/* Sites that are switched on and off while the program runs, by the names that people give them. */
#ifndef PRELOAD_CONTROL_SWITCH_H
#define PRELOAD_CONTROL_SWITCH_H

#include <stdbool.h>
#include <stdint.h>

/* What a change is noted by. */
enum switch_by {
    SWITCH_BY_CONTROL, /* dmi-ctl: it is asked seldom, and each time is noted and on the disk at once */
    SWITCH_BY_PROGRAM, /* dmi_site_enable(): it may be called at each step; what changes nothing is not noted */
};

/**
 * switch_sites() - the capture of all sites whose names match, from the next launches on
 * @patterns: with blanks between them, each as of fnmatch(3)
 * The run notes the change before it takes effect.
 * Thread: any that entered. Return: the number of sites that match; -ENOSPC, -ENOMEM: the run has no room for the note, and
 * nothing has changed.
 */
int switch_sites(const char *patterns, bool on, enum switch_by by);

#endif
