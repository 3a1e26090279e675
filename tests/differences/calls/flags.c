/* ioctl(2): flags of inodes, and what else filesystems answer. */
#include "calls.h"
#include <linux/fiemap.h>

/* Not in the headers of every system. */
struct uuid { uint8_t len, uuid[16]; };
struct sysfs_path { uint8_t len, name[128]; };
#define GET_UUID _IOR(0x15, 0, struct uuid)
#define GET_SYSFS_PATH _IOR(0x15, 1, struct sysfs_path)
#define SHUTDOWN _IOR('X', 125, uint32_t)

/* That its inodes have extents, and its directories an index, ext4 tells as flags; who leaves them out changes them. */
#define LAYOUT 0x81000

static int flags_of(const char *path, int *flags, int set)
{
	int fd = open(path, O_RDONLY | O_NONBLOCK), result, error;

	if (fd < 0)
		return -1;
	result = ioctl(fd, FS_IOC_GETFLAGS, flags);
	if (result >= 0 && set >= 0) {
		*flags = (*flags & LAYOUT) | set;
		result = ioctl(fd, FS_IOC_SETFLAGS, flags);
	}
	error = errno;
	close(fd);
	errno = error;
	return result;
}

static int set_flags(const char *path, int set)
{
	int flags = 0;

	return flags_of(path, &flags, set);
}

static long get_flags(const char *path)
{
	int flags = 0;

	return flags_of(path, &flags, -1) < 0 ? -1 : flags & ~LAYOUT;
}

static void each_flag(const char *path, int wanted)
{
	for (int bit = 0; bit < 31; bit++)
		if (wanted & 1 << bit) {
			tell("flag %x of %s", 1 << bit, path);
			TRY(set_flags(path, 1 << bit));
			TRY(get_flags(path));
			TRY(set_flags(path, 0));
		}
}

#define KNOWN (FS_IMMUTABLE_FL | FS_APPEND_FL | FS_NODUMP_FL | FS_NOATIME_FL)

CASE(flags_that_forbid)
{
	make("f", 1);
	MUST(mkdir("d", 0755));
	each_flag("f", KNOWN);
	each_flag("d", KNOWN);
	TRY(set_flags("f", FS_NODUMP_FL | FS_NOATIME_FL));
	TRY(get_flags("f"));
}

CASE(flag_to_compress) { make("f", 1); each_flag("f", FS_COMPR_FL); }
CASE(flag_not_to_compress) { make("f", 1); each_flag("f", FS_NOCOMP_FL); }
CASE(flags_to_delete_safely) { make("f", 1); each_flag("f", FS_SECRM_FL | FS_UNRM_FL); }
CASE(flag_to_write_at_once) { make("f", 1); each_flag("f", FS_SYNC_FL); }
CASE(flag_to_write_directories_at_once) { MUST(mkdir("d", 0755)); each_flag("d", FS_DIRSYNC_FL); }
CASE(flag_to_journal_data) { make("f", 1); each_flag("f", FS_JOURNAL_DATA_FL); }
CASE(flag_of_the_tops_of_hierarchies) { MUST(mkdir("d", 0755)); each_flag("d", FS_TOPDIR_FL); }
CASE(flag_not_to_merge_tails) { make("f", 1); each_flag("f", FS_NOTAIL_FL); }
CASE(flag_not_to_copy_on_write) { make("f", 1); each_flag("f", FS_NOCOW_FL); }
CASE(flag_of_direct_access) { make("f", 1); each_flag("f", FS_DAX_FL); }
CASE(flag_to_fold_cases) { MUST(mkdir("d", 0755)); each_flag("d", FS_CASEFOLD_FL); }
CASE(flag_to_hand_projects_down) { MUST(mkdir("d", 0755)); each_flag("d", FS_PROJINHERIT_FL); }
CASE(flags_that_nobody_knows) { make("f", 1); each_flag("f", 0x01000000 | 0x04000000); }

CASE(flags_of_other_kinds)
{
	MUST(mkfifo("fifo", 0644));
	MUST(symlink("x", "link"));
	TRY(get_flags("fifo"));
	TRY(set_flags("fifo", FS_NODUMP_FL));
	TRY(ioctl(open("link", O_PATH | O_NOFOLLOW), FS_IOC_GETFLAGS, &(int){ 0 }));
}

PREPARED(flags_of_the_files_of_others)
{
	make_mode("f", 1, 0666);
	theirs("f");
	act();
	TRY(get_flags("f"));
	TRY(set_flags("f", FS_NODUMP_FL));
	TRY(set_flags("f", FS_IMMUTABLE_FL));
}

