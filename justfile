# Recipes for those who work on Syncline; `just` lists them.

default:
    @just --list

# What CI runs
ci:
    .ci/run

# All tests
test:
    cargo test --workspace

# All tests, while their processes are stopped again and again
stalls:
    cargo test --workspace --no-fail-fast --config 'target."cfg(unix)".runner="{{justfile_directory()}}/.ci/stalls"'

# Formatting, lints and lock files
lint:
    cargo fmt --all -- --check
    for each in . lab/schedules lab/fuzz-targets python; do cargo metadata --locked --format-version 1 --manifest-path $each/Cargo.toml >/dev/null || exit 1; done
    cargo clippy --workspace --all-targets -- -D warnings

# Writes crates/syncline/api.txt anew, which CI compares with the crate's public interface (`.ci/api install` gets the tools)
api:
    .ci/api write

# Ten thousand seeded power cuts
crash:
    cargo test --profile dist -p syncline-sim --test laboratory crash:: -- --ignored --nocapture

# Hosts that take an image from each other, so many seeds of each of two searches
hosts seeds="100000":
    SYNCLINE_LEASE_SEEDS={{seeds}} cargo test --profile dist -p syncline-lease --test lease model:: -- --nocapture

# Storage on a network: the filesystem on NBD servers that forget, for so many seconds
network seconds="600":
    SYNCLINE_NBD_SECONDS={{seconds}} cargo test --profile dist -p syncline-sim --test laboratory nbd:: -- --ignored --nocapture

# Random programs on a mount, half of whose daemons are killed, for so many seconds (root)
programs seconds="600":
    SYNCLINE_PROGRAMS_SECONDS={{seconds}} cargo test --profile dist -p syncline-fuse --test fuse -- --nocapture programs_find_what_they_have_done

# Two hosts that take an image from each other while a nemesis cuts, stops and kills them and their storage, for so many seconds on NBD
# and as many on Ceph (root; nbdkit, nftables, iproute2 and Ceph)
hosts-nemesis seconds="600":
    cargo build --profile dist -p syncline-cli
    SYNCLINE_HOSTS_PROGRAM=$PWD/target/dist/syncline SYNCLINE_HOSTS_SECONDS={{seconds}} cargo test -p syncline-cli --test program hosts:: -- --ignored --nocapture --test-threads 1

# The same search with programs in which a rule is broken: it has to find each, within ten minutes
hosts-canaries:
    cargo test -p syncline-cli --features canaries --test program hosts::canaries:: -- --ignored --nocapture --test-threads 1

# PostgreSQL on Ceph: its host is killed and the other one takes over, so many times each way (root)
hosts-postgresql rounds="50":
    cargo build --profile dist -p syncline-cli
    lab/hosts/postgresql target/dist/syncline --rounds {{rounds}} --by mount
    lab/hosts/postgresql target/dist/syncline --rounds {{rounds}} --by takeover

# Long simulations with new seeds, for so many seconds; failures are reduced to short cases
soak seconds="600":
    SYNCLINE_SOAK_SECONDS={{seconds}} cargo test --profile dist -p syncline-sim --test laboratory soak::soak -- --ignored --nocapture

# Virtual hours: devices whose flushes take up to a minute, tasks that run late, an hour of rest after each life; so many seeds of each of four searches
idle seeds="2000":
    SYNCLINE_CRASH_SEEDS={{seeds}} cargo test --profile dist -p syncline-sim --test laboratory time:: -- --ignored --nocapture --test-threads 1

# Threads at one filesystem, for so many seconds; every life is another one, even of the same seed
threads seconds="600":
    SYNCLINE_THREADS_SECONDS={{seconds}} cargo test --profile dist -p syncline-check --test check -- --ignored --nocapture threads_for_a_long_time

# A few operations on a file, stopped between their steps while others go on and sync, for so many seconds
meetings seconds="600":
    SYNCLINE_THREADS_SECONDS={{seconds}} cargo test --profile dist -p syncline-check --test check -- --ignored --nocapture meetings_for_a_long_time

# Small lives of store and filesystem under a scheduler that decides at every lock who goes on, for so many seconds each; what fails
# is lived again with SYNCLINE_SCHEDULES_SEED=its seed SYNCLINE_SCHEDULES_COUNT=1
schedules seconds="600":
    lab/schedules/run {{seconds}}

