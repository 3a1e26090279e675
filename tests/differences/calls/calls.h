/*
 * System calls made on a filesystem, each with what it answered told in a line, so that two filesystems can be compared.
 *
 * A case is a few calls in an empty directory of its own. It runs in a process of its own, once as root and once as an
 * ordinary user; it tells nothing that differs by itself between two runs (numbers of inodes, the time).
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/fs.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

/* Who acts in the second run, and somebody who is neither that nor root. */
#define USER 65534
#define OTHER 1000
/* A group that the user is in besides its own. */
#define CLUB 4242

struct entry {
	const char *name;
	void (*run)(void);
	/* It calls act() itself, when root has prepared something. */
	bool prepared;
	/* Only root can do this. */
	bool root_only;
	struct entry *next;
};

void enter(struct entry *entry);

#define ENTRY(name, prepared, root_only) \
	static void name(void); \
	__attribute__((constructor)) static void enter_##name(void) \
	{ \
		static struct entry entry = { #name, name, prepared, root_only, NULL }; \
		enter(&entry); \
	} \
	static void name(void)

/* A case that root and the user run from its beginning. */
#define CASE(name) ENTRY(name, false, false)
/* One in which root prepares something before it calls act(). */
#define PREPARED(name) ENTRY(name, true, false)
/* One for root alone. */
#define ROOT_CASE(name) ENTRY(name, false, true)

/* From here on as who the run is for. */
void act(void);
/* Gives a path to who acts, or to somebody else. */
void own(const char *path);
void theirs(const char *path);
/* True in the user's run. */
bool is_user(void);

/* Tells a line. */
void tell(const char *format, ...) __attribute__((format(printf, 1, 2)));
void tell_result(const char *text, long result, int error);

/* Makes a call, tells it with its result or error, and gives the result. */
#define TRY(call) ({ errno = 0; long result_ = (long)(call); int error_ = errno; tell_result(#call, result_, error_); errno = error_; result_; })
/* The same where the result is a number that says nothing. */
#define FD(call) ({ errno = 0; int fd_ = (int)(call); int error_ = errno; tell_result(#call, fd_ < 0 ? -1 : 0, error_); fd_; })
/* Makes a call that can't fail for a reason of its own: an error ends the case, and is told. */
#define MUST(call) ({ long result_ = (long)(call); if (result_ < 0) fail(#call); result_; })
void fail(const char *text);

/* A new file with this many bytes of 'x'; one with a mode. */
void make(const char *path, size_t bytes);
void make_mode(const char *path, size_t bytes, mode_t mode);
/* A new open file. */
int fresh(const char *path);
/* Tells type, mode, links, owner, group and size, or the error. */
void look(const char *path);
/* Tells the mode. */
void mode_of(const char *path);
/* Tells size and blocks. */
void size_of(const char *path);
/* Tells bytes as runs. */
void bytes(const char *what, const void *data, size_t len);
/* Tells a file's contents as runs. */
void contents(const char *path);
/* Tells what of a path's times a call moves. */
struct stat stat_of(const char *path);
void tell_moved(const char *what, const char *path, struct stat before, struct stat after);
#define MOVES(path, call) ({ struct stat before_ = stat_of(path); usleep(12000); TRY(call); tell_moved(#call, path, before_, stat_of(path)); })
/* Runs a function in a child; tells if a signal ends it. */
void in_child(const char *what, void (*run)(void));
/* In shutdown.c. */
void shut_down(uint32_t how);
void shut_down_cached(void);
void tell_what_survived(void);
