/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files and folders that a program removes where a signal ends it before they have their name: SIGINT, SIGTERM, SIGHUP. A thread takes these
 * signals, removes what is noted, and ends the program by the signal. SIGKILL leaves all of it. Called by the program's first thread.
 */
#pragma once

/* Before any other thread begins. SIGPIPE is ignored from now on: who writes to a closed pipe gets an error. */
void leftover_install(void);

/* A file, or a folder with all that it holds. @path: borrowed until leftover_forget(). At most 8 at a time; more are left. */
void leftover_note(const char *path);

/* It is removed, or has its name. Accepts NULL. */
void leftover_forget(const char *path);

/* Removes it now. Accepts NULL. */
void leftover_remove(const char *path);

/* Between the two no signal ends the program: what is noted gets its name. leftover_forget() may be called there. */
void leftover_hold(void);
void leftover_release(void);
