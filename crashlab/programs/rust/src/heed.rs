//! heed, a wrapper of LMDB: transactions with two records each.
//!
//! Promise: transactions with "full ACID semantics", and no "special recovery procedures after a system
//! crash" (http://www.lmdb.tech/doc/).
//! Install: cargo, https://rustup.rs, and a C compiler: apt install gcc

use crate::{Result, records};
use heed::types::Bytes;
use heed::{Database, EnvOpenOptions};

pub fn run(verb: &str) -> Result<()> {
    std::fs::create_dir_all("db")?;
    // Safety: no other process uses the files, and this one opens them once.
    let store = unsafe { EnvOpenOptions::new().map_size(1 << 20).open("db")? };
    let mut transaction = store.write_txn()?;
    let database: Database<Bytes, Bytes> = store.create_database(&mut transaction, None)?;
    transaction.commit()?;
    match verb {
        "setup" => Ok(()),
        "work" => records::make_changes(|_, changes| {
            let mut transaction = store.write_txn()?;
            for (key, value) in &changes {
                database.put(&mut transaction, key, value)?;
            }
            Ok(transaction.commit()?)
        }),
        _ => {
            let transaction = store.read_txn()?;
            let mut found = records::Records::new();
            for entry in database.iter(&transaction)? {
                let (key, value) = entry?;
                found.insert(key.to_vec(), value.to_vec());
            }
            records::check(&found)
        }
    }
}
