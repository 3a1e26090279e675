//! Nebari: transactions with two records each.
//!
//! Promise: ACID transactions; "do not report that a transaction has succeeded until the file is fully
//! flushed to disk" (https://docs.rs/nebari). It calls itself alpha.
//! Install: cargo, https://rustup.rs

use crate::{Result, records};
use nebari::tree::{Root, Unversioned};

pub fn run(verb: &str) -> Result<()> {
    let store = nebari::Config::default_for("db").open()?;
    let tree = store.tree(Unversioned::tree("records"))?;
    match verb {
        "setup" => Ok(()),
        "work" => records::make_changes(|_, changes| {
            let transaction = store.transaction(&[Unversioned::tree("records")])?;
            {
                let mut tree = transaction.tree::<Unversioned>(0).ok_or("the tree is not there")?;
                for (key, value) in changes {
                    tree.set(key, value)?;
                }
            }
            Ok(transaction.commit()?)
        }),
        _ => {
            let entries = tree.get_range(&(..))?;
            let found = entries.into_iter().map(|(key, value)| (key.to_vec(), value.to_vec())).collect();
            records::check(&found)
        }
    }
}
