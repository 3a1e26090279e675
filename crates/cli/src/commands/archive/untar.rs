//! Unpacking an archive into a filesystem. Nothing in it leads out of the directory that it is
//! unpacked into, and nothing that is there is replaced.

use super::attributes::{Attributes, ROOT};
use super::directories::Directories;
use super::entries::{Entries, Found};
use crate::failure::{Cause, Failure};
use bytes::Bytes;
use std::ffi::OsStr;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use syncline::{Error, FileType, Filesystem};
use syncline_device::block_on;
use syncline_fs::FsError;
use syncline_fs::types::{Ino, SetAttributes};
use tar::EntryType;

/// Bytes of a file in memory at a time: a multiple of a block.
const PIECE: usize = 1 << 20;
const BLOCK: usize = 4096;
/// Longest path, as in Linux.
pub(super) const PATH_BYTES_MAX: usize = 4096;
/// Most bytes of a name in a message.
const SHOWN_BYTES_MAX: usize = 255;
/// A directory in GNU tar's incremental archives; its contents are a list of names.
const LISTED_DIRECTORY: u8 = b'D';

/// Unpacks below the directory `to`, and returns how many entries there were. Ends at the first
/// that fails; those before it stay, and nothing of that one.
pub(super) fn unpack(fs: &Filesystem, input: impl Read, to: &Path) -> Result<u64, Failure> {
    let to = Path::new("/").join(inside(to.as_os_str().as_bytes()).ok_or_else(|| leads_out(to))?);
    let mut unpacker = Unpacker { fs, directories: Directories::below(fs, &to)? };
    let unpacked = unpacker.all(Entries::new(input), &to);
    // After an error too: their permissions say who may see what is in them.
    let given = unpacker.directories.finish();
    let count = unpacked?;
    given.map(|()| count)
}

struct Unpacker<'a> {
    fs: &'a Filesystem,
    directories: Directories<'a>,
}

