/* mkdir, rmdir, unlink, link, rename, symlink, mknod. */
#include "calls.h"

CASE(directories_are_made)
{
	umask(0);
	TRY(mkdir("d", 0777));
	TRY(mkdir("special", 07777));
	TRY(mkdir("d", 0755));
	TRY(mkdir("none/d", 0755));
	make("f", 0);
	TRY(mkdir("f", 0755));
	TRY(mkdir("f/d", 0755));
	TRY(mkdir(".", 0755));
	TRY(mkdir("..", 0755));
	TRY(mkdir("", 0755));
	TRY(mkdir("d/new/", 0755));
	look("d");
	look("special");
	look("d/new");
}

CASE(directories_are_removed)
{
	MUST(mkdir("d", 0755));
	make("d/f", 0);
	TRY(rmdir("d"));
	TRY(rmdir("d/f"));
	TRY(rmdir("none"));
	TRY(rmdir("d/."));
	TRY(rmdir("d/.."));
	TRY(unlink("d/f"));
	TRY(rmdir("d/"));
	TRY(rmdir("d"));
	TRY(rmdir("."));
	MUST(symlink(".", "link"));
	TRY(rmdir("link"));
	TRY(unlinkat(AT_FDCWD, "link", AT_REMOVEDIR));
}

CASE(in_a_directory_that_is_gone)
{
	char room[4096];
	struct stat found;

	MUST(mkdir("d", 0755));
	MUST(chdir("d"));
	MUST(rmdir("../d"));
	TRY(open("f", O_CREAT | O_RDWR, 0644));
	TRY(mkdir("d", 0755));
	TRY(symlink("x", "link"));
	TRY(stat(".", &found));
	tell("links %lu", (unsigned long)found.st_nlink);
	TRY(access("..", F_OK));
	TRY(getcwd(room, sizeof(room)) ? 0 : -1);
	TRY(syscall(SYS_getdents64, open(".", O_RDONLY), room, sizeof(room)));
	TRY(chmod(".", 0700));
	TRY(setxattr(".", "user.x", "y", 1, 0));
	TRY(rename("../none", "x"));
}

CASE(files_without_names_in_a_directory_that_is_gone)
{
	MUST(mkdir("d", 0755));
	MUST(chdir("d"));
	MUST(rmdir("../d"));
	TRY(open(".", O_TMPFILE | O_RDWR, 0644) < 0 ? -1 : 0);
}

CASE(names_are_removed)
{
	make("f", 10);
	MUST(mkdir("d", 0755));
	MUST(symlink("f", "link"));
	TRY(unlink("none"));
	TRY(unlink("d"));
	TRY(unlink("f/"));
	TRY(unlink("link"));
	look("f");
	TRY(unlink("f"));
	TRY(unlink("f"));
	TRY(unlink("."));
	TRY(unlink(""));
	TRY(unlinkat(AT_FDCWD, "d", 0));
	TRY(unlinkat(AT_FDCWD, "d", 0x10000));
	TRY(unlinkat(AT_FDCWD, "d", AT_REMOVEDIR));
}

CASE(open_files_outlive_their_names)
{
	struct stat found;
	char room[4], path[64];
	int fd = fresh("f");

	MUST(write(fd, "abc", 3));
	TRY(unlink("f"));
	TRY(fstat(fd, &found));
	tell("links %lu, size %ld", (unsigned long)found.st_nlink, (long)found.st_size);
	TRY(pread(fd, room, 4, 0));
	TRY(fchmod(fd, 0600));
	TRY(ftruncate(fd, 100));
	TRY(fsetxattr(fd, "user.x", "y", 1, 0));
	TRY(linkat(fd, "", AT_FDCWD, "again", AT_EMPTY_PATH));
	sprintf(path, "/proc/self/fd/%d", fd);
	TRY(linkat(AT_FDCWD, path, AT_FDCWD, "again", AT_SYMLINK_FOLLOW));
	TRY(close(open(path, O_RDWR)));
}

PREPARED(removing_in_sticky_directories)
{
	MUST(mkdir("d", 0777));
	MUST(chmod("d", 01777));
	theirs("d");
	make("d/mine", 1);
	own("d/mine");
	make("d/theirs", 1);
	MUST(chown("d/theirs", 1001, 1001));
	MUST(mkdir("d/their_directory", 0777));
	MUST(chown("d/their_directory", 1001, 1001));
	make("d/target", 1);
	MUST(chown("d/target", 1001, 1001));
	act();
	TRY(rename("d/theirs", "d/moved"));
	TRY(rename("d/mine", "d/target"));
	TRY(rmdir("d/their_directory"));
	TRY(unlink("d/theirs"));
	TRY(unlink("d/mine"));
}