CASE(flags_are_handed_down)
{
	MUST(mkdir("d", 0755));
	TRY(set_flags("d", FS_NODUMP_FL | FS_NOATIME_FL));
	make("d/f", 1);
	MUST(mkdir("d/d", 0755));
	TRY(get_flags("d/f"));
	TRY(get_flags("d/d"));
}

CASE(times_that_flags_move)
{
	make("f", 1);
	MOVES("f", set_flags("f", FS_NODUMP_FL));
	MOVES("f", get_flags("f"));
	MOVES("f", set_flags("f", FS_NODUMP_FL));
	MOVES("f", set_flags("f", 0));
}

CASE(extended_flags)
{
	struct fsxattr flags = { .fsx_xflags = FS_XFLAG_NODUMP | FS_XFLAG_NOATIME };
	int fd = fresh("f");

	TRY(ioctl(fd, FS_IOC_FSSETXATTR, &flags));
	memset(&flags, 0xff, sizeof(flags));
	TRY(ioctl(fd, FS_IOC_FSGETXATTR, &flags));
	tell("%x, extent size %u, project %u, copy on write %u", flags.fsx_xflags & ~0x80000000, flags.fsx_extsize, flags.fsx_projid,
	     flags.fsx_cowextsize);
	flags.fsx_xflags = 0;
	TRY(ioctl(fd, FS_IOC_FSSETXATTR, &flags));
}

CASE(extended_flags_of_others)
{
	struct fsxattr flags = { .fsx_xflags = FS_XFLAG_EXTSIZE, .fsx_extsize = 4096 };
	int fd = fresh("f");

	TRY(ioctl(fd, FS_IOC_FSSETXATTR, &flags));
	flags = (struct fsxattr){ .fsx_xflags = FS_XFLAG_REALTIME };
	TRY(ioctl(fd, FS_IOC_FSSETXATTR, &flags));
}

CASE(projects)
{
	struct fsxattr flags = { .fsx_projid = 7 };

	TRY(ioctl(fresh("f"), FS_IOC_FSSETXATTR, &flags));
}

static void open_flagged(const char *name)
{
	TRY(close(open(name, O_RDONLY)));
	TRY(close(open(name, O_WRONLY)));
	TRY(close(open(name, O_RDWR)));
	TRY(close(open(name, O_WRONLY | O_APPEND)));
	TRY(close(open(name, O_RDWR | O_APPEND)));
	TRY(close(open(name, O_RDWR | O_CREAT, 0644)));
}

static void truncate_flagged(const char *name)
{
	TRY(close(open(name, O_WRONLY | O_TRUNC)));
	TRY(close(open(name, O_WRONLY | O_TRUNC | O_APPEND)));
	TRY(truncate(name, 0));
	TRY(truncate(name, 100));
}

static void ask_flagged(const char *name)
{
	TRY(access(name, R_OK));
	TRY(access(name, W_OK));
	TRY(access(name, F_OK));
}

static void change_flagged(const char *name)
{
	TRY(chmod(name, 0600));
	TRY(chown(name, -1, -1));
	TRY(chown(name, is_user() ? USER : 0, -1));
	TRY(utimensat(AT_FDCWD, name, NULL, 0));
	TRY(utimensat(AT_FDCWD, name, (struct timespec[2]){ { 5, 0 }, { 5, 0 } }, 0));
	TRY(utimensat(AT_FDCWD, name, (struct timespec[2]){ { 0, UTIME_OMIT }, { 0, UTIME_OMIT } }, 0));
	TRY(setxattr(name, "user.x", "y", 1, 0));
	TRY(removexattr(name, "user.there"));
	TRY(getxattr(name, "user.there", NULL, 0));
	TRY(link(name, "linked"));
	TRY(rename(name, "renamed"));
	TRY(rename("other", name));
	TRY(unlink(name));
}

static void enter_flagged(const char *name)
{
	char path[40];

	sprintf(path, "%s/new", name);
	TRY(close(open(path, O_CREAT | O_RDWR, 0644)));
	sprintf(path, "%s/directory", name);
	TRY(mkdir(path, 0755));
	sprintf(path, "%s/link", name);
	TRY(link("other", path));
	sprintf(path, "%s/there", name);
	TRY(close(open(path, O_RDWR)));
	TRY(rename(path, "out"));
	TRY(unlink(path));
	TRY(chmod(name, 0700));
	TRY(rmdir(name));
	TRY(rename(name, "moved"));
	TRY(access(path, W_OK));
	TRY(close(open(name, O_TMPFILE | O_RDWR, 0644)));
}

static void write_opened(int fd)
{
	TRY(pwrite(fd, "y", 1, 0));
	TRY(write(fd, "y", 1));
	TRY(ftruncate(fd, 5));
	TRY(fallocate(fd, 0, 0, 100000));
	TRY(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096));
	TRY(fchmod(fd, 0600));
}

