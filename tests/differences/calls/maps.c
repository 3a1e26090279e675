/* Mapped files. */
#include "calls.h"

static void *map(const char *path, int flags, size_t len, int prot, int how)
{
	int fd = MUST(open(path, flags));
	void *at = mmap(NULL, len, prot, how, fd, 0);

	close(fd);
	return at;
}

CASE(mapping_is_refused)
{
	int fd;

	make_mode("f", 4096, 0644);
	fd = MUST(open("f", O_RDONLY));
	TRY(mmap(NULL, 4096, PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED ? -1 : 0);
	TRY(mmap(NULL, 4096, PROT_WRITE, MAP_PRIVATE, fd, 0) == MAP_FAILED ? -1 : 0);
	TRY(mmap(NULL, 0, PROT_READ, MAP_SHARED, fd, 0) == MAP_FAILED ? -1 : 0);
	TRY(mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 100) == MAP_FAILED ? -1 : 0);
	TRY(mmap(NULL, 4096, PROT_READ, 0, fd, 0) == MAP_FAILED ? -1 : 0);
	TRY(mmap(NULL, 4096, PROT_READ | PROT_EXEC, MAP_SHARED, fd, 0) == MAP_FAILED ? -1 : 0);
	fd = MUST(open("f", O_WRONLY));
	TRY(mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0) == MAP_FAILED ? -1 : 0);
	TRY(mmap(NULL, 4096, PROT_WRITE, MAP_PRIVATE, fd, 0) == MAP_FAILED ? -1 : 0);
}

CASE(mapping_persistent_memory)
{
	make("f", 4096);
	TRY(mmap(NULL, 4096, PROT_READ, MAP_SHARED_VALIDATE | MAP_SYNC, open("f", O_RDWR), 0) == MAP_FAILED ? -1 : 0);
}

static void touch_behind_the_end(void)
{
	volatile char *at = map("f", O_RDWR, 3 * 4096, PROT_READ | PROT_WRITE, MAP_SHARED);

	tell("inside %d, behind the end of the file %d", at[0], at[4095]);
	tell("behind its last page %d", at[4096]);
}

CASE(touching_pages_behind_the_end)
{
	make("f", 100);
	in_child("touching", touch_behind_the_end);
}

static void touch_after_truncation(void)
{
	volatile char *at = map("f", O_RDWR, 8192, PROT_READ, MAP_SHARED);

	tell("before %d", at[4096]);
	MUST(truncate("f", 10));
	tell("after %d", at[9]);
	tell("cut off %d", at[4096]);
}

CASE(touching_pages_that_were_cut_off)
{
	make("f", 8192);
	in_child("touching", touch_after_truncation);
}

CASE(stores_and_writes_meet)
{
	char room[8];
	char *at;
	int fd;

	make("f", 8192);
	fd = MUST(open("f", O_RDWR));
	at = map("f", O_RDWR, 8192, PROT_READ | PROT_WRITE, MAP_SHARED);
	at[0] = 'm';
	MUST(pread(fd, room, 2, 0));
	bytes("read after a store", room, 2);
	MUST(pwrite(fd, "w", 1, 1));
	bytes("mapped after a write", at, 3);
	at[4097] = 'n';
	TRY(msync(at, 8192, MS_SYNC));
	TRY(msync(at, 8192, MS_ASYNC | MS_SYNC));
	TRY(munmap(at, 8192));
	contents("f");
}

CASE(private_stores_stay_private)
{
	char *at;

	make("f", 4096);
	at = map("f", O_RDONLY, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE);
	at[0] = 'p';
	contents("f");
	bytes("mapped", at, 3);
}

CASE(mapped_files_without_names)
{
	char *at;

	make("f", 4096);
	at = map("f", O_RDWR, 4096, PROT_READ | PROT_WRITE, MAP_SHARED);
	TRY(unlink("f"));
	at[0] = 'u';
	TRY(msync(at, 4096, MS_SYNC));
	bytes("mapped", at, 2);
	TRY(madvise(at, 4096, MADV_REMOVE));
	bytes("mapped", at, 2);
}

CASE(reading_into_a_mapping_of_the_same_file)
{
	char *at;

	make("f", 8192);
	at = map("f", O_RDWR, 8192, PROT_READ | PROT_WRITE, MAP_SHARED);
	memset(at, 'a', 4096);
	TRY(pread(open("f", O_RDONLY), at + 4096, 4096, 0));
	TRY(pwrite(open("f", O_WRONLY), at, 4096, 8192));
	contents("f");
}

