"""Delivers three messages to a maildir: writes and syncs each in tmp, renames it to new, syncs both directories."""

import os
import sys

MESSAGES = 3


def message(number):
    return f"Subject: message {number}\n\n".encode() + b"Good morning.\n" * 400


def sync_directory(path):
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(directory)
    os.close(directory)


def acked():
    with open(os.environ["CRASHLAB_ACKED"]) as lines:
        return [int(line.split()[1]) for line in lines]


def setup():
    for name in ["tmp", "new", "cur"]:
        os.mkdir(name)


def work():
    for number in range(1, MESSAGES + 1):
        file = os.open(f"tmp/{number}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        os.write(file, message(number))
        os.fsync(file)
        os.close(file)
        os.rename(f"tmp/{number}", f"new/{number}")
        sync_directory("new")
        sync_directory("tmp")
        print("delivered", number, flush=True)


def check():
    there = os.listdir("new")
    for number in acked():
        if str(number) not in there:
            return f"message {number} was delivered, and is not in new"
    for name in there:
        with open(f"new/{name}", "rb") as file:
            found = file.read()
        if found != message(int(name)):
            return f"message {name} in new is not whole ({len(found)} bytes)"


if __name__ == "__main__":
    fault = {"setup": setup, "work": work, "check": check}[sys.argv[1]]()
    if fault:
        print(fault)
        sys.exit(1)
