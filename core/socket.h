/* SPDX-License-Identifier: Apache-2.0 */
/* Unix sockets that programs of the same user connect to. Any thread. */
#pragma once

/**
 * socket_listen_at() - a Unix stream socket @name (0600) in @folder
 * The socket gets its name once it has its mode and listens: a client that sees it is answered.
 * @folder: a descriptor of a folder, which O_PATH suffices for; its path may be longer than an address has room for
 * @backlog: connections that may wait to be accepted
 * Return: the descriptor, which does not block and is closed at exec; -EEXIST: something has the name; -errno.
 */
int socket_listen_at(int folder, const char *name, int backlog);
