// Does to one file what its input says, line by line. Answers each line with a number: a negative
// errno, 0, or the value asked for. The second argument says how the file is opened: r, w (reading
// and writing) or d (past the cache).
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static int fd, spare = -1;
static char *map;

static long result(long value) { return value < 0 ? -errno : value; }

static unsigned char *room(long len) {
    void *contents;
    if (posix_memalign(&contents, 4096, len)) abort();
    return contents;
}

static long write_bytes(long from, long len, long byte) {
    unsigned char *contents = room(len);
    memset(contents, (int)byte, len);
    long written = result(pwrite(fd, contents, len, from));
    free(contents);
    return written;
}

// The byte that a range consists of: 256 if there are several, 257 if it is shorter.
static long same(long from, long len) {
    unsigned char *contents = room(len);
    long got = result(pread(fd, contents, len, from));
    long byte = got < 0 ? got : got < len ? 257 : contents[0];
    for (long at = 0; at < got && byte >= 0 && byte < 256; at++)
        if (contents[at] != byte) byte = 256;
    free(contents);
    return byte;
}

// A child ends, which has all descriptors too.
static long fork_and_end(void) {
    pid_t child = fork();
    if (child == 0) _exit(0);
    return result(waitpid(child, NULL, 0)) > 0 ? 0 : -1;
}

static long answer(const char *word, long a, long b, long c) {
    struct stat told;
    uint32_t features = 0;
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 1};
    if (!strcmp(word, "ioctl")) return result(ioctl(fd, _IO(0xf5, a)));
    if (!strcmp(word, "features")) return ioctl(fd, _IOR(0xf5, 12, uint32_t), &features) ? -errno : (long)features;
    if (!strcmp(word, "write")) return write_bytes(a, b, c);
    if (!strcmp(word, "same")) return same(a, b);
    if (!strcmp(word, "size")) return fstat(fd, &told) ? -errno : told.st_size;
    if (!strcmp(word, "mtime")) return fstat(fd, &told) ? -errno : told.st_mtim.tv_sec * 1000000000 + told.st_mtim.tv_nsec;
    if (!strcmp(word, "truncate")) return result(ftruncate(fd, a));
    if (!strcmp(word, "punch")) return result(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, a, b));
    if (!strcmp(word, "fsync")) return result(fsync(fd));
    if (!strcmp(word, "dup")) return (spare = dup(fd)) < 0 ? -errno : 0;
    if (!strcmp(word, "close-spare")) return result(close(spare));
    if (!strcmp(word, "close")) return result(close(fd));
    if (!strcmp(word, "fork")) return fork_and_end();
    if (!strcmp(word, "lock")) return result(fcntl(fd, F_SETLKW, &lock));
    if (!strcmp(word, "map")) {
        map = mmap(NULL, a, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        return map == MAP_FAILED ? -errno : 0;
    }
    if (!strcmp(word, "store")) return memset(map + a, (int)c, b), 0;
    if (!strcmp(word, "mapped")) return (unsigned char)map[a];
    if (!strcmp(word, "msync")) return result(msync(map, a, MS_SYNC));
    return -EINVAL;
}

int main(int argc, char **arguments) {
    if (argc != 3) return 2;
    int flags = arguments[2][0] == 'r' ? O_RDONLY : arguments[2][0] == 'd' ? O_RDWR | O_DIRECT : O_RDWR;
    if ((fd = open(arguments[1], flags)) < 0) return 1;
    char line[200], word[20];
    while (fgets(line, sizeof line, stdin)) {
        long a = 0, b = 0, c = 0;
        if (sscanf(line, "%19s %ld %ld %ld", word, &a, &b, &c) < 1) return 3;
        printf("%ld\n", answer(word, a, b, c));
        fflush(stdout);
    }
    return 0;
}
