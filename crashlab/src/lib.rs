//! Finds the power cut that breaks a program, on any filesystem.
//!
//! [`record`] runs a program in a [filesystem of its own](serve) and writes down what it does, as a
//! [`Recording`] of [`Action`]s. A [`Model`] says which of these changes a power cut may take away: an
//! fsync makes some [durable], and others survive only together. A [`Plan`] lists states that the model
//! allows, an [`Explorer`] makes the [`Tree`] of each and asks a [`Judge`], and [`explain`](fn@explain)
//! says which sync is missing. [`real`] takes the trees from the kernel's own filesystems instead, and
//! compares the models with them. [`Lab`] does all of it in a test.
#![deny(unsafe_code)]

#[expect(missing_docs, reason = "the fields of actions say what they are")]
mod action;
mod blocks;
mod built_in;
mod checker;
pub mod commands;
mod contents;
mod durable;
mod error;
mod explain;
mod explore;
mod export;
mod history;
mod kernel;
mod lab;
mod leftovers;
mod losses;
mod missing;
mod model;
mod operation;
mod output;
mod plan;
pub mod real;
mod record;
mod recording;
mod report;
#[cfg(test)]
mod rules;
mod search;
mod serve;
mod stack;
mod state;
mod symbols;
mod tree;
mod unwind;

pub use action::{Action, Event, Ino, Name, ROOT, Stored, What};
pub use blocks::BLOCK_BYTES;
pub use built_in::BuiltIn;
pub use checker::Checker;
pub use contents::Contents;
pub use durable::Durable;
pub use error::Error;
pub use explain::{Explained, explain};
pub use explore::{Case, Counts, Explorer, Failing, Found, Judge, Limits, Verdict};
pub use export::export;
pub use history::{History, Paths, describe};
pub use lab::Lab;
pub use losses::Losses;
pub use missing::{Addition, Missing};
pub use model::{DataOrder, Logged, MODELS, Model, NameOrder, Part, Reach, Skips, Unit};
pub use operation::{Fate, Operation, Operations, Sort};
pub use plan::{Open, Plan, Stretch, stretches};
pub use record::{Environment, Outcome, record};
pub use recording::{Caller, Recorder, Recording, VERSION};
pub use search::{Allowed, explanation};
pub use stack::{Module, Place, Stacks};
pub use state::State;
pub use symbols::{Frame, Symbols};
pub use tree::{Kind, Node, Tree};
