#include "faults.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sqlite3.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static struct {
    atomic_bool on;
    int kinds;
    enum fault_mode mode;
    atomic_int left;             // calls until the one that fails
    const char *_Atomic what;    // the call that failed first
} faults;

void faults_begin(int kinds, enum fault_mode mode, int n)
{
    faults.kinds = kinds;
    faults.mode = mode;
    faults.left = n;
    faults.what = NULL;
    faults.on = true;
}

bool faults_end(const char **what)
{
    faults.on = false;
    *what = faults.what;
    return faults.what != NULL;
}

/* Does this call fail? room: it needs space on the disk. */
static bool fails(enum fault_kind kind, bool room, const char *what)
{
    if (!faults.on || !(faults.kinds & (int)kind))
        return false;
    int left = atomic_fetch_sub(&faults.left, 1);
    if (left > 1 || (left < 1 && (faults.mode != FAULT_FROM_THEN || (kind == FAULT_FILE && !room))))
        return false;
    if (left == 1 && faults.mode == FAULT_DEATH)
        _exit(FAULT_EXIT);
    const char *none = NULL;
    atomic_compare_exchange_strong(&faults.what, &none, what);
    errno = kind == FAULT_MEMORY ? ENOMEM : room ? ENOSPC : EIO;
    return true;
}

/* ---- the C library, by the linker ---- */

#define WRAP(type, name, params, args, kind, room, failed)                                                                                 \
    type __real_##name params;                                                                                                             \
    type __wrap_##name params;                                                                                                             \
    type __wrap_##name params                                                                                                              \
    {                                                                                                                                      \
        return fails(kind, room, #name) ? failed : __real_##name args;                                                                     \
    }

WRAP(void *, malloc, (size_t n), (n), FAULT_MEMORY, false, NULL)
WRAP(void *, calloc, (size_t n, size_t m), (n, m), FAULT_MEMORY, false, NULL)
WRAP(void *, realloc, (void *p, size_t n), (p, n), FAULT_MEMORY, false, NULL)
WRAP(char *, strdup, (const char *s), (s), FAULT_MEMORY, false, NULL)
WRAP(ssize_t, write, (int fd, const void *data, size_t n), (fd, data, n), FAULT_FILE, true, -1)
WRAP(ssize_t, pwrite, (int fd, const void *data, size_t n, off_t at), (fd, data, n, at), FAULT_FILE, true, -1)
WRAP(int, fsync, (int fd), (fd), FAULT_FILE, true, -1)
WRAP(int, ftruncate, (int fd, off_t n), (fd, n), FAULT_FILE, false, -1)
WRAP(int, rename, (const char *from, const char *to), (from, to), FAULT_FILE, false, -1)
WRAP(int, renameat2, (int a, const char *from, int b, const char *to, unsigned flags), (a, from, b, to, flags), FAULT_FILE, false, -1)
WRAP(int, mkdir, (const char *path, mode_t mode), (path, mode), FAULT_FILE, true, -1)
WRAP(int, unlink, (const char *path), (path), FAULT_FILE, false, -1)
WRAP(int, rmdir, (const char *path), (path), FAULT_FILE, false, -1)
WRAP(DIR *, opendir, (const char *path), (path), FAULT_FILE, false, NULL)
WRAP(void *, mmap, (void *at, size_t n, int prot, int flags, int fd, off_t off), (at, n, prot, flags, fd, off), FAULT_FILE, false,
     MAP_FAILED)

int __real_close(int fd);
int __wrap_close(int fd);
int __wrap_close(int fd)
{
    bool failed = fails(FAULT_FILE, true, "close");    // like a late write error: the descriptor is closed anyway
    int code = __real_close(fd), why = failed ? EIO : errno;
    errno = why;
    return failed ? -1 : code;
}

int __real_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...)
{
    va_list ap;
    va_start(ap, flags);
    int mode = flags & O_CREAT ? va_arg(ap, int) : 0;
    va_end(ap);
    return fails(FAULT_FILE, flags & O_CREAT, "open") ? -1 : __real_open(path, flags, mode);
}

/* ---- SQLite ---- */

struct file {
    sqlite3_file base;
    sqlite3_io_methods methods;
    sqlite3_file real[];    // the real VFS's file lies behind
};
static sqlite3_vfs *real_vfs;
static sqlite3_vfs shim;

