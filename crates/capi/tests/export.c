/* A C program that uses an image on an NBD server, at argv[1]. Says what failed and exits with 1. */
#include <errno.h>
#include <fcntl.h>
#include <libsyncline.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void expect(int holds, const char *what, int line)
{
	if (!holds) {
		fprintf(stderr, "export.c:%d: %s\nlast error: %s\n", line, what, syncline_last_error());
		exit(1);
	}
}
#define EXPECT(condition) expect((condition), #condition, __LINE__)

int main(int argc, char **argv)
{
	struct syncline_fs *fs, *none = NULL;
	struct syncline_file *file;
	char read[8] = { 0 };

	EXPECT(argc == 2);
	EXPECT(syncline_create(argv[1], 32u << 20, 0, &none) == -EINVAL && none == NULL);
	EXPECT(strstr(syncline_last_error(), "its storage decides that") != NULL);
	EXPECT(syncline_create(argv[1], 64u << 20, 0, &fs) == 0);
	EXPECT(syncline_file_open(fs, "/file", O_RDWR | O_CREAT, 0640, &file) == 0);
	EXPECT(syncline_pwrite(file, "hello", 5, 0) == 5);
	EXPECT(syncline_fsync(file) == 0);
	syncline_file_close(file);
	/* The lease has one holder, also within a process. */
	EXPECT(syncline_open(argv[1], 0, &none) == -EBUSY && none == NULL);
	EXPECT(strstr(syncline_last_error(), "in use by") != NULL);
	EXPECT(syncline_close(fs) == 0);
	EXPECT(syncline_open(argv[1], SYNCLINE_READ_ONLY, &fs) == 0);
	EXPECT(syncline_file_open(fs, "/file", O_RDONLY, 0, &file) == 0);
	EXPECT(syncline_pread(file, read, sizeof read, 0) == 5 && strcmp(read, "hello") == 0);
	syncline_file_close(file);
	EXPECT(syncline_close(fs) == 0);
	puts("all is well");
	return 0;
}
