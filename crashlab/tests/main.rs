//! `crashlab` on small programs: ten with a planted bug each, ten correct ones, in `tests/programs`.

mod go;
mod init;
mod lab;
#[path = "programs.rs"]
mod programs;
mod readme;
#[path = "real.rs"]
mod real;
mod record;
mod reports;
mod stacks;
