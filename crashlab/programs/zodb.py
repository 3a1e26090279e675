"""ZODB, with FileStorage: transactions of two records each, and a pack after the third.
Then another file is synced, as any program may do.

Promise: "ZODB is an ACID Transactional database" (https://pypi.org/project/ZODB). FileStorage syncs its file at the
end of each transaction.
Install: pip install ZODB
"""

import os
import sys

sys.path.append(sys.path.pop(0))  # This file has almost the module's name, so look in this folder last.

from importlib.metadata import version as version_of

import records
import transaction
import ZODB
import ZODB.FileStorage


def connect():
    return ZODB.DB(ZODB.FileStorage.FileStorage("Data.fs"))


def setup():
    database = connect()
    with database.transaction() as connection:
        connection.root().update()
    database.close()


def work():
    database = connect()
    root = database.open().root()

    def write(number, changes):
        root.update(changes)
        transaction.commit()
        if number == 3:
            database.pack()
            with open("other", "w") as file:
                os.fsync(file.fileno())

    records.make_changes(write)


def check():
    records.check_transactions(dict(connect().open().root()))


def version():
    return version_of("ZODB")


records.main(setup, work, check, version)
