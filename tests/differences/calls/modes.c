/* chmod, chown, and what takes set-user-id and set-group-id away. */
#include "calls.h"
#include <sys/sendfile.h>

/* fchmodat2(2), which C libraries learned late. */
static long fchmodat2(const char *path, mode_t mode, int flags)
{
	return syscall(452, AT_FDCWD, path, mode, flags);
}

PREPARED(changing_modes)
{
	make("mine", 1);
	own("mine");
	make("theirs", 1);
	theirs("theirs");
	MUST(mkdir("d", 0755));
	own("d");
	act();
	TRY(chmod("mine", 07777));
	mode_of("mine");
	TRY(chmod("mine", 0));
	mode_of("mine");
	TRY(chmod("mine", 01644));
	mode_of("mine");
	TRY(chmod("theirs", 0600));
	TRY(chmod("d", 07755));
	mode_of("d");
	TRY(chmod("none", 0600));
	TRY(chmod("mine/x", 0600));
	TRY(fchmodat2("mine", 0640, 0));
	TRY(fchmodat2("mine", 0640, AT_SYMLINK_NOFOLLOW));
	TRY(fchmodat2("mine", 0640, 0x8));
	mode_of("mine");
}

PREPARED(set_group_id_of_a_strange_group)
{
	make_mode("f", 1, 0755);
	own("f");
	MUST(chown("f", -1, OTHER));
	MUST(mkdir("d", 0755));
	own("d");
	MUST(chown("d", -1, OTHER));
	act();
	TRY(chmod("f", 02755));
	mode_of("f");
	TRY(chmod("f", 02644));
	mode_of("f");
	TRY(chmod("d", 02755));
	mode_of("d");
}

PREPARED(set_group_id_of_a_further_group)
{
	make_mode("f", 1, 0755);
	own("f");
	MUST(chown("f", -1, CLUB));
	act();
	TRY(chmod("f", 02755));
	mode_of("f");
}

PREPARED(changing_owners)
{
	make("mine", 1);
	own("mine");
	make("theirs", 1);
	theirs("theirs");
	act();
	TRY(chown("mine", -1, CLUB));
	look("mine");
	TRY(chown("mine", -1, OTHER));
	TRY(chown("mine", OTHER, -1));
	TRY(chown("mine", is_user() ? USER : 0, -1));
	TRY(chown("theirs", is_user() ? USER : 0, -1));
	TRY(chown("theirs", -1, CLUB));
	TRY(chown("theirs", OTHER, OTHER));
	TRY(chown("none", -1, -1));
	look("mine");
	look("theirs");
}

PREPARED(changing_nothing_of_an_owner)
{
	make("mine", 1);
	own("mine");
	make("theirs", 1);
	theirs("theirs");
	act();
	MOVES("mine", chown("mine", -1, -1));
	MOVES("theirs", chown("theirs", -1, -1));
}

/* What a call leaves of the modes of files that have all of these. */
static const mode_t special[] = { 06755, 06745, 04644, 02755, 02644, 02777, 02767, 06777, 06666, 01777, 07777 };
#define SPECIAL (sizeof(special) / sizeof(special[0]))

static void each_special(const char *what, uid_t uid, gid_t gid, int (*change)(const char *, int))
{
	char name[20];

	for (size_t index = 0; index < SPECIAL; index++) {
		sprintf(name, "%o", special[index]);
		make(name, 8192);
		MUST(chown(name, uid, gid));
		MUST(chmod(name, special[index]));
	}
	act();
	for (size_t index = 0; index < SPECIAL; index++) {
		int fd, result, error;

		sprintf(name, "%o", special[index]);
		fd = open(name, O_RDWR);
		errno = 0;
		result = change(name, fd);
		error = errno;
		tell("%s of %s: %s, %o", what, name, result < 0 ? strerrorname_np(error) : "ok", stat_of(name).st_mode & 07777);
		close(fd);
	}
}

#define MINE (is_user() ? USER : 0)

