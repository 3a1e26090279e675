#!/bin/sh
# git: three commits in a repository with files.
#
# Variants, by core.fsync and core.fsyncMethod: default; all (core.fsync=all); batch (core.fsync=all
# and core.fsyncMethod=batch).
#
# Promise: with core.fsync=all, a commit that was made is there and the repository has no damage. Of the
# default the manual says that loose objects are not synced, and of batch that it is "as safe as" fsync
# on macOS and Windows only: these variants show what that means
# (https://git-scm.com/docs/git-config#Documentation/git-config.txt-corefsync). batch relies on
# sync_file_range(2), after which the next fsync of anything makes the objects durable on ext4 and XFS.
# Install: apt install git
set -eu
export HOME=/nonexistent GIT_CONFIG_NOSYSTEM=1
export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@example.com
export GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@example.com

setup() {
    git init --quiet --template= .
    git config gc.auto 0
    git config maintenance.auto false
    case $variant in
        all) git config core.fsync all ;;
        batch)
            git config core.fsync all
            git config core.fsyncMethod batch
            ;;
    esac
    echo 0 > file
    git add file
    git commit --quiet --message 0
}

work() {
    for number in 1 2 3; do
        echo $number > file
        echo $number > file$number
        git add file file$number
        git commit --quiet --message $number
        echo "committed $(git rev-parse HEAD)"
    done
}

check() {
    damage=$(git fsck --full 2>&1) || fail "$damage"
    commits=$(git rev-list HEAD 2>&1) || fail "$commits"
    while read -r _ commit; do
        case $commits in *"$commit"*) ;; *) fail "commit $commit is lost" ;; esac
    done < "$CRASHLAB_ACKED"
}

version() {
    git --version | cut -d ' ' -f 3
}

fail() {
    echo "$1"
    exit 1
}

verb=$1
variant=${2:-default}
"$verb"
