#!/bin/sh
# ZooKeeper: a server of its own makes six nodes, and begins a new log and a snapshot after some of them.
#
# Variants: today (3.9.5, the default), and 3.4.6, of 2014. get/Zookeeper.java has the test: server and
# client are in one process, and the checker reads the files as a server does that starts.
#
# Promise: "once an update has been applied, it will persist from that time forward until a client
# overwrites the update" (https://zookeeper.apache.org/doc/current/zookeeperOver.html).
# It takes half a second per check: give it --seconds 300.
# Install: apt install default-jdk maven; get/zookeeper.sh
set -eu
verb=$1
version=${2:-today}
if [ "$version" = today ]; then
    version=3.9.5
fi
if [ "$verb" = version ]; then
    echo "$version"
    exit
fi
folder=$(dirname "$0")/get/built/zookeeper-$version
exec java -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xmx128m -XX:-UsePerfData \
    -Dzookeeper.preAllocSize=64 -Dzookeeper.snapCount=4 -Dzookeeper.admin.enableServer=false \
    -cp "$folder:$folder/*" Zookeeper "$verb"
