"""Syncline for fsspec, and so for pandas, pyarrow, Dask and others: `syncline:///path`, with the image as a storage option."""

from __future__ import annotations

import datetime
import errno
import io
import os
import stat as modes
import threading
import weakref
from typing import TYPE_CHECKING, Any

from fsspec.spec import AbstractFileSystem
from fsspec.transaction import Transaction
from fsspec.utils import stringify_path

from . import files
from . import transaction as together
from .filesystem import Filesystem
from .path import Path

if TYPE_CHECKING:
    from ._syncline import RawFile, Stat


class PendingFile(io.BufferedRandom):
    """A file without a name, written in a transaction, that gets its name when that is committed."""

    def __init__(self, filesystem: Filesystem, native: RawFile, path: str, replace: bool) -> None:
        self._filesystem = filesystem
        self._replace = replace
        self.native = native
        self.path = path
        super().__init__(files.File(native, path, "r+", keep=True))

    def commit(self) -> None:
        """Has the file appear, in place of what was there."""
        with self._filesystem.transaction() as alone:
            self.add_to(alone)

    def add_to(self, transaction: together.Transaction) -> None:
        """Has the file appear with others."""
        self.close()
        transaction.link(self.native, self.path, replace=self._replace)

    def discard(self) -> None:
        """Forgets the file: nobody has seen it."""
        self.close()
        self.native.close()


class SynclineTransaction(Transaction):
    """Files written in a transaction appear when it ends, all at once, and are durable by one flush when it has ended.

    A crash leaves all of them or none, whatever their size. Nobody sees any of them before; an error discards all.
    """

    def complete(self, commit: bool = True) -> None:
        pending: list[PendingFile] = list(self.files)
        self.files.clear()
        try:
            if commit and pending:
                with self.fs.filesystem.transaction() as all_of_them:
                    for file in _newest(pending):
                        file.add_to(all_of_them)
        finally:
            for file in pending:
                file.discard()
            # The rest of fsspec's own work.
            super().complete(commit)


def _newest(pending: list[PendingFile]) -> list[PendingFile]:
    """Of files of one name the one that was opened last."""
    return list({file.path: file for file in pending}.values())


#: Images that this process has open. fsspec makes an instance for each thread, and an image is opened once.
_images: weakref.WeakValueDictionary[tuple[Any, ...], Filesystem] = weakref.WeakValueDictionary()
_opening = threading.Lock()
# They stay the parent's.
os.register_at_fork(after_in_child=_images.clear)


def _shared(image: str | os.PathLike[str], size: int | None, read_only: bool, snapshot: str | None) -> Filesystem:
    key = (os.path.realpath(image), read_only, snapshot)
    with _opening:
        filesystem = _images.get(key)
        if filesystem is None or filesystem.closed:
            if snapshot is not None:
                filesystem = Filesystem.open_snapshot(image, snapshot)
            elif size is None or read_only:
                filesystem = Filesystem.open_image(image, read_only=read_only)
            else:
                filesystem = Filesystem.open_or_create(image, size)
            _images[key] = filesystem
        return filesystem


