//! The common ground of all contestants: one fully written image, behind a loop device with direct
//! I/O if possible, so that the device's counters count alike for all.

use crate::contestant::Contestant;
use crate::counts::Source;
use crate::error::During;
use crate::mount::{Mounted, run_program};
use crate::{BenchError, Interrupt, command};
use std::ffi::OsString;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;

/// The image is written in pieces of this size.
const PIECE_BYTES: usize = 4 << 20;
/// Space that must stay free beside the image.
const SPARE_BYTES: u64 = 256 << 20;

/// A loop device; detached when dropped.
struct LoopDevice(PathBuf);

impl LoopDevice {
    fn over(file: &Path) -> Result<Self, BenchError> {
        let losetup = command::require("losetup", "mount")?;
        let mut command = Command::new(losetup);
        command.args(["--find", "--show", "--direct-io=on"]).arg(file);
        Ok(Self(command::succeed(&mut command, None)?.trim().into()))
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        // If the device is still in use, the kernel detaches it later.
        let _ = command::run(Command::new("losetup").arg("--detach").arg(&self.0), None);
    }
}

/// A process that serves a disk with slow flushes; it ends when this is dropped.
struct SlowDisk {
    server: Child,
    path: PathBuf,
}

impl SlowDisk {
    /// This program with the command `disk`.
    fn over(image: &Path, directory: &Path, flush: Duration) -> Result<Self, BenchError> {
        let mut server = Command::new(std::env::current_exe()?);
        server.arg("disk").arg(image).arg(directory);
        server.arg("--flush").arg(format!("{}us", flush.as_micros()));
        let mut said = tempfile::tempfile()?;
        server.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(said.try_clone()?);
        let mut server = server.spawn().during(|| "cannot serve a disk".into())?;
        let mut line = String::new();
        BufReader::new(server.stdout.take().expect("it was asked for")).read_line(&mut line)?;
        if line.is_empty() {
            server.wait()?;
            let said = command::text(&mut said)?;
            return Err(BenchError::Engine { what: "the disk", said: said.trim().to_owned() });
        }
        Ok(Self { server, path: line.trim().into() })
    }
}

impl Drop for SlowDisk {
    fn drop(&mut self) {
        // The end of its input ends it, and it unmounts.
        drop(self.server.stdin.take());
        let _ = self.server.wait();
    }
}

/// The place of the measurements. Dropping it removes everything but an image that was there.
pub struct Ground {
    /// Syncline's own program.
    program: PathBuf,
    bytes: u64,
    image: PathBuf,
    mount_point: PathBuf,
    /// Options of mounts behind FUSE.
    mount_options: Vec<OsString>,
    // In this order: the device is dropped before its backing file.
    loop_device: Option<LoopDevice>,
    slow_disk: Option<SlowDisk>,
    /// Why there is no loop device.
    why_no_loop_device: Option<String>,
    _folder: TempDir,
}

impl Ground {
    /// Writes an image of `bytes` in a folder of its own in `parent`. A loop device is required for
    /// peers, and used wherever possible.
    pub fn new(
        program: &Path,
        parent: &Path,
        bytes: u64,
        peers: bool,
        interrupt: &Interrupt,
        written: &mut dyn FnMut(u64),
    ) -> Result<Self, BenchError> {
        let root = rustix::process::geteuid().is_root();
        if peers && !root {
            return Err(BenchError::NotRoot { what: "measuring the kernel's filesystems".into() });
        }
        let parent = std::fs::canonicalize(parent).at(parent)?;
        require_room(&parent, bytes)?;
        let folder = tempfile::Builder::new().prefix("syncline-bench-").tempdir_in(&parent).at(&parent)?;
        let (image, mount_point) = (folder.path().join("image"), folder.path().join("mount"));
        std::fs::create_dir(&mount_point).at(&mount_point)?;
        // PostgreSQL refuses root, and its user must reach the mount.
        let passable = std::fs::Permissions::from_mode(0o711);
        std::fs::set_permissions(folder.path(), passable).at(folder.path())?;
        write_image(&image, bytes, interrupt, written)?;
        let (loop_device, why_no_loop_device) = match root.then(|| LoopDevice::over(&image)) {
            Some(Ok(device)) => (Some(device), None),
            Some(Err(error)) if peers => return Err(error),
            Some(Err(error)) => (None, Some(error.to_string())),
            None => (None, Some("only root can set one up".into())),
        };
        Ok(Self {
            program: program.to_owned(),
            bytes,
            image,
            mount_point,
            mount_options: Vec::new(),
            loop_device,
            slow_disk: None,
            why_no_loop_device,
            _folder: folder,
        })
    }

    /// Measures on an image that exists, of any kind that Syncline knows, with `bytes`. The
    /// contents of the image are lost.
    pub fn on(program: &Path, image: &Path, bytes: u64) -> Result<Self, BenchError> {
        let folder = tempfile::Builder::new().prefix("syncline-bench-").tempdir();
        let folder = folder.at(&std::env::temp_dir())?;
        let mount_point = folder.path().join("mount");
        std::fs::create_dir(&mount_point).at(&mount_point)?;
        Ok(Self {
            program: program.to_owned(),
            bytes,
            image: image.to_owned(),
            mount_point,
            mount_options: Vec::new(),
            loop_device: None,
            slow_disk: None,
            why_no_loop_device: Some("it is measured on the image that was named".to_owned()),
            _folder: folder,
        })
    }

