/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Syncline inside a program: a crash-safe, checksummed filesystem in one file. Link with -lsyncline, or ask
 * `pkg-config --cflags --libs libsyncline`. (For programs that use a mount, there is syncline.h; both may be included.)
 *
 *   struct syncline_fs *fs;
 *   struct syncline_file *file;
 *   if (syncline_create("disk.img", 1ull << 30, 0, &fs) < 0)
 *           errx(1, "%s", syncline_last_error());
 *   syncline_file_open(fs, "/journal", O_RDWR | O_CREAT, 0644, &file);
 *   syncline_pwrite(file, "entry", 5, 0);
 *   if (syncline_fsync(file) < 0)                   // one flush; it and all names and attributes changed before are safe
 *           errx(1, "%s", syncline_last_error());
 *   syncline_file_close(file);
 *   syncline_close(fs);
 *
 * Results. Calls return 0, or a count of 0 or more where they say so; or a negative errno (-ENOENT), and then
 * syncline_last_error() has a text. errno itself is left alone. Beyond what the same calls of the C library answer:
 *
 *   -EFAULT   a pointer that must not be NULL is
 *   -EBUSY    the image is open or mounted elsewhere
 *   -EIO      the device failed, or what it returned is not what was written (checked at every read); or a bug in the
 *             library, which never unwinds into its caller: the text says which
 *   -EROFS    opened for reading only; or the log could not be written, and nothing can be acknowledged any more
 *   -EXDEV    handles of different images in one call
 *
 * Handles. They come from ..._open, syncline_create, syncline_opendir and so on, which store NULL when they fail, and end with the
 * ..._close of their kind, which always frees them. A handle may be used from several threads at once, but not during or after its
 * close. Files and directories may be closed after their image; it stays locked until then. Handles do not survive fork(2):
 * the threads that serve them stay behind.
 *
 * Pointers. Strings end with a zero byte and need not be UTF-8. The memory that a call reads or fills must stay in place, and unchanged
 * by others, until it returns; no call holds a pointer longer. Calls that fill a buffer of the caller's return the length of the whole
 * result (for text without the zero byte that is stored too); with size 0 they only return it, and -ERANGE means that it did not
 * fit and nothing was stored.
 *
 * Paths start at the root of the image, with or without a slash. Permissions are kept, not enforced.
 */
#ifndef LIBSYNCLINE_H
#define LIBSYNCLINE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct syncline_fs;
struct syncline_file;
struct syncline_dir;
struct syncline_transaction;

struct syncline_time {
	int64_t seconds; /* since 1970 */
	uint32_t nanoseconds;
	uint32_t reserved;
};

struct syncline_stat {
	uint64_t ino;
	uint64_t size; /* bytes; of a directory its entries */
	uint64_t blocks; /* 512-byte units allocated */
	uint32_t mode; /* type and permissions, as in <sys/stat.h> */
	uint32_t nlink;
	uint32_t uid;
	uint32_t gid;
	uint32_t rdev;
	uint32_t reserved;
	struct syncline_time atime;
	struct syncline_time mtime;
	struct syncline_time ctime;
	struct syncline_time btime;
};

#define SYNCLINE_NAME_BYTES 256

struct syncline_dirent {
	uint64_t ino;
	uint32_t mode; /* the type bits only: S_ISDIR(mode) and so on */
	uint32_t name_len;
	char name[SYNCLINE_NAME_BYTES];
};

struct syncline_space {
	uint64_t block_bytes;
	uint64_t blocks;
	uint64_t free;
	uint64_t available; /* what can be written before the image is full */
	uint64_t objects; /* files, directories and so on that exist */
	uint64_t objects_free; /* an estimate */
};

struct syncline_snapshot {
	char name[SYNCLINE_NAME_BYTES];
	struct syncline_time created;
	uint64_t used_bytes; /* most of them together with the present state or other snapshots */
	uint64_t exclusive_bytes; /* what comes back when it is deleted */
};

/* The text of the last call that failed in this thread, empty if none did; never NULL. Good until the next one fails. */
const char *syncline_last_error(void);

/*
 * Images
 */

#define SYNCLINE_READ_ONLY 1u
#define SYNCLINE_NO_IO_URING 2u /* the image is read and written without it, as where it does not work */
#define SYNCLINE_ENCRYPTED 4u /* the image is encrypted, under the key that was added last */