# crashlab: every planted bug and every correct program, under every model
crashlab:
    cargo test --release -p crashlab --test crashlab -- --ignored

# Real programs on a real mount, verified, beside ext4 and btrfs (root; installs what they need); `just apps --only git,npm` for some
apps *options="--peers --runs 3":
    cargo build --profile dist
    tests/apps/run target/dist/syncline {{options}}

# PostgreSQL and MariaDB without their protection from torn pages, through power cuts for half an hour each (root)
database-cuts *options="":
    cargo build --profile dist
    tests/apps/database-cuts target/dist/syncline {{options}}

# The POSIX test suite pjdfstest on a real mount (root; installs the suite into ~/.cache)
pjdfstest:
    cargo build --profile dist
    tests/apps/pjdfstest target/dist/syncline

# Mount and recovery time, a device of 1 TiB, many open files, a million extents, and the memory they take (root)
scale:
    cargo build --profile dist
    tests/apps/scale target/dist/syncline --full

# Everything that is measured, beside ext4, xfs and btrfs on a loop device (root); `just bench k5 --quick` for a part
bench *options="all":
    cargo build --profile dist -p syncline-cli -p syncline-lab
    target/dist/syncline-lab bench {{options}} --peers ext4,ext4-fc,xfs,btrfs --report bench.html --json bench.json

# Synced writes on NBD and RBD beside the bare device (root, fio, nbdkit, Ceph); ten minutes
network-bench *options="":
    cargo build --profile dist -p syncline-cli -p syncline-lab
    tests/apps/network-bench target/dist/syncline {{options}}

# Parts of the engine by themselves, at length
micro:
    cargo bench -p syncline-bench

# Every block of a thousand logs rots in turn, in every way; then, for so many seconds, every block and many regions of whole images
rot seconds="600":
    cargo test --profile dist -p syncline-sim --test laboratory rot:: -- --ignored --nocapture
    SYNCLINE_ROT_SECONDS={{seconds}} cargo test --profile dist -p syncline-check --test check rot:: -- --ignored --nocapture

# Every workload of one and two operations through every power cut, then as many of three as half an hour allows
worlds:
    SYNCLINE_WORLDS_SECONDS=1800 cargo test --profile dist -p syncline-sim --test laboratory worlds::all_of_them -- --ignored --nocapture

# Hostile images: every fuzz target for so many seconds (installs cargo-fuzz)
fuzz seconds="60" *targets="":
    lab/fuzz-targets/run {{seconds}} {{targets}}

# Images of which one item was changed, repaired, for so many seconds; SYNCLINE_REPAIR_SEED says where it begins, and is all that is tried for 0 seconds
repair-fuzz seconds="600":
    SYNCLINE_REPAIR_SECONDS={{seconds}} cargo test --profile dist -p syncline-fuzz --test fuzz -- --ignored --nocapture repairs_keep_what_can_be_read_for_a_long_time

# Users and images that want more memory than docs/MEMORY.md says, for so many seconds each (root)
hostile seconds="600":
    SYNCLINE_HOSTILE_SECONDS={{seconds}} cargo test -p syncline-cli --test program -- --ignored --exact --nocapture hostile::users::hostile_users_for_a_long_time
    SYNCLINE_HOSTILE_SECONDS={{seconds}} cargo test -p syncline-fuzz --test fuzz -- --ignored --exact --nocapture memory::hostile_images_for_a_long_time

# The manual's pages, from the definitions of the command line and docs/man/syncline.1
man:
    cargo run --quiet -- manual docs/man

# The documents as a book, in target/book, with its links checked (installs mdBook and what draws its diagrams below target/)
book:
    .ci/book

# Licences, sources and known defects of what Syncline is built with (installs cargo-deny and cargo-audit below target/); DATABASE is a clone of
# RustSec's advisory-db, where none can be fetched
dependencies *database:
    .ci/dependencies {{database}}

# The pictures in the documents: 'syncline top', from a terminal's cells, and the head of a report of 'syncline-lab bench', as a browser shows it
# (root, on a quiet machine; needs tmux, Python and Chromium; fetches rich from PyPI)
screenshots:
    cargo build --profile dist -p syncline-cli -p syncline-lab
    python3 -m venv target/screenshot
    target/screenshot/bin/pip install --quiet rich==15.0.0
    target/screenshot/bin/python docs/images/render target/dist/syncline docs/images/top.svg
    docs/images/report target/dist/syncline-lab docs/images/bench.png

