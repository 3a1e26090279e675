/* A C program that uses the library on an image at argv[1]. Says what failed and exits with 1. */
/* Both headers in one program; this one asks the C library for GNU extensions, and so comes first. */
#include <syncline.h>
#include <errno.h>
#include <fcntl.h>
#include <libsyncline.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define LARGE (9u << 20)

/* For opening images: with a third argument, without io_uring. */
static unsigned int flags;

static void expect(int holds, const char *what, int line)
{
	if (!holds) {
		fprintf(stderr, "program.c:%d: %s\nlast error: %s\n", line, what, syncline_last_error());
		exit(1);
	}
}
#define EXPECT(condition) expect((condition), #condition, __LINE__)
#define DONE(call) expect((call) == 0, #call, __LINE__)

static struct syncline_file *open_file(const struct syncline_fs *fs, const char *path, int flags)
{
	struct syncline_file *file;

	DONE(syncline_file_open(fs, path, flags, 0640, &file));
	return file;
}

static void files(struct syncline_fs *fs)
{
	struct syncline_file *file = open_file(fs, "/file", O_RDWR | O_CREAT | O_EXCL), *other, *none;
	struct syncline_stat stat;
	char small[16] = { 0 };
	unsigned char *large = malloc(LARGE), *back = malloc(LARGE);
	size_t i;

	for (i = 0; i < LARGE; i++)
		large[i] = (unsigned char)(i % 251);
	EXPECT(syncline_pwrite(file, "hello", 5, 3) == 5);
	EXPECT(syncline_pread(file, small, sizeof small, 0) == 8);
	EXPECT(memcmp(small, "\0\0\0hello", 8) == 0);
	EXPECT(syncline_pwrite(file, large, LARGE, 100) == LARGE);
	EXPECT(syncline_pread(file, back, LARGE, 100) == LARGE);
	EXPECT(memcmp(large, back, LARGE) == 0);
	EXPECT(syncline_pread(file, back, 10, UINT64_MAX - 4) == -EINVAL);
	EXPECT(syncline_pread(file, NULL, 0, 0) == 0);
	DONE(syncline_fsync(file));
	other = open_file(fs, "/copy", O_WRONLY | O_CREAT);
	EXPECT(syncline_copy_range(file, 0, other, 0, UINT64_MAX) == (int64_t)LARGE + 100);
	DONE(syncline_ftruncate(other, 5000));
	DONE(syncline_fstat(other, &stat));
	EXPECT(stat.size == 5000 && S_ISREG(stat.mode) && (stat.mode & 07777) == 0640 && stat.nlink == 1);
	EXPECT(syncline_pread(other, small, 1, 0) == -EBADF);
	EXPECT(syncline_file_open(fs, "/file", O_RDWR | O_CREAT | O_EXCL, 0600, &none) == -EEXIST && none == NULL);
	EXPECT(syncline_file_open(fs, "/file", O_RDWR | O_SYNC, 0600, &none) == -EINVAL);
	DONE(syncline_file_close(other));
	other = open_file(fs, "/copy", O_WRONLY | O_APPEND | O_TRUNC);
	EXPECT(syncline_pwrite(other, "one", 3, 900) == 3 && syncline_pwrite(other, "two", 3, 0) == 3);
	DONE(syncline_file_close(other));
	other = open_file(fs, "/copy", O_RDONLY);
	memset(small, 0, sizeof small);
	EXPECT(syncline_pread(other, small, sizeof small, 0) == 6 && strcmp(small, "onetwo") == 0);
	DONE(syncline_file_close(other));
	DONE(syncline_file_unnamed(fs, "/", &other));
	EXPECT(syncline_pwrite(other, "whole", 5, 0) == 5);
	EXPECT(syncline_file_link(other, "/copy") == -EEXIST);
	DONE(syncline_file_link(other, "/appeared"));
	DONE(syncline_file_close(other));
	DONE(syncline_file_close(file));
	free(large);
	free(back);
}

