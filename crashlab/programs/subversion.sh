#!/bin/sh
# Subversion: three commits to a repository in a folder (FSFS), from a working copy that is not recorded.
#
# Promise: commits are atomic and synced: only svnadmin's option --no-flush-to-disk is "faster, but unsafe on
# power off" (svnadmin help load). So `svnadmin verify` finds no damage, and each commit that was made is there.
# Install: apt install subversion
set -eu
export LC_ALL=C.UTF-8

setup() {
    svnadmin create repository
    svn mkdir --quiet --message 0 --username a "file://$PWD/repository/trunk"
}

work() {
    config=$(mktemp -d)
    trap 'rm -rf "$config"' EXIT
    for number in 1 2 3; do
        seq $number 500 > "$config/file"
        svn import --quiet --config-dir "$config/svn" --username a --message $number \
            "$config/file" "file://$PWD/repository/trunk/file$number"
        echo "committed $((number + 1))"
    done
}

check() {
    damage=$(svnadmin verify --quiet repository 2>&1) || fail "$damage"
    youngest=$(svnlook youngest repository 2>&1) || fail "$youngest"
    while read -r _ revision; do
        [ "$revision" -le "$youngest" ] || fail "revision $revision is lost: $youngest is the last"
        [ "$(svnlook cat repository "trunk/file$((revision - 1))" | cksum)" = \
            "$(seq $((revision - 1)) 500 | cksum)" ] || fail "the file of revision $revision is wrong"
    done < "$CRASHLAB_ACKED"
}

version() {
    svn --version --quiet
}

fail() {
    echo "$1"
    exit 1
}

"$1"
