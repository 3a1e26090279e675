"""LMDB: transactions with two records each.

Variants: none, and writemap, which writes to the memory map (MDB_WRITEMAP), by py-lmdb; 0.9.10, the
version of 2014, by its C interface.

Promise: transactions with "full ACID semantics", and no "special recovery procedures after a system
crash" (http://www.lmdb.tech/doc/).
Install: pip install lmdb; for 0.9.10: get/lmdb.sh
"""

import ctypes
import os
import sys

sys.path.append(sys.path.pop(0))  # This file has the module's name, so look in this folder last.

import records

VARIANT = records.variant()
MAP_SIZE = 1 << 18


class PyLmdb:
    """The store of today."""

    def __init__(self):
        import lmdb
        self.store = lmdb.open("db", map_size=MAP_SIZE, writemap=VARIANT == "writemap")

    def write(self, number, changes):
        with self.store.begin(write=True) as transaction:
            for key, value in changes.items():
                transaction.put(key, value)

    def read(self):
        with self.store.begin() as transaction:
            return dict(transaction.cursor())

    @staticmethod
    def version():
        import lmdb
        return ".".join(map(str, lmdb.version()))


class Value(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("data", ctypes.c_void_p)]

    def of(self, content):
        self.size, self.data = len(content), ctypes.cast(content, ctypes.c_void_p)
        return ctypes.byref(self)

    def content(self):
        return ctypes.string_at(self.data, self.size)


class Old:
    """A store by the C interface of the library that get/lmdb.sh has built."""

    NEXT, NOT_FOUND = 8, -30798  # MDB_NEXT, MDB_NOTFOUND

    def __init__(self):
        self.library = self.load()
        os.makedirs("db", exist_ok=True)
        self.environment = ctypes.c_void_p()
        self.call("env_create", ctypes.byref(self.environment))
        self.call("env_set_mapsize", self.environment, ctypes.c_size_t(MAP_SIZE))
        self.call("env_open", self.environment, b"db", 0, 0o644)

    @staticmethod
    def load():
        folder = os.path.dirname(os.path.abspath(__file__))
        return ctypes.CDLL(f"{folder}/get/built/lmdb-{VARIANT}/liblmdb.so")

    def call(self, name, *arguments):
        code = getattr(self.library, "mdb_" + name)(*arguments)
        if code not in (0, self.NOT_FOUND):
            self.library.mdb_strerror.restype = ctypes.c_char_p
            sys.exit(f"mdb_{name}: {self.library.mdb_strerror(code).decode()}")
        return code == 0

    def begin(self):
        transaction, database = ctypes.c_void_p(), ctypes.c_uint()
        self.call("txn_begin", self.environment, None, 0, ctypes.byref(transaction))
        self.call("dbi_open", transaction, None, 0, ctypes.byref(database))
        return transaction, database

    def write(self, number, changes):
        transaction, database = self.begin()
        for key, value in changes.items():
            self.call("put", transaction, database, Value().of(key), Value().of(value), 0)
        self.call("txn_commit", transaction)

    def read(self):
        cursor, key, value, found = ctypes.c_void_p(), Value(), Value(), {}
        self.call("cursor_open", *self.begin(), ctypes.byref(cursor))
        while self.call("cursor_get", cursor, ctypes.byref(key), ctypes.byref(value), self.NEXT):
            found[key.content()] = value.content()
        return found

    @classmethod
    def version(cls):
        library = cls.load()
        library.mdb_version.restype = ctypes.c_char_p
        return library.mdb_version(None, None, None).decode().split()[1].rstrip(":")


Store = PyLmdb if VARIANT in (None, "writemap") else Old


def setup():
    Store()


def work():
    records.make_changes(Store().write)


def check():
    records.check_transactions(Store().read())


records.main(setup, work, check, Store.version)
