"""LevelDB, by plyvel: batches of two records, written with sync=True.

Promise: a batch is atomic, and with sync the write "will be flushed from the operating system
buffer cache [...] before the write is considered complete" (include/leveldb/options.h).
Install: pip install plyvel
"""

import plyvel
import records


def setup():
    plyvel.DB("db", create_if_missing=True).close()


def work():
    database = plyvel.DB("db")

    def write(number, changes):
        with database.write_batch(sync=True) as batch:
            for key, value in changes.items():
                batch.put(key, value)

    records.make_changes(write)


def check():
    records.check_transactions(dict(plyvel.DB("db")))


def version():
    return plyvel.__leveldb_version__


records.main(setup, work, check, version)
