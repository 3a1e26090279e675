/*
 * Runs all cases in the directory that is named, or those that are named after it, and tells what they saw: "WHO CASE: LINE". Other
 * first words: --shut-down-0, -1 and -2, --shut-down-cached, --survived.
 */
#include "calls.h"
#include <ctype.h>
#include <grp.h>
#include <stdarg.h>
#include <time.h>

static struct entry *entries, **end = &entries;
static bool user_run;
static FILE *out;

void enter(struct entry *entry)
{
	*end = entry;
	end = &entry->next;
}

bool is_user(void)
{
	return user_run;
}

void act(void)
{
	gid_t club = CLUB;

	if (!user_run)
		return;
	MUST(setgroups(1, &club));
	MUST(setresgid(USER, USER, USER));
	MUST(setresuid(USER, USER, USER));
}

void own(const char *path)
{
	if (user_run)
		MUST(lchown(path, USER, USER));
}

void theirs(const char *path)
{
	MUST(lchown(path, OTHER, OTHER));
}

void tell(const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	vfprintf(out, format, arguments);
	va_end(arguments);
	fputc('\n', out);
	fflush(out);
}

void tell_result(const char *text, long result, int error)
{
	if (result < 0)
		tell("%s = %s", text, strerrorname_np(error) ?: "an error");
	else
		tell("%s = %ld", text, result);
}

void fail(const char *text)
{
	tell("%s fails: %s", text, strerror(errno));
	_exit(0);
}

void make_mode(const char *path, size_t len, mode_t mode)
{
	int fd = MUST(open(path, O_CREAT | O_EXCL | O_WRONLY, 0600));
	char block[4096];

	memset(block, 'x', sizeof(block));
	for (size_t done = 0; done < len; done += sizeof(block))
		MUST(write(fd, block, len - done < sizeof(block) ? len - done : sizeof(block)));
	MUST(fchmod(fd, mode));
	close(fd);
}

void make(const char *path, size_t len)
{
	make_mode(path, len, 0644);
}

int fresh(const char *path)
{
	return MUST(open(path, O_CREAT | O_EXCL | O_RDWR, 0644));
}

static const char *kind(mode_t mode)
{
	switch (mode & S_IFMT) {
	case S_IFREG: return "file";
	case S_IFDIR: return "directory";
	case S_IFLNK: return "symlink";
	case S_IFIFO: return "fifo";
	case S_IFSOCK: return "socket";
	case S_IFCHR: return "character device";
	case S_IFBLK: return "block device";
	default: return "unknown";
	}
}

void look(const char *path)
{
	struct stat stat;

	if (lstat(path, &stat) < 0)
		tell("%s: %s", path, strerrorname_np(errno));
	else
		tell("%s: %s %o, %lu links, of %u:%u, size %ld, device %u:%u", path, kind(stat.st_mode), stat.st_mode & 07777,
		     (unsigned long)stat.st_nlink, stat.st_uid, stat.st_gid, S_ISDIR(stat.st_mode) ? 0 : (long)stat.st_size,
		     major(stat.st_rdev), minor(stat.st_rdev));
}

void mode_of(const char *path)
{
	struct stat stat;

	if (lstat(path, &stat) < 0)
		tell("%s: %s", path, strerrorname_np(errno));
	else
		tell("%s has mode %o", path, stat.st_mode & 07777);
}

void size_of(const char *path)
{
	struct stat stat;

	if (lstat(path, &stat) < 0)
		tell("%s: %s", path, strerrorname_np(errno));
	else
		tell("%s has size %ld, %ld blocks", path, (long)stat.st_size, (long)stat.st_blocks);
}

void bytes(const char *what, const void *data, size_t len)
{
	const unsigned char *byte = data;
	char line[400];
	size_t used = 0;

	line[0] = 0;
	for (size_t at = 0; at < len && used < 360;) {
		size_t next = at;

		while (next < len && byte[next] == byte[at])
			next++;
		used += sprintf(line + used, " %02x*%zu", byte[at], next - at);
		at = next;
	}
	tell("%s:%s", what, line);
}

