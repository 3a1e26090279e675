#!/bin/sh
# dpkg: two packages of two files are unpacked and configured, into a root in the working folder.
#
# Variants: none, and unsafe-io, with --force-unsafe-io. Without it the test says --refuse-unsafe-io, as
# images of containers have force-unsafe-io in /etc/dpkg/dpkg.cfg.d.
#
# Promise: dpkg syncs files before it renames them into place, so that a package that is "installed" by
# the status has whole files. Of unsafe-io the manual says that it may lose data (man dpkg).
# Install: nothing on Debian and Ubuntu
set -eu
PATH=$PATH:/usr/sbin:/sbin # where dpkg looks for ldconfig

packages='1 2 3'

setup() {
    mkdir -p admin/updates admin/info admin/triggers root
    : > admin/status
    : > admin/available
    for number in $packages; do
        build=build/$number
        mkdir -p $build/DEBIAN $build/opt/test$number
        printf '%s\n' "Package: test$number" 'Version: 1' 'Architecture: all' \
            'Maintainer: a <a@example.com>' 'Description: test' > $build/DEBIAN/control
        seq $number 500 > $build/opt/test$number/first
        seq $number 600 > $build/opt/test$number/second
        (cd $build && md5sum opt/test$number/* > DEBIAN/md5sums)
        dpkg-deb --root-owner-group --build $build test$number.deb > /dev/null
    done
    rm -r build
    install_package 1
}

work() {
    for number in 2 3; do
        install_package $number > /dev/null
        echo "installed test$number"
    done
}

install_package() {
    dpkg --log=/dev/null --force-not-root --force-script-chrootless "$unsafe_io" \
        --root="$PWD/root" --admindir="$PWD/admin" --install "test$1.deb"
}

check() {
    status=$(dpkg-query --root="$PWD/root" --admindir="$PWD/admin" --show \
        --showformat '${Package} ${db:Status-Abbrev}\n' 2>&1) || fail "$status"
    case $status in *warning*) fail "$status" ;; esac
    for number in $packages; do
        case $status in
            *"test$number ii"*)
                (cd root && md5sum --quiet --check ../admin/info/test$number.md5sums) ||
                    fail "test$number is installed, and its files are damaged"
                ;;
            *)
                [ $number != 1 ] || fail "test1 was installed from the start: $status"
                ! grep -q "installed test$number" "$CRASHLAB_ACKED" ||
                    fail "test$number was installed: $status"
                ;;
        esac
    done
}

version() {
    dpkg-query --version | sed -n '1s/.*version \([^ ]*\).*/\1/p'
}

fail() {
    echo "$1"
    exit 1
}

verb=$1
case ${2:-} in
    unsafe-io) unsafe_io=--force-unsafe-io ;;
    *) unsafe_io=--refuse-unsafe-io ;;
esac
"$verb"
