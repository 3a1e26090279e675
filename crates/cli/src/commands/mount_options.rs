//! The `-o` options of `mount`.

use crate::failure::Failure;
use crate::size;
use std::path::{Path, PathBuf};
use std::time::Duration;
use syncline_fs::types::Algorithm;
use syncline_fs::{AccessTime, Durability};
use syncline_fuse::{DirectIo, MountOptions, Synchronous, Transport};
use syncline_store::{Snapshot, StoreOptions};

/// The least `memory`, with which every part still has room to work.
const MEMORY_MIN: usize = 32 << 20;
/// The most that makes sense on any machine.
const MEMORY_MAX: usize = 1 << 50;
/// The message for an unknown option.
const UNKNOWN: &str = "unknown option; 'syncline mount --help' lists them";

/// The names of the `Synchronous` values as options, in order.
const SYNCHRONOUS: [&str; 3] = ["async", "dirsync", "sync"];

/// The options that the kernel reports for every FUSE mount.
pub const KERNEL_WORDS: [&str; 7] =
    ["fd", "rootmode", "user_id", "group_id", "default_permissions", "blksize", "max_read"];

/// The options, to suggest one for a word that is unknown.
const NAMES: [&str; 37] = [
    "ro",
    "rw",
    "nosuid",
    "suid",
    "nodev",
    "dev",
    "noexec",
    "exec",
    "nosymfollow",
    "symfollow",
    "allow_other",
    "noatime",
    "relatime",
    "strictatime",
    "nodiratime",
    "diratime",
    "sync",
    "dirsync",
    "async",
    "durability",
    "discard",
    "compress",
    "commit",
    "memory",
    "direct_io",
    "transport",
    "fuseblk",
    "snapshot",
    "log",
    "key-file",
    "key-command",
    "accept-damaged-log",
    "defaults",
    "nofail",
    "noauto",
    "_netdev",
    "remount",
];

/// Options that there are no more, or that other filesystems have, and what to do instead.
const GONE: [(&str, &str); 11] = [
    ("atomic_writes", "leave it out (SQLite is as fast with WAL)"),
    ("writeback_cache", "leave it out, and each write comes at once"),
    ("memtable", "memory=SIZE limits data, changes and caches together"),
    (
        "cache",
        "memory=SIZE limits data, changes and caches together; a larger one than by default enlarges the caches",
    ),
    ("dirty", "memory=SIZE limits data, changes and caches together"),
    ("kept", "memory=SIZE limits data, changes and caches together"),
    ("receipts", "leave it out; 'explain' knows the last 4096 fsyncs"),
    ("check_opens", "direct_io=write has the kernel ask about each opening, too"),
    ("nocheck_opens", "leave it out"),
    ("uring_switch", "transport=available leaves the machine's switch as it is"),
    ("no_allow_other", "mount below a directory that only its owner may enter"),
];

/// Everything that `-o` can choose.
#[derive(Default)]
pub struct MountChoices {
    /// For the store.
    pub store: StoreOptions,
    /// For the filesystem.
    pub fs: syncline_fs::Options,
    /// Mount this snapshot, read-only, instead of the present state.
    pub snapshot: Option<String>,
    /// Give freed blocks of an image file back to its host.
    pub punch_holes: bool,
    /// Where the daemon's messages go.
    pub log: Option<PathBuf>,
    no_suid: bool,
    no_devices: bool,
    no_execution: bool,
    no_symlinks: bool,
    no_recovery: bool,
    allow_other: bool,
    direct_io: DirectIo,
    synchronous: Synchronous,
    transport: Transport,
    /// Do not switch FUSE over io_uring on where the machine has it off.
    leaves_uring_switch: bool,
    /// Whether the mount gets a block device.
    pub fuseblk: Fuseblk,
}

/// Whether a mount gets a block device, so that sync(2) reaches it.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Fuseblk {
    /// Root's mounts, where that is safe.
    Auto,
    /// Or it is refused. Also in a mount namespace that may end with the daemon.
    Always,
    #[default]
    Never,
}

