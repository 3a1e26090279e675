/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Calls that Syncline mounts answer beyond POSIX. Header only; needs nothing but the C library.
 *
 *   syncline_fsync2(fds, count)    fsync of many files with one log batch and at most one flush. After a crash, their changes
 *                                  that were not logged before come back all or nothing.
 *   syncline_fbarrier(fds, count)  Orders without making durable: if anything that was written, created or changed after the
 *                                  barrier survives a crash, anywhere in the filesystem, then so does all data written to these
 *                                  files before it. Waits for no flush.
 *
 * All must be regular files or directories, open on one mount. Both return 0, or -1 with errno:
 *
 *   ENOTTY  not a Syncline mount, or one of a version without this call: fall back to fsync(2)
 *   EXDEV   the files are not all on the same mount
 *   EINVAL  count is 0 or larger than SYNCLINE_FILES_MAX
 *   EFBIG   fsync2 only: more than 64 MiB of unwritten data in all; nothing was done: fsync(2) the large ones first
 *   ENOSPC, EIO, EROFS  as from fsync(2)
 *
 * The kernel passes on data written with write(2); pages that were written through mmap(2) are written back here first.
 *
 *   syncline_set_quota(fd, bytes, inodes)  Limits the bytes and inodes of the tree below a directory; fd is the directory. 0 is no
 *                                          limit, SYNCLINE_LIMIT_STAYS leaves one as it is. Counts the present files first.
 *                                          Later changes beyond a limit fail with EDQUOT.
 *   syncline_remove_quota(fd)              Removes the directory's quota; the files stay as they are.
 *   syncline_quota(fd, text, size)         The directory's limits and what its tree uses, as JSON; statvfs(2) in the tree tells
 *                                          the room that is left. Returns the length of the whole text, of which as much as fits is
 *                                          written, with a NUL behind it, as snprintf(3) does.
 *
 * The first two are for root and for the user whose daemon it is. They return 0, or -1 with errno:
 *
 *   ENOTTY  not a Syncline mount, or one of a version without quotas
 *   ENOTDIR, EINVAL  fd is no directory, or one that can't have a quota
 *   ENOENT  the directory has no quota (the last two calls)
 *   EBUSY   there is a quota above or below
 *   EOPNOTSUPP  the image was made without room for quotas
 *   EPERM, ENOSPC, EIO, EROFS
 *
 * For other languages: ioctl(any fd of the mount, _IOC(_IOC_WRITE, 0xF5, 0x54 or 0x55, 8 + 8 * count), &argument), where
 * the argument is struct syncline_files: numbers in the machine's byte order, the inodes being st_ino of the files. Quotas:
 * ioctl(fd of the directory, _IOC(_IOC_READ | _IOC_WRITE, 0xF5, 0x53, 16128), &message), where the message is first union
 * syncline_message's question, then its answer.
 */
#ifndef SYNCLINE_H
#define SYNCLINE_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>

#define SYNCLINE_FILES_MAX 2046

struct syncline_files {
	uint32_t count;
	uint32_t flags; /* must be 0 */
	uint64_t inodes[SYNCLINE_FILES_MAX];
};

#define SYNCLINE_IOC_FSYNC2(count) _IOC(_IOC_WRITE, 0xF5, 0x54, 8 + 8 * (count))
#define SYNCLINE_IOC_FBARRIER(count) _IOC(_IOC_WRITE, 0xF5, 0x55, 8 + 8 * (count))

static inline int syncline_name_files_(const int *fds, unsigned count, struct syncline_files *files)
{
	struct stat first, other;
	unsigned i;

	if (count == 0 || count > SYNCLINE_FILES_MAX) {
		errno = EINVAL;
		return -1;
	}
	files->count = count;
	files->flags = 0;
	if (fstat(fds[0], &first) != 0)
		return -1;
	for (i = 0; i < count; i++) {
		if (fstat(fds[i], &other) != 0)
			return -1;
		if (other.st_dev != first.st_dev) {
			errno = EXDEV;
			return -1;
		}
		if (S_ISREG(other.st_mode) &&
		    sync_file_range(fds[i], 0, 0,
				    SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER) != 0)
			return -1;
		files->inodes[i] = other.st_ino;
	}
	return 0;
}

