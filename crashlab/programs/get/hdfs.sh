#!/usr/bin/env bash
# The NameNode of HDFS 2.4.1 and 3.4.2, with what it needs.
. "$(dirname "$0")/lib.sh"

# get VERSION SHA256 [GROUP:NAME:VERSION...]: hadoop-hdfs, and more that it needs and does not name.
get() {
    from_maven org.apache.hadoop hadoop-hdfs "$1" "$2"
    folder=$built/hdfs-$1
    # The folder with the pages of the web server is not in the package, and the NameNode wants one.
    mkdir -p "$folder/webapps/hdfs/WEB-INF"
    runtime_from_maven "$folder" "org.apache.hadoop:hadoop-hdfs:$1" "org.apache.hadoop:hadoop-common:$1" "${@:3}"
    javac -proc:none -cp "$folder/*" -d "$folder" "$built/../Hdfs.java" 2> log || { cat log && return 1; }
}

get 2.4.1 1f71b6bab0fe59946bfd8ac546574a42e668dcc51b928c49fac819a57600ab07
get 3.4.2 8b4121fa56c67fd66204c6b72e92fc4a3aa93981424b4db610c7a5a112d8066e \
    org.apache.hadoop:hadoop-hdfs-client:3.4.2
