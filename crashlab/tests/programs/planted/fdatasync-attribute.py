"""Renews a key in place three times, each time with narrower permissions, the last 0400, and says that it is sealed.

The bug: fdatasync does not make the permissions durable.

missing: fsync of the file key
fails: posix ext4 ext4-journal syncline
"""

import os
import stat
import sys

MODES = [0o640, 0o600, 0o400]
# A key is one sector, so that it is never torn.
KEY_BYTES = 512


def key(level):
    return f"key {level}\n".encode().ljust(KEY_BYTES, b".")


def acked():
    with open(os.environ["CRASHLAB_ACKED"]) as lines:
        return [int(line.split()[1]) for line in lines]


def setup():
    with open("key", "wb") as file:
        file.write(key(0))
    os.chmod("key", 0o644)


def work():
    file = os.open("key", os.O_WRONLY)
    for level, mode in enumerate(MODES, 1):
        os.pwrite(file, key(level), 0)
        os.fchmod(file, mode)
        os.fdatasync(file)
        print("sealed", level, flush=True)
    os.close(file)


def check():
    sealed = max(acked(), default=0)
    if not sealed:
        return None
    with open("key", "rb") as file:
        found = file.read()
    if found not in [key(level) for level in range(sealed, len(MODES) + 1)]:
        return f"key {sealed} was sealed, and the file has an older one"
    mode = stat.S_IMODE(os.stat("key").st_mode)
    if mode not in MODES[sealed - 1 :]:
        return f"the key was sealed with mode {MODES[sealed - 1]:04o}, and has mode {mode:04o}"


if __name__ == "__main__":
    fault = {"setup": setup, "work": work, "check": check}[sys.argv[1]]()
    if fault:
        print(fault)
        sys.exit(1)
