//! Canopydb: transactions with two records each, committed with sync, and a checkpoint after every second.
//!
//! Promise: "ACID guarantees" (https://docs.rs/canopydb), and `commit_with(true)` does "a durable `fsync` to make
//! the transaction (and all the ones before it) durable in the storage"
//! (https://docs.rs/canopydb/latest/canopydb/struct.WriteTransaction.html#method.commit_with).
//! Install: cargo, https://rustup.rs

use crate::{Result, records};
use canopydb::Database;

const TREE: &[u8] = b"records";

pub fn run(verb: &str) -> Result<()> {
    // It does not make its folder.
    std::fs::create_dir_all("db")?;
    let store = Database::new("db")?;
    match verb {
        "setup" => {
            let transaction = store.begin_write()?;
            transaction.get_or_create_tree(TREE)?;
            transaction.commit_with(true)?;
            Ok(())
        }
        "work" => records::make_changes(|number, changes| {
            let transaction = store.begin_write()?;
            {
                let mut tree = transaction.get_or_create_tree(TREE)?;
                for (key, value) in &changes {
                    tree.insert(key, value)?;
                }
            }
            transaction.commit_with(true)?;
            if number % 2 == 0 {
                store.checkpoint()?;
            }
            Ok(())
        }),
        _ => {
            let mut found = records::Records::new();
            let transaction = store.begin_read()?;
            let tree = transaction.get_tree(TREE)?.ok_or("the tree is lost")?;
            for entry in tree.iter()? {
                let (key, value) = entry?;
                found.insert(key.to_vec(), value.to_vec());
            }
            records::check(&found)
        }
    }
}
