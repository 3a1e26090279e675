//! Listings beside programs that change the directory. Any process that lists the directory finds the names
//! that a program has made, and none that a program has removed.

use super::TestMount;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

/// Names in a directory that takes many requests to list.
const NAMES: usize = 1000;

/// A directory that is read piece by piece.
struct Listing(File);

/// An entry, and the position behind it.
struct Entry {
    name: String,
    next: i64,
}

impl Listing {
    fn open(path: &Path) -> Self {
        Self(File::open(path).unwrap())
    }

    /// The entries of one getdents64(2) with a buffer of so many bytes; empty at the end.
    fn piece(&self, bytes: usize) -> Vec<Entry> {
        let mut buffer = vec![0u8; bytes];
        let fd = self.0.as_raw_fd();
        // SAFETY: the kernel writes at most `bytes` bytes, which is the length of `buffer`.
        let got = unsafe { libc::syscall(libc::SYS_getdents64, fd, buffer.as_mut_ptr(), bytes) };
        let got = usize::try_from(got).unwrap_or_else(|_| panic!("{}", io::Error::last_os_error()));
        let (mut entries, mut rest) = (Vec::new(), &buffer[..got]);
        // Each begins with its inode number (8 bytes), position (8), length (2) and type (1).
        while let Some(length) = rest.get(16..18) {
            let (entry, others) = rest.split_at(usize::from(u16::from_ne_bytes(length.try_into().unwrap())));
            let name = entry[19..].split(|&byte| byte == 0).next().unwrap();
            let next = i64::from_ne_bytes(entry[8..16].try_into().unwrap());
            entries.push(Entry { name: String::from_utf8(name.to_vec()).unwrap(), next });
            rest = others;
        }
        entries
    }

    /// All entries from where it is.
    fn rest(&self) -> Vec<Entry> {
        let pieces = std::iter::from_fn(|| Some(self.piece(4096)).filter(|piece| !piece.is_empty()));
        pieces.flatten().collect()
    }

    fn seek(&self, to: i64) {
        // SAFETY: takes no memory.
        assert_eq!(unsafe { libc::lseek(self.0.as_raw_fd(), to, libc::SEEK_SET) }, to);
    }
}

fn names(entries: Vec<Entry>) -> BTreeSet<String> {
    entries.into_iter().map(|entry| entry.name).collect()
}

fn make(path: &Path) {
    File::create_new(path).unwrap();
}

/// A directory with many names.
fn directory(mount: &TestMount, name: &str) -> std::path::PathBuf {
    let path = mount.path().join(name);
    fs::create_dir(&path).unwrap();
    (0..NAMES).for_each(|number| make(&path.join(format!("old {number}"))));
    path
}

/// Runs `work` while threads list a directory again and again. It may go meanwhile.
fn beside_readers<T>(path: &Path, work: impl FnOnce() -> T) -> T {
    let is_over = AtomicBool::new(false);
    let list = || {
        while !is_over.load(Ordering::Relaxed) {
            // The directory may be gone.
            if let Ok(entries) = fs::read_dir(path) {
                entries.for_each(drop);
            }
        }
    };
    // The readers end with the work also if that fails.
    struct Ends<'a>(&'a AtomicBool);
    impl Drop for Ends<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    std::thread::scope(|scope| {
        let ends = Ends(&is_over);
        scope.spawn(list);
        scope.spawn(list);
        let done = work();
        drop(ends);
        done
    })
}

