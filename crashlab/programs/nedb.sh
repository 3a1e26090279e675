#!/bin/sh
# NeDB (@seald-io/nedb): a datafile of 40 lines is compacted; then another file is synced, as any program may do.
#
# Promise: the datafile is rewritten "immune to crashes during the write operation (data will not be lost)"
# (crashSafeWriteFileLinesAsync in lib/storage.js). That an insert is durable is not promised, so the checker
# demands only the documents from before.
# Install: npm install --global @seald-io/nedb
set -eu

node_run() {
    NODE_PATH=${NODE_PATH:-$(npm root --global)} node --eval "
        const Datastore = require('@seald-io/nedb');
        const fs = require('fs');
        (async () => {
            const store = new Datastore({ filename: 'test.nedb' });
            $1
        })().catch((error) => { console.log(error); process.exit(1); });"
}

setup() {
    node_run '
        await store.loadDatabaseAsync();
        for (let n = 0; n < 20; n++) await store.insertAsync({ _id: `key${n}`, value: "old" });
        for (let n = 0; n < 20; n++) await store.updateAsync({ _id: `key${n}` }, { value: `value${n}` });'
}

work() {
    # Loading it compacts it.
    node_run '
        await store.loadDatabaseAsync();
        console.log("compacted");
        const other = fs.openSync("other", "w");
        fs.fsyncSync(other);'
}

check() {
    node_run '
        await store.loadDatabaseAsync();
        const found = await store.findAsync({});
        for (let n = 0; n < 20; n++) {
            if (!found.some((one) => one._id === `key${n}` && one.value === `value${n}`)) {
                throw new Error(`document ${n} is lost, of ${found.length}`);
            }
        }'
}

version() {
    NODE_PATH=${NODE_PATH:-$(npm root --global)} node --print 'require("@seald-io/nedb/package.json").version'
}

"$1"
