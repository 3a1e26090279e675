#!/bin/bash
# Dovecot: three messages are saved into a mailbox.
#
# Variants, by the format of the mailbox: mdbox (default), sdbox, maildir; and mdbox-as-is: see below.
#
# Promise: mail_fsync is "optimized" from the start: fsync "whenever necessary to avoid losing important data"
# (10-mail.conf). So each message that was saved is there, and whole. Indexes may be damaged, for which there is
# `doveadm force-resync`: the checker runs it if a message is missing, but in the variant mdbox-as-is.
# Install: apt install dovecot-core
set -eu
export USER=somebody
# Dovecot refuses root: then it runs in a user namespace.
[ "$(id -u)" != 0 ] || exec unshare --user --map-user=1000 --map-group=1000 "$0" "$@"

# Settings, sockets and logs are not recorded.
prepare() {
    directory=$(mktemp -d)
    trap 'rm -rf "$directory"' EXIT
    cat > "$directory/conf" << END
base_dir = $directory
state_dir = $directory
log_path = $directory/log
mail_location = $format:$PWD/mail
mail_uid = $(id -u)
mail_gid = $(id -g)
first_valid_uid = 0
first_valid_gid = 0
mail_home = $directory
userdb {
  driver = static
  args = uid=$(id -u) gid=$(id -g) home=$directory
}
END
}

mail() {
    doveadm -o stats_writer_socket_path= -c "$directory/conf" "$@"
}

message() {
    printf 'From: a@example.com\nSubject: %s\n\n' "$1"
    seq "$1" 500
}

setup() {
    prepare
    message 0 | mail save
}

work() {
    prepare
    for number in 1 2 3; do
        message $number | mail save
        echo "saved $number"
    done
}

check() {
    prepare
    # Dovecot overrides locks that are two minutes old. The checker does not wait for that.
    find mail -name '*.lock' -delete
    missing=$(find_missing)
    if [ -n "$missing" ] && [ $resync = yes ]; then
        mail force-resync INBOX 2> "$directory/resync" || true
        missing=$(find_missing)
    fi
    [ -z "$missing" ] || fail "lost or damaged: $missing $(cat "$directory/fetch")"
}

# The numbers of the messages that were saved and are not there. A first look may end with the error that an
# index is damaged, and mend it.
find_missing() {
    mail fetch text mailbox INBOX > "$directory/found" 2> "$directory/fetch" ||
        mail fetch text mailbox INBOX > "$directory/found" 2>> "$directory/fetch" || true
    found=$(tr -d '\r' < "$directory/found")
    for number in 0 $(sed -n 's/saved //p' "$CRASHLAB_ACKED"); do
        case $found in
            *"$(message $number)"*) ;;
            *) echo "$number" ;;
        esac
    done
}

version() {
    dovecot --version | cut -d ' ' -f 1
}

fail() {
    echo "$1"
    exit 1
}

verb=$1
format=${2:-mdbox}
resync=yes
if [ $format = mdbox-as-is ]; then
    format=mdbox
    resync=no
fi
"$verb"
