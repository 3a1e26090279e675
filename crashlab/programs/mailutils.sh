#!/bin/bash
# GNU Mailutils: three messages are delivered by lmtpd into a mailbox that has one, or movemail moves two.
#
# Variants: mbox (default) and maildir, the format of the mailbox; move, from one mbox to another.
#
# Promise: lmtpd answers 250 to each message. By RFC 2033 it is responsible for it from then on, and by
# RFC 5321, section 6.1, it "MUST NOT lose the message for frivolous reasons, such as because the host later
# crashes". Of movemail the manual says that it moves mail, and of crashes nothing: in the variant move the
# checker demands that each message is in one of the two mailboxes, or in a temporary file of movemail.
# lmtpd runs as root only.
# Install: apt install mailutils mailutils-mda
set -eu
user=$(id -un)

body() {
    seq -f "$1: line %g" 300
}

deliver() {
    {
        printf 'LHLO x\nMAIL FROM:<a@example.com>\nRCPT TO:<%s>\nDATA\n' "$user"
        printf 'From: a@example.com\nTo: b@example.com\nSubject: %s\n\n' "$1"
        body "$1"
        printf '.\nQUIT\n'
    } | sed 's/$/\r/' > "$scratch/input"
    printf 'mailbox { mail-spool "%s"; mailbox-type %s; };\ngroup %s;\n' "$spool" $type "$(id -gn)" > "$scratch/conf"
    lmtpd --inetd --config-file="$scratch/conf" --stderr < "$scratch/input" > "$scratch/answers"
    grep -q "^250 .*: delivered" "$scratch/answers" || fail "not delivered: $(cat "$scratch/answers")"
}

setup() {
    if [ $variant = move ]; then
        mkdir spool
        spool=$PWD/spool type=mbox
        deliver 1
        deliver 2
        mv "spool/$user" from
        deliver 0
        mv "spool/$user" to
        rmdir spool
    else
        mkdir spool
        deliver 0
    fi
}

work() {
    if [ $variant = move ]; then
        movemail.mailutils --no-config from to
        echo moved
    else
        for number in 1 2 3; do
            deliver $number
            echo "delivered $number"
        done
    fi
}

check() {
    # Mailutils overrides locks that are ten minutes old. The checker does not wait for that.
    find . -name '*.lock' -delete
    if [ $variant = move ]; then
        shopt -s nullglob
        mailboxes=(from to mu??????)
        numbers="0 1 2"
    else
        mailboxes=("$type:spool/$user")
        numbers="0 $(sed -n 's/delivered //p' "$CRASHLAB_ACKED")"
    fi
    for mailbox in "${mailboxes[@]}"; do
        readmsg.mailutils --no-config --no-header -f "$mailbox" '*' >> "$scratch/found" 2>> "$scratch/errors" ||
            true
    done
    found=$(tr -d '\r\0' < "$scratch/found")
    for number in $numbers; do
        case $found in
            *"$(body $number)"*) ;;
            *) fail "message $number is lost or damaged; $(cat "$scratch/errors")" ;;
        esac
    done
}

version() {
    lmtpd --version | sed -n '1s/.* //p'
}

fail() {
    echo "$1"
    exit 1
}

verb=$1
variant=${2:-mbox}
type=$variant
spool=$PWD/spool
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
"$verb"
