//! Reading an archive entry by entry, with what extended headers and GNU's long names say.
//!
//! Fields of headers are decoded by the `tar` crate. Its own reader of entries takes a line break in
//! the value of an extended attribute for the end of a record.

use std::io::{self, Error, ErrorKind, Read};
use tar::{EntryType, Header};

const BLOCK: u64 = 512;
/// Most bytes of an extended header or of a long name.
const SPECIAL_BYTES_MAX: u64 = 16 << 20;

/// Keys and values of an extended header.
type Records = Vec<(Vec<u8>, Vec<u8>)>;

/// An archive that is read from its beginning to its end.
pub(super) struct Entries<R> {
    input: R,
    /// Bytes of the current entry that were not read, and those that fill its last block.
    left: u64,
    padding: u64,
    /// Records that hold for all entries from here on.
    global: Records,
}

/// An entry. Its contents are read from [`Entries`].
pub(super) struct Found {
    pub header: Header,
    pub name: Vec<u8>,
    pub target: Vec<u8>,
    /// The later ones hold.
    pub records: Records,
}

impl<R: Read> Entries<R> {
    pub fn new(input: R) -> Self {
        Self { input, left: 0, padding: 0, global: Records::new() }
    }

    /// The next entry, once what is left of the one before is skipped.
    pub fn next(&mut self) -> io::Result<Option<Found>> {
        let (mut own, mut name, mut target) = (None, None, None);
        loop {
            self.skip()?;
            let Some(header) = self.header(own.is_some() || name.is_some() || target.is_some())? else {
                return Ok(None);
            };
            self.enter(header.entry_size()?);
            match header.entry_type() {
                EntryType::XHeader => own = Some(records(&self.special()?)?),
                EntryType::XGlobalHeader => {
                    let more = records(&self.special()?)?;
                    self.global.extend(more);
                }
                EntryType::GNULongName => name = Some(text(self.special()?)),
                EntryType::GNULongLink => target = Some(text(self.special()?)),
                _ => {
                    let records: Records =
                        self.global.iter().cloned().chain(own.unwrap_or_default()).collect();
                    let newest = |key: &[u8]| {
                        let found = records.iter().rev().find(|(name, _)| name == key);
                        found.map(|(_, value)| value.clone())
                    };
                    if let Some(size) = newest(b"size") {
                        self.enter(number(&size)?);
                    }
                    let name = newest(b"path").or(name).unwrap_or_else(|| header.path_bytes().into_owned());
                    let in_header = || header.link_name_bytes().unwrap_or_default().into_owned();
                    let target = newest(b"linkpath").or(target).unwrap_or_else(in_header);
                    return Ok(Some(Found { name, target, records, header }));
                }
            }
        }
    }

    fn enter(&mut self, size: u64) {
        self.left = size;
        self.padding = (BLOCK - size % BLOCK) % BLOCK;
    }

    fn skip(&mut self) -> io::Result<()> {
        let all = self.left + self.padding;
        let skipped = io::copy(&mut self.input.by_ref().take(all), &mut io::sink())?;
        self.enter(0);
        if skipped == all { Ok(()) } else { Err(ends_early()) }
    }

    /// The next header; `None` at the end, which is a block of zeros.
    fn header(&mut self, within: bool) -> io::Result<Option<Header>> {
        let mut header = Header::new_old();
        let read = self.input.by_ref().take(BLOCK).read(header.as_mut_bytes())?;
        if read == 0 {
            return Err(ends_early());
        }
        self.input.read_exact(&mut header.as_mut_bytes()[read..]).map_err(|_| ends_early())?;
        if header.as_bytes().iter().all(|byte| *byte == 0) {
            return if within { Err(ends_early()) } else { Ok(None) };
        }
        // The checksum's own field counts as spaces.
        let bytes = header.as_bytes();
        let sum: u32 =
            bytes[..148].iter().chain(&bytes[156..]).map(|byte| u32::from(*byte)).sum::<u32>() + 8 * 32;
        if header.cksum().ok() != Some(sum) {
            return Err(invalid("a header's checksum is wrong"));
        }
        Ok(Some(header))
    }

