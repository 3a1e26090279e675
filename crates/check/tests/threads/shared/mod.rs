//! What the search with threads has in common with the search over schedules (`schedules/tests/files`): the world, what is done in it,
//! and the judges.
//!
//! Each of the two has a module `own` beside this one, with a type [`setup::SearchOwn`] that says what is different there. Nothing
//! here asks for anything else of them, so what is added here is added to both.

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