static void look_at_holes(void)
{
	int fd = MUST(open("f", O_RDONLY));

	size_of("f");
	TRY(lseek(fd, 0, SEEK_DATA));
	TRY(lseek(fd, 1052672, SEEK_HOLE));
	TRY(lseek(fd, 1056768, SEEK_DATA));
}

/* Stores into a hole of a file, and another process that looks. */
static void store_into_holes(void)
{
	char *at = map("f", O_RDWR, 4 << 20, PROT_READ | PROT_WRITE, MAP_SHARED);

	at[1052672] = 1;
	in_child("another process", look_at_holes);
	at[2097152] = 1;
	in_child("another process", look_at_holes);
	munmap(at, 4 << 20);
	size_of("f");
}

CASE(stores_into_a_file_without_data)
{
	MUST(ftruncate(fresh("f"), 4 << 20));
	size_of("f");
	store_into_holes();
}

CASE(stores_into_holes_before_data)
{
	static char block[1 << 20] = "x";
	int fd = fresh("f");

	MUST(pwrite(fd, block, sizeof(block), 3 << 20));
	MUST(fsync(fd));
	size_of("f");
	store_into_holes();
}

/* A new file of 'x', open for reading and writing, and mapped. */
static volatile char *fresh_map(const char *path, size_t len, int *fd)
{
	char room[4096];
	volatile char *at;

	memset(room, 'x', sizeof(room));
	*fd = MUST(open(path, O_RDWR | O_CREAT | O_EXCL, 0644));
	for (size_t done = 0; done < len;)
		done += MUST(write(*fd, room, len - done < sizeof(room) ? len - done : sizeof(room)));
	at = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0);
	return at;
}

CASE(times_that_are_set_after_a_store)
{
	struct timespec times[2] = { { 1000, 0 }, { 2000, 0 } };
	struct stat stat;

	for (int len = 100; len <= 8192; len += 8092) {
		char name[16];
		int fd;

		snprintf(name, sizeof(name), "f%d", len);
		volatile char *at = fresh_map(name, len, &fd);

		at[5] = 's';
		TRY(futimens(fd, times));
		TRY(msync((void *)at, 8192, MS_SYNC));
		stat = stat_of(name);
		tell("%s: mtime %ld", name, (long)stat.st_mtim.tv_sec);
		at[6] = 's';
		TRY(fchmod(fd, 0600));
		MOVES(name, msync((void *)at, 8192, MS_SYNC));
		TRY(futimens(fd, times));
		at[7] = 's';
		TRY(munmap((void *)at, 8192));
		stat = stat_of(name);
		tell("%s: stored to since: %d", name, stat.st_mtim.tv_sec != 2000);
		contents(name);
	}
}

/* Grows files over what was stored behind their end. */
static void grow_over_stores(int first_way, int last_way)
{
	static const char *const ways[] = { "write", "direct", "truncate", "allocate", "copy" };

	for (int way = first_way; way <= last_way; way++)
		for (int end = 1001; end <= 6001; end += 5000) {
			char name[16];
			loff_t from = 0, to = end - 1;
			int fd, direct;

			snprintf(name, sizeof(name), "%s%d", ways[way], end);
			volatile char *at = fresh_map(name, 100, &fd);

			at[50] = at[100] = at[200] = at[4095] = 's';
			switch (way) {
			case 0:
				TRY(pwrite(fd, "w", 1, end - 1));
				break;
			case 1:
				/* Aligned, or ext4 refuses it. */
				direct = MUST(open(name, O_WRONLY | O_DIRECT));
				if (end > 4096) {
					void *room;

					MUST(posix_memalign(&room, 4096, 4096));
					memset(room, 'w', 4096);
					TRY(pwrite(direct, room, 4096, 4096));
				}
				close(direct);
				break;
			case 2:
				TRY(ftruncate(fd, end));
				break;
			case 3:
				TRY(fallocate(fd, 0, 0, end));
				break;
			default:
				TRY(copy_file_range(fd, &from, fd, &to, 1, 0));
			}
			if (way != 1 || end > 4096) {
				at[300] = 't';
				TRY(msync((void *)at, 8192, MS_SYNC));
			}
			contents(name);
			TRY(munmap((void *)at, 8192));
			close(fd);
			contents(name);
		}
}

CASE(growing_over_what_was_stored_behind_the_end)
{
	grow_over_stores(0, 0);
	grow_over_stores(2, 4);
}

CASE(growing_directly_over_what_was_stored_behind_the_end)
{
	grow_over_stores(1, 1);
}
