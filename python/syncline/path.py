"""Paths of an open image, with the methods of `pathlib`."""

from __future__ import annotations

import errno
import os
import stat
import time
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Self, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ._syncline import Stat
    from .filesystem import Filesystem

#: The types that calls accept as a path inside an image.
Inside: TypeAlias = "str | os.PathLike[str] | Path"


#: The errors of a path that leads to nothing.
_NOTHING = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


class Path:
    """A path of one open image. `fs / "mail" / "inbox"` and `fs.path("mail/inbox")` make one.

    Methods have the names and the meaning of `pathlib.Path`. Paths start at the root of the image.

    It is no path of the host: `os`, `shutil` and the builtin `open` refuse it with TypeError. Calls of its own filesystem take it.

    >>> import syncline
    >>> with syncline.Filesystem.in_memory() as fs:
    ...     inbox = fs / "mail" / "inbox"
    ...     inbox.parent.mkdir()
    ...     inbox.write_text("hello")
    ...     (inbox.read_text(), [path.name for path in inbox.parent.iterdir()])
    5
    ('hello', ['inbox'])
    """

    __slots__ = ("_filesystem", "_pure")

    def __init__(self, filesystem: Filesystem, *parts: Inside) -> None:
        self._filesystem = filesystem
        self._pure = PurePosixPath("/", *map(self._plain, parts))

    def _plain(self, part: Inside) -> str | os.PathLike[str]:
        """What `PurePosixPath` takes, of a path that is not one of another image."""
        if not isinstance(part, Path):
            return part
        if part._filesystem is not self._filesystem:
            raise ValueError(f"{part}: a path of another image")
        return part._pure

    def _with(self, pure: PurePosixPath) -> Self:
        return type(self)(self._filesystem, pure)

    def __truediv__(self, part: Inside) -> Self:
        return self._with(self._pure / self._plain(part))

    def joinpath(self, *parts: Inside) -> Self:
        """This path with more parts."""
        return self._with(self._pure.joinpath(*map(self._plain, parts)))

    def __str__(self) -> str:
        return str(self._pure)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self._pure)!r})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Path):
            return NotImplemented
        return self._filesystem is other._filesystem and self._pure == other._pure

    def __hash__(self) -> int:
        return hash((id(self._filesystem), self._pure))

    def __lt__(self, other: Path) -> bool:
        return self._pure < other._pure

    @property
    def filesystem(self) -> Filesystem:
        """The filesystem that it is a path of."""
        return self._filesystem

    @property
    def name(self) -> str:
        """The last part."""
        return self._pure.name

    @property
    def stem(self) -> str:
        """The last part without its suffix."""
        return self._pure.stem

    @property
    def suffix(self) -> str:
        """The end of the last part, from its last dot."""
        return self._pure.suffix

    @property
    def suffixes(self) -> list[str]:
        """All suffixes of the last part."""
        return self._pure.suffixes

    @property
    def parts(self) -> tuple[str, ...]:
        """All parts, the root first."""
        return self._pure.parts

    @property
    def parent(self) -> Self:
        """The directory that it lies in; the root is its own."""
        return self._with(self._pure.parent)

    @property
    def parents(self) -> Sequence[Self]:
        """The directories that it lies in, the nearest first, the root last."""
        return tuple(map(self._with, self._pure.parents))

    def as_posix(self) -> str:
        """The path as text."""
        return str(self._pure)

    def is_relative_to(self, other: Inside) -> bool:
        """True if it is `other`, or lies below."""
        return self._pure.is_relative_to(self._plain(other))

    def relative_to(self, other: Inside) -> PurePosixPath:
        """The rest of the path below `other`; ValueError if it does not lie there."""
        return self._pure.relative_to(self._plain(other))

    def match(self, pattern: str) -> bool:
        """True if it fits a pattern; a relative one fits from the right."""
        return self._pure.match(pattern)

    def with_stem(self, stem: str) -> Self:
        """The path with another last part before its suffix."""
        return self._with(self._pure.with_stem(stem))

    def with_name(self, name: str) -> Self:
        """The path with another last part."""
        return self._with(self._pure.with_name(name))

    def with_suffix(self, suffix: str) -> Self:
        """The path with another suffix."""
        return self._with(self._pure.with_suffix(suffix))

    def stat(self, *, follow_symlinks: bool = True) -> Stat:
        """What is known about the file."""
        return self._filesystem.stat(str(self)) if follow_symlinks else self._filesystem.lstat(str(self))

    def lstat(self) -> Stat:
        """What is known about the file, or about the link itself."""
        return self.stat(follow_symlinks=False)

    def _mode(self, follow_symlinks: bool = True) -> int:
        try:
            return self.stat(follow_symlinks=follow_symlinks).st_mode
        except OSError as error:
            if error.errno not in _NOTHING:
                raise
            return 0

    def exists(self) -> bool:
        """True if there is something; a symbolic link counts if what it leads to exists."""
        return self._mode() != 0

    def is_dir(self) -> bool:
        """True for a directory, or a link that leads to one."""
        return stat.S_ISDIR(self._mode())

    def is_file(self) -> bool:
        """True for a regular file, or a link that leads to one."""
        return stat.S_ISREG(self._mode())

    def is_symlink(self) -> bool:
        """True for a symbolic link."""
        return stat.S_ISLNK(self._mode(follow_symlinks=False))

    def open(
        self,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
    ) -> Any:
        """Opens the file as `Filesystem.open` does."""
        return self._filesystem.open(str(self), mode, buffering, encoding, errors, newline)

    def read_bytes(self) -> bytes:
        """The whole contents."""
        return self._filesystem.read_bytes(str(self))

    def write_bytes(self, data: bytes) -> int:
        """Replaces the contents, and returns their length."""
        self._filesystem.write_bytes(str(self), data)
        return len(data)

    def read_text(self, encoding: str | None = None, errors: str | None = None) -> str:
        """The whole contents as text."""
        with self.open(encoding=encoding, errors=errors) as file:
            text: str = file.read()
            return text

    def write_text(
        self, data: str, encoding: str | None = None, errors: str | None = None, newline: str | None = None
    ) -> int:
        """Replaces the contents by text, and returns the number of characters."""
        with self.open("w", encoding=encoding, errors=errors, newline=newline) as file:
            written: int = file.write(data)
            return written

    def iterdir(self) -> Iterator[Self]:
        """What a directory has, in no particular order."""
        for name in self._filesystem.listdir(str(self)):
            yield self / name

    def glob(self, pattern: str) -> Iterator[Self]:
        """What lies below and fits a pattern such as "*.eml" or "**/*.eml"; "**" follows no links."""
        parts = PurePosixPath(pattern).parts
        if not parts or parts[0] == "/":
            raise ValueError("a pattern is relative, and not empty")
        yield from dict.fromkeys(self._glob(parts))

    def rglob(self, pattern: str) -> Iterator[Self]:
        """What lies anywhere below and fits a pattern."""
        return self.glob(f"**/{pattern}")

    def _glob(self, parts: tuple[str, ...]) -> Iterator[Self]:
        first, rest = parts[0], parts[1:]
        if first == "**":
            if rest:
                yield from self._glob(rest)
            else:
                yield self
        elif not any(sign in first for sign in "*?["):
            found = self / first
            if rest and found.is_dir():
                yield from found._glob(rest)
            elif not rest and (found.exists() or found.is_symlink()):
                yield found
            return
        try:
            entries = self._filesystem.scandir(str(self))
        except OSError as error:
            if error.errno not in _NOTHING:
                raise
            return
        for name, about in entries:
            is_directory = stat.S_ISDIR(about.st_mode)
            if first == "**":
                if is_directory:
                    yield from (self / name)._glob(parts)
            elif fnmatchcase(name, first):
                found = self / name
                if not rest:
                    yield found
                elif is_directory or found.is_dir():
                    yield from found._glob(rest)

    def mkdir(self, mode: int = 0o755, parents: bool = False, exist_ok: bool = False) -> None:
        """Makes a directory; those above it have the usual permissions."""
        if parents:
            self._filesystem.makedirs(str(self.parent))
        try:
            self._filesystem.mkdir(str(self), mode)
        except FileExistsError:
            if not exist_ok or not self.is_dir():
                raise

    def touch(self, mode: int = 0o644, exist_ok: bool = True) -> None:
        """Sets the times to now, of a file that is made if there is none."""
        now = time.time_ns()
        if exist_ok:
            try:
                return self._filesystem.utime(self, now, now)
            except FileNotFoundError:
                pass
        file = self._filesystem.open_native(self, "a" if exist_ok else "x")
        try:
            file.chmod(mode)
        finally:
            file.close()

    def unlink(self, missing_ok: bool = False) -> None:
        """Removes a file or link."""
        try:
            self._filesystem.remove(str(self))
        except FileNotFoundError:
            if not missing_ok:
                raise

    def rmdir(self) -> None:
        """Removes an empty directory."""
        self._filesystem.rmdir(str(self))

    def rename(self, target: Inside) -> Self:
        """Renames, over what has the name; the new path. After a crash it is the old or the new file."""
        renamed = self._with(PurePosixPath(self._plain(target)))
        self._filesystem.rename(self, renamed)
        return renamed

    replace = rename

    def symlink_to(self, target: Inside) -> None:
        """Makes this path a symbolic link that leads to `target`."""
        self._filesystem.symlink(target, self)

    def hardlink_to(self, target: Inside) -> None:
        """Makes this path another name of the file `target`."""
        self._filesystem.link(target, self)

    def readlink(self) -> str:
        """What a symbolic link says."""
        return self._filesystem.readlink(str(self))

    def resolve(self) -> Self:
        """The path without links."""
        return self._with(PurePosixPath(self._filesystem.realpath(str(self))))

    def chmod(self, mode: int) -> None:
        """Sets the permissions."""
        self._filesystem.chmod(str(self), mode)