class SynclineFileSystem(AbstractFileSystem):
    """A Syncline image as fsspec sees it.

    Parameters
    ----------
    image:
        The image file. One that other programs have open, or have mounted, can't be opened.
    size:
        Bytes of the image that is made if there is none. Without it, the image must exist.
    read_only:
        Opens without writing; several programs can do that at once.
    snapshot:
        Opens this snapshot of the image, for reading.
    auto_mkdir:
        Whether files and directories that are made make the directories that lead to them.

    fsspec keeps instances, and they keep their image open; those of one process share it. `close` closes the image for all of them.
    Processes that were forked can't use it, and others can't open it to write.
    """

    protocol = "syncline"
    root_marker = "/"
    transaction_type = SynclineTransaction

    def __init__(
        self,
        image: str | os.PathLike[str] | None = None,
        size: int | None = None,
        read_only: bool = False,
        snapshot: str | None = None,
        auto_mkdir: bool = True,
        **options: Any,
    ) -> None:
        if image is None:
            raise ValueError("which image? Give storage_options={'image': 'disk.img'}, and 'size' to make one")
        super().__init__(**options)
        self.auto_mkdir = auto_mkdir
        self.filesystem = _shared(image, size, read_only, snapshot)

    @property
    def fsid(self) -> str:
        return f"syncline-{id(self.filesystem)}"

    def close(self) -> None:
        """Closes the image, and the files that are open in it; who asks fsspec for it again has it opened again."""
        cache = type(self)._cache
        for token, instance in list(cache.items()):
            if instance.filesystem is self.filesystem:
                cache.pop(token, None)
        self.filesystem.close()

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(each) for each in path]
        path = str(path) if isinstance(path, Path) else stringify_path(path)
        path = path.removeprefix("syncline://").removeprefix("syncline:")
        names = [name for name in path.split("/") if name not in ("", ".")]
        return "/" + "/".join(names)

    # What there is.

    def _describe(self, path: str, about: Stat, enter_links: bool) -> dict[str, Any]:
        described: dict[str, Any] = {"name": path, "islink": modes.S_ISLNK(about.st_mode)}
        if described["islink"]:
            described["destination"] = self.filesystem.readlink(path)
            try:
                about = self.filesystem.stat(path)
            except OSError:
                # It leads nowhere: what is known is what is known of the link.
                pass
        kind = {modes.S_IFDIR: "directory", modes.S_IFREG: "file"}.get(modes.S_IFMT(about.st_mode), "other")
        if described["islink"] and kind == "directory" and not enter_links:
            # So that who walks through a tree comes to its end.
            kind = "other"
        return described | {
            "size": about.st_size if kind == "file" else 0,
            "type": kind,
            "created": about.st_birthtime_ns / 1e9,
            "mtime": about.st_mtime,
            "mode": about.st_mode,
            "uid": about.st_uid,
            "gid": about.st_gid,
            "ino": about.st_ino,
            "nlink": about.st_nlink,
        }

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        path = self._strip_protocol(path)
        return self._describe(path, self.filesystem.lstat(path), enter_links=True)

    def ls(self, path: str, detail: bool = True, **options: Any) -> list[Any]:
        path = self._strip_protocol(path)
        about = self.info(path)
        if about["type"] != "directory":
            return [about] if detail else [path]
        below = path.rstrip("/")
        if not detail:
            return sorted(f"{below}/{name}" for name in self.filesystem.listdir(path))
        entries = sorted(self.filesystem.scandir(path), key=lambda entry: entry[0])
        return [self._describe(f"{below}/{name}", about, enter_links=False) for name, about in entries]

    def exists(self, path: str, **options: Any) -> bool:
        try:
            return self.filesystem.exists(self._strip_protocol(path))
        except NotADirectoryError:
            return False

    def lexists(self, path: str, **options: Any) -> bool:
        try:
            self.filesystem.lstat(self._strip_protocol(path))
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def created(self, path: str) -> datetime.datetime:
        return _time(self.filesystem.stat(self._strip_protocol(path)).st_birthtime_ns)

    def modified(self, path: str) -> datetime.datetime:
        return _time(self.filesystem.stat(self._strip_protocol(path)).st_mtime_ns)

    # Directories and names.

    def _make_parent(self, path: str) -> None:
        if self.auto_mkdir:
            self.filesystem.makedirs(self._parent(path) or "/")

    def mkdir(self, path: str, create_parents: bool = True, **options: Any) -> None:
        path = self._strip_protocol(path)
        if create_parents:
            self.filesystem.makedirs(self._parent(path) or "/")
        self.filesystem.mkdir(path)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        path = self._strip_protocol(path)
        if not exist_ok and self.exists(path):
            raise FileExistsError(errno.EEXIST, "file exists", path)
        self.filesystem.makedirs(path)

    def rmdir(self, path: str) -> None:
        self.filesystem.rmdir(self._strip_protocol(path))

    def rm_file(self, path: str) -> None:
        self.filesystem.remove(self._strip_protocol(path))

    def _rm(self, path: str) -> None:
        self.rm_file(path)

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> None:
        if maxdepth is not None:
            for each in reversed(self.expand_path(path, recursive=recursive, maxdepth=maxdepth)):
                self._remove(each, recursive=False, empty=True)
            return
        for each in self.expand_path(path):
            self._remove(each, recursive)

    def _remove(self, path: str, recursive: bool, empty: bool = False) -> None:
        if not modes.S_ISDIR(self.filesystem.lstat(path).st_mode):
            self.filesystem.remove(path)
        elif empty:
            self.filesystem.rmdir(path)
        elif not recursive:
            raise IsADirectoryError(errno.EISDIR, "a directory, which recursive=True removes", path)
        elif path == "/":
            # The root stays; what is in it goes.
            for entry in self.ls("/", detail=False):
                self._remove(entry, recursive=True)
        else:
            self.filesystem.rmtree(path)

    def cp_file(self, path1: str, path2: str, **options: Any) -> None:
        source, target = self._strip_protocol(path1), self._strip_protocol(path2)
        if self.isdir(source):
            self.filesystem.makedirs(target)
            return
        self._make_parent(target)
        self.filesystem.copy(source, target)

    def mv(
        self, path1: Any, path2: Any, recursive: bool = False, maxdepth: int | None = None, **options: Any
    ) -> None:
        """Renames: nothing is copied, and after a crash it has its old name or its new one."""
        if isinstance(path1, list) or isinstance(path2, list) or self._has_magic(path1):
            super().mv(path1, path2, recursive=recursive, maxdepth=maxdepth, **options)
            return
        into = str(path2).endswith("/")
        source, target = self._strip_protocol(path1), self._strip_protocol(path2)
        if into or self.isdir(target):
            target = f"{target.rstrip('/')}/{source.rsplit('/', 1)[1]}"
        self.filesystem.lstat(source)
        self._make_parent(target)
        self.filesystem.rename(source, target)

    @staticmethod
    def _has_magic(path: Any) -> bool:
        return any(character in str(path) for character in "*?[")

    def link(self, src: str, dst: str, **options: Any) -> None:
        self.filesystem.link(self._strip_protocol(src), self._strip_protocol(dst))

    def symlink(self, src: str, dst: str, **options: Any) -> None:
        self.filesystem.symlink(src.removeprefix("syncline://"), self._strip_protocol(dst))

    def chmod(self, path: str, mode: int) -> None:
        self.filesystem.chmod(self._strip_protocol(path), mode)

    def touch(self, path: str, truncate: bool = True, **options: Any) -> None:
        path = self._strip_protocol(path)
        self._make_parent(path)
        self.filesystem.open_native(path, "w" if truncate else "a").close()
        now = int(datetime.datetime.now(datetime.timezone.utc).timestamp() * 1_000_000_000)
        self.filesystem.utime(path, now, now)

    # Contents.

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | None = None,
        autocommit: bool = True,
        cache_options: dict[str, Any] | None = None,
        **options: Any,
    ) -> Any:
        path = self._strip_protocol(path)
        kind, _ = files.parse_mode(mode)
        if kind != "r":
            self._make_parent(path)
        if kind != "r" and not autocommit:
            return self._open_pending(path, kind)
        return self.filesystem.open(path, kind + "b", buffering=block_size or -1)

    def _open_pending(self, path: str, kind: str) -> PendingFile:
        there = self.filesystem.exists(path)
        if kind[0] == "x" and there:
            raise FileExistsError(errno.EEXIST, "file exists", path)
        native = self.filesystem.open_unnamed(self._parent(path) or "/")
        file = PendingFile(self.filesystem, native, path, replace=kind[0] != "x")
        if there or kind[0] == "r":
            old = self.filesystem.open_native(path, "r")
            if kind[0] in "ra":
                # Shares the blocks until they are written to.
                old.copy_range_to(0, native, 0)
            native.chmod(old.stat().st_mode)
            old.close()
        if kind[0] == "a":
            file.seek(0, io.SEEK_END)
        if kind[0] == "r":
            # fsspec takes it for a file that is only read.
            self.transaction.files.append(file)
        return file

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **options: Any) -> bytes:
        native = self.filesystem.open_native(self._strip_protocol(path), "r")
        try:
            first, last, _ = slice(start, end).indices(native.size())
            return native.read_at(max(last - first, 0), first)
        finally:
            native.close()

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: Any) -> None:
        with self.open(path, "xb" if mode == "create" else "wb") as file:
            file.write(value)


def _time(nanoseconds: int) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(nanoseconds / 1e9, tz=datetime.timezone.utc)
