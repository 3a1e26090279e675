/* What one process does, and another one sees at once. */
#include "calls.h"
#include <setjmp.h>

/* Two processes that take turns: one acts, the other looks, and neither has the file in common with the other. */
static int to_witness[2], to_actor[2];

static void pass(int *to)
{
	MUST(write(to[1], "", 1));
}

static bool turn(int *from)
{
	char byte;

	return read(from[0], &byte, 1) == 1;
}

/* Starts a process that looks whenever the actor has done something. */
static pid_t witness(void (*look_once)(void))
{
	pid_t child;

	MUST(pipe(to_witness));
	MUST(pipe(to_actor));
	child = MUST(fork());
	if (child)
		return child;
	close(to_witness[1]);
	while (turn(to_witness)) {
		look_once();
		pass(to_actor);
	}
	_exit(0);
}

/* Has the witness look. */
static void ask(const char *after)
{
	tell("after %s", after);
	pass(to_witness);
	if (!turn(to_actor))
		fail("looking");
}

static void end(pid_t child)
{
	close(to_witness[1]);
	MUST(waitpid(child, NULL, 0));
}

static void see_size_and_blocks(void)
{
	struct stat stat = stat_of("f");

	tell("size %ld, %s", (long)stat.st_size, stat.st_blocks ? "has blocks" : "has none");
}

CASE(sizes_and_blocks_that_another_process_sees)
{
	pid_t child = witness(see_size_and_blocks);
	int fd = fresh("f");
	volatile char *at;

	ask("creating it");
	MUST(ftruncate(fd, 1 << 20));
	ask("making it longer");
	at = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	at[300000] = 's';
	ask("a store into a hole");
	MUST(ftruncate(fd, 0));
	ask("cutting it");
	MUST(pwrite(fd, "a line", 6, 100000));
	ask("a write");
	MUST(ftruncate(fd, 0));
	MUST(fallocate(fd, 0, 0, 50000));
	ask("allocating");
	end(child);
}

static void see_times(void)
{
	struct stat stat = stat_of("f");

	tell("mtime %s, atime %s", stat.st_mtime == 2000 ? "as it was set" : "another",
	     stat.st_atime == 1000 ? "as it was set" : "another");
}

CASE(times_that_another_process_sees)
{
	struct timespec times[2] = { { 1000, 0 }, { 2000, 0 } };
	pid_t child = witness(see_times);
	int fd = fresh("f");
	volatile char *at;

	MUST(ftruncate(fd, 8192));
	at = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	at[0] = 's';
	MUST(futimens(fd, times));
	ask("setting them behind a store");
	MUST(msync((void *)at, 8192, MS_SYNC));
	ask("writing the store back");
	MUST(pwrite(fd, "w", 1, 0));
	ask("a write");
	MUST(futimens(fd, times));
	ask("setting them behind a write");
	MUST(fsync(fd));
	ask("fsync");
	MUST(rename("f", "g"));
	MUST(rename("g", "f"));
	ask("renaming");
	end(child);
}

/* The page is behind the end of its file. */
static sigjmp_buf behind_the_end;

static void fault(int signal)
{
	(void)signal;
	siglongjmp(behind_the_end, 1);
}

/* True if the last byte of `size` can be read, or is found in a mapping. */
static bool has_its_last_byte(int fd, long size, bool maps)
{
	volatile char *at;
	char byte;
	bool found;

	if (!maps)
		return pread(fd, &byte, 1, size - 1) == 1 && byte == 'z';
	at = mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0);
	found = sigsetjmp(behind_the_end, 1) == 0 && at[size - 1] == 'z';
	munmap((void *)at, size);
	return found;
}

/* Appends to a file beside a process that reads or maps it, up to the size that it is told.
   A few of the thousand sizes that fail are no difference: docs/DIFFERENCES.md, "The size of a growing file". */
static void read_while_it_grows(bool maps)
{
	char room[5000];
	long before = 0, short_of = 0;
	int fd = fresh("f"), status, shorter = 0, smaller = 0;
	pid_t child = MUST(fork());

	if (child == 0) {
		memset(room, 'z', sizeof(room));
		for (int round = 0; round < 1000; round++)
			MUST(write(fd, room, sizeof(room)));
		_exit(0);
	}
	signal(SIGBUS, fault);
	while (waitpid(child, &status, WNOHANG) == 0) {
		int other = MUST(open("f", O_RDONLY));
		long size = stat_of("f").st_size;

		smaller += size < before;
		before = size;
		if (size > short_of && !has_its_last_byte(other, size, maps)) {
			shorter++;
			short_of = size;
		}
		close(other);
	}
	signal(SIGBUS, SIG_DFL);
	tell("at last %ld", (long)stat_of("f").st_size);
	tell("%s less than was told, %d times smaller than before", shorter > 5 ? "often" : "hardly ever", smaller);
}

CASE(growing_files_are_read_up_to_their_size)
{
	read_while_it_grows(false);
}

CASE(growing_files_are_mapped_up_to_their_size)
{
	read_while_it_grows(true);
}

/* Lists a directory that stays open, from its beginning, in the order of the names. */
static void list_again(DIR *directory, const char *path)
{
	bool has_f = false, has_g = false;
	struct dirent *entry;

	rewinddir(directory);
	while ((entry = readdir(directory))) {
		has_f |= strcmp(entry->d_name, "f") == 0;
		has_g |= strcmp(entry->d_name, "g") == 0;
	}
	tell("%s lists%s%s", path, has_f ? " f" : "", has_g ? " g" : "");
}

static void see_names(void)
{
	static const char *const names[] = { "f", "g", "d/f", "d/g" };
	static DIR *above, *below;
	struct stat stat;

	above = above ?: opendir(".");
	below = below ?: opendir("d");
	list_again(above, ".");
	list_again(below, "d");
	for (int name = 0; name < 4; name++)
		if (lstat(names[name], &stat) == 0)
			tell("%s has size %ld, %lu links", names[name], (long)stat.st_size, (unsigned long)stat.st_nlink);
}

CASE(names_that_another_process_sees)
{
	pid_t child;

	MUST(mkdir("d", 0755));
	child = witness(see_names);
	ask("nothing");
	make("f", 10);
	ask("creating");
	MUST(link("f", "d/g"));
	ask("linking");
	make("g", 20);
	MUST(rename("g", "f"));
	ask("replacing");
	MUST(syscall(SYS_renameat2, AT_FDCWD, "f", AT_FDCWD, "d/g", RENAME_EXCHANGE));
	ask("exchanging");
	MUST(unlink("d/g"));
	ask("removing");
	MUST(rename("f", "d/f"));
	ask("moving");
	end(child);
}
