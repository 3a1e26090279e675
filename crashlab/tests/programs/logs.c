/* Writes three logs in two places, and syncs the folder, but no log. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void check(int failed) {
    if (failed) abort();
}

static int new_log(int number) {
    char name[20];
    snprintf(name, sizeof name, "log-%d", number);
    return open(name, O_CREAT | O_WRONLY, 0644);
}

static void saved(int fd, int number) {
    int folder = open(".", O_RDONLY);
    check(fsync(folder) || close(folder) || close(fd));
    printf("saved %d\n", number);
    fflush(stdout);
}

static void first(void) {
    int fd = new_log(1);
    check(write(fd, "one\n", 4) != 4); /* first */
    saved(fd, 1);
}

static void later(int number) {
    int fd = new_log(number);
    check(write(fd, "more\n", 5) != 5); /* later */
    saved(fd, number);
}

int main(void) {
    first();
    later(2);
    later(3);
    return 0;
}