PREPARED(removing_in_the_directories_of_others)
{
	MUST(mkdir("d", 0755));
	theirs("d");
	make("d/mine", 1);
	own("d/mine");
	MUST(mkdir("d/d", 0755));
	own("d/d");
	make("f", 1);
	own("f");
	act();
	TRY(unlink("d/mine"));
	TRY(rmdir("d/d"));
	TRY(rename("d/mine", "moved"));
	TRY(rename("f", "d/f"));
	TRY(link("f", "d/f"));
	TRY(mkdir("d/new", 0755));
	TRY(symlink("x", "d/link"));
}

CASE(files_are_linked)
{
	make("f", 1);
	MUST(mkdir("d", 0755));
	MUST(symlink("f", "to_file"));
	MUST(symlink("none", "dangling"));
	MUST(mkfifo("fifo", 0644));
	TRY(link("f", "g"));
	look("f");
	TRY(link("f", "g"));
	TRY(link("f", "d/g"));
	TRY(link("d", "e"));
	TRY(link("none", "n"));
	TRY(link("to_file", "to_file_too"));
	look("to_file_too");
	TRY(linkat(AT_FDCWD, "to_file", AT_FDCWD, "followed", AT_SYMLINK_FOLLOW));
	look("followed");
	TRY(link("dangling", "dangling_too"));
	TRY(linkat(AT_FDCWD, "dangling", AT_FDCWD, "x", AT_SYMLINK_FOLLOW));
	TRY(link("fifo", "fifo_too"));
	TRY(link("f", "none/g"));
	TRY(link("f", "f/g"));
	TRY(linkat(AT_FDCWD, "f", AT_FDCWD, "h", 0x10000));
	TRY(unlink("g"));
	look("f");
}

PREPARED(linking_the_files_of_others)
{
	make_mode("readable", 1, 0644);
	theirs("readable");
	make_mode("writable", 1, 0666);
	theirs("writable");
	make_mode("setuid", 1, 04755);
	theirs("setuid");
	act();
	TRY(link("readable", "a"));
	TRY(link("writable", "b"));
	TRY(link("setuid", "c"));
}

CASE(files_are_renamed)
{
	make("f", 1);
	make("g", 2);
	MUST(link("f", "same"));
	MUST(mkdir("d", 0755));
	MUST(symlink("f", "link"));
	TRY(rename("f", "same"));
	look("f");
	look("same");
	TRY(rename("f", "g"));
	look("g");
	look("f");
	TRY(rename("none", "g"));
	TRY(rename("g", "none/g"));
	TRY(rename("g", "d"));
	TRY(rename("g", "g"));
	TRY(rename("g", "d/g"));
	TRY(rename("link", "d/link"));
	TRY(rename("d/g", "g/"));
	TRY(rename("", "x"));
	TRY(rename("d/g", ""));
	TRY(rename("d/g", "d/link"));
	look("d/link");
}

CASE(directories_are_renamed)
{
	make("f", 1);
	MUST(mkdir("a", 0755));
	MUST(mkdir("a/in", 0755));
	MUST(mkdir("empty", 0755));
	MUST(mkdir("full", 0755));
	MUST(mkdir("full/in", 0755));
	look("a");
	TRY(rename("a", "a/in/side"));
	TRY(rename("a", "full"));
	TRY(rename("a", "f"));
	TRY(rename("f", "a"));
	TRY(rename("a", "empty"));
	look("a");
	look("empty");
	TRY(rename("empty/in", "in"));
	look("empty");
	TRY(rename("empty", "empty"));
	TRY(rename(".", "x"));
	TRY(rename("full", ".."));
	TRY(rename("full/", "trailing/"));
	TRY(rename("in", "trailing/in/"));
}

