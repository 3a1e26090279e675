#!/bin/sh
# cargo: a dependency is added to a crate, or the crate is built.
#
# Variants: manifest (default), `cargo add` and `cargo generate-lockfile`; build, `cargo build`.
#
# Promise: none of power cuts. The checker demands what a user might expect: Cargo.toml is the old or the
# new one, and cargo can read it and Cargo.lock; after a build, the next one succeeds, and the program prints
# what its sources say.
# Install: cargo, from https://rustup.rs or by apt install cargo
set -eu
export CARGO_NET_OFFLINE=true CARGO_INCREMENTAL=0 CARGO_PROFILE_DEV_DEBUG=0
unset CARGO_TARGET_DIR RUSTFLAGS

# Cargo keeps the path of the crate in its fingerprints: all runs see the folder at the same one.
if [ "${1:-}" != version ] && [ "$PWD" != /mnt ]; then
    here=$PWD file=$(realpath "$0") exec unshare --map-root-user --mount sh -eu -c '
        mount --bind "$here" /mnt
        cd /mnt
        exec "$file" "$@"' sh "$@"
fi

setup() {
    mkdir -p app/src dep/src
    printf '[package]\nname = "dep"\nversion = "1.0.0"\nedition = "2021"\n' > dep/Cargo.toml
    echo 'pub fn answer() -> u32 { 42 }' > dep/src/lib.rs
    printf '[package]\nname = "app"\nversion = "1.0.0"\nedition = "2021"\n' > app/Cargo.toml
    echo 'fn main() { println!("{}", dep::answer()); }' > app/src/main.rs
    [ $variant != build ] || add
}

add() {
    (cd app && cargo add --quiet --path ../dep && cargo generate-lockfile --quiet)
}

work() {
    if [ $variant = build ]; then
        (cd app && cargo build --quiet)
    else
        add
    fi
    echo done
}

check() {
    # States don't keep the times of files. Cargo builds again what is older than its sources: nothing is.
    find . -exec touch -d 2025-01-01 {} +
    cd app
    grep -q '^name = "app"' Cargo.toml || fail "Cargo.toml is damaged: it has $(wc -c < Cargo.toml) bytes"
    output=$(cargo metadata --quiet --format-version 1 2>&1) || fail "cargo can't go on: $output"
    [ $variant = build ] || exit 0
    output=$(cargo run --quiet 2>&1) || fail "the next build fails: $output"
    [ "$output" = 42 ] || fail "the program prints: $output"
}

version() {
    cargo --version | cut -d ' ' -f 2
}

fail() {
    echo "$1"
    exit 1
}

verb=$1
variant=${2:-manifest}
"$verb"
