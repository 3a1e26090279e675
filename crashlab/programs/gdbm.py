"""GNU dbm, by Python's module dbm.gnu: changes of two records each, and sync() after each change.

Promise: gdbm_sync "will not return until the disk file state is synchronized with the in-memory
state of the database" (https://www.gnu.org.ua/software/gdbm/manual/Sync.html). Without its mode for
crash tolerance, which Python cannot switch on, GNU dbm promises nothing for the time between two
calls of gdbm_sync, so the checker looks only at states between two changes.
Install: apt install python3-gdbm
"""

import dbm.gnu

import records


def setup():
    dbm.gnu.open("test.gdbm", "n").close()


def work():
    store = dbm.gnu.open("test.gdbm", "w")

    def write(number, changes):
        for key, value in changes.items():
            store[key] = value
        store.sync()

    records.make_changes(write)


def read():
    store = dbm.gnu.open("test.gdbm", "r")
    return {key: store[key] for key in store.keys()}


def check():
    records.check_after_sync(read)


def version():
    from _gdbm import _GDBM_VERSION
    return ".".join(map(str, _GDBM_VERSION))


records.main(setup, work, check, version)
