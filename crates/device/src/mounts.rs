//! The kernel's list of mounts.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// The filesystem types of our mounts, as `mount` and `findmnt` show them: without a block device, and
/// with one, which is the source of the mount.
pub const FILESYSTEM_TYPES: [&str; 2] = ["fuse.syncline", "fuseblk.syncline"];

/// One mount.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MountEntry {
    /// The kernel's number of the mounted filesystem, as `major:minor`.
    pub device: String,
    /// Where it is mounted.
    pub mount_point: PathBuf,
    /// The filesystem's type.
    pub filesystem_type: String,
    /// The source of the mount: a device, a file or a name.
    pub source: String,
    /// The image, for a mount of ours: its source, or what is behind the loop device that only gives
    /// the mount its name.
    pub image: String,
    /// The options that the kernel shows, separated by commas: of this mount, and of the filesystem.
    pub options: String,
}

impl MountEntry {
    /// True if both are mounts of one filesystem. The source counts too: a freed device number is
    /// soon reused.
    pub fn is_of_the_same(&self, other: &Self) -> bool {
        let which =
            |entry: &Self| (entry.device.clone(), entry.filesystem_type.clone(), entry.source.clone());
        which(self) == which(other)
    }

    /// True for a mount of ours.
    pub fn is_ours(&self) -> bool {
        FILESYSTEM_TYPES.contains(&&*self.filesystem_type)
    }

    /// True if the kernel shows this option.
    pub fn has_option(&self, option: &str) -> bool {
        self.options.split(',').any(|shown| shown == option)
    }

    /// True if the kernel refuses changes: of this mount, or of the filesystem wherever it is
    /// mounted.
    pub fn is_read_only(&self) -> bool {
        self.has_option("ro")
    }
}

/// All mounts that this process sees, in the order in which they were made.
pub fn mounts() -> io::Result<Vec<MountEntry>> {
    Ok(parse_all(&fs::read("/proc/self/mountinfo")?).collect())
}

/// The entries of any process's `mountinfo`.
pub fn parse_all(table: &[u8]) -> impl Iterator<Item = MountEntry> {
    table.split(|&byte| byte == b'\n').filter_map(parse)
}

/// One line: `id parent major:minor root mount-point options [optional fields] - type source
/// super-options`.
fn parse(line: &[u8]) -> Option<MountEntry> {
    let mut fields = line.split(|&byte| byte == b' ');
    let device = String::from_utf8_lossy(fields.nth(2)?).into_owned();
    let mount_point = PathBuf::from(OsString::from_vec(unescape(fields.nth(1)?)));
    let of_mount = String::from_utf8_lossy(fields.next()?).into_owned();
    let mut rest = fields.skip_while(|&field| field != b"-").skip(1);
    let filesystem_type = String::from_utf8_lossy(rest.next()?).into_owned();
    let source = String::from_utf8_lossy(&unescape(rest.next()?)).into_owned();
    let of_filesystem = String::from_utf8_lossy(rest.next().unwrap_or_default()).into_owned();
    let options = format!("{of_mount},{of_filesystem}");
    let named = (filesystem_type == FILESYSTEM_TYPES[1]).then(|| image_behind(&device)).flatten();
    let image = named.unwrap_or_else(|| source.clone());
    Some(MountEntry { device, mount_point, filesystem_type, source, image, options })
}

/// The image behind a loop device that we made for a mount; `None` for other devices.
fn image_behind(device: &str) -> Option<String> {
    let about = Path::new("/sys/dev/block").join(device);
    if !crate::file::is_for_a_mount(&fs::canonicalize(&about).ok()?) {
        return None;
    }
    let file = fs::read(about.join("loop/backing_file")).ok()?;
    Some(named_image(String::from_utf8_lossy(&file).trim_end_matches('\n')).to_owned())
}

/// The name of an image, from the kernel's name for the file behind a loop device.
fn named_image(file: &str) -> &str {
    // A location that is no file has an unnamed file with its name.
    let kept = file.strip_suffix(" (deleted)").unwrap_or(file);
    kept.strip_prefix("/memfd:").unwrap_or(kept)
}

/// Decodes the kernel's `\040` for a space and the like.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, after)) = rest.split_first() {
        let octal = (byte == b'\\').then(|| after.get(..3)).flatten();
        let code = octal.and_then(|digits| std::str::from_utf8(digits).ok());
        match code.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(escaped) => {
                plain.push(escaped);
                rest = &after[3..];
            }
            None => {
                plain.push(byte);
                rest = after;
            }
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_taken_apart() {
        let line = br"36 35 98:0 /mnt1 /mnt\040two/x\134y rw,noatime master:1 shared:2 - fuse.syncline /i\040m.img rw";
        let entry = parse(line).unwrap();
        assert_eq!(entry.mount_point, PathBuf::from(r"/mnt two/x\y"));
        assert_eq!((&*entry.device, &*entry.filesystem_type), ("98:0", "fuse.syncline"));
        assert_eq!(entry.source, "/i m.img");
        assert!(entry.has_option("noatime") && !entry.has_option("atime") && !entry.is_read_only());
        for line in [&b"1 2 0:9 / /m ro - fuse.syncline i rw,user_id=0"[..], b"1 2 0:9 / /m rw - fuse i ro"] {
            assert!(parse(line).unwrap().is_read_only());
        }
    }

    #[test]
    fn an_image_is_named_by_the_file_behind_its_loop_device() {
        assert_eq!(named_image("/srv/a.img"), "/srv/a.img");
        assert_eq!(named_image("/srv/a.img (deleted)"), "/srv/a.img");
        assert_eq!(named_image("/memfd:nbd://host/export (deleted)"), "nbd://host/export");
        let entry = parse(b"1 2 8:1 / /m rw - fuseblk.syncline /dev/sda1 rw").unwrap();
        assert!(entry.is_ours() && entry.image == "/dev/sda1");
        assert!(!parse(b"1 2 8:1 / /m rw - fuseblk /dev/sda1 rw").unwrap().is_ours());
    }

    #[test]
    fn broken_lines_are_skipped() {
        for line in [&b""[..], b"36 35", b"1 2 3 4 /m rw", b"1 2 3 4 /m rw - fuse"] {
            assert_eq!(parse(line), None);
        }
        assert_eq!(unescape(br"\04"), br"\04");
        assert_eq!(unescape(br"\999"), br"\999");
    }

    #[test]
    fn the_root_is_mounted() {
        assert!(mounts().unwrap().iter().any(|entry| entry.mount_point.as_os_str() == "/"));
    }
}
