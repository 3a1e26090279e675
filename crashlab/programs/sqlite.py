"""SQLite: inserts, each in a transaction of its own.

Variants, by journal_mode and synchronous: delete-full (default), delete-extra, wal-full, and any
other pair, as truncate-full.

Promise: transactions are atomic, and durable with synchronous=EXTRA, and with FULL in WAL mode.
With FULL and a rollback journal SQLite itself says that EXTRA "provides additional durability if
the commit is followed closely by a power loss" (https://sqlite.org/pragma.html#pragma_synchronous),
so the check of delete-full shows what that is about.
Install: nothing, the module is part of Python
"""

import sqlite3
import sys

import records

journal_mode, synchronous = (records.variant() or "delete-full").split("-")


def connect():
    database = sqlite3.connect("test.db", isolation_level=None)
    database.execute(f"PRAGMA journal_mode={journal_mode}")
    database.execute(f"PRAGMA synchronous={synchronous}")
    return database


def setup():
    database = connect()
    database.execute("CREATE TABLE records (key BLOB PRIMARY KEY, value BLOB)")
    database.close()


def work():
    database = connect()

    def write(number, changes):
        database.execute("BEGIN IMMEDIATE")
        database.executemany("INSERT OR REPLACE INTO records VALUES (?, ?)", changes.items())
        database.execute("COMMIT")

    records.make_changes(write)


def check():
    database = sqlite3.connect("test.db")
    problems = database.execute("PRAGMA integrity_check").fetchall()
    if problems != [("ok",)]:
        sys.exit(f"integrity_check: {problems}")
    records.check_transactions(dict(database.execute("SELECT key, value FROM records")))


def version():
    return sqlite3.sqlite_version


records.main(setup, work, check, version)