static inline int syncline_fsync2(const int *fds, unsigned count)
{
	struct syncline_files files;

	if (syncline_name_files_(fds, count, &files) != 0)
		return -1;
	return ioctl(fds[0], SYNCLINE_IOC_FSYNC2(count), &files);
}

static inline int syncline_fbarrier(const int *fds, unsigned count)
{
	struct syncline_files files;

	if (syncline_name_files_(fds, count, &files) != 0)
		return -1;
	return ioctl(fds[0], SYNCLINE_IOC_FBARRIER(count), &files);
}

/* What else can be asked goes through one ioctl: a question goes in, and an answer comes out in its place. */
#define SYNCLINE_MESSAGE_BYTES 16128
#define SYNCLINE_MESSAGE_MAGIC "Sync"
#define SYNCLINE_IOC_ASK _IOC(_IOC_READ | _IOC_WRITE, 0xF5, 0x53, SYNCLINE_MESSAGE_BYTES)

#define SYNCLINE_ASK_SET_QUOTA 7
#define SYNCLINE_ASK_REMOVE_QUOTA 8
#define SYNCLINE_ASK_QUOTA 9

#define SYNCLINE_LIMIT_STAYS UINT64_MAX

struct syncline_question {
	char magic[4];
	uint32_t question;
	uint64_t snapshot; /* 0 here, as all that follows but the limits */
	uint64_t offset;
	char name[32];
	uint64_t limits[2]; /* SYNCLINE_ASK_SET_QUOTA: bytes and inodes */
};

struct syncline_answer {
	char magic[4];
	uint32_t len; /* of the text that follows */
	uint64_t snapshot;
	uint64_t total;
	char text[SYNCLINE_MESSAGE_BYTES - 24];
};

union syncline_message {
	struct syncline_question question;
	struct syncline_answer answer;
};

static inline int syncline_ask_(int fd, uint32_t question, union syncline_message *message)
{
	memcpy(message->question.magic, SYNCLINE_MESSAGE_MAGIC, sizeof message->question.magic);
	message->question.question = question;
	if (ioctl(fd, SYNCLINE_IOC_ASK, message) != 0)
		return -1;
	/* Somebody else's ioctl may have this number. */
	if (memcmp(message->answer.magic, SYNCLINE_MESSAGE_MAGIC, sizeof message->answer.magic) != 0 ||
	    message->answer.len > sizeof message->answer.text) {
		errno = ENOTTY;
		return -1;
	}
	return 0;
}

static inline int syncline_set_quota(int fd, uint64_t bytes, uint64_t inodes)
{
	union syncline_message message;

	memset(&message, 0, sizeof message);
	message.question.limits[0] = bytes;
	message.question.limits[1] = inodes;
	return syncline_ask_(fd, SYNCLINE_ASK_SET_QUOTA, &message);
}

static inline int syncline_remove_quota(int fd)
{
	union syncline_message message;

	memset(&message, 0, sizeof message);
	return syncline_ask_(fd, SYNCLINE_ASK_REMOVE_QUOTA, &message);
}

static inline int syncline_quota(int fd, char *text, size_t size)
{
	union syncline_message message;
	size_t len;

	memset(&message, 0, sizeof message);
	if (syncline_ask_(fd, SYNCLINE_ASK_QUOTA, &message) != 0)
		return -1;
	if (size > 0) {
		len = message.answer.len < size ? message.answer.len : size - 1;
		memcpy(text, message.answer.text, len);
		text[len] = 0;
	}
	return (int)message.answer.len;
}

#endif
