/* open(2) and what it makes, O_TMPFILE, O_PATH, access(2). */
#include "calls.h"
#include <linux/openat2.h>

CASE(create_applies_the_umask)
{
	umask(027);
	FD(open("f", O_CREAT | O_EXCL | O_RDWR, 0666));
	look("f");
	TRY(open("f", O_CREAT | O_EXCL | O_RDWR, 0666));
	FD(open("f", O_CREAT | O_RDWR, 0));
	mode_of("f");
}

CASE(create_with_special_bits)
{
	FD(open("setuid", O_CREAT | O_RDWR, 04755));
	FD(open("setgid", O_CREAT | O_RDWR, 02755));
	FD(open("sticky", O_CREAT | O_RDWR, 01755));
	mode_of("setuid");
	mode_of("setgid");
	mode_of("sticky");
}

CASE(open_what_is_not_there)
{
	TRY(open("none", O_RDONLY));
	TRY(open("none/f", O_CREAT | O_RDWR, 0644));
	TRY(open("", O_RDONLY));
	TRY(open("new/", O_CREAT | O_RDWR, 0644));
	make("f", 0);
	TRY(open("f/", O_RDONLY));
	TRY(open("f/below", O_RDONLY));
	TRY(open("f/below", O_CREAT | O_RDWR, 0644));
	TRY(open("./none/..", O_RDONLY));
}

CASE(open_directories)
{
	make("f", 0);
	TRY(open(".", O_WRONLY));
	TRY(open(".", O_RDWR));
	TRY(open(".", O_CREAT | O_RDONLY, 0644));
	TRY(open(".", O_TRUNC | O_RDONLY));
	TRY(open("f", O_DIRECTORY));
	TRY(open("d", O_CREAT | O_DIRECTORY, 0644));
	FD(open(".", O_DIRECTORY | O_RDONLY));
	FD(open("..", O_PATH));
}

CASE(open_symbolic_links)
{
	make("f", 0);
	MUST(symlink("f", "to_file"));
	MUST(symlink("none", "dangling"));
	MUST(symlink("loop", "loop"));
	FD(open("to_file", O_RDONLY));
	TRY(open("to_file", O_RDONLY | O_NOFOLLOW));
	FD(open("to_file", O_PATH | O_NOFOLLOW));
	TRY(open("dangling", O_RDONLY));
	TRY(open("dangling", O_CREAT | O_EXCL | O_RDWR, 0600));
	FD(open("dangling", O_CREAT | O_RDWR, 0600));
	look("none");
	TRY(open("loop", O_RDONLY));
	TRY(open("to_file", O_CREAT | O_NOFOLLOW | O_RDWR, 0600));
}

CASE(open_truncates)
{
	make("f", 5000);
	make("g", 5000);
	MOVES("f", close(open("f", O_WRONLY | O_TRUNC)));
	size_of("f");
	MOVES("f", close(open("f", O_WRONLY | O_TRUNC)));
	TRY(close(open("g", O_RDONLY | O_TRUNC)));
	size_of("g");
}

CASE(tmpfile_has_no_name)
{
	struct stat stat;
	char path[64];
	int fd = FD(open(".", O_TMPFILE | O_RDWR, 0640));

	TRY(write(fd, "abc", 3));
	MUST(fstat(fd, &stat));
	tell("links %lu, mode %o, size %ld", (unsigned long)stat.st_nlink, stat.st_mode & 07777, (long)stat.st_size);
	sprintf(path, "/proc/self/fd/%d", fd);
	TRY(linkat(AT_FDCWD, path, AT_FDCWD, "linked", AT_SYMLINK_FOLLOW));
	look("linked");
	contents("linked");
	TRY(linkat(AT_FDCWD, path, AT_FDCWD, "linked", AT_SYMLINK_FOLLOW));
	TRY(linkat(AT_FDCWD, path, AT_FDCWD, "twice", AT_SYMLINK_FOLLOW));
}

