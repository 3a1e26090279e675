//! Names and inodes, in memory. Each directory has a lock of its own, so threads in different
//! directories do not contend.

use foldhash::fast::FixedState;
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};
use syncline_fuse::abi::{Attr, ROOT_NODE};

/// Number of tables that inodes are spread over by number.
const SHARDS: usize = 64;
/// The first cookie of a directory's entries; those of "." and ".." are lower.
const FIRST_COOKIE: u64 = 3;
const BLOCK_BYTES: u32 = 4096;

type Map<K, V> = HashMap<K, V, FixedState>;

/// The errno of a refused request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Errno(pub i32);

/// The type, owner and device of a new inode.
#[derive(Clone, Copy, Debug, Default)]
pub struct New {
    /// Type and permissions.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group, unless the directory passes on its own.
    pub gid: u32,
    /// The device number of a device node.
    pub rdev: u32,
}

/// An entry of a listing.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The cookie at which to continue after it.
    pub cookie: u64,
    /// Its name.
    pub name: Arc<[u8]>,
    /// Its inode.
    pub ino: u64,
}

struct Inode {
    state: Mutex<State>,
    /// The names in a directory.
    names: Option<Mutex<Names>>,
}

struct State {
    attr: Attr,
    /// How many times the kernel was told of it, less those it has forgotten.
    lookups: u64,
}

/// A directory's entries: by name, and in the order of creation, in which a listing can be
/// continued.
struct Names {
    parent: u64,
    cookies: Map<Arc<[u8]>, u64>,
    entries: BTreeMap<u64, (Arc<[u8]>, u64)>,
    next_cookie: u64,
    /// It has no name any more, and can get none.
    removed: bool,
}

/// All inodes.
pub struct Tree {
    shards: [Mutex<Map<u64, Arc<Inode>>>; SHARDS],
    next_ino: AtomicU64,
}

impl Tree {
    /// An empty tree, whose root everybody may write to.
    pub fn new() -> Self {
        let shards = std::array::from_fn(|_| Mutex::default());
        let tree = Self { shards, next_ino: AtomicU64::new(ROOT_NODE + 1) };
        let root = New { mode: libc::S_IFDIR | 0o777, ..New::default() };
        tree.add(Inode::new(ROOT_NODE, ROOT_NODE, root));
        tree
    }

    /// The attributes of an inode.
    pub fn attr(&self, ino: u64) -> Result<Attr, Errno> {
        Ok(self.inode(ino)?.state.lock().attr)
    }

    /// Changes the attributes of an inode and returns the new ones.
    pub fn change(&self, ino: u64, change: impl FnOnce(&mut Attr)) -> Result<Attr, Errno> {
        let inode = self.inode(ino)?;
        let mut state = inode.state.lock();
        change(&mut state.attr);
        Ok(state.attr)
    }

    /// Looks up a name; counts a reference by the kernel.
    pub fn lookup(&self, directory: u64, name: &[u8]) -> Result<Attr, Errno> {
        let directory = self.inode(directory)?;
        let names = directory.names()?.lock();
        self.tell(names.find(name)?.1)
    }

    /// Creates a name and its inode; counts a reference by the kernel.
    pub fn make(&self, directory_ino: u64, name: &[u8], new: New) -> Result<Attr, Errno> {
        let directory = self.inode(directory_ino)?;
        let mut names = directory.names()?.lock();
        if names.removed {
            return Err(Errno(libc::ENOENT));
        }
        if names.cookies.contains_key(name) {
            return Err(Errno(libc::EEXIST));
        }
        let mut parent = directory.state.lock();
        let new = handed_down(&parent.attr, new);
        parent.attr.nlink += u32::from(is_directory(new.mode));
        touch(&mut parent.attr);
        drop(parent);
        let ino = self.next_ino.fetch_add(1, Ordering::Relaxed);
        let inode = Inode::new(ino, directory_ino, new);
        let attr = inode.tell();
        self.add(inode);
        names.insert(name.into(), ino);
        Ok(attr)
    }

