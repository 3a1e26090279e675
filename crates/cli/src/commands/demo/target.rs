//! What the workloads run on: a real mount, or the engine inside this process where FUSE can't be used.

use crate::failure::{Cause, Failure};
use serde_json::Value;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use syncline::{Filesystem, ImageOptions};
use syncline_fuse::control;

/// The attribute that the overwriting workload sets.
const XATTR: &str = "user.demo";

/// An open filesystem.
pub enum Target {
    /// Mounted by a daemon.
    Mounted(Mount),
    /// In this process.
    Embedded {
        /// The open image.
        fs: Filesystem,
        /// Why it is not mounted.
        why: String,
    },
}

/// A mount that is taken away when it is dropped.
pub struct Mount {
    directory: PathBuf,
    image_bytes: u64,
    mounted: bool,
}

/// The counters that the demo shows, since the image was opened.
#[derive(Clone, Copy, Debug, Default)]
pub struct Figures {
    /// Flushes asked of the device.
    pub flushes: u64,
    /// Writes.
    pub writes: u64,
    /// Bytes in them.
    pub write_bytes: u64,
}

/// A file of a workload.
pub trait WorkFile: Send {
    /// Writes all of `data`.
    fn write_at(&self, data: &[u8], offset: u64) -> io::Result<()>;
    /// fsync.
    fn sync(&self) -> io::Result<()>;
    /// Cuts or extends it.
    fn set_len(&self, bytes: u64) -> io::Result<()>;
    /// Sets an extended attribute.
    fn set_xattr(&self, value: &[u8]) -> io::Result<()>;
}

impl Target {
    /// Mounts the image, or opens it here if that can't be done for a reason that is FUSE's.
    pub fn start(image: &Path, folder: &Path, embedded: bool) -> Result<Self, Failure> {
        let why = if embedded {
            "as was asked for".to_owned()
        } else {
            match Mount::start(image, &folder.join("mount"))? {
                Ok(mount) => return Ok(Self::Mounted(mount)),
                Err(why) => why,
            }
        };
        Ok(Self::Embedded { fs: Filesystem::open(image, ImageOptions::default())?, why })
    }

    /// What it is, for the reader.
    pub fn description(&self) -> String {
        match self {
            Self::Mounted(mount) => {
                format!("Mounted at {}; the workloads use it as any program would", mount.directory.display())
            }
            Self::Embedded { why, .. } => format!("Not mounted, but embedded in this process: {why}"),
        }
    }

    /// Creates a file.
    pub fn create(&self, name: &str) -> Result<Box<dyn WorkFile>, Failure> {
        match self {
            Self::Mounted(mount) => Ok(Box::new(File::create(mount.directory.join(name))?)),
            Self::Embedded { fs, .. } => {
                let file = fs.create_file(name)?;
                Ok(Box::new(EmbeddedFile { fs: fs.clone(), file, name: name.to_owned() }))
            }
        }
    }

    /// Removes a file and with it its data.
    pub fn remove(&self, name: &str) -> Result<(), Failure> {
        match self {
            Self::Mounted(mount) => Ok(fs::remove_file(mount.directory.join(name))?),
            Self::Embedded { fs, .. } => Ok(fs.remove_file(name)?),
        }
    }

    /// Size of the filesystem.
    pub fn image_bytes(&self) -> u64 {
        match self {
            Self::Mounted(mount) => mount.image_bytes,
            Self::Embedded { fs, .. } => fs.space().blocks * syncline_format::BLOCK_BYTES as u64,
        }
    }

    /// What was counted so far.
    pub fn figures(&self) -> Result<Figures, Failure> {
        match self {
            Self::Mounted(mount) => {
                let text = control::stats(&mount.directory)?;
                let stats: Value = serde_json::from_str(&text).map_err(Failure::new)?;
                let get = |name: &str| stats["store"][name].as_u64().unwrap_or(0);
                Ok(Figures {
                    flushes: get("flushes_issued"),
                    writes: get("device_writes"),
                    write_bytes: get("device_write_bytes"),
                })
            }
            Self::Embedded { fs, .. } => {
                let store = fs.statistics().store;
                Ok(Figures {
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
            Self::Mounted(mount) => mount.end(),
            Self::Embedded { fs, .. } => Ok(fs.close()?),
        }
    }
}

impl Mount {
    /// Mounts by this program's own `mount`, as a person would. `Ok(Err(why))` when FUSE is what is missing.
    fn start(image: &Path, directory: &Path) -> Result<Result<Self, String>, Failure> {
        fs::create_dir(directory)?;
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("mount").arg(image).arg(directory);
        let output = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).output()?;
        let said = String::from_utf8_lossy(&output.stderr).trim().replace('\n', " ");
        let said = said.strip_prefix("syncline: ").unwrap_or(&said).to_owned();
        match output.status.code() {
            Some(0) => {
                let image_bytes = fs::metadata(image)?.len();
                Ok(Ok(Self { directory: directory.to_owned(), image_bytes, mounted: true }))
            }
            Some(code) if code == Cause::Fuse as i32 || code == Cause::Permission as i32 => Ok(Err(said)),
            _ => Err(Failure::new(said)),
        }
    }

    fn end(mut self) -> Result<(), Failure> {
        self.unmount()
    }

    fn unmount(&mut self) -> Result<(), Failure> {
        self.mounted = false;
        let output = Command::new(std::env::current_exe()?).arg("umount").arg(&self.directory).output()?;
        if output.status.success() {
            return Ok(());
        }
        Err(Failure::new(String::from_utf8_lossy(&output.stderr).trim()))
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if self.mounted
            && let Err(failure) = self.unmount()
        {
            eprintln!("syncline: {failure}");
        }
    }
}

impl WorkFile for File {
    fn write_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        self.write_all_at(data, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_all()
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        File::set_len(self, bytes)
    }

    fn set_xattr(&self, value: &[u8]) -> io::Result<()> {
        Ok(rustix::fs::fsetxattr(self, XATTR, value, rustix::fs::XattrFlags::empty())?)
    }
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

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        Ok(self.file.set_len(bytes)?)
    }

    fn set_xattr(&self, value: &[u8]) -> io::Result<()> {
        Ok(self.fs.set_xattr(&self.name, XATTR, value)?)
    }
}
