"""Inserts three rows into an SQLite database with a rollback journal, one transaction each, and says so."""

import os
import sqlite3
import sys

ROWS = 3


def text(number):
    return f"row {number} " * 300


def acked():
    with open(os.environ["CRASHLAB_ACKED"]) as lines:
        return [int(line.split()[1]) for line in lines]


def connect():
    database = sqlite3.connect("database", isolation_level=None)
    database.execute("PRAGMA journal_mode=DELETE").fetchall()
    database.execute("PRAGMA synchronous=FULL")
    return database


def setup():
    database = connect()
    database.execute("CREATE TABLE entry(number INTEGER PRIMARY KEY, text TEXT)")
    database.close()


def work():
    database = connect()
    directory = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
    for number in range(1, ROWS + 1):
        database.execute("INSERT INTO entry VALUES(?, ?)", (number, text(number)))
        # With FULL, SQLite does not sync the removal of the journal: one that comes back undoes the transaction.
        # EXTRA would do it.
        os.fsync(directory)
        print("stored", number, flush=True)
    os.close(directory)
    database.close()


def check():
    stored = max(acked(), default=0)
    try:
        database = connect()
        damage = database.execute("PRAGMA integrity_check").fetchall()
        rows = database.execute("SELECT number, text FROM entry ORDER BY number").fetchall()
        database.close()
    except sqlite3.Error as error:
        return f"the database can't be read: {error}"
    if damage != [("ok",)]:
        return f"the database is damaged: {damage[0][0]}"
    if rows != [(number, text(number)) for number in range(1, len(rows) + 1)]:
        return f"a row is wrong or missing: there are {[number for number, _ in rows]}"
    if len(rows) < stored:
        return f"row {stored} was stored, and the database has {len(rows)} rows"


if __name__ == "__main__":
    fault = {"setup": setup, "work": work, "check": check}[sys.argv[1]]()
    if fault:
        print(fault)
        sys.exit(1)
