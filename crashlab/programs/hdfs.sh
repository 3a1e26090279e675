#!/bin/sh
# HDFS: a NameNode of its own makes and renames four directories, and begins a new edit log after the second.
#
# Variants: today (3.4.2, the default), and 2.4.1, of 2014. get/Hdfs.java has the test: the calls are made in the
# process of the NameNode, and the checker starts it again.
#
# Promise: the edit log is there "to persistently record every change that occurs to file system metadata"
# (https://hadoop.apache.org/docs/stable/hadoop-project-dist/hadoop-hdfs/HdfsDesign.html).
# It takes a second per check: give it --seconds 600.
# Install: apt install default-jdk maven; get/hdfs.sh
set -eu
verb=$1
version=${2:-today}
if [ "$version" = today ]; then
    version=3.4.2
fi
if [ "$verb" = version ]; then
    echo "$version"
    exit
fi
folder=$(dirname "$0")/get/built/hdfs-$version
log=$(mktemp)
trap 'rm -f "$log"' EXIT
java -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xmx128m -XX:-UsePerfData \
    -cp "$folder:$folder/*" Hdfs "$verb" 2> "$log" || { code=$? && grep -v ^log4j "$log"; exit $code; }
