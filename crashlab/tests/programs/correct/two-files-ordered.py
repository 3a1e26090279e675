"""Replaces a file three times, and after it an index that names the version of that file, each in its directory.

It syncs the directory of the file before it renames the index, which so never names a version that is not there.
"""

import os
import sys

VERSIONS = 3


def sync_directory(path):
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(directory)
    os.close(directory)


def write(path, version):
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.write(file, f"version {version}\n".encode() * 600)
    os.fsync(file)
    os.close(file)


def read(path):
    """The version that a file has, or `None` if it has none as a whole."""
    with open(path, "rb") as file:
        found = file.read()
    return next((v for v in range(VERSIONS + 1) if found == f"version {v}\n".encode() * 600), None)


def acked():
    with open(os.environ["CRASHLAB_ACKED"]) as lines:
        return [int(line.split()[1]) for line in lines]


def setup():
    for name in ["data", "index"]:
        os.mkdir(name)
        write(f"{name}/{name}", 0)


def work():
    for version in range(1, VERSIONS + 1):
        write("data/data.new", version)
        write("index/index.new", version)
        os.rename("data/data.new", "data/data")
        sync_directory("data")
        os.rename("index/index.new", "index/index")
        sync_directory("index")
        print("stored", version, flush=True)


def check():
    for path in ["data/data", "index/index"]:
        if not os.path.exists(path) or read(path) is None:
            return f"{path} is not there as a whole"
    data, index, stored = read("data/data"), read("index/index"), max(acked(), default=0)
    if index > data:
        return f"the index refers to version {index} of the data, which has only version {data}"
    if index < stored:
        return f"version {stored} was stored, and the index refers to version {index}"


if __name__ == "__main__":
    fault = {"setup": setup, "work": work, "check": check}[sys.argv[1]]()
    if fault:
        print(fault)
        sys.exit(1)