CASE(tmpfile_refusals)
{
	char path[64];
	int fd = FD(open(".", O_TMPFILE | O_EXCL | O_RDWR, 0600));

	sprintf(path, "/proc/self/fd/%d", fd);
	TRY(linkat(AT_FDCWD, path, AT_FDCWD, "linked", AT_SYMLINK_FOLLOW));
	TRY(open(".", O_TMPFILE | O_RDONLY, 0600));
	TRY(open(".", O_TMPFILE | O_CREAT | O_RDWR, 0600));
	make("f", 0);
	TRY(open("f", O_TMPFILE | O_RDWR, 0600));
	TRY(open("none", O_TMPFILE | O_RDWR, 0600));
}

CASE(tmpfile_on_an_o_path_descriptor)
{
	int fd = FD(open(".", O_TMPFILE | O_WRONLY, 0000));

	TRY(linkat(fd, "", AT_FDCWD, "linked", AT_EMPTY_PATH));
	look("linked");
	TRY(fchmod(fd, 0600));
	TRY(ftruncate(fd, 100));
}

CASE(descriptors_of_paths_do_little)
{
	struct stat stat;
	char room[4];
	int fd, more;

	make("f", 10);
	fd = FD(open("f", O_PATH));
	TRY(read(fd, room, 4));
	TRY(write(fd, room, 4));
	TRY(ftruncate(fd, 0));
	TRY(fchmod(fd, 0600));
	TRY(fchown(fd, -1, -1));
	TRY(fsync(fd));
	TRY(fallocate(fd, 0, 0, 1));
	TRY(ioctl(fd, FIONREAD, &more));
	TRY(fgetxattr(fd, "user.x", room, 4));
	TRY(fstat(fd, &stat));
	TRY(lseek(fd, 0, SEEK_SET));
	TRY(flock(fd, LOCK_SH));
	TRY(mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0) == MAP_FAILED ? -1 : 0);
	TRY(linkat(fd, "", AT_FDCWD, "linked", AT_EMPTY_PATH));
	tell("flags %x", fcntl(fd, F_GETFL) & ~0100000);
}

CASE(fifos_and_sockets)
{
	MUST(mkfifo("fifo", 0666));
	MUST(mknod("socket", S_IFSOCK | 0666, 0));
	TRY(open("fifo", O_WRONLY | O_NONBLOCK));
	FD(open("fifo", O_RDONLY | O_NONBLOCK));
	FD(open("fifo", O_RDWR));
	TRY(open("socket", O_RDONLY));
	FD(open("socket", O_PATH));
	TRY(truncate("fifo", 0));
	TRY(truncate("socket", 0));
}

ROOT_CASE(device_nodes_work)
{
	char room[4] = "xxxx";
	int fd;

	MUST(mknod("zero", S_IFCHR | 0666, makedev(1, 5)));
	MUST(mknod("nothing", S_IFCHR | 0666, makedev(3999, 1)));
	look("zero");
	fd = FD(open("zero", O_RDWR));
	TRY(read(fd, room, 4));
	bytes("read", room, 4);
	TRY(open("nothing", O_RDONLY));
	TRY(truncate("zero", 100));
}

CASE(appending)
{
	int fd = MUST(open("f", O_CREAT | O_RDWR | O_APPEND, 0644)), other = MUST(open("f", O_RDWR));

	TRY(write(fd, "aaa", 3));
	TRY(pwrite(other, "b", 1, 10));
	TRY(write(fd, "cc", 2));
	TRY(pwrite(fd, "dd", 2, 0));
	TRY(lseek(fd, 0, SEEK_CUR));
	TRY(fcntl(fd, F_SETFL, 0));
	TRY(pwrite(fd, "e", 1, 0));
	contents("f");
}

CASE(direct_transfers_that_are_aligned)
{
	char *room = aligned_alloc(4096, 8192);
	int fd = FD(open("f", O_CREAT | O_RDWR | O_DIRECT, 0644));

	memset(room, 'q', 8192);
	TRY(pwrite(fd, room, 8192, 0));
	memset(room, 0, 8192);
	TRY(pread(fd, room, 8192, 0));
	bytes("read", room, 8192);
	TRY(pread(fd, room, 8192, 4096));
	TRY(pread(fd, room, 4096, 1 << 20));
	TRY(pwrite(fd, room, 4096, 1 << 20));
	size_of("f");
}