/* Makes an image file of this size, allocated and written whole, and opens it. What exists is not overwritten.
 * flags: any of SYNCLINE_NO_IO_URING and SYNCLINE_ENCRYPTED. */
int syncline_create(const char *image, uint64_t size_bytes, unsigned int flags, struct syncline_fs **fs);

/* Opens an image file or block device. What a crash left is recovered first (read-only: in memory). flags: any of SYNCLINE_READ_ONLY
 * and SYNCLINE_NO_IO_URING. */
int syncline_open(const char *image, unsigned int flags, struct syncline_fs **fs);

/* Adds a passphrase, or the contents of a key file: 1 to 4000 bytes, without a line break at their end if they have one. This process
 * tries it on every encrypted image that it opens from now on. Without a key, opening such an image fails with -ENOKEY; if no key opens
 * it, with -EKEYREJECTED. */
int syncline_add_key(const void *key, size_t size);

/* Forgets all keys. Images that are open stay open. */
int syncline_forget_keys(void);

/* Writes everything back and leaves an image with nothing to recover. Call syncline_sync first to be able to try again. */
int syncline_close(struct syncline_fs *fs);

/* Makes everything durable, by a checkpoint. */
int syncline_sync(const struct syncline_fs *fs);

int syncline_statfs(const struct syncline_fs *fs, struct syncline_space *space);

/* What was counted since the image was opened, as a JSON object. Returns its length; see "Pointers". */
int64_t syncline_statistics(const struct syncline_fs *fs, char *json, size_t size);

/*
 * Files
 */

/* flags as for open(2): O_RDONLY, O_WRONLY or O_RDWR, and any of O_CREAT, O_EXCL, O_TRUNC, O_APPEND. A directory can be opened with
 * O_RDONLY, to be synced. */
int syncline_file_open(const struct syncline_fs *fs, const char *path, int flags, uint32_t mode,
		       struct syncline_file **file);

/* Opens a new file that has no name, for reading and writing. It goes when it is closed, unless it was given one. */
int syncline_file_unnamed(const struct syncline_fs *fs, const char *directory, struct syncline_file **file);

/* Gives an open file another name, or its first one. -EEXIST if it is taken. */
int syncline_file_link(const struct syncline_file *file, const char *path);

/* Does not make anything durable: that is syncline_fsync's. */
int syncline_file_close(struct syncline_file *file);

/* Return the bytes read or written: fewer than count only at the end of the file, or where an error follows that the next call
 * returns. Files opened with O_APPEND are written at their end, whatever the offset. */
int64_t syncline_pread(const struct syncline_file *file, void *buffer, size_t count, uint64_t offset);
int64_t syncline_pwrite(const struct syncline_file *file, const void *data, size_t count, uint64_t offset);

/* Copies, sharing whole blocks at multiples of 4096 instead of writing them again. Returns the bytes copied. */
int64_t syncline_copy_range(const struct syncline_file *from, uint64_t offset, const struct syncline_file *to,
			    uint64_t to_offset, uint64_t count);

int syncline_ftruncate(const struct syncline_file *file, uint64_t size);
int syncline_fstat(const struct syncline_file *file, struct syncline_stat *stat);

/*
 * Durability
 */

/* When it returns 0, the file and every change of names and attributes that anybody made before survive any crash. One flush,
 * shared with all that wait at the same time; none if an earlier one covered it. */
int syncline_fsync(const struct syncline_file *file);

/* The same for the contents of the file. */
int syncline_fdatasync(const struct syncline_file *file);

/* Several files with one flush. What of them was not logged before comes back all or nothing after a crash. -EFBIG, before any
 * effect, for more than 64 MiB of unwritten data. */
int syncline_sync_many(const struct syncline_fs *fs, const struct syncline_file *const *files, size_t count);

/* Orders without making durable: after a crash, what was written to these files before is there if anything is that was written,
 * created or changed afterwards. Waits for no flush. */
int syncline_barrier(const struct syncline_fs *fs, const struct syncline_file *const *files, size_t count);

/* When changes of a file become durable, or of a directory and what is made in it from now on: "fsync", "ordered",
 * "ordered:SECONDS" (1 to 255) or "strict"; NULL: none of its own. In class ordered, the three calls that sync fix the order and
 * wait for no flush, which begins within the seconds; in class strict, every change is durable when its call returns. */
