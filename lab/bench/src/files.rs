//! The files under a load: those of a directory, or of an image that this process has opened with
//! the library.

use crate::error::During;
use crate::workload::{Pace, Phase, Sample, Unit, Workload};
use crate::{BenchError, Interrupt};
use rand::RngCore;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use syncline::{Allocation, Filesystem, ImageOptions};

/// Bytes of one write of [`write_whole`].
const PIECE_BYTES: usize = 1 << 20;

/// An open file.
pub trait OpenFile: Send + Sync {
    /// Writes all of `data` at `offset`.
    fn write_all_at(&self, data: &[u8], offset: u64) -> io::Result<()>;
    /// fdatasync.
    fn sync_data(&self) -> io::Result<()>;
    /// fsync.
    fn sync_all(&self) -> io::Result<()>;
    /// Reserves room for the first `bytes`, and makes the file that long.
    fn allocate(&self, bytes: u64) -> io::Result<()>;
}

/// A tree of files.
pub trait Files: Sync {
    /// Makes an empty file, or empties the one with this name.
    fn create(&self, name: &str) -> io::Result<Box<dyn OpenFile>>;
    /// Opens a file for writing.
    fn open(&self, name: &str) -> io::Result<Box<dyn OpenFile>>;
    /// Makes a directory.
    fn create_dir(&self, name: &str) -> io::Result<()>;
    /// Renames a file over another.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// fsync of a directory.
    fn sync_dir(&self, name: &str) -> io::Result<()>;
}

impl OpenFile for File {
    fn write_all_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        FileExt::write_all_at(self, data, offset)
    }

    fn sync_data(&self) -> io::Result<()> {
        File::sync_data(self)
    }

    fn sync_all(&self) -> io::Result<()> {
        File::sync_all(self)
    }

    fn allocate(&self, bytes: u64) -> io::Result<()> {
        Ok(rustix::fs::fallocate(self, rustix::fs::FallocateFlags::empty(), 0, bytes)?)
    }
}

/// A directory of a mounted filesystem.
pub struct Directory<'a>(pub &'a Path);

impl Directory<'_> {
    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Files for Directory<'_> {
    fn create(&self, name: &str) -> io::Result<Box<dyn OpenFile>> {
        Ok(Box::new(File::create(self.path(name))?))
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn OpenFile>> {
        Ok(Box::new(File::options().write(true).open(self.path(name))?))
    }

    fn create_dir(&self, name: &str) -> io::Result<()> {
        std::fs::create_dir(self.path(name))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        std::fs::rename(self.path(from), self.path(to))
    }

    fn sync_dir(&self, name: &str) -> io::Result<()> {
        File::open(self.path(name))?.sync_all()
    }
}

impl OpenFile for syncline::File {
    fn write_all_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        Ok(syncline::File::write_all_at(self, data, offset)?)
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(syncline::File::sync_data(self)?)
    }

    fn sync_all(&self) -> io::Result<()> {
        Ok(syncline::File::sync_all(self)?)
    }

    fn allocate(&self, bytes: u64) -> io::Result<()> {
        Ok(syncline::File::allocate(self, Allocation::Preallocate { keep_size: false }, 0, bytes)?)
    }
}

impl Files for Filesystem {
    fn create(&self, name: &str) -> io::Result<Box<dyn OpenFile>> {
        Ok(Box::new(self.create_file(name)?))
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn OpenFile>> {
        Ok(Box::new(syncline::OpenOptions::new().write(true).open(self, name)?))
    }

    fn create_dir(&self, name: &str) -> io::Result<()> {
        Ok(Filesystem::create_dir(self, name)?)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        Ok(Filesystem::rename(self, from, to)?)
    }

    fn sync_dir(&self, name: &str) -> io::Result<()> {
        let ino = self.metadata(name)?.ino();
        Ok(syncline_device::drive(self.engine().fsync(ino, false)).map_err(syncline::Error::from)?)
    }
}

/// A load on files of either kind.
pub trait FileLoad {
    /// Makes the files that the load starts with.
    fn make(&self, files: &dyn Files, interrupt: &Interrupt) -> Result<(), BenchError>;

