#!/usr/bin/env bash
# LevelDB 1.10 and 1.15, of the npm package leveldown and the PyPI package leveldb.
. "$(dirname "$0")/lib.sh"

# build VERSION SOURCES: compiles the library, without the tests among its sources.
build() {
    mkdir -p "$built/leveldb-$1"
    cd "$2"
    find db table util port/port_posix.cc -name '*.cc' ! -name '*_test.cc' ! -name '*_bench.cc' \
        ! -name 'leveldb_main.cc' ! -name 'test*.cc' > files
    g++ -shared -fPIC -O2 -w -DNDEBUG -DOS_LINUX -DLEVELDB_PLATFORM_POSIX -fno-builtin-memcmp \
        -I. -Iinclude $(cat files) -pthread -o "$built/leveldb-$1/libleveldb.so"
    cd "$scratch"
}

from_npm leveldown 0.5.0 ac39640ff6cdbcf93fe3f69277f2e070363d081febf20203af85590a59f5dee1
build 1.10 package/deps/leveldb/leveldb-1.10.0
from_pypi leveldb 0.194 9c3378b3b4336cc63303e9fe5d054a337d50bafec80ac4628db19a598c0fcd38
build 1.15 leveldb-0.194/leveldb
