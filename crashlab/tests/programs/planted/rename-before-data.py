"""Replaces a file three times: writes a new one, renames it over the old one, and syncs the directory.

The bug: it does not sync the new file before the rename.

missing: fsync of the file state.new
fails: posix ext4 xfs btrfs zfs
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


def acked():
    with open(os.environ["CRASHLAB_ACKED"]) as lines:
        return [int(line.split()[1]) for line in lines]


def setup():
    with open("state", "wb") as state:
        state.write(contents(0))


def work():
    for version in range(1, VERSIONS + 1):
        new = os.open("state.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.write(new, contents(version))
        os.close(new)
        os.rename("state.new", "state")
        sync_directory(".")
        print("stored", version, flush=True)


def check():
    stored = max(acked(), default=0)
    if not os.path.exists("state"):
        return "there is no state"
    with open("state", "rb") as state:
        found = state.read()
    versions = [version for version in range(VERSIONS + 1) if found == contents(version)]
    if not versions:
        return f"state is neither the old version nor the new one ({len(found)} bytes)"
    if versions[0] < stored:
        return f"version {stored} was stored, and state has version {versions[0]}"


if __name__ == "__main__":
    fault = {"setup": setup, "work": work, "check": check}[sys.argv[1]]()
    if fault:
        print(fault)
        sys.exit(1)
