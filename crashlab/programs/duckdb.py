"""DuckDB: inserts, each in a transaction of its own, and a checkpoint after the third.

Promise: transactions are ACID (https://duckdb.org/docs/stable/sql/statements/transactions).
Install: pip install duckdb
"""

import sys

sys.path.append(sys.path.pop(0))  # This file has the module's name, so look in this folder last.

import duckdb
import records


def connect():
    return duckdb.connect("test.duckdb", config={"threads": "1"})


def setup():
    database = connect()
    database.execute("CREATE TABLE records (key BLOB PRIMARY KEY, value BLOB)")
    database.close()


def work():
    database = connect()

    def write(number, changes):
        database.execute("BEGIN")
        for change in changes.items():
            database.execute("INSERT OR REPLACE INTO records VALUES (?, ?)", change)
        database.execute("COMMIT")
        if number == 3:
            database.execute("CHECKPOINT")

    records.make_changes(write)


def check():
    rows = connect().execute("SELECT key, value FROM records").fetchall()
    records.check_transactions(dict(rows))


def version():
    return duckdb.__version__


records.main(setup, work, check, version)