void contents(const char *path)
{
	static char room[1 << 20];
	int fd = open(path, O_RDONLY);
	ssize_t len = fd < 0 ? -1 : read(fd, room, sizeof(room));

	if (len < 0)
		tell("%s: %s", path, strerrorname_np(errno));
	else
		bytes(path, room, len);
	close(fd);
}

struct stat stat_of(const char *path)
{
	struct stat stat;

	memset(&stat, 0, sizeof(stat));
	lstat(path, &stat);
	return stat;
}

static bool later(struct timespec before, struct timespec after)
{
	return after.tv_sec > before.tv_sec || (after.tv_sec == before.tv_sec && after.tv_nsec > before.tv_nsec);
}

static const char *moved(struct timespec before, struct timespec after)
{
	return later(before, after) ? "moves" : later(after, before) ? "goes back" : "stays";
}

void tell_moved(const char *what, const char *path, struct stat before, struct stat after)
{
	tell("%s: of %s atime %s, mtime %s, ctime %s", what, path, moved(before.st_atim, after.st_atim),
	     moved(before.st_mtim, after.st_mtim), moved(before.st_ctim, after.st_ctim));
}

void in_child(const char *what, void (*run)(void))
{
	int status;
	pid_t child = MUST(fork());

	if (child == 0) {
		run();
		_exit(0);
	}
	MUST(waitpid(child, &status, 0));
	if (WIFSIGNALED(status))
		tell("%s: ended by %s", what, sigabbrev_np(WTERMSIG(status)));
	else
		tell("%s: exit code %d", what, WEXITSTATUS(status));
}

/* In a process of its own; what it tells is told after it has ended, each line with whose it is. */
static void run(struct entry *entry)
{
	char line[8192];
	int status;
	pid_t child;

	MUST(mkdir(entry->name, 0755));
	own(entry->name);
	out = tmpfile();
	child = MUST(fork());
	if (child == 0) {
		umask(022);
		alarm(60);
		MUST(chdir(entry->name));
		if (!entry->prepared)
			act();
		entry->run();
		_exit(0);
	}
	MUST(waitpid(child, &status, 0));
	rewind(out);
	while (fgets(line, sizeof(line), out))
		printf("%s %s: %s", user_run ? "user" : "root", entry->name, line);
	if (WIFSIGNALED(status))
		printf("%s %s: ended by %s\n", user_run ? "user" : "root", entry->name, sigabbrev_np(WTERMSIG(status)));
	fflush(stdout);
	fclose(out);
	out = stderr;
}

static bool wanted(const char *name, char **names)
{
	if (!*names)
		return true;
	for (; *names; names++)
		if (strcmp(*names, name) == 0)
			return true;
	return false;
}

/* What can't be a case, since nothing can follow it. */
static bool run_alone(const char *word)
{
	out = stdout;
	if (strncmp(word, "--shut-down-", 12) == 0 && isdigit(word[12]))
		shut_down(word[12] - '0');
	else if (strcmp(word, "--shut-down-cached") == 0)
		shut_down_cached();
	else if (strcmp(word, "--survived") == 0)
		tell_what_survived();
	else
		return false;
	return true;
}

int main(int count, char **arguments)
{
	out = stderr;
	if (count < 2) {
		fprintf(stderr, "usage: %s DIRECTORY [CASE ...]\n", arguments[0]);
		return 2;
	}
	MUST(chdir(arguments[1]));
	if (count == 3 && run_alone(arguments[2]))
		return 0;
	out = stderr;
	for (int turn = 0; turn < 2; turn++) {
		user_run = turn == 1;
		MUST(chdir(turn == 0 ? "." : ".."));
		MUST(mkdir(user_run ? "user" : "root", 0755));
		MUST(chdir(user_run ? "user" : "root"));
		for (struct entry *entry = entries; entry; entry = entry->next)
			if (wanted(entry->name, arguments + 2) && !(user_run && entry->root_only))
				run(entry);
	}
	return 0;
}
