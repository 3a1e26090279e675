"""Stores three notes, each in a file of its own, and says so.

The bug: it syncs each new file, but not the directory that has its name.

missing: fsync of the directory notes
fails: posix
"""

import os
import sys

NOTES = 3


def note(number):
    return f"note {number}\n".encode() * 600


def acked():
    with open(os.environ["CRASHLAB_ACKED"]) as lines:
        return [int(line.split()[1]) for line in lines]


def setup():
    os.mkdir("notes")


def work():
    for number in range(1, NOTES + 1):
        file = os.open(f"notes/{number}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        os.write(file, note(number))
        os.fsync(file)
        os.close(file)
        print("stored", number, flush=True)


def check():
    for number in acked():
        path = f"notes/{number}"
        if not os.path.exists(path):
            return f"note {number} was stored, and there is no {path}"
        with open(path, "rb") as file:
            found = file.read()
        if found != note(number):
            return f"note {number} was stored, and {path} has other contents ({len(found)} bytes)"


if __name__ == "__main__":
    fault = {"setup": setup, "work": work, "check": check}[sys.argv[1]]()
    if fault:
        print(fault)
        sys.exit(1)
