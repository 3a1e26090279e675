#!/bin/sh
# Mercurial: three commits in a repository with files.
#
# Variants: none, and 2.9, the version of 2014.
#
# Promise: `hg recover` mends what an interrupted command has left (hg help recover), so that `hg verify`
# finds no damage. The checker also demands each commit that was made.
# Install: apt install mercurial; for 2.9: get/mercurial.sh
set -eu
export HGRCPATH=/dev/null HGUSER=a
if [ "${2:-}" ]; then
    PATH=$(cd "$(dirname "$0")" && pwd)/get/built/mercurial-$2:$PATH
fi

setup() {
    hg init .
    echo 0 > file
    hg add --quiet file
    hg commit --message 0
}

work() {
    for number in 1 2 3; do
        echo $number > file
        echo $number > file$number
        hg add --quiet file$number
        hg commit --message $number
        echo "committed $(hg log --rev tip --template '{node}')"
    done
}

check() {
    recovery=
    if [ -e .hg/store/journal ]; then
        recovery=$(hg recover 2>&1) || true
    fi
    damage=$(hg verify --quiet 2>&1) || fail "$recovery $damage"
    commits=$(hg log --template '{node}\n' 2>&1) || fail "$commits"
    while read -r _ commit; do
        case $commits in *"$commit"*) ;; *) fail "commit $commit is lost" ;; esac
    done < "$CRASHLAB_ACKED"
}

version() {
    hg version --quiet | sed 's/.*version \([^)]*\).*/\1/'
}

fail() {
    echo "$1"
    exit 1
}

"$1"
