//! Reading, writing and copying whole files.

use crate::error::{Error, Result, about};
use crate::filesystem::Filesystem;
use crate::open_options::OpenOptions;
use std::path::Path;
use syncline_fs::FsError;

impl Filesystem {
    /// The whole contents of a file.
    pub fn read(&self, path: impl AsRef<Path>) -> Result<Vec<u8>> {
        self.open_file(&path)?.contents().map_err(about("read", &path))
    }

    /// The whole contents of a text file; an error of kind `InvalidData` if it is not UTF-8.
    pub fn read_to_string(&self, path: impl AsRef<Path>) -> Result<String> {
        String::from_utf8(self.read(&path)?).map_err(|_| about("read", &path)(Error::NotText))
    }

    /// Writes these contents to a file, replacing the old ones. They are durable only after a sync,
    /// and a crash before that may leave the file empty: to get either the old contents or the new,
    /// write another file and rename it.
    ///
    /// ```
    /// # let fs = syncline::Filesystem::in_memory(32 << 20)?;
    /// fs.write("/settings.new", "colour = blue")?;
    /// fs.rename("/settings.new", "/settings")?;
    /// assert_eq!(fs.read_to_string("/settings")?, "colour = blue");
    /// # std::io::Result::Ok(())
    /// ```
    pub fn write(&self, path: impl AsRef<Path>, contents: impl AsRef<[u8]>) -> Result<()> {
        self.create_file(&path)?.write_all_at(contents.as_ref(), 0).map_err(about("write", &path))
    }

    /// Gives `to` the contents and permission bits of `from`, and returns its size. Whole blocks
    /// are shared, not copied.
    ///
    /// ```
    /// # let fs = syncline::Filesystem::in_memory(32 << 20)?;
    /// fs.write("/model", vec![7; 1 << 20])?;
    /// assert_eq!(fs.copy("/model", "/copy")?, 1 << 20);
    /// assert_eq!(fs.open_file("/copy")?.usage()?.shared_bytes, 1 << 20);
    /// # std::io::Result::Ok(())
    /// ```
    pub fn copy(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<u64> {
        let from = self.open_file(from)?;
        let metadata = from.metadata()?;
        if metadata.is_dir() {
            return Err(FsError::IsDirectory.into());
        }
        let to = OpenOptions::new().write(true).create(true).mode(metadata.permissions()).open(self, to)?;
        if to.ino() == from.ino() {
            // Truncating it first would lose the data to copy.
            return Err(Error::Invalid("a file can't be copied to itself"));
        }
        to.set_len(0)?;
        let copied = from.copy_range_to(0, &to, 0, u64::MAX)?;
        to.set_permissions(metadata.permissions())?;
        Ok(copied)
    }
}