# SQLite in an image, from the shell, Python, Rust and Node (fetches from crates.io and npm), and so many power cuts
sqlite cuts="10000":
    examples/sqlite/run
    SYNCLINE_SQLITE_CUTS={{cuts}} cargo test --profile dist -p syncline-sqlite --test sqlite -- --nocapture cuts::

# The Python package: builds it and runs its tests in an environment below target/ (needs Python 3.11 with venv; installs from PyPI)
python *options:
    python/test {{options}}

# The program, its manual, completions, units, the libraries for C with headers, and examples, below a prefix. mount(8) looks for helpers
# in /sbin only, whatever the prefix; where it is not to know them: just install PREFIX PREFIX/sbin
install prefix="/usr/local" helpers="/sbin":
    cargo build --profile dist --locked
    target/dist/syncline setup --prefix {{prefix}} --helpers {{helpers}}
    for unit in examples/systemd/*; do sed 's#/usr/bin/syncline#{{prefix}}/bin/syncline#' $unit | install -D -m 644 /dev/stdin {{prefix}}/lib/systemd/system/$(basename $unit); done
    install -D -m 644 examples/boot/modprobe.conf {{prefix}}/lib/modprobe.d/syncline.conf
    install -D -m 644 examples/boot/tmpfiles.conf {{prefix}}/lib/tmpfiles.d/syncline.conf
    install -D -m 644 examples/magic {{prefix}}/share/file/magic/syncline
    install -D -m 644 include/syncline.h {{prefix}}/include/syncline.h
    install -D -m 644 include/libsyncline.h {{prefix}}/include/libsyncline.h
    install -D -m 755 target/dist/libsyncline_c.so {{prefix}}/lib/libsyncline.so.0
    ln -sfn libsyncline.so.0 {{prefix}}/lib/libsyncline.so
    install -D -m 644 target/dist/libsyncline_c.a {{prefix}}/lib/libsyncline.a
    install -D -m 644 target/dist/libsyncline_sqlite.so {{prefix}}/lib/libsyncline_sqlite.so
    install -d {{prefix}}/lib/pkgconfig
    crates/capi/pkg-config {{prefix}} > {{prefix}}/lib/pkgconfig/libsyncline.pc
    test "$(id -u)" != 0 || ! command -v ldconfig >/dev/null || ldconfig
    find examples -type f -printf '%P\n' | while read -r file; do install -D -m 644 "examples/$file" "{{prefix}}/share/doc/syncline/examples/$file"; done

# A package for Debian, in target/debian (needs Python, and cargo-deb: cargo install cargo-deb)
deb:
    cargo build --profile dist
    mkdir -p target/completions
    target/dist/syncline completions bash > target/completions/syncline.bash
    target/dist/syncline completions zsh > target/completions/_syncline
    target/dist/syncline completions fish > target/completions/syncline.fish
    mkdir -p target/development
    install -m 644 target/dist/libsyncline_c.so target/development/libsyncline.so.0
    strip --strip-unneeded target/development/libsyncline.so.0
    ln -sfn libsyncline.so.0 target/development/libsyncline.so
    install -m 644 target/dist/libsyncline_c.a target/development/libsyncline.a
    strip --strip-debug --remove-section=.llvmbc --remove-section=.llvmcmd target/development/libsyncline.a
    crates/capi/pkg-config /usr > target/development/libsyncline.pc
    install -m 644 target/dist/libsyncline_sqlite.so target/development/
    strip --strip-unneeded target/development/libsyncline_sqlite.so
    .ci/notices Cargo.toml syncline-cli syncline-c syncline-sqlite > target/THIRD-PARTY.txt
    mkdir -p target/helpers/bin target/helpers/sbin
    ln -f target/dist/syncline target/helpers/bin/syncline
    for name in mount.syncline mount.fuse.syncline mount.fuseblk.syncline umount.fuse.syncline umount.fuseblk.syncline fsck.syncline fsck.fuse.syncline mkfs.syncline; do ln -sfn ../bin/syncline target/helpers/sbin/$name; done
    cargo deb -p syncline-cli --profile dist --strip --no-build

# The files of a release, in target/release-VERSION (needs Python 3.11 with venv; installs other tools below target/); `just release deb` for one kind
release *steps:
    .ci/release {{steps}}
