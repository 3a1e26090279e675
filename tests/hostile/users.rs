//! Ordinary users who try to make the daemon use more memory than docs/MEMORY.md says. It runs with
//! that as a system limit; beyond it, it would be killed.
//!
//! `just hostile SECONDS` runs this for longer.

use super::limited::{Limited, peak_bytes};
use crate::skip_if;
use crate::support::{Mount, NOBODY, Place, as_nobody, executable, no_fuse, not_root};
use rustix::fs::{FallocateFlags, XattrFlags, fallocate, setxattr};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit};
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
/// The mount's option `memory`.
const OPTION_MIB: u64 = 86;
/// Users at the same time.
const USERS: u64 = 3;
/// About how many files each of them has at a time.
const FILES: u64 = 20_000;
static WRITE: [u8; 1 << 20] = [7; 1 << 20];
/// When the users' time is over.
static END: OnceLock<Instant> = OnceLock::new();
/// Directories that a user keeps before it removes the oldest.
const GROUNDS: u64 = 4;
/// The environment variable with the instructions for a user's program.
const ORDERS: &str = "SYNCLINE_HOSTILE_ORDERS";

/// The limit in docs/MEMORY.md.
fn stated_bytes() -> u64 {
    let cpus = std::thread::available_parallelism().map_or(1, |cpus| cpus.get() as u64).min(16);
    let fixed = 128 + 64 + 64 * cpus;
    let inodes = 65_536 * 10 * 1024 + USERS * FILES * 64;
    (fixed + OPTION_MIB) * MIB + inodes
}

/// Runs the users for this long.
fn let_loose(time: Duration) {
    let place = Place::with_image("2GiB");
    fs::set_permissions(place.path(), Permissions::from_mode(0o755)).unwrap();
    let options = format!("allow_other,memory={OPTION_MIB}MiB");
    let mount = Mount::new(&place.image(), &place.directory("mount"), &["-o", &options]);
    let (daemon, stated) = (mount.pid(), stated_bytes());
    let limited = Limited::new(daemon, stated);
    // The user nobody can't read this program where it is.
    let program = place.path().join("user");
    executable(&program, &fs::read(std::env::current_exe().unwrap()).unwrap());
    let users: Vec<Child> = (0..USERS)
        .map(|user| {
            let home = mount.path.join(format!("user{user}"));
            fs::create_dir(&home).unwrap();
            chown(&home, Some(NOBODY), Some(NOBODY)).unwrap();
            let mut command = Command::new(&program);
            command
                .args(["--exact", "hostile::users::a_user", "--ignored", "--nocapture"])
                .stdout(Stdio::null());
            command.env(ORDERS, format!("{} {user} {}", time.as_secs(), home.display()));
            as_nobody(command).spawn().unwrap()
        })
        .collect();
    for mut user in users {
        let status = user.wait().unwrap();
        assert!(status.success(), "{status}: see above");
    }
    let peak = peak_bytes(daemon);
    let enforced = if limited.is_some() { "enforced" } else { "not enforced: there are no memory cgroups" };
    println!("{} MiB at most, {} MiB stated, {enforced}", peak / MIB, stated / MIB);
    assert!(peak <= stated);
    // The daemon is still working.
    fs::write(mount.path.join("after"), "all is well").unwrap();
    assert_eq!(mount.stats()["files"]["submissions_short"], 0);
    mount.unmount().ok();
    place.check_clean();
}

#[test]
fn hostile_users_are_kept_within_the_stated_memory() {
    skip_if!(no_fuse());
    skip_if!(not_root());
    let_loose(Duration::from_secs(5));
}

/// Runs for `SYNCLINE_HOSTILE_SECONDS`.
#[test]
#[ignore = "a long run"]
fn hostile_users_for_a_long_time() {
    let seconds = std::env::var("SYNCLINE_HOSTILE_SECONDS").map_or(600, |seconds| seconds.parse().unwrap());
    let_loose(Duration::from_secs(seconds));
}

