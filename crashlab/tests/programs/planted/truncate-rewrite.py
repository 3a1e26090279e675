"""Changes a configuration three times: empties the file, writes it anew, syncs it, and says so.

The bug: from the truncation to the end of the sync there is no whole configuration, old or new.

missing: none
fails: posix ext4 ext4-journal xfs btrfs zfs syncline
"""

import os
import sys

VERSIONS = 3


def contents(version):
    return b"".join(f"option-{option} = {version}\n".encode() for option in range(400))


def acked():
    with open(os.environ["CRASHLAB_ACKED"]) as lines:
        return [int(line.split()[1]) for line in lines]


def setup():
    with open("config", "wb") as config:
        config.write(contents(0))


def work():
    for version in range(1, VERSIONS + 1):
        config = os.open("config", os.O_WRONLY | os.O_TRUNC)
        os.write(config, contents(version))
        os.fsync(config)
        os.close(config)
        print("stored", version, flush=True)


def check():
    stored = max(acked(), default=0)
    with open("config", "rb") as config:
        found = config.read()
    versions = [version for version in range(VERSIONS + 1) if found == contents(version)]
    if not versions:
        return f"config is neither the old version nor the new one ({len(found)} bytes)"
    if versions[0] < stored:
        return f"version {stored} was stored, and config has version {versions[0]}"


if __name__ == "__main__":
    fault = {"setup": setup, "work": work, "check": check}[sys.argv[1]]()
    if fault:
        print(fault)
        sys.exit(1)