/// One process reads half of a directory; another changes it, begins to list it, and goes on when the
/// first one has read the rest. With a cache of listings that the kernel fills for both, it was told
/// of the first half as it was before.
#[test]
fn a_listing_begins_with_what_is_there_whoever_lists_meanwhile() {
    let Some(mount) = TestMount::or_skip() else { return };
    let path = directory(&mount, "directory");
    for round in 0..20 {
        let other = Listing::open(&path);
        let mut seen = 0;
        while seen < NAMES / 2 {
            seen += other.piece(4096).len();
        }
        let (made, removed): (BTreeSet<_>, BTreeSet<_>) = (0..20)
            .map(|number| (format!("new {round} {number}"), format!("old {}", round * 20 + number)))
            .unzip();
        made.iter().for_each(|name| make(&path.join(name)));
        removed.iter().for_each(|name| fs::remove_file(path.join(name)).unwrap());
        let own = Listing::open(&path);
        let mut found = names(own.piece(300));
        other.rest();
        found.extend(names(own.rest()));
        let missing: Vec<_> = made.difference(&found).collect();
        let ghosts: Vec<_> = removed.intersection(&found).collect();
        assert!(missing.is_empty() && ghosts.is_empty(), "missing: {missing:?}, removed: {ghosts:?}");
        assert_eq!(found.len(), NAMES + 2);
    }
    mount.unmount();
}

#[test]
fn what_was_removed_does_not_come_back_after_seeking_back() {
    let Some(mount) = TestMount::or_skip() else { return };
    let path = directory(&mount, "directory");
    let listing = Listing::open(&path);
    let all = listing.rest();
    // From the cache, where there is one.
    listing.seek(0);
    assert_eq!(listing.rest().len(), all.len());
    let (at, behind) = (all[99].next, &all[100..]);
    let (removed, kept) = behind.split_at(behind.len() / 2);
    removed.iter().for_each(|entry| fs::remove_file(path.join(&entry.name)).unwrap());
    listing.seek(at);
    let found: Vec<_> = listing.rest().into_iter().map(|entry| entry.name).collect();
    let kept: Vec<_> = kept.iter().map(|entry| entry.name.clone()).collect();
    assert!(found == kept, "{} names instead of {}", found.len(), kept.len());
    make(&path.join("new"));
    listing.seek(0);
    assert!(names(listing.rest()).contains("new"));
    drop(listing);
    mount.unmount();
}

#[test]
fn a_process_sees_its_own_changes_beside_readers() {
    let Some(mount) = TestMount::or_skip() else { return };
    let path = directory(&mount, "directory");
    let (mut missing, mut ghosts) = (0, 0);
    beside_readers(&path, || {
        let is_listed =
            |name: &str| fs::read_dir(&path).unwrap().any(|entry| entry.unwrap().file_name() == name);
        for number in 0..200 {
            let name = format!("new {number}");
            make(&path.join(&name));
            missing += usize::from(!is_listed(&name));
            fs::remove_file(path.join(&name)).unwrap();
            ghosts += usize::from(is_listed(&name));
        }
    });
    assert_eq!((missing, ghosts), (0, 0), "of 200: not listed when made, and listed when removed");
    mount.unmount();
}

/// A program writes mail to `tmp`, and links or renames it into `new`. A reader of mail moves it on to
/// `cur`.
#[test]
fn mail_is_there_once_it_was_delivered() {
    const MESSAGES: usize = 200;
    let Some(mount) = TestMount::or_skip() else { return };
    let path = mount.path();
    let [tmp, new, cur] = ["tmp", "new", "cur"].map(|name| path.join(name));
    [&tmp, &new, &cur].iter().for_each(|directory| fs::create_dir(directory).unwrap());
    // Mail that nobody fetches, so that a listing takes many requests.
    (0..NAMES).for_each(|number| make(&new.join(format!("kept {number}"))));
    let is_in = |directory: &Path, name: &str| {
        fs::read_dir(directory).unwrap().any(|entry| entry.unwrap().file_name() == name)
    };
    let mut lost = Vec::new();
    let fetch = || {
        let mut fetched = 0;
        for entry in fs::read_dir(&new).unwrap() {
            let name = entry.unwrap().file_name();
            if name.as_encoded_bytes().starts_with(b"mail") {
                // Another reader may have been faster.
                fetched += usize::from(fs::rename(new.join(&name), cur.join(&name)).is_ok());
            }
        }
        fetched
    };
    let is_over = AtomicBool::new(false);
    let fetched: usize = std::thread::scope(|scope| {
        let reader = || {
            let mut fetched = 0;
            while !is_over.load(Ordering::Relaxed) {
                fetched += fetch();
            }
            fetched
        };
        let readers = [scope.spawn(reader), scope.spawn(reader)];
        for number in 0..MESSAGES {
            let name = format!("mail {number}");
            fs::write(tmp.join(&name), &name).unwrap();
            if number % 2 == 0 {
                fs::rename(tmp.join(&name), new.join(&name)).unwrap();
            } else {
                fs::hard_link(tmp.join(&name), new.join(&name)).unwrap();
                fs::remove_file(tmp.join(&name)).unwrap();
            }
            // In this order: it goes from the one to the other.
            if !is_in(&new, &name) && !is_in(&cur, &name) {
                lost.push(name);
            }
        }
        is_over.store(true, Ordering::Relaxed);
        readers.map(|reader| reader.join().unwrap()).iter().sum()
    });
    assert!(lost.is_empty(), "not listed when delivered: {lost:?}");
    assert_eq!(fetched + fetch(), MESSAGES, "each is fetched once");
    assert_eq!(fs::read_dir(&cur).unwrap().count(), MESSAGES);
    mount.unmount();
}

