//! Fuzz targets: what an image made to do harm, or damaged by a failing device, may do to the program that opens it.
//!
//! The bodies of the targets lie in [`targets`], one a file; each opens with the invariants that it checks. `fuzz/` wraps
//! them for cargo-fuzz; `tests/corpus.rs` runs the corpus, the regressions and a bounded random slice through them on any
//! stable compiler. The decoder targets take bytes as they are. The image targets take a list of changes
//! ([`mutate::Case`]) to one of a few small images ([`bases`]), whose checksums are then made right again, from the changed
//! structure up to the superblock: otherwise a fuzzer would never get past the first of them.
#![forbid(unsafe_code)]

pub mod bases;
pub mod exercise;
pub mod image;
pub mod mutate;
pub mod repairs;
pub mod run;
pub mod targets;
pub mod walk;
