//! Copies of many files into one directory, with one call: `syncline clone`.

use super::client::ask_about;
use super::wire::{ControlIn, MESSAGE_BYTES, Question};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Bytes that one call has for its entries.
const ENTRIES_BYTES: usize = MESSAGE_BYTES - size_of::<ControlIn>();
/// The most files of one call, which keeps a thread of the daemon busy meanwhile.
const FILES_MAX: usize = 256;
/// Bytes of an entry before its name: the number of the file, and the length of the name.
const HEAD_BYTES: usize = 8 + 2;

/// How far one call has come.
#[derive(Debug, Default)]
pub struct Clones {
    /// How many files were copied, from the first on.
    pub made: usize,
    /// The sum of their sizes.
    pub bytes: u64,
    /// The error that the next file met; EOPNOTSUPP if it has to be copied step by step.
    pub error: Option<io::Error>,
}

/// Makes copies of files, given by their inode numbers, in an open directory of the same mount, each under its
/// name. A copy has all attributes of its file and shares its blocks. One call makes a part of the copies; ask
/// again for the rest. EPERM without CAP_DAC_READ_SEARCH and CAP_SYS_ADMIN, as root has them; EOPNOTSUPP if the daemon
/// is an older one.
///
/// A copy has the stores through mappings that were synced before the call. A later sync of the filesystem makes the
/// copies durable. The kernel may still remember their names as missing: call [`show_clones`] at the end.
pub fn clone_files<'a>(
    directory: &File,
    files: impl IntoIterator<Item = (u64, &'a OsStr)>,
) -> io::Result<Clones> {
    let mut entries = Vec::new();
    for (ino, name) in files.into_iter().take(FILES_MAX) {
        let len = u16::try_from(name.len())
            .ok()
            .filter(|_| entries.len() + HEAD_BYTES + name.len() <= ENTRIES_BYTES);
        let Some(len) = len else { break };
        entries.extend_from_slice(&ino.to_ne_bytes());
        entries.extend_from_slice(&len.to_ne_bytes());
        entries.extend_from_slice(name.as_bytes());
    }
    let len = entries.len() as u64;
    let question = ControlIn::new(Question::CloneFiles, "", 0, len).expect("an empty name fits");
    let (answer, page) = ask_about(directory, &question, &entries)?;
    let errno = page.first_chunk().map_or(0, |errno| i32::from_ne_bytes(*errno));
    let error = (errno != 0).then(|| io::Error::from_raw_os_error(errno));
    Ok(Clones { made: answer.total as usize, bytes: answer.snapshot, error })
}

/// Makes the kernel forget that it found names in a directory missing before [`clone_files`] made files there.
pub fn show_clones(directory: &Path) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if is_missing(&path)? {
            // The daemon refuses because the name exists, and the kernel drops its memory of the name. If the file
            // has been removed, the directory is made and goes again.
            if fs::create_dir(&path).is_ok() {
                fs::remove_dir(&path)?;
            }
        }
    }
    Ok(())
}

/// True if the kernel remembers the name as missing. An open with O_PATH sends no request for a name that the kernel
/// knows.
fn is_missing(path: &Path) -> io::Result<bool> {
    match File::options().read(true).custom_flags(libc::O_PATH | libc::O_NOFOLLOW).open(path) {
        Ok(_) => Ok(false),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
        Err(error) => Err(error),
    }
}

/// The entries of a question: inode numbers and names. `None` if they are malformed.
pub(crate) fn entries(mut bytes: &[u8]) -> Option<Vec<(u64, &[u8])>> {
    let mut entries = Vec::new();
    while !bytes.is_empty() {
        let (ino, rest) = bytes.split_first_chunk()?;
        let (len, rest) = rest.split_first_chunk()?;
        let (name, rest) = rest.split_at_checked(u16::from_ne_bytes(*len).into())?;
        entries.push((u64::from_ne_bytes(*ino), name));
        bytes = rest;
    }
    (entries.len() <= FILES_MAX).then_some(entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn malformed_entries_are_refused() {
        let entry =
            |ino: u64, len: u16, name: &[u8]| [&ino.to_ne_bytes()[..], &len.to_ne_bytes(), name].concat();
        let two = [entry(7, 3, b"one"), entry(9, 1, b"2")].concat();
        assert_eq!(entries(&two).unwrap(), [(7, &b"one"[..]), (9, b"2")]);
        assert_eq!(entries(&[]).unwrap(), []);
        for len in 1..two.len() {
            assert_eq!(entries(&two[..len]).is_some(), len == 13, "{len}");
        }
        assert!(entries(&entry(7, u16::MAX, b"short")).is_none());
        assert!(entries(&entry(1, 1, b"x").repeat(FILES_MAX + 1)).is_none());
    }
}
