"""Turso, SQLite rewritten in Rust: transactions of two records each, and a checkpoint after the third.

Promise: it is "compatible with SQLite", whose write-ahead log with synchronous=FULL makes transactions atomic and
durable (https://sqlite.org/pragma.html#pragma_synchronous). Turso calls itself beta.
Install: pip install pyturso
"""

import sys

sys.path.append(sys.path.pop(0))  # This file has the module's name, so look in this folder last.

from importlib.metadata import version as version_of

import records
import turso


def connect():
    return turso.connect("test.db", isolation_level=None)


def setup():
    database = connect()
    database.execute("CREATE TABLE records (key TEXT PRIMARY KEY, value TEXT)")
    database.close()


def work():
    database = connect()
    database.execute("PRAGMA synchronous=FULL").fetchall()

    def write(number, changes):
        database.execute("BEGIN IMMEDIATE")
        for key, value in changes.items():
            database.execute("INSERT OR REPLACE INTO records VALUES (?, ?)", (key.decode(), value.decode()))
        database.execute("COMMIT")
        if number == 3:
            database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    records.make_changes(write)


def check():
    database = connect()
    problems = database.execute("PRAGMA integrity_check").fetchall()
    if problems != [("ok",)]:
        sys.exit(f"integrity_check: {problems}")
    rows = database.execute("SELECT key, value FROM records").fetchall()
    records.check_transactions({key.encode(): value.encode() for key, value in rows})


def version():
    return version_of("pyturso")


records.main(setup, work, check, version)
