"""Writes three notes into a new file, and says of each that it is stored.

The bug: it never syncs anything.

missing: fsync of the file notes and of the directory .
fails: posix ext4 ext4-journal xfs btrfs zfs syncline
"""

import os
import sys

NOTES = 3
NOTE_BYTES = 4096


def note(number):
    return f"note {number}\n".encode().ljust(NOTE_BYTES, b".")


def acked():
    with open(os.environ["CRASHLAB_ACKED"]) as lines:
        return [int(line.split()[1]) for line in lines]


def setup():
    """There is nothing to prepare."""


def work():
    notes = os.open("notes", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    for number in range(1, NOTES + 1):
        os.write(notes, note(number))
        print("stored", number, flush=True)
    os.close(notes)


def check():
    stored = acked()
    if not os.path.exists("notes"):
        return "notes were stored, and their file is not there" if stored else None
    with open("notes", "rb") as file:
        found = file.read()
    for number in stored:
        if found[(number - 1) * NOTE_BYTES : number * NOTE_BYTES] != note(number):
            return f"note {number} was stored, and is not in the file of {len(found)} bytes"


if __name__ == "__main__":
    fault = {"setup": setup, "work": work, "check": check}[sys.argv[1]]()
    if fault:
        print(fault)
        sys.exit(1)
