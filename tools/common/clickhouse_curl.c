/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/common/clickhouse_curl.h"

#include <dlfcn.h>
#include <errno.h>
#include <stddef.h>

struct clickhouse_curl clickhouse_curl;

static const struct {
    void *to; /* a pointer to a function */
    const char *name;
} calls[] = {
    { &clickhouse_curl.init, "curl_easy_init" },
    { &clickhouse_curl.cleanup, "curl_easy_cleanup" },
    { &clickhouse_curl.setopt, "curl_easy_setopt" },
    { &clickhouse_curl.perform, "curl_easy_perform" },
    { &clickhouse_curl.getinfo, "curl_easy_getinfo" },
    { &clickhouse_curl.escape, "curl_easy_escape" },
    { &clickhouse_curl.unescape, "curl_easy_unescape" },
    { &clickhouse_curl.strerror, "curl_easy_strerror" },
    { &clickhouse_curl.free, "curl_free" },
    { &clickhouse_curl.append, "curl_slist_append" },
    { &clickhouse_curl.free_all, "curl_slist_free_all" },
    { &clickhouse_curl.url, "curl_url" },
    { &clickhouse_curl.url_cleanup, "curl_url_cleanup" },
    { &clickhouse_curl.url_get, "curl_url_get" },
    { &clickhouse_curl.url_set, "curl_url_set" },
};

/* Debian has it twice: with OpenSSL, and with GnuTLS. */
static void *open_library(void)
{
    void *library = dlopen("libcurl.so.4", RTLD_NOW | RTLD_LOCAL);
    return library ? library : dlopen("libcurl-gnutls.so.4", RTLD_NOW | RTLD_LOCAL);
}

int clickhouse_curl_load(struct err *err)
{
    void *library = open_library();
    if (!library)
        return err_set(err, -ELIBACC,
                       "--to clickhouse:// needs libcurl: install it (Debian: libcurl4)");
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        void *address = dlsym(library, calls[i].name);
        if (!address)
            return err_set(err, -ELIBBAD, "this libcurl has no %s: install a newer one",
                           calls[i].name);
        *(void **)calls[i].to = address;
    }
    return 0;
}
