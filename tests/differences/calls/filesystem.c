/* statfs(2), locks, leases, notifications, limits that pathconf(3) tells. */
#include "calls.h"
#include <poll.h>
#include <sys/inotify.h>
#include <sys/statfs.h>

CASE(figures_of_the_filesystem)
{
	struct statfs figures;
	struct statvfs other;

	TRY(statfs(".", &figures));
	tell("block %ld, fragment %ld, names of %ld", (long)figures.f_bsize, (long)figures.f_frsize, (long)figures.f_namelen);
	tell("free <= all: %d, available <= free: %d", figures.f_bfree <= figures.f_blocks, figures.f_bavail <= figures.f_bfree);
	tell("inodes %d, free %d", figures.f_files > 0, figures.f_ffree > 0 && figures.f_ffree <= figures.f_files);
	TRY(statvfs("none", &other));
	TRY(fstatfs(open(".", O_PATH), &figures));
}

CASE(number_of_the_filesystem)
{
	struct statfs figures;

	MUST(statfs(".", &figures));
	tell("there is one: %d", figures.f_fsid.__val[0] != 0 || figures.f_fsid.__val[1] != 0);
}

CASE(type_of_the_filesystem)
{
	struct statfs figures;

	MUST(statfs(".", &figures));
	tell("%lx", (long)figures.f_type);
}

CASE(flags_of_the_mount)
{
	struct statvfs figures;

	MUST(statvfs(".", &figures));
	tell("%lx", figures.f_flag & ~ST_NOATIME & ~ST_RELATIME);
}

CASE(flags_of_access_times)
{
	struct statvfs figures;

	MUST(statvfs(".", &figures));
	tell("%lx", figures.f_flag & (ST_NOATIME | ST_RELATIME));
}

CASE(limits_of_paths)
{
	tell("name %ld, path %ld, pipe %ld, no truncation %ld, chown restricted %ld", pathconf(".", _PC_NAME_MAX), pathconf(".", _PC_PATH_MAX),
	     pathconf(".", _PC_PIPE_BUF), pathconf(".", _PC_NO_TRUNC), pathconf(".", _PC_CHOWN_RESTRICTED));
	tell("bits of sizes %ld, alignment %ld", pathconf(".", _PC_FILESIZEBITS), pathconf(".", _PC_REC_XFER_ALIGN));
}

CASE(limit_of_links_of_paths)
{
	tell("%ld", pathconf(".", _PC_LINK_MAX));
}

static int lock(int fd, int command, short type, long start, long len)
{
	struct flock range = { .l_type = type, .l_whence = SEEK_SET, .l_start = start, .l_len = len };

	return fcntl(fd, command, &range);
}

CASE(whole_files_are_locked)
{
	int one = fresh("f"), other = MUST(open("f", O_RDONLY));

	TRY(flock(one, LOCK_EX | LOCK_NB));
	TRY(flock(other, LOCK_SH | LOCK_NB));
	TRY(flock(one, LOCK_SH | LOCK_NB));
	TRY(flock(other, LOCK_SH | LOCK_NB));
	TRY(flock(one, LOCK_EX | LOCK_NB));
	TRY(flock(other, LOCK_UN));
	TRY(flock(one, LOCK_EX | LOCK_NB));
	close(one);
	TRY(flock(other, LOCK_EX | LOCK_NB));
	TRY(flock(other, 77));
}

static void lock_from_a_child(void)
{
	int fd = MUST(open("f", O_RDWR));
	struct flock range = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = 10 };

	TRY(lock(fd, F_SETLK, F_RDLCK, 0, 10));
	TRY(lock(fd, F_SETLK, F_WRLCK, 10, 10));
	MUST(fcntl(fd, F_GETLK, &range));
	tell("type %d, start %ld, len %ld", range.l_type, (long)range.l_start, (long)range.l_len);
}

CASE(ranges_are_locked)
{
	int fd = fresh("f");

	TRY(lock(fd, F_SETLK, F_WRLCK, 0, 10));
	in_child("child", lock_from_a_child);
	TRY(lock(fd, F_SETLK, F_UNLCK, 0, 5));
	TRY(lock(fd, F_SETLK, F_RDLCK, -5, 10));
	TRY(lock(fd, F_SETLK, F_RDLCK, 0, LLONG_MAX));
	TRY(lock(open("f", O_RDONLY), F_SETLK, F_WRLCK, 0, 1));
	TRY(lock(open("f", O_WRONLY), F_SETLK, F_RDLCK, 0, 1));
}