static int chown_nothing(const char *name, int fd)
{
	(void)fd;
	return chown(name, -1, -1);
}

static int chown_same(const char *name, int fd)
{
	(void)fd;
	return chown(name, MINE, MINE);
}

static int chown_group(const char *name, int fd)
{
	(void)fd;
	return chown(name, -1, CLUB);
}

static int write_byte(const char *name, int fd)
{
	(void)name;
	return write(fd, "y", 1);
}

static int write_nothing(const char *name, int fd)
{
	(void)name;
	return write(fd, "y", 0);
}

static int write_vector(const char *name, int fd)
{
	struct iovec piece = { "yy", 2 };

	(void)name;
	return pwritev2(fd, &piece, 1, 0, RWF_SYNC);
}

static int truncate_path(const char *name, int fd)
{
	(void)fd;
	return truncate(name, 5);
}

static int truncate_same(const char *name, int fd)
{
	(void)name;
	return ftruncate(fd, 8192);
}

static int truncate_open(const char *name, int fd)
{
	(void)fd;
	return close(open(name, O_WRONLY | O_TRUNC));
}

static int allocate(const char *name, int fd)
{
	(void)name;
	return fallocate(fd, 0, 0, 100000);
}

static int allocate_behind(const char *name, int fd)
{
	(void)name;
	return fallocate(fd, FALLOC_FL_KEEP_SIZE, 8192, 8192);
}

static int punch(const char *name, int fd)
{
	(void)name;
	return fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096);
}

static int zero(const char *name, int fd)
{
	(void)name;
	return fallocate(fd, FALLOC_FL_ZERO_RANGE, 100, 100);
}

static int copy_range(const char *name, int fd)
{
	off_t from = 0, to = 4096;

	(void)name;
	return copy_file_range(fd, &from, fd, &to, 100, 0);
}

static int send(const char *name, int fd)
{
	int from = open("/proc/self/exe", O_RDONLY), result;

	(void)name;
	result = sendfile(fd, from, NULL, 100);
	close(from);
	return result;
}

static int touch(const char *name, int fd)
{
	(void)fd;
	return utimensat(AT_FDCWD, name, NULL, 0);
}

static int link_it(const char *name, int fd)
{
	char other[40];

	(void)fd;
	sprintf(other, "../%s.link", name);
	return link(name, other);
}

static int set_user_attribute(const char *name, int fd)
{
	(void)fd;
	return setxattr(name, "user.x", "y", 1, 0);
}

static int write_direct(const char *name, int fd)
{
	char *room = aligned_alloc(4096, 4096);
	int direct = open(name, O_WRONLY | O_DIRECT), result;

	(void)fd;
	memset(room, 'z', 4096);
	result = pwrite(direct, room, 4096, 0);
	close(direct);
	return result;
}