/// The program of a user.
#[test]
#[ignore = "started by the tests here"]
fn a_user() {
    let Ok(orders) = std::env::var(ORDERS) else { return };
    let mut orders = orders.splitn(3, ' ');
    let mut number = || orders.next().unwrap().parse::<u64>().unwrap();
    let (seconds, user) = (number(), number());
    let home = PathBuf::from(orders.next().unwrap());
    let all = rustix::process::getrlimit(Resource::Nofile).maximum;
    rustix::process::setrlimit(Resource::Nofile, Rlimit { current: all, maximum: all }).unwrap();
    END.set(Instant::now() + Duration::from_secs(seconds)).unwrap();
    let mut turn = user * 4;
    while !is_over() {
        let (name, attack) = ATTACKS[(turn * 7) as usize % ATTACKS.len()];
        let ground = home.join(format!("{turn}"));
        fs::create_dir(&ground).unwrap_or_else(|error| panic!("{name}: {error}"));
        if let Err(error) = attack(&ground) {
            // No room, too many open files, too large, too much: errors that a user may get.
            let allowed = [Errno::NOSPC, Errno::MFILE, Errno::NFILE, Errno::FBIG, Errno::TOOBIG];
            let told = Errno::from_io_error(&error);
            assert!(told.is_some_and(|errno| allowed.contains(&errno)), "{name}: {error}");
        }
        if let Some(old) = turn.checked_sub(GROUNDS) {
            let _ = fs::remove_dir_all(home.join(format!("{old}")));
        }
        turn += 1;
    }
}

fn is_over() -> bool {
    END.get().is_some_and(|end| Instant::now() > *end)
}

/// This many rounds, or as many as time permits.
fn rounds(count: u64) -> impl Iterator<Item = u64> {
    (0..count).take_while(|_| !is_over())
}

type Attack = fn(&Path) -> io::Result<()>;

const ATTACKS: [(&str, Attack); 11] = [
    ("punched writes", punched_writes),
    ("cut writes", cut_writes),
    ("small files", small_files),
    ("open files", open_files),
    ("huge directories", huge_directories),
    ("extended attributes", extended_attributes),
    ("fat inodes", fat_inodes),
    ("deep paths", deep_paths),
    ("sparse files", sparse_files),
    ("blocks in parts", blocks_in_parts),
    ("many readers", many_readers),
];

fn file(path: PathBuf) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(true).open(path)
}

/// Of each large write one block remains.
fn punched_writes(ground: &Path) -> io::Result<()> {
    let file = file(ground.join("file"))?;
    for n in rounds(200) {
        file.write_all_at(&WRITE, n * MIB)?;
        fallocate(&file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, n * MIB, MIB - 4096)?;
    }
    Ok(())
}

/// Of each large write the beginning remains, and some are synced.
fn cut_writes(ground: &Path) -> io::Result<()> {
    for n in rounds(200) {
        let file = file(ground.join(n.to_string()))?;
        file.write_all_at(&WRITE, 0)?;
        file.set_len(4096 + 4096 * (n % 3))?;
        if n % 8 == 0 {
            file.sync_data()?;
        }
    }
    Ok(())
}

fn small_files(ground: &Path) -> io::Result<()> {
    for n in rounds(FILES / 4) {
        fs::write(ground.join(n.to_string()), &WRITE[..n as usize % 300])?;
    }
    for entry in fs::read_dir(ground)?.take_while(|_| !is_over()) {
        entry?.metadata()?;
    }
    Ok(())
}

/// As many open files as possible, half of them without a name.
fn open_files(ground: &Path) -> io::Result<()> {
    let mut open = Vec::new();
    for n in rounds(8_000) {
        let path = ground.join(n.to_string());
        match file(path.clone()) {
            Ok(file) => open.push(file),
            Err(error) if Errno::from_io_error(&error) == Some(Errno::MFILE) => break,
            Err(error) => return Err(error),
        }
        open[n as usize].write_all_at(b"a byte or two", n * 5)?;
        if n % 2 == 0 {
            fs::remove_file(path)?;
        }
    }
    Ok(())
}