CASE(rename_without_replacing)
{
	make("f", 1);
	make("g", 2);
	MUST(mkdir("d", 0755));
	TRY(renameat2(AT_FDCWD, "f", AT_FDCWD, "g", RENAME_NOREPLACE));
	TRY(renameat2(AT_FDCWD, "f", AT_FDCWD, "d", RENAME_NOREPLACE));
	TRY(renameat2(AT_FDCWD, "f", AT_FDCWD, "f", RENAME_NOREPLACE));
	TRY(renameat2(AT_FDCWD, "f", AT_FDCWD, "new", RENAME_NOREPLACE));
	TRY(renameat2(AT_FDCWD, "none", AT_FDCWD, "x", RENAME_NOREPLACE));
	look("new");
}

CASE(rename_exchanging)
{
	make("f", 1);
	make("g", 2);
	MUST(mkdir("d", 0755));
	make("d/in", 3);
	TRY(renameat2(AT_FDCWD, "f", AT_FDCWD, "g", RENAME_EXCHANGE));
	look("f");
	TRY(renameat2(AT_FDCWD, "f", AT_FDCWD, "d", RENAME_EXCHANGE));
	look("f");
	look("f/in");
	look("d");
	TRY(renameat2(AT_FDCWD, "f", AT_FDCWD, "none", RENAME_EXCHANGE));
	TRY(renameat2(AT_FDCWD, "f", AT_FDCWD, "f/in", RENAME_EXCHANGE));
	TRY(renameat2(AT_FDCWD, "f/in", AT_FDCWD, "f", RENAME_EXCHANGE));
	TRY(renameat2(AT_FDCWD, "g", AT_FDCWD, "f/in", RENAME_EXCHANGE));
	look("f/in");
	TRY(renameat2(AT_FDCWD, "g", AT_FDCWD, "g", RENAME_EXCHANGE));
}

CASE(rename_leaving_a_whiteout)
{
	make("f", 1);
	TRY(renameat2(AT_FDCWD, "f", AT_FDCWD, "g", RENAME_WHITEOUT));
	look("f");
	look("g");
	TRY(mknod("whiteout", S_IFCHR, makedev(0, 0)));
}

CASE(rename_with_flags_that_do_not_go_together)
{
	make("f", 1);
	make("g", 1);
	TRY(renameat2(AT_FDCWD, "f", AT_FDCWD, "g", RENAME_EXCHANGE | RENAME_NOREPLACE));
	TRY(renameat2(AT_FDCWD, "f", AT_FDCWD, "g", RENAME_EXCHANGE | RENAME_WHITEOUT));
	TRY(renameat2(AT_FDCWD, "f", AT_FDCWD, "g", 8));
	TRY(renameat2(AT_FDCWD, "f", AT_FDCWD, "g", 1 << 20));
}

PREPARED(renaming_the_directories_of_others)
{
	MUST(mkdir("theirs", 0755));
	theirs("theirs");
	MUST(mkdir("mine", 0755));
	own("mine");
	MUST(mkdir("unwritable", 0555));
	own("unwritable");
	act();
	/* Within a directory nothing of the moved one changes; elsewhere its ".." does. */
	TRY(rename("theirs", "moved"));
	TRY(rename("moved", "mine/moved"));
	TRY(rename("unwritable", "mine/unwritable"));
}

CASE(times_that_names_move)
{
	make("f", 1);
	MUST(mkdir("d", 0755));
	MOVES("f", link("f", "g"));
	MOVES("f", rename("f", "h"));
	MOVES("h", unlink("g"));
	MOVES(".", rename("h", "d/h"));
	MOVES("d", rename("d/h", "d/i"));
	MOVES("d/i", rename("d/i", "f"));
	MOVES("d", mkdir("d/e", 0755));
	MOVES("d/e", rename("d/e", "e"));
	MOVES("d", symlink("x", "d/link"));
	MOVES("d", unlink("d/link"));
	MOVES("d", mknod("d/fifo", S_IFIFO, 0));
	MOVES(".", rmdir("e"));
	MOVES("f", renameat2(AT_FDCWD, "f", AT_FDCWD, "d/fifo", RENAME_EXCHANGE));
	MOVES(".", unlink("none"));
}

