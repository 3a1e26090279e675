"""GNU nano: a file is changed and saved, by keys in a terminal.

Promise: none, the manual says nothing of power cuts. The checker demands what a user might expect: the
old text or the new one, and the new one after nano has ended.
Install: apt install nano
"""

import os
import pty
import select
import subprocess
import sys
import time

import records

OLD = "old\n" * 3000
NEW = "new\n" * 3000


def setup():
    with open("file", "w") as file:
        file.write(OLD)


def work():
    child, terminal = pty.fork()
    if child == 0:
        os.environ["TERM"] = "xterm"
        os.execvp("nano", ["nano", "--ignorercfiles", "file"])
    # Replace all (Ctrl-\), save (Ctrl-S), exit (Ctrl-X).
    for keys in b"", b"\x1c", b"old\r", b"new\r", b"A", b"\x13", b"\x18":
        os.write(terminal, keys)
        read_for(0.5, terminal)
    os.waitpid(child, 0)
    if open("file").read() != NEW:
        sys.exit("nano did not save the file")
    print("saved", flush=True)


def read_for(seconds, terminal):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if select.select([terminal], [], [], 0.05)[0]:
            try:
                os.read(terminal, 1 << 16)
            except OSError:  # nano has ended.
                return


def check():
    with open("file") as file:
        text = file.read()
    if text != NEW and (text != OLD or ["saved"] in records.printed()):
        sys.exit(f"the file has {len(text)} bytes, {text.count('new')} times new")


def version():
    return subprocess.check_output(["nano", "--version"], text=True).split()[3]


records.main(setup, work, check, version)
