"""RocksDB, by rocksdict: batches of two records, written with sync, and a flush after every second.

Promise: a batch is atomic, and with sync the write "will be flushed from the operating system
buffer cache [...] before the write is considered complete" (include/rocksdb/options.h).
Install: pip install rocksdict
"""

from importlib.metadata import version as version_of

import records
from rocksdict import Options, Rdict, WriteBatch, WriteOptions


def open_store():
    return Rdict("db", Options(raw_mode=True))


def setup():
    open_store().close()


def work():
    store = open_store()
    options = WriteOptions()
    options.sync = True

    def write(number, changes):
        batch = WriteBatch(raw_mode=True)
        for key, value in changes.items():
            batch.put(key, value)
        store.write(batch, options)
        if number % 2 == 0:
            store.flush()

    records.make_changes(write)


def check():
    records.check_transactions(dict(open_store().items()))


def version():
    return f"of rocksdict {version_of('rocksdict')}"


records.main(setup, work, check, version)
