#!/bin/sh
# Vim: a file is changed and written with :wq.
#
# Promise: with 'fsync', which is on from the start, the file is "safely written", and with
# 'writebackup' a backup stays until then (:help 'fsync', :help 'writebackup'). So the file, or its
# backup, has the old text, or the file has the new one.
# Install: apt install vim
set -eu

setup() {
    yes old | head -n 3000 > file
}

work() {
    # By default Vim makes no backup in folders for temporary files, as this one.
    vim -u NONE -N -i NONE -es -c 'set backupskip=' -c '%s/old/new/' -c wq file
    echo written
}

check() {
    old=$(yes old | head -n 3000 | cksum)
    new=$(yes new | head -n 3000 | cksum)
    [ "$(text_of file)" != "$new" ] || exit 0
    ! grep -q written "$CRASHLAB_ACKED" || fail "the new text was written"
    [ "$(text_of file)" = "$old" ] || [ "$(text_of file~)" = "$old" ] ||
        fail "neither the file nor its backup is whole"
}

text_of() {
    if [ -e "$1" ]; then cksum < "$1"; fi
}

version() {
    vim --version | awk 'NR == 1 { print $5 }'
}

fail() {
    echo "$1:"
    ls -la
    exit 1
}

"$1"