    /// Runs the load.
    fn load(&self, files: &dyn Files, pace: Pace<'_>) -> Result<Sample, BenchError>;
}

/// A load on files that only built-in code makes: it is the same [`Workload`] on a directory and in an image.
pub trait BuiltIn: FileLoad {
    /// See [`Workload::suite`].
    fn suite(&self) -> &'static str;

    /// See [`Workload::title`].
    fn title(&self) -> String;

    /// See [`Workload::variant`].
    fn variant(&self) -> String {
        String::new()
    }

    /// See [`Workload::reads_back`].
    fn reads_back(&self) -> bool {
        false
    }

    /// The unit of the rate, and the operation whose latency is measured.
    fn measure(&self) -> (Unit, &'static str);
}

impl<L: BuiltIn> Workload for L {
    fn suite(&self) -> &'static str {
        BuiltIn::suite(self)
    }

    fn title(&self) -> String {
        BuiltIn::title(self)
    }

    fn variant(&self) -> String {
        BuiltIn::variant(self)
    }

    fn reads_back(&self) -> bool {
        BuiltIn::reads_back(self)
    }

    fn phases(&self) -> Vec<Phase> {
        let (unit, timed) = self.measure();
        vec![Phase::warm("", unit, timed)]
    }

    fn prepare(&self, _phase: usize, directory: &Path, interrupt: &Interrupt) -> Result<(), BenchError> {
        self.make(&Directory(directory), interrupt)
    }

    fn run(&self, _phase: usize, directory: &Path, pace: Pace<'_>) -> Result<Sample, BenchError> {
        self.load(&Directory(directory), pace)
    }

    fn embedded(&self) -> Option<&dyn Embedded> {
        Some(self)
    }
}

/// A load within the process of the library, on an image.
pub trait Embedded {
    /// Opens the image and prepares the load.
    fn open<'a>(&'a self, image: &Path, interrupt: &Interrupt) -> Result<Box<dyn Opened + 'a>, BenchError>;
}

/// An image that is open in this process; dropping it closes the image.
pub trait Opened {
    /// Runs the load.
    fn run(&mut self, pace: Pace<'_>) -> Result<Sample, BenchError>;
}

impl<L: FileLoad> Embedded for L {
    fn open<'a>(&'a self, image: &Path, interrupt: &Interrupt) -> Result<Box<dyn Opened + 'a>, BenchError> {
        let failed = |error| BenchError::Engine { what: "the library", said: format!("{error}") };
        let files: Filesystem = Filesystem::open(image, ImageOptions::default()).map_err(failed)?;
        self.make(&files, interrupt)?;
        files.sync().map_err(failed)?;
        Ok(Box::new(OpenImage { files, load: self }))
    }
}

struct OpenImage<'a, L> {
    files: Filesystem,
    load: &'a L,
}

impl<L: FileLoad> Opened for OpenImage<'_, L> {
    fn run(&mut self, pace: Pace<'_>) -> Result<Sample, BenchError> {
        self.load.load(&self.files, pace)
    }
}

/// Writes a whole file with incompressible data, and syncs it.
pub fn write_whole(
    files: &dyn Files,
    name: &str,
    bytes: u64,
    interrupt: &Interrupt,
) -> Result<(), BenchError> {
    let about = || format!("writing {name}");
    let file = files.create(name).during(about)?;
    let mut piece = vec![0; PIECE_BYTES];
    rand::rng().fill_bytes(&mut piece);
    let mut offset = 0;
    while offset < bytes {
        interrupt.check()?;
        let len = (bytes - offset).min(PIECE_BYTES as u64);
        file.write_all_at(&piece[..len as usize], offset).during(about)?;
        offset += len;
    }
    file.sync_all().during(about)
}
