import doctest
import errno
import io
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import threading
import time

import pytest
import syncline


def test_the_documentation_is_right():
    for module in [syncline, syncline.path]:
        failed, tried = doctest.testmod(module)
        assert (failed, tried > 0) == (0, True)


def test_files_have_the_interface_of_pythons(fs, tmp_path):
    """Does the same to a file here and to one of the host, with every kind of opening."""
    fs.mkdir("/dir")

    def both(path, *how, **more):
        return fs.open(f"/dir/{path}", *how, **more), open(tmp_path / path, *how, **more)

    def same(call, files):
        results = []
        for file in files:
            try:
                results.append(call(file))
            except (OSError, ValueError) as error:
                results.append(type(error))
        assert results[0] == results[1], call
        return results[0]

    for mode in ["wb", "r+b", "ab", "w+b", "a+b", "rb"]:
        files = both("binary", mode)
        for call in [
            lambda file: file.write(b"0123456789" * 1000),
            lambda file: file.tell(),
            lambda file: file.seek(5),
            lambda file: file.read(20000),
            lambda file: file.write(b"middle"),
            lambda file: file.seek(-3, io.SEEK_END),
            lambda file: file.read(),
            lambda file: file.seek(100),
            lambda file: file.truncate(),
            lambda file: (file.readable(), file.writable(), file.seekable()),
            lambda file: file.seek(-1),
            lambda file: file.close(),
            lambda file: file.closed,
            lambda file: file.read(),
        ]:
            same(call, files)
        assert fs.read_bytes("/dir/binary") == (tmp_path / "binary").read_bytes(), mode
    files = both("text", "w", encoding="utf-8", newline="\r\n")
    same(lambda file: file.write("grün\nblau\n"), files)
    same(lambda file: file.close(), files)
    assert fs.read_bytes("/dir/text") == (tmp_path / "text").read_bytes()
    assert list(fs.open("/dir/text", encoding="utf-8")) == ["grün\n", "blau\n"]
    for mode in ["", "rw", "rbt", "z", "b", "rr"]:
        with pytest.raises(ValueError):
            fs.open("/dir/text", mode)
    with pytest.raises(FileExistsError):
        fs.open("/dir/text", "x")


def test_unbuffered_files_read_and_write_where_they_are_told(fs):
    with fs.open("/file", "w+b", buffering=0) as file:
        assert isinstance(file, syncline.File)
        assert file.write_at(bytearray(b"hello"), 3) == 5
        assert file.read_at(100, 0) == b"\0\0\0hello"
        part = bytearray(b"-" * 10)
        assert file.readinto(part) == 8
        assert part == b"\0\0\0hello--"
        large = os.urandom(9_000_001)
        assert file.write_at(large, 0) == len(large)
        file.seek(0)
        assert file.readall() == large
        file.sync()
        assert file.stat().st_size == len(large)
    with pytest.raises(ValueError):
        file.read_at(1, 0)


def test_errors_are_those_of_os(fs):
    fs.mkdir("/dir")
    fs.write_bytes("/dir/file", b"x")
    for call, error in [
        (lambda: fs.open("/none"), FileNotFoundError),
        (lambda: fs.mkdir("/dir"), FileExistsError),
        (lambda: fs.listdir("/dir/file"), NotADirectoryError),
        (lambda: fs.open("/dir", "w"), IsADirectoryError),
        (lambda: fs.remove("/dir"), IsADirectoryError),
    ]:
        with pytest.raises(error):
            call()
    with pytest.raises(OSError) as caught:
        fs.rmdir("/dir")
    assert (caught.value.errno, caught.value.filename) == (errno.ENOTEMPTY, "/dir")


