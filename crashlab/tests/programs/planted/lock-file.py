"""Holds a lock file while it replaces a file three times.

The bug: the lock is the existence of a file, which a power cut leaves there, and then the program refuses to start.

missing: none
fails: posix ext4 ext4-journal xfs btrfs zfs syncline
"""

import os
import sys

VERSIONS = 3


def contents(version):
    return f"version {version}\n".encode() * 600


def sync_directory(path):
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(directory)
    os.close(directory)


def start():
    """Takes the lock; False if it is taken."""
    try:
        os.close(os.open("app.lock", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644))
    except FileExistsError:
        return False
    return True


def acked():
    with open(os.environ["CRASHLAB_ACKED"]) as lines:
        return [int(line.split()[1]) for line in lines]


def setup():
    with open("state", "wb") as state:
        state.write(contents(0))


def work():
    if not start():
        return "app.lock is there: another one is running"
    for version in range(1, VERSIONS + 1):
        new = os.open("state.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.write(new, contents(version))
        os.fsync(new)
        os.close(new)
        os.rename("state.new", "state")
        sync_directory(".")
        print("stored", version, flush=True)
    os.unlink("app.lock")


def check():
    stored = max(acked(), default=0)
    with open("state", "rb") as state:
        found = state.read()
    if found not in [contents(version) for version in range(stored, VERSIONS + 1)]:
        return f"version {stored} was stored, and state is not that version or a newer one"
    if not start():
        return "the program does not start any more: app.lock is there, and nobody holds it"
    os.unlink("app.lock")


if __name__ == "__main__":
    fault = {"setup": setup, "work": work, "check": check}[sys.argv[1]]()
    if fault:
        print(fault)
        sys.exit(1)
