//! sled: batches of two records, and a flush after each.
//!
//! Promise: a batch is applied atomically, and after flush() "it is guaranteed that all previous writes
//! will be recovered if the system crashes"
//! (https://docs.rs/sled/0.34/sled/struct.Tree.html#method.flush).
//! Install: cargo, https://rustup.rs

use crate::{Result, records};

pub fn run(verb: &str) -> Result<()> {
    let store = sled::Config::new().path("db").flush_every_ms(None).open()?;
    match verb {
        "setup" => {
            store.flush()?;
            Ok(())
        }
        "work" => records::make_changes(|_, changes| {
            let mut batch = sled::Batch::default();
            for (key, value) in changes {
                batch.insert(key, value);
            }
            store.apply_batch(batch)?;
            store.flush()?;
            Ok(())
        }),
        _ => {
            let mut found = records::Records::new();
            for entry in store.iter() {
                let (key, value) = entry?;
                found.insert(key.to_vec(), value.to_vec());
            }
            records::check(&found)
        }
    }
}