CASE(targets_of_symbolic_links)
{
	static char target[5000], room[5000];
	static const int lens[] = { 1, 59, 60, 61, 500, 4000, 4094 };

	for (size_t index = 0; index < sizeof(lens) / sizeof(lens[0]); index++) {
		char name[20];

		memset(target, 't', sizeof(target));
		target[lens[index]] = 0;
		sprintf(name, "%d", lens[index]);
		TRY(symlink(target, name));
		TRY(readlink(name, room, sizeof(room)));
		look(name);
	}
	TRY(symlink("", "empty"));
	TRY(symlink("x", "1"));
	TRY(symlink("x", "none/link"));
	TRY(readlink("500", room, 10));
	TRY(readlink("500", room, 0));
	TRY(readlink(".", room, 10));
	target[4094] = 't';
	target[4096] = 0;
	TRY(symlink(target, "4096"));
}

CASE(target_of_4095_bytes)
{
	static char target[5000], room[5000];

	memset(target, 't', 4095);
	TRY(symlink(target, "link"));
	TRY(readlink("link", room, sizeof(room)));
}

CASE(symbolic_links_have_attributes)
{
	struct timespec times[2] = { { 1000, 5 }, { 2000, 6 } };
	struct stat found;

	MUST(symlink("none", "link"));
	look("link");
	TRY(lchown("link", -1, -1));
	TRY(utimensat(AT_FDCWD, "link", times, AT_SYMLINK_NOFOLLOW));
	MUST(lstat("link", &found));
	tell("times %ld %ld", (long)found.st_atime, (long)found.st_mtime);
	TRY(fchmodat(AT_FDCWD, "link", 0600, AT_SYMLINK_NOFOLLOW));
	TRY(syscall(452, AT_FDCWD, "link", 0600, AT_SYMLINK_NOFOLLOW));
	TRY(chmod("link", 0600));
	TRY(lsetxattr("link", "user.x", "y", 1, 0));
	TRY(lsetxattr("link", "trusted.x", "y", 1, 0));
	TRY(lsetxattr("link", "security.x", "y", 1, 0));
	TRY(lsetxattr("link", "system.posix_acl_access", "y", 1, 0));
	TRY(lgetxattr("link", "user.x", NULL, 0));
	TRY(llistxattr("link", NULL, 0));
	mode_of("link");
}

CASE(nodes_of_all_kinds)
{
	umask(022);
	TRY(mknod("file", S_IFREG | 0666, 0));
	TRY(mknod("zero", 0666, 0));
	TRY(mknod("fifo", S_IFIFO | 0666, 0));
	TRY(mknod("socket", S_IFSOCK | 0777, 0));
	TRY(mknod("char", S_IFCHR | 0600, makedev(1, 3)));
	TRY(mknod("block", S_IFBLK | 0600, makedev(7, 200)));
	TRY(mknod("large", S_IFCHR | 0600, makedev(4095, 1048575)));
	TRY(mknod("middle", S_IFBLK | 0600, makedev(300, 70000)));
	TRY(mknod("directory", S_IFDIR | 0755, 0));
	TRY(mknod("link", S_IFLNK | 0777, 0));
	TRY(mknod("nonsense", 0xe000 | 0644, 0));
	TRY(mknod("fifo", S_IFIFO | 0666, 0));
	TRY(mknod("none/fifo", S_IFIFO | 0666, 0));
	look("file");
	look("zero");
	look("fifo");
	look("socket");
	look("char");
	look("block");
	look("large");
	look("middle");
}

CASE(links_are_counted)
{
	struct stat found;
	char name[20];
	int failed = 0;

	make("f", 0);
	for (int index = 0; index < 300; index++) {
		sprintf(name, "%d", index);
		failed += link("f", name) < 0;
	}
	MUST(stat("f", &found));
	tell("%d failed, links %lu", failed, (unsigned long)found.st_nlink);
	MUST(mkdir("d", 0755));
	for (int index = 0; index < 50; index++) {
		sprintf(name, "d/%d", index);
		MUST(mkdir(name, 0755));
	}
	MUST(stat("d", &found));
	tell("links of a directory with 50 directories: %lu", (unsigned long)found.st_nlink);
}

CASE(working_directories_move)
{
	char room[4096];

	MUST(mkdir("a", 0755));
	MUST(mkdir("a/b", 0755));
	MUST(mkdir("c", 0755));
	MUST(chdir("a/b"));
	TRY(rename("../../a/b", "../../c/d"));
	TRY(getcwd(room, sizeof(room)) ? 0 : -1);
	tell("%s", strrchr(room, '/'));
	TRY(access("../../c", F_OK));
	TRY(chdir(".."));
	TRY(access("d", F_OK));
	TRY(access("../a", F_OK));
}
