#!/usr/bin/env bash
# SQLite 3.8.2, of the npm package sqlite3.
. "$(dirname "$0")/lib.sh"

from_npm sqlite3 2.2.0 a104401e083fc059bb2e2926dfa95072915e54c3dd2d258bfd872ce891a09974
tar -xzf package/deps/sqlite-autoconf-3080200.tar.gz
mkdir -p "$built/sqlite-3.8.2"
gcc -shared -fPIC -O2 -w sqlite-autoconf-3080200/sqlite3.c -lpthread -ldl \
    -o "$built/sqlite-3.8.2/libsqlite3.so"
