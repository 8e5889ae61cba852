/* SPDX-License-Identifier: Apache-2.0 */
/* Commands that end as soon as another library stands in front of their sanitizer's. One thread. */
#pragma once

/*
 * Says on stderr if @command, or what a script's first line runs, needs AddressSanitizer's runtime, which ends it where libdmi_preload.so is
 * the first library, and what to set. Nothing is said where that is set, and of what cannot be read.
 */
void sanitizer_say(const char *command);
