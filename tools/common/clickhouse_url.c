/* SPDX-License-Identifier: Apache-2.0 */
/* libcurl splits the address (curl_url(3)). */
#include "tools/common/clickhouse_url.h"

#include "core/cleanup.h"
#include "core/err.h"
#include "core/grow.h"
#include "tools/common/clickhouse_curl.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static const char form[] =
    "write clickhouse://[USER@]HOST[:PORT]/[DATABASE][?table=NAME&secure=1&ca=FILE"
    "&password_file=FILE&give_up=SECONDS&layout=dmilib&cluster=NAME&server=HOST[:PORT]...]";

static void curl_url_cleanupp(CURLU **u)
{
    clickhouse_curl.url_cleanup(*u);
}

static void curl_freep(char **s)
{
    clickhouse_curl.free(*s);
}

void clickhouse_url_deinit(struct clickhouse_url *url)
{
    free(url->server);
    free(url->user);
    free(url->password);
    free(url->database);
    free(url->table);
    free(url->ca);
    free(url->cluster);
    free(url->run);
    for (size_t i = 0; i < url->n_others; i++)
        free(url->others[i]);
    free(url->others);
    *url = (struct clickhouse_url){ 0 };
}

static int replace(char **to, const char *value)
{
    char *copy = strdup(value);
    if (!copy)
        return -ENOMEM;
    free(*to);
    *to = copy;
    return 0;
}

/* A part of the address, decoded; @otherwise where it has none. */
static int take_part(CURLU *u, CURLUPart what, const char *otherwise, char **out)
{
    _cleanup_(curl_freep) char *part = NULL;
    CURLUcode r = clickhouse_curl.url_get(u, what, &part, CURLU_URLDECODE);
    if (r == CURLUE_OUT_OF_MEMORY)
        return -ENOMEM;
    return replace(out, !r && *part ? part : otherwise);
}

/* ------------------------------------------------------------------------- the password */

#define MOST_PASSWORD 4096

static int read_password(struct err *err, const char *path, struct clickhouse_url *url)
{
    _cleanup_(fclosep) FILE *f = fopen(path, "re");
    char line[MOST_PASSWORD + 1];
    errno = 0;
    size_t n = f ? fread(line, 1, MOST_PASSWORD, f) : 0;
    if (!n)
        return err_set_errno(err, errno ? errno : ENODATA, "cannot read a password from %s", path);
    line[n] = 0;
    size_t length = strlen(line);
    if (!strchr(line, '\n') && (length == MOST_PASSWORD || length < n))
        return err_set(err, -EINVAL,
                       "%s has no password in its first line: more than %d bytes, or a zero byte",
                       path, MOST_PASSWORD - 1);
    line[strcspn(line, "\r\n")] = 0;
    return replace(&url->password, line);
}

/* ------------------------------------------------------------------------- what comes after the '?' */

static int take_number(struct err *err, const char *name, const char *value, unsigned long most,
                       unsigned long *out)
{
    char *end;
    *out = strtoul(value, &end, 10);
    if (*value >= '0' && *value <= '9' && !*end && *out <= most)
        return 0;
    return err_set(err, -EINVAL, "clickhouse: %s=%s is no number up to %lu", name, value, most);
}

static int take_layout(struct err *err, const char *value, struct clickhouse_url *url)
{
    url->dmilib = !strcmp(value, "dmilib");
    if (url->dmilib || !strcmp(value, "dmi"))
        return 0;
    return err_set(err, -EINVAL, "clickhouse: layout=%s is none: write dmi or dmilib", value);
}

bool clickhouse_url_is_run(const char *text)
{
    return strlen(text) == 36 && strspn(text, "0123456789abcdef-") == 36;
}

static int take_run(struct err *err, const char *value, struct clickhouse_url *url)
{
    if (clickhouse_url_is_run(value))
        return replace(&url->run, value);
    return err_set(err, -EINVAL, "clickhouse: run=%s is no UUID in lower case", value);
}

/* Another server of the cluster; its port is known once all settings are. */
static int take_other(const char *value, struct clickhouse_url *url)
{
    if (ONE_MORE(url->others, url->n_others))
        return -ENOMEM;
    url->others[url->n_others] = strdup(value);
    return url->others[url->n_others++] ? 0 : -ENOMEM;
}

static int take_setting(struct err *err, const char *name, const char *value,
                        struct clickhouse_url *url, bool *secure)
{
    unsigned long n = 0;
    int r = 0;
    if (!strcmp(name, "table"))
        return replace(&url->table, value);
    if (!strcmp(name, "run"))
        return take_run(err, value, url);
    if (!strcmp(name, "cluster"))
        return replace(&url->cluster, value);
    if (!strcmp(name, "server"))
        return take_other(value, url);
    if (!strcmp(name, "ca"))
        return replace(&url->ca, value);
    if (!strcmp(name, "password_file"))
        return read_password(err, value, url);
    if (!strcmp(name, "layout"))
        return take_layout(err, value, url);
    if (!strcmp(name, "secure")) {
        r = take_number(err, name, value, 1, &n);
        *secure = n;
        return r;
    }
    if (strcmp(name, "give_up"))
        return err_set(err, -EINVAL, "clickhouse: '%s' is not known: %s", name, form);
    r = take_number(err, name, value, 1000000, &n);
    url->give_up_s = (unsigned)n;
    return r;
}

