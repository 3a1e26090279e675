/* Reading, writing, truncating, holes, allocating, copying, syncing. */
#include "calls.h"
#include <sys/resource.h>
#include <sys/sendfile.h>

CASE(writing_behind_the_end)
{
	char room[100];
	int fd = fresh("f");

	TRY(pwrite(fd, "abc", 3, 10000));
	contents("f");
	TRY(pread(fd, room, 100, 9999));
	TRY(pread(fd, room, 100, 10003));
	TRY(pread(fd, room, 100, 20000));
	TRY(pread(fd, room, 0, 0));
	TRY(pread(fd, room, 10, -1));
	TRY(pwrite(fd, room, 10, -1));
	TRY(lseek(fd, -1, SEEK_SET));
	TRY(lseek(fd, 50000, SEEK_SET));
	TRY(write(fd, "z", 1));
	size_of("f");
}

CASE(descriptors_that_are_not_for_this)
{
	char room[4];
	int read_only, write_only;

	make("f", 10);
	read_only = MUST(open("f", O_RDONLY));
	write_only = MUST(open("f", O_WRONLY));
	TRY(write(read_only, "x", 1));
	TRY(pwrite(read_only, "x", 1, 0));
	TRY(ftruncate(read_only, 0));
	TRY(fallocate(read_only, 0, 0, 10));
	TRY(read(write_only, room, 4));
	TRY(copy_file_range(write_only, NULL, write_only, NULL, 1, 0));
	TRY(copy_file_range(read_only, NULL, read_only, NULL, 1, 0));
	TRY(fsync(read_only));
	TRY(fdatasync(read_only));
	TRY(fsync(write_only));
	TRY(read(-1, room, 4));
	TRY(fsync(-1));
	TRY(read(write_only, NULL, 4));
	TRY(read(read_only, (void *)1, 4));
	TRY(write(write_only, (void *)1, 4));
}

CASE(offsets_at_their_end)
{
	char room[4] = "abc";
	int fd = fresh("f");

	TRY(pwrite(fd, room, 3, LLONG_MAX));
	TRY(pwrite(fd, room, 3, LLONG_MAX - 1));
	TRY(pread(fd, room, 3, LLONG_MAX));
	TRY(pread(fd, room, 3, LLONG_MAX - 1));
	TRY(ftruncate(fd, -1));
	TRY(fallocate(fd, 0, LLONG_MAX - 10, 100));
}

CASE(files_beyond_16_tebibytes)
{
	int fd = fresh("f");

	TRY(ftruncate(fd, 1L << 43));
	TRY(pwrite(fd, "x", 1, (1L << 43) - 1));
	TRY(ftruncate(fd, 1L << 44));
	TRY(ftruncate(fd, LLONG_MAX));
	TRY(pwrite(fd, "x", 1, 1L << 45));
	TRY(lseek(fd, 1L << 46, SEEK_SET) < 0 ? -1 : 0);
	TRY(pread(fd, (char[1]){ 0 }, 1, LLONG_MAX - 1));
}

CASE(truncating)
{
	int fd = fresh("f");

	MUST(write(fd, "abcdefgh", 8));
	MOVES("f", ftruncate(fd, 4));
	contents("f");
	MOVES("f", ftruncate(fd, 8));
	contents("f");
	MOVES("f", ftruncate(fd, 8));
	MOVES("f", truncate("f", 8));
	TRY(ftruncate(fd, 1 << 20));
	tell("size %ld", (long)stat_of("f").st_size);
	TRY(truncate("none", 0));
	TRY(truncate("f/x", 0));
	MUST(symlink("f", "link"));
	TRY(truncate("link", 3));
	contents("f");
}

PREPARED(truncating_without_permission)
{
	int fd;

	make_mode("f", 10, 0444);
	own("f");
	make_mode("theirs", 10, 0644);
	theirs("theirs");
	make_mode("writable", 10, 0666);
	theirs("writable");
	act();
	TRY(truncate("f", 0));
	TRY(truncate("theirs", 0));
	TRY(truncate("writable", 0));
	TRY(close(open("theirs", O_RDONLY | O_TRUNC)));
	fd = MUST(open("writable", O_RDWR));
	TRY(ftruncate(fd, 5));
	TRY(fchmod(fd, 0600));
}

