//! Fuzz targets: an image that is hostile or was damaged by a failing device must do no harm to the
//! program that opens it.
//!
//! The bodies of the targets are in [`targets`], one per file; each states the invariants that it
//! checks. `lab/fuzz-targets/` wraps them for cargo-fuzz; `tests/corpus.rs` runs the corpus, the regressions
//! and a bounded random sample through them on any stable compiler. The decoder targets take raw
//! bytes. The image targets take a list of changes ([`mutate::Case`]) to one of a few small images
//! ([`bases`]). The checksums are then corrected, from the changed structure up to the superblock;
//! otherwise a fuzzer would never get past the first of them.
#![forbid(unsafe_code)]

pub mod bases;
pub mod exercise;
pub mod hard;
pub mod image;
pub mod mutate;
pub mod repairs;
pub mod run;
pub mod single;
pub mod targets;
pub mod walk;
