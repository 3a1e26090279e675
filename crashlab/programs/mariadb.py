"""MariaDB, with InnoDB: transactions of two records each.

Promise: with innodb_flush_log_at_trx_commit=1, the default, the log is written and synced at each commit, as
ACID transactions need (https://mariadb.com/kb/en/innodb-system-variables/#innodb_flush_log_at_trx_commit). The
doublewrite buffer is on, as by default.
A check takes a second: give it --seconds 600.
Install: apt install mariadb-server
"""

import os
import pwd
import subprocess
import sys

import records
import server

OPTIONS = ["--no-defaults", "--datadir=" + os.path.abspath("data"), "--innodb-log-file-size=4M",
           "--innodb-buffer-pool-size=8M", "--innodb-autoextend-increment=1",
           "--innodb-data-file-path=ibdata1:3M:autoextend",
           "--innodb-temp-data-file-path=ibtmp1:3M:autoextend", "--user=" + pwd.getpwuid(os.getuid()).pw_name]


def command(directory):
    return ["mariadbd", *OPTIONS, "--skip-grant-tables", "--skip-networking", "--aria-log-file-size=8M",
            f"--socket={directory}/socket", f"--pid-file={directory}/pid", "--tmpdir=" + directory]


def run(directory, sql):
    words = ["mariadb", "--no-defaults", f"--socket={directory}/socket", "-BN", "-e", sql]
    return subprocess.run(words, capture_output=True, text=True)


def query(directory, sql):
    result = run(directory, sql)
    if result.returncode:
        sys.exit(f"{sql}: {result.stderr}")
    return result.stdout.splitlines()


def running(stop=subprocess.Popen.kill):
    return server.running(command, lambda directory: run(directory, "SELECT 1").returncode == 0, stop)


def setup():
    os.mkdir("data")
    subprocess.run(["mariadb-install-db", *OPTIONS, "--skip-test-db"], check=True)
    with running(subprocess.Popen.terminate) as directory:
        query(directory, "CREATE DATABASE test")
        query(directory, "CREATE TABLE test.records (name VARCHAR(20) PRIMARY KEY, value TEXT) ENGINE=InnoDB")


def work():
    with running() as directory:

        def write(number, changes):
            query(directory, "BEGIN;" + "".join(
                f"REPLACE INTO test.records VALUES ('{key.decode()}', '{value.decode()}');"
                for key, value in changes.items()) + "COMMIT")
            if number == 3:
                # Writes the pages of the table to their places.
                query(directory, "FLUSH TABLES test.records FOR EXPORT; UNLOCK TABLES")

        records.make_changes(write)


def check():
    with running() as directory:
        damage = query(directory, "CHECK TABLE test.records EXTENDED")
        rows = query(directory, "SELECT name, value FROM test.records")
    if not damage[-1].endswith("OK"):
        sys.exit(f"CHECK TABLE says {damage}")
    records.check_transactions(dict(row.encode().split(b"\t") for row in rows))


def version():
    return subprocess.check_output(["mariadbd", "--version"], text=True).split()[2].split("-")[0]


records.main(setup, work, check, version)