static void prepare_flagged(int flag, bool directory)
{
	make("other", 5);
	own("other");
	if (directory) {
		MUST(mkdir("f", 0755));
		make("f/there", 3);
		own("f/there");
	} else {
		make("f", 10);
	}
	own("f");
	MUST(setxattr("f", "user.there", "v", 1, 0));
	MUST(set_flags("f", flag));
}

/* What is done with the file is done in a child: root takes the flag away after it, as nobody could remove the file otherwise. */
static void flagged(int flag, bool directory, void (*run)(const char *))
{
	int status;
	pid_t child;

	prepare_flagged(flag, directory);
	child = MUST(fork());
	if (child == 0) {
		act();
		run("f");
		_exit(0);
	}
	MUST(waitpid(child, &status, 0));
	MUST(set_flags("f", 0));
}

PREPARED(immutable_files_are_opened) { flagged(FS_IMMUTABLE_FL, false, open_flagged); }
PREPARED(immutable_files_are_truncated) { flagged(FS_IMMUTABLE_FL, false, truncate_flagged); }
PREPARED(immutable_files_are_asked_about) { flagged(FS_IMMUTABLE_FL, false, ask_flagged); }
PREPARED(immutable_files_are_changed) { flagged(FS_IMMUTABLE_FL, false, change_flagged); }
PREPARED(immutable_directories) { flagged(FS_IMMUTABLE_FL, true, enter_flagged); }
PREPARED(append_only_files_are_opened) { flagged(FS_APPEND_FL, false, open_flagged); }
PREPARED(append_only_files_are_truncated) { flagged(FS_APPEND_FL, false, truncate_flagged); }
PREPARED(append_only_files_are_asked_about) { flagged(FS_APPEND_FL, false, ask_flagged); }
PREPARED(append_only_files_are_changed) { flagged(FS_APPEND_FL, false, change_flagged); }
PREPARED(append_only_directories) { flagged(FS_APPEND_FL, true, enter_flagged); }

static void written_before(int flag)
{
	int fd;

	make("f", 10);
	fd = MUST(open("f", O_RDWR));
	MUST(set_flags("f", flag));
	write_opened(fd);
	MUST(set_flags("f", 0));
	tell("size %ld", (long)stat_of("f").st_size);
}

ROOT_CASE(immutable_files_that_were_open) { written_before(FS_IMMUTABLE_FL); }
ROOT_CASE(append_only_files_that_were_open) { written_before(FS_APPEND_FL); }

ROOT_CASE(append_only_files_grow)
{
	int fd;

	make("f", 10);
	MUST(set_flags("f", FS_APPEND_FL));
	fd = MUST(open("f", O_WRONLY | O_APPEND));
	TRY(write(fd, "abc", 3));
	TRY(pwrite(fd, "abc", 3, 0));
	TRY(ftruncate(fd, 0));
	TRY(ftruncate(fd, 100));
	TRY(fallocate(fd, 0, 0, 100000));
	TRY(fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, 200000));
	TRY(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096));
	MUST(set_flags("f", 0));
	tell("size %ld", (long)stat_of("f").st_size);
}

ROOT_CASE(append_only_files_are_no_longer_appended_to)
{
	int fd;

	make("f", 10);
	MUST(set_flags("f", FS_APPEND_FL));
	fd = MUST(open("f", O_WRONLY | O_APPEND));
	TRY(fcntl(fd, F_SETFL, 0));
	MUST(set_flags("f", 0));
}

ROOT_CASE(flags_that_statx_tells)
{
	struct statx stat;

	for (int flag = FS_IMMUTABLE_FL; flag <= FS_NODUMP_FL; flag *= 2) {
		make("f", 1);
		MUST(set_flags("f", flag));
		MUST(statx(AT_FDCWD, "f", 0, STATX_BASIC_STATS, &stat));
		tell("flag %x: attributes %llx", flag, (unsigned long long)stat.stx_attributes);
		MUST(set_flags("f", 0));
		MUST(unlink("f"));
	}
}

CASE(versions)
{
	long version = -1, other = -1;
	int fd = fresh("f"), next = fresh("g"), directory;

	TRY(ioctl(fd, FS_IOC_GETVERSION, &version));
	TRY(ioctl(next, FS_IOC_GETVERSION, &other));
	tell("they differ: %d", (int)version != (int)other);
	TRY(ioctl(fd, FS_IOC_GETVERSION, &other));
	tell("it stays: %d", (int)version == (int)other);
	MUST(mkdir("d", 0755));
	directory = MUST(open("d", O_RDONLY));
	TRY(ioctl(directory, FS_IOC_GETVERSION, &version));
}

