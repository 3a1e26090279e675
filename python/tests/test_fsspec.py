"""fsspec's own tests of implementations, and what is Syncline's own."""

import errno
import os
import subprocess
import sys
import threading

import fsspec
import fsspec.tests.abstract as abstract
import pytest
import syncline
from syncline.fsspec import SynclineFileSystem


@pytest.fixture
def remote(image):
    fs = fsspec.filesystem("syncline", image=str(image), size=64 << 20)
    yield fs
    fs.close()


class Fixtures(abstract.AbstractFixtures):
    @pytest.fixture
    def fs(self, remote):
        return remote

    @pytest.fixture
    def fs_path(self):
        return "/tests"


class TestCopy(abstract.AbstractCopyTests, Fixtures):
    pass


class TestGet(abstract.AbstractGetTests, Fixtures):
    pass


class TestPut(abstract.AbstractPutTests, Fixtures):
    pass


class TestOpen(abstract.AbstractOpenTests, Fixtures):
    pass


class TestPipe(abstract.AbstractPipeTests, Fixtures):
    pass


def test_the_protocol_is_registered(remote, image):
    assert isinstance(remote, SynclineFileSystem)
    with fsspec.open("syncline:///deep/er/file", "wt", image=str(image), size=64 << 20) as file:
        file.write("text")
    assert remote.cat("syncline://deep/er/file") == b"text"
    assert fsspec.core.url_to_fs("syncline:///a//b/", image=str(image), size=64 << 20)[1] == "/a/b"
    with pytest.raises(ValueError, match="which image"):
        fsspec.filesystem("syncline")


def test_one_image_is_opened_once_for_all_threads(remote, image):
    found = []

    def ask():
        found.append(fsspec.filesystem("syncline", image=str(image), size=64 << 20))

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    assert found[0].filesystem is remote.filesystem
    remote.close()
    again = fsspec.filesystem("syncline", image=str(image), size=64 << 20)
    assert not again.filesystem.closed
    again.close()


def test_listing_tells_what_is_there(remote):
    remote.pipe("/dir/file", b"12345")
    remote.symlink("/dir/file", "/dir/link")
    remote.symlink("/dir", "/dir/up")
    remote.symlink("/none", "/dir/broken")
    remote.mkdir("/dir/below")
    assert remote.ls("/dir", detail=False) == [f"/dir/{name}" for name in ("below", "broken", "file", "link", "up")]
    kinds = {entry["name"]: (entry["type"], entry["size"], entry["islink"]) for entry in remote.ls("/dir")}
    assert kinds == {
        "/dir/below": ("directory", 0, False),
        "/dir/broken": ("other", 0, True),
        "/dir/file": ("file", 5, False),
        "/dir/link": ("file", 5, True),
        "/dir/up": ("other", 0, True),
    }
    assert remote.info("/dir/up")["type"] == "directory"
    assert remote.find("/") == ["/dir/broken", "/dir/file", "/dir/link", "/dir/up"]
    assert remote.glob("/d*/f*") == ["/dir/file"]
    assert remote.du("/dir/file") == 5
    assert remote.exists("/dir/file") and not remote.exists("/dir/file/x") and not remote.exists("/dir/broken")
    assert remote.lexists("/dir/broken")
    assert abs((remote.modified("/dir/file") - remote.created("/dir/file")).total_seconds()) < 60
    with pytest.raises(FileNotFoundError):
        remote.ls("/none")
    assert remote.cat_file("/dir/file", start=1, end=-1) == b"234"
    assert remote.cat_ranges(["/dir/file"] * 2, [0, 3], [2, 9]) == [b"12", b"45"]
    remote.touch("/dir/file", truncate=False)
    assert remote.size("/dir/file") == 5
    remote.touch("/dir/file")
    assert remote.size("/dir/file") == 0


def test_moving_renames(remote):
    remote.pipe("/a/file", b"x" * 100_000)
    inode = remote.info("/a/file")["ino"]
    remote.mv("/a/file", "/new/name")
    assert remote.info("/new/name")["ino"] == inode
    remote.mkdir("/into")
    remote.mv("/new/name", "/into")
    remote.mv("/new", "/into/")
    assert remote.ls("/into", detail=False) == ["/into/name", "/into/new"]
    with pytest.raises(FileNotFoundError):
        remote.mv("/none", "/x")
    remote.pipe({"/g/1.txt": b"1", "/g/2.txt": b"2"})
    remote.mv("/g/*.txt", "/into/")
    assert remote.cat("/into/2.txt") == b"2"


def test_removing(remote):
    remote.pipe({"/d/1": b"1", "/d/e/2": b"2", "/f": b"3"})
    with pytest.raises(IsADirectoryError):
        remote.rm("/d")
    with pytest.raises(FileNotFoundError):
        remote.rm("/none")
    remote.rm(["/d/1", "/f"])
    assert remote.find("/") == ["/d/e/2"]
    remote.rm("/", recursive=True)
    assert remote.ls("/") == []