/// rm(1) lists and removes; a name that the listing lacks makes the directory "not empty".
#[test]
fn a_tree_is_removed_beside_readers() {
    let Some(mount) = TestMount::or_skip() else { return };
    let path = mount.path().join("tree");
    for round in 0..2 {
        fs::create_dir(&path).unwrap();
        let removed = beside_readers(&path, || {
            (0..NAMES).for_each(|number| make(&path.join(number.to_string())));
            Command::new("rm").arg("-r").arg(&path).stderr(Stdio::piped()).output().unwrap()
        });
        let said = String::from_utf8_lossy(&removed.stderr);
        assert!(removed.status.success(), "round {round}: {said}");
        assert!(!path.exists());
    }
    mount.unmount();
}

#[test]
fn make_finds_all_its_sources_beside_readers() {
    if Command::new("make").arg("--version").stdout(Stdio::null()).status().is_err() {
        eprintln!("skipped: there is no make");
        return;
    }
    let Some(mount) = TestMount::or_skip() else { return };
    let path = directory(&mount, "sources");
    fs::write(mount.path().join("Makefile"), "all:\n\t@echo $(sort $(wildcard sources/*.c))\n").unwrap();
    beside_readers(&path, || {
        let mut expected = BTreeSet::new();
        for number in 0..30 {
            let name = format!("sources/{number}.c");
            make(&mount.path().join(&name));
            expected.insert(name);
            if number % 3 == 2 {
                let gone = expected.pop_first().unwrap();
                fs::remove_file(mount.path().join(gone)).unwrap();
            }
            let told = Command::new("make").arg("-C").arg(mount.path()).arg("-s").output().unwrap();
            let told = String::from_utf8(told.stdout).unwrap();
            let found: BTreeSet<_> =
                told.split_whitespace().filter(|word| word.ends_with(".c")).map(str::to_owned).collect();
            assert_eq!(found, expected);
        }
    });
    mount.unmount();
}

/// Before, the kernel opened directories without asking, and listed known ones without it. This is the cost
/// of asking.
#[test]
fn a_listing_costs_as_many_requests_as_it_must() {
    let Some(mount) = TestMount::or_skip() else { return };
    let path = mount.path().join("small");
    fs::create_dir(&path).unwrap();
    (0..10).for_each(|number| make(&path.join(number.to_string())));
    const KINDS: [&str; 4] = ["OpenDir", "ReadDirPlus", "ReadDir", "Lookup"];
    let counts = || KINDS.map(|kind| mount.requests(kind));
    let before = counts();
    for _ in 0..10 {
        assert_eq!(fs::read_dir(&path).unwrap().count(), 10);
    }
    let after = counts();
    let taken: Vec<u64> = after.iter().zip(before).map(|(after, before)| after - before).collect();
    // Opened; the entries with their attributes; the end. (To ask for a count opens the mount point.)
    let asked = KINDS.len() as u64;
    assert!((10..=10 + asked).contains(&taken[0]), "{KINDS:?}: {taken:?}");
    assert!(taken[1] + taken[2] <= 20 && taken[3] <= 1, "{KINDS:?}: {taken:?}");
    mount.unmount();
}