static void names(struct syncline_fs *fs)
{
	struct syncline_dir *dir;
	struct syncline_dirent entry;
	struct syncline_stat stat;
	char target[32];
	int seen = 0, result;

	DONE(syncline_mkdir(fs, "/dir", 0700));
	EXPECT(syncline_mkdir(fs, "/dir", 0700) == -EEXIST);
	DONE(syncline_file_close(open_file(fs, "/dir/a", O_WRONLY | O_CREAT)));
	DONE(syncline_link(fs, "/dir/a", "/dir/b"));
	DONE(syncline_symlink(fs, "a", "/dir/link"));
	DONE(syncline_opendir(fs, "dir", &dir));
	while ((result = syncline_readdir(dir, &entry)) == 1) {
		EXPECT(entry.name_len == strlen(entry.name));
		seen += strcmp(entry.name, "a") == 0 && S_ISREG(entry.mode);
		seen += strcmp(entry.name, "b") == 0 && S_ISREG(entry.mode);
		seen += strcmp(entry.name, "link") == 0 && S_ISLNK(entry.mode);
	}
	EXPECT(result == 0 && seen == 3);
	DONE(syncline_closedir(dir));
	EXPECT(syncline_opendir(fs, "/dir/a", &dir) == -ENOTDIR && dir == NULL);
	EXPECT(syncline_readlink(fs, "/dir/link", NULL, 0) == 1);
	EXPECT(syncline_readlink(fs, "/dir/link", target, 1) == -ERANGE);
	EXPECT(syncline_readlink(fs, "/dir/link", target, 2) == 1 && strcmp(target, "a") == 0);
	EXPECT(syncline_rename(fs, "/dir/a", "/dir/b", SYNCLINE_RENAME_NOREPLACE) == -EEXIST);
	EXPECT(syncline_rename(fs, "/dir/a", "/dir/b", 64) == -EINVAL);
	DONE(syncline_rename(fs, "/dir/a", "/dir/c", 0));
	EXPECT(syncline_stat(fs, "/dir/link", &stat) == -ENOENT);
	DONE(syncline_lstat(fs, "/dir/link", &stat));
	EXPECT(S_ISLNK(stat.mode));
	DONE(syncline_unlink(fs, "/dir/c"));
	EXPECT(syncline_rmdir(fs, "/dir") == -ENOTEMPTY);
	DONE(syncline_remove_tree(fs, "/dir"));
	EXPECT(syncline_stat(fs, "/dir", &stat) == -ENOENT);
	EXPECT(strstr(syncline_last_error(), "no such file") != NULL);
}

static void attributes(struct syncline_fs *fs)
{
	struct syncline_time times[2] = { { 0, SYNCLINE_TIME_OMIT, 0 }, { -5, 7, 0 } };
	struct syncline_space space;
	struct syncline_stat stat;
	char value[8], *json;
	int64_t size;

	DONE(syncline_chmod(fs, "/file", 04711));
	DONE(syncline_chown(fs, "/file", 12, (uint32_t)-1));
	DONE(syncline_utimens(fs, "/file", times));
	DONE(syncline_stat(fs, "/file", &stat));
	EXPECT(stat.uid == 12 && stat.mtime.seconds == -5 && stat.mtime.nanoseconds == 7 && stat.atime.seconds > 0);
	times[1].nanoseconds = 1000000000;
	EXPECT(syncline_utimens(fs, "/file", times) == -EINVAL);
	DONE(syncline_setxattr(fs, "/file", "user.a", "12345", 5, 0));
	EXPECT(syncline_setxattr(fs, "/file", "user.a", "1", 1, SYNCLINE_XATTR_CREATE) == -EEXIST);
	EXPECT(syncline_getxattr(fs, "/file", "user.a", NULL, 0) == 5);
	EXPECT(syncline_getxattr(fs, "/file", "user.a", value, 4) == -ERANGE);
	EXPECT(syncline_getxattr(fs, "/file", "user.a", value, 8) == 5 && memcmp(value, "12345", 5) == 0);
	EXPECT(syncline_listxattr(fs, "/file", value, 8) == 7 && strcmp(value, "user.a") == 0);
	DONE(syncline_removexattr(fs, "/file", "user.a"));
	EXPECT(syncline_getxattr(fs, "/file", "user.a", value, 8) == -ENODATA);
	DONE(syncline_statfs(fs, &space));
	EXPECT(space.block_bytes == 4096 && space.free < space.blocks && space.objects > 3);
	size = syncline_statistics(fs, NULL, 0);
	json = malloc((size_t)size + 100);
	EXPECT(size > 0 && syncline_statistics(fs, json, (size_t)size + 100) >= size && json[0] == '{');
	free(json);
}

