"""TDB, the database of Samba, by its library: transactions of two records each.

Promise: transactions, with a recovery after a crash, and syncs that only TDB_NOSYNC leaves out
(lib/tdb/include/tdb.h and the comment of lib/tdb/common/transaction.c of Samba). So they are atomic and durable.
Install: apt install libtdb1
"""

import ctypes
import os
import sys

import records


class Data(ctypes.Structure):
    """TDB_DATA."""

    _fields_ = [("pointer", ctypes.c_char_p), ("size", ctypes.c_size_t)]


library = ctypes.CDLL("libtdb.so.1")
library.tdb_open.restype = ctypes.c_void_p
library.tdb_fetch.restype = Data
library.tdb_errorstr.restype = ctypes.c_char_p
REPLACE = 1


def call(name, store, *arguments):
    if getattr(library, name)(ctypes.c_void_p(store), *arguments) != 0:
        sys.exit(f"{name}: {library.tdb_errorstr(ctypes.c_void_p(store)).decode()}")


def open_store():
    store = library.tdb_open(b"test.tdb", 0, 0, os.O_RDWR | os.O_CREAT, 0o600)
    return store or sys.exit("the database cannot be opened")


def put(store, key, value):
    call("tdb_store", store, Data(key, len(key)), Data(value, len(value)), REPLACE)


def get(store, key):
    value = library.tdb_fetch(ctypes.c_void_p(store), Data(key, len(key)))
    return value.pointer[:value.size] if value.pointer else None


def setup():
    put(open_store(), b"first", b"first")


def work():
    store = open_store()

    def write(number, changes):
        call("tdb_transaction_start", store)
        for key, value in changes.items():
            put(store, key, value)
        call("tdb_transaction_commit", store)

    records.make_changes(write)


def check():
    store = open_store()
    call("tdb_check", store, None, None)
    if get(store, b"first") != b"first":
        sys.exit("the record from before is lost")
    keys = [records.COUNT, *(records.key(number) for number in range(1, records.CHANGES + 1))]
    found = {key: get(store, key) for key in keys}
    records.check_transactions({key: value for key, value in found.items() if value is not None})


def version():
    files = [line.split()[-1] for line in open("/proc/self/maps") if "libtdb.so" in line]
    return os.path.basename(os.path.realpath(files[0])).removeprefix("libtdb.so.")


records.main(setup, work, check, version)
