"""Stores to a mapped file, and syncs it by the calls that don't reach a FUSE filesystem."""

import ctypes
import mmap
import os

PAGE_BYTES = 4096
WAIT_BEFORE, WRITE, WAIT_AFTER = 1, 2, 4

libc = ctypes.CDLL(None, use_errno=True)


def sync_file_range(flags):
    return libc.sync_file_range(file, ctypes.c_int64(0), ctypes.c_int64(PAGE_BYTES), flags)


file = os.open("data", os.O_RDWR | os.O_CREAT)
os.write(file, bytes(2 * PAGE_BYTES))
table = mmap.mmap(file, 2 * PAGE_BYTES)
elsewhere = os.open("/", os.O_RDONLY)

# These sync nothing of the folder.
sync_file_range(WRITE)
sync_file_range(WAIT_BEFORE | WRITE)
libc.syncfs(elsewhere)
libc.syncfs(1000)
assert libc.syncfs(os.open("data", os.O_PATH)) == -1
print("begin", flush=True)

table[0:1] = b"1"
assert sync_file_range(WAIT_BEFORE | WRITE | WAIT_AFTER) == 0
print("a range", flush=True)

table[0:1] = b"2"
table[PAGE_BYTES : PAGE_BYTES + 1] = b"2"
assert libc.syncfs(file) == 0
print("the filesystem", flush=True)

table[0:1] = b"3"
os.rename("data", "renamed")
os.sync()
print("all", flush=True)
