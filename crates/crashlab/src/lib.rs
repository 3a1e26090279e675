//! The crash laboratory for users: what a program does on a mount is recorded, and every state that a power cut could have
//! left is made from the record, recovered, and shown to a checker.
//!
//! A [`Recorder`] lies under the engine while the program runs; a [`Recording`] is what it saw, with the image that it
//! started from. [`points`] divides it into stretches at whose borders something became durable or was told to somebody;
//! [`states`] lists the states of each that are worth looking at. An [`Explorer`] recovers them, leaves out those whose file
//! tree it has seen, and asks a [`Judge`]; [`reduce`] looks for the simplest state that still fails. [`describe`] says what a
//! state has lost.
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
pub use describe::{Described, describe};
pub use error::CrashlabError;
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
