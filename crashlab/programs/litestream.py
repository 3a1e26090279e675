"""Litestream: transactions of a SQLite database, each replicated into a folder beside it.

Variants: full (default) and normal, by the PRAGMA synchronous of the program that writes: Litestream's documents
suggest normal (https://litestream.io/tips/#synchronous-pragma). And compact: full, and the replica merges its
files and removes the old ones all the time.

Promise: `litestream sync -wait` is to "block until sync completes including remote replication" (its --help), and
the replica is for "disaster recovery" (README). So `litestream restore` makes a whole database with each change
that such a sync has followed. Then Litestream goes on with what the power cut has left of the database: after
another change and another sync, the restored database equals the database.
A check takes a second: give it --seconds 300.
Install: go install github.com/benbjohnson/litestream/cmd/litestream@v0.5.18
"""

import contextlib
import os
import sqlite3
import subprocess
import sys

import records
import server

DATABASE = "test.db"
VARIANT = records.variant() or "full"
records.CHANGES = 3      # each makes a hundred writes


def connect():
    database = sqlite3.connect(DATABASE, isolation_level=None, timeout=30)
    database.execute("PRAGMA journal_mode=wal")
    database.execute("PRAGMA wal_autocheckpoint=0")     # Litestream makes the checkpoints
    database.execute(f"PRAGMA synchronous={'normal' if VARIANT == 'normal' else 'full'}")
    return database


def put(database, changes):
    database.execute("BEGIN IMMEDIATE")
    database.executemany("INSERT OR REPLACE INTO records VALUES (?, ?)", changes.items())
    database.execute("COMMIT")


def command(directory):
    with open(directory + "/conf", "w") as file:
        file.write(f"""
socket: {{enabled: true, path: {directory}/socket}}
levels: [{{interval: {"100ms" if VARIANT == "compact" else "1h"}}}]
l0-retention: 1ms
l0-retention-check-interval: 50ms
dbs:
  - path: {os.getcwd()}/{DATABASE}
    min-checkpoint-page-count: 8
    replica: {{path: {os.getcwd()}/replica}}
""")
    return ["litestream", "replicate", "-config", directory + "/conf"]


@contextlib.contextmanager
def replicating():
    """Runs Litestream, and gives a function that waits until all changes are in the replica."""
    with server.running(command, lambda directory: os.path.exists(directory + "/socket")) as directory:

        def sync():
            path = f"{os.getcwd()}/{DATABASE}"
            run("sync", "-wait", "-socket", directory + "/socket", path)

        yield sync


def run(*arguments):
    result = subprocess.run(["litestream", *arguments], capture_output=True, text=True)
    if result.returncode != 0:
        sys.exit(f"litestream {arguments[0]} fails: {(result.stdout + result.stderr)[-1000:]}")


def rows_of(file):
    """The records of a database, which must be whole."""
    with contextlib.closing(sqlite3.connect(file)) as database:
        problems = list(database.execute("PRAGMA integrity_check"))
        if problems != [("ok",)]:
            sys.exit(f"integrity_check of {file}: {problems}")
        return dict(database.execute("SELECT key, value FROM records"))


def restore(name):
    """The records of the database that is restored, or none if there is no replica yet."""
    run("restore", "-if-replica-exists", "-o", name, f"file://{os.getcwd()}/replica")
    return rows_of(name) if os.path.exists(name) else {}


def setup():
    connect().execute("CREATE TABLE records (key BLOB PRIMARY KEY, value BLOB)")


def work():
    database = connect()
    with replicating() as sync:

        def write(_, changes):
            put(database, changes)
            sync()

        records.make_changes(write)


def check():
    records.check_transactions(restore("before.db"))
    database = connect()
    put(database, {b"after": b"the power cut"})
    with replicating() as sync:
        sync()
    records.check_equal(restore("after.db"), rows_of(DATABASE))


def version():
    return subprocess.check_output(["litestream", "version"], text=True).strip()


records.main(setup, work, check, version)
