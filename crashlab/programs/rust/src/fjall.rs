//! fjall: batches of two records, each persisted with SyncAll, and a flush to a table after every second.
//!
//! Promise: a batch is atomic, and SyncAll "flushes data + metadata using fsync", so that they survive
//! (https://docs.rs/fjall/latest/fjall/enum.PersistMode.html).
//! Install: cargo, https://rustup.rs

use crate::{Result, records};
use fjall::{Database, KeyspaceCreateOptions, PersistMode};

pub fn run(verb: &str) -> Result<()> {
    let store = Database::builder("db").open()?;
    let keyspace = store.keyspace("records", KeyspaceCreateOptions::default)?;
    match verb {
        "setup" => Ok(store.persist(PersistMode::SyncAll)?),
        "work" => records::make_changes(|number, changes| {
            let mut batch = store.batch();
            for (key, value) in changes {
                batch.insert(&keyspace, key, value);
            }
            batch.commit()?;
            store.persist(PersistMode::SyncAll)?;
            if number % 2 == 0 {
                keyspace.rotate_memtable_and_wait()?;
            }
            Ok(())
        }),
        _ => {
            let mut found = records::Records::new();
            for entry in keyspace.iter() {
                let (key, value) = entry.into_inner()?;
                found.insert(key.to_vec(), value.to_vec());
            }
            records::check(&found)
        }
    }
}