#define REAL(f) (((struct file *)(f))->real)
#define SHIM(name, room, code, params, args)                                                                                               \
    static int file_##name params                                                                                                          \
    {                                                                                                                                      \
        return fails(FAULT_FILE, room, "sqlite " #name) ? code : REAL(f)->pMethods->name args;                                             \
    }
SHIM(xRead, false, SQLITE_IOERR_READ, (sqlite3_file * f, void *to, int n, sqlite3_int64 at), (REAL(f), to, n, at))
SHIM(xWrite, true, SQLITE_FULL, (sqlite3_file * f, const void *from, int n, sqlite3_int64 at), (REAL(f), from, n, at))
SHIM(xTruncate, false, SQLITE_IOERR_TRUNCATE, (sqlite3_file * f, sqlite3_int64 n), (REAL(f), n))
SHIM(xSync, true, SQLITE_IOERR_FSYNC, (sqlite3_file * f, int flags), (REAL(f), flags))
SHIM(xFileSize, false, SQLITE_IOERR_FSTAT, (sqlite3_file * f, sqlite3_int64 *n), (REAL(f), n))
SHIM(xShmMap, true, SQLITE_IOERR_SHMMAP, (sqlite3_file * f, int region, int n, int extend, void volatile **at),
     (REAL(f), region, n, extend, at))

static int file_xClose(sqlite3_file *f)
{
    return REAL(f)->pMethods->xClose(REAL(f));
}
static int file_xLock(sqlite3_file *f, int level)
{
    return REAL(f)->pMethods->xLock(REAL(f), level);
}
static int file_xUnlock(sqlite3_file *f, int level)
{
    return REAL(f)->pMethods->xUnlock(REAL(f), level);
}
static int file_xCheckReservedLock(sqlite3_file *f, int *out)
{
    return REAL(f)->pMethods->xCheckReservedLock(REAL(f), out);
}
static int file_xFileControl(sqlite3_file *f, int op, void *arg)
{
    return REAL(f)->pMethods->xFileControl(REAL(f), op, arg);
}
static int file_xSectorSize(sqlite3_file *f)
{
    return REAL(f)->pMethods->xSectorSize(REAL(f));
}
static int file_xDeviceCharacteristics(sqlite3_file *f)
{
    return REAL(f)->pMethods->xDeviceCharacteristics(REAL(f));
}
static int file_xShmLock(sqlite3_file *f, int offset, int n, int flags)
{
    return REAL(f)->pMethods->xShmLock(REAL(f), offset, n, flags);
}
static void file_xShmBarrier(sqlite3_file *f)
{
    REAL(f)->pMethods->xShmBarrier(REAL(f));
}
static int file_xShmUnmap(sqlite3_file *f, int remove)
{
    return REAL(f)->pMethods->xShmUnmap(REAL(f), remove);
}

static int shim_open(sqlite3_vfs *vfs, const char *name, sqlite3_file *f, int flags, int *out)
{
    (void)vfs;
    f->pMethods = NULL;
    if (fails(FAULT_FILE, flags & SQLITE_OPEN_CREATE, "sqlite xOpen"))
        return SQLITE_CANTOPEN;
    int code = real_vfs->xOpen(real_vfs, name, REAL(f), flags, out);
    if (!REAL(f)->pMethods)
        return code;
    sqlite3_io_methods *m = &((struct file *)f)->methods;
    *m = (sqlite3_io_methods){
        .iVersion = 2,
        .xClose = file_xClose,
        .xRead = file_xRead,
        .xWrite = file_xWrite,
        .xTruncate = file_xTruncate,
        .xSync = file_xSync,
        .xFileSize = file_xFileSize,
        .xLock = file_xLock,
        .xUnlock = file_xUnlock,
        .xCheckReservedLock = file_xCheckReservedLock,
        .xFileControl = file_xFileControl,
        .xSectorSize = file_xSectorSize,
        .xDeviceCharacteristics = file_xDeviceCharacteristics,
        .xShmMap = file_xShmMap,
        .xShmLock = file_xShmLock,
        .xShmBarrier = file_xShmBarrier,
        .xShmUnmap = file_xShmUnmap,
    };
    f->pMethods = m;
    return code;
}

static int shim_delete(sqlite3_vfs *vfs, const char *name, int sync)
{
    (void)vfs;
    return fails(FAULT_FILE, false, "sqlite xDelete") ? SQLITE_IOERR_DELETE : real_vfs->xDelete(real_vfs, name, sync);
}

static sqlite3_mem_methods real_memory;

static void *sqlite_malloc(int n)
{
    return fails(FAULT_MEMORY, false, "sqlite malloc") ? NULL : real_memory.xMalloc(n);
}

static void *sqlite_realloc(void *p, int n)
{
    return fails(FAULT_MEMORY, false, "sqlite realloc") ? NULL : real_memory.xRealloc(p, n);
}

void faults_install(void)
{
    sqlite3_config(SQLITE_CONFIG_GETMALLOC, &real_memory);
    sqlite3_mem_methods memory = real_memory;
    memory.xMalloc = sqlite_malloc;
    memory.xRealloc = sqlite_realloc;
    sqlite3_config(SQLITE_CONFIG_MALLOC, &memory);
    sqlite3_config(SQLITE_CONFIG_LOOKASIDE, 0, 0);    // every allocation goes through the allocator
    sqlite3_initialize();
    real_vfs = sqlite3_vfs_find(NULL);
    shim = *real_vfs;
    shim.zName = "faults";
    shim.szOsFile = (int)sizeof(struct file) + real_vfs->szOsFile;
    shim.xOpen = shim_open;
    shim.xDelete = shim_delete;
    sqlite3_vfs_register(&shim, 1);
}
