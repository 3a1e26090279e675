//! Counts the requests of each kind.

use crate::abi::Opcode;
use serde_json::{Map, Value};
use std::sync::atomic::{AtomicU64, Ordering};

/// Opcodes of this number and above are counted together.
const KINDS: usize = 64;

/// Requests by kind.
#[derive(Debug)]
pub struct RequestCounters([AtomicU64; KINDS]);

impl Default for RequestCounters {
    fn default() -> Self {
        Self([const { AtomicU64::new(0) }; KINDS])
    }
}

impl RequestCounters {
    pub(crate) fn count(&self, opcode: u32) {
        self.0[(opcode as usize).min(KINDS - 1)].fetch_add(1, Ordering::Relaxed);
    }

    /// Requests of one kind so far, by the name that [`RequestCounters::to_json`] uses: "FSync",
    /// "Write", ...
    pub fn of(&self, name: &str) -> u64 {
        self.named().find(|(known, _)| known == name).map_or(0, |(_, count)| count)
    }

    /// All requests so far.
    pub fn total(&self) -> u64 {
        self.0.iter().map(|count| count.load(Ordering::Relaxed)).sum()
    }

    /// The kinds of which at least one request came, as a JSON object.
    pub fn to_json(&self) -> String {
        let counts: Map<String, Value> = self.named().map(|(name, count)| (name, count.into())).collect();
        Value::Object(counts).to_string()
    }

    fn named(&self) -> impl Iterator<Item = (String, u64)> + '_ {
        self.0.iter().enumerate().filter_map(|(number, count)| {
            let count = count.load(Ordering::Relaxed);
            let name =
                Opcode::from_number(number as u32).map_or("Unknown".into(), |opcode| format!("{opcode:?}"));
            (count > 0).then_some((name, count))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_counted_by_name() {
        let counters = RequestCounters::default();
        for opcode in [Opcode::FSync as u32, Opcode::FSync as u32, Opcode::Lookup as u32, u32::MAX] {
            counters.count(opcode);
        }
        assert_eq!((counters.of("FSync"), counters.of("Lookup"), counters.of("Write")), (2, 1, 0));
        assert_eq!(counters.total(), 4);
        assert_eq!(counters.to_json(), r#"{"FSync":2,"Lookup":1,"Unknown":1}"#);
    }
}
