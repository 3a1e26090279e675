"""LMDB: transactions with two records each.

Variants: none, and writemap, which writes to the memory map (MDB_WRITEMAP).

Promise: transactions with "full ACID semantics", and no "special recovery procedures after a system
crash" (http://www.lmdb.tech/doc/).
Install: pip install lmdb
"""

import sys

sys.path.append(sys.path.pop(0))  # This file has the module's name, so look in this folder last.

import lmdb
import records


def open_store(**options):
    return lmdb.open("db", map_size=1 << 18, **options)


def setup():
    open_store().close()


def work():
    store = open_store(writemap=records.variant() == "writemap")

    def write(number, changes):
        with store.begin(write=True) as transaction:
            for key, value in changes.items():
                transaction.put(key, value)

    records.make_changes(write)


def check():
    with open_store().begin() as transaction:
        records.check_transactions(dict(transaction.cursor()))


def version():
    return ".".join(map(str, lmdb.version()))


records.main(setup, work, check, version)
