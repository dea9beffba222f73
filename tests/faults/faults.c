/* File operations that go wrong at one exact moment, for a whole process and whatever language it calls libc from.
 *
 * Preloaded. A plan says which operations count, below which folder, and what happens at the n-th of them: the process
 * (or the first one that had the plan) is killed, the operation fails, or moves half of its bytes. Or the clock on the
 * wall jumps. What was counted and what was done lies in a shared file, which outlives a kill.
 *
 * The plan is text: "OPERATIONS AT ACTION ERRNO\nSHARED FILE\nFOLDER"; the variable FAULTS has it for processes that are
 * started, `faults_arm` takes it in one that runs already.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { WRITE = 1, CREATE = 2, SYNC = 4, RENAME = 8, UNLINK = 16, MKDIR = 32, RESERVE = 64, READ = 128, LOOK = 256 };
enum { COUNT, KILL_BEFORE, KILL_HALFWAY, KILL_AFTER, FAIL_ONCE, FAIL_ON, SHORT, KILL_FIRST, JUMP };

struct shared {
    long seen, done, first; /* operations that counted, faults that happened, the process that was armed first */
    char what[496];         /* the path of the last fault */
};

static struct {
    unsigned operations;
    long at;
    int action, error;
    size_t length;
    char folder[4096];
    struct shared *shared;
} plan;

static __typeof__(&openat) real_openat;

void faults_arm(const char *text) {
    char file[4096];
    plan.length = 0;
    if (text == NULL || sscanf(text, "%u %ld %d %d\n%4095[^\n]\n%4095[^\n]", &plan.operations, &plan.at, &plan.action,
                               &plan.error, file, plan.folder) != 6)
        return;
    real_openat = dlsym(RTLD_NEXT, "openat");
    int opened = real_openat(AT_FDCWD, file, O_RDWR | O_CLOEXEC);
    if (opened < 0) return;
    plan.shared = mmap(NULL, sizeof *plan.shared, PROT_READ | PROT_WRITE, MAP_SHARED, opened, 0);
    close(opened);
    if (plan.shared == MAP_FAILED) return;
    long nobody = 0;
    __atomic_compare_exchange_n(&plan.shared->first, &nobody, (long)getpid(), 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
    plan.length = strlen(plan.folder);
}

__attribute__((constructor)) static void begin(void) { faults_arm(getenv("FAULTS")); }

static void die(long process) {
    if (process <= 0) return; /* never a whole group: it may be everybody's */
    kill((pid_t)process, SIGKILL);
    while (process == getpid()) pause();
}

/* Count an operation on a path; return what shall happen to it, COUNT where nothing shall. */
static int fate(unsigned operation, const char *path) {
    if (!plan.length || !(plan.operations & operation) || strncmp(path, plan.folder, plan.length)) return COUNT;
    if (path[plan.length] != '/' && path[plan.length] != 0) return COUNT;
    long now = __atomic_add_fetch(&plan.shared->seen, 1, __ATOMIC_SEQ_CST);
    int lasting = plan.action == FAIL_ON || plan.action == SHORT;
    if (plan.action == COUNT || (lasting ? now < plan.at : now != plan.at)) return COUNT;
    if (plan.action == SHORT && !(operation & (WRITE | READ))) return COUNT;
    __atomic_add_fetch(&plan.shared->done, 1, __ATOMIC_SEQ_CST);
    snprintf(plan.shared->what, sizeof plan.shared->what, "%s", path);
    if (plan.action == KILL_FIRST) die(plan.shared->first);
    if (plan.action == KILL_BEFORE || (plan.action == KILL_HALFWAY && !(operation & WRITE))) die(getpid());
    return plan.action;
}

static int fate_of_file(unsigned operation, int file) {
    char link[64], path[4096];
    if (!plan.length || !(plan.operations & operation)) return COUNT;
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length <= 0) return COUNT;
    path[length] = 0;
    return fate(operation, path);
}

static int fate_at(unsigned operation, int folder, const char *path) {
    char whole[8192];
    if (!plan.length || !(plan.operations & operation)) return COUNT;
    if (path[0] == '/') return fate(operation, path);
    if (folder == AT_FDCWD) {
        if (!getcwd(whole, 4096)) return COUNT;
    } else {
        char link[64];
        snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
        ssize_t length = readlink(link, whole, 4095);
        if (length <= 0) return COUNT;
        whole[length] = 0;
    }
    size_t length = strlen(whole);
    snprintf(whole + length, sizeof whole - length, "/%s", path);
    return fate(operation, whole);
}

static int fails(int action) { return action == FAIL_ONCE || action == FAIL_ON; }

#define REAL(name) static __typeof__(&name) real; if (!real) real = dlsym(RTLD_NEXT, #name)
#define AROUND(found, failed, call)                                     \
    int action = (found);                                               \
    if (fails(action)) { errno = plan.error; return failed; }           \
    __auto_type result = (call);                                        \
    if (action == KILL_AFTER) die(getpid());                            \
    return result

/* Bytes: half of them, and then the end, where that is asked for. */
#define MOVES(operation, name, parameters, whole, half, nbytes)         \
    ssize_t name parameters {                                           \
        REAL(name);                                                     \
        int action = fate_of_file(operation, file);                     \
        if (fails(action)) { errno = plan.error; return -1; }           \
        int less = (action == SHORT || action == KILL_HALFWAY) && (nbytes) > 1; \
        ssize_t result = less ? real half : real whole;                 \
        if (action == KILL_HALFWAY || action == KILL_AFTER) die(getpid()); \
        return result;                                                  \
    }