struct work {
	struct syncline_file *file;
	uint64_t at;
};

static void *append_and_sync(void *argument)
{
	struct work *work = argument;
	int i;

	for (i = 0; i < 20; i++) {
		EXPECT(syncline_pwrite(work->file, "0123456789", 10, work->at + 10 * (uint64_t)i) == 10);
		DONE(syncline_fdatasync(work->file));
	}
	/* Each thread has a text of its own. */
	EXPECT(strcmp(syncline_last_error(), "") == 0);
	return NULL;
}

static void transactions(struct syncline_fs *fs)
{
	struct syncline_transaction *all;
	struct syncline_stat stat;
	char value[8];

	DONE(syncline_mkdir(fs, "/t", 0755));
	DONE(syncline_transaction_begin(fs, &all));
	DONE(syncline_transaction_create(all, "/t/file", 0600));
	DONE(syncline_transaction_write(all, "/t/balance", "100 and more", 12));
	DONE(syncline_transaction_pwrite(all, "/t/balance", "70 ", 3, 0));
	DONE(syncline_transaction_truncate(all, "/t/balance", 2));
	DONE(syncline_transaction_setxattr(all, "/t/balance", "user.a", "b", 1, SYNCLINE_XATTR_CREATE));
	DONE(syncline_transaction_setxattr(all, "/t/balance", "user.c", "d", 1, 0));
	DONE(syncline_transaction_removexattr(all, "/t/balance", "user.c"));
	DONE(syncline_transaction_mkdir(all, "/t/dir", 0700));
	DONE(syncline_transaction_symlink(all, "balance", "/t/link"));
	DONE(syncline_transaction_rename(all, "/t/file", "/t/dir/moved"));
	DONE(syncline_transaction_chmod(all, "/t/dir/moved", 0640));
	DONE(syncline_transaction_mkdir(all, "/t/gone", 0700));
	DONE(syncline_transaction_rmdir(all, "/t/gone"));
	EXPECT(syncline_stat(fs, "/t/balance", &stat) == -ENOENT);
	DONE(syncline_transaction_commit(all));
	DONE(syncline_stat(fs, "/t/link", &stat));
	EXPECT(stat.size == 2);
	EXPECT(syncline_getxattr(fs, "/t/balance", "user.a", value, sizeof(value)) == 1 && value[0] == 'b');
	EXPECT(syncline_getxattr(fs, "/t/balance", "user.c", value, sizeof(value)) == -ENODATA);
	DONE(syncline_stat(fs, "/t/dir/moved", &stat));
	EXPECT((stat.mode & 07777) == 0640);

	DONE(syncline_transaction_begin(fs, &all));
	DONE(syncline_transaction_write(all, "/t/balance", "0", 1));
	DONE(syncline_transaction_unlink(all, "/t/none"));
	EXPECT(syncline_transaction_setxattr(all, "/t/balance", "user.a", "b", 1, 4) == -EINVAL);
	EXPECT(syncline_transaction_write(all, NULL, "0", 1) == -EFAULT);
	EXPECT(syncline_transaction_commit(all) == -ENOENT);
	EXPECT(strcmp(syncline_last_error(), "remove /t/none: no such file or directory") == 0);
	DONE(syncline_stat(fs, "/t/balance", &stat));
	EXPECT(stat.size == 2);
	DONE(syncline_transaction_begin(fs, &all));
	DONE(syncline_transaction_unlink(all, "/t/balance"));
	DONE(syncline_transaction_discard(all));
	DONE(syncline_remove_tree(fs, "/t"));
	EXPECT(syncline_transaction_commit(NULL) == -EFAULT);
}