impl Unpacker<'_> {
    fn all(&mut self, mut entries: Entries<impl Read>, to: &Path) -> Result<u64, Failure> {
        let mut count = 0;
        while let Some(found) = entries.next().map_err(unread)? {
            self.entry(&found, &mut entries, to).map_err(|failure| {
                let text = format!("{}: {failure}", shown(&found.name));
                failure.with_text(text).next("what came before it is unpacked")
            })?;
            count += 1;
        }
        Ok(count)
    }

    fn entry(&mut self, found: &Found, contents: &mut impl Read, to: &Path) -> Result<(), Failure> {
        let path = below(to, &found.name)?;
        let attributes = Attributes::of(found)?;
        let kind = found.header.entry_type();
        // The oldest archives have no other mark of a directory.
        let ends_as_directory = kind == EntryType::Regular && found.name.ends_with(b"/");
        if kind.is_dir() || kind.as_byte() == LISTED_DIRECTORY || ends_as_directory {
            return self.directories.entry(&path, attributes);
        }
        if kind == EntryType::GNUSparse || found.all().any(|(key, _)| key.starts_with(b"GNU.sparse.")) {
            return Err(Failure::new("files with holes in tar's own forms are not supported")
                .next("pack without --sparse: blocks of zeros become holes"));
        }
        let (dir, name) = self.place(&path)?;
        let engine = self.fs.engine();
        if kind == EntryType::Link {
            let first = below(to, &found.target)?;
            let first_dir = self.directories.find(first.parent().unwrap_or(Path::new("/")))?;
            let first = first.file_name().unwrap_or_default().as_bytes();
            let first = block_on(engine.lookup(first_dir, first)).map_err(Error::from)?.ino;
            let linked = block_on(engine.link(first, dir, &name)).map_err(Error::from);
            engine.forget(first, 1);
            linked.map(|linked| engine.forget(linked.ino, 1))?;
            return Ok(());
        }
        let ino = self.make(found, dir, &name)?;
        let filled = match kind {
            EntryType::Regular | EntryType::Continuous => self.fill(contents, ino),
            _ => Ok(()),
        };
        filled.and_then(|()| attributes.give(self.fs, ino)).inspect_err(|_| {
            // A part of a file would look like one, and be in the way of the next attempt.
            if let Err(error) = block_on(engine.unlink(dir, &name)) {
                tracing::warn!("what is unpacked of {} stays: {error}", path.display());
            }
        })
    }

    /// The directory of a path, which is made if it is not there, and the last name.
    fn place(&mut self, path: &Path) -> Result<(Ino, Vec<u8>), Failure> {
        let name = path.file_name().unwrap_or_default().as_bytes().to_vec();
        Ok((self.directories.at(path.parent().unwrap_or(Path::new("/")))?, name))
    }

    /// Makes what an entry is, without contents and attributes.
    fn make(&self, found: &Found, dir: Ino, name: &[u8]) -> Result<Ino, Failure> {
        let engine = self.fs.engine();
        let kind = found.header.entry_type();
        let (file_type, device) = match kind {
            EntryType::Regular | EntryType::Continuous => (FileType::Regular, 0),
            EntryType::Symlink => {
                let made = block_on(engine.symlink(ROOT, dir, name, &found.target)).map_err(Error::from)?;
                engine.forget(made.ino, 1);
                return Ok(made.ino);
            }
            EntryType::Fifo => (FileType::Fifo, 0),
            EntryType::Char => (FileType::CharDevice, device(found)?),
            EntryType::Block => (FileType::BlockDevice, device(found)?),
            _ => {
                let text = format!("entries of type {:?} are not supported", char::from(kind.as_byte()));
                return Err(Failure::new(text));
            }
        };
        let made = block_on(engine.mknod(ROOT, dir, name, file_type, 0o600, device)).map_err(Error::from)?;
        engine.forget(made.ino, 1);
        Ok(made.ino)
    }

    /// Writes the contents of a new file. Blocks of zeros become holes.
    fn fill(&self, contents: &mut impl Read, ino: Ino) -> Result<(), Failure> {
        let engine = self.fs.engine();
        let mut offset = 0;
        loop {
            let mut piece = Vec::with_capacity(PIECE);
            contents.by_ref().take(PIECE as u64).read_to_end(&mut piece).map_err(unread)?;
            if piece.is_empty() {
                break;
            }
            let is_zero = |block: &&[u8]| block.iter().all(|byte| *byte == 0);
            let mut blocks = piece.chunks(BLOCK).peekable();
            while blocks.peek().is_some() {
                while blocks.next_if(is_zero).is_some_and(|block| {
                    offset += block.len() as u64;
                    true
                }) {}
                let mut run = Vec::new();
                while let Some(block) = blocks.next_if(|block| !is_zero(block)) {
                    run.extend_from_slice(block);
                }
                if !run.is_empty() {
                    let len = run.len() as u64;
                    block_on(engine.write(ino, offset, Bytes::from(run), false)).map_err(Error::from)?;
                    offset += len;
                }
            }
        }
        let size = SetAttributes { size: Some(offset), ..SetAttributes::default() };
        block_on(engine.setattr(ROOT, ino, size)).map_err(Error::from)?;
        Ok(())
    }
}

fn device(found: &Found) -> Result<u32, Failure> {
    let number = |number: io::Result<Option<u32>>| number.map(Option::unwrap_or_default).map_err(unread);
    let (major, minor) = (number(found.header.device_major())?, number(found.header.device_minor())?);
    u32::try_from(rustix::fs::makedev(major, minor)).map_err(|_| Failure::new("no such device number"))
}

/// The path of a name of the archive below a directory.
fn below(to: &Path, name: &[u8]) -> Result<PathBuf, Failure> {
    let too_long = || Failure::from(Error::from(FsError::NameTooLong));
    // `archive tar` puts a dot before it, and a slash behind a directory.
    if name.len() >= PATH_BYTES_MAX + 2 {
        return Err(too_long());
    }
    let path = to.join(inside(name).ok_or_else(|| leads_out(Path::new(OsStr::from_bytes(name))))?);
    if path.as_os_str().len() >= PATH_BYTES_MAX { Err(too_long()) } else { Ok(path) }
}

/// A name for a message.
fn shown(name: &[u8]) -> String {
    let rest = if name.len() > SHOWN_BYTES_MAX { "..." } else { "" };
    format!("{}{rest}", String::from_utf8_lossy(&name[..name.len().min(SHOWN_BYTES_MAX)]))
}

