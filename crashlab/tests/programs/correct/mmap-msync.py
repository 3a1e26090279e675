"""Stores three counts in a mapped file, which has two pages that take turns, and flushes the page each time."""

import mmap
import os
import struct
import sys
import zlib

COUNTS = 3
PAGE_BYTES = 4096


def page(count):
    body = struct.pack("<I", count).ljust(PAGE_BYTES - 4, b".")
    return body + struct.pack("<I", zlib.crc32(body))


def newest(table):
    """The highest count in a page whose checksum is right; -1 if there is none."""
    pages = [table[at : at + PAGE_BYTES] for at in range(0, 2 * PAGE_BYTES, PAGE_BYTES)]
    good = [page for page in pages if page[-4:] == struct.pack("<I", zlib.crc32(page[:-4]))]
    return max((struct.unpack_from("<I", page)[0] for page in good), default=-1)


def acked():
    with open(os.environ["CRASHLAB_ACKED"]) as lines:
        return [int(line.split()[1]) for line in lines]


def setup():
    with open("table", "wb") as table:
        table.write(page(0) + bytes(PAGE_BYTES))


def work():
    file = os.open("table", os.O_RDWR)
    table = mmap.mmap(file, 2 * PAGE_BYTES)
    for count in range(1, COUNTS + 1):
        at = count % 2 * PAGE_BYTES
        table[at : at + PAGE_BYTES] = page(count)
        # This is msync with MS_SYNC.
        table.flush(at, PAGE_BYTES)
        print("stored", count, flush=True)
    table.close()
    os.close(file)


def check():
    stored = max(acked(), default=0)
    with open("table", "rb") as file:
        found = newest(file.read())
    if found < 0:
        return "no page of the table is whole"
    if found < stored:
        return f"count {stored} was stored, and the table has {found}"


if __name__ == "__main__":
    fault = {"setup": setup, "work": work, "check": check}[sys.argv[1]]()
    if fault:
        print(fault)
        sys.exit(1)
