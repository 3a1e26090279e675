/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Calls that Syncline mounts answer beyond POSIX. Header only; needs nothing but the C library.
 *
 *   syncline_fsync2(fds, count)    fsync of many files with one log batch and at most one flush. What of them was not logged
 *                                  before comes back all or nothing after a crash.
 *   syncline_fbarrier(fds, count)  Orders without making durable: after a crash, what was written to these files before is
 *                                  there if anything that was written, created or changed afterwards is, anywhere in the
 *                                  filesystem. Waits for no flush.
 *
 * All must be regular files or directories, open on one mount. Both return 0, or -1 with errno:
 *
 *   ENOTTY  not a Syncline mount, or one of a version without this call: fall back to fsync(2)
 *   EXDEV   the files are not all on the same mount
 *   EINVAL  count is 0 or larger than SYNCLINE_FILES_MAX
 *   EFBIG   fsync2 only: more than 64 MiB of unwritten data in all; nothing was done: fsync(2) the large ones first
 *   ENOSPC, EIO, EROFS  as from fsync(2)
 *
 * The kernel passes on what was written with write(2); pages that were written through mmap(2) are pushed out here first.
 *
 * For other languages: ioctl(any fd of the mount, _IOC(_IOC_WRITE, 0xF5, 0x54 or 0x55, 8 + 8 * count), &argument), where
 * the argument is struct syncline_files: numbers in the machine's byte order, the inodes being st_ino of the files.
 */
#ifndef SYNCLINE_H
#define SYNCLINE_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
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

#endif
