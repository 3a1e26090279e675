//! The power cuts of `syncline crashlab`: records what a program does on a mount, makes from the record
//! every state that a power cut could have left, recovers each, and shows it to a checker.
//!
//! A [`Recorder`] sits under the engine while the program runs; a [`Recording`] is the result, with
//! the image that it started from. [`points`] divides it into stretches, at whose borders something
//! became durable or was acknowledged; [`states`] lists the states of each stretch worth exploring.
//! An [`Explorer`] recovers them, skips those whose file tree it has seen, and asks a [`Judge`];
//! [`reduce`] looks for the simplest state that still fails. [`describe`] says what a state has
//! lost.
#![forbid(unsafe_code)]

mod base;
mod describe;
mod error;
mod explore;
mod export;
mod file;
mod names;
mod points;
mod recorder;
mod recording;
mod reduce;
mod state;
mod states;
mod tree;

pub use base::{BASE_BYTES_MAX, Base, load};
pub use describe::{Described, describe, describe_next};
pub use error::CutsError;
pub use explore::{Case, Counts, Explorer, Failing, Judge, Verdict};
pub use export::export;
pub use file::{FILE_VERSION, read, write};
pub use names::Names;
pub use points::{Cause, Point, Stretch, points, stretches};
pub use recorder::Recorder;
pub use recording::{Info, Mark, MarkKind, Recording};
pub use reduce::reduce;
pub use state::{Choice, State};
pub use states::{Planned, StateOptions, plan};