static void beyond_the_limit(void)
{
	int fd = MUST(open("f", O_RDWR));

	TRY(pwrite(fd, "x", 1, 100000));
}

CASE(limit_of_size)
{
	static const struct rlimit limit = { 10000, 10000 };
	static char room[20000];
	int fd = fresh("f");

	MUST(setrlimit(RLIMIT_FSIZE, &limit));
	in_child("a write beyond the limit", beyond_the_limit);
	signal(SIGXFSZ, SIG_IGN);
	TRY(pwrite(fd, room, sizeof(room), 0));
	TRY(pwrite(fd, room, 1, 10000));
	TRY(ftruncate(fd, 10001));
	TRY(ftruncate(fd, 10000));
	TRY(fallocate(fd, 0, 0, 10001));
	TRY(fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, 10001));
	TRY(truncate("f", 20000));
	size_of("f");
}

CASE(vectors_and_their_flags)
{
	char room[10];
	struct iovec piece[2] = { { "abc", 3 }, { "def", 3 } }, into = { room, 10 }, none = { NULL, 0 };
	int fd = fresh("f");

	TRY(writev(fd, piece, 2));
	TRY(writev(fd, &none, 1));
	TRY(writev(fd, piece, -1));
	TRY(writev(fd, piece, 5000));
	TRY(pwritev2(fd, piece, 2, 0, RWF_APPEND));
	TRY(pwritev2(fd, piece, 1, 1, RWF_DSYNC));
	TRY(pwritev2(fd, piece, 1, 1, RWF_SYNC));
	TRY(pwritev2(fd, piece, 1, 1, RWF_HIPRI));
	TRY(pwritev2(fd, piece, 1, 1, 1 << 20));
	TRY(preadv2(fd, &into, 1, 0, RWF_HIPRI));
	TRY(preadv2(fd, &into, 1, -1, 0));
	contents("f");
}

CASE(reading_without_waiting)
{
	char room[10];
	struct iovec into = { room, 10 };
	int fd;

	make("f", 10);
	fd = MUST(open("f", O_RDWR));
	MUST(pread(fd, room, 10, 0));
	TRY(preadv2(fd, &into, 1, 0, RWF_NOWAIT));
}

CASE(writing_without_waiting)
{
	struct iovec piece = { "abc", 3 };
	int fd;

	make("f", 10);
	fd = MUST(open("f", O_RDWR));
	TRY(pwritev2(fd, &piece, 1, 0, RWF_NOWAIT));
}

CASE(writing_atomically)
{
	char *room = aligned_alloc(4096, 4096);
	struct iovec piece = { room, 4096 };
	int fd = MUST(open("f", O_CREAT | O_RDWR | O_DIRECT, 0644));

	TRY(pwritev2(fd, &piece, 1, 0, 0x40));
}

CASE(writing_without_caching)
{
	struct iovec piece = { "abc", 3 };

	TRY(pwritev2(fresh("f"), &piece, 1, 0, 0x80));
}

CASE(times_that_data_moves)
{
	char room[100];
	int fd = fresh("f");

	MOVES("f", pwrite(fd, "abc", 3, 0));
	MOVES("f", pwrite(fd, "abc", 3, 0));
	MOVES("f", pwrite(fd, "abc", 0, 0));
	MOVES("f", pread(fd, room, 0, 0));
	MOVES("f", fallocate(fd, 0, 0, 10000));
	MOVES("f", fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, 100000));
	MOVES("f", fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096));
	MOVES("f", fallocate(fd, FALLOC_FL_ZERO_RANGE, 0, 4096));
	MOVES("f", lseek(fd, 0, SEEK_DATA) < 0 ? 0 : 0);
	MOVES("f", fsync(fd));
}

CASE(times_that_copies_move)
{
	loff_t from = 0, to = 0;
	int fd = fresh("to"), source;

	make("from", 10000);
	source = MUST(open("from", O_RDONLY));
	MOVES("to", copy_file_range(source, &from, fd, &to, 5000, 0));
	from = 20000;
	MOVES("to", copy_file_range(source, &from, fd, &to, 5000, 0));
}

