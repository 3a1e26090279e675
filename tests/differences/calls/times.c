/* utimensat(2), statx(2). */
#include "calls.h"
#include <time.h>

static void tell_times(const char *path)
{
	struct stat stat = stat_of(path);

	tell("%s: atime %ld.%09ld, mtime %ld.%09ld", path, (long)stat.st_atim.tv_sec, stat.st_atim.tv_nsec,
	     (long)stat.st_mtim.tv_sec, stat.st_mtim.tv_nsec);
}

static int set(const char *path, long atime, long atime_ns, long mtime, long mtime_ns)
{
	struct timespec times[2] = { { atime, atime_ns }, { mtime, mtime_ns } };

	return utimensat(AT_FDCWD, path, times, 0);
}

CASE(times_are_set)
{
	make("f", 1);
	TRY(set("f", 1000, 1, 2000, 999999999));
	tell_times("f");
	TRY(set("f", 1, 0, 1, 1000000000));
	TRY(set("f", 1, -5, 1, 0));
	TRY(set("f", 3000, UTIME_OMIT, 3000, 7));
	tell_times("f");
	TRY(set("f", 0, UTIME_OMIT, 0, UTIME_OMIT));
	TRY(set("none", 0, UTIME_OMIT, 0, UTIME_OMIT));
	TRY(set("f", -1, 500, -100000, 0));
	tell_times("f");
	TRY(utimensat(AT_FDCWD, "f", NULL, 0x8));
}

CASE(times_that_setting_moves)
{
	make("f", 1);
	MOVES("f", set("f", 0, UTIME_NOW, 0, UTIME_NOW));
	MOVES("f", set("f", 0, UTIME_OMIT, 0, UTIME_NOW));
	MOVES("f", set("f", 0, UTIME_NOW, 0, UTIME_OMIT));
	MOVES("f", set("f", 0, UTIME_OMIT, 0, UTIME_OMIT));
	MOVES("f", utimensat(AT_FDCWD, "f", NULL, 0));
	MOVES("f", chmod("f", 0644));
	MOVES("f", chmod("f", 0600));
	MOVES("f", chown("f", geteuid(), getegid()));
	MOVES("f", setxattr("f", "user.x", "y", 1, 0));
	MOVES("f", setxattr("f", "user.x", "z", 1, 0));
	MOVES("f", getxattr("f", "user.x", NULL, 0));
	MOVES("f", removexattr("f", "user.x"));
	MOVES("f", access("f", R_OK));
}

CASE(times_that_setting_the_same_attribute_moves)
{
	make("f", 1);
	MUST(setxattr("f", "user.x", "y", 1, 0));
	MOVES("f", setxattr("f", "user.x", "y", 1, 0));
}

PREPARED(setting_the_times_of_others)
{
	make_mode("writable", 1, 0666);
	theirs("writable");
	make_mode("readable", 1, 0644);
	theirs("readable");
	make_mode("mine", 1, 0000);
	own("mine");
	act();
	TRY(utimensat(AT_FDCWD, "writable", NULL, 0));
	TRY(set("writable", 0, UTIME_NOW, 0, UTIME_NOW));
	TRY(set("writable", 5, 0, 5, 0));
	TRY(set("writable", 0, UTIME_NOW, 0, UTIME_OMIT));
	TRY(set("writable", 0, UTIME_OMIT, 0, UTIME_OMIT));
	TRY(utimensat(AT_FDCWD, "readable", NULL, 0));
	TRY(set("readable", 5, 0, 5, 0));
	TRY(set("mine", 5, 0, 5, 0));
	TRY(utimensat(AT_FDCWD, "mine", NULL, 0));
}

CASE(times_up_to_2446)
{
	make("f", 1);
	TRY(set("f", 4294967296, 5, 15032385534, 6));
	tell_times("f");
	TRY(set("f", -2147483648, 0, -2147483647, 9));
	tell_times("f");
}

CASE(times_beyond_2446)
{
	make("f", 1);
	TRY(set("f", 15032385536, 5, 20000000000, 6));
	tell_times("f");
}

