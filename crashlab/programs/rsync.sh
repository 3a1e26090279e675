#!/bin/sh
# rsync: a file is updated by another.
#
# Variants: default, and fsync, with --fsync.
#
# Promise: the new file replaces the old one by a rename, so that the name has one of the two as a
# whole (the manual warns of another result only at --inplace). With --fsync "each finished file" is
# synced (man rsync). Durability without it is not promised: the variant default demands only that the
# file is one of the two.
# Install: apt install rsync
set -eu

setup() {
    yes old | head -n 3000 > file
    yes new | head -n 3000 > source
}

work() {
    if [ "$variant" = fsync ]; then
        rsync --ignore-times --fsync source file
        echo updated
    else
        rsync --ignore-times source file
    fi
}

check() {
    text=$(cksum < file)
    [ "$text" != "$(cksum < source)" ] || exit 0
    ! grep -q updated "$CRASHLAB_ACKED" || fail "the file was updated: $(wc -c < file) bytes"
    [ "$text" = "$(yes old | head -n 3000 | cksum)" ] ||
        fail "the file is neither old nor new: $(wc -c < file) bytes"
}

version() {
    rsync --version | awk 'NR == 1 { print $3 }'
}

fail() {
    echo "$1"
    exit 1
}

verb=$1
variant=${2:-default}
"$verb"