CASE(versions_are_set)
{
	long version = 5;

	TRY(ioctl(fresh("f"), FS_IOC_SETVERSION, &version));
}

CASE(extents_are_told)
{
	struct { struct fiemap map; struct fiemap_extent extent[4]; } extents = { .map = { .fm_length = ~0, .fm_extent_count = 4 } };
	int fd;

	make("f", 10000);
	fd = MUST(open("f", O_RDONLY));
	MUST(fsync(fd));
	TRY(ioctl(fd, FS_IOC_FIEMAP, &extents));
}

CASE(blocks_are_told)
{
	int block = 0, fd;

	make("f", 10000);
	fd = MUST(open("f", O_RDONLY));
	MUST(fsync(fd));
	TRY(ioctl(fd, FIBMAP, &block));
}

CASE(sizes_that_ioctls_tell)
{
	int number = -1, fd;

	make("f", 10000);
	fd = MUST(open("f", O_RDONLY));
	TRY(ioctl(fd, FIGETBSZ, &number));
	tell("block of %d bytes", number);
	TRY(ioctl(fd, FIONREAD, &number));
	tell("%d bytes to read", number);
	TRY(ioctl(fd, FIONBIO, &(int){ 0 }));
	TRY(ioctl(fd, FIOCLEX));
}

CASE(identity_of_the_filesystem)
{
	unsigned char room[200] = { 0 };

	TRY(ioctl(open(".", O_RDONLY), GET_UUID, room));
	tell("%d bytes", room[0]);
}

CASE(place_of_the_filesystem_in_sysfs)
{
	unsigned char room[200];

	TRY(ioctl(open(".", O_RDONLY), GET_SYSFS_PATH, room));
}

CASE(label_of_the_filesystem)
{
	char label[FSLABEL_MAX] = "x";

	TRY(ioctl(open(".", O_RDONLY), FS_IOC_GETFSLABEL, label));
	tell("'%s'", label);
	if (is_user())
		TRY(ioctl(open(".", O_RDONLY), FS_IOC_SETFSLABEL, label));
	memset(label, 'x', sizeof(label));
	TRY(ioctl(open(".", O_RDONLY), FS_IOC_SETFSLABEL, label));
}

static int trim(uint64_t start, uint64_t len, uint64_t least)
{
	struct fstrim_range range = { start, len, least };
	int fd = MUST(open(".", O_RDONLY)), result = ioctl(fd, FITRIM, &range), error = errno;

	close(fd);
	errno = error;
	return result;
}

CASE(trimming)
{
	TRY(trim(0, ~0ull, 0));
	TRY(trim(0, 1 << 20, 0));
	TRY(trim(0, 100, 0));
	TRY(trim(0, 0, 0));
	TRY(trim(0, 4095, 0));
	TRY(trim(100, 4096, 0));
	TRY(trim(0, ~0ull, 4097));
	TRY(trim(1ull << 50, 1 << 20, 0));
	TRY(trim(0, ~0ull, ~0ull));
}

CASE(trimming_in_runs_longer_than_a_group)
{
	TRY(trim(0, ~0ull, 1 << 28));
}

CASE(commands_that_nobody_knows)
{
	int fd = fresh("f");

	TRY(ioctl(fd, _IO('S', 77)));
	TRY(ioctl(fd, _IOR('f', 99, long), &(long){ 0 }));
	TRY(ioctl(fd, TIOCGWINSZ, &(char[64]){ 0 }));
	TRY(ioctl(open(".", O_RDONLY), _IO('S', 77)));
}

CASE(verity)
{
	unsigned char room[128] = { 1 };

	make("f", 100);
	TRY(ioctl(open("f", O_RDONLY), _IOW('f', 133, unsigned char[128]), room));
	TRY(ioctl(open("f", O_RDONLY), _IOWR('f', 134, unsigned char[4]), room));
}

CASE(encryption)
{
	unsigned char room[128] = { 0 };

	TRY(ioctl(open(".", O_RDONLY), _IOW('f', 21, unsigned char[12]), room));
	TRY(ioctl(open(".", O_RDONLY), _IOR('f', 19, unsigned char[12]), room));
}

CASE(freezing_by_users)
{
	if (is_user())
		TRY(ioctl(open(".", O_RDONLY), FIFREEZE, 0));
	TRY(ioctl(open(".", O_RDONLY), FITHAW, 0));
}

CASE(shutting_down_by_users)
{
	uint32_t how = 7;

	TRY(ioctl(open(".", O_RDONLY), SHUTDOWN, &how));
	if (is_user())
		TRY(ioctl(open(".", O_RDONLY), SHUTDOWN, &(uint32_t){ 0 }));
}