static void syncs(struct syncline_fs *fs, struct syncline_fs *stranger)
{
	struct syncline_file *files[2] = { open_file(fs, "/one", O_RDWR | O_CREAT), open_file(fs, "/two", O_RDWR | O_CREAT) };
	struct syncline_file *strange = open_file(stranger, "/strange", O_RDWR | O_CREAT);
	const struct syncline_file *group[3] = { files[0], files[1], strange };
	struct work work[4];
	pthread_t threads[4];
	char class[16];
	int i;

	EXPECT(syncline_pwrite(files[0], "1", 1, 0) == 1 && syncline_pwrite(files[1], "2", 1, 0) == 1);
	DONE(syncline_barrier(fs, group, 2));
	DONE(syncline_sync_many(fs, group, 2));
	DONE(syncline_set_durability(fs, "/one", "ordered:9"));
	EXPECT(syncline_durability(fs, "/one", class, sizeof(class)) == 9 && strcmp(class, "ordered:9") == 0);
	DONE(syncline_fsync(files[0]));
	DONE(syncline_set_durability(fs, "/one", NULL));
	EXPECT(syncline_durability(fs, "/one", class, sizeof(class)) == 5 && strcmp(class, "fsync") == 0);
	EXPECT(syncline_set_durability(fs, "/one", "never") == -EINVAL);
	EXPECT(syncline_set_durability(fs, "/none", "strict") == -ENOENT);
	EXPECT(syncline_sync_many(fs, group, 3) == -EXDEV);
	group[2] = NULL;
	EXPECT(syncline_sync_many(fs, group, 3) == -EFAULT);
	for (i = 0; i < 4; i++) {
		work[i].file = files[i % 2];
		work[i].at = 1000 * (uint64_t)i;
		EXPECT(pthread_create(&threads[i], NULL, append_and_sync, &work[i]) == 0);
	}
	for (i = 0; i < 4; i++)
		EXPECT(pthread_join(threads[i], NULL) == 0);
	DONE(syncline_file_close(files[0]));
	DONE(syncline_file_close(files[1]));
	DONE(syncline_file_close(strange));
}

static void snapshots(struct syncline_fs *fs, const char *image)
{
	struct syncline_snapshot list[2];
	struct syncline_fs *before;
	struct syncline_file *file;
	char text[4] = { 0 };

	file = open_file(fs, "/state", O_RDWR | O_CREAT);
	EXPECT(syncline_pwrite(file, "old", 3, 0) == 3);
	DONE(syncline_snapshot_create(fs, "first"));
	EXPECT(syncline_snapshot_create(fs, "first") == -EEXIST);
	EXPECT(syncline_snapshot_create(fs, "a/b") == -EINVAL);
	EXPECT(syncline_pwrite(file, "new", 3, 0) == 3);
	DONE(syncline_file_close(file));
	DONE(syncline_snapshot_create(fs, "second"));
	EXPECT(syncline_snapshot_list(fs, NULL, 0) == 2);
	memset(list, 0xff, sizeof list);
	EXPECT(syncline_snapshot_list(fs, list, 1) == 2 && strcmp(list[0].name, "first") == 0);
	EXPECT(list[0].created.seconds > 1000000000 && list[0].used_bytes >= list[0].exclusive_bytes);
	EXPECT((unsigned char)list[1].name[0] == 0xff);
	DONE(syncline_snapshot_open(image, "first", flags, &before));
	file = open_file(before, "/state", O_RDONLY);
	EXPECT(syncline_pread(file, text, 3, 0) == 3 && strcmp(text, "old") == 0);
	EXPECT(syncline_snapshot_delete(fs, "first") == -EBUSY);
	DONE(syncline_file_close(file));
	DONE(syncline_close(before));
	DONE(syncline_snapshot_delete(fs, "second"));
	EXPECT(syncline_snapshot_delete(fs, "second") == -ENOENT);
}

