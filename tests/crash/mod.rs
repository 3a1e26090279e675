//! The daemon ends in the middle of writes; after a new mount nothing acknowledged is lost. Also
//! the power cuts that users simulate for their own programs.

mod crashlab;
mod killed;
mod signals;
mod synchronous;
mod writers;
