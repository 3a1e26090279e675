#!/bin/sh
# restic: two snapshots are made in a repository in a folder.
#
# Promise: the files of a repository are written once, under a name that is their hash, and replaced by none
# (https://restic.readthedocs.io/en/stable/design.html). So `restic check --read-data` finds no damage, and each
# snapshot that was made is there.
# A check takes two seconds: give it --seconds 600.
# Install: apt install restic
set -eu
export RESTIC_PASSWORD=a RESTIC_REPOSITORY=repository RESTIC_PROGRESS_FPS=1

setup() {
    mkdir files
    seq 1000 > files/first
    restic init --quiet
    restic backup --quiet --no-cache --tag 0 files
}

work() {
    for number in 1 2; do
        seq $number 2000 | restic backup --quiet --no-cache --stdin --tag $number > /dev/null
        echo "saved $number"
    done
}

check() {
    # Locks that the power cut has left.
    rm -f repository/locks/*
    damage=$(restic check --quiet --no-cache --no-lock --read-data 2>&1) || fail "$damage"
    snapshots=$(restic snapshots --no-cache --no-lock --json 2>&1) || fail "$snapshots"
    for number in 0 $(sed -n 's/saved //p' "$CRASHLAB_ACKED"); do
        case $snapshots in
            *'"tags":["'"$number"'"]'*) ;;
            *) fail "snapshot $number is lost" ;;
        esac
    done
}

version() {
    restic version | cut -d ' ' -f 2
}

fail() {
    echo "$1"
    exit 1
}

"$1"
