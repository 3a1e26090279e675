"""A crash-safe, checksummed filesystem in one file, inside your program.

>>> import syncline
>>> with syncline.Filesystem.in_memory() as fs:
...     with fs.open("/journal", "w") as journal:
...         _ = journal.write("entry")
...         fs.sync_many([journal])  # one flush, and it survives any crash
...     fs.read_bytes("/journal")
b'entry'
"""

from ._syncline import Fork, Snapshot, Stat, __version__, add_key, forget_keys
from .files import File
from .filesystem import Filesystem
from .path import Path
from .transaction import Transaction

__all__ = ["File", "Filesystem", "Fork", "Path", "Snapshot", "Stat", "Transaction", "__version__", "add_key", "forget_keys"]