    /// Removes the name of a file.
    pub fn unlink(&self, directory: u64, name: &[u8]) -> Result<(), Errno> {
        let directory = self.inode(directory)?;
        let mut names = directory.names()?.lock();
        let (cookie, ino) = names.find(name)?;
        let inode = self.inode(ino)?;
        if inode.names.is_some() {
            return Err(Errno(libc::EISDIR));
        }
        names.remove(name, cookie);
        touch(&mut directory.state.lock().attr);
        drop(names);
        self.let_go(ino, &inode, |state| {
            state.attr.nlink -= 1;
            (state.attr.ctime, state.attr.ctime_ns) = now();
        });
        Ok(())
    }

    /// Removes an empty directory.
    pub fn rmdir(&self, directory: u64, name: &[u8]) -> Result<(), Errno> {
        let directory = self.inode(directory)?;
        let mut names = directory.names()?.lock();
        let (cookie, ino) = names.find(name)?;
        let inode = self.inode(ino)?;
        let mut own = inode.names()?.lock();
        if !own.entries.is_empty() {
            return Err(Errno(libc::ENOTEMPTY));
        }
        own.removed = true;
        drop(own);
        names.remove(name, cookie);
        let mut parent = directory.state.lock();
        parent.attr.nlink -= 1;
        touch(&mut parent.attr);
        drop(parent);
        drop(names);
        self.let_go(ino, &inode, |state| state.attr.nlink = 0);
        Ok(())
    }

    /// Drops this many references by the kernel.
    pub fn forget(&self, ino: u64, lookups: u64) {
        // An inode that is not there was forgotten before.
        if let Ok(inode) = self.inode(ino) {
            self.let_go(ino, &inode, |state| state.lookups = state.lookups.saturating_sub(lookups));
        }
    }

    /// Up to `count` entries of a directory after the one with this cookie.
    pub fn list(&self, directory_ino: u64, after: u64, count: usize) -> Result<Vec<Entry>, Errno> {
        let directory = self.inode(directory_ino)?;
        let names = directory.names()?.lock();
        let dots = [(1, &b"."[..], directory_ino), (2, b"..", names.parent)];
        let dots = dots.into_iter().filter(|dot| dot.0 > after);
        let dots = dots.map(|(cookie, name, ino)| Entry { cookie, name: name.into(), ino });
        let rest = names.entries.range(after + 1..);
        let rest = rest.map(|(&cookie, (name, ino))| Entry { cookie, name: name.clone(), ino: *ino });
        Ok(dots.chain(rest).take(count).collect())
    }

    /// The attributes of an inode; counts a reference by the kernel.
    pub fn tell(&self, ino: u64) -> Result<Attr, Errno> {
        Ok(self.inode(ino)?.tell())
    }

    fn shard(&self, ino: u64) -> &Mutex<Map<u64, Arc<Inode>>> {
        &self.shards[ino as usize % SHARDS]
    }

    fn inode(&self, ino: u64) -> Result<Arc<Inode>, Errno> {
        self.shard(ino).lock().get(&ino).cloned().ok_or(Errno(libc::ENOENT))
    }

    fn add(&self, inode: Inode) {
        let ino = inode.state.lock().attr.ino;
        self.shard(ino).lock().insert(ino, Arc::new(inode));
    }

    /// Drops a name or references of an inode; the inode goes with the last of both.
    fn let_go(&self, ino: u64, inode: &Inode, take: impl FnOnce(&mut State)) {
        let mut state = inode.state.lock();
        take(&mut state);
        if state.attr.nlink == 0 && state.lookups == 0 {
            self.shard(ino).lock().remove(&ino);
        }
    }
}

