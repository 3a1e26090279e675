"""PostgreSQL: transactions of two records each, and a checkpoint after the third.

Promise: with fsync, which is on from the start, the database "can recover to a consistent state after an
operating system or hardware crash" (https://www.postgresql.org/docs/current/runtime-config-wal.html), and with
synchronous_commit a transaction that was committed is durable.
If postmaster.pid is empty the server does not start, and tells to remove it; so the checker removes it. The
variant start demands that the server starts without that; but if the file has a number, by now it may be the
number of another process.
As root it runs in a user namespace, since PostgreSQL refuses root. A check takes half a second: give it
--seconds 300.
Install: apt install postgresql
"""

import glob
import os
import signal
import subprocess
import sys

import records
import server

if os.getuid() == 0 and sys.argv[1:2] != ["version"]:
    os.execvp("unshare", ["unshare", "--user", "--map-user=1000", "--map-group=1000", sys.executable, *sys.argv])

PROGRAMS = sorted(glob.glob("/usr/lib/postgresql/*/bin"))[-1]
DATABASE = "template1"  # The only database that setup leaves, so that the files are few.


def command(directory, fsync="on"):
    settings = ["fsync=" + fsync, "listen_addresses=", "autovacuum=off", "max_connections=5",
                "shared_buffers=1MB", "max_wal_size=2MB", "min_wal_size=2MB",
                "unix_socket_directories=" + directory]
    return [PROGRAMS + "/postgres", "-D", "data", *(f"--{setting}" for setting in settings)]


def run(directory, sql):
    words = [PROGRAMS + "/psql", "-h", directory, "-d", DATABASE, "-U", "postgres", "-AtX", "-c", sql]
    return subprocess.run(words, capture_output=True, text=True)


def query(directory, sql):
    result = run(directory, sql)
    if result.returncode:
        sys.exit(f"{sql}: {result.stderr}")
    return result.stdout.splitlines()


def running(command, signal):
    return server.running(command, lambda directory: run(directory, "SELECT 1").returncode == 0,
                          lambda process: process.send_signal(signal))


def setup():
    options = ["--auth=trust", "--wal-segsize=1", "--locale=C", "--username=postgres", "--no-sync"]
    subprocess.run([PROGRAMS + "/initdb", "-D", "data", *options], check=True)
    with running(command, signal.SIGINT) as directory:
        query(directory, "UPDATE pg_database SET datistemplate = false")
        for database in "postgres", "template0":
            query(directory, f"DROP DATABASE {database}")
        query(directory, "CREATE TABLE records (key text PRIMARY KEY, value text)")

def work():
    with running(command, signal.SIGQUIT) as directory:

        def write(number, changes):
            query(directory, "BEGIN;" + "".join(
                f"INSERT INTO records VALUES ('{key.decode()}', '{value.decode()}')"
                " ON CONFLICT (key) DO UPDATE SET value = excluded.value;" for key, value in changes.items()
            ) + "COMMIT")
            if number == 3:
                query(directory, "CHECKPOINT")

        records.make_changes(write)


def check():
    lock = "data/postmaster.pid"
    if os.path.exists(lock) and (records.variant() != "start" or os.path.getsize(lock)):
        os.remove(lock)
    # What the checker writes need not survive.
    with running(lambda directory: command(directory, "off"), signal.SIGQUIT) as directory:
        rows = query(directory, "SELECT key, value FROM records")
        by_index = query(directory, "SET enable_seqscan = off; SELECT key, value FROM records ORDER BY key")
    if sorted(rows) != sorted(by_index[1:]):
        sys.exit(f"the index has {by_index}, the table {rows}")
    records.check_transactions(dict(row.encode().split(b"|") for row in rows))


def version():
    return subprocess.check_output([PROGRAMS + "/postgres", "--version"], text=True).split()[2]


records.main(setup, work, check, version)
