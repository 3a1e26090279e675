//! The types of the filesystem's interface.

pub use syncline_format::items::extent::Algorithm;

/// Inode number; equals the object id in the store. The root directory is 1.
pub type Ino = u64;

/// Number of the root directory.
pub const ROOT: Ino = 1;

/// A moment: seconds since 1970 (may be negative) and nanoseconds below 1,000,000,000.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Timestamp {
    /// Seconds.
    pub seconds: i64,
    /// Nanoseconds.
    pub nanoseconds: u32,
}

/// The type of an inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum FileType {
    /// Regular file.
    Regular,
    /// Directory.
    Directory,
    /// Symbolic link.
    Symlink,
    /// Named pipe.
    Fifo,
    /// Socket.
    Socket,
    /// Character device.
    CharDevice,
    /// Block device.
    BlockDevice,
}

impl FileType {
    /// The file type bits of a mode, shifted down by 12; also `d_type`.
    pub fn number(self) -> u8 {
        match self {
            Self::Fifo => 0o01,
            Self::CharDevice => 0o02,
            Self::Directory => 0o04,
            Self::BlockDevice => 0o06,
            Self::Regular => 0o10,
            Self::Symlink => 0o12,
            Self::Socket => 0o14,
        }
    }

    /// True for a directory.
    pub fn is_dir(self) -> bool {
        self == Self::Directory
    }

    /// True for a regular file.
    pub fn is_file(self) -> bool {
        self == Self::Regular
    }

    /// True for a symbolic link.
    pub fn is_symlink(self) -> bool {
        self == Self::Symlink
    }

    /// The inverse of [`FileType::number`].
    pub fn from_number(number: u8) -> Option<Self> {
        Some(match number {
            0o01 => Self::Fifo,
            0o02 => Self::CharDevice,
            0o04 => Self::Directory,
            0o06 => Self::BlockDevice,
            0o10 => Self::Regular,
            0o12 => Self::Symlink,
            0o14 => Self::Socket,
            _ => return None,
        })
    }
}

/// Attributes as `stat` shows them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Attributes {
    /// Inode number.
    pub ino: Ino,
    /// Type of the inode.
    pub file_type: FileType,
    /// Permission bits, with setuid, setgid and sticky (07777).
    pub permissions: u16,
    /// Number of names.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a device node.
    pub rdev: u32,
    /// Size in bytes.
    pub size: u64,
    /// 512-byte units allocated.
    pub blocks: u64,
    /// Last access.
    pub atime: Timestamp,
    /// Last change of the contents.
    pub mtime: Timestamp,
    /// Last change of the inode.
    pub ctime: Timestamp,
    /// Creation.
    pub btime: Timestamp,
}

/// Identity of the caller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Caller {
    /// Filesystem user id.
    pub uid: u32,
    /// Filesystem group id.
    pub gid: u32,
}

/// Permissions of an inode to be created.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NewMode {
    /// Permission bits (07777).
    pub permissions: u16,
    /// The caller's umask. It applies only where the directory has no default access control list.
    pub umask: u16,
}

impl From<u16> for NewMode {
    /// These permissions and no umask.
    fn from(permissions: u16) -> Self {
        Self { permissions, umask: 0 }
    }
}

/// A time to set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SetTime {
    /// The current time.
    Now,
    /// The given time.
    To(Timestamp),
}

/// Attributes to change; those that are `None` stay.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SetAttributes {
    /// Permission bits (07777).
    pub permissions: Option<u16>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size: truncate.
    pub size: Option<u64>,
    /// Access time.
    pub atime: Option<SetTime>,
    /// Modification time.
    pub mtime: Option<SetTime>,
    /// Clear setuid and setgid as for a write by an unprivileged user (FATTR_KILL_SUIDGID).
    pub kill_privileges: bool,
}

/// Flags of a file or directory, as chattr(1) sets them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FileFlags {
    /// `i`: nothing about it may change.
    pub immutable: bool,
    /// `a`: a file may only get longer, a directory only get more entries.
    pub append_only: bool,
    /// `A`: reading does not move the access time.
    pub no_access_time: bool,
    /// `d`: backup programs may leave it out.
    pub no_dump: bool,
    /// `c`: the algorithm that compresses new data, if any.
    pub compression: Option<Algorithm>,
    /// `S`: changes are durable before they are answered; class `strict`.
    pub synchronous: bool,
}

/// Flags of a rename.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RenameFlags {
    /// RENAME_NOREPLACE
    pub no_replace: bool,
    /// RENAME_EXCHANGE
    pub exchange: bool,
    /// RENAME_WHITEOUT: a character device 0/0 with this owner takes the place of the old name, in
    /// the same transaction. (Overlay filesystems use it to hide an entry of a lower layer with
    /// that name.)
    pub whiteout: Option<Caller>,
}

/// The treatment of an existing value by setxattr.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum XattrMode {
    /// Create or replace.
    Set,
    /// XATTR_CREATE
    Create,
    /// XATTR_REPLACE
    Replace,
}

/// An entry of a directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DirectoryEntry {
    /// The name: bytes other than NUL and '/'.
    pub name: Vec<u8>,
    /// Number of the inode.
    pub ino: Ino,
    /// Type of the inode.
    pub file_type: FileType,
    /// Pass this to continue after this entry; stable while the directory changes. 63 bits.
    pub cookie: u64,
}

/// Figures of the whole filesystem.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Statfs {
    /// Blocks of 4096 bytes in all.
    pub blocks: u64,
    /// Blocks free.
    pub free: u64,
    /// Blocks free to ordinary users (without the reserve).
    pub available: u64,
    /// Objects that exist.
    pub objects: u64,
    /// Objects that could still be created (an estimate from free space).
    pub objects_free: u64,
}