impl Inode {
    fn new(ino: u64, parent: u64, new: New) -> Self {
        let (seconds, ns) = now();
        let directory = is_directory(new.mode);
        let attr = Attr {
            ino,
            mode: new.mode,
            nlink: if directory { 2 } else { 1 },
            uid: new.uid,
            gid: new.gid,
            rdev: new.rdev,
            block_size: BLOCK_BYTES,
            atime: seconds,
            mtime: seconds,
            ctime: seconds,
            atime_ns: ns,
            mtime_ns: ns,
            ctime_ns: ns,
            ..Attr::default()
        };
        let names = directory.then(|| Mutex::new(Names::new(parent)));
        Self { state: Mutex::new(State { attr, lookups: 0 }), names }
    }

    fn names(&self) -> Result<&Mutex<Names>, Errno> {
        self.names.as_ref().ok_or(Errno(libc::ENOTDIR))
    }

    fn tell(&self) -> Attr {
        let mut state = self.state.lock();
        state.lookups += 1;
        state.attr
    }
}

impl Names {
    fn new(parent: u64) -> Self {
        let (cookies, entries) = (Map::default(), BTreeMap::new());
        Self { parent, cookies, entries, next_cookie: FIRST_COOKIE, removed: false }
    }

    /// The cookie and inode of a name.
    fn find(&self, name: &[u8]) -> Result<(u64, u64), Errno> {
        let cookie = *self.cookies.get(name).ok_or(Errno(libc::ENOENT))?;
        Ok((cookie, self.entries[&cookie].1))
    }

    fn insert(&mut self, name: Arc<[u8]>, ino: u64) {
        self.cookies.insert(name.clone(), self.next_cookie);
        self.entries.insert(self.next_cookie, (name, ino));
        self.next_cookie += 1;
    }

    fn remove(&mut self, name: &[u8], cookie: u64) {
        self.cookies.remove(name);
        self.entries.remove(&cookie);
    }
}

fn is_directory(mode: u32) -> bool {
    mode & libc::S_IFMT == libc::S_IFDIR
}

/// A directory with setgid passes its group on to new entries, and setgid to new directories.
fn handed_down(parent: &Attr, new: New) -> New {
    if parent.mode & libc::S_ISGID == 0 {
        return new;
    }
    let bit = if is_directory(new.mode) { libc::S_ISGID } else { 0 };
    New { gid: parent.gid, mode: new.mode | bit, ..new }
}

/// The current time, in seconds and nanoseconds since 1970.
pub fn now() -> (i64, u32) {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    (since.as_secs() as i64, since.subsec_nanos())
}

