"""Redis: transactions of two records each, and a rewrite of the append-only file after the third.

Promise: of appendfsync always the comment in redis.conf says: "fsync after every write to the append only
log. Slow, Safest"; and a transaction is there as a whole
(https://redis.io/docs/latest/operate/oss_and_stack/management/persistence/). If the
end of the file is damaged the server may refuse to start; the same page tells to run `redis-check-aof
--fix`, and so the checker does. The variant start demands that the server starts without it.
Install: apt install redis-server
"""

import subprocess
import time

import records
import server


def command(directory):
    return ["redis-server", "--port", "0", "--unixsocket", directory + "/socket", "--save", "",
            "--appendonly", "yes", "--appendfsync", "always", "--dir", "."]


def client(directory, text):
    words = ["redis-cli", "-s", directory + "/socket"]
    return subprocess.run(words, input=text, capture_output=True, text=True).stdout.splitlines()


def running():
    return server.running(command, lambda directory: client(directory, "PING") == ["PONG"])


def setup():
    with running() as directory:
        client(directory, "SHUTDOWN")


def work():
    with running() as directory:

        def write(number, changes):
            sets = "".join(f"SET {key.decode()} {value.decode()}\n" for key, value in changes.items())
            answers = client(directory, f"MULTI\n{sets}EXEC")
            if answers[-2:] != ["OK", "OK"]:
                raise RuntimeError(answers)
            if number == 3:
                client(directory, "BGREWRITEAOF")
                while "aof_rewrite_in_progress:0" not in client(directory, "INFO persistence"):
                    time.sleep(0.05)

        records.make_changes(write)


def check():
    if records.variant() != "start":
        manifest = "appendonlydir/appendonly.aof.manifest"
        subprocess.run(["redis-check-aof", "--fix", manifest], input="y\n", capture_output=True, text=True)
    with running() as directory:
        keys = client(directory, "KEYS *")
        values = client(directory, "MGET " + " ".join(keys)) if keys and keys != [""] else []
    pairs = zip(keys, values)
    records.check_transactions({key.encode(): value.encode() for key, value in pairs})


def version():
    words = subprocess.check_output(["redis-server", "--version"], text=True).split()
    return words[2].removeprefix("v=")


records.main(setup, work, check, version)
