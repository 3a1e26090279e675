"""Open images."""

from __future__ import annotations

import atexit
import errno
import io
import json
import os
import stat
import weakref
from typing import TYPE_CHECKING, Any, Self

from . import files
from ._syncline import Image
from .path import Inside, Path
from .transaction import Transaction

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import TracebackType

    from ._syncline import RawFile

#: Closed when Python ends: what runs in an image's threads does not end with Python's.
_open: weakref.WeakSet[Filesystem] = weakref.WeakSet()


def _leave_to_the_parent() -> None:
    for filesystem in list(_open):
        filesystem._files.clear()
    _open.clear()


os.register_at_fork(after_in_child=_leave_to_the_parent)


@atexit.register
def _close_all() -> None:
    failed: list[Exception] = []
    for filesystem in list(_open):
        try:
            filesystem.close()
        except Exception as error:
            failed.append(error)
    if failed:
        raise failed[0]


class Filesystem(Image):
    """An open image and everything in it. A context manager: it closes the image.

    Paths start at the root of the image, with or without a slash. Calls may come from any thread; other threads of Python run
    while they wait. Errors are those of `os`: FileNotFoundError and so on. Not usable in a child of `os.fork`.
    """

    _files: files.OpenFiles

    def __new__(cls, image: str | os.PathLike[str], *, read_only: bool = False) -> Self:
        """Opens an image file or block device. What a crash left is recovered first."""
        return cls._new("read" if read_only else "open", image)

    @classmethod
    def _new(
        cls, how: str, image: str | os.PathLike[str], size: int = 0, snapshot: str = "", encrypted: bool = False
    ) -> Self:
        filesystem = super().__new__(cls, how, os.fspath(image), size, snapshot, encrypted)
        filesystem._files = files.OpenFiles()
        _open.add(filesystem)
        return filesystem

    @classmethod
    def create(cls, image: str | os.PathLike[str], size: int, *, encrypted: bool = False) -> Self:
        """Makes an image file of `size` bytes, allocated and written whole, and opens it. An existing file is not
        overwritten. With `encrypted`, the key that `syncline.add_key` added last opens the image."""
        return cls._new("create", image, size, encrypted=encrypted)

    @classmethod
    def open_image(cls, image: str | os.PathLike[str], *, read_only: bool = False) -> Self:
        """The same as `Filesystem(image)`, which has no name to be taken for the method that opens files."""
        return cls(image, read_only=read_only)

    @classmethod
    def open_or_create(cls, image: str | os.PathLike[str], size: int) -> Self:
        """Opens an image file, or makes one of `size` bytes where there is none."""
        return cls._new("open_or_create", image, size)

    @classmethod
    def open_snapshot(cls, image: str | os.PathLike[str], name: str) -> Self:
        """Opens a snapshot for reading, beside whoever has the image open."""
        return cls._new("snapshot", image, snapshot=name)

    @classmethod
    def open_fork(cls, image: str | os.PathLike[str], snapshot: str) -> Self:
        """Opens a new fork of a snapshot, for reading and writing, that ends when it is closed. The image stays as it is and may be
        open elsewhere; the snapshot can't be deleted meanwhile. What is written lies in a file without a name in the directory of
        temporary files, which TMPDIR names."""
        return cls._new("fork", image, snapshot=snapshot)

    @classmethod
    def in_memory(cls, size: int = 64 << 20) -> Self:
        """A filesystem in memory, gone when it is closed."""
        return cls._new("memory", "", size)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the files that `open` returned, which writes what they have buffered, then the image, which has nothing to
        recover afterwards. Does nothing the second time. If something can't be written, the first error is raised when all that
        can be has been, and everything is closed."""
        try:
            if not self.closed:
                self._files.close()
        finally:
            super().close()

    def path(self, *parts: Inside) -> Path:
        """A path with the methods of `pathlib.Path`."""
        return Path(self, *parts)

    def __truediv__(self, part: Inside) -> Path:
        return Path(self, part)

    def open(
        self,
        path: Inside,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
    ) -> Any:
        """Opens a file as the builtin `open` does. Closing makes nothing durable: `sync_many` and `File.sync` do."""
        kind, binary = files.parse_mode(mode)
        if binary and (encoding or errors or newline):
            raise ValueError("encoding, errors and newline are for text")
        if not binary and buffering == 0:
            raise ValueError("text needs a buffer")
        name = _text(path)
        native = self.open_native(path, kind)
        # As of the builtin, which opens no directory; os.open has its like in `open_native`.
        if stat.S_ISDIR(native.stat().st_mode):
            native.close()
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), name)
        raw = files.File(native, name, kind)
        self._files.add(raw)
        if buffering == 0:
            return raw
        file = files.buffered(raw, kind, buffering)
        self._files.add(file)
        if binary:
            return file
        text = io.TextIOWrapper(file, encoding, errors, newline, line_buffering=buffering == 1)
        self._files.add(text)
        return text

    def open_native(self, path: Inside, kind: str) -> RawFile:
        """The file below Python's layers; `kind` is a mode without "b" and "t"."""
        both = "+" in kind
        return self.open_raw(
            path,
            read="r" in kind or both,
            write="a" not in kind and ("r" not in kind or both),
            append="a" in kind,
            truncate="w" in kind,
            create="w" in kind or "a" in kind,
            create_new="x" in kind,
        )

    def sync_many(self, several: Iterable[Any]) -> None:
        """Makes open files durable, what was buffered too, with one flush. After a crash, what of them was not logged before is
        there as a whole or not at all. OSError with EFBIG, before any effect, for more than 64 MiB of unwritten data."""
        self.sync_raw([files.below(file) for file in several])

    def transaction(self) -> Transaction:
        """Changes of any files that are made together, or not at all: `with fs.transaction() as t: t.write(...)`."""
        return Transaction(self)

    def barrier(self, several: Iterable[Any]) -> None:
        """Orders without making durable: after a crash, what was written to these files before is there if anything is that was
        written, created or changed afterwards. Waits for no flush."""
        self.barrier_raw([files.below(file) for file in several])

    def walk(self, top: Inside = "/") -> Iterator[tuple[str, list[str], list[str]]]:
        """Directories, each with its subdirectories and everything else in it, as `os.walk` has them. Links are not followed."""
        path = _text(top)
        directories: list[str] = []
        others: list[str] = []
        for name, about in self.scandir(top):
            (directories if stat.S_ISDIR(about.st_mode) else others).append(name)
        yield path, directories, others
        for name in directories:
            yield from self.walk(os.path.join(path, name))

    def statistics(self) -> dict[str, Any]:
        """What was counted since the image was opened: fsyncs, flushes, batches, bytes and more."""
        counted: dict[str, Any] = json.loads(self.statistics_json())
        return counted

    def receipts(self) -> list[dict[str, Any]]:
        """For each of the last syncs, the oldest first: what it had to make durable and why, and the flush that covered it."""
        receipts: list[dict[str, Any]] = json.loads(self.receipts_json())
        return receipts

    def __repr__(self) -> str:
        return f"<syncline.Filesystem{' (closed)' if self.closed else ''}>"


def _text(path: Inside) -> str:
    return str(path) if isinstance(path, Path) else os.fspath(path)