/* Of an image that is closed; "first" is one of its snapshots. */
static void forks(const char *image)
{
	struct syncline_fs *fork, *base;
	struct syncline_file *file;
	char path[4096], text[4] = { 0 };

	EXPECT(snprintf(path, sizeof path, "%s.fork", image) < (int)sizeof path);
	DONE(syncline_open(image, flags, &base));
	DONE(syncline_snapshot_create(base, "third"));
	DONE(syncline_fork_open(image, "third", flags, &fork));
	file = open_file(fork, "/state", O_RDWR);
	EXPECT(syncline_pwrite(file, "fork", 4, 0) == 4);
	DONE(syncline_fsync(file));
	DONE(syncline_file_close(file));
	EXPECT(syncline_snapshot_delete(base, "third") == -EBUSY);
	DONE(syncline_close(fork));
	file = open_file(base, "/state", O_RDONLY);
	EXPECT(syncline_pread(file, text, 3, 0) == 3 && strcmp(text, "new") == 0);
	DONE(syncline_file_close(file));
	EXPECT(syncline_fork_open(image, "third", SYNCLINE_READ_ONLY, &fork) == -EINVAL && fork == NULL);
	EXPECT(syncline_fork_open(image, "\xff", flags, &fork) == -EINVAL);
	EXPECT(syncline_fork_open(image, NULL, flags, &fork) == -EFAULT);
	EXPECT(syncline_fork_open(image, "none", flags, &fork) < 0 && fork == NULL);
	EXPECT(syncline_fork_create(image, "third", path) == -EBUSY);
	EXPECT(syncline_fork_create(image, "third", NULL) == -EFAULT);
	EXPECT(strcmp(syncline_last_error(), "'new_image' is NULL") == 0);
	EXPECT(syncline_fork_detach(NULL) == -EFAULT && syncline_fork_detach(path) == -ENOENT);
	DONE(syncline_close(base));
	if (flags != 0)
		return;

	DONE(syncline_fork_create(image, "first", path));
	EXPECT(syncline_fork_create(image, "first", path) == -EEXIST);
	DONE(syncline_open(path, flags, &fork));
	file = open_file(fork, "/state", O_RDWR);
	EXPECT(syncline_pread(file, text, 3, 0) == 3 && strcmp(text, "old") == 0);
	EXPECT(syncline_pwrite(file, "own", 3, 0) == 3);
	DONE(syncline_file_close(file));
	EXPECT(syncline_fork_detach(path) == -EBUSY);
	DONE(syncline_close(fork));
	DONE(syncline_fork_detach(path));
	EXPECT(syncline_fork_detach(path) == -EINVAL);
	DONE(syncline_open(path, flags, &fork));
	file = open_file(fork, "/state", O_RDONLY);
	EXPECT(syncline_pread(file, text, 3, 0) == 3 && strcmp(text, "own") == 0);
	DONE(syncline_file_close(file));
	DONE(syncline_close(fork));
	EXPECT(remove(path) == 0);

	/* The base is in use when the fork becomes independent. */
	DONE(syncline_fork_create(image, "third", path));
	DONE(syncline_open(image, flags, &base));
	EXPECT(syncline_fork_detach(path) == -EBUSY);
	EXPECT(strstr(syncline_last_error(), "needs its base no longer, but") != NULL);
	EXPECT(syncline_snapshot_delete(base, "third") == -EBUSY);
	DONE(syncline_close(base));
	DONE(syncline_open(path, flags | SYNCLINE_READ_ONLY, &fork));
	DONE(syncline_close(fork));
	EXPECT(remove(path) == 0);
}

