//! A file that gets its name only when it is whole. It never replaces an existing file, which may be
//! an image, even the one that is read.

use crate::failure::{Cause, Failure};
use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use tempfile::NamedTempFile;

/// The files of this process, under their numbers.
const OWN_FILES: &str = "/proc/self/fd";

/// A file that is being written. Dropped, it is gone.
pub enum WholeFile {
    /// Nothing is left of it if this process is killed.
    Nameless(File),
    /// In a filesystem without such files: it has another name in the same folder.
    Renamed(NamedTempFile),
}

impl WholeFile {
    /// Makes one for the owner alone, in the folder of `path`.
    pub fn new(path: &Path) -> io::Result<Self> {
        Self::in_folder(folder_of(path), Path::new(OWN_FILES))
    }

    fn in_folder(folder: &Path, own_files: &Path) -> io::Result<Self> {
        let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
        match rustix::fs::open(folder, flags, Mode::RUSR | Mode::WUSR) {
            // A container may have no /proc, by which the file will get its name.
            Ok(file) if own_files.exists() => Ok(Self::Nameless(file.into())),
            _ => NamedTempFile::new_in(folder).map(Self::Renamed),
        }
    }

    /// The failure for a file that could not be made.
    pub fn refused(path: &Path, error: io::Error) -> Failure {
        match error.kind() {
            io::ErrorKind::AlreadyExists => {
                let text = format!("{} is there already", path.display());
                Failure::of(Cause::Usage, text).next(
                    "remove it, or name another file; with '> FILE' the shell writes into a device or FIFO",
                )
            }
            _ => Failure::from(error).about(path),
        }
    }

    pub fn file(&self) -> &File {
        match self {
            Self::Nameless(file) => file,
            Self::Renamed(file) => file.as_file(),
        }
    }

    /// Makes it durable and gives it its name. `AlreadyExists` if something has that name.
    pub fn finish(self, path: &Path) -> io::Result<()> {
        self.file().sync_all()?;
        let folder = File::open(folder_of(path))?;
        match self {
            Self::Nameless(file) => {
                let this = format!("{OWN_FILES}/{}", file.as_raw_fd());
                rustix::fs::linkat(CWD, this, CWD, path, AtFlags::SYMLINK_FOLLOW)?;
            }
            Self::Renamed(file) => drop(file.persist_noclobber(path).map_err(|failed| failed.error)?),
        }
        match folder.sync_all() {
            // Some filesystems can't sync a folder.
            Err(error) if error.kind() != io::ErrorKind::InvalidInput => Err(error),
            _ => Ok(()),
        }
    }
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Refuses a name that is taken, before work is done for it.
pub fn there_already(path: &Path) -> Result<(), Failure> {
    match path.symlink_metadata() {
        Ok(_) => Err(WholeFile::refused(path, io::ErrorKind::AlreadyExists.into())),
        Err(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{ErrorKind, Write};

    fn write(file: &WholeFile, text: &str) {
        file.file().write_all(text.as_bytes()).unwrap();
    }

    #[test]
    fn a_file_has_its_name_when_it_is_whole_and_takes_nobody_elses() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let named = |path: &Path| WholeFile::Renamed(NamedTempFile::new_in(path.parent().unwrap()).unwrap());
        for make in [|path: &Path| WholeFile::new(path).unwrap(), named] {
            let file = make(&path);
            write(&file, "whole");
            assert!(!path.exists());
            file.finish(&path).unwrap();
            let late = make(&path);
            write(&late, "late");
            assert_eq!(late.finish(&path).unwrap_err().kind(), ErrorKind::AlreadyExists);
            assert_eq!(std::fs::read_to_string(&path).unwrap(), "whole");
            std::fs::remove_file(&path).unwrap();
            drop(make(&path));
            assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        }
    }

    #[test]
    fn where_there_is_no_proc_a_file_gets_its_name_too() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let file = WholeFile::in_folder(folder.path(), &folder.path().join("proc")).unwrap();
        write(&file, "whole");
        assert!(matches!(file, WholeFile::Renamed(_)));
        file.finish(&path).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "whole");
    }

    #[test]
    fn a_process_that_is_killed_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let file = WholeFile::new(&folder.path().join("file")).unwrap();
        write(&file, "half");
        assert!(matches!(file, WholeFile::Nameless(_)), "the folder's filesystem has files without names");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