CASE(access_times_of_what_was_never_read)
{
	char room[100];
	int fd;

	make("f", 100);
	fd = MUST(open("f", O_RDONLY));
	MOVES("f", pread(fd, room, 100, 0));
	MUST(mkdir("d", 0755));
	MOVES("d", closedir(opendir("d")));
	MUST(symlink("f", "link"));
	MOVES("link", readlink("link", room, 100));
}

CASE(reading_what_is_in_the_cache)
{
	char room[8192];
	int fd;

	make("f", 8192);
	fd = MUST(open("f", O_RDWR));
	MOVES("f", pread(fd, room, 8192, 0));
	MUST(pwrite(fd, "y", 1, 0));
	MOVES("f", pread(fd, room, 8192, 0));
}

CASE(holes_and_data)
{
	int fd = fresh("f");

	MUST(pwrite(fd, "x", 1, 8192));
	MUST(pwrite(fd, "x", 1, 40960));
	MUST(ftruncate(fd, 65536));
	MUST(fsync(fd));
	TRY(lseek(fd, 0, SEEK_DATA));
	TRY(lseek(fd, 0, SEEK_HOLE));
	TRY(lseek(fd, 8192, SEEK_HOLE));
	TRY(lseek(fd, 10000, SEEK_HOLE));
	TRY(lseek(fd, 12288, SEEK_DATA));
	TRY(lseek(fd, 40961, SEEK_DATA));
	TRY(lseek(fd, 45056, SEEK_DATA));
	TRY(lseek(fd, 65535, SEEK_HOLE));
	TRY(lseek(fd, 65536, SEEK_HOLE));
	TRY(lseek(fd, 65536, SEEK_DATA));
	TRY(lseek(fd, 65537, SEEK_END));
	TRY(lseek(fd, -1, SEEK_DATA));
	TRY(lseek(fd, 0, SEEK_CUR));
	size_of("f");
}

CASE(holes_of_empty_files)
{
	int fd = fresh("f");

	TRY(lseek(fd, 0, SEEK_DATA));
	TRY(lseek(fd, 0, SEEK_HOLE));
	MUST(ftruncate(fd, 100));
	TRY(lseek(fd, 0, SEEK_DATA));
	TRY(lseek(fd, 0, SEEK_HOLE));
	MUST(pwrite(fd, "x", 1, 50));
	TRY(lseek(fd, 99, SEEK_DATA));
	TRY(lseek(fd, 0, SEEK_HOLE));
}

CASE(holes_before_data_is_written_back)
{
	int fd = fresh("f");

	MUST(pwrite(fd, "x", 1, 12288));
	TRY(lseek(fd, 0, SEEK_DATA));
	TRY(lseek(fd, 12288, SEEK_HOLE));
}

CASE(allocated_room_is_a_hole)
{
	int fd = fresh("f");

	MUST(fallocate(fd, 0, 0, 65536));
	MUST(pwrite(fd, "x", 1, 8192));
	MUST(fsync(fd));
	TRY(lseek(fd, 0, SEEK_DATA));
	TRY(lseek(fd, 8192, SEEK_HOLE));
	size_of("f");
}

CASE(allocating)
{
	int fd = fresh("f");

	TRY(fallocate(fd, 0, 0, 0));
	TRY(fallocate(fd, 0, -1, 10));
	TRY(fallocate(fd, 0, 0, -1));
	TRY(fallocate(fd, 0, 0, 8192));
	size_of("f");
	TRY(fallocate(fd, FALLOC_FL_KEEP_SIZE, 8192, 8192));
	size_of("f");
	TRY(ftruncate(fd, 4096));
	size_of("f");
	TRY(fallocate(fd, 0, 100000, 1));
	size_of("f");
	TRY(posix_fallocate(fd, 0, 200000));
	size_of("f");
}

CASE(punching_holes)
{
	int fd;

	make("f", 20000);
	fd = MUST(open("f", O_RDWR));
	TRY(fallocate(fd, FALLOC_FL_PUNCH_HOLE, 0, 4096));
	TRY(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 1000, 10000));
	contents("f");
	size_of("f");
	TRY(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 16384, 100000));
	size_of("f");
	TRY(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 100000, 4096));
	TRY(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 20000));
	size_of("f");
	contents("f");
}