CASE(open_files_own_locks)
{
	int one = fresh("f"), other = MUST(open("f", O_RDWR));

	TRY(lock(one, F_OFD_SETLK, F_WRLCK, 0, 10));
	TRY(lock(other, F_OFD_SETLK, F_WRLCK, 5, 10));
	TRY(lock(other, F_OFD_SETLK, F_WRLCK, 10, 10));
	TRY(lock(one, F_OFD_SETLK, F_UNLCK, 0, 10));
	TRY(lock(other, F_OFD_SETLK, F_WRLCK, 5, 10));
	TRY(lock(other, F_SETLK, F_WRLCK, 0, 30));
}

CASE(leases)
{
	int fd, other;

	make("f", 1);
	fd = MUST(open("f", O_RDONLY));
	TRY(fcntl(fd, F_SETLEASE, F_RDLCK));
	tell("lease %d", fcntl(fd, F_GETLEASE));
	TRY(fcntl(fd, F_SETLEASE, F_UNLCK));
	other = MUST(open("f", O_RDWR));
	TRY(fcntl(fd, F_SETLEASE, F_RDLCK));
	TRY(fcntl(other, F_SETLEASE, F_WRLCK));
}

static void tell_events(int watch)
{
	char room[4096] __attribute__((aligned(8)));
	struct pollfd ready = { watch, POLLIN, 0 };

	while (poll(&ready, 1, 50) > 0) {
		long len = read(watch, room, sizeof(room));

		for (long at = 0; at < len;) {
			struct inotify_event *event = (struct inotify_event *)(room + at);

			tell("event %x %s", event->mask, event->len ? event->name : "");
			at += sizeof(*event) + event->len;
		}
	}
}

CASE(changes_are_told)
{
	int watch = MUST(inotify_init()), fd;
	char room[4];

	MUST(mkdir("d", 0755));
	TRY(inotify_add_watch(watch, "d", IN_ALL_EVENTS));
	fd = fresh("d/f");
	MUST(write(fd, "abc", 3));
	MUST(pread(fd, room, 3, 0));
	MUST(ftruncate(fd, 1));
	MUST(close(fd));
	tell_events(watch);
	MUST(chmod("d/f", 0600));
	MUST(rename("d/f", "d/g"));
	MUST(link("d/g", "d/h"));
	MUST(unlink("d/g"));
	MUST(mkdir("d/sub", 0755));
	MUST(rename("d/h", "out"));
	tell_events(watch);
	MUST(rmdir("d/sub"));
	MUST(rmdir("d"));
	tell_events(watch);
	TRY(inotify_add_watch(watch, "none", IN_ALL_EVENTS));
}

CASE(directories_tell_by_signal)
{
	int fd = MUST(open(".", O_RDONLY));

	TRY(fcntl(fd, F_NOTIFY, DN_CREATE));
	TRY(fcntl(fd, F_NOTIFY, 0));
}

ROOT_CASE(events_of_the_filesystem)
{
	int watch = syscall(SYS_fanotify_init, 0, O_RDONLY);

	tell("%s", watch < 0 ? strerrorname_np(errno) : "ok");
	make("f", 1);
	TRY(syscall(SYS_fanotify_mark, watch, 1, 0x20L, AT_FDCWD, "f"));
	TRY(syscall(SYS_fanotify_mark, watch, 1 | 0x10, 0x20L, AT_FDCWD, "."));
}

ROOT_CASE(events_with_handles)
{
	int watch = syscall(SYS_fanotify_init, 0x200, O_RDONLY);

	make("f", 1);
	TRY(syscall(SYS_fanotify_mark, watch, 1, 0x100L, AT_FDCWD, "."));
}

ROOT_CASE(swapping)
{
	make_mode("f", 1 << 20, 0600);
	TRY(syscall(SYS_swapon, "f", 0));
	TRY(syscall(SYS_swapon, ".", 0));
}

ROOT_CASE(quotas_of_users)
{
	TRY(syscall(443, open(".", O_RDONLY), 0x80000700, 0, NULL));
}

ROOT_CASE(mount_points)
{
	MUST(mkdir("d", 0755));
	TRY(syscall(SYS_mount, "none", "d", "tmpfs", 0, NULL));
	TRY(rmdir("d"));
	TRY(rename("d", "e"));
	TRY(syscall(SYS_umount2, "d", 0));
	TRY(rmdir("d"));
}

CASE(changing_the_root)
{
	MUST(mkdir("d", 0755));
	TRY(chroot("none"));
	TRY(chroot("d"));
	TRY(access("/d", F_OK));
	TRY(access("/..", F_OK));
}