CASE(direct_transfers_that_are_not_aligned)
{
	char *room = aligned_alloc(4096, 8192);
	int fd = MUST(open("f", O_CREAT | O_RDWR | O_DIRECT, 0644));

	memset(room, 'q', 8192);
	TRY(pwrite(fd, room, 8192, 0));
	TRY(pwrite(fd, room, 100, 0));
	TRY(pwrite(fd, room, 4096, 100));
	TRY(pread(fd, room + 1, 4096, 0));
	TRY(pread(fd, room, 100, 0));
}

PREPARED(opening_without_access_times)
{
	make("mine", 10);
	own("mine");
	make("theirs", 10);
	theirs("theirs");
	act();
	FD(open("mine", O_RDONLY | O_NOATIME));
	TRY(close(open("theirs", O_RDONLY | O_NOATIME)));
}

/* What each permission of a file lets its owner, its group and everybody else do. */
static void try_modes(const char *path, mode_t shift)
{
	static const int flags[] = { O_RDONLY, O_WRONLY, O_RDWR, O_RDONLY | O_TRUNC, 3 };

	for (mode_t mode = 0; mode < 8; mode++) {
		char line[200] = "";

		for (size_t index = 0; index < sizeof(flags) / sizeof(flags[0]); index++) {
			int fd = open(path, flags[index]);

			sprintf(line + strlen(line), " %s", fd < 0 ? strerrorname_np(errno) : "ok");
			close(fd);
		}
		for (int what = 0; what < 8; what++)
			sprintf(line + strlen(line), "%s%d", what ? "" : " access ", access(path, what));
		tell("mode %o:%s", mode << shift, line);
		path += strlen(path) + 1;
	}
}

#define EIGHT "0\0" "1\0" "2\0" "3\0" "4\0" "5\0" "6\0" "7\0"

static void make_eight(mode_t shift, uid_t uid, gid_t gid)
{
	for (int mode = 0; mode < 8; mode++) {
		char name[2] = { '0' + mode, 0 };

		make_mode(name, 1, (mode_t)mode << shift);
		MUST(chown(name, uid, gid));
	}
}

PREPARED(permissions_of_owners)
{
	make_eight(6, is_user() ? USER : 0, OTHER);
	act();
	try_modes(EIGHT, 6);
}

PREPARED(permissions_of_groups)
{
	make_eight(3, OTHER, is_user() ? USER : 0);
	act();
	try_modes(EIGHT, 3);
}

PREPARED(permissions_of_further_groups)
{
	make_eight(3, OTHER, CLUB);
	act();
	try_modes(EIGHT, 3);
}

PREPARED(permissions_of_others)
{
	make_eight(0, OTHER, OTHER);
	act();
	try_modes(EIGHT, 0);
}

PREPARED(permissions_of_directories)
{
	for (int mode = 0; mode < 8; mode++) {
		char name[2] = { '0' + mode, 0 }, inside[4] = { '0' + mode, '/', 'f', 0 };

		MUST(mkdir(name, 0755));
		make(inside, 3);
		MUST(chmod(name, (mode_t)mode << 6));
		own(name);
	}
	act();
	for (int mode = 0; mode < 8; mode++) {
		char name[2] = { '0' + mode, 0 }, inside[4] = { '0' + mode, '/', 'f', 0 }, fresh_name[4] = { '0' + mode, '/', 'n', 0 };
		int list = open(name, O_RDONLY), read = open(inside, O_RDONLY), made = open(fresh_name, O_CREAT | O_RDWR, 0600);
		int gone = unlink(inside), entered = chdir(name);

		tell("mode %d00: list %d, open %d, create %d, unlink %d, chdir %d", mode, list < 0, read < 0, made < 0, gone, entered);
		if (entered == 0)
			MUST(chdir(".."));
	}
}

