/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A process beside the command which names those of the command's processes that the library is not in, and says in the end
 * if the command has written nothing.
 */
#pragma once

#include <stdbool.h>

/**
 * watch_start() - watch this process, which becomes the command, and all that descend from it
 * @library: last name of the library's file
 * @log: what DMI_LOG says, or NULL. One line for each executable that has loaded the driver without the library;
 *       nothing is watched where lines go nowhere.
 * @out: the folder of runs, or the file of a recording, absolute. If nothing has come there when the command and all that it
 *       started have ended, a line says so, unless one has named a process, or @nothing is false: then somebody else says it.
 * The watcher is nobody's child here, has a session of its own, holds no descriptor but stderr, and ends with this
 * process. Init only. What hinders it is a line of the log: the command runs all the same.
 */
void watch_start(const char *library, const char *log, const char *out, bool nothing);
