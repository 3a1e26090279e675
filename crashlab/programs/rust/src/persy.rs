//! Persy: transactions that put two records into an index.
//!
//! Promise: "durable, isolated, consistent, and atomic", and "it guarantee the persistence of data even in
//! case of crash" (https://docs.rs/persy).
//! Install: cargo, https://rustup.rs

use crate::{Result, records};
use persy::{ByteVec, Config, Persy, ValueMode};

pub fn run(verb: &str) -> Result<()> {
    if verb == "setup" {
        Persy::create("test.persy")?;
    }
    let store = Persy::open("test.persy", Config::new())?;
    match verb {
        "setup" => {
            let mut transaction = store.begin()?;
            transaction.create_index::<ByteVec, ByteVec>("records", ValueMode::Replace)?;
            Ok(transaction.prepare()?.commit()?)
        }
        "work" => records::make_changes(|_, changes| {
            let mut transaction = store.begin()?;
            for (key, value) in changes {
                transaction.put("records", ByteVec::new(key), ByteVec::new(value))?;
            }
            Ok(transaction.prepare()?.commit()?)
        }),
        _ => {
            let mut found = records::Records::new();
            for (key, values) in store.range::<ByteVec, ByteVec, _>("records", ..)? {
                for value in values {
                    found.insert(key.to_vec(), value.to_vec());
                }
            }
            records::check(&found)
        }
    }
}