CASE(access_checks)
{
	make_mode("f", 1, 0444);
	MUST(symlink("none", "dangling"));
	TRY(access("f", R_OK));
	TRY(access("f", W_OK));
	TRY(access("f", X_OK));
	TRY(access("f", 8));
	TRY(access("none", F_OK));
	TRY(access("dangling", F_OK));
	TRY(faccessat(AT_FDCWD, "dangling", F_OK, AT_SYMLINK_NOFOLLOW));
	TRY(faccessat(AT_FDCWD, "f", W_OK, AT_EACCESS));
	TRY(access("f/below", F_OK));
	TRY(access(".", X_OK));
}

PREPARED(creating_in_a_directory_with_setgid)
{
	MUST(mkdir("d", 0777));
	MUST(chown("d", 0, OTHER));
	MUST(chmod("d", 02777));
	act();
	TRY(close(open("d/f", O_CREAT | O_RDWR, 0755)));
	TRY(close(open("d/setgid", O_CREAT | O_RDWR, 02755)));
	TRY(close(open("d/setgid_without_x", O_CREAT | O_RDWR, 02745)));
	TRY(mkdir("d/d", 0755));
	TRY(symlink("x", "d/link"));
	TRY(mkfifo("d/fifo", 0644));
	TRY(close(open("d", O_TMPFILE | O_RDWR, 02755)));
	look("d/f");
	look("d/setgid");
	look("d/setgid_without_x");
	look("d/d");
	look("d/link");
	look("d/fifo");
}

PREPARED(creating_in_the_sticky_directory_of_others)
{
	MUST(mkdir("d", 0777));
	MUST(chmod("d", 01777));
	theirs("d");
	make_mode("d/theirs", 3, 0666);
	MUST(chown("d/theirs", 1001, 1001));
	act();
	TRY(close(open("d/theirs", O_CREAT | O_RDWR, 0644)));
	TRY(close(open("d/theirs", O_RDWR)));
	TRY(close(open("d/mine", O_CREAT | O_RDWR, 0644)));
}

CASE(names_may_have_255_bytes)
{
	char name[300], path[5000];

	memset(name, 'n', sizeof(name));
	name[255] = 0;
	TRY(close(open(name, O_CREAT | O_RDWR, 0644)));
	TRY(symlink(name, "link"));
	TRY(access("link", F_OK));
	name[255] = 'n';
	name[256] = 0;
	TRY(open(name, O_CREAT | O_RDWR, 0644));
	TRY(open(name, O_RDONLY));
	TRY(mkdir(name, 0755));
	TRY(unlink(name));
	TRY(rename("link", name));
	TRY(symlink("x", name));
	TRY(mknod(name, S_IFIFO, 0));
	memset(path, '/', sizeof(path));
	path[0] = '.';
	path[4095] = 0;
	TRY(access(path, F_OK));
	path[4095] = '/';
	path[4096] = 0;
	TRY(access(path, F_OK));
}

CASE(names_are_bytes)
{
	TRY(close(open("\xff\xfe", O_CREAT | O_EXCL | O_RDWR, 0644)));
	TRY(close(open("Case", O_CREAT | O_EXCL | O_RDWR, 0644)));
	TRY(close(open("case", O_CREAT | O_EXCL | O_RDWR, 0644)));
	TRY(close(open("a\nb", O_CREAT | O_EXCL | O_RDWR, 0644)));
	TRY(close(open(" ", O_CREAT | O_EXCL | O_RDWR, 0644)));
	TRY(close(open("...", O_CREAT | O_EXCL | O_RDWR, 0644)));
	TRY(close(open("u\xcc\x88", O_CREAT | O_EXCL | O_RDWR, 0644)));
	TRY(close(open("\xc3\xbc", O_CREAT | O_EXCL | O_RDWR, 0644)));
}

static long resolve(const char *path, uint64_t how_to)
{
	struct open_how how = { .flags = O_RDONLY, .resolve = how_to };

	return syscall(SYS_openat2, AT_FDCWD, path, &how, sizeof(how));
}

CASE(openat2_resolves_as_told)
{
	MUST(mkdir("d", 0755));
	make("f", 1);
	MUST(symlink("f", "link"));
	TRY(resolve("..", RESOLVE_BENEATH));
	TRY(resolve("link", RESOLVE_NO_SYMLINKS));
	FD(resolve("link", RESOLVE_BENEATH));
	FD(resolve("d/../f", RESOLVE_BENEATH));
	TRY(resolve("/f", RESOLVE_BENEATH));
	FD(resolve("/f", RESOLVE_IN_ROOT));
	FD(resolve("d", RESOLVE_NO_XDEV));
}

