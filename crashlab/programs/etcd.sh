#!/usr/bin/env bash
# etcd: four keys are put into a server with one member.
#
# Promise: a put that succeeded is durable (https://etcd.io/docs/latest/learning/api_guarantees/).
# It takes half a second per check: give it --seconds 600. It uses the ports 23790 and 23800, so that
# only one state can be checked at once: --jobs 1.
# Install: apt install etcd-server etcd-client
set -eu
export ETCDCTL_API=3
client=http://127.0.0.1:23790
peer=http://127.0.0.1:23800

start() {
    log=$(mktemp)
    trap stop EXIT
    etcd --data-dir data --log-level error --listen-client-urls $client \
        --advertise-client-urls $client --listen-peer-urls $peer \
        --initial-advertise-peer-urls $peer --initial-cluster default=$peer > "$log" 2>&1 &
    server=$!
    disown $server # so that bash does not report its end
    for _ in {1..100}; do
        ! ctl get x > "$log.ctl" 2>&1 || return 0
        kill -0 $server 2> "$log.ctl" || break
        sleep 0.05
    done
    echo "etcd does not start: $(tail -c 600 "$log")"
    exit 1
}

stop() {
    kill -9 $server 2> "$log.ctl" || true
    rm -f "$log" "$log.ctl"
}

ctl() {
    etcdctl --endpoints $client "$@"
}

setup() {
    start
}

work() {
    start
    for number in 1 2 3 4; do
        ctl put key$number value$number > "$log.ctl"
        echo "put key$number value$number"
    done
}

check() {
    start
    found=$(ctl get key --prefix | paste -d ' ' - -)
    while read -r _ pair; do
        case $found in *"$pair"*) ;; *) echo "$pair was put and is lost" && exit 1 ;; esac
    done < "$CRASHLAB_ACKED"
}

version() {
    etcd --version | awk 'NR == 1 { print $3 }'
}

"$1"