int syncline_set_durability(const struct syncline_fs *fs, const char *path, const char *durability);

/* The class that holds, in these words. Returns its length; see "Pointers". */
int64_t syncline_durability(const struct syncline_fs *fs, const char *path, char *durability, size_t size);

/*
 * Transactions
 *
 *   struct syncline_transaction *both;
 *   syncline_transaction_begin(fs, &both);
 *   syncline_transaction_write(both, "/balance", "70", 2);
 *   syncline_transaction_rename(both, "/invoice.new", "/invoice");
 *   if (syncline_transaction_commit(both) < 0)      // one flush; nothing has changed if it fails, but see below
 *           errx(1, "%s", syncline_last_error());
 *
 * The calls between begin and commit only collect: they look at nothing, and a path is looked up at the commit, where it sees what
 * the changes before it did. The commit makes all changes or none. After a crash all are there or none, and all when it has
 * returned 0 (in a tree of class ordered, as a sync there). Other threads see all or none: each other call comes wholly before it
 * or after it. A change that can't be made (another thread removed the file) fails the commit, and the text names it and its path.
 *
 * At most 64 MiB of data, in the blocks of 4 KiB that are touched and with values of attributes, and 16384 changes: more is -EFBIG, before any effect. Room and
 * quotas count as if nothing were given back. When the device fails in the midst of a commit, the text says whether all of it is
 * visible but not durable, and a later sync tries again; or that the image is read-only now and opens again as it was before.
 */

int syncline_transaction_begin(const struct syncline_fs *fs, struct syncline_transaction **transaction);

/* Both free the transaction, whatever they return. */
int syncline_transaction_commit(struct syncline_transaction *transaction);
int syncline_transaction_discard(struct syncline_transaction *transaction);

/* The file has these contents and no others. It is made, with mode 0644, if there is none. */
int syncline_transaction_write(const struct syncline_transaction *transaction, const char *path, const void *data, size_t size);

/* A part of a file that exists. */
int syncline_transaction_pwrite(const struct syncline_transaction *transaction, const char *path, const void *data, size_t size,
				uint64_t offset);

/* A file that must not exist. */
int syncline_transaction_create(const struct syncline_transaction *transaction, const char *path, uint32_t mode);

int syncline_transaction_mkdir(const struct syncline_transaction *transaction, const char *path, uint32_t mode);
int syncline_transaction_symlink(const struct syncline_transaction *transaction, const char *target, const char *path);
int syncline_transaction_rename(const struct syncline_transaction *transaction, const char *from, const char *to);
int syncline_transaction_unlink(const struct syncline_transaction *transaction, const char *path);
int syncline_transaction_rmdir(const struct syncline_transaction *transaction, const char *path);
int syncline_transaction_truncate(const struct syncline_transaction *transaction, const char *path, uint64_t size);
int syncline_transaction_chmod(const struct syncline_transaction *transaction, const char *path, uint32_t mode);

/* flags as for syncline_setxattr */
int syncline_transaction_setxattr(const struct syncline_transaction *transaction, const char *path, const char *name,
				  const void *value, size_t size, unsigned int flags);
int syncline_transaction_removexattr(const struct syncline_transaction *transaction, const char *path, const char *name);

/*
 * Names
 */

int syncline_mkdir(const struct syncline_fs *fs, const char *path, uint32_t mode);
int syncline_unlink(const struct syncline_fs *fs, const char *path);
int syncline_rmdir(const struct syncline_fs *fs, const char *path);

/* Removes a directory with everything in it. */
int syncline_remove_tree(const struct syncline_fs *fs, const char *path);

#define SYNCLINE_RENAME_NOREPLACE 1u
#define SYNCLINE_RENAME_EXCHANGE 2u

/* Replaces what is at `to`, unless a flag says otherwise: after a crash `to` is the old file or the new one, whole. */
int syncline_rename(const struct syncline_fs *fs, const char *from, const char *to, unsigned int flags);

int syncline_link(const struct syncline_fs *fs, const char *original, const char *path);
int syncline_symlink(const struct syncline_fs *fs, const char *target, const char *path);

/* Returns the length of the target; see "Pointers". */
int64_t syncline_readlink(const struct syncline_fs *fs, const char *path, char *target, size_t size);

