"""Publishes three versions of a directory: builds and syncs a new one, then replaces the symlink that leads to it."""

import os
import sys

VERSIONS = 3
FILES = ["index", "pages"]


def contents(name, version):
    return f"{name} of version {version}\n".encode() * 300


def sync_directory(path):
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(directory)
    os.close(directory)


def publish(version):
    folder = f"version-{version}"
    os.mkdir(folder)
    for name in FILES:
        file = os.open(f"{folder}/{name}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        os.write(file, contents(name, version))
        os.fsync(file)
        os.close(file)
    sync_directory(folder)
    sync_directory(".")
    os.symlink(folder, "current.new")
    os.rename("current.new", "current")
    sync_directory(".")


def acked():
    with open(os.environ["CRASHLAB_ACKED"]) as lines:
        return [int(line.split()[1]) for line in lines]


def setup():
    publish(0)


def work():
    for version in range(1, VERSIONS + 1):
        publish(version)
        print("published", version, flush=True)


def check():
    published = max(acked(), default=0)
    if not os.path.islink("current"):
        return "the link current is not there"
    folder = os.readlink("current")
    if folder not in [f"version-{version}" for version in range(published, VERSIONS + 1)]:
        return f"version {published} was published, and current leads to '{folder}'"
    version = int(folder.removeprefix("version-"))
    for name in FILES:
        path = f"current/{name}"
        if not os.path.exists(path):
            return f"current leads to '{folder}', which has no {name}"
        with open(path, "rb") as file:
            if file.read() != contents(name, version):
                return f"current leads to '{folder}', whose {name} is not whole"


if __name__ == "__main__":
    fault = {"setup": setup, "work": work, "check": check}[sys.argv[1]]()
    if fault:
        print(fault)
        sys.exit(1)
