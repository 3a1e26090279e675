//! Reading an archive entry by entry, with what extended headers and GNU's long names say.
//!
//! Fields of headers are decoded by the `tar` crate. Its own reader of entries takes a line break in
//! the value of an extended attribute for the end of a record.

use super::records::{Records, number};
use std::io::{self, Error, ErrorKind, Read};
use std::rc::Rc;
use tar::{EntryType, Header};

const BLOCK: u64 = 512;
/// Most bytes of an extended header or of a long name.
const SPECIAL_BYTES_MAX: u64 = super::pax::RECORDS_BYTES_MAX as u64;
/// GNU tar's entry for the label of a volume, which is no file.
const LABEL: u8 = b'V';

/// An archive that is read from its beginning to its end.
pub(super) struct Entries<R> {
    input: R,
    /// Bytes of the current entry that were not read, and those that fill its last block.
    left: u64,
    padding: u64,
    /// Records that hold for all entries from here on.
    global: Rc<Records>,
}

/// An entry. Its contents are read from [`Entries`].
pub(super) struct Found {
    pub header: Header,
    pub name: Vec<u8>,
    pub target: Vec<u8>,
    own: Records,
    global: Rc<Records>,
}

impl Found {
    /// The value of a keyword: the entry's own, or the one for all. An empty one takes the value for
    /// all away, as POSIX says.
    pub fn value(&self, key: &[u8]) -> Option<&[u8]> {
        self.own.get(key).or_else(|| self.global.get(key)).filter(|value| !value.is_empty())
    }

    /// All keywords with their values, which may be empty.
    pub fn all(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let global = self.global.all().filter(|(key, _)| self.own.get(key).is_none());
        self.own.all().chain(global)
    }
}

impl<R: Read> Entries<R> {
    pub fn new(input: R) -> Self {
        Self { input, left: 0, padding: 0, global: Rc::default() }
    }

    /// The next entry, once what is left of the one before is skipped.
    pub fn next(&mut self) -> io::Result<Option<Found>> {
        let (mut own, mut name, mut target) = (None, None, None);
        loop {
            self.skip()?;
            let Some(header) = self.header(own.is_some() || name.is_some() || target.is_some())? else {
                return Ok(None);
            };
            self.enter(header.entry_size()?)?;
            match header.entry_type() {
                EntryType::XHeader => {
                    let mut records = Records::default();
                    records.add(&self.special()?)?;
                    own = Some(records);
                }
                EntryType::XGlobalHeader => {
                    let more = self.special()?;
                    Rc::make_mut(&mut self.global).add(&more)?;
                }
                EntryType::GNULongName => name = Some(text(self.special()?)),
                EntryType::GNULongLink => target = Some(text(self.special()?)),
                kind if kind.as_byte() == LABEL => (own, name, target) = (None, None, None),
                _ => {
                    let (own, global) = (own.unwrap_or_default(), self.global.clone());
                    let mut found = Found { name: Vec::new(), target: Vec::new(), own, global, header };
                    if let Some(size) = found.value(b"size") {
                        self.enter(number(size)?)?;
                    }
                    let newest = |key: &[u8]| found.value(key).map(<[u8]>::to_vec);
                    let in_header = || found.header.link_name_bytes().unwrap_or_default().into_owned();
                    target = Some(newest(b"linkpath").or(target).unwrap_or_else(in_header));
                    let in_header = || found.header.path_bytes().into_owned();
                    name = Some(newest(b"path").or(name).unwrap_or_else(in_header));
                    (found.name, found.target) = (name.unwrap_or_default(), target.unwrap_or_default());
                    return Ok(Some(found));
                }
            }
        }
    }

    fn enter(&mut self, size: u64) -> io::Result<()> {
        let padding = (BLOCK - size % BLOCK) % BLOCK;
        if size.checked_add(padding).is_none() {
            return Err(invalid("an entry is larger than any archive"));
        }
        (self.left, self.padding) = (size, padding);
        Ok(())
    }

    fn skip(&mut self) -> io::Result<()> {
        let all = self.left + self.padding;
        let skipped = io::copy(&mut self.input.by_ref().take(all), &mut io::sink())?;
        (self.left, self.padding) = (0, 0);
        if skipped == all { Ok(()) } else { Err(ends_early()) }
    }

    /// The next header; `None` at the end, which is a block of zeros and nothing but zeros behind it.
    fn header(&mut self, within: bool) -> io::Result<Option<Header>> {
        let mut header = Header::new_old();
        let read = self.input.by_ref().take(BLOCK).read(header.as_mut_bytes())?;
        if read == 0 {
            return Err(ends_early());
        }
        self.input.read_exact(&mut header.as_mut_bytes()[read..]).map_err(|error| match error.kind() {
            ErrorKind::UnexpectedEof => ends_early(),
            _ => error,
        })?;
        if is_zero(header.as_bytes()) {
            self.require_end()?;
            return if within { Err(ends_early()) } else { Ok(None) };
        }
        // The checksum's own field counts as spaces.
        let bytes = header.as_bytes();
        let sum: u32 =
            bytes[..148].iter().chain(&bytes[156..]).map(|byte| u32::from(*byte)).sum::<u32>() + 8 * 32;
        if header.cksum().ok() != Some(sum) {
            return Err(match is_compressed(header.as_bytes()) {
                true => Error::new(ErrorKind::Unsupported, "it is compressed"),
                false => invalid("a header's checksum is wrong"),
            });
        }
        Ok(Some(header))
    }