impl MountChoices {
    /// Reads the options; an unknown one is an error, so that a typo never weakens a promise.
    pub fn parse(options: &[String]) -> Result<Self, Failure> {
        let mut choices = Self::default();
        let sloppy = options.iter().any(|option| option.trim() == "sloppy");
        for option in options.iter().map(|option| option.trim()).filter(|option| !option.is_empty()) {
            let (name, value) = option.split_once('=').unwrap_or((option, ""));
            if let Some((_, instead)) = GONE.iter().find(|(gone, _)| *gone == name && !sloppy) {
                let text = format!("-o {option}: there is no such option any more: {instead}");
                return Err(Failure::usage(text));
            }
            match choices.apply(name, value) {
                // mount(8) asks for this: the list may be meant for several systems.
                Err(text) if sloppy && text == UNKNOWN => {}
                Err(text) if text == UNKNOWN => {
                    let near = crate::near::nearest(name, &NAMES);
                    let near = near.map(|near| format!("; did you mean {near}?")).unwrap_or_default();
                    return Err(Failure::usage(format!("-o {option}: {text}{near}")));
                }
                applied => applied.map_err(|text| Failure::usage(format!("-o {option}: {text}")))?,
            }
        }
        if matches!(choices.fs.durability, Durability::Ordered(_))
            && choices.synchronous != Synchronous::Never
        {
            return Err(Failure::usage("-o durability=ordered: contradicts sync and dirsync; choose one"));
        }
        if choices.no_recovery && !choices.store.read_only {
            return Err(Failure::usage(
                "-o norecovery: only together with ro, which replays the log in memory only",
            ));
        }
        Ok(choices)
    }

    /// Reads the options of a remount. mount(8) also passes on what the kernel reports for the
    /// mount, including FUSE's own options.
    pub fn parse_remount(options: &[String]) -> Result<Self, Failure> {
        let name = |option: &String| option.trim().split('=').next().unwrap_or_default().to_owned();
        let ours = options.iter().filter(|option| !KERNEL_WORDS.contains(&&*name(option)));
        Self::parse(&ours.cloned().collect::<Vec<_>>())
    }

    /// Mounts a snapshot, which is read-only.
    pub fn set_snapshot(&mut self, name: &str) -> Result<(), String> {
        if !Snapshot::is_name(name) {
            return Err("give a snapshot's name; 'syncline snapshot list' shows them".into());
        }
        self.snapshot = Some(name.to_owned());
        self.store.read_only = true;
        Ok(())
    }

