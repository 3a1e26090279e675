"""Transactions: changes of any files that come together, or not at all."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Any, Self

from . import files

if TYPE_CHECKING:
    from types import TracebackType

    from .filesystem import Filesystem
    from .path import Inside

#: Most bytes of data, counted in the blocks of 4 KiB that each write touches.
BYTES_MAX = 64 << 20
#: Most changes; `write` is up to three.
CHANGES_MAX = 16384


class Transaction:
    """Changes that are collected until `commit` makes all of them, durably with one flush, or none.

    A context manager: it commits at its end, and forgets everything if an exception leaves it. Nothing is looked at before the
    commit, where each change sees what those before it did. After a crash all of it is there or nothing. Other threads see all of
    it or nothing: each other call comes wholly before the commit or wholly after it. A change that can't be made raises OSError
    with its path, and nothing has changed. EFBIG for more than 64 MiB of data or 16,384 changes.
    """

    def __init__(self, filesystem: Filesystem) -> None:
        self._filesystem = filesystem
        self._changes: list[tuple[str, Any, Any]] | None = []
        self._bytes = 0

    def _add(self, what: str, path: Inside, more: Any = None) -> None:
        if self._changes is None:
            raise ValueError("the transaction is over")
        if len(self._changes) >= CHANGES_MAX:
            raise OSError(errno.EFBIG, "a transaction has at most 16,384 changes: commit it in parts")
        self._changes.append((what, path, more))

    def _add_data(self, what: str, path: Inside, data: Any, offset: int) -> None:
        contents = data.encode() if isinstance(data, str) else bytes(data)
        if self._bytes + len(contents) > BYTES_MAX:
            raise OSError(errno.EFBIG, "a transaction writes at most 64 MiB: commit it in parts")
        self._add(what, path, (contents, offset))
        self._bytes += len(contents)

    def write(self, path: Inside, contents: bytes | bytearray | memoryview | str) -> None:
        """Gives a file these contents and no others. It is made if there is none. Text is UTF-8."""
        self._add_data("write", path, contents, 0)

    def write_at(self, path: Inside, data: bytes | bytearray | memoryview, offset: int) -> None:
        """Writes into a file that exists."""
        self._add_data("write_at", path, data, offset)

    def create(self, path: Inside, mode: int = 0o644) -> None:
        """Makes an empty file that must not exist."""
        self._add("create", path, mode)

    def link(self, file: Any, path: Inside, *, replace: bool = True) -> None:
        """Gives a file without a name its name. Its data does not count towards the limit; it must stay open until the commit."""
        self._add("link" if replace else "link_new", path, files.below(file))

    def mkdir(self, path: Inside, mode: int = 0o755) -> None:
        """Makes a directory."""
        self._add("mkdir", path, mode)

    def symlink(self, target: str | os.PathLike[str], path: Inside) -> None:
        """Makes a symbolic link."""
        self._add("symlink", path, os.fspath(target))

    def rename(self, source: Inside, target: Inside) -> None:
        """Renames, replacing what is at `target`."""
        self._add("rename", source, target)

    def remove(self, path: Inside) -> None:
        """Removes a name of anything but a directory."""
        self._add("remove", path)

    def rmdir(self, path: Inside) -> None:
        """Removes an empty directory."""
        self._add("rmdir", path)

    def truncate(self, path: Inside, size: int) -> None:
        """Sets the size of a file."""
        self._add("truncate", path, size)

    def chmod(self, path: Inside, mode: int) -> None:
        """Changes permissions."""
        self._add("chmod", path, mode)

    def setxattr(self, path: Inside, name: str, value: bytes) -> None:
        """Sets an extended attribute."""
        self._add("setxattr", path, (name, bytes(value)))

    def removexattr(self, path: Inside, name: str) -> None:
        """Removes an extended attribute; ENODATA if it is not set."""
        self._add("removexattr", path, name)

    def commit(self) -> None:
        """Makes all changes, durably, or none. The transaction is over, whatever becomes of it."""
        changes = self._changes
        if changes is None:
            raise ValueError("the transaction is over")
        self._changes = None
        self._filesystem.commit_raw(changes)

    def discard(self) -> None:
        """Forgets all changes."""
        self._changes = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.discard()
        elif self._changes is not None:
            self.commit()