def test_names_and_attributes(fs):
    fs.makedirs("/a/b")
    fs.makedirs("/a/b")
    fs.write_bytes("/a/file", b"contents")
    fs.link("/a/file", "/a/b/second")
    fs.symlink("../file", "/a/b/link")
    assert fs.readlink("/a/b/link") == "../file"
    assert fs.realpath("a/b/link") == "/a/file"
    assert fs.stat("/a/b/link").st_nlink == 2
    assert fs.lstat("/a/b/link").st_mode & 0o170000 == 0o120000
    assert sorted(fs.listdir("/a")) == ["b", "file"]
    assert [name for name, stat in fs.scandir("/a") if stat.st_mode & 0o040000] == ["b"]
    walked = [(path, directories, sorted(others)) for path, directories, others in fs.walk("/a")]
    assert walked == [("/a", ["b"], ["file"]), ("/a/b", [], ["link", "second"])]
    fs.chmod("/a/file", 0o640)
    fs.chown("/a/file", 12, 34)
    fs.utime("/a/file", mtime_ns=-1_500_000_001)
    stat = fs.stat("/a/file")
    assert (stat.st_mode, stat.st_uid, stat.st_gid, stat.st_mtime_ns) == (0o100640, 12, 34, -1_500_000_001)
    with pytest.raises(ValueError):
        fs.utime("/a/file", mtime_ns=1 << 100)
    fs.setxattr("/a/file", "user.x", b"\0value")
    assert fs.getxattr("/a/file", "user.x") == b"\0value"
    assert fs.listxattr("/a/file") == ["user.x"]
    fs.removexattr("/a/file", "user.x")
    assert fs.getxattr("/a/file", "user.x") is None
    assert fs.copy("/a/file", "/copy") == 8
    with pytest.raises(FileExistsError):
        fs.rename("/copy", "/a/file", replace=False)
    fs.exchange("/copy", "/a/b")
    assert fs.read_bytes("/a/b") == b"contents"
    fs.rmtree("/a")
    fs.rmtree("/copy")
    assert fs.listdir("/") == []
    raw = os.fsdecode(b"not \xff text")
    fs.write_bytes(f"/{raw}", b"")
    assert fs.listdir("/") == [raw]


def test_sync_many_writes_what_is_buffered_and_costs_one_flush(image):
    with syncline.Filesystem.create(image, 64 << 20) as fs:
        with fs.open("/text", "w") as text, fs.open("/binary", "wb") as binary, fs.open("/raw", "wb", buffering=0) as raw:
            text.write("text")
            binary.write(b"binary")
            raw.write(b"raw")
            before = fs.statistics()["store"]["flushes_issued"]
            fs.barrier([raw])
            fs.sync_many([text, binary, raw])
            assert fs.statistics()["store"]["flushes_issued"] - before == 1
            receipt = fs.receipts()[-1]
            assert receipt["files"] == 3
            with pytest.raises(TypeError):
                fs.sync_many([io.BytesIO()])
            with syncline.Filesystem.in_memory() as other, pytest.raises(OSError) as caught:
                other.sync_many([raw])
            assert caught.value.errno == errno.EXDEV


def test_a_file_of_class_ordered_is_synced_without_a_flush(image):
    with syncline.Filesystem.create(image, 64 << 20) as fs:
        fs.mkdir("/build")
        fs.set_durability("/build", "ordered:9")
        with fs.open("/build/object", "wb") as file:
            file.write(b"can be made again")
            before = fs.statistics()["store"]["flushes_issued"]
            fs.sync_many([file])
            assert fs.statistics()["store"]["flushes_issued"] == before
        assert fs.durability("/build/object") == "ordered:9"
        assert fs.receipts()[-1]["durability"] == "ordered:9"
        fs.set_durability("/build/object", None)
        assert fs.durability("/build/object") == "fsync"
        with pytest.raises(ValueError, match="no durability class"):
            fs.set_durability("/build", "never")
        with pytest.raises(FileNotFoundError):
            fs.set_durability("/none", "strict")


WRITER = """
import os, sys, syncline
fs = syncline.Filesystem.create(sys.argv[1], 64 << 20)
one, two = fs.open("/one", "wb"), fs.open("/two", "wb")
one.write(b"1" * 100_000)
two.write(b"2" * 100_000)
fs.sync_many([one, two])
print("synced", flush=True)
one.write(b"never synced")
sys.stdin.read()
"""


