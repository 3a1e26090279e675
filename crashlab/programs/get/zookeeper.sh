#!/usr/bin/env bash
# ZooKeeper 3.4.6 and 3.9.5, with what they need.
. "$(dirname "$0")/lib.sh"

# get VERSION SHA256 [GROUP:NAME:VERSION...]: the server, what it names as its dependencies, and more.
get() {
    from_maven org.apache.zookeeper zookeeper "$1" "$2"
    folder=$built/zookeeper-$1
    mkdir -p "$folder"
    cp "zookeeper-$1.jar" "$folder"
    runtime_from_maven "$folder" "org.apache.zookeeper:zookeeper:$1" "${@:3}"
    javac -cp "$folder/*" -d "$folder" "$built/../Zookeeper.java"
}

get 3.4.6 8a375a1ef98cbc0e1f6e9dfd0d96d914b74d37ad00b4bf81beb77fa8f34d33ae
get 3.9.5 936d025db1a85f085edea25048c3f5b3de5fc29329c371a10925e3b78b0b38a0 \
    io.dropwizard.metrics:metrics-core:4.1.12.1 org.xerial.snappy:snappy-java:1.1.10.5
