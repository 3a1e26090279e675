//! Writing an archive: an entry for each name, in GNU's format with extended headers.

use super::pax;
use super::untar::PATH_BYTES_MAX;
use crate::failure::{Cause, Failure};
use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::mem::ManuallyDrop;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use syncline::{Error, File, FileType, Filesystem, Metadata};
use tar::{Builder, EntryType, Header};

/// Bytes of a name in a header.
const NAME_BYTES: usize = 100;

/// Writes everything that a filesystem has. Returns how many sockets were left out.
pub(super) fn write(fs: &Filesystem, image: &Path, output: impl Write) -> Result<u64, Failure> {
    // A builder that is dropped ends the archive, so that one that was given up would look whole.
    let builder = ManuallyDrop::new(Builder::new(output));
    let mut archive = Archive { fs, image, builder, names: HashMap::new() };
    let mut left_out = 0;
    let root = Path::new("/");
    let metadata = fs.symlink_metadata(root).map_err(|error| archive.unread(root, error))?;
    archive.entry(root, &metadata)?;
    for entry in fs.walk_dir(root).map_err(|error| archive.unread(root, error))? {
        let entry = entry.map_err(|error| archive.unread(root, error))?;
        let path = entry.path();
        archive.require_openable(&path)?;
        let metadata = entry.metadata().map_err(|error| archive.unread(&path, error))?;
        match metadata.file_type() {
            FileType::Socket => left_out += 1,
            _ => archive.entry(&path, &metadata)?,
        }
    }
    ManuallyDrop::into_inner(archive.builder)
        .into_inner()
        .and_then(|mut output| output.flush())
        .map_err(unwritten)?;
    Ok(left_out)
}

struct Archive<'a, W: Write> {
    fs: &'a Filesystem,
    image: &'a Path,
    builder: ManuallyDrop<Builder<W>>,
    /// The first name of each inode with several.
    names: HashMap<u64, PathBuf>,
}

impl<W: Write> Archive<'_, W> {
    fn unread(&self, path: &Path, error: Error) -> Failure {
        let failure = Failure::from(error).of_reading_only();
        let text = format!("{}:{}: {failure}", self.image.display(), path.display());
        failure.with_text(text).next("the archive is incomplete; 'syncline check' tells what is damaged")
    }

    /// By renaming directories paths become longer than a call can name.
    fn require_openable(&self, path: &Path) -> Result<(), Failure> {
        if path.as_os_str().len() < PATH_BYTES_MAX {
            return Ok(());
        }
        let end = path.file_name().unwrap_or_default().display();
        let text = format!("{}: the path of a file {end:?} has 4096 bytes or more", self.image.display());
        Err(Failure::new(text).next("move it up, make another snapshot, and archive that"))
    }

    fn entry(&mut self, path: &Path, metadata: &Metadata) -> Result<(), Failure> {
        let mut header = Header::new_gnu();
        let mut records: Vec<(String, Vec<u8>)> = Vec::new();
        // As `tar -C / -c .` would: relative, and a directory's with a slash at its end.
        let mut name = Path::new(".").join(path.strip_prefix("/").unwrap_or(path)).into_os_string();
        if metadata.is_dir() && !name.as_bytes().ends_with(b"/") {
            name.push("/");
        }
        put_name(&mut header.as_old_mut().name, "path", name.as_bytes(), &mut records);
        let attributes = metadata.attributes();
        header.set_mode(u32::from(metadata.permissions()));
        header.set_uid(metadata.uid().into());
        header.set_gid(metadata.gid().into());
        header.set_size(0);
        header.set_mtime(attributes.mtime.seconds.try_into().unwrap_or(0));
        if attributes.mtime.nanoseconds > 0 || attributes.mtime.seconds < 0 {
            records.push(("mtime".to_owned(), pax::time_text(attributes.mtime).into_bytes()));
        }
        let first = self.names.get(&metadata.ino()).cloned();
        if let Some(first) = first {
            header.set_entry_type(EntryType::Link);
            put_name(
                &mut header.as_old_mut().linkname,
                "linkpath",
                first.as_os_str().as_bytes(),
                &mut records,
            );
            return self.append(&mut header, &records, io::empty());
        }
        if !metadata.is_dir() && metadata.nlink() > 1 {
            self.names.insert(metadata.ino(), PathBuf::from(&name));
        }
        self.xattrs(path, metadata, &mut records)?;
        match metadata.file_type() {
            FileType::Regular => return self.file(path, metadata, header, &records),
            FileType::Symlink => {
                let target = self.fs.read_link(path).map_err(|error| self.unread(path, error))?;
                let target = target.as_os_str().as_bytes();
                put_name(&mut header.as_old_mut().linkname, "linkpath", target, &mut records);
                header.set_entry_type(EntryType::Symlink);
            }
            FileType::Directory => header.set_entry_type(EntryType::Directory),
            FileType::Fifo | FileType::Socket => header.set_entry_type(EntryType::Fifo),
            kind @ (FileType::CharDevice | FileType::BlockDevice) => {
                let is_block = kind == FileType::BlockDevice;
                header.set_entry_type(if is_block { EntryType::Block } else { EntryType::Char });
                let device = metadata.rdev().into();
                header.set_device_major(rustix::fs::major(device)).map_err(unwritten)?;
                header.set_device_minor(rustix::fs::minor(device)).map_err(unwritten)?;
            }
        }
        self.append(&mut header, &records, io::empty())
    }

    fn xattrs(
        &self,
        path: &Path,
        metadata: &Metadata,
        records: &mut Vec<(String, Vec<u8>)>,
    ) -> Result<(), Failure> {
        // Reading those of a link would read those of what it leads to.
        if metadata.is_symlink() {
            return Ok(());
        }
        for name in self.fs.xattrs(path).map_err(|error| self.unread(path, error))? {
            let value = self.fs.xattr(path, &name).map_err(|error| self.unread(path, error))?;
            // A record's name is text, and ends at the first `=`.
            match (name.to_str().filter(|name| !name.contains('=')), value) {
                (Some(name), Some(value)) => records.push((format!("{}{name}", pax::XATTR), value)),
                (None, Some(_)) => {
                    note!(
                        "syncline: {}: the attribute {} is left out: an archive can't name it",
                        path.display(),
                        name.display()
                    );
                }
                (_, None) => {}
            }
        }
        let cost: usize = records.iter().map(|(name, value)| pax::cost(name.len(), value.len())).sum();
        if cost > pax::RECORDS_BYTES_MAX {
            let text = format!(
                "{}:{}: its extended attributes are more than the {} MiB that an archive can have of a file",
                self.image.display(),
                path.display(),
                pax::RECORDS_BYTES_MAX >> 20
            );
            return Err(Failure::new(text).next("send the snapshot as a stream ('syncline send')"));
        }
        Ok(())
    }

    fn file(
        &mut self,
        path: &Path,
        metadata: &Metadata,
        mut header: Header,
        records: &[(String, Vec<u8>)],
    ) -> Result<(), Failure> {
        let file = self.fs.open_file(path).map_err(|error| self.unread(path, error))?;
        header.set_size(metadata.len());
        let mut reader = Reading { file: &file, left: metadata.len(), failed: None };
        let appended = self.append(&mut header, records, &mut reader);
        match reader.failed {
            Some(error) => Err(self.unread(path, error)),
            None => appended,
        }
    }

    fn append(
        &mut self,
        header: &mut Header,
        records: &[(String, Vec<u8>)],
        data: impl Read,
    ) -> Result<(), Failure> {
        let records = records.iter().map(|(name, value)| (name.as_str(), value.as_slice()));
        self.builder.append_pax_extensions(records).map_err(unwritten)?;
        header.set_cksum();
        self.builder.append(header, data).map_err(unwritten)
    }
}