static struct iovec halved(const struct iovec *pieces) {
    return (struct iovec){pieces[0].iov_base, (pieces[0].iov_len + 1) / 2};
}

#define ONE(operation, name, pointer)                                   \
    MOVES(operation, name, (int file, pointer data, size_t nbytes),     \
          (file, data, nbytes), (file, data, (nbytes + 1) / 2), nbytes)
#define PLACED(operation, name, pointer, offset_type)                   \
    MOVES(operation, name, (int file, pointer data, size_t nbytes, offset_type at), \
          (file, data, nbytes, at), (file, data, (nbytes + 1) / 2, at), nbytes)
#define PIECES(operation, name)                                         \
    MOVES(operation, name, (int file, const struct iovec *pieces, int count), \
          (file, pieces, count), (file, (struct iovec[]){halved(pieces)}, 1), pieces[0].iov_len)
#define PLACED_PIECES(operation, name, offset_type)                     \
    MOVES(operation, name, (int file, const struct iovec *pieces, int count, offset_type at), \
          (file, pieces, count, at), (file, (struct iovec[]){halved(pieces)}, 1, at), pieces[0].iov_len)
#define FLAGGED_PIECES(operation, name, offset_type)                    \
    MOVES(operation, name, (int file, const struct iovec *pieces, int count, offset_type at, int flags), \
          (file, pieces, count, at, flags), (file, (struct iovec[]){halved(pieces)}, 1, at, flags), pieces[0].iov_len)

ONE(WRITE, write, const void *)
ONE(READ, read, void *)
PLACED(WRITE, pwrite, const void *, off_t)
PLACED(WRITE, pwrite64, const void *, off64_t)
PLACED(READ, pread, void *, off_t)
PLACED(READ, pread64, void *, off64_t)
PIECES(WRITE, writev)
PIECES(READ, readv)
PLACED_PIECES(WRITE, pwritev, off_t)
PLACED_PIECES(WRITE, pwritev64, off64_t)
PLACED_PIECES(READ, preadv, off_t)
PLACED_PIECES(READ, preadv64, off64_t)
FLAGGED_PIECES(READ, preadv2, off_t)
FLAGGED_PIECES(READ, preadv64v2, off64_t)
FLAGGED_PIECES(WRITE, pwritev2, off_t)
FLAGGED_PIECES(WRITE, pwritev64v2, off64_t)

static unsigned opening(int flags) { return flags & (O_CREAT | O_TRUNC) ? CREATE : (flags & O_ACCMODE) == O_RDONLY ? LOOK : 0; }

#define OPENS(name, parameters, folder, last, call)                     \
    int name parameters {                                               \
        REAL(name);                                                     \
        va_list more;                                                   \
        va_start(more, last);                                           \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0; \
        va_end(more);                                                   \
        AROUND(fate_at(opening(flags), folder, path), -1, call);        \
    }
OPENS(open, (const char *path, int flags, ...), AT_FDCWD, flags, real(path, flags, mode))
OPENS(open64, (const char *path, int flags, ...), AT_FDCWD, flags, real(path, flags, mode))
OPENS(openat, (int folder, const char *path, int flags, ...), folder, flags, real(folder, path, flags, mode))
OPENS(openat64, (int folder, const char *path, int flags, ...), folder, flags, real(folder, path, flags, mode))

int fsync(int file) { REAL(fsync); AROUND(fate_of_file(SYNC, file), -1, real(file)); }
int fdatasync(int file) { REAL(fdatasync); AROUND(fate_of_file(SYNC, file), -1, real(file)); }
int rename(const char *old, const char *new) { REAL(rename); AROUND(fate_at(RENAME, AT_FDCWD, new), -1, real(old, new)); }
int renameat(int from, const char *old, int to, const char *new) {
    REAL(renameat);
    AROUND(fate_at(RENAME, to, new), -1, real(from, old, to, new));
}
int unlink(const char *path) { REAL(unlink); AROUND(fate_at(UNLINK, AT_FDCWD, path), -1, real(path)); }
int unlinkat(int folder, const char *path, int flags) {
    REAL(unlinkat);
    AROUND(fate_at(UNLINK, folder, path), -1, real(folder, path, flags));
}
int mkdir(const char *path, mode_t mode) { REAL(mkdir); AROUND(fate_at(MKDIR, AT_FDCWD, path), -1, real(path, mode)); }
int mkdirat(int folder, const char *path, mode_t mode) {
    REAL(mkdirat);
    AROUND(fate_at(MKDIR, folder, path), -1, real(folder, path, mode));
}
int posix_fallocate(int file, off_t at, off_t nbytes) {
    REAL(posix_fallocate);
    AROUND(fate_of_file(RESERVE, file), plan.error, real(file, at, nbytes));
}
int posix_fallocate64(int file, off64_t at, off64_t nbytes) {
    REAL(posix_fallocate64);
    AROUND(fate_of_file(RESERVE, file), plan.error, real(file, at, nbytes));
}

/* Every seventh look at the clock finds another time: years ahead, years ago, an hour in between. */
int clock_gettime(clockid_t clock, struct timespec *now) {
    REAL(clock_gettime);
    static const long hours[] = {0, 1, -1, 9000, -26000, 87600};
    int result = real(clock, now);
    if (result == 0 && plan.length && plan.action == JUMP && clock == CLOCK_REALTIME) {
        long looks = __atomic_fetch_add(&plan.shared->seen, 1, __ATOMIC_SEQ_CST) + plan.at;
        if (looks % 7 == 0) __atomic_add_fetch(&plan.shared->done, 1, __ATOMIC_SEQ_CST);
        now->tv_sec += 3600 * hours[looks / 7 % 6];
    }
    return result;
}
