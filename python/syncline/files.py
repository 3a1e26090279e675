"""Open files, with the interface of Python's own."""

from __future__ import annotations

import errno
import io
import weakref
from typing import TYPE_CHECKING, Any

from ._syncline import RawFile

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

    from ._syncline import Stat


class File(io.RawIOBase):
    """An unbuffered file: what `Filesystem.open(..., buffering=0)` returns, and what its buffered files have as `raw`.

    Positioned calls may come from several threads at once; the others share one position.
    """

    def __init__(self, native: RawFile, name: str, mode: str, *, keep: bool = False) -> None:
        self._native = native
        self._position = 0
        self._append = "a" in mode
        self._reads = "r" in mode or "+" in mode
        self._writes = "r" not in mode or "+" in mode
        # Whether `native` outlives this: its owner has more to do with it.
        self._keep = keep
        self.name = name
        self.mode = mode
        if self._append:
            self._position = native.size()

    @property
    def native(self) -> RawFile:
        """The file below, which knows no position."""
        return self._native

    def readable(self) -> bool:
        self._require_open()
        return self._reads

    def writable(self) -> bool:
        self._require_open()
        return self._writes

    def seekable(self) -> bool:
        self._require_open()
        return True

    def _require_open(self) -> None:
        if self.closed:
            raise ValueError("I/O operation on closed file")

    def _require(self, allowed: bool, what: str) -> None:
        self._require_open()
        if not allowed:
            raise io.UnsupportedOperation(what)

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        self._require(self._reads, "not readable")
        with memoryview(buffer).cast("B") as view:
            read = self._native.readinto_at(view, self._position)
        self._position += read
        return read

    def readall(self) -> bytes:
        self._require(self._reads, "not readable")
        left = max(self._native.size() - self._position, 0)
        data = self._native.read_at(left, self._position)
        self._position += len(data)
        return data

    def write(self, data: ReadableBuffer, /) -> int:
        self._require(self._writes, "not writable")
        if self._append:
            written = self._native.append(data)
            self._position = self._native.size()
        else:
            written = self._native.write_at(data, self._position)
            self._position += written
        return written

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        self._require_open()
        match whence:
            case io.SEEK_SET:
                target = offset
            case io.SEEK_CUR:
                target = self._position + offset
            case io.SEEK_END:
                target = self._native.size() + offset
            case _:
                raise ValueError(f"whence is {whence}, not 0, 1 or 2")
        if not 0 <= target < 1 << 63:
            raise OSError(errno.EINVAL, f"a position before the start or past all sizes: {target}")
        self._position = target
        return target

    def tell(self) -> int:
        self._require_open()
        return self._position

    def truncate(self, size: int | None = None, /) -> int:
        self._require(self._writes, "not writable")
        size = self._position if size is None else size
        self._native.truncate(size)
        return size

    def close(self) -> None:
        if not self.closed:
            super().close()
            if not self._keep:
                self._native.close()

    # What files have here and not elsewhere.

    def sync(self) -> None:
        """Returns when the file, and every change of names and attributes made before, would survive a crash."""
        self._require_open()
        self._native.sync()

    def sync_data(self) -> None:
        """Returns when the file's contents would survive a crash."""
        self._require_open()
        self._native.sync_data()

    def read_at(self, count: int, offset: int) -> bytes:
        """Reads without moving the position; fewer bytes only at the end."""
        self._require(self._reads, "not readable")
        return self._native.read_at(count, offset)

    def write_at(self, data: ReadableBuffer, offset: int) -> int:
        """Writes all of `data` without moving the position."""
        self._require(self._writes, "not writable")
        return self._native.write_at(data, offset)

    def stat(self) -> Stat:
        """What is known about it."""
        self._require_open()
        return self._native.stat()

    def __repr__(self) -> str:
        return f"<syncline.File name={self.name!r} mode={self.mode!r}>"


def parse_mode(mode: str) -> tuple[str, bool]:
    """A mode of open(), without "b" and "t", and whether it is binary."""
    kind = "".join(sorted(mode.translate(str.maketrans("", "", "bt")), key="rwxa+".find))
    if kind not in {"r", "w", "x", "a", "r+", "w+", "x+", "a+"} or ("b" in mode and "t" in mode):
        raise ValueError(f"invalid mode: {mode!r}")
    return kind, "b" in mode


def buffered(raw: File, kind: str, buffering: int) -> Any:
    """A raw file behind the buffer that its mode asks for."""
    size = io.DEFAULT_BUFFER_SIZE if buffering < 2 else buffering
    if "+" in kind:
        return io.BufferedRandom(raw, size)
    return io.BufferedReader(raw, size) if kind == "r" else io.BufferedWriter(raw, size)


class OpenFiles:
    """What was opened and somebody still has: closed together, the layers of a file from the outermost one."""

    def __init__(self) -> None:
        # The files keep themselves alive for as long as anybody has them, and write what they have when nobody does.
        self._texts: weakref.WeakSet[io.TextIOWrapper] = weakref.WeakSet()
        self._buffers: weakref.WeakSet[io.BufferedIOBase] = weakref.WeakSet()
        self._raws: weakref.WeakSet[File] = weakref.WeakSet()

    def add(self, file: io.TextIOWrapper | io.BufferedIOBase | File) -> None:
        if isinstance(file, File):
            self._raws.add(file)
        elif isinstance(file, io.TextIOWrapper):
            self._texts.add(file)
        else:
            self._buffers.add(file)

    def clear(self) -> None:
        """Forgets them all."""
        for layer in (self._texts, self._buffers, self._raws):
            layer.clear()

    def close(self) -> None:
        """Closes them all, also when some fail, and raises the first error."""
        failed: list[Exception] = []
        for layer in (self._texts, self._buffers, self._raws):
            for file in list(layer):
                try:
                    _close(file)
                except Exception as error:
                    failed.append(error)
            layer.clear()
        if failed:
            raise failed[0]


def _close(file: io.IOBase) -> None:
    try:
        closed = file.closed
    except ValueError:
        # A layer that was detached: what is below it has an entry of its own.
        return
    if not closed:
        file.close()


def below(file: Any) -> RawFile:
    """The native file below all layers, with everything written through them."""
    if isinstance(file, RawFile):
        return file
    if not file.closed and file.writable():
        file.flush()
    layer = file
    while not isinstance(layer, File):
        layer = getattr(layer, "buffer", None) or getattr(layer, "raw", None)
        if layer is None:
            raise TypeError(f"no file of a syncline.Filesystem: {file!r}")
    return layer.native