/// Huge directories, with readers that stop half-way.
fn huge_directories(ground: &Path) -> io::Result<()> {
    for n in rounds(FILES / 4) {
        let name = format!("{n:0>200}");
        if n % 2 == 0 {
            file(ground.join(name)).map(drop)?
        } else {
            symlink("x".repeat(3000), ground.join(name))?
        };
    }
    let mut readers = Vec::new();
    for n in rounds(500) {
        let mut reader = fs::read_dir(ground)?;
        reader.by_ref().take(n as usize * 7).try_for_each(|entry| entry.map(drop))?;
        readers.push(reader);
    }
    Ok(())
}

/// Long xattrs, as many as possible.
fn extended_attributes(ground: &Path) -> io::Result<()> {
    for n in rounds(200) {
        let path = ground.join(n.to_string());
        file(path.clone())?;
        for (attribute, len) in [100, 4000, 60_000, 10].into_iter().enumerate() {
            setxattr(&path, format!("user.{attribute}"), &WRITE[..len], XattrFlags::empty())?;
        }
    }
    let path = ground.join("0");
    for n in rounds(3_000) {
        setxattr(&path, format!("user.{n:0>200}"), &WRITE[..n as usize % 20 * 200], XattrFlags::empty())?;
    }
    Ok(())
}

/// Inodes that are as large in memory as possible: contents, tiny xattrs and names that just fit
/// their items.
fn fat_inodes(ground: &Path) -> io::Result<()> {
    let other = ground.join("names");
    fs::create_dir(&other)?;
    for n in rounds(2_000) {
        let path = ground.join(n.to_string());
        fs::write(&path, &WRITE[..2048])?;
        for attribute in 0..45_u8 {
            setxattr(&path, format!("user.{}", char::from(b'0' + attribute)), &[], XattrFlags::empty())?;
        }
        for name in 0..30 {
            fs::hard_link(&path, other.join(format!("{name}.{n}")))?;
        }
    }
    Ok(())
}

fn deep_paths(ground: &Path) -> io::Result<()> {
    let mut path = ground.to_owned();
    for n in rounds(200) {
        path.push(format!("a directory {n}"));
        fs::create_dir(&path)?;
        fs::write(path.join("file"), "x")?;
    }
    if is_over() {
        return Ok(());
    }
    fs::rename(ground.join("a directory 0"), ground.join("elsewhere"))
}

/// A terabyte file with an extent for each block.
fn sparse_files(ground: &Path) -> io::Result<()> {
    let file = file(ground.join("file"))?;
    for n in rounds(2_000) {
        file.write_all_at(&WRITE[..4096], (n * 7919 % 4096) << 28)?;
    }
    file.sync_all()?;
    let mut buf = vec![0; 1 << 20];
    for n in rounds(200) {
        file.read_at(&mut buf, n << 28)?;
    }
    file.set_len(1 << 50)
}

/// Partly written blocks, which the daemon keeps because the kernel does not.
fn blocks_in_parts(ground: &Path) -> io::Result<()> {
    let file = file(ground.join("file"))?;
    for n in rounds(3_000) {
        file.write_all_at(b"a part of a block", n * 4096 * 3 + 100)?;
    }
    Ok(())
}

fn many_readers(ground: &Path) -> io::Result<()> {
    let path = ground.join("file");
    let whole = file(path.clone())?;
    rounds(32).try_for_each(|n| whole.write_all_at(&WRITE, n * MIB))?;
    whole.sync_all()?;
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..32)
            .map(|n| {
                let path = &path;
                scope.spawn(move || -> io::Result<()> {
                    rustix::fs::fadvise(&File::open(path)?, 0, None, rustix::fs::Advice::DontNeed)?;
                    let mut file = File::open(path)?;
                    let mut buf = vec![0; (n + 1) << 15];
                    while !is_over() && file.read(&mut buf)? > 0 {}
                    Ok(())
                })
            })
            .collect();
        readers.into_iter().try_for_each(|reader| reader.join().expect("no panic"))
    })
}
