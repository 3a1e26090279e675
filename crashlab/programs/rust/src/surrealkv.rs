//! SurrealKV: transactions with two records each, committed with Durability::Immediate.
//!
//! Promise: Immediate makes "the commit wait for a sync of the write-ahead log before it returns"
//! (https://docs.rs/surrealkv).
//! Install: cargo, https://rustup.rs

use crate::{Result, records};
use surrealkv::{Durability, LSMIterator, TreeBuilder};

pub fn run(verb: &str) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let _context = runtime.enter();
    let store = TreeBuilder::new().with_path("db".into()).build()?;
    match verb {
        "setup" => Ok(runtime.block_on(store.close())?),
        "work" => records::make_changes(|_, changes| {
            let mut transaction = store.begin()?;
            transaction.set_durability(Durability::Immediate);
            for (key, value) in changes {
                transaction.set(key, value)?;
            }
            Ok(runtime.block_on(transaction.commit())?)
        }),
        _ => {
            let mut found = records::Records::new();
            let transaction = store.begin()?;
            let mut entries = transaction.iter()?;
            entries.seek_first()?;
            while entries.valid() {
                found.insert(entries.key().user_key().to_vec(), entries.value()?.to_vec());
                entries.next()?;
            }
            records::check(&found)
        }
    }
}
