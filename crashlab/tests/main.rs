//! `crashlab` on small programs: ten with a planted bug each, ten correct ones, in `tests/programs`.

#[path = "programs.rs"]
mod programs;
#[path = "real.rs"]
mod real;