def test_a_transaction_appears_when_it_ends_and_is_durable_then(remote, image):
    remote.pipe({"/old": b"old", "/log": b"1"})
    remote.chmod("/old", 0o600)
    flushes = lambda: remote.filesystem.statistics()["store"]["flushes_issued"]  # noqa: E731
    before = flushes()
    with remote.transaction:
        with remote.open("/old", "w") as file:
            file.write("new")
        with remote.open("/dir/first", "xb") as file:
            file.write(b"1" * 100_000)
        with remote.open("/log", "ab") as file:
            file.write(b"2")
        remote.pipe_file("/piped", b"3")
        assert remote.cat("/old") == b"old" and remote.cat("/log") == b"1"
        assert not remote.exists("/dir/first") and not remote.exists("/piped")
        assert flushes() == before
    # Replacing a file writes the new one first (promise P3) and waits for no flush: there is one, at the end.
    assert flushes() - before == 1
    # Four files and their two directories.
    assert remote.filesystem.receipts()[-1]["files"] == 6
    expected = {"/old": b"new", "/dir/first": b"1" * 100_000, "/log": b"12", "/piped": b"3"}
    assert remote.cat(list(expected)) == expected
    assert remote.info("/old")["mode"] == 0o100600
    assert remote.find("/") == sorted(expected), "nothing else is left"


def test_a_transaction_that_fails_leaves_nothing(remote):
    remote.pipe("/old", b"old")
    objects = len(remote.find("/"))
    with pytest.raises(ZeroDivisionError), remote.transaction:
        with remote.open("/old", "wb") as file:
            file.write(b"new")
        with remote.open("/other", "wb") as file:
            file.write(b"other")
        1 / 0
    assert remote.cat("/old") == b"old" and len(remote.find("/")) == objects
    with remote.open("/after", "wb") as file:
        file.write(b"at once")
    assert remote.cat("/after") == b"at once"


def test_a_transaction_may_be_larger_than_a_batch(image):
    fs = fsspec.filesystem("syncline", image=str(image), size=256 << 20)
    with fs.transaction:
        for index in range(3):
            with fs.open(f"/{index}", "wb") as file:
                file.write(bytes([index]) * (30 << 20))
    assert fs.du("/") == 90 << 20
    fs.close()


WRITER = """
import os, sys, fsspec
fs = fsspec.filesystem("syncline", image=sys.argv[1], size=64 << 20)
with fs.transaction:
    for index in range(20):
        fs.pipe_file(f"/{index}", b"x" * 10_000)
os.kill(os.getpid(), 9)
"""


def test_a_transaction_survives_a_kill(image):
    assert subprocess.run([sys.executable, "-c", WRITER, str(image)]).returncode == -9
    with syncline.Filesystem.open_image(image) as fs:
        assert sorted(fs.listdir("/"), key=int) == [str(index) for index in range(20)]
        assert all(fs.read_bytes(f"/{index}") == b"x" * 10_000 for index in range(20))


def test_snapshots_and_read_only(remote, image):
    remote.pipe("/file", b"old")
    remote.filesystem.create_snapshot("before")
    remote.pipe("/file", b"new")
    before = fsspec.filesystem("syncline", image=str(image), snapshot="before")
    assert before.cat("/file") == b"old"
    before.close()
    remote.close()
    reader = fsspec.filesystem("syncline", image=str(image), read_only=True)
    with pytest.raises(OSError) as caught:
        reader.pipe("/file", b"newer")
    assert caught.value.errno == errno.EROFS
    reader.close()


def test_pandas_and_pyarrow_keep_tables_there(remote, image):
    pandas = pytest.importorskip("pandas")
    parquet = pytest.importorskip("pyarrow.parquet")
    pyarrow = pytest.importorskip("pyarrow")
    options = {"image": str(image), "size": 64 << 20}
    table = pandas.DataFrame({"id": range(50_000), "name": [f"customer {index % 97}" for index in range(50_000)]})
    table.to_parquet("syncline:///tables/customers.parquet", storage_options=options)
    pandas.testing.assert_frame_equal(
        pandas.read_parquet("syncline:///tables/customers.parquet", storage_options=options), table
    )
    table.to_csv("syncline:///tables/customers.csv", storage_options=options, index=False)
    pandas.testing.assert_frame_equal(
        pandas.read_csv("syncline:///tables/customers.csv", storage_options=options), table
    )
    parts = pyarrow.Table.from_pandas(table.assign(part=table.id % 4))
    parquet.write_to_dataset(parts, "/tables/parts", partition_cols=["part"], filesystem=remote)
    assert len(remote.glob("/tables/parts/part=*")) == 4
    back = parquet.read_table("/tables/parts", filesystem=remote, filters=[("part", "=", 3)])
    assert back.num_rows == 12_500 and os.path.getsize(image) == 64 << 20