/// A path below a directory, without what does not matter; `None` if it leads out.
fn inside(path: &[u8]) -> Option<PathBuf> {
    let parts = Path::new(OsStr::from_bytes(path)).components().filter(|part| match part {
        Component::RootDir | Component::CurDir => false,
        Component::Prefix(_) | Component::ParentDir | Component::Normal(_) => true,
    });
    parts.map(|part| if let Component::Normal(name) = part { Some(name) } else { None }).collect()
}

fn leads_out(path: &Path) -> Failure {
    Failure::of(
        Cause::Damaged,
        format!("{} leads out of the directory that is unpacked into", shown(path.as_os_str().as_bytes())),
    )
    .next("do not trust this archive")
}

pub(super) fn unread(error: io::Error) -> Failure {
    let next = match error.kind() {
        io::ErrorKind::Unsupported => {
            "unpack it first, by 'zstd -dc', 'gzip -dc' or the like, through a pipe"
        }
        _ => "fetch or make it again",
    };
    Failure::of(Cause::Damaged, format!("the archive: {error}")).next(next)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(kind: EntryType, mode: u32, size: u64) -> tar::Header {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_size(size);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        header
    }

    /// An archive of directories with one name.
    fn directories(name: &str, modes: &[u32]) -> Vec<u8> {
        let mut builder = tar::Builder::new(Vec::new());
        for mode in modes {
            builder.append_data(&mut header(EntryType::Directory, *mode, 0), name, io::empty()).unwrap();
        }
        builder.into_inner().unwrap()
    }

    fn empty() -> Filesystem {
        Filesystem::in_memory(32 << 20).unwrap()
    }

    #[test]
    fn directories_have_the_attributes_that_came_last_even_after_an_error() {
        let unpacked = |bytes: &[u8]| {
            let fs = empty();
            let result = unpack(&fs, bytes, Path::new("/"));
            (result.is_ok(), fs.metadata("/private").unwrap().permissions())
        };
        let (twice, once) = (directories("private", &[0o755, 0o700]), directories("private", &[0o700]));
        assert_eq!(unpacked(&twice), (true, 0o700));
        assert_eq!(unpacked(&once[..once.len() - 1024]), (false, 0o700));
        assert_eq!(unpacked(&directories("private/below", &[0o711])), (true, 0o755));
    }

    #[test]
    fn directories_that_were_there_stay_as_they_are() {
        let fs = empty();
        fs.create_dir_all("/to/there").unwrap();
        let before = |path: &str| fs.metadata(path).unwrap().permissions();
        let (top, there) = (before("/"), before("/to/there"));
        unpack(&fs, &directories("there", &[0o777])[..], Path::new("/to")).unwrap();
        assert_eq!((before("/"), before("/to/there")), (top, there));
        // But the one that is unpacked into is the archive's own.
        unpack(&fs, &directories("./", &[0o711])[..], Path::new("/to")).unwrap();
        assert_eq!((before("/"), before("/to")), (top, 0o711));
    }

    #[test]
    fn nothing_stays_of_a_file_that_was_cut() {
        let mut builder = tar::Builder::new(Vec::new());
        for name in ["whole", "cut"] {
            let mut header = header(EntryType::Regular, 0o644, 3000);
            builder.append_data(&mut header, name, &[7; 3000][..]).unwrap();
        }
        let bytes = builder.into_inner().unwrap();
        let fs = empty();
        assert!(unpack(&fs, &bytes[..bytes.len() - 2000], Path::new("/")).is_err());
        assert_eq!(fs.read("/whole").unwrap(), [7; 3000]);
        assert!(fs.symlink_metadata("/cut").unwrap_err().is_not_found());
    }

    #[test]
    fn a_name_that_no_path_can_have_is_refused_before_anything_is_made() {
        let mut builder = tar::Builder::new(Vec::new());
        let mut header = header(EntryType::Regular, 0o644, 0);
        builder.append_data(&mut header, "a/".repeat(60_000) + "f", io::empty()).unwrap();
        let fs = empty();
        let failure = unpack(&fs, &builder.into_inner().unwrap()[..], Path::new("/")).unwrap_err();
        assert!(
            failure.to_string().len() < 500 && failure.to_string().contains("name too long"),
            "{failure}"
        );
        assert!(fs.symlink_metadata("/a").is_err());
    }

    #[test]
    fn what_tar_writes_untar_reads_with_the_longest_paths() {
        let fs = empty();
        let above = format!("/{}", "d".repeat(255)).repeat(15);
        let [directory, file] =
            ["e", "f"].map(|letter| format!("{above}/{}", letter.repeat(PATH_BYTES_MAX - 2 - above.len())));
        assert_eq!(file.len(), PATH_BYTES_MAX - 1);
        fs.create_dir_all(&directory).unwrap();
        fs.write(&file, "deep").unwrap();
        let mut archive = Vec::new();
        super::super::tar::write(&fs, Path::new("image"), &mut archive).unwrap();
        let other = empty();
        unpack(&other, &archive[..], Path::new("/")).unwrap();
        assert_eq!(other.read(&file).unwrap(), b"deep");
        assert!(other.metadata(&directory).unwrap().is_dir());
    }

    fn named(kind: EntryType, name: &str, target: &str) -> tar::Header {
        let mut header = header(kind, 0o755, 0);
        header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
        header.as_old_mut().linkname[..target.len()].copy_from_slice(target.as_bytes());
        header.set_cksum();
        header
    }

    #[test]
    fn a_name_with_a_slash_behind_it_is_a_directory() {
        let mut builder = tar::Builder::new(Vec::new());
        for kind in [b'0', 0] {
            for name in [format!("{kind}/"), format!("{kind}/file")] {
                let mut header = named(EntryType::Regular, &name, "");
                header.as_old_mut().linkflag = [kind];
                header.set_cksum();
                builder.append(&header, io::empty()).unwrap();
            }
        }
        let fs = empty();
        unpack(&fs, &builder.into_inner().unwrap()[..], Path::new("/")).unwrap();
        for directory in ["/48", "/0"] {
            assert_eq!(fs.metadata(directory).unwrap().permissions(), 0o755);
            assert!(fs.read(format!("{directory}/file")).unwrap().is_empty());
        }
    }

    #[test]
    fn a_compressed_archive_is_called_compressed() {
        for magic in [&[0x1f, 0x8b][..], &[0x28, 0xb5, 0x2f, 0xfd], b"\xfd7zXZ\0"] {
            let mut bytes = vec![0xa5; 1024];
            bytes[..magic.len()].copy_from_slice(magic);
            let failure = unpack(&empty(), &bytes[..], Path::new("/")).unwrap_err().to_string();
            assert!(failure.contains("it is compressed"), "{failure}");
        }
    }

    #[test]
    fn a_link_to_nothing_makes_nothing() {
        let mut builder = tar::Builder::new(Vec::new());
        builder.append(&named(EntryType::Link, "name", "no/such/file"), io::empty()).unwrap();
        let fs = empty();
        let bytes = builder.into_inner().unwrap();
        let failure = unpack(&fs, &bytes[..], Path::new("/")).unwrap_err().to_string();
        assert!(failure.contains("/no: no such file"), "{failure}");
        assert!(fs.symlink_metadata("/no").unwrap_err().is_not_found());
    }

    #[test]
    fn what_tar_writes_untar_reads_with_very_many_attributes() {
        let fs = Filesystem::in_memory(256 << 20).unwrap();
        fs.write("/file", "x").unwrap();
        let (name, value) = (|number: u32| format!("user.{number}"), vec![b'x'; 65_536]);
        let archived = |from: u32, to: u32| {
            (from..to).for_each(|number| fs.set_xattr("/file", name(number), &value).unwrap());
            let mut archive = Vec::new();
            super::super::tar::write(&fs, Path::new("image"), &mut archive).map(|_| archive)
        };
        let archive = archived(0, 260).unwrap();
        let other = Filesystem::in_memory(128 << 20).unwrap();
        unpack(&other, &archive[..], Path::new("/")).unwrap();
        assert_eq!(other.xattr("/file", name(259)).unwrap(), Some(value.clone()));
        let failure = archived(260, 1030).unwrap_err().to_string();
        assert!(failure.contains("extended attributes"), "{failure}");
    }
}
