"""LevelDB: batches of two records, written with sync=True.

Variants: none, by plyvel; 1.10 and 1.15, the versions of 2014, and today, again by plyvel, which
write 15 KB a batch into a store with a small write buffer, so that it begins a new log and a table.

Promise: a batch is atomic, and with sync the write "will be flushed from the operating system
buffer cache [...] before the write is considered complete" (include/leveldb/options.h).
Install: pip install plyvel; for 1.10 and 1.15: get/leveldb.sh
"""

import ctypes
import os
import sys

import records

VARIANT = records.variant()
BUFFER = 1 << 16
if VARIANT:
    records.SIZE = 15000


class Plyvel:
    """The store of today."""

    def __init__(self):
        import plyvel
        options = {"write_buffer_size": BUFFER} if VARIANT else {}
        self.store = plyvel.DB("db", create_if_missing=True, **options)

    def write(self, number, changes):
        with self.store.write_batch(sync=True) as batch:
            for key, value in changes.items():
                batch.put(key, value)

    def read(self):
        return dict(self.store)

    def close(self):
        self.store.close()

    @staticmethod
    def version():
        import plyvel
        return plyvel.__leveldb_version__


class Old:
    """A store by the C interface of the library that get/leveldb.sh has built."""

    def __init__(self):
        self.library = library = self.load()
        options = self.new("options_create")
        library.leveldb_options_set_create_if_missing(options, ctypes.c_ubyte(1))
        library.leveldb_options_set_write_buffer_size(options, ctypes.c_size_t(BUFFER))
        self.error = ctypes.c_char_p()
        self.store = self.new("open", options, b"db", ctypes.byref(self.error))
        self.check_error()

    @staticmethod
    def load():
        folder = os.path.dirname(os.path.abspath(__file__))
        return ctypes.CDLL(f"{folder}/get/built/leveldb-{VARIANT}/libleveldb.so")

    def new(self, name, *arguments):
        function = getattr(self.library, "leveldb_" + name)
        function.restype = ctypes.c_void_p
        return ctypes.c_void_p(function(*arguments))

    def check_error(self):
        if self.error.value is not None:
            sys.exit(self.error.value.decode(errors="replace"))

    def write(self, number, changes):
        batch = self.new("writebatch_create")
        for key, value in changes.items():
            self.library.leveldb_writebatch_put(batch, key, ctypes.c_size_t(len(key)), value,
                                                ctypes.c_size_t(len(value)))
        options = self.new("writeoptions_create")
        self.library.leveldb_writeoptions_set_sync(options, ctypes.c_ubyte(1))
        self.library.leveldb_write(self.store, options, batch, ctypes.byref(self.error))
        self.check_error()

    def read(self):
        iterator = self.new("create_iterator", self.store, self.new("readoptions_create"))
        self.library.leveldb_iter_seek_to_first(iterator)
        found = {}
        while self.library.leveldb_iter_valid(iterator) & 0xff:
            found[self.field("iter_key", iterator)] = self.field("iter_value", iterator)
            self.library.leveldb_iter_next(iterator)
        self.library.leveldb_iter_get_error(iterator, ctypes.byref(self.error))
        self.check_error()
        return found

    def close(self):
        self.library.leveldb_close(self.store)

    def field(self, name, iterator):
        length = ctypes.c_size_t()
        return ctypes.string_at(self.new(name, iterator, ctypes.byref(length)), length.value)

    @classmethod
    def version(cls):
        library = cls.load()
        return f"{library.leveldb_major_version()}.{library.leveldb_minor_version()}"


Store = Plyvel if VARIANT in (None, "today") else Old


def setup():
    Store()


def work():
    store = Store()
    records.make_changes(store.write)
    if VARIANT:
        store.close()  # It waits until the table is written.


def check():
    records.check_transactions(Store().read())


records.main(setup, work, check, Store.version)