static int take_settings(struct err *err, CURLU *u, struct clickhouse_url *url, bool *secure)
{
    _cleanup_(curl_freep) char *all = NULL;
    char *rest, *word;
    if (clickhouse_curl.url_get(u, CURLUPART_QUERY, &all, 0))
        return 0;
    for (word = strtok_r(all, "&", &rest); word; word = strtok_r(NULL, "&", &rest)) {
        char *value = word + strcspn(word, "=");
        if (*value)
            *value++ = 0;
        _cleanup_(curl_freep) char *decoded = clickhouse_curl.unescape(NULL, value, 0, NULL);
        TRY(decoded ? take_setting(err, word, decoded, url, secure) : -ENOMEM);
    }
    return 0;
}

/* ------------------------------------------------------------------------- all of it */

/* Names go into SQL as they are. */
static int check_name(struct err *err, const char *what, const char *name)
{
    static const char good[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_";
    if (*name && !name[strspn(name, good)])
        return 0;
    return err_set(err, -EINVAL, "clickhouse: a %s has only letters, digits and _ in its name",
                   what);
}

static int take_server(CURLU *u, bool secure, char **out)
{
    _cleanup_(freep) char *host = NULL, *port = NULL;
    if (take_part(u, CURLUPART_HOST, "", &host) ||
        take_part(u, CURLUPART_PORT, secure ? "8443" : "8123", &port))
        return -ENOMEM;
    int n = asprintf(out, "http%s://%s:%s/", secure ? "s" : "", host, port);
    if (n < 0)
        *out = NULL;
    return n < 0 ? -ENOMEM : 0;
}

/* server=HOST:PORT becomes what the address's own becomes. */
static int complete_other(struct err *err, bool secure, char **other)
{
    _cleanup_(freep) char *whole = NULL, *host = *other;
    _cleanup_(curl_url_cleanupp) CURLU *u = clickhouse_curl.url();
    *other = NULL;
    if (!u || asprintf(&whole, "http://%s/", host) < 0) {
        whole = NULL;
        return -ENOMEM;
    }
    if (clickhouse_curl.url_set(u, CURLUPART_URL, whole, 0))
        return err_set(err, -EINVAL, "clickhouse: server=%s is no HOST[:PORT]", host);
    return take_server(u, secure, other);
}

static int complete_others(struct err *err, bool secure, struct clickhouse_url *url)
{
    int r = 0;
    for (size_t i = 0; !r && i < url->n_others; i++)
        r = complete_other(err, secure, &url->others[i]);
    if (!r && url->n_others && !url->cluster)
        r = err_set(err, -EINVAL, "clickhouse: server= is for cluster=NAME");
    if (!r && url->cluster && url->dmilib)
        r = err_set(err, -EINVAL,
                    "clickhouse: cluster= does not go with layout=dmilib, which has no key");
    return r;
}

static int take_all(struct err *err, CURLU *u, struct clickhouse_url *url)
{
    const char *password = getenv("DMI_CLICKHOUSE_PASSWORD");
    _cleanup_(freep) char *path = NULL;
    bool secure = false;
    if (take_part(u, CURLUPART_USER, "default", &url->user) ||
        take_part(u, CURLUPART_PASSWORD, password ? password : "", &url->password) ||
        take_part(u, CURLUPART_PATH, "/", &path))
        return -ENOMEM;
    int r = replace(&url->database, path[1] ? path + 1 : "default");
    if (!r)
        r = take_settings(err, u, url, &secure);
    if (!r && !url->table)
        r = replace(&url->table, url->dmilib ? "activations" : "dmi_records");
    if (!r)
        r = take_server(u, secure, &url->server);
    if (!r)
        r = complete_others(err, secure, url);
    if (!r && url->cluster)
        r = check_name(err, "cluster", url->cluster);
    if (!r)
        r = check_name(err, "database", url->database);
    return r ? r : check_name(err, "table", url->table);
}

static int parse(struct err *err, const char *where, struct clickhouse_url *out)
{
    _cleanup_(freep) char *whole = NULL;
    _cleanup_(curl_url_cleanupp) CURLU *u = clickhouse_curl.url();
    if (!u || asprintf(&whole, "http://%s", where) < 0) {
        whole = NULL;
        return err_set_errno(err, ENOMEM, "cannot replay");
    }
    if (clickhouse_curl.url_set(u, CURLUPART_URL, whole, 0))
        return err_set(err, -EINVAL, "clickhouse: no address: %s", form);
    int r = take_all(err, u, out);
    if (r == -ENOMEM)
        err_set_errno(err, ENOMEM, "cannot replay");
    return r;
}

int clickhouse_url_parse(struct err *err, const char *where, struct clickhouse_url *out)
{
    *out = (struct clickhouse_url){ 0 };
    int r = clickhouse_curl_load(err);
    return r ? r : parse(err, where, out);
}
