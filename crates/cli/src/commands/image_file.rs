//! The image file below a mount. Somebody may delete, replace or shorten it meanwhile: the daemon
//! uses the file that it has open, and nothing fails until the mount ends or reads a missing block.

use std::fs::Metadata;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Which file it was when it was mounted.
pub struct ImageFile {
    path: PathBuf,
    device: u64,
    inode: u64,
}

impl ImageFile {
    /// None for a block device, and for storage on a network.
    pub fn of(path: &Path) -> Option<Self> {
        let file = path.metadata().ok().filter(Metadata::is_file)?;
        Some(Self { path: path.to_owned(), device: file.dev(), inode: file.ino() })
    }

    /// Describes the change of the file, if a filesystem of this size is not whole at its path.
    pub fn change(&self, size_bytes: u64) -> Option<String> {
        let gone =
            "it was deleted, moved or replaced; if it is not elsewhere, save the files before you unmount";
        match self.path.metadata() {
            Ok(file) if (file.dev(), file.ino()) != (self.device, self.inode) => Some(gone.to_owned()),
            Ok(file) if file.len() < size_bytes => Some(format!(
                "it was cut off at {} bytes; 'truncate -s {size_bytes} {}' gives it its length back, and 'syncline scrub' lists the losses",
                file.len(),
                self.path.display()
            )),
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
                Some(gone.to_owned())
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, File};

    #[test]
    fn a_file_that_is_not_what_it_was_is_told_of() {
        let folder = tempfile::tempdir().unwrap();
        let [path, other] = ["image", "other"].map(|name| folder.path().join(name));
        let file = File::create(&path).unwrap();
        file.set_len(8192).unwrap();
        assert!(ImageFile::of(folder.path()).is_none() && ImageFile::of(&other).is_none());
        let image = ImageFile::of(&path).unwrap();
        assert_eq!(image.change(8192), None);
        assert!(image.change(12288).unwrap().contains("cut off at 8192 bytes; 'truncate -s 12288 "));
        fs::rename(&path, &other).unwrap();
        assert!(image.change(8192).unwrap().contains("deleted, moved or replaced"));
        File::create(&path).unwrap().set_len(8192).unwrap();
        assert!(image.change(8192).unwrap().contains("deleted, moved or replaced"));
        fs::rename(&other, &path).unwrap();
        assert_eq!(image.change(8192), None);
    }
}
