/* Stores to a mapped file, syncs it and changes its mapping, in three threads at once, while a fourth one
   writes another file: the kernel's locks of the mapping wait for the filesystem then. */
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static volatile char *page;

static void *store(void *unused)
{
    for (unsigned i = 0;; i++)
        page[i * 64 % 4096] = i;
    return unused;
}

static void *sync_page(void *unused)
{
    for (;;)
        msync((void *)page, 4096, MS_SYNC);
    return unused;
}

static void *protect(void *unused)
{
    for (;;) {
        mprotect((void *)page, 4096, PROT_READ | PROT_WRITE | (random() & 1 ? PROT_EXEC : 0));
        usleep(200);
    }
    return unused;
}

int main(void)
{
    int mapped = open("mapped", O_RDWR | O_CREAT, 0644), log = open("log", O_WRONLY | O_CREAT, 0644);
    void *(*threads[])(void *) = {store, sync_page, protect};
    pthread_t thread;
    if (ftruncate(mapped, 4096) != 0)
        return 1;
    page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, mapped, 0);
    for (int i = 0; i < 3; i++)
        pthread_create(&thread, NULL, threads[i], NULL);
    for (int i = 0; i < 500; i++)
        if (pwrite(log, "x", 1, i) != 1)
            return 1;
    _exit(0);
}
