#!/bin/sh
# BorgBackup: two archives are made in a repository.
#
# Promise: a repository is a log with transactions, which ends with the last commit that is whole
# (https://borgbackup.readthedocs.io/en/stable/internals/data-structures.html). So `borg check` finds no damage,
# and each archive that was made is there.
# A check takes a second: give it --seconds 300.
# Install: apt install borgbackup
set -eu

prepare() {
    # Keys, cache and locks of the user are not recorded.
    BORG_BASE_DIR=$(mktemp -d)
    export BORG_BASE_DIR BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK=yes BORG_RELOCATED_REPO_ACCESS_IS_OK=yes
    trap 'rm -rf "$BORG_BASE_DIR"' EXIT
}

setup() {
    prepare
    mkdir files
    seq 1000 > files/first
    borg init --encryption none repository
    borg create repository::0 files
}

work() {
    prepare
    for number in 1 2; do
        seq $number 2000 > "$BORG_BASE_DIR/file"
        borg create "repository::$number" files "$BORG_BASE_DIR/file" 2> /dev/null
        echo "created $number"
    done
}

check() {
    prepare
    # A lock that the power cut has left.
    borg break-lock repository || fail "break-lock fails"
    damage=$(borg check --verify-data repository 2>&1) || fail "$damage"
    archives=$(borg list --short repository 2>&1) || fail "$archives"
    for number in 0 $(sed -n 's/created //p' "$CRASHLAB_ACKED"); do
        echo "$archives" | grep -qx "$number" || fail "archive $number is lost: $archives"
    done
}

version() {
    borg --version | cut -d ' ' -f 2
}

fail() {
    echo "$1"
    exit 1
}

"$1"