/// Sets the times of a change to the contents.
pub fn touch(attr: &mut Attr) {
    let (seconds, ns) = now();
    (attr.mtime, attr.mtime_ns) = (seconds, ns);
    (attr.ctime, attr.ctime_ns) = (seconds, ns);
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: New = New { mode: libc::S_IFREG | 0o644, uid: 5, gid: 6, rdev: 0 };
    const DIRECTORY: New = New { mode: libc::S_IFDIR | 0o755, ..FILE };

    fn names(tree: &Tree, ino: u64) -> Vec<Vec<u8>> {
        tree.list(ino, 2, usize::MAX).unwrap().iter().map(|entry| entry.name.to_vec()).collect()
    }

    #[test]
    fn names_come_and_go() {
        let tree = Tree::new();
        let made = tree.make(ROOT_NODE, b"a", FILE).unwrap();
        assert_eq!((made.uid, made.gid, made.nlink, made.mode), (5, 6, 1, libc::S_IFREG | 0o644));
        assert_eq!(tree.make(ROOT_NODE, b"a", FILE).unwrap_err(), Errno(libc::EEXIST));
        assert_eq!(tree.make(made.ino, b"b", FILE).unwrap_err(), Errno(libc::ENOTDIR));
        assert_eq!(tree.lookup(ROOT_NODE, b"a").unwrap().ino, made.ino);
        assert_eq!(tree.lookup(ROOT_NODE, b"b").unwrap_err(), Errno(libc::ENOENT));
        assert_eq!(tree.rmdir(ROOT_NODE, b"a"), Err(Errno(libc::ENOTDIR)));
        tree.unlink(ROOT_NODE, b"a").unwrap();
        assert_eq!(tree.unlink(ROOT_NODE, b"a"), Err(Errno(libc::ENOENT)));
        assert!(names(&tree, ROOT_NODE).is_empty());
    }

    #[test]
    fn an_inode_lives_until_name_and_references_are_gone() {
        let tree = Tree::new();
        let ino = tree.make(ROOT_NODE, b"a", FILE).unwrap().ino;
        tree.lookup(ROOT_NODE, b"a").unwrap();
        tree.forget(ino, 1);
        tree.unlink(ROOT_NODE, b"a").unwrap();
        assert_eq!(tree.attr(ino).unwrap().nlink, 0);
        tree.forget(ino, 1);
        assert_eq!(tree.attr(ino).unwrap_err(), Errno(libc::ENOENT));
        // Conversely: an inode with a name does not go with its last reference.
        let ino = tree.make(ROOT_NODE, b"b", FILE).unwrap().ino;
        tree.forget(ino, 1);
        assert_eq!(tree.lookup(ROOT_NODE, b"b").unwrap().ino, ino);
    }

    #[test]
    fn directories_are_removed_when_empty_and_count_their_own() {
        let tree = Tree::new();
        let ino = tree.make(ROOT_NODE, b"d", DIRECTORY).unwrap().ino;
        assert_eq!(tree.attr(ROOT_NODE).unwrap().nlink, 3);
        tree.make(ino, b"a", FILE).unwrap();
        assert_eq!(tree.unlink(ROOT_NODE, b"d"), Err(Errno(libc::EISDIR)));
        assert_eq!(tree.rmdir(ROOT_NODE, b"d"), Err(Errno(libc::ENOTEMPTY)));
        tree.unlink(ino, b"a").unwrap();
        tree.rmdir(ROOT_NODE, b"d").unwrap();
        assert_eq!(tree.attr(ROOT_NODE).unwrap().nlink, 2);
        // The kernel still knows it, and a process may have it as its working directory.
        assert_eq!(tree.make(ino, b"late", FILE).unwrap_err(), Errno(libc::ENOENT));
    }

    #[test]
    fn listings_go_on_where_they_stopped_whatever_is_removed_meanwhile() {
        let tree = Tree::new();
        for name in [b"a", b"b", b"c", b"d"] {
            tree.make(ROOT_NODE, name, FILE).unwrap();
        }
        let begin = tree.list(ROOT_NODE, 0, 4).unwrap();
        let found: Vec<_> = begin.iter().map(|entry| &*entry.name).collect();
        assert_eq!(found, [&b"."[..], b"..", b"a", b"b"]);
        for name in [b"b", b"c"] {
            tree.unlink(ROOT_NODE, name).unwrap();
        }
        let rest = tree.list(ROOT_NODE, begin[3].cookie, 4).unwrap();
        assert_eq!(rest.iter().map(|entry| &*entry.name).collect::<Vec<_>>(), [b"d"]);
        assert!(tree.list(ROOT_NODE, rest[0].cookie, 4).unwrap().is_empty());
    }

    #[test]
    fn setgid_hands_the_group_down() {
        let tree = Tree::new();
        let shared = New { mode: DIRECTORY.mode | libc::S_ISGID, gid: 77, ..DIRECTORY };
        let directory = tree.make(ROOT_NODE, b"shared", shared).unwrap().ino;
        assert_eq!(tree.make(directory, b"file", FILE).unwrap().gid, 77);
        let below = tree.make(directory, b"below", DIRECTORY).unwrap();
        assert_eq!((below.gid, below.mode & libc::S_ISGID), (77, libc::S_ISGID));
    }

    #[test]
    fn threads_in_one_directory_agree_on_who_made_a_name() {
        let tree = Tree::new();
        let made: usize = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|_| {
                    let make = |number: u32| tree.make(ROOT_NODE, &number.to_ne_bytes(), FILE).is_ok();
                    scope.spawn(move || (0..1000).filter(|&number| make(number)).count())
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!((made, names(&tree, ROOT_NODE).len()), (1000, 1000));
    }
}