    fn apply(&mut self, name: &str, value: &str) -> Result<(), String> {
        match name {
            "ro" => self.store.read_only = true,
            // A snapshot stays read-only.
            "rw" => self.store.read_only = self.snapshot.is_some(),
            "snapshot" => self.set_snapshot(value)?,
            "nosuid" => self.no_suid = true,
            "suid" => self.no_suid = false,
            "nodev" => self.no_devices = true,
            "dev" => self.no_devices = false,
            "noexec" => self.no_execution = true,
            "exec" => self.no_execution = false,
            "nosymfollow" => self.no_symlinks = true,
            "symfollow" => self.no_symlinks = false,
            "allow_other" => self.allow_other = true,
            "noatime" => self.fs.access_time = AccessTime::Never,
            "relatime" | "atime" => self.fs.access_time = AccessTime::Relative,
            "strictatime" => self.fs.access_time = AccessTime::Always,
            "nodiratime" => self.fs.directory_access_time = false,
            "diratime" => self.fs.directory_access_time = true,
            "sync" => self.synchronous = Synchronous::Everything,
            "dirsync" => self.synchronous = self.synchronous.max(Synchronous::Directories),
            "async" => self.synchronous = Synchronous::Never,
            "durability" => self.fs.durability = value.parse()?,
            "discard" => {
                self.punch_holes = match value {
                    "" => false,
                    "punch" => true,
                    _ => return Err("choose discard or discard=punch".into()),
                };
                self.store.discard = true;
            }
            // Words of other filesystems' lines in fstab: what these ask for is so anyway.
            "nodiscard" => (self.store.discard, self.punch_holes) = (false, false),
            "nocompress" => self.fs.compression = None,
            "norecovery" | "noload" => self.no_recovery = true,
            "accept-damaged-log" => self.store.accept_damaged_log = true,
            "commit" => {
                let seconds = value.parse::<u64>().ok().filter(|seconds| *seconds > 0);
                let seconds = seconds.ok_or("give a number of seconds, 1 at least")?;
                self.store.checkpoint_interval = Duration::from_secs(seconds);
            }
            "memory" => self.share_out(size::parse(value)? as usize)?,
            "compress" => {
                self.fs.compression = match value {
                    "" | "zstd" => Some(Algorithm::Zstd),
                    "lz4" => Some(Algorithm::Lz4),
                    "no" => None,
                    _ => return Err("choose compress, compress=lz4, compress=zstd or compress=no".into()),
                }
            }
            "direct_io" => {
                self.direct_io = match value {
                    "never" => DirectIo::Never,
                    "synced" => DirectIo::Synced,
                    "write" => DirectIo::WriteOnly,
                    _ => return Err("choose never, synced or write".into()),
                }
            }
            "log" if value.is_empty() => return Err("give the name of a file".into()),
            "log" => self.log = Some(value.into()),
            // Taken out before (`keys::take_options`); a remount leaves the key as it is.
            "key-file" | "key-command" => {}
            // Several names are joined by colons, since commas separate options.
            "ablate" => {
                for name in value.split(':') {
                    self.store.lab.ablations.insert(name.parse()?);
                }
            }
            "fuseblk" => {
                self.fuseblk = match value {
                    "auto" => Fuseblk::Auto,
                    "always" => Fuseblk::Always,
                    "never" => Fuseblk::Never,
                    _ => return Err("choose auto, always or never".into()),
                }
            }
            "transport" => {
                self.transport = match value {
                    "auto" | "available" => Transport::Auto,
                    "uring" => Transport::Uring,
                    "classic" => Transport::Classic,
                    _ => return Err("choose auto, available, uring or classic".into()),
                };
                self.leaves_uring_switch = value != "auto";
            }
            // Options of mount(8) and fstab(5) that describe the default, or are not for us.
            "defaults" | "user" | "nouser" | "users" | "nofail" | "auto" | "noauto" | "_netdev"
            | "sloppy" | "remount" | "silent" | "loud" | "group" | "owner" => {}
            // lazytime: an access time by itself never causes a log write; it goes along with one.
            // iversion: inode versions concern only the kernel.
            "lazytime" | "nolazytime" | "iversion" | "noiversion" | "acl" | "user_xattr" => {}
            // Options for other programs that read fstab.
            _ if name.starts_with("x-") || name.starts_with("X-") || name == "comment" => {}
            _ => return Err(UNKNOWN.into()),
        }
        Ok(())
    }

    /// Shares memory out, so that the limits of docs/MEMORY.md add up to `bytes`. Dirty data and
    /// changes get equal parts, and no more than by default: with more, a crash would have more to
    /// replay. The caches of nodes and of blocks get the rest, two to one.
    fn share_out(&mut self, bytes: usize) -> Result<(), String> {
        if bytes < MEMORY_MIN {
            return Err(format!("at least {}", size::show(MEMORY_MIN as u64)));
        }
        if bytes > MEMORY_MAX {
            return Err(format!("at most {}", size::show(MEMORY_MAX as u64)));
        }
        let defaults = StoreOptions::default();
        let unflushed_max = defaults.unflushed_bytes as usize;
        // A part of dirty data counts twice, one of changes four times, and four times what waits for a
        // flush: as much as the part, but no more than by default. A cache gets at least half a part.
        let small = bytes * 4 / 43;
        let large = bytes.saturating_sub(4 * unflushed_max) * 4 / 27;
        let part = small.max(large).min(defaults.memtable_bytes);
        let unflushed = part.min(unflushed_max);
        let caches = bytes - (2 + 4) * part - 4 * unflushed;
        self.store.memtable_bytes = part;
        self.store.unflushed_bytes = unflushed as u64;
        self.store.node_cache_bytes = caches - caches / 3;
        self.fs.dirty_bytes_max = part as u64;
        self.fs.kept_bytes_max = caches as u64 / 3;
        Ok(())
    }

