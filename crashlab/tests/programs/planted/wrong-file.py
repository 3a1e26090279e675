"""Puts three records into their places in an existing file, notes each in a log, and says that it is stored.

The bug: it syncs the log instead of the file with the records.

missing: fsync of the file data
fails: posix ext4 xfs btrfs zfs syncline
"""

import os
import sys

RECORDS = 3
# A record is one sector, so that it is never torn.
RECORD_BYTES = 512


def record(number):
    return f"record {number}\n".encode().ljust(RECORD_BYTES, b".")


def acked():
    with open(os.environ["CRASHLAB_ACKED"]) as lines:
        return [int(line.split()[1]) for line in lines]


def setup():
    with open("data", "wb") as data:
        data.write(bytes(RECORDS * RECORD_BYTES))
    with open("log", "w") as log:
        log.write("begin\n")


def work():
    data = os.open("data", os.O_WRONLY)
    log = os.open("log", os.O_WRONLY | os.O_APPEND)
    for number in range(1, RECORDS + 1):
        os.pwrite(data, record(number), (number - 1) * RECORD_BYTES)
        os.write(log, f"record {number}\n".encode())
        os.fsync(log)
        print("stored", number, flush=True)
    os.close(log)
    os.close(data)


def check():
    with open("data", "rb") as data:
        found = data.read()
    for number in acked():
        if found[(number - 1) * RECORD_BYTES : number * RECORD_BYTES] != record(number):
            return f"record {number} was stored, and is not in its place"


if __name__ == "__main__":
    fault = {"setup": setup, "work": work, "check": check}[sys.argv[1]]()
    if fault:
        print(fault)
        sys.exit(1)
