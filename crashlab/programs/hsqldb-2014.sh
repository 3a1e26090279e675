#!/bin/sh
# HSQLDB: transactions of an insert and an update each in cached tables, and a checkpoint.
#
# Variants: today (2.7.4, the default), and 2.3.1, the version of 2014. Both run with WRITE DELAY FALSE.
#
# Promise: transactions, and with WRITE DELAY FALSE a sync of the log at each commit, so that "all committed
# transactions" survive (http://hsqldb.org/doc/2.0/guide/management-chapt.html). get/Hsqldb.java has the test.
# It takes half a second per check: give it --seconds 300.
# Install: apt install default-jdk maven; get/hsqldb.sh
set -eu
verb=$1
version=${2:-today}
if [ "$version" = today ]; then
    version=2.7.4
fi
if [ "$verb" = version ]; then
    echo "$version"
    exit
fi
folder=$(dirname "$0")/get/built/hsqldb-$version
exec java -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xmx128m -XX:-UsePerfData \
    -cp "$folder:$folder/*" Hsqldb "$verb"
