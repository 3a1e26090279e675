"""Python's module dbm.dumb: changes of two records each, and sync() after each change.

Promise: sync() is to "synchronize the on-disk directory and data files"
(https://docs.python.org/3/library/dbm.html). Nothing is promised for the time between two calls, so
the checker looks only at states between two changes.
Install: nothing, the module is part of Python
"""

import dbm.dumb
import platform

import records


def setup():
    dbm.dumb.open("test", "n").close()


def work():
    store = dbm.dumb.open("test", "w")

    def write(number, changes):
        for key, value in changes.items():
            store[key] = value
        store.sync()

    records.make_changes(write)


def read():
    return dict(dbm.dumb.open("test", "r").items())


def check():
    records.check_after_sync(read)


def version():
    return f"of Python {platform.python_version()}"


records.main(setup, work, check, version)