    /// The class of files and directories that have none of their own.
    pub fn class(&self) -> Durability {
        self.fs.durability
    }

    /// The option that makes changes durable before they are answered, or "async".
    pub fn synchronous(&self) -> &'static str {
        SYNCHRONOUS[self.synchronous as usize]
    }

    /// The option that promises more than a mount of this class and synchronous option does.
    pub fn promised_beyond(&self, class: &str, synchronous: &str) -> Option<String> {
        let promised = SYNCHRONOUS.iter().position(|known| *known == synchronous).unwrap_or(0);
        if self.synchronous as usize > promised {
            return Some(self.synchronous().to_owned());
        }
        let is_promised =
            class == Durability::Strict.to_string() || promised == Synchronous::Everything as usize;
        (self.fs.durability == Durability::Strict && !is_promised).then(|| "durability=strict".to_owned())
    }

    /// The options that a remount can't change, as text to compare.
    pub fn kept_for_life(&self) -> String {
        let (store, fs) = (&self.store, &self.fs);
        let times = (fs.access_time, fs.directory_access_time);
        let memory = (store.memtable_bytes, store.node_cache_bytes, fs.dirty_bytes_max, fs.kept_bytes_max);
        let space = (store.discard, self.punch_holes, fs.compression);
        let kept = (store.accept_damaged_log, store.checkpoint_interval);
        let promised = (fs.durability, self.synchronous, &self.snapshot, &self.log);
        let others = self.allow_other || rustix::process::geteuid().is_root();
        let kernel = (others, self.direct_io, self.transport, self.leaves_uring_switch, self.fuseblk);
        format!("{times:?} {memory:?} {space:?} {kept:?} {promised:?} {kernel:?}")
    }

    /// True if FUSE over io_uring should be switched on where it is off.
    pub fn switches_uring_on(&self) -> bool {
        !self.leaves_uring_switch
    }

    /// The options for the FUSE session.
    pub fn kernel(&self, image: &Path) -> MountOptions {
        let mut options = MountOptions::new(image);
        options.kernel.read_only = self.store.read_only;
        options.kernel.no_suid |= self.no_suid;
        options.kernel.no_devices |= self.no_devices;
        options.kernel.no_execution |= self.no_execution;
        options.kernel.no_symlinks |= self.no_symlinks;
        options.kernel.allow_other = self.allow_other.then_some(true);
        options.direct_io = self.direct_io;
        options.synchronous = self.synchronous;
        options.transport = self.transport;
        options
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<MountChoices, Failure> {
        MountChoices::parse(&text.split(',').map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn options_are_applied() {
        let choices = parse("ro,commit=5").unwrap();
        assert!(choices.store.read_only);
        assert_eq!(choices.store.checkpoint_interval, Duration::from_secs(5));
        let choices = parse("ablate=xattr-skip:flush-elide,ablate=dir-bulk").unwrap();
        let names: Vec<_> = choices.store.lab.ablations.iter().map(|ablation| ablation.name()).collect();
        assert_eq!(names, ["xattr-skip", "flush-elide", "dir-bulk"]);
    }

    #[test]
    fn the_stronger_of_sync_and_dirsync_counts() {
        let synchronous = |text: &str| parse(text).unwrap().kernel(Path::new("image")).synchronous;
        assert_eq!(synchronous("noatime"), Synchronous::Never);
        assert_eq!(synchronous("dirsync"), Synchronous::Directories);
        assert_eq!(
            (synchronous("sync,dirsync"), synchronous("dirsync,sync")),
            (Synchronous::Everything, Synchronous::Everything)
        );
        assert_eq!(synchronous("sync,async"), Synchronous::Never);
        assert_eq!(parse("strictatime").unwrap().fs.access_time, AccessTime::Always);
    }

    #[test]
    fn an_option_that_promises_more_than_the_mount_is_named() {
        let beyond =
            |text: &str, class, synchronous| parse(text).unwrap().promised_beyond(class, synchronous);
        for promised in [("fsync", "async"), ("ordered:5", "async"), ("strict", "dirsync"), ("fsync", "sync")]
        {
            assert_eq!(beyond("noatime", promised.0, promised.1), None);
        }
        assert_eq!(beyond("sync", "fsync", "dirsync").as_deref(), Some("sync"));
        assert_eq!(beyond("dirsync", "ordered:5", "async").as_deref(), Some("dirsync"));
        // A directory may have another class.
        assert_eq!(beyond("sync", "strict", "async").as_deref(), Some("sync"));
        assert_eq!(beyond("durability=strict", "fsync", "dirsync").as_deref(), Some("durability=strict"));
        assert_eq!(beyond("durability=strict", "strict", "async"), None);
        assert_eq!(beyond("durability=strict,dirsync", "fsync", "sync"), None);
    }

    #[test]
    fn memory_is_shared_out_to_the_last_byte() {
        let parts = |choices: MountChoices| {
            let (store, fs) = (choices.store, choices.fs);
            let caches = (store.node_cache_bytes, fs.kept_bytes_max);
            (store.memtable_bytes, fs.dirty_bytes_max, store.unflushed_bytes, caches)
        };
        let of = |text: &str| parts(parse(text).unwrap());
        assert_eq!(of("memory=1984MiB"), parts(MountChoices::default()), "the default");
        for mebibytes in [32, 100, 687, 689, 1000, 4096, 1 << 20] {
            let (changes, dirty, unflushed, (nodes, blocks)) = of(&format!("memory={mebibytes}MiB"));
            let limits = 2 * dirty + 4 * unflushed + 4 * changes as u64 + nodes as u64 + blocks;
            assert_eq!(limits, mebibytes << 20);
            assert!(nodes >= 1 << 20 && nodes >= changes / 3, "{mebibytes} MiB: {nodes} for nodes");
        }
        assert_eq!(of("memory=8GiB").0, 256 << 20, "the rest is for the caches");
        assert!(parse("memory=31MiB").is_err_and(|failure| failure.to_string().contains("32.00 MiB")));
        assert!(parse("memory=lots").is_err() && parse("memory=8EiB").is_err());
    }

    #[test]
    fn options_that_were_removed_say_what_to_do_instead() {
        let told = |text: &str| parse(text).err().unwrap().to_string();
        for (option, instead) in GONE {
            let told = told(&format!("{option}=1"));
            assert!(told.contains("no such option any more") && told.contains(instead), "{told}");
            assert!(!NAMES.contains(&option), "{option}");
        }
    }

    #[test]
    fn compress_is_zstandard_unless_it_says_otherwise() {
        let compression = |text: &str| parse(text).unwrap().fs.compression;
        assert_eq!((compression("noatime"), compression("compress,compress=no")), (None, None));
        assert_eq!(compression("compress"), Some(Algorithm::Zstd));
        assert_eq!(compression("compress=lz4"), Some(Algorithm::Lz4));
        assert!(parse("compress=gzip").is_err_and(|failure| failure.to_string().contains("lz4")));
    }

    #[test]
    fn words_of_fstab_have_their_meaning() {
        let choices = parse("nodiratime,lazytime,nosymfollow,iversion,norecovery,ro").unwrap();
        assert!(!choices.fs.directory_access_time && choices.store.read_only);
        assert!(choices.kernel(Path::new("image")).kernel.no_symlinks);
        assert!(parse("norecovery").is_err_and(|failure| failure.to_string().contains("together with ro")));
        assert!(!parse("discard,nodiscard").unwrap().store.discard);
        assert_eq!(parse("compress,nocompress").unwrap().fs.compression, None);
        assert!(parse("user_id=0").is_err(), "only a remount has this from the kernel");
        let words = "remount,ro,noatime,user_id=0,group_id=0,default_permissions,allow_other";
        let words: Vec<String> = words.split(',').map(str::to_owned).collect();
        assert!(MountChoices::parse_remount(&words).unwrap().store.read_only);
    }

    #[test]
    fn the_transport_is_passed_on_and_the_last_word_counts() {
        let transport = |text: &str| parse(text).unwrap().kernel(Path::new("image")).transport;
        assert_eq!(transport(""), Transport::default());
        assert_eq!(transport("transport=uring"), Transport::Uring);
        assert_eq!(transport("transport=uring,transport=classic"), Transport::Classic);
        assert!(parse("transport=telepathy").is_err());
        let switches = |text: &str| parse(text).unwrap().switches_uring_on();
        assert!(switches("") && switches("transport=available,transport=auto"));
        for transport in ["available", "uring", "classic"] {
            assert!(!switches(&format!("transport={transport}")), "{transport}");
        }
    }

    #[test]
    fn unknown_and_impossible_options_are_refused() {
        assert!(parse("nobarrier").is_err_and(|failure| failure.to_string().contains("unknown option")));
        // Options for other readers of fstab are ignored, and mount(8) may ask to ignore all
        // unknown ones.
        assert!(parse("discard").unwrap().store.discard);
        assert!(parse("x-systemd.automount,X-mount.mkdir,comment=ours,nofail").is_ok());
        assert!(parse("sloppy,nobarrier,receipts=0").is_ok() && parse("sloppy,commit=soon").is_err());
        assert!(parse("commit=soon").is_err() && parse("commit=0").is_err());
        assert!(parse("ablate=fsync").is_err_and(|failure| failure.to_string().contains("flush-group")));
    }

    /// The table of pairs in docs/GUIDE.md.
    #[test]
    fn only_one_pair_of_options_is_refused() {
        let value = |name: &str| match name {
            "durability" => "=ordered",
            "commit" => "=5",
            "memory" => "=64MiB",
            "direct_io" => "=synced",
            "transport" => "=uring",
            "fuseblk" => "=always",
            "snapshot" => "=monday",
            "log" => "=/tmp/log",
            "key-file" => "=/tmp/key",
            "key-command" => "=cat /tmp/key",
            _ => "",
        };
        let options = NAMES.map(|name| format!("{name}{}", value(name)));
        let pairs = options.iter().flat_map(|one| options.iter().map(move |other| format!("{one},{other}")));
        let refused: Vec<String> = pairs.filter(|pair| parse(pair).is_err()).collect();
        let ordered = "durability=ordered";
        let known =
            ["sync", "dirsync"].map(|other| [format!("{other},{ordered}"), format!("{ordered},{other}")]);
        assert_eq!(refused.len(), 4, "{refused:?}");
        assert!(known.iter().flatten().all(|pair| refused.contains(pair)), "{refused:?}");
    }

    #[test]
    fn a_known_option_is_suggested_for_one_with_a_typo() {
        let told = |text: &str| parse(text).err().unwrap().to_string();
        assert!(told("noatim").contains("did you mean noatime?"), "{}", told("noatim"));
        assert!(told("compres=lz4").contains("did you mean compress?"));
        for other in ["qqqq", "errors=remount-ro"] {
            assert!(!told(other).contains("did you mean"), "{}", told(other));
        }
        let unknown =
            |name: &&str| MountChoices::default().apply(name, "").is_err_and(|text| text == UNKNOWN);
        assert_eq!(NAMES.into_iter().find(|name| unknown(name)), None);
    }
}
