//! jammdb: transactions with two records each.
//!
//! Promise: "ACID compliance" (https://docs.rs/jammdb).
//! Install: cargo, https://rustup.rs

use crate::{Result, records};
use jammdb::DB;

pub fn run(verb: &str) -> Result<()> {
    let store = DB::open("test.jamm")?;
    match verb {
        "setup" => {
            let transaction = store.tx(true)?;
            transaction.get_or_create_bucket("records")?;
            Ok(transaction.commit()?)
        }
        "work" => records::make_changes(|_, changes| {
            let transaction = store.tx(true)?;
            let bucket = transaction.get_bucket("records")?;
            for (key, value) in changes {
                bucket.put(key, value)?;
            }
            Ok(transaction.commit()?)
        }),
        _ => {
            let transaction = store.tx(false)?;
            let bucket = transaction.get_bucket("records")?;
            let mut found = records::Records::new();
            for entry in bucket.kv_pairs() {
                found.insert(entry.key().to_vec(), entry.value().to_vec());
            }
            records::check(&found)
        }
    }
}
