//! redb: transactions with two records each.
//!
//! Promise: "fully ACID-compliant transactions" and "crash-safe by default" (https://docs.rs/redb).
//! Install: cargo, https://rustup.rs

use crate::{Result, records};
use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition};

const TABLE: TableDefinition<&[u8], &[u8]> = TableDefinition::new("records");

pub fn run(verb: &str) -> Result<()> {
    let mut store = Database::create("test.redb")?;
    match verb {
        "setup" => {
            let transaction = store.begin_write()?;
            transaction.open_table(TABLE)?;
            Ok(transaction.commit()?)
        }
        "work" => records::make_changes(|_, changes| {
            let transaction = store.begin_write()?;
            {
                let mut table = transaction.open_table(TABLE)?;
                for (key, value) in &changes {
                    table.insert(&key[..], &value[..])?;
                }
            }
            Ok(transaction.commit()?)
        }),
        _ => {
            store.check_integrity()?;
            let table = store.begin_read()?.open_table(TABLE)?;
            let mut found = records::Records::new();
            for entry in table.iter()? {
                let (key, value) = entry?;
                found.insert(key.value().to_vec(), value.value().to_vec());
            }
            records::check(&found)
        }
    }
}