CASE(zeroing_ranges)
{
	int fd;

	make("f", 20000);
	fd = MUST(open("f", O_RDWR));
	TRY(fallocate(fd, FALLOC_FL_ZERO_RANGE, 1000, 10000));
	contents("f");
	TRY(fallocate(fd, FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE, 19000, 10000));
	TRY(fallocate(fd, FALLOC_FL_ZERO_RANGE, 19000, 10000));
	contents("f");
	tell("size %ld", (long)stat_of("f").st_size);
}

CASE(collapsing_ranges)
{
	make("f", 20480);
	TRY(fallocate(open("f", O_RDWR), FALLOC_FL_COLLAPSE_RANGE, 4096, 4096));
}

CASE(inserting_ranges)
{
	make("f", 20480);
	TRY(fallocate(open("f", O_RDWR), FALLOC_FL_INSERT_RANGE, 4096, 4096));
}

CASE(modes_of_allocating_that_do_not_exist)
{
	int fd = fresh("f");

	TRY(fallocate(fd, 0x40, 0, 4096));
	TRY(fallocate(fd, 0x1000, 0, 4096));
	TRY(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE, 0, 4096));
	TRY(fallocate(fd, FALLOC_FL_COLLAPSE_RANGE | FALLOC_FL_KEEP_SIZE, 0, 4096));
}

CASE(writing_zeroes_to_the_device)
{
	TRY(fallocate(fresh("f"), 0x80, 0, 4096));
}

CASE(allocating_more_than_there_is)
{
	int fd = fresh("f");

	TRY(fallocate(fd, 0, 0, 1L << 40));
	size_of("f");
	TRY(fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, 1L << 40));
	TRY(ftruncate(fd, 0));
	size_of("f");
}

CASE(allocating_elsewhere)
{
	int pipes[2];

	MUST(pipe(pipes));
	MUST(mkfifo("fifo", 0644));
	TRY(fallocate(open("fifo", O_RDWR), 0, 0, 10));
	TRY(lseek(open("fifo", O_RDWR), 0, SEEK_SET));
	TRY(ftruncate(open("fifo", O_RDWR), 0));
	TRY(fsync(open("fifo", O_RDWR)));
}

CASE(copying_ranges)
{
	loff_t from = 0, to = 0;
	int source, fd = fresh("to"), more;

	make("from", 10000);
	source = MUST(open("from", O_RDONLY));
	more = MUST(open("from", O_RDWR));
	TRY(copy_file_range(source, &from, fd, &to, 20000, 0));
	tell("offsets %ld %ld", (long)from, (long)to);
	TRY(copy_file_range(source, &from, fd, &to, 100, 0));
	from = 5, to = 20000;
	TRY(copy_file_range(source, &from, fd, &to, 100, 0));
	contents("to");
	TRY(copy_file_range(source, &from, fd, &to, 100, 1));
	TRY(copy_file_range(source, &from, source, &to, 100, 0));
	TRY(copy_file_range(source, &from, fd, &to, 0, 0));
	from = 0, to = 50;
	TRY(copy_file_range(more, &from, more, &to, 100, 0));
	from = 0, to = 5000;
	TRY(copy_file_range(more, &from, more, &to, 100, 0));
	TRY(copy_file_range(source, NULL, open("to", O_WRONLY | O_APPEND), NULL, 10, 0));
	TRY(copy_file_range(source, NULL, open(".", O_RDONLY), NULL, 10, 0));
	from = LLONG_MAX - 5, to = 0;
	TRY(copy_file_range(source, &from, fd, &to, 100, 0));
	from = -5;
	TRY(copy_file_range(source, &from, fd, &to, 100, 0));
}

CASE(copying_to_the_last_offset)
{
	loff_t from = 0, to = LLONG_MAX - 5;

	make("from", 10000);
	TRY(copy_file_range(open("from", O_RDONLY), &from, fresh("to"), &to, 100, 0));
}

