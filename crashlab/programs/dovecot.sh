#!/bin/bash
# Dovecot: three messages are saved into a mailbox.
#
# Variants, by the format of the mailbox: mdbox (default), sdbox, maildir.
#
# Promise: mail_fsync is "optimized" from the start: "Use fsync() whenever necessary to avoid losing important
# data" (https://doc.dovecot.org/2.3/settings/core/#core_setting-mail_fsync). So each message that was saved is
# there, and whole.
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
    if ! found=$(mail fetch text mailbox INBOX 2>&1); then
        found=$(mail fetch text mailbox INBOX 2>&1) || fail "$found $(cat "$directory/log")"
    fi
    found=$(echo "$found" | tr -d '\r')
    for number in 0 $(sed -n 's/saved //p' "$CRASHLAB_ACKED"); do
        case $found in
            *"$(message $number)"*) ;;
            *) fail "message $number is lost or damaged: $(echo "$found" | grep Subject) $(cat "$directory/log")" ;;
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
"$verb"
