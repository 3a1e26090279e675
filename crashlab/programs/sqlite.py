"""SQLite: inserts, each in a transaction of its own.

Variants, by journal_mode and synchronous: delete-full (default), delete-extra, wal-full, and any
other pair, as truncate-full. With 3.8.2 before it, as in 3.8.2-delete-full, with a version of 2014.

Promise: transactions are atomic, and durable with synchronous=EXTRA, and with FULL in WAL mode.
With FULL and a rollback journal SQLite itself says that EXTRA "provides additional durability if
the commit is followed closely by a power loss" (https://sqlite.org/pragma.html#pragma_synchronous),
so the check of delete-full shows what that is about.
Install: nothing, the module is part of Python; for 3.8.2: get/sqlite.sh
"""

import ctypes
import os
import sqlite3
import sys

import records

*old, journal_mode, synchronous = (records.variant() or "delete-full").split("-")


class Old:
    """A database by the C interface of the library that get/sqlite.sh has built."""

    def __init__(self):
        self.library = self.load()
        self.library.sqlite3_errmsg.restype = ctypes.c_char_p
        self.database = ctypes.c_void_p()
        self.demand(self.library.sqlite3_open(b"test.db", ctypes.byref(self.database)))

    @staticmethod
    def load():
        folder = os.path.dirname(os.path.abspath(__file__))
        return ctypes.CDLL(f"{folder}/get/built/sqlite-{old[0]}/libsqlite3.so")

    def execute(self, statement):
        rows = []

        @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int,
                          ctypes.POINTER(ctypes.c_char_p), ctypes.c_void_p)
        def add(_, count, values, names):
            rows.append(tuple(values[column].decode() for column in range(count)))
            return 0

        self.demand(self.library.sqlite3_exec(self.database, statement.encode(), add, None, None))
        return rows

    def demand(self, code):
        if code != 0:
            sys.exit(self.library.sqlite3_errmsg(self.database).decode())

    def close(self):
        self.library.sqlite3_close(self.database)


def connect():
    return Old() if old else sqlite3.connect("test.db", isolation_level=None)


def connect_in_mode():
    database = connect()
    database.execute(f"PRAGMA journal_mode={journal_mode}")
    database.execute(f"PRAGMA synchronous={synchronous}")
    return database


def setup():
    database = connect_in_mode()
    database.execute("CREATE TABLE records (key BLOB PRIMARY KEY, value BLOB)")
    database.close()


def work():
    database = connect_in_mode()

    def write(number, changes):
        database.execute("BEGIN IMMEDIATE")
        for key, value in changes.items():
            row = f"X'{key.hex()}', X'{value.hex()}'"
            database.execute(f"INSERT OR REPLACE INTO records VALUES ({row})")
        database.execute("COMMIT")

    records.make_changes(write)


def check():
    database = connect()
    problems = list(database.execute("PRAGMA integrity_check"))
    if problems != [("ok",)]:
        sys.exit(f"integrity_check: {problems}")
    rows = database.execute("SELECT hex(key), hex(value) FROM records")
    records.check_transactions({bytes.fromhex(key): bytes.fromhex(value) for key, value in rows})


def version():
    if old:
        library = Old.load()
        library.sqlite3_libversion.restype = ctypes.c_char_p
        return library.sqlite3_libversion().decode()
    return sqlite3.sqlite_version


records.main(setup, work, check, version)
