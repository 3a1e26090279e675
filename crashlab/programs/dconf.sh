#!/bin/sh
# dconf: three values are written, by its service on a bus of its own.
#
# Promise: dconf writes its file by GLib's g_file_set_contents, which replaces the file as a whole
# (https://docs.gtk.org/glib/func.file_set_contents.html). That a value is durable is not promised. So each value,
# from an old one on, is there as it was once.
# Install: apt install dconf-cli dconf-service dbus
set -eu

on_bus() {
    directory=$(mktemp -d)
    trap 'rm -rf "$directory"' EXIT
    XDG_CONFIG_HOME=$PWD XDG_RUNTIME_DIR=$directory dbus-run-session -- sh -c "$1" 2> "$directory/log" ||
        fail "$(cat "$directory/log")"
}

setup() {
    on_bus 'dconf write /a/first 1; dconf write /a/second 0'
}

work() {
    on_bus 'for number in 1 2 3; do dconf write /a/second $number; echo "wrote $number"; done'
}

check() {
    values=$(on_bus 'dconf read /a/first; dconf read /a/second' | tr '\n' ' ')
    case $values in
        '1 0 ' | '1 1 ' | '1 2 ' | '1 3 ') ;;
        *) fail "the values are: $values" ;;
    esac
}

version() {
    dpkg-query --show --showformat '${Version}' dconf-service
}

fail() {
    echo "$1"
    exit 1
}

"$1"
