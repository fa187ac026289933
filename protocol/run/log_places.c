#include "protocol/run/log_places.h"
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "protocol/base/file.h"

#define FIRST_BYTES (16 << 10)

bool log_name_is_fine(const char *name)
{
    size_t n = strlen(name);
    return n > 4 && n < sizeof(((struct log_place *)0)->name) && name[0] != '.' && !strchr(name, '/') && strcmp(name + n - 4, ".log") == 0;
}

struct log_place *log_place_of(struct log_place place[LOG_PLACES], int *n, const char *name)
{
    for (int i = 0; i < *n; i++)
        if (strcmp(place[i].name, name) == 0)
            return &place[i];
    if (*n == LOG_PLACES || !log_name_is_fine(name))
        return NULL;
    struct log_place *p = &place[(*n)++];
    *p = (struct log_place){ .at = -1 };
    snprintf(p->name, sizeof(p->name), "%s", name);
    return p;
}

void log_places_look(const char *dir, struct log_place place[LOG_PLACES], int *n)
{
    DIR *d = opendir(dir);
    for (struct dirent *e; d && (e = readdir(d)) != NULL;)
        (void)log_place_of(place, n, e->d_name);
    if (d)
        closedir(d);
}

size_t log_place_read(const char *dir, struct log_place *f, char *text, size_t room, int64_t *skipped)
{
    char path[4200];
    struct stat st;
    *skipped = 0;
    if (!path_join(path, sizeof(path), dir, f->name))
        return 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        if (fd >= 0)
            close(fd);
        return 0;
    }
    bool first = f->at < 0;
    if (first || st.st_size < f->at)
        f->at = first && st.st_size > FIRST_BYTES ? st.st_size - FIRST_BYTES : 0;
    bool cut = first && f->at > 0;    // starts inside a line
    if (st.st_size - f->at > (int64_t)room) {
        *skipped = st.st_size - (int64_t)room - f->at;
        f->at += *skipped;
        cut = true;
    }
    ssize_t n = pread(fd, text, room, f->at);
    close(fd);
    if (n <= 0)
        return 0;
    char *end = memrchr(text, '\n', (size_t)n);
    if (!end)
        return 0;
    size_t len = (size_t)(end - text) + 1;
    f->at += (int64_t)len;
    if (cut) {
        char *start = memchr(text, '\n', len);
        size_t drop = (size_t)(start - text) + 1;
        memmove(text, text + drop, len - drop);
        len -= drop;
    }
    return len;
}
