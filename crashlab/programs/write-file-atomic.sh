#!/bin/sh
# write-file-atomic, by which npm and many others write files: a file is replaced three times.
#
# Promise: it is "atomic", with fsync from the start (https://www.npmjs.com/package/write-file-atomic). So the
# file has one of its texts. That the last one is durable is not promised.
# Install: npm install --global write-file-atomic
set -eu

setup() {
    yes 0 | head -n 3000 > file
}

work() {
    NODE_PATH=${NODE_PATH:-$(npm root --global)} node --eval '
        const write = require("write-file-atomic");
        (async () => {
            for (const number of [1, 2, 3]) {
                const text = `${number}\n`.repeat(3000);
                if (number === 2) write.sync("file", text); else await write("file", text);
                console.log(`wrote ${number}`);
            }
        })();'
}

check() {
    [ "$(wc -l < file)" = 3000 ] || fail "the file has $(wc -l < file) lines"
    [ "$(uniq file | wc -l)" = 1 ] || fail "the file has lines of $(uniq file | tr '\n' ' ')"
    grep -q '^[0-3]$' file || fail "the file is damaged"
}

version() {
    NODE_PATH=${NODE_PATH:-$(npm root --global)} node --print 'require("write-file-atomic/package.json").version'
}

fail() {
    echo "$1"
    exit 1
}

"$1"
