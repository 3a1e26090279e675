"""Appends three records to a log, each with its length before it, syncs each, and says so.

The bug: recovery trusts the length and verifies no checksum, so that it takes a torn or zero-filled append for a
record.

missing: none
fails: posix ext4 xfs btrfs
"""

import os
import struct
import sys

RECORDS = 3
LENGTH = struct.Struct("<I")
# With its length, a record is four blocks.
PAYLOAD_BYTES = 4 * 4096 - LENGTH.size


def payload(number):
    return f"record {number}\n".encode().ljust(PAYLOAD_BYTES, b".")


def recover():
    """The records. A last one that is shorter than its length says is cut off."""
    with open("log", "rb") as log:
        found = log.read()
    records, at = [], 0
    while at + LENGTH.size <= len(found):
        (length,) = LENGTH.unpack_from(found, at)
        end = at + LENGTH.size + length
        if end > len(found):
            break
        records.append(found[at + LENGTH.size : end])
        at = end
    os.truncate("log", at)
    return records


def acked():
    with open(os.environ["CRASHLAB_ACKED"]) as lines:
        return [int(line.split()[1]) for line in lines]


def setup():
    open("log", "wb").close()


def work():
    log = os.open("log", os.O_WRONLY | os.O_APPEND)
    for number in range(1, RECORDS + 1):
        os.write(log, LENGTH.pack(PAYLOAD_BYTES) + payload(number))
        os.fsync(log)
        print("stored", number, flush=True)
    os.close(log)


def check():
    records, stored = recover(), max(acked(), default=0)
    for number, record in enumerate(records, 1):
        if record != payload(number):
            return f"record {number} of the recovered log was never appended like that ({len(record)} bytes)"
    if len(records) < stored:
        return f"record {stored} was stored, and the log has {len(records)} records"


if __name__ == "__main__":
    fault = {"setup": setup, "work": work, "check": check}[sys.argv[1]]()
    if fault:
        print(fault)
        sys.exit(1)