int syncline_opendir(const struct syncline_fs *fs, const char *path, struct syncline_dir **dir);

/* Returns 1 with an entry, 0 at the end. "." and ".." are left out. */
int syncline_readdir(const struct syncline_dir *dir, struct syncline_dirent *entry);

int syncline_closedir(struct syncline_dir *dir);

/*
 * Attributes
 */

/* Of what a path leads to; lstat of a symbolic link itself. */
int syncline_stat(const struct syncline_fs *fs, const char *path, struct syncline_stat *stat);
int syncline_lstat(const struct syncline_fs *fs, const char *path, struct syncline_stat *stat);

int syncline_chmod(const struct syncline_fs *fs, const char *path, uint32_t mode);

/* (uint32_t)-1 leaves as it is. Does not follow a symbolic link at the end. */
int syncline_chown(const struct syncline_fs *fs, const char *path, uint32_t uid, uint32_t gid);

#define SYNCLINE_TIME_OMIT 0xffffffffu

/* times[0] is that of the last access, times[1] of the last change; nanoseconds SYNCLINE_TIME_OMIT leaves one as it is. */
int syncline_utimens(const struct syncline_fs *fs, const char *path, const struct syncline_time *times);

/* Returns the length of the value; see "Pointers". -ENODATA if it is not set. */
int64_t syncline_getxattr(const struct syncline_fs *fs, const char *path, const char *name, void *value,
			  size_t size);

#define SYNCLINE_XATTR_CREATE 1u
#define SYNCLINE_XATTR_REPLACE 2u

int syncline_setxattr(const struct syncline_fs *fs, const char *path, const char *name, const void *value,
		      size_t size, unsigned int flags);
int syncline_removexattr(const struct syncline_fs *fs, const char *path, const char *name);

/* All names, each with a zero byte after it. Returns the length of the list; see "Pointers". */
int64_t syncline_listxattr(const struct syncline_fs *fs, const char *path, char *names, size_t size);

/*
 * Snapshots
 */

/* Instant, whatever the size of the image. Everything written before is in it, and it is durable when this returns. The name is
 * 1 to 255 bytes of UTF-8. */
int syncline_snapshot_create(const struct syncline_fs *fs, const char *name);

/* -EBUSY while somebody has it open. */
int syncline_snapshot_delete(const struct syncline_fs *fs, const char *name);

/* Stores the first `count` snapshots, the oldest first, and returns how many there are. */
int64_t syncline_snapshot_list(const struct syncline_fs *fs, struct syncline_snapshot *list, size_t count);

/* Opens a snapshot for reading, beside whoever has the image open. flags: 0 or SYNCLINE_NO_IO_URING. */
int syncline_snapshot_open(const char *image, const char *name, unsigned int flags, struct syncline_fs **fs);

/* Makes an image that nobody has open what it was when the snapshot was made. All snapshots stay. */
int syncline_roll_back(const char *image, const char *name);

/*
 * Forks
 *
 * A fork is a writable image that begins as a snapshot of another image, its base, and shares the blocks of the snapshot. It is opened
 * like any image, and the base must be where it was; both may be in use at once. The base keeps the snapshot (syncline_snapshot_delete
 * returns -EBUSY) until the fork is released: by syncline_fork_detach, or by the command `syncline fork --forget IMAGE FORK` after the
 * fork was removed.
 */

/* Makes a fork of an image that nobody has open: the image file `new_image`. Takes milliseconds and about 30 KiB, whatever the size
 * of the image. -EEXIST if something is at `new_image`. */
int syncline_fork_create(const char *image, const char *snapshot, const char *new_image);

/* Opens a new fork that ends when it is closed: a sandbox, for example for a test. Others may have the image open. The fork's own
 * blocks lie in a file without a name in the directory of temporary files, $TMPDIR or /tmp. flags: 0 or SYNCLINE_NO_IO_URING. */
int syncline_fork_open(const char *image, const char *snapshot, unsigned int flags, struct syncline_fs **fs);

/* Makes a fork that nobody has open independent: copies the blocks that lie in its base to it, and releases it there. -EINVAL if it is
 * no fork. If the base can't be opened for writing, the call fails after the copy: the fork is independent then, but its
 * base still keeps the snapshot for it. */
int syncline_fork_detach(const char *image);

#ifdef __cplusplus
}
#endif

#endif