/* An image of its own, beside the one of the other tests. */
static void keys(const char *image)
{
	struct syncline_fs *fs;
	char path[4096];

	EXPECT(snprintf(path, sizeof path, "%s.encrypted", image) < (int)sizeof path);
	EXPECT(syncline_create(path, 32 << 20, flags | SYNCLINE_ENCRYPTED, &fs) == -ENOKEY && fs == NULL);
	EXPECT(syncline_add_key("", 0) == -EINVAL && syncline_add_key(NULL, 1) == -EFAULT);
	DONE(syncline_add_key("secret\n", 7));
	DONE(syncline_create(path, 32 << 20, flags | SYNCLINE_ENCRYPTED, &fs));
	DONE(syncline_file_close(open_file(fs, "/hidden", O_RDWR | O_CREAT)));
	DONE(syncline_close(fs));
	DONE(syncline_forget_keys());
	EXPECT(syncline_open(path, flags, &fs) == -ENOKEY && fs == NULL);
	DONE(syncline_add_key("other", 5));
	EXPECT(syncline_open(path, flags, &fs) == -EKEYREJECTED && fs == NULL);
	DONE(syncline_add_key("secret", 6));
	DONE(syncline_open(path, flags, &fs));
	DONE(syncline_file_close(open_file(fs, "/hidden", O_RDONLY)));
	DONE(syncline_close(fs));
	EXPECT(syncline_open(path, flags | SYNCLINE_ENCRYPTED, &fs) == -EINVAL);
	EXPECT(remove(path) == 0);
}

static void refusals(const char *image)
{
	struct syncline_fs *fs = (void *)image;

	EXPECT(syncline_open(image, flags, &fs) == -EBUSY && fs == NULL);
	EXPECT(syncline_create(image, 32u << 20, flags, &fs) < 0);
	EXPECT(syncline_open("/nowhere/at/all", 0, &fs) == -ENOENT);
	EXPECT(syncline_open(image, 99, &fs) == -EINVAL);
	EXPECT(syncline_open(NULL, 0, &fs) == -EFAULT);
	EXPECT(strcmp(syncline_last_error(), "'image' is NULL") == 0);
	EXPECT(syncline_open(image, 0, NULL) == -EFAULT);
	EXPECT(syncline_close(NULL) == -EFAULT && syncline_file_close(NULL) == -EFAULT);
	EXPECT(syncline_fsync(NULL) == -EFAULT && syncline_mkdir(NULL, "/x", 0) == -EFAULT);
}

int main(int argc, char **argv)
{
	struct syncline_fs *fs, *other;
	struct syncline_file *file;
	char byte;

	EXPECT(argc == 3 || argc == 4);
	flags = argc == 4 ? SYNCLINE_NO_IO_URING : 0;
	EXPECT(strcmp(syncline_last_error(), "") == 0);
	DONE(syncline_create(argv[1], 64u << 20, flags, &fs));
	DONE(syncline_create(argv[2], 32u << 20, flags, &other));
	files(fs);
	transactions(fs);
	syncs(fs, other);
	names(fs);
	attributes(fs);
	snapshots(fs, argv[1]);
	refusals(argv[1]);
	DONE(syncline_close(other));
	DONE(syncline_sync(fs));
	DONE(syncline_close(fs));

	forks(argv[1]);
	keys(argv[1]);
	if (flags == 0)
		DONE(syncline_roll_back(argv[1], "first"));
	DONE(syncline_open(argv[1], flags | SYNCLINE_READ_ONLY, &fs));
	file = open_file(fs, "/state", O_RDONLY);
	EXPECT(syncline_pread(file, &byte, 1, 0) == 1 && byte == (flags == 0 ? 'o' : 'n'));
	DONE(syncline_file_close(file));
	file = open_file(fs, "/two", O_RDONLY);
	EXPECT(syncline_pread(file, &byte, 1, 1009) == 1 && byte == '9');
	EXPECT(syncline_mkdir(fs, "/x", 0700) == -EROFS);
	DONE(syncline_close(fs));
	DONE(syncline_file_close(file));
	puts("all is well");
	return 0;
}
