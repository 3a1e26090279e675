"""UnQLite: transactions of two records each.

Promise: "Transactional (ACID)" (https://pypi.org/project/unqlite).
Install: pip install unqlite
"""

import sys

sys.path.append(sys.path.pop(0))  # This file has the module's name, so look in this folder last.

from importlib.metadata import version as version_of

import records
from unqlite import UnQLite


def setup():
    store = UnQLite("test.unqlite")
    store[b"first"] = b"first"
    store.close()


def work():
    store = UnQLite("test.unqlite")

    def write(number, changes):
        store.begin()
        for key, value in changes.items():
            store[key] = value
        store.commit()

    records.make_changes(write)


def check():
    found = dict(UnQLite("test.unqlite").items())
    if found.pop("first", None) != b"first":
        sys.exit("the record from before is lost")
    records.check_transactions({key.encode(): value for key, value in found.items()})


def version():
    return version_of("unqlite")


records.main(setup, work, check, version)
