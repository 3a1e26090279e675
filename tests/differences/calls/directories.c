/* Reading directories. */
#include "calls.h"

struct linux_dirent {
	uint64_t ino;
	int64_t offset;
	unsigned short len;
	unsigned char type;
	char name[];
};

static int compare(const void *one, const void *other)
{
	return strcmp(*(char *const *)one, *(char *const *)other);
}

static void list(const char *path)
{
	char *names[200], line[4000] = "";
	size_t count = 0;
	struct dirent *entry;
	DIR *directory = opendir(path);

	while (directory && (entry = readdir(directory)) && count < 200) {
		char *text;

		MUST(asprintf(&text, "%s:%d", entry->d_name, entry->d_type));
		names[count++] = text;
	}
	qsort(names, count, sizeof(names[0]), compare);
	for (size_t index = 0; index < count; index++)
		if (strlen(line) < 3800)
			sprintf(line + strlen(line), " %s", names[index]);
	tell("%s:%s", path, line);
	if (directory)
		closedir(directory);
}

CASE(entries_tell_types)
{
	make("file", 1);
	MUST(mkdir("directory", 0755));
	MUST(symlink("x", "link"));
	MUST(mkfifo("fifo", 0644));
	MUST(mknod("socket", S_IFSOCK | 0644, 0));
	list(".");
	list("directory");
	list("none");
	list("file");
}

CASE(entries_tell_inodes)
{
	struct dirent *entry;
	struct stat found;
	int wrong = 0, seen = 0;
	DIR *directory;

	make("a", 1);
	MUST(link("a", "b"));
	MUST(mkdir("c", 0755));
	directory = opendir(".");
	while ((entry = readdir(directory))) {
		MUST(lstat(entry->d_name, &found));
		wrong += found.st_ino != entry->d_ino;
		seen++;
	}
	tell("%d entries, %d with another number", seen, wrong);
}

CASE(directories_are_read_in_pieces)
{
	char room[300], name[20];
	int fd, seen = 0, calls = 0;
	long len;

	for (int index = 0; index < 100; index++) {
		sprintf(name, "name%d", index);
		make(name, 0);
	}
	fd = MUST(open(".", O_RDONLY));
	TRY(syscall(SYS_getdents64, fd, room, 8));
	while ((len = syscall(SYS_getdents64, fd, room, sizeof(room))) > 0) {
		calls++;
		for (long at = 0; at < len; at += ((struct linux_dirent *)(room + at))->len)
			seen++;
	}
	tell("%d entries in more than ten calls: %d", seen, calls > 10);
	TRY(syscall(SYS_getdents64, fd, room, sizeof(room)));
	TRY(lseek(fd, 0, SEEK_SET));
	tell("again: %d", syscall(SYS_getdents64, fd, room, sizeof(room)) > 0);
}

CASE(places_in_directories_are_kept)
{
	char name[300][20], after[20];
	struct dirent *entry;
	long place[300];
	int count = 0, wrong = 0;
	DIR *directory;

	for (int index = 0; index < 200; index++) {
		sprintf(after, "name%d", index);
		make(after, 0);
	}
	directory = opendir(".");
	for (place[0] = telldir(directory); (entry = readdir(directory)); place[++count] = telldir(directory))
		strcpy(name[count], entry->d_name);
	for (int index = count - 1; index >= 0; index -= 7) {
		seekdir(directory, place[index]);
		entry = readdir(directory);
		wrong += !entry || strcmp(entry->d_name, name[index]) != 0;
	}
	tell("%d entries, %d elsewhere", count, wrong);
	seekdir(directory, place[count]);
	tell("at the end: %d", readdir(directory) == NULL);
}

CASE(removing_while_reading)
{
	struct dirent *entry;
	char name[20];
	int removed = 0;
	DIR *directory;

	for (int index = 0; index < 300; index++) {
		sprintf(name, "name%d", index);
		make(name, 0);
	}
	directory = opendir(".");
	while ((entry = readdir(directory)))
		if (entry->d_name[0] == 'n')
			removed += unlink(entry->d_name) == 0;
	tell("%d removed", removed);
	rewinddir(directory);
	for (removed = 0; readdir(directory);)
		removed++;
	tell("%d left", removed);
}

CASE(adding_while_reading)
{
	struct dirent *entry;
	char name[40];
	int seen = 0;
	DIR *directory;

	for (int index = 0; index < 100; index++) {
		sprintf(name, "old%d", index);
		make(name, 0);
	}
	directory = opendir(".");
	for (int index = 0; (entry = readdir(directory)) && index < 1000; index++) {
		sprintf(name, "new%d", index);
		make(name, 0);
		seen += strncmp(entry->d_name, "old", 3) == 0;
	}
	tell("%d of those that were there", seen);
}

CASE(descriptors_of_directories)
{
	char room[100];
	int fd = MUST(open(".", O_RDONLY));

	TRY(read(fd, room, sizeof(room)));
	TRY(pread(fd, room, sizeof(room), 0));
	TRY(write(fd, room, 1));
	TRY(ftruncate(fd, 0));
	TRY(truncate(".", 0));
	TRY(fallocate(fd, 0, 0, 100));
	TRY(fsync(fd));
	TRY(fdatasync(fd));
	TRY(flock(fd, LOCK_EX));
	TRY(mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, fd, 0) == MAP_FAILED ? -1 : 0);
	TRY(posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED));
	TRY(readahead(fd, 0, 10));
	TRY(sync_file_range(fd, 0, 10, SYNC_FILE_RANGE_WRITE));
	TRY(copy_file_range(fd, NULL, fd, NULL, 1, 0));
}

