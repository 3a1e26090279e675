#!/usr/bin/env bash
# LMDB 0.9.10, of the PyPI package lmdb.
. "$(dirname "$0")/lib.sh"

from_pypi lmdb 0.77 6e5838006f51b04fca996b20f3ace5bd564780a496ab304c60e4ed2dc4b06b35
mkdir -p "$built/lmdb-0.9.10"
gcc -shared -fPIC -O2 -w -Ilmdb-0.77/lib lmdb-0.77/lib/mdb.c lmdb-0.77/lib/midl.c -pthread \
    -o "$built/lmdb-0.9.10/liblmdb.so"
