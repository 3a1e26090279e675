//! The extension in a real SQLite: the system's `libsqlite3.so.0`, loaded when the tests run. Where
//! there is none, they say so and pass.

mod commits;
mod connections;
mod cuts;
mod failures;
mod images;
mod programs;
mod sqlite;