CASE(copying_holes)
{
	int fd = fresh("from"), to = fresh("to");

	MUST(ftruncate(fd, 1 << 20));
	MUST(pwrite(fd, "x", 1, 500000));
	TRY(copy_file_range(fd, NULL, to, NULL, 1 << 20, 0));
	tell("size %ld", (long)stat_of("to").st_size);
}

CASE(sharing_blocks)
{
	struct file_clone_range range = { .src_length = 4096 };
	int fd, to = fresh("to");

	make("from", 8192);
	fd = MUST(open("from", O_RDWR));
	range.src_fd = fd;
	TRY(ioctl(to, FICLONE, fd));
	TRY(ioctl(to, FICLONERANGE, &range));
	TRY(ioctl(to, FICLONE, -1));
}

CASE(sharing_what_is_equal)
{
	struct {
		struct file_dedupe_range range;
		struct file_dedupe_range_info info;
	} same = { { .src_length = 4096, .dest_count = 1 }, { 0 } };
	int fd;

	make("from", 8192);
	make("to", 8192);
	fd = MUST(open("from", O_RDWR));
	same.info.dest_fd = MUST(open("to", O_RDWR));
	TRY(ioctl(fd, FIDEDUPERANGE, &same));
	tell("status %d, %llu bytes", same.info.status, (unsigned long long)same.info.bytes_deduped);
}

CASE(splicing)
{
	char room[100];
	loff_t offset = 0;
	int pipes[2], fd, to = fresh("to");

	make("from", 100);
	fd = MUST(open("from", O_RDONLY));
	MUST(pipe(pipes));
	TRY(splice(fd, &offset, pipes[1], NULL, 50, 0));
	TRY(splice(pipes[0], NULL, to, NULL, 50, 0));
	contents("to");
	TRY(sendfile(to, fd, NULL, 100));
	contents("to");
	TRY(splice(fd, NULL, to, NULL, 10, 0));
	TRY(sendfile(pipes[1], fd, &offset, 100));
	TRY(read(pipes[0], room, 100));
	TRY(vmsplice(pipes[1], &(struct iovec){ room, 10 }, 1, 0));
	TRY(splice(pipes[0], NULL, open("to", O_WRONLY | O_APPEND), NULL, 10, 0));
}

CASE(syncing)
{
	int fd = fresh("f"), directory = MUST(open(".", O_RDONLY));

	MUST(write(fd, "abc", 3));
	TRY(fsync(fd));
	TRY(fdatasync(fd));
	TRY(fsync(directory));
	TRY(syncfs(fd));
	TRY(sync_file_range(fd, 0, 0, SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER));
	TRY(sync_file_range(fd, -1, 0, SYNC_FILE_RANGE_WRITE));
	TRY(sync_file_range(fd, 0, 0, 64));
	TRY(msync(NULL, 0, MS_SYNC));
}

CASE(advice)
{
	int fd, pipes[2];

	make("f", 10000);
	fd = MUST(open("f", O_RDWR));
	MUST(pipe(pipes));
	for (int advice = 0; advice < 7; advice++)
		tell("advice %d: %d", advice, posix_fadvise(fd, 0, 0, advice));
	TRY(posix_fadvise(fd, 0, -1, POSIX_FADV_NORMAL));
	TRY(posix_fadvise(pipes[0], 0, 0, POSIX_FADV_NORMAL));
	TRY(readahead(fd, 0, 10000));
	TRY(readahead(pipes[0], 0, 10000));
	TRY(fcntl(fd, F_SET_RW_HINT, &(uint64_t){ RWH_WRITE_LIFE_SHORT }));
}

CASE(blocks_of_files)
{
	for (const char *name = "0\0" "4096\0" "4097\0" "100000\0"; *name; name += strlen(name) + 1) {
		int fd;

		make(name, atoi(name));
		fd = MUST(open(name, O_RDWR));
		MUST(fsync(fd));
		size_of(name);
	}
}

CASE(blocks_of_small_files)
{
	int fd;

	make("f", 3);
	fd = MUST(open("f", O_RDWR));
	MUST(fsync(fd));
	size_of("f");
	MUST(ftruncate(fd, 1 << 20));
	size_of("f");
}
