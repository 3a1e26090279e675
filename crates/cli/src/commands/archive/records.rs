//! The records of an extended header: keys and values, of which the newest of each key counts.

use super::pax::{RECORDS_BYTES_MAX, cost};
use std::collections::BTreeMap;
use std::io::{self, Error, ErrorKind};

/// Records that were read. What they take in memory is bounded.
#[derive(Clone, Default)]
pub(super) struct Records {
    values: BTreeMap<Vec<u8>, Vec<u8>>,
    cost: usize,
}

impl Records {
    /// Adds those of a header. Each is the length of all of it in decimal, a space, the key, `=`, the
    /// value, a line break.
    pub fn add(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        // Some writers fill up with zeros.
        while bytes.first().is_some_and(|byte| *byte != 0) {
            let malformed = || invalid("an extended header is malformed");
            let space = bytes.iter().position(|byte| *byte == b' ').ok_or_else(malformed)?;
            let len = usize::try_from(number(&bytes[..space])?).map_err(|_| malformed())?;
            let record = bytes.get(space + 1..len).ok_or_else(malformed)?;
            let (b'\n', record) = record.split_last().ok_or_else(malformed)? else {
                return Err(malformed());
            };
            let equals = record.iter().position(|byte| *byte == b'=');
            let (key, value) = record.split_at(equals.filter(|at| *at > 0).ok_or_else(malformed)?);
            self.put(key, &value[1..])?;
            bytes = &bytes[len..];
        }
        Ok(())
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> io::Result<()> {
        let cost_of = |value: &[u8]| cost(key.len(), value.len());
        let before = self.values.insert(key.to_vec(), value.to_vec());
        self.cost = self.cost + cost_of(value) - before.map_or(0, |value| cost_of(&value));
        match self.cost > RECORDS_BYTES_MAX {
            true => Err(invalid("its extended headers say too much")),
            false => Ok(()),
        }
    }

    pub fn get(&self, key: &[u8]) -> Option<&[u8]> {
        self.values.get(key).map(Vec::as_slice)
    }

    pub fn all(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.values.iter().map(|(key, value)| (key.as_slice(), value.as_slice()))
    }
}

/// A number in decimal.
pub(super) fn number(text: &[u8]) -> io::Result<u64> {
    let text = std::str::from_utf8(text).ok();
    text.and_then(|text| text.parse().ok())
        .ok_or_else(|| invalid("a number of an extended header is malformed"))
}

fn invalid(what: &str) -> Error {
    Error::new(ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_as_long_as_they_say() {
        let read = |bytes: &[u8]| {
            let mut records = Records::default();
            records.add(bytes).map(|()| records)
        };
        let found = read(b"12 path=a\nb\n11 key=new\n11 key=a=b\n\0\0").unwrap();
        assert_eq!(found.get(b"path"), Some(&b"a\nb"[..]));
        assert_eq!(found.get(b"key"), Some(&b"a=b"[..]), "the last one holds");
        assert_eq!(found.all().count(), 2);
        for malformed in [
            "5 a=b",
            "6 a=b\nx",
            "7 a=b\n",
            "0 a=b\n",
            "2 \n",
            "4 a\n",
            "4 =\n",
            "x a=b\n",
            "99999999999999999999 a=b\n",
        ] {
            assert!(read(malformed.as_bytes()).is_err(), "{malformed:?}");
        }
    }
}