    /// Sets options for every mount behind FUSE, Syncline's and that of the null filesystem.
    pub fn with_mount_options(self, mount_options: Vec<OsString>) -> Self {
        Self { mount_options, ..self }
    }

    /// Makes the disk one whose flushes take this long, or the plain loop device.
    pub fn set_flush(&mut self, flush: Option<Duration>) -> Result<(), BenchError> {
        (self.loop_device, self.slow_disk) = (None, None);
        if let Some(flush) = flush {
            let directory = self.mount_point.with_file_name("disk");
            if !directory.exists() {
                std::fs::create_dir(&directory).at(&directory)?;
            }
            self.slow_disk = Some(SlowDisk::over(&self.image, &directory, flush)?);
        }
        let file = self.slow_disk.as_ref().map_or(&self.image, |disk| &disk.path);
        self.loop_device = Some(LoopDevice::over(file)?);
        Ok(())
    }

    /// Why there is no loop device, so that counts come from the daemon.
    pub fn why_no_loop_device(&self) -> Option<&str> {
        self.why_no_loop_device.as_deref()
    }

    /// Size of the device.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Where the counts of a contestant are read.
    pub fn counts(&self, contestant: &Contestant) -> Source {
        match &self.loop_device {
            Some(device) => Source::of_device(&device.0),
            None if !contestant.keeps() || contestant.is_library() => Source::Nowhere,
            None => Source::Daemon,
        }
    }

    fn device(&self) -> &Path {
        self.loop_device.as_ref().map_or(&self.image, |device| &device.0)
    }

    /// Makes a contestant's filesystem again, with room for this many files. Returns its device.
    pub fn make(&self, contestant: &Contestant, files: u64) -> Result<&Path, BenchError> {
        match contestant {
            Contestant::Syncline(variant) => {
                let mut mkfs = Command::new(variant.program().unwrap_or(&self.program));
                mkfs.arg("mkfs").arg("--force").args(variant.mkfs_options()).arg(self.device());
                run_program(&mut mkfs)?;
            }
            Contestant::Peer(peer) => {
                command::succeed(&mut peer.mkfs(self.device(), files)?, None)?;
            }
            Contestant::Null(_) => {}
        }
        Ok(self.device())
    }

    /// Makes a contestant's filesystem again, and mounts it.
    pub fn start(&self, contestant: &Contestant, files: u64) -> Result<Mounted, BenchError> {
        self.make(contestant, files)?;
        self.mount(contestant)
    }

    /// Mounts the filesystem that was made before.
    pub fn mount(&self, contestant: &Contestant) -> Result<Mounted, BenchError> {
        let (device, mount_point) = (self.device(), &self.mount_point);
        Mounted::contestant(contestant, &self.program, device, mount_point, &self.mount_options)
    }
}

fn require_room(parent: &Path, bytes: u64) -> Result<(), BenchError> {
    let space = rustix::fs::statvfs(parent).at(parent)?;
    let free_bytes = space.f_bavail.saturating_mul(space.f_frsize);
    let wanted_bytes = bytes + SPARE_BYTES;
    if free_bytes < wanted_bytes {
        return Err(BenchError::NoRoom { path: parent.display().to_string(), free_bytes, wanted_bytes });
    }
    Ok(())
}

/// Writes every block, so that no contestant pays for the first write to a block of the file below.
fn write_image(
    path: &Path,
    bytes: u64,
    interrupt: &Interrupt,
    written: &mut dyn FnMut(u64),
) -> Result<(), BenchError> {
    let mut file = File::create_new(path).at(path)?;
    let piece = vec![0; PIECE_BYTES];
    let mut left = bytes;
    while left > 0 {
        interrupt.check()?;
        let len = left.min(PIECE_BYTES as u64);
        file.write_all(&piece[..len as usize]).at(path)?;
        left -= len;
        written(bytes - left);
    }
    file.sync_all().at(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn an_image_is_written_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("image");
        let mut last = 0;
        write_image(&path, 9 << 20, &Interrupt::default(), &mut |bytes| last = bytes).unwrap();
        let metadata = std::fs::metadata(&path).unwrap();
        assert_eq!((metadata.len(), last), (9 << 20, 9 << 20));
        assert!(metadata.blocks() * 512 >= 9 << 20, "no holes");
    }

    #[test]
    fn an_interrupt_leaves_nothing_behind() {
        let folder = tempfile::tempdir().unwrap();
        let interrupt = Interrupt::default();
        interrupt.flag().store(true, std::sync::atomic::Ordering::Relaxed);
        let ground =
            Ground::new(Path::new("/bin/true"), folder.path(), 8 << 20, false, &interrupt, &mut |_| {});
        assert!(matches!(ground, Err(BenchError::Interrupted)));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn too_little_room_is_told_before_anything_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let error = require_room(folder.path(), 1 << 60).unwrap_err();
        assert!(error.to_string().contains("--dir"), "{error}");
    }
}
