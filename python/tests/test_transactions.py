"""Transactions of the library, and their crashes."""

import errno
import os
import signal
import subprocess
import sys
import textwrap
import threading

import pytest
import syncline


@pytest.fixture
def fs():
    with syncline.Filesystem.in_memory(32 << 20) as filesystem:
        yield filesystem


def test_all_kinds_of_changes_come_at_the_end(fs):
    fs.mkdir("/d")
    with fs.open("/d/old", "w") as file:
        file.write("old contents")
    with fs.open("/gone", "w"):
        pass
    flushes = fs.statistics()["store"]["flushes_issued"]
    with fs.transaction() as all_of_it:
        all_of_it.write("/d/new", "text")
        all_of_it.write_at("/d/old", b"new", 0)
        all_of_it.truncate("/d/old", 5)
        all_of_it.create("/d/empty", 0o600)
        all_of_it.mkdir("/e", 0o700)
        all_of_it.symlink("d/new", "/link")
        all_of_it.rename("/d/empty", fs / "e" / "moved")
        all_of_it.chmod("/e/moved", 0o640)
        all_of_it.setxattr("/d/new", "user.a", b"b")
        all_of_it.setxattr("/d/new", "user.c", b"d")
        all_of_it.removexattr("/d/new", "user.c")
        all_of_it.remove("/gone")
        all_of_it.mkdir("/f")
        all_of_it.rmdir("/f")
        assert not fs.exists("/d/new")
    assert fs.statistics()["store"]["flushes_issued"] == flushes + 1
    assert sorted(fs.listdir("/")) == ["d", "e", "link"]
    with fs.open("/link") as file:
        assert file.read() == "text"
    with fs.open("/d/old") as file:
        assert file.read() == "new c"
    assert fs.stat("/e/moved").st_mode & 0o7777 == 0o640
    assert fs.listxattr("/d/new") == ["user.a"]


def test_an_exception_and_a_refusal_change_nothing(fs):
    with pytest.raises(ZeroDivisionError), fs.transaction() as never:
        never.mkdir("/never")
        _ = 1 / 0
    with pytest.raises(FileNotFoundError) as refused, fs.transaction() as refusing:
        refusing.mkdir("/never")
        refusing.remove("/nothing")
    assert refused.value.filename == "/nothing"
    assert fs.listdir("/") == []
    over = fs.transaction()
    over.discard()
    with pytest.raises(ValueError, match="over"):
        over.mkdir("/never")
    with pytest.raises(ValueError, match="over"):
        refusing.commit()


def test_the_limits_are_told(fs):
    large = fs.transaction()
    large.write("/a", bytes(40 << 20))
    with pytest.raises(OSError, match="64 MiB") as refused:
        large.write("/b", bytes(40 << 20))
    assert refused.value.errno == errno.EFBIG
    many = fs.transaction()
    with pytest.raises(OSError, match="16,384"):
        for number in range(20_000):
            many.mkdir(f"/{number}")


def test_other_threads_see_all_or_nothing(fs):
    fs.mkdir("/d")
    with fs.open("/d/one", "w"):
        pass
    stop = threading.Event()
    wrong = []

    def read():
        while not stop.is_set():
            if fs.stat("/d").st_size != 1:
                wrong.append(fs.listdir("/d"))

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for number in range(50):
        source, target = ("/d/one", "/d/two") if number % 2 == 0 else ("/d/two", "/d/one")
        with fs.transaction() as both:
            both.create("/d/between")
            both.rename(source, target)
            both.remove("/d/between")
    stop.set()
    for reader in readers:
        reader.join()
    assert wrong == []


PROGRAM = """
import sys
import syncline

fs = syncline.Filesystem.open_or_create(sys.argv[1], 64 << 20)
number = 0
while True:
    number += 1
    with fs.transaction() as all_of_it:
        all_of_it.write("/a", f"{number}")
        all_of_it.write("/b", f"{number}" * 5000)
        all_of_it.mkdir(f"/d{number}")
        if number > 1:
            all_of_it.rmdir(f"/d{number - 1}")
    print(number, flush=True)
"""


def test_what_was_committed_survives_a_kill_as_a_whole(tmp_path):
    image = tmp_path / "disk.img"
    program = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(PROGRAM), os.fspath(image)], stdout=subprocess.PIPE, text=True
    )
    for line in program.stdout:
        if int(line) == 30:
            break
    program.send_signal(signal.SIGKILL)
    rest = program.stdout.read().split()
    program.wait()
    program.stdout.close()
    answered = int(rest[-1]) if rest else 30
    with syncline.Filesystem(image) as fs:
        with fs.open("/a") as one, fs.open("/b") as other:
            number, repeated = one.read(), other.read()
        assert int(number) >= answered
        assert repeated == number * 5000
        assert sorted(fs.listdir("/")) == ["a", "b", f"d{number}"]