CASE(times_before_1901)
{
	make("f", 1);
	TRY(set("f", -2147483649, 5, -3000000000, 6));
	tell_times("f");
}

static struct statx statx_of(const char *path, int flags, unsigned mask)
{
	struct statx stat;

	memset(&stat, 0, sizeof(stat));
	TRY(statx(AT_FDCWD, path, flags, mask, &stat));
	return stat;
}

CASE(statx_tells_the_basics)
{
	struct statx stat;

	make("f", 100);
	MUST(mkdir("d", 0755));
	stat = statx_of("f", 0, STATX_BASIC_STATS | STATX_BTIME);
	tell("mask %x, mode %o, links %u, size %llu, blksize %u", stat.stx_mask & (STATX_BASIC_STATS | STATX_BTIME), stat.stx_mode,
	     stat.stx_nlink, (unsigned long long)stat.stx_size, stat.stx_blksize);
	stat = statx_of("d", AT_STATX_FORCE_SYNC, STATX_BASIC_STATS);
	tell("mode %o", stat.stx_mode);
	stat = statx_of("f", AT_STATX_DONT_SYNC, STATX_SIZE);
	tell("size %llu", (unsigned long long)stat.stx_size);
	statx_of("f", 0, 0x80000000);
	statx_of("f", AT_STATX_FORCE_SYNC | AT_STATX_DONT_SYNC, STATX_SIZE);
	statx_of("none", 0, STATX_SIZE);
	statx_of("", AT_EMPTY_PATH, STATX_SIZE);
}

CASE(time_of_birth)
{
	struct statx before, after;

	make("f", 1);
	before = statx_of("f", 0, STATX_BTIME);
	usleep(12000);
	MUST(chmod("f", 0600));
	MUST(set("f", 5, 0, 5, 0));
	after = statx_of("f", 0, STATX_BTIME | STATX_CTIME);
	tell("there is one: %d, stays: %d, before the change: %d", !!(before.stx_mask & STATX_BTIME),
	     before.stx_btime.tv_sec == after.stx_btime.tv_sec && before.stx_btime.tv_nsec == after.stx_btime.tv_nsec,
	     after.stx_btime.tv_sec < after.stx_ctime.tv_sec ||
	     (after.stx_btime.tv_sec == after.stx_ctime.tv_sec && after.stx_btime.tv_nsec < after.stx_ctime.tv_nsec));
}

CASE(attributes_of_statx)
{
	struct statx stat;

	make("f", 1);
	stat = statx_of("f", 0, STATX_BASIC_STATS);
	tell("attributes %llx of %llx", (unsigned long long)stat.stx_attributes, (unsigned long long)stat.stx_attributes_mask);
}

CASE(alignment_for_direct_transfers)
{
	struct statx stat;

	make("f", 1);
	stat = statx_of("f", 0, STATX_DIOALIGN);
	tell("told: %d", !!(stat.stx_mask & STATX_DIOALIGN));
}

CASE(number_of_the_mount)
{
	struct statx stat;

	make("f", 1);
	stat = statx_of("f", 0, STATX_MNT_ID);
	tell("mask %x", stat.stx_mask & STATX_MNT_ID);
}

CASE(changes_are_in_order)
{
	struct stat one, other;
	int wrong = 0;

	for (int turn = 0; turn < 50; turn++) {
		char name[20], next[20];

		sprintf(name, "%d", turn);
		sprintf(next, "%d-next", turn);
		make(name, 1);
		make(next, 1);
		one = stat_of(name);
		other = stat_of(next);
		wrong += one.st_mtim.tv_sec > other.st_mtim.tv_sec ||
			(one.st_mtim.tv_sec == other.st_mtim.tv_sec && one.st_mtim.tv_nsec > other.st_mtim.tv_nsec);
	}
	tell("%d out of order", wrong);
}

CASE(file_times_are_the_clocks)
{
	struct timespec now;
	struct stat stat;

	make("f", 1);
	clock_gettime(CLOCK_REALTIME, &now);
	stat = stat_of("f");
	tell("within a second: %d", labs(now.tv_sec - stat.st_mtim.tv_sec) <= 1);
}
