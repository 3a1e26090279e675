/* Replaces a file without a sync between the write and the rename, from its main function, from a thread,
   through a pointer to a function, and in a child that runs this program anew. */
#include <fcntl.h>
#include <pthread.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

__attribute__((noinline)) static void check(int failed) {
    if (failed) abort();
}

__attribute__((noinline)) static void put(int fd, const char *text) {
    check(write(fd, text, strlen(text)) < 0); /* write */
}

__attribute__((noinline)) static void save(int number) {
    char text[400];
    snprintf(text, sizeof text, "version %d\n", number);
    int fd = open("settings.new", O_CREAT | O_TRUNC | O_WRONLY, 0644); /* create */
    put(fd, text);
    check(close(fd));
    check(rename("settings.new", "settings")); /* rename */
    int folder = open(".", O_RDONLY);
    check(fsync(folder)); /* fsync */
    check(close(folder));
}

__attribute__((noinline)) static void *threaded(void *number) {
    save(*(int *)number);
    return number;
}

__attribute__((noinline)) static int deep(int number) {
    int below = 0;
    if (number)
        below = deep(number - 1) + 1;
    else
        save(4);
    __asm__ volatile("" : "+r"(below)); /* keeps it a recursion */
    return below;
}

static int ordered(const void *one, const void *other) {
    save(5);
    return *(const int *)one - *(const int *)other;
}

int main(int count, char **words) {
    if (count > 1) {
        save(2);
        return 0;
    }
    save(1);
    pid_t child;
    char *again[] = {words[0], "child", NULL};
    check(posix_spawn(&child, words[0], NULL, NULL, again, environ));
    check(waitpid(child, NULL, 0) != child);
    pthread_t thread;
    int numbers[] = {3, 2};
    check(pthread_create(&thread, NULL, threaded, numbers));
    check(pthread_join(thread, NULL));
    check(deep(numbers[0]) != 3);
    qsort(numbers, 2, sizeof *numbers, ordered);
    return 0;
}