PREPARED(special_bits_and_chown_of_nothing) { each_special("chown -1 -1", MINE, MINE, chown_nothing); }
PREPARED(special_bits_and_chown_to_the_same) { each_special("chown same", MINE, MINE, chown_same); }
PREPARED(special_bits_and_chown_to_a_group) { each_special("chown group", MINE, MINE, chown_group); }
PREPARED(special_bits_and_write) { each_special("write", MINE, MINE, write_byte); }
PREPARED(special_bits_and_write_of_nothing) { each_special("write nothing", MINE, MINE, write_nothing); }
PREPARED(special_bits_and_write_of_vectors) { each_special("writev", MINE, MINE, write_vector); }
PREPARED(special_bits_and_direct_write) { each_special("direct write", MINE, MINE, write_direct); }
PREPARED(special_bits_and_write_by_others) { each_special("write", OTHER, OTHER, write_byte); }
PREPARED(special_bits_and_write_by_the_group) { each_special("write", OTHER, MINE, write_byte); }
PREPARED(special_bits_and_write_by_a_further_group) { each_special("write", OTHER, CLUB, write_byte); }
PREPARED(special_bits_and_write_to_a_strange_group) { each_special("write", MINE, OTHER, write_byte); }
PREPARED(special_bits_and_truncate) { each_special("truncate", MINE, MINE, truncate_path); }
PREPARED(special_bits_and_truncate_by_others) { each_special("truncate", OTHER, OTHER, truncate_path); }
PREPARED(special_bits_and_truncate_to_the_same) { each_special("truncate", MINE, MINE, truncate_same); }
PREPARED(special_bits_and_truncating_open) { each_special("O_TRUNC", MINE, MINE, truncate_open); }
PREPARED(special_bits_and_truncating_open_by_others) { each_special("O_TRUNC", OTHER, OTHER, truncate_open); }
PREPARED(special_bits_and_allocate) { each_special("fallocate", MINE, MINE, allocate); }
PREPARED(special_bits_and_allocate_by_others) { each_special("fallocate", OTHER, OTHER, allocate); }
PREPARED(special_bits_and_allocate_behind_the_end) { each_special("fallocate", MINE, MINE, allocate_behind); }
PREPARED(special_bits_and_punch) { each_special("punch", MINE, MINE, punch); }
PREPARED(special_bits_and_zero_range) { each_special("zero range", MINE, MINE, zero); }
PREPARED(special_bits_and_copy_range) { each_special("copy", MINE, MINE, copy_range); }
PREPARED(special_bits_and_copy_range_by_others) { each_special("copy", OTHER, OTHER, copy_range); }
PREPARED(special_bits_and_sendfile) { each_special("sendfile", MINE, MINE, send); }
PREPARED(special_bits_and_times) { each_special("utimes", MINE, MINE, touch); }
PREPARED(special_bits_and_link) { each_special("link", MINE, MINE, link_it); }
PREPARED(special_bits_and_attributes) { each_special("setxattr", MINE, MINE, set_user_attribute); }

PREPARED(special_bits_of_directories)
{
	MUST(mkdir("d", 0755));
	own("d");
	MUST(chmod("d", 06775));
	act();
	TRY(chown("d", -1, CLUB));
	mode_of("d");
	make("d/f", 1);
	look("d/f");
	TRY(rename("d", "e"));
	mode_of("e");
}

PREPARED(special_bits_of_links_and_pipes)
{
	MUST(mkfifo("fifo", 0644));
	own("fifo");
	MUST(chmod("fifo", 06755));
	act();
	mode_of("fifo");
	TRY(chown("fifo", -1, CLUB));
	mode_of("fifo");
}

/* VFS_CAP_REVISION_2 with cap_net_raw. */
static const unsigned char capability[20] = { 1, 0, 0, 2, 0, 0x20 };

PREPARED(capabilities_of_files)
{
	char room[64];
	int fd;

	for (const char *name = "write\0truncate\0chown\0chmod\0rename\0"; *name; name += strlen(name) + 1) {
		make(name, 100);
		own(name);
		MUST(chmod(name, 06755));
		MUST(setxattr(name, "security.capability", capability, sizeof(capability), 0));
	}
	act();
	fd = MUST(open("write", O_WRONLY));
	TRY(write(fd, "y", 1));
	TRY(getxattr("write", "security.capability", room, sizeof(room)));
	TRY(truncate("truncate", 1));
	TRY(getxattr("truncate", "security.capability", room, sizeof(room)));
	TRY(chown("chown", -1, -1));
	TRY(getxattr("chown", "security.capability", room, sizeof(room)));
	mode_of("chown");
	mode_of("write");
	TRY(chmod("chmod", 0600));
	TRY(getxattr("chmod", "security.capability", room, sizeof(room)));
	TRY(rename("rename", "renamed"));
	TRY(getxattr("renamed", "security.capability", room, sizeof(room)));
	TRY(setxattr("renamed", "security.capability", capability, sizeof(capability), 0));
	TRY(setxattr("renamed", "security.capability", "nonsense", 8, 0));
	TRY(removexattr("renamed", "security.capability"));
}
