#!/usr/bin/env bash
# HSQLDB 2.3.1 and 2.7.4.
. "$(dirname "$0")/lib.sh"

# get VERSION SHA256
get() {
    from_maven org.hsqldb hsqldb "$1" "$2"
    mkdir -p "$built/hsqldb-$1"
    mv "hsqldb-$1.jar" "$built/hsqldb-$1/"
    javac -cp "$built/hsqldb-$1/*" -d "$built/hsqldb-$1" "$built/../Hsqldb.java"
}

get 2.3.1 4b3ac5c2b87a09a4fdc19e0933643c8f6934d6114d85010363189e7924b1b114
get 2.7.4 5fab2bb4384ac06b762638c8fa2740c944b8d080e4796c0c6c2af8b90dd4e5ad
