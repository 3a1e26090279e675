"""Overwrites three blocks in place three times, each time first in a log: syncs the log, overwrites, syncs, empties it.

A version is stored as soon as the log is synced, for recovery repeats what the log has.
"""

import os
import struct
import sys
import zlib

VERSIONS = 3
DATA_BYTES = 3 * 4096
CRC = struct.Struct("<I")


def contents(version):
    return f"version {version}\n".encode().ljust(16, b".") * (DATA_BYTES // 16)


def overwrite(found):
    data = os.open("data", os.O_WRONLY)
    os.pwrite(data, found, 0)
    os.fsync(data)
    os.close(data)


def recover():
    """Repeats what the log has, if it is whole; otherwise the data has not been touched since the last sync."""
    with open("log", "rb") as log:
        found = log.read()
    logged = found[CRC.size :]
    if len(logged) == DATA_BYTES and CRC.unpack_from(found) == (zlib.crc32(logged),):
        overwrite(logged)
    os.truncate("log", 0)


def acked():
    with open(os.environ["CRASHLAB_ACKED"]) as lines:
        return [int(line.split()[1]) for line in lines]


def setup():
    with open("data", "wb") as data:
        data.write(contents(0))
    open("log", "wb").close()


def work():
    log = os.open("log", os.O_WRONLY)
    for version in range(1, VERSIONS + 1):
        new = contents(version)
        os.pwrite(log, CRC.pack(zlib.crc32(new)) + new, 0)
        os.fsync(log)
        print("stored", version, flush=True)
        overwrite(new)
        # Needs no sync: until the next record is whole, the log has nothing, or what the data has already.
        os.ftruncate(log, 0)
    os.close(log)


def check():
    recover()
    stored = max(acked(), default=0)
    with open("data", "rb") as data:
        found = data.read()
    versions = [version for version in range(VERSIONS + 1) if found == contents(version)]
    if not versions:
        return "the data is a mixture of versions"
    if versions[0] < stored:
        return f"version {stored} was stored, and the data has version {versions[0]}"


if __name__ == "__main__":
    fault = {"setup": setup, "work": work, "check": check}[sys.argv[1]]()
    if fault:
        print(fault)
        sys.exit(1)