    /// Reads up to the end of the input. A header that was lost is a block of zeros too.
    fn require_end(&mut self) -> io::Result<()> {
        let mut buffer = vec![0; 64 << 10];
        loop {
            match self.input.read(&mut buffer) {
                Ok(0) => return Ok(()),
                Ok(read) if !is_zero(&buffer[..read]) => {
                    return Err(invalid("something follows its end, so a part of it may be lost"));
                }
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
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

fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}

/// A name that ends with a zero.
fn text(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.truncate(bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len()));
    bytes
}

/// True if it begins as gzip, Zstandard, xz, bzip2 or LZ4 do.
fn is_compressed(bytes: &[u8]) -> bool {
    const MAGIC: [&[u8]; 5] =
        [&[0x1f, 0x8b], &[0x28, 0xb5, 0x2f, 0xfd], b"\xfd7zXZ", b"BZh", &[0x04, 0x22, 0x4d, 0x18]];
    MAGIC.iter().any(|magic| bytes.starts_with(magic))
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

    fn with_special(kind: EntryType, specials: &[&[u8]]) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut put = |kind: EntryType, contents: &[u8]| {
            let mut header = Header::new_ustar();
            header.set_entry_type(kind);
            header.set_size(contents.len() as u64);
            header.set_path("in the header").unwrap();
            header.set_cksum();
            bytes.extend_from_slice(header.as_bytes());
            bytes.extend_from_slice(contents);
            bytes.resize(bytes.len().next_multiple_of(512), 0);
        };
        specials.iter().for_each(|special| put(kind, special));
        put(EntryType::Fifo, b"");
        bytes.resize(bytes.len() + 1024, 0);
        bytes
    }

    #[test]
    fn global_headers_together_have_a_limit() {
        let record = |key: usize| {
            let text = format!("8388608 {key:04}={}\n", "x".repeat((8 << 20) - 14));
            assert_eq!(text.len(), 8 << 20);
            text.into_bytes()
        };
        let read = |keys: &[usize]| {
            let records: Vec<Vec<u8>> = keys.iter().map(|key| record(*key)).collect();
            let specials: Vec<&[u8]> = records.iter().map(Vec::as_slice).collect();
            Entries::new(&with_special(EntryType::XGlobalHeader, &specials)[..]).next().map(|_| ())
        };
        assert!(read(&[1; 12]).is_ok(), "only the newest value counts");
        assert!(read(&[1, 2, 3, 4, 5, 6, 7]).is_ok());
        assert!(read(&[1, 2, 3, 4, 5, 6, 7, 8]).is_err());
    }

    #[test]
    fn a_label_is_no_entry_and_an_empty_value_stands_for_none() {
        let labelled = with_special(EntryType::new(LABEL), &[b""]);
        let mut entries = Entries::new(&labelled[..]);
        assert_eq!(entries.next().unwrap().unwrap().header.entry_type(), EntryType::Fifo);
        assert!(entries.next().unwrap().is_none());
        let emptied = with_special(EntryType::XHeader, &[b"8 path=\n8 size=\n11 mtime=5\n"]);
        let found = Entries::new(&emptied[..]).next().unwrap().unwrap();
        assert_eq!(found.name, b"in the header");
        assert_eq!((found.value(b"path"), found.value(b"mtime")), (None, Some(&b"5"[..])));
    }

    #[test]
    fn a_size_that_no_archive_can_have_is_refused() {
        let mut header = Header::new_gnu();
        header.set_entry_type(EntryType::Directory);
        header.set_size(u64::MAX);
        header.set_cksum();
        let bytes = [&header.as_bytes()[..], &[0; 1024]].concat();
        let mut entries = Entries::new(&bytes[..]);
        assert!(entries.next().and_then(|_| entries.next()).is_err());
    }

    #[test]
    fn a_block_of_zeros_before_another_header_is_no_end() {
        let mut builder = tar::Builder::new(Vec::new());
        for name in ["a", "b"] {
            let mut header = Header::new_gnu();
            header.set_size(0);
            builder.append_data(&mut header, name, io::empty()).unwrap();
        }
        let mut bytes = builder.into_inner().unwrap();
        bytes[..512].fill(0);
        assert!(Entries::new(&bytes[..]).next().is_err());
        bytes[512..1024].fill(0);
        assert!(Entries::new(&bytes[..]).next().unwrap().is_none());
    }
}
