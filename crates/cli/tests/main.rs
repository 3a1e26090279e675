//! Whole-program tests, through the binary and real mounts. They are one program because each program links the
//! whole engine, and because most of them wait: for leases, slow devices, killed daemons. A name before `::` runs a part:
//! `cargo test -p syncline-cli --test program posix::`.

#[path = "../../../tests/support/mod.rs"]
mod support;

#[path = "../../../tests/compat/mod.rs"]
mod compat;
#[path = "../../../tests/crash/mod.rs"]
mod crash;
#[path = "../../../tests/differences/mod.rs"]
mod differences;
#[path = "../../../tests/hostile/mod.rs"]
mod hostile;
#[path = "../../../lab/hosts/mod.rs"]
mod hosts;
#[path = "../../../tests/network/mod.rs"]
mod network;
#[path = "../../../tests/posix/mod.rs"]
mod posix;

mod commands;
mod cp;
mod documents;
mod examples;
mod identity;
mod inspect;
mod metrics;
mod resize;
mod top;
