//! Real mounts: the whole path of a request, over both transports, and random programs.

#![allow(clippy::duplicate_mod, reason = "the tests in mounted/ run over each transport")]

mod mounted;
mod mounted_uring;
mod programs;
mod support;
