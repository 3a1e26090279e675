"""Berkeley DB: transactions with two records each, and a checkpoint after every third.

Promise: after recovery (DB_RECOVER) the database has all committed transactions and no part of
others (Berkeley DB Programmer's Reference Guide, "Berkeley DB recoverability"). The guide requires
that a page is written as a whole, so the pages here are as small as a sector.
Install: apt install libdb-dev && pip install berkeleydb
"""

import os

import records
from berkeleydb import db as berkeley

TRANSACTIONAL = (
    berkeley.DB_CREATE
    | berkeley.DB_INIT_TXN
    | berkeley.DB_INIT_LOG
    | berkeley.DB_INIT_MPOOL
    | berkeley.DB_INIT_LOCK
    | berkeley.DB_PRIVATE
)


def open_store(flags=0):
    environment = berkeley.DBEnv()
    environment.set_cachesize(0, 1 << 18)
    environment.open("env", TRANSACTIONAL | flags)
    store = berkeley.DB(environment)
    store.set_pagesize(512)
    store.open("test.db", None, berkeley.DB_BTREE, berkeley.DB_CREATE | berkeley.DB_AUTO_COMMIT)
    return environment, store


def setup():
    os.mkdir("env")
    environment, store = open_store()
    store.close()
    environment.txn_checkpoint(0, 0, berkeley.DB_FORCE)
    environment.close()


def work():
    environment, store = open_store()

    def write(number, changes):
        transaction = environment.txn_begin()
        for key, value in changes.items():
            store.put(key, value, transaction)
        transaction.commit()
        if number % 3 == 0:
            environment.txn_checkpoint(0, 0, berkeley.DB_FORCE)

    records.make_changes(write)


def check():
    environment, store = open_store(berkeley.DB_RECOVER)
    records.check_transactions(dict(store.items()))


def version():
    return ".".join(map(str, berkeley.version()))


records.main(setup, work, check, version)