def test_what_was_synced_is_there_after_a_kill(image):
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(image)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert writer.stdout.readline() == b"synced\n"
    with pytest.raises(OSError) as caught:
        syncline.Filesystem.open_image(image)
    assert caught.value.errno == errno.EBUSY
    writer.send_signal(signal.SIGKILL)
    writer.communicate()
    with syncline.Filesystem.open_image(image) as fs:
        assert fs.read_bytes("/one")[:100_000] == b"1" * 100_000
        assert fs.read_bytes("/two") == b"2" * 100_000


def test_an_image_is_closed_when_python_ends(image):
    program = f"""
import syncline
fs = syncline.Filesystem.create({str(image)!r}, 64 << 20)
fs.write_bytes("/file", b"not synced")
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
    with syncline.Filesystem.open_image(image, read_only=True) as fs:
        assert fs.read_bytes("/file") == b"not synced"
        with pytest.raises(OSError) as caught:
            fs.mkdir("/x")
        assert caught.value.errno == errno.EROFS
    with pytest.raises(ValueError, match="closed"):
        fs.listdir("/")


def test_a_forked_child_is_refused_and_ends(image):
    program = f"""
import os, sys, syncline
fs = syncline.Filesystem.create({str(image)!r}, 64 << 20)
file = fs.open("/file", "wb")
child = os.fork()
if child == 0:
    try:
        fs.listdir("/")
    except RuntimeError as error:
        sys.exit(7 if "fork" in str(error) else 8)
    sys.exit(9)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
file.write(b"the parent goes on")
fs.sync_many([file])
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", program], check=True, timeout=120)


def test_other_threads_run_while_a_sync_waits(image):
    with syncline.Filesystem.create(image, 256 << 20) as fs, fs.open("/file", "wb", buffering=0) as file:
        file.write(os.urandom(48 << 20))
        ticks = []
        done = threading.Event()

        def tick():
            while not done.is_set():
                ticks.append(time.monotonic())
                time.sleep(0.0005)

        thread = threading.Thread(target=tick)
        thread.start()
        start = time.monotonic()
        file.sync()
        end = time.monotonic()
        done.set()
        thread.join()
        # Were other threads kept out, there would be none.
        assert sum(start < moment < end for moment in ticks) >= 2, end - start