ROOT_CASE(handles_outlive_names)
{
	union {
		struct file_handle handle;
		char room[sizeof(struct file_handle) + MAX_HANDLE_SZ];
	} known = { .handle.handle_bytes = MAX_HANDLE_SZ }, small = { .handle.handle_bytes = 0 };
	char room[8];
	int mount, root = MUST(open(".", O_RDONLY)), fd;

	make("f", 3);
	TRY(name_to_handle_at(AT_FDCWD, "f", &small.handle, &mount, 0));
	TRY(name_to_handle_at(AT_FDCWD, "f", &known.handle, &mount, 0));
	fd = FD(open_by_handle_at(root, &known.handle, O_RDWR));
	TRY(read(fd, room, 8));
	TRY(rename("f", "g"));
	TRY(close(open_by_handle_at(root, &known.handle, O_RDONLY)));
	TRY(unlink("g"));
	TRY(close(open_by_handle_at(root, &known.handle, O_RDONLY)));
	close(fd);
	TRY(open_by_handle_at(root, &known.handle, O_RDONLY));
}

CASE(descriptors_tell_their_flags)
{
	static const int flags[] = { O_RDONLY, O_WRONLY, O_RDWR | O_APPEND, O_RDWR | O_SYNC, O_RDWR | O_DSYNC, O_RDWR | O_NONBLOCK };

	make("f", 0);
	for (size_t index = 0; index < sizeof(flags) / sizeof(flags[0]); index++) {
		int fd = open("f", flags[index]);

		tell("%x: %x", flags[index], fcntl(fd, F_GETFL) & ~0100000);
		TRY(write(fd, "x", 1));
		TRY(fcntl(fd, F_SETFL, O_DIRECT));
		TRY(fcntl(fd, F_SETFL, O_NOATIME));
	}
}

static void copy_program(const char *name, mode_t mode)
{
	int from = MUST(open("/bin/true", O_RDONLY)), to = MUST(open(name, O_CREAT | O_WRONLY, 0700));
	char room[65536];
	ssize_t len;

	while ((len = MUST(read(from, room, sizeof(room)))) > 0)
		MUST(write(to, room, len));
	MUST(fchmod(to, mode));
	close(from);
	close(to);
}

static void execute(void)
{
	TRY(execl("./program", "program", NULL));
}

static void execute_unreadable(void)
{
	TRY(execl("./unreadable", "unreadable", NULL));
}

CASE(programs_are_executed)
{
	int fd;

	copy_program("program", 0755);
	in_child("program", execute);
	MUST(chmod("program", 0644));
	in_child("without x", execute);
	MUST(chmod("program", 0755));
	fd = MUST(open("program", O_WRONLY));
	in_child("open for writing", execute);
	close(fd);
	copy_program("unreadable", 0111);
	in_child("unreadable", execute_unreadable);
	make_mode("text", 5, 0755);
	TRY(execl("./text", "text", NULL));
	TRY(execl(".", ".", NULL));
}

PREPARED(set_user_id_counts)
{
	copy_program("program", 0755);
	theirs("program");
	MUST(chmod("program", 04755));
	act();
	look("program");
	in_child("program", execute);
}

CASE(sockets_are_bound_to_names)
{
	/* sockaddr_un without its header's clash of names. */
	struct { unsigned short family; char path[108]; } address = { 1, "socket" };
	int fd = MUST((int)syscall(SYS_socket, 1, 1, 0)), other = MUST((int)syscall(SYS_socket, 1, 1, 0));

	TRY(syscall(SYS_bind, fd, &address, sizeof(address)));
	look("socket");
	TRY(syscall(SYS_bind, other, &address, sizeof(address)));
	TRY(syscall(SYS_listen, fd, 1));
	TRY(syscall(SYS_connect, other, &address, sizeof(address)));
	TRY(unlink("socket"));
	TRY(syscall(SYS_connect, other, &address, sizeof(address)));
}
