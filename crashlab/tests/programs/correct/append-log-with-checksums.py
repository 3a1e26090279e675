"""Appends three records to a new log, each with length and checksum, and syncs each; recovery cuts off a torn one."""

import os
import struct
import sys
import zlib

RECORDS = 3
HEADER = struct.Struct("<II")
PAYLOAD_BYTES = 3 * 4096


def payload(number):
    return f"record {number}\n".encode().ljust(PAYLOAD_BYTES, b".")


def checksum(payload):
    # The length is part of it: the checksum of nothing would be 0, and zeros would pass for a record.
    return zlib.crc32(struct.pack("<I", len(payload)) + payload)


def recover():
    """The records up to the first that is not whole; the log is cut there."""
    with open("log", "rb") as log:
        found = log.read()
    records, at = [], 0
    while at + HEADER.size <= len(found):
        length, crc = HEADER.unpack_from(found, at)
        record = found[at + HEADER.size : at + HEADER.size + length]
        if len(record) < length or checksum(record) != crc:
            break
        records.append(record)
        at += HEADER.size + length
    os.truncate("log", at)
    return records


def acked():
    with open(os.environ["CRASHLAB_ACKED"]) as lines:
        return [int(line.split()[1]) for line in lines]


def setup():
    """There is nothing to prepare."""


def work():
    log = os.open("log", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
    directory = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(directory)
    os.close(directory)
    for number in range(1, RECORDS + 1):
        record = payload(number)
        os.write(log, HEADER.pack(len(record), checksum(record)) + record)
        os.fsync(log)
        print("stored", number, flush=True)
    os.close(log)


def check():
    stored = max(acked(), default=0)
    if not os.path.exists("log"):
        return f"record {stored} was stored, and there is no log" if stored else None
    records = recover()
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