def test_threads_write_at_once(fs):
    file = fs.open("/file", "w+b", buffering=0)

    def write(slot):
        for index in range(50):
            file.write_at(bytes([slot]) * 100, (slot * 50 + index) * 100)
            file.sync_data()

    threads = [threading.Thread(target=write, args=(slot,)) for slot in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert fs.read_bytes("/file") == b"".join(bytes([slot]) * 5000 for slot in range(8))


def test_snapshots(image):
    with syncline.Filesystem.create(image, 64 << 20) as fs:
        fs.write_bytes("/file", b"old")
        fs.create_snapshot("before")
        fs.write_bytes("/file", b"new")
        assert [snapshot.name for snapshot in fs.snapshots()] == ["before"]
        with pytest.raises(FileExistsError):
            fs.create_snapshot("before")
        with syncline.Filesystem.open_snapshot(image, "before") as before:
            assert before.read_bytes("/file") == b"old"
    syncline.Filesystem.roll_back(image, "before")
    with syncline.Filesystem.open_image(image) as fs:
        assert fs.read_bytes("/file") == b"old"
        fs.delete_snapshot("before")
        assert fs.snapshots() == []


def test_keys(tmp_path):
    path = tmp_path / "encrypted.img"
    with pytest.raises(OSError) as refused:
        syncline.Filesystem.create(path, 32 << 20, encrypted=True)
    assert refused.value.errno == errno.ENOKEY and not path.exists()
    syncline.add_key("secret\n")
    with syncline.Filesystem.create(path, 32 << 20, encrypted=True) as fs:
        fs.write_bytes("/hidden", b"SYNCLINE " * 1000)
        fs.create_snapshot("then")
    assert b"SYNCLINE" not in path.read_bytes()
    syncline.forget_keys()
    with pytest.raises(OSError) as refused:
        syncline.Filesystem(path)
    assert refused.value.errno == errno.ENOKEY
    syncline.add_key(b"other")
    with pytest.raises(OSError) as refused:
        syncline.Filesystem(path)
    assert refused.value.errno == errno.EKEYREJECTED
    syncline.add_key(b"secret")
    with syncline.Filesystem.open_fork(path, "then") as fork:
        assert fork.read_bytes("/hidden") == b"SYNCLINE " * 1000
    syncline.forget_keys()
    for wrong in (b"", "", b"x" * 4001):
        with pytest.raises(OSError):
            syncline.add_key(wrong)


def test_forks(image, tmp_path, monkeypatch):
    one, two = tmp_path / "one.img", tmp_path / "two.img"
    # The image is found when the current directory is another one.
    monkeypatch.chdir(tmp_path)
    with syncline.Filesystem.create(image.name, 64 << 20) as fs:
        monkeypatch.chdir("/")
        fs.write_bytes("/file", b"old" * 10_000)
        fs.create_snapshot("before")
        fs.write_bytes("/file", b"new")
        fs.fork("before", one)
        fs.fork("before", two)
        with pytest.raises(FileExistsError):
            fs.fork("before", two)
        assert [(fork.snapshot, fork.path) for fork in fs.forks()] == [("before", str(one)), ("before", str(two))]
        with syncline.Filesystem(one) as fork:
            assert fork.read_bytes("/file") == b"old" * 10_000
            fork.write_bytes("/own", b"own")
            # It may be the base of others.
            fork.create_snapshot("later")
            fork.fork("later", tmp_path / "deeper.img")
            for busy in [lambda: fs.forget_fork(one), lambda: syncline.Filesystem.detach(one)]:
                with pytest.raises(OSError) as caught:
                    busy()
                assert caught.value.errno == errno.EBUSY
        assert fs.listdir("/") == ["file"]
        with syncline.Filesystem(tmp_path / "deeper.img") as deeper:
            assert deeper.read_bytes("/own") == b"own"
        with pytest.raises(OSError, match="one.img") as caught:
            fs.delete_snapshot("before")
        assert caught.value.errno == errno.EBUSY
    for path in [one, two]:
        path.unlink()
    with syncline.Filesystem(image) as fs:
        fs.forget_fork(one)
        for error, wrong in [(FileNotFoundError, one), (FileNotFoundError, image), (TypeError, 1), (TypeError, fs / "file")]:
            with pytest.raises(error):
                fs.forget_fork(wrong)
        (fork,) = fs.forks()
        assert repr(fork) == f'Fork(snapshot="before", path="{two}")'
        fs.forget_fork(fork)
        fs.delete_snapshot("before")


def test_forks_made_at_one_place_are_told_apart(image, tmp_path):
    work = tmp_path / "work.img"
    with syncline.Filesystem.create(image, 64 << 20) as fs:
        fs.create_snapshot("before")
        for _ in range(2):
            work.unlink(missing_ok=True)
            fs.fork("before", work)
        old, _ = fs.forks()
        fs.forget_fork(old)
        with syncline.Filesystem(work) as fork:
            assert fork.listdir("/") == []
        fs.forget_fork(os.path.relpath(work))
        assert fs.forks() == []
    with pytest.raises(OSError, match="keeps no snapshot for this fork"):
        syncline.Filesystem(work)


def test_a_detached_fork_needs_no_base(image, tmp_path):
    released, kept = tmp_path / "released.img", tmp_path / "kept.img"
    with syncline.Filesystem.create(image, 64 << 20) as fs:
        fs.write_bytes("/file", b"old" * 100_000)
        fs.create_snapshot("before")
        fs.fork("before", released)
        fs.fork("before", kept)
    syncline.Filesystem.detach(released)
    with pytest.raises(OSError, match="it is no fork") as caught:
        syncline.Filesystem.detach(released)
    assert (caught.value.errno, caught.value.filename) == (errno.EINVAL, str(released))
    with syncline.Filesystem(image) as fs:
        assert [fork.path for fork in fs.forks()] == [str(kept)]
        # Nobody else can release it now.
        with pytest.raises(OSError, match="kept.img needs its base no longer, but .*disk.img still keeps the snapshot") as caught:
            syncline.Filesystem.detach(kept)
        assert caught.value.errno == errno.EBUSY
        fs.forget_fork(kept)
        fs.delete_snapshot("before")
    image.unlink()
    for path in [released, kept]:
        with syncline.Filesystem(path) as fs:
            assert fs.read_bytes("/file") == b"old" * 100_000


def test_a_temporary_fork_leaves_nothing(image, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with syncline.Filesystem.create(image, 64 << 20) as fs:
        fs.write_bytes("/file", b"old")
        fs.create_snapshot("before")
        for _ in range(2):
            with syncline.Filesystem.open_fork(image, "before") as fork, fork.open("/more", "w") as file:
                file.write("more")
                file.flush()
                fs.write_bytes("/file", b"new")
                assert sorted(fork.listdir("/")) == ["file", "more"] and fork.read_bytes("/file") == b"old"
                with pytest.raises(OSError) as caught:
                    fs.delete_snapshot("before")
                assert caught.value.errno == errno.EBUSY
                assert os.listdir(tmp_path) == [image.name]
        fs.delete_snapshot("before")
        assert fs.forks() == [] and fs.listdir("/") == ["file"]
    with pytest.raises(ValueError, match="closed"):
        fork.listdir("/")
    with pytest.raises(OSError, match='no snapshot "before"'):
        syncline.Filesystem.open_fork(image, "before")


def test_what_can_not_be_forked_says_so(image, tmp_path):
    new = tmp_path / "new.img"
    with syncline.Filesystem.create(image, 64 << 20) as fs:
        fs.create_snapshot("before")
        with pytest.raises(OSError, match='no snapshot "after"'):
            fs.fork("after", new)
        with pytest.raises(FileNotFoundError):
            fs.fork("before", tmp_path / "none" / "new.img")
        with pytest.raises(TypeError):
            fs.fork("before", fs / "new.img")
    for open, code, text in [
        (lambda: syncline.Filesystem(image, read_only=True), errno.EROFS, "opened read-only"),
        (lambda: syncline.Filesystem.open_snapshot(image, "before"), errno.EROFS, "it is a snapshot"),
        (lambda: syncline.Filesystem.open_fork(image, "before"), errno.EOPNOTSUPP, "ends when it is closed"),
        (lambda: syncline.Filesystem.in_memory(), errno.EOPNOTSUPP, "in memory"),
    ]:
        with open() as fs:
            with pytest.raises(OSError, match=text) as caught:
                fs.fork("before", new)
            assert caught.value.errno == code
            assert fs.forks() == []
        for late in [lambda: fs.fork("before", new), fs.forks, lambda: fs.forget_fork(new)]:
            with pytest.raises(ValueError, match="closed"):
                late()
    assert os.listdir(tmp_path) == [image.name]


def test_the_example_for_pytest_runs(tmp_path):
    """The one of README.md, as it stands."""
    page = (pathlib.Path(__file__).parent.parent / "README.md").read_text()
    (program,) = [block.split("```")[0] for block in page.split("```python\n")[1:] if "@pytest.fixture" in block]
    (tmp_path / "test_example.py").write_text(program)
    pytest_runs = [sys.executable, "-m", "pytest", "-q", "-W", "error", "--basetemp", tmp_path / "made"]
    ran = subprocess.run(pytest_runs, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0 and "2 passed" in ran.stdout, ran.stdout + ran.stderr


def test_closing_the_filesystem_writes_what_open_files_have_buffered(image):
    fs = syncline.Filesystem.create(image, 64 << 20)
    text = fs.open("/text", "w")
    binary = fs.open("/binary", "w+b")
    inner = fs.open("/detached", "w").detach()
    raw = fs.open("/raw", "wb", buffering=0)
    done = fs.open("/done", "wb")
    done.write(b"closed before")
    done.close()
    text.write("text that nobody flushed")
    binary.write(b"binary")
    inner.write(b"below a text layer that is gone")
    raw.write(b"raw")
    fs.close()
    fs.close()
    assert text.closed and binary.closed and inner.closed and raw.closed
    for late in (lambda: text.write("late"), lambda: binary.write(b"late"), lambda: raw.write(b"late")):
        with pytest.raises(ValueError, match="closed"):
            late()
    # Nobody holds the image any more, though the files are there still.
    with syncline.Filesystem.open_image(image) as again:
        assert again.read_bytes("/text") == b"text that nobody flushed"
        assert again.read_bytes("/binary") == b"binary"
        assert again.read_bytes("/detached") == b"below a text layer that is gone"
        assert again.read_bytes("/raw") == b"raw"
        assert again.read_bytes("/done") == b"closed before"


def test_what_can_not_be_written_on_closing_is_told_and_the_rest_is_written(image):
    fs = syncline.Filesystem.create(image, 16 << 20)
    # Files are gone through in no order: one on each side of the one that fails would be luck, twenty are not.
    small = [fs.open(f"/small{number}", "wb") for number in range(20)]
    for file in small:
        file.write(b"small")
    # Not a write that finds no room: it would take the room of those that follow.
    beyond = fs.open("/beyond", "wb")
    beyond.seek(2**63 - 1)
    beyond.write(b"behind the largest offset")
    with pytest.raises(OSError) as caught:
        fs.close()
    assert caught.value.errno == errno.EFBIG
    assert beyond.closed and fs.closed
    with syncline.Filesystem.open_image(image) as again:
        assert [again.read_bytes(f"/small{number}") for number in range(20)] == [b"small"] * 20


def test_what_is_buffered_when_python_ends_is_written(image):
    program = f"""
import syncline
fs = syncline.Filesystem.create({str(image)!r}, 64 << 20)
file = fs.open("/file", "w")
file.write("not flushed")
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
    with syncline.Filesystem.open_image(image) as fs:
        assert fs.read_bytes("/file") == b"not flushed"


def test_a_forked_child_closes_nothing_of_the_parents(image):
    program = f"""
import os, sys, syncline
fs = syncline.Filesystem.create({str(image)!r}, 64 << 20)
file = fs.open("/file", "wb")
file.write(b"the parent's")
child = os.fork()
if child == 0:
    fs.close()
    os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
fs.close()
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", program], check=True, timeout=120)
    with syncline.Filesystem.open_image(image) as fs:
        assert fs.read_bytes("/file") == b"the parent's"


def test_reading_all_of_what_no_memory_holds_fails_as_io_does(image):
    """As on ext4: MemoryError, at once, and the file and the process go on."""
    with syncline.Filesystem.create(image, 64 << 20) as fs:
        with fs.open("/sparse", "w+b") as file:
            file.write(b"start")
            file.truncate(1 << 62)
        calls = [
            lambda file: file.read(),
            lambda file: file.raw.readall(),
            lambda file: file.raw.read_at(1 << 62, 0),
            lambda file: fs.read_bytes("/sparse"),
        ]
        with fs.open("/sparse", "rb") as file:
            for call in calls:
                with pytest.raises(MemoryError, match="4611686018427387904 bytes.*in pieces"):
                    file.seek(0)
                    call(file)
            file.seek(0)
            assert file.read(8) == b"start\0\0\0"
            # What is left of it is little.
            file.seek((1 << 62) - 3)
            assert file.read() == b"\0\0\0"


def test_paths_have_the_methods_of_pathlib(fs, tmp_path):
    """Does the same with a path here and with one of the host."""
    import pathlib

    host = pathlib.Path(tmp_path)
    for root in [fs.path(), host]:
        (root / "mail" / "old").mkdir(parents=True)
        (root / "mail").mkdir(exist_ok=True)
        with pytest.raises(FileExistsError):
            (root / "mail").mkdir()
        inbox = root / "mail" / "inbox.eml"
        assert inbox.write_text("grün\n", encoding="utf-8") == 5
        assert inbox.read_bytes() == "grün\n".encode()
        assert (inbox.name, inbox.stem, inbox.suffix) == ("inbox.eml", "inbox", ".eml")
        assert (root / "mail" / "old" / "a.eml").write_bytes(b"a") == 1
        (root / "link").symlink_to("mail")
        (root / "broken").symlink_to("nowhere")
        (root / "second").hardlink_to(inbox)
        assert inbox.stat().st_nlink == 2
        assert (root / "link").is_dir() and (root / "link").is_symlink() and not inbox.is_symlink()
        assert not (root / "broken").exists() and (root / "broken").is_symlink()
        assert inbox.is_file() and not inbox.is_dir() and not (inbox / "below").exists()
        inbox.with_name("none").unlink(missing_ok=True)
        with pytest.raises(FileNotFoundError):
            inbox.with_name("none").unlink()
        (root / "loop").symlink_to("loop")
        assert not (root / "loop").exists() and not (root / "loop" / "below").is_file()
        (root / "private" / "below").mkdir(0o700, parents=True)
        assert [(root / name).stat().st_mode & 0o777 for name in ["private", "private/below"]] == [0o755, 0o700]

    def found(root, pattern):
        return sorted(str(path)[len(str(root)) :].strip("/") for path in root.glob(pattern))

    for pattern in ["*", "mail/*", "**/*.eml", "*/old/a.eml", "mail/*/?.eml", "none/*", "mail/inbox.eml"]:
        assert found(fs.path(), pattern) == found(host, pattern), pattern
        for name in ["none", "mail/inbox.eml", "loop"]:
            assert list((fs / name).glob(pattern)) == [], (name, pattern)
    inbox = fs / "mail/inbox.eml"
    renamed = inbox.rename("/mail/moved.eml")
    assert renamed == fs.path("mail", "moved.eml") and not inbox.exists()
    assert renamed.parent.parent == fs.path() == fs.path().parent
    assert (fs / "link" / "moved.eml").resolve() == renamed
    assert repr(renamed) == "Path('/mail/moved.eml')" and len({renamed, fs / "mail" / "moved.eml"}) == 1
    renamed.unlink()
    (fs / "mail" / "old" / "a.eml").unlink()
    (fs / "mail" / "old").rmdir()
    assert list((fs / "mail").iterdir()) == []


def test_paths_of_an_image_are_none_of_the_host(fs, tmp_path):
    """What the host has under the same name stays as it is."""
    import shutil

    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "file").write_text("the host's")
    inside = fs.path(str(victim))
    inside.mkdir(parents=True)
    (inside / "file").write_text("the image's")
    for call in [
        lambda: os.fspath(inside),
        lambda: open(inside / "file", "w"),
        lambda: os.remove(inside / "file"),
        lambda: shutil.rmtree(inside),
        lambda: shutil.copy(inside / "file", tmp_path / "copy"),
        lambda: tmp_path / inside,
        lambda: syncline.Filesystem(inside / "file"),
    ]:
        with pytest.raises(TypeError):
            call()
    assert (victim / "file").read_text() == "the host's"
    # The package's own calls take it, each of them.
    file = inside / "file"
    assert fs.read_bytes(file) == b"the image's" and fs.open(file).read() == "the image's"
    assert fs.copy(file, inside / "copy") == 11
    fs.link(file, inside / "second")
    fs.symlink(file, inside / "link")
    assert fs.readlink(inside / "link") == str(file)
    fs.exchange(inside / "copy", inside / "second")
    fs.rename(inside / "copy", inside / "third")
    assert [path for path, _, _ in fs.walk(inside)] == [str(inside)] and fs.path(inside, "file") == fs / file == file
    fs.rmtree(inside)
    assert not inside.exists() and victim.exists()


def test_paths_of_another_image_are_refused(fs):
    with syncline.Filesystem.in_memory() as other:
        for root in [fs, other]:
            (root / "file").write_text("x")
        for call in [
            lambda: fs.remove(other / "file"),
            lambda: fs.open(other / "file", "w"),
            lambda: fs.copy("/file", other / "copy"),
            lambda: fs.rename("/file", other / "copy"),
            lambda: (fs / "file").rename(other / "copy"),
            lambda: fs / (other / "file"),
        ]:
            with pytest.raises(ValueError, match="another image"):
                call()
        assert fs.listdir("/") == other.listdir("/") == ["file"]


def test_directories_are_not_opened_as_files(fs):
    fs.mkdir("/dir")
    for mode, buffering in [("r", -1), ("rb", -1), ("rb", 0), ("r+", -1)]:
        with pytest.raises(IsADirectoryError) as caught:
            fs.open("/dir", mode, buffering)
        assert (caught.value.errno, caught.value.filename) == (errno.EISDIR, "/dir")
    with pytest.raises(IsADirectoryError):
        (fs / "dir").read_text()


def test_paths_are_taken_apart_as_those_of_pathlib(fs, tmp_path):
    import pathlib

    path, pure = fs / "a" / "b" / "c.tar.gz", pathlib.PurePosixPath("/a/b/c.tar.gz")
    assert path.suffixes == pure.suffixes and path.as_posix() == str(pure)
    assert [str(parent) for parent in path.parents] == [str(parent) for parent in pure.parents]
    assert path.parents[0] == path.parent and path.with_stem("d") == fs / "a/b/d.gz"
    assert path.relative_to(fs / "a") == path.relative_to("/a") == pure.relative_to("/a")
    assert path.is_relative_to("/a") and not path.is_relative_to("/b")
    with pytest.raises(ValueError):
        path.relative_to("/b")
    for pattern in ["*.gz", "b/*", "/a/*", "*.zip"]:
        assert path.match(pattern) == pure.match(pattern), pattern
    for root in [fs.path(), pathlib.Path(tmp_path)]:
        file = root / "file"
        file.touch(0o600)
        assert file.stat().st_mode == 0o100600 and file.lstat().st_size == 0
        file.write_text("kept")
        before = file.stat().st_mtime_ns
        time.sleep(0.01)
        file.touch()
        assert file.stat().st_mtime_ns > before and file.read_text() == "kept"
        with pytest.raises(FileExistsError):
            file.touch(exist_ok=False)
        (root / "x" / "y").mkdir(parents=True)
        (root / "x" / "y" / "z.eml").touch()
        assert [found.name for found in root.rglob("*.eml")] == ["z.eml"]


def test_an_image_is_opened_by_its_constructor(image):
    with syncline.Filesystem.create(image, 16 << 20) as fs:
        (fs / "a").write_text("a")
    with syncline.Filesystem(image, read_only=True) as fs:
        assert (fs / "a").read_text() == "a"
        with pytest.raises(OSError) as raised:
            (fs / "b").write_text("b")
        assert raised.value.errno == errno.EROFS


def test_syncs_of_an_event_loop_share_flushes(fs):
    import asyncio

    def append_and_sync(name):
        with fs.open(name, "a") as file:
            file.write("ready\n")
            fs.sync_many([file])

    async def main():
        await asyncio.gather(*(asyncio.to_thread(append_and_sync, f"/log-{n}") for n in range(16)))

    asyncio.run(main())
    assert all((fs / f"log-{n}").read_text() == "ready\n" for n in range(16))


@pytest.mark.skipif(shutil.which("nbdkit") is None, reason="nbdkit is not installed")
def test_an_image_may_lie_on_an_nbd_server(tmp_path):
    socket = tmp_path / "socket"
    server = subprocess.Popen(["nbdkit", "--foreground", "--exit-with-parent", "--unix", socket, "memory", "64M"])
    try:
        while not socket.exists():
            assert server.poll() is None
            time.sleep(0.01)
        image = f"nbd+unix:///?socket={socket}"
        with pytest.raises(OSError, match="its storage decides that"):
            syncline.Filesystem.create(image, 32 << 20)
        with syncline.Filesystem.create(image, 64 << 20) as fs:
            fs.write_bytes("/file", b"far away")
            with pytest.raises(OSError, match="in use by") as busy:
                syncline.Filesystem(image)
            assert busy.value.errno == errno.EBUSY
        with syncline.Filesystem(image, read_only=True) as fs:
            assert fs.read_bytes("/file") == b"far away"
    finally:
        server.kill()
        server.wait()
