"""PostgreSQL: transactions of two records each, and a checkpoint, in its single-user mode.

Variants: today (18.0, the default), and 9.3.5, the version of 2014.

Promise: "once the transaction is successful [...] the changes are permanent", also after a crash
(https://www.postgresql.org/docs/current/wal-reliability.html).
A state has 40 MB, and its check takes half a second: give it --seconds 300.
Install: apt install maven unzip; get/postgresql.sh
"""

import os
import re
import subprocess
import sys

import records

VERSIONS = {"today": "18.0"}
CHECKPOINT_AFTER = 3
PROMPT = b"backend> "

version_name = VERSIONS.get(records.variant() or "today", records.variant())
here = os.path.dirname(os.path.abspath(__file__))
programs = f"{here}/get/built/postgresql-{version_name}/bin"
# The server refuses to run as root, so root gets another number in a user namespace.
as_user = ["unshare", "--user", "--map-user=1000", "--map-group=1000"] if os.getuid() == 0 else []


class Server:
    def __init__(self):
        self.process = subprocess.Popen(
            as_user + [f"{programs}/postgres", "--single", "-D", "data", "template1"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.answer()

    def answer(self):
        """What the server prints until it waits for the next statement."""
        output = b""
        while not output.endswith(PROMPT):
            part = os.read(self.process.stdout.fileno(), 1 << 16)
            if not part:
                sys.exit(f"the server ends: {output.decode(errors='replace')[-600:]}")
            output += part
        if b"ERROR:" in output or b"FATAL:" in output:
            sys.exit(output.decode(errors="replace")[-600:])
        return output

    def execute(self, statement):
        self.process.stdin.write(statement.encode() + b"\n")
        self.process.stdin.flush()
        return self.answer()

    def write(self, number, changes):
        values = ", ".join(f"('{key.decode()}', '{value.decode()}')"
                           for key, value in changes.items() if key != records.COUNT)
        # One statement is one transaction.
        self.execute(f"WITH counted AS (UPDATE counts SET number = {number}) "
                     f"INSERT INTO records VALUES {values}")

    def read(self):
        rows = self.execute("SELECT key || '=' || value FROM records UNION ALL "
                            "SELECT 'count=' || number FROM counts WHERE number > 0")
        return dict(re.findall(rb'= "([^"=]*)=([^"]*)"', rows))

    def stop(self):
        self.process.stdin.close()
        self.process.wait()


def setup():
    subprocess.run(as_user + [f"{programs}/initdb", "-D", "data", "-A", "trust", "-U", "postgres",
                              "--locale=C"], check=True)
    server = Server()
    server.execute("CREATE TABLE records (key text PRIMARY KEY, value text)")
    server.execute("CREATE TABLE counts (number int)")
    server.execute("INSERT INTO counts VALUES (0)")
    server.stop()


def work():
    server = Server()

    def write(number, changes):
        server.write(number, changes)
        if number == CHECKPOINT_AFTER:
            server.execute("CHECKPOINT")

    records.make_changes(write)
    server.stop()


def check():
    server = Server()
    found = server.read()
    server.process.kill()
    records.check_transactions(found)


records.main(setup, work, check, lambda: version_name)
