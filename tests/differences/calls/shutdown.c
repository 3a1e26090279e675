/* Shutting a filesystem down, and what is there afterwards: not a case, since nothing can follow it. */
#include "calls.h"

#define SHUTDOWN _IOR('X', 125, uint32_t)

/* Changes some things, makes some of them durable, shuts down ("how" is 0, 1 or 2), and tells what is still answered. */
void shut_down(uint32_t how)
{
	int synced, unsynced, root = MUST(open(".", O_RDONLY));
	char room[100];

	make("old", 5000);
	MUST(mkdir("directory", 0755));
	synced = fresh("synced");
	MUST(write(synced, "synced", 6));
	MUST(fsync(synced));
	unsynced = fresh("unsynced");
	MUST(write(unsynced, "unsynced", 8));
	MUST(rename("directory", "renamed"));
	TRY(ioctl(root, SHUTDOWN, &(uint32_t){ 3 }));
	TRY(ioctl(root, SHUTDOWN, NULL));
	TRY(ioctl(root, SHUTDOWN, &how));
	TRY(write(unsynced, "more", 4));
	TRY(ftruncate(unsynced, 3));
	TRY(fallocate(unsynced, 0, 0, 10000));
	TRY(fsync(synced));
	TRY(fdatasync(unsynced));
	TRY(fsync(root));
	TRY(mkdir("new", 0755));
	TRY(unlink("old"));
	TRY(rename("old", "older"));
	TRY(link("old", "linked"));
	TRY(symlink("x", "symlink"));
	TRY(chmod("old", 0600));
	TRY(setxattr("old", "user.x", "y", 1, 0));
	TRY(open("created", O_CREAT | O_RDWR, 0644));
	TRY(open(".", O_TMPFILE | O_RDWR, 0644));
	TRY(access("old", F_OK));
	TRY(access("none", F_OK));
	TRY(getxattr("old", "user.x", room, sizeof(room)));
}

/* The same of calls that the kernel may answer from what it has in memory. */
void shut_down_cached(void)
{
	char room[100];
	int fd;

	make("old", 5000);
	fd = MUST(open("old", O_RDONLY));
	MUST(fsync(fd));
	MUST(pread(fd, room, 10, 0));
	MUST(ioctl(fd, SHUTDOWN, &(uint32_t){ 2 }));
	TRY(pread(fd, room, 10, 0));
	TRY(open("old", O_RDONLY) < 0 ? -1 : 0);
}

/* What is there when it has been mounted again. */
void tell_what_survived(void)
{
	contents("synced");
	contents("unsynced");
	look("renamed");
	look("directory");
	look("old");
}