CASE(offsets_of_directories)
{
	int fd = MUST(open(".", O_RDONLY));

	TRY(lseek(fd, 0, SEEK_CUR));
	TRY(lseek(fd, -1, SEEK_SET));
	TRY(lseek(fd, 0, SEEK_SET));
	TRY(lseek(fd, 0, 99));
}

CASE(searching_directories_for_data)
{
	int fd = MUST(open(".", O_RDONLY));

	TRY(lseek(fd, 0, SEEK_DATA) < 0 ? -1 : 0);
	TRY(lseek(fd, 0, SEEK_HOLE) < 0 ? -1 : 0);
}

CASE(end_of_directories)
{
	int fd = MUST(open(".", O_RDONLY));

	tell("%s", lseek(fd, 0, SEEK_END) >= 0 ? "there is one" : strerrorname_np(errno));
}

CASE(size_of_directories)
{
	struct stat found;

	MUST(mkdir("d", 0755));
	MUST(stat("d", &found));
	tell("size %ld, %ld blocks", (long)found.st_size, (long)found.st_blocks);
}

PREPARED(listing_without_permission)
{
	char room[100];
	DIR *directory;

	MUST(mkdir("listed", 0755));
	make("listed/f", 0);
	MUST(chmod("listed", 0444));
	MUST(mkdir("entered", 0755));
	make("entered/f", 0);
	MUST(chmod("entered", 0111));
	theirs("listed");
	theirs("entered");
	act();
	directory = opendir("listed");
	tell("listed: %d", directory && readdir(directory));
	TRY(access("listed/f", F_OK));
	TRY(chdir("listed"));
	TRY(open("entered", O_RDONLY));
	TRY(access("entered/f", F_OK));
	TRY(readlink("entered/f", room, sizeof(room)));
}

/* How many of so many names, made by this printf, a descriptor still tells. */
static int told(int fd, const char *format, int count)
{
	char room[4096], name[20];
	int found = 0;
	long len;

	while ((len = syscall(SYS_getdents64, fd, room, sizeof(room))) > 0)
		for (long at = 0; at < len; at += ((struct linux_dirent *)(room + at))->len)
			for (int index = 0; index < count; index++) {
				sprintf(name, format, index);
				found += strcmp(((struct linux_dirent *)(room + at))->name, name) == 0;
			}
	return found;
}

static void many(void)
{
	char name[20];

	for (int index = 0; index < 1000; index++) {
		sprintf(name, "name%d", index);
		make(name, 0);
	}
}

CASE(a_listing_beside_one_that_began_before)
{
	char room[4096], name[20];
	int before, own;

	many();
	before = MUST(open(".", O_RDONLY));
	for (int calls = 0; calls < 4; calls++)
		MUST(syscall(SYS_getdents64, before, room, sizeof(room)));
	for (int index = 0; index < 50; index++) {
		sprintf(name, "new%d", index);
		make(name, 0);
		sprintf(name, "name%d", index);
		MUST(unlink(name));
	}
	own = MUST(open(".", O_RDONLY));
	MUST(syscall(SYS_getdents64, own, room, 100));
	told(before, "none%d", 1);
	/* A few may be in the first piece. */
	tell("most of the new ones: %d", told(own, "new%d", 50) > 40);
	own = MUST(open(".", O_RDONLY));
	tell("old ones that are gone: %d", told(own, "name%d", 50));
}

CASE(own_names_beside_another_process_that_lists)
{
	int missing = 0, ghosts = 0, fd;
	char name[20];
	pid_t child;

	many();
	child = MUST(fork());
	if (child == 0)
		for (fd = open(".", O_RDONLY);; lseek(fd, 0, SEEK_SET))
			told(fd, "none%d", 1);
	for (int turn = 0; turn < 100; turn++) {
		sprintf(name, "new%d", turn);
		make(name, 0);
		fd = MUST(open(".", O_RDONLY));
		missing += told(fd, name, 1) != 1;
		MUST(unlink(name));
		MUST(lseek(fd, 0, SEEK_SET));
		ghosts += told(fd, name, 1) != 0;
		close(fd);
	}
	MUST(kill(child, SIGKILL));
	MUST(waitpid(child, NULL, 0));
	tell("%d times missing, %d times there when removed", missing, ghosts);
}

CASE(seeking_back_after_removing)
{
	char room[4096], name[20];
	long place;
	int fd;

	many();
	fd = MUST(open(".", O_RDONLY));
	MUST(syscall(SYS_getdents64, fd, room, sizeof(room)));
	place = MUST(lseek(fd, 0, SEEK_CUR));
	told(fd, "none%d", 1);
	MUST(lseek(fd, 0, SEEK_SET));
	told(fd, "none%d", 1);
	for (int index = 0; index < 1000; index++) {
		sprintf(name, "name%d", index);
		MUST(unlink(name));
	}
	MUST(lseek(fd, place, SEEK_SET));
	tell("%d are still there", told(fd, "name%d", 1000));
}
