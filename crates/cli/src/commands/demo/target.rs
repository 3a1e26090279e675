//! Where the workloads run: on a real mount, or on the engine inside this process if FUSE can't be
//! used.

use super::counts::Counts;
use super::mount::Mounted;
use crate::failure::{Cause, Failure};
use rustix::fs::{XattrFlags, fsetxattr};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use syncline::{Filesystem, ImageOptions};

/// The attribute that a file gets, and its value.
const XATTR: (&str, &[u8]) = ("user.demo", &[b'x'; 50]);

/// An open filesystem.
pub enum Target {
    /// Mounted by a daemon.
    Mounted {
        /// The mount.
        mount: Mounted,
        /// Size of the image.
        image_bytes: u64,
    },
    /// In this process.
    Embedded {
        /// The open image.
        fs: Filesystem,
        /// Why it is not mounted.
        why: String,
    },
}

impl Target {
    /// Mounts the image, or opens it in this process if FUSE prevents that.
    pub fn start(image: &Path, image_bytes: u64, folder: &Path, embedded: bool) -> Result<Self, Failure> {
        let why = if embedded {
            "as was asked for".to_owned()
        } else {
            let directory = folder.join("mount");
            fs::create_dir(&directory)?;
            match Mounted::new(image, &directory) {
                Ok(mount) => return Ok(Self::Mounted { mount, image_bytes }),
                Err(failure) if is_for_want_of_fuse(failure.code()) => failure.to_string(),
                Err(failure) => return Err(failure),
            }
        };
        Ok(Self::Embedded { fs: Filesystem::open(image, ImageOptions::default())?, why })
    }

    /// A description for the reader.
    pub fn description(&self) -> String {
        match self {
            Self::Mounted { mount, .. } => {
                let directory = mount.directory().display();
                format!("Mounted at {directory}; the workloads use it as any program would")
            }
            Self::Embedded { why, .. } => format!("Not mounted, but embedded in this process: {why}"),
        }
    }

    /// Creates a file.
    pub fn create(&self, name: &str) -> Result<Box<dyn WorkFile>, Failure> {
        match self {
            Self::Mounted { mount, .. } => Ok(Box::new(File::create(mount.directory().join(name))?)),
            Self::Embedded { fs, .. } => {
                let file = fs.create_file(name)?;
                Ok(Box::new(EmbeddedFile { fs: fs.clone(), file, name: name.to_owned() }))
            }
        }
    }

    /// Removes a file and its data.
    pub fn remove(&self, name: &str) -> Result<(), Failure> {
        match self {
            Self::Mounted { mount, .. } => Ok(fs::remove_file(mount.directory().join(name))?),
            Self::Embedded { fs, .. } => Ok(fs.remove_file(name)?),
        }
    }

    /// Size of the filesystem.
    pub fn image_bytes(&self) -> u64 {
        match self {
            Self::Mounted { image_bytes, .. } => *image_bytes,
            Self::Embedded { fs, .. } => fs.space().blocks * syncline_format::BLOCK_BYTES as u64,
        }
    }

    /// Device operations since the image was opened.
    pub fn counts(&self) -> Result<Counts, Failure> {
        match self {
            Self::Mounted { mount, .. } => mount.counts(),
            Self::Embedded { fs, .. } => {
                let store = fs.statistics().store;
                Ok(Counts {
                    flushes: store.flushes_issued,
                    writes: store.device_writes,
                    write_bytes: store.device_write_bytes,
                })
            }
        }
    }

    /// Unmounts or closes.
    pub fn end(self) -> Result<(), Failure> {
        match self {
            Self::Mounted { mount, .. } => mount.end(),
            Self::Embedded { fs, .. } => Ok(fs.close()?),
        }
    }
}

fn is_for_want_of_fuse(code: u8) -> bool {
    code == Cause::Fuse as u8 || code == Cause::Permission as u8
}

/// A file of the load: on a mount, or in the engine of this process.
pub trait WorkFile: Send {
    /// Writes all of `data`.
    fn write_at(&self, data: &[u8], offset: u64) -> Result<(), Failure>;
    /// fsync.
    fn sync(&self) -> Result<(), Failure>;
    /// Truncates or extends it.
    fn set_len(&self, bytes: u64) -> Result<(), Failure>;
    /// Gives it an extended attribute.
    fn set_xattr(&self) -> Result<(), Failure>;
}

impl WorkFile for File {
    fn write_at(&self, data: &[u8], offset: u64) -> Result<(), Failure> {
        Ok(self.write_all_at(data, offset)?)
    }

    fn sync(&self) -> Result<(), Failure> {
        Ok(self.sync_all()?)
    }

    fn set_len(&self, bytes: u64) -> Result<(), Failure> {
        Ok(File::set_len(self, bytes)?)
    }

    fn set_xattr(&self) -> Result<(), Failure> {
        Ok(fsetxattr(self, XATTR.0, XATTR.1, XattrFlags::empty())?)
    }
}

/// A file of the engine in this process.
struct EmbeddedFile {
    fs: Filesystem,
    file: syncline::File,
    name: String,
}

impl WorkFile for EmbeddedFile {
    fn write_at(&self, data: &[u8], offset: u64) -> Result<(), Failure> {
        Ok(self.file.write_all_at(data, offset)?)
    }

    fn sync(&self) -> Result<(), Failure> {
        Ok(self.file.sync_all()?)
    }

    fn set_len(&self, bytes: u64) -> Result<(), Failure> {
        Ok(self.file.set_len(bytes)?)
    }

    fn set_xattr(&self) -> Result<(), Failure> {
        Ok(self.fs.set_xattr(&self.name, XATTR.0, XATTR.1)?)
    }
}