/// Writes a name where a header has it, and into a record too if that has no room or it is not plain.
fn put_name(field: &mut [u8; NAME_BYTES], record: &str, name: &[u8], records: &mut Vec<(String, Vec<u8>)>) {
    let len = name.len().min(NAME_BYTES);
    field[..len].copy_from_slice(&name[..len]);
    if name.len() > NAME_BYTES || !name.is_ascii() {
        records.push((record.to_owned(), name.to_vec()));
    }
}

/// The contents of a file, as many bytes as its header says, and what failed.
struct Reading<'a> {
    file: &'a File,
    left: u64,
    failed: Option<Error>,
}

impl Read for Reading<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let len = buffer.len().min(self.left.try_into().unwrap_or(usize::MAX));
        if len == 0 {
            return Ok(0);
        }
        let offset = self.file.metadata().map(|metadata| metadata.len() - self.left);
        match offset.and_then(|offset| self.file.read_at(&mut buffer[..len], offset)) {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(read) => {
                self.left -= read as u64;
                Ok(read)
            }
            Err(error) => {
                self.failed = Some(error);
                Err(io::ErrorKind::Other.into())
            }
        }
    }
}

fn unwritten(error: io::Error) -> Failure {
    Failure::of(Cause::from(&error), format!("the archive: {error}"))
        .next("nothing of it is of use; write it again")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_that_was_given_up_does_not_end_as_a_whole_one_does() {
        let fs = Filesystem::in_memory(32 << 20).unwrap();
        let deep = |top: &str| format!("/{top}{}", format!("/{}", "d".repeat(200)).repeat(15));
        fs.create_dir_all(deep("a")).unwrap();
        fs.create_dir_all(deep("b")).unwrap();
        fs.rename("/b", format!("{}/b", deep("a"))).unwrap();
        let mut output = Vec::new();
        let failure = write(&fs, Path::new("image"), &mut output).unwrap_err().to_string();
        assert!(failure.contains("4096 bytes or more; move it up"), "{failure}");
        assert!(!output.is_empty() && !output.ends_with(&[0; 1024]));
    }
}
