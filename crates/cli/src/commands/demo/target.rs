//! Where the workloads run: on a real mount, or on the engine inside this process if FUSE can't be
//! used.

use crate::failure::{Cause, Failure};
use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::path::Path;
use syncline::{Filesystem, ImageOptions};
use syncline_bench::BenchError;
use syncline_bench::counts::Counts;
use syncline_bench::mount::Mounted;
use syncline_bench::synced::WorkFile;

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
            // A demo leaves the machine's switch for FUSE over io_uring as it is.
            let options = ["-o", "transport=available"].map(OsString::from);
            match Mounted::syncline(&std::env::current_exe()?, image, &directory, &options) {
                Ok(mount) => return Ok(Self::Mounted { mount, image_bytes }),
                Err(BenchError::Program { code, said }) if is_for_want_of_fuse(code) => said,
                Err(error) => return Err(error.into()),
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
            Self::Mounted { mount, .. } => Ok(Counts::from_daemon(mount.directory())?),
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
            Self::Mounted { mount, .. } => Ok(mount.end()?),
            Self::Embedded { fs, .. } => Ok(fs.close()?),
        }
    }
}

fn is_for_want_of_fuse(code: u8) -> bool {
    code == Cause::Fuse as u8 || code == Cause::Permission as u8
}

/// A file of the engine in this process.
struct EmbeddedFile {
    fs: Filesystem,
    file: syncline::File,
    name: String,
}

impl WorkFile for EmbeddedFile {
    fn write_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        Ok(self.file.write_all_at(data, offset)?)
    }

    fn sync(&self) -> io::Result<()> {
        Ok(self.file.sync_all()?)
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(self.file.sync_data()?)
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        Ok(self.file.set_len(bytes)?)
    }

    fn set_xattr(&self, name: &str, value: &[u8]) -> io::Result<()> {
        Ok(self.fs.set_xattr(&self.name, name, value)?)
    }
}
