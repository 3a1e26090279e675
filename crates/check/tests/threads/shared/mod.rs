//! The part that the search with threads shares with the search over schedules
//! (`lab/schedules/tests/files`): the world, the operations, and the judges.
//!
//! Each search has a module `own` beside this one, with a type [`setup::SearchOwn`] for the
//! differences. Nothing here depends on anything else of theirs, so additions here extend both
//! searches.

pub mod crash;
pub mod directories;
pub mod dossier;
pub mod end;
pub mod files;
pub mod judge;
pub mod ledger;
pub mod mount;
pub mod names;
pub mod operations;
pub mod owner;
pub mod records;
pub mod setup;
pub mod watchdog;
pub mod whole;
pub mod world;