    fn special(&mut self) -> io::Result<Vec<u8>> {
        if self.left > SPECIAL_BYTES_MAX {
            return Err(invalid("an extended header is too large"));
        }
        let (mut bytes, left) = (Vec::new(), self.left);
        self.by_ref().read_to_end(&mut bytes)?;
        if bytes.len() as u64 == left { Ok(bytes) } else { Err(ends_early()) }
    }
}

impl<R: Read> Read for Entries<R> {
    /// Reads contents of the current entry.
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.input.by_ref().take(self.left).read(buffer)?;
        if read == 0 && self.left > 0 && !buffer.is_empty() {
            return Err(ends_early());
        }
        self.left -= read as u64;
        Ok(read)
    }
}

/// Decodes records: the length of all of it in decimal, a space, the key, `=`, the value, a line
/// break.
fn records(mut bytes: &[u8]) -> io::Result<Records> {
    let mut records = Records::new();
    // Some writers fill up with zeros.
    while bytes.first().is_some_and(|byte| *byte != 0) {
        let malformed = || invalid("an extended header is malformed");
        let space = bytes.iter().position(|byte| *byte == b' ').ok_or_else(malformed)?;
        let len = usize::try_from(number(&bytes[..space])?).map_err(|_| malformed())?;
        let record = bytes.get(space + 1..len).ok_or_else(malformed)?;
        let (key, value) = match record.split_last() {
            Some((b'\n', record)) => {
                record.split_at(record.iter().position(|byte| *byte == b'=').ok_or_else(malformed)?)
            }
            _ => return Err(malformed()),
        };
        records.push((key.to_vec(), value[1..].to_vec()));
        bytes = &bytes[len..];
    }
    Ok(records)
}

fn number(text: &[u8]) -> io::Result<u64> {
    let text = std::str::from_utf8(text).ok();
    text.and_then(|text| text.parse().ok())
        .ok_or_else(|| invalid("a number of an extended header is malformed"))
}

/// A name that ends with a zero.
fn text(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.truncate(bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len()));
    bytes
}

fn invalid(what: &str) -> Error {
    Error::new(ErrorKind::InvalidData, what)
}

fn ends_early() -> Error {
    Error::new(ErrorKind::UnexpectedEof, "it ends early")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_as_long_as_they_say() {
        let found = records(b"12 path=a\nb\n11 key=a=b\n\0\0").unwrap();
        let texts = [(b"path".to_vec(), b"a\nb".to_vec()), (b"key".to_vec(), b"a=b".to_vec())];
        assert_eq!(found, texts);
        for malformed in [
            "5 a=b",
            "6 a=b\nx",
            "7 a=b\n",
            "0 a=b\n",
            "2 \n",
            "4 a\n",
            "x a=b\n",
            "99999999999999999999 a=b\n",
        ] {
            assert!(records(malformed.as_bytes()).is_err(), "{malformed:?}");
        }
    }

    #[test]
    fn an_archive_that_ends_early_is_told_from_a_whole_one() {
        let mut builder = tar::Builder::new(Vec::new());
        let mut header = Header::new_gnu();
        header.set_size(700);
        builder.append_data(&mut header, "n".repeat(150), &[b'x'; 700][..]).unwrap();
        let whole = builder.into_inner().unwrap();
        let read = |bytes: &[u8]| {
            let mut entries = Entries::new(bytes);
            let (mut names, mut contents) = (Vec::new(), Vec::new());
            while let Some(found) = entries.next()? {
                names.push(found.name);
                entries.read_to_end(&mut contents)?;
            }
            io::Result::Ok((names, contents))
        };
        assert_eq!(read(&whole).unwrap(), (vec![vec![b'n'; 150]], vec![b'x'; 700]));
        for len in 0..whole.len() - 1024 + 512 {
            assert!(read(&whole[..len]).is_err(), "{len}");
        }
        for at in 0..1536 {
            let mut changed = whole.clone();
            changed[at] ^= 0x55;
            // A name is not protected; headers are.
            assert!(read(&changed).is_err() || (512..1024).contains(&at), "{at}");
        }
    }
}
