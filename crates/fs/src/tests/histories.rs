//! Random histories of operations, compared with the model after every remount and crash.
//!
//! Invariants: every operation succeeds or fails as the model says; a remount finds the same state;
//! after a crash, the state after some operation at or past the last sync comes back (P1: a prefix
//! of the history).

use super::model::{Model, Node, Outcome};
use super::{CALLER, Mount, Setup};
use crate::FsError;
use crate::types::{Attributes, FileType, Ino, ROOT, RenameFlags, SetAttributes, XattrMode};
use bytes::Bytes;
use proptest::prelude::*;
use proptest::sample::Index;
use std::collections::BTreeMap;
use syncline_device::block_on;

/// A directory (one of the existing ones) and a name (one of a few).
#[derive(Clone, Copy, Debug)]
struct Spot(Index, u8);

#[derive(Clone, Debug)]
enum Operation {
    Create(Spot, bool),
    Mkdir(Spot),
    Symlink(Spot, u16),
    Link(Spot, Spot),
    Tmpfile(Spot, u16, bool),
    Publish(Index, Spot),
    Unlink(Spot),
    Rmdir(Spot),
    Rename(Spot, Spot, u8),
    Chmod(Spot, u16),
    Chown(Spot, u8),
    Write(Spot, u8, u16),
    SetXattr(Spot, u8, u32, u8),
    RemoveXattr(Spot, u8),
    Open(Spot),
    Release(Index),
    Sync,
    Checkpoint,
    Reopen,
    Crash,
}

fn spot() -> impl Strategy<Value = Spot> {
    (any::<Index>(), 0u8..5).prop_map(|(dir, name)| Spot(dir, name))
}

fn operation() -> impl Strategy<Value = Operation> {
    use Operation as Op;
    let names = prop_oneof![
        4 => (spot(), any::<bool>()).prop_map(|(spot, regular)| Op::Create(spot, regular)),
        4 => spot().prop_map(Op::Mkdir),
        1 => (spot(), 1u16..4095).prop_map(|(spot, len)| Op::Symlink(spot, len)),
        3 => (spot(), spot()).prop_map(|(from, to)| Op::Link(from, to)),
        2 => (spot(), 0u16..9000, any::<bool>()).prop_map(|(spot, len, linkable)| Op::Tmpfile(spot, len, linkable)),
        2 => (any::<Index>(), spot()).prop_map(|(file, to)| Op::Publish(file, to)),
        3 => spot().prop_map(Op::Unlink),
        2 => spot().prop_map(Op::Rmdir),
        9 => (spot(), spot(), 0u8..5).prop_map(|(from, to, flags)| Op::Rename(from, to, flags)),
    ];
    let attributes = prop_oneof![
        2 => (spot(), 0u16..0o10000).prop_map(|(spot, mode)| Op::Chmod(spot, mode)),
        1 => (spot(), any::<u8>()).prop_map(|(spot, uid)| Op::Chown(spot, uid)),
        3 => (spot(), any::<u8>(), 1u16..9000).prop_map(|(spot, byte, len)| Op::Write(spot, byte, len)),
        4 => (spot(), 0u8..4, prop_oneof![0u32..50, 0u32..5000, Just(65536)], 0u8..3)
            .prop_map(|(spot, name, len, mode)| Op::SetXattr(spot, name, len, mode)),
        2 => (spot(), 0u8..4).prop_map(|(spot, name)| Op::RemoveXattr(spot, name)),
        2 => spot().prop_map(Op::Open),
        1 => any::<Index>().prop_map(Op::Release),
    ];
    let mounts = prop_oneof![Just(Op::Sync), Just(Op::Checkpoint), Just(Op::Reopen), Just(Op::Crash)];
    prop_oneof![12 => names, 6 => attributes, 1 => mounts]
}

fn outcome<T>(result: Result<T, FsError>) -> Outcome {
    result.map(drop).map_err(|error| error.errno())
}

/// A filesystem and the states that it may have.
struct History {
    mount: Mount,
    model: Model,
    /// The states since the last sync, including the one at the sync: those that a crash may leave.
    possible: Vec<Model>,
}

impl History {
    fn new(setup: Setup) -> Self {
        Self { mount: Mount::with(setup), model: Model::new(), possible: vec![Model::new()] }
    }

    fn place(&self, spot: Spot) -> (Ino, String) {
        let directories = self.model.directories();
        (directories[spot.0.index(directories.len())], format!("name{}", spot.1))
    }

    fn target(&self, spot: Spot) -> Option<Ino> {
        let (dir, name) = self.place(spot);
        self.model.find(dir, &name)
    }

    fn run(mut self, operations: Vec<Operation>) {
        for operation in operations {
            self = self.step(operation);
            self.possible.push(self.model.clone());
        }
        self.compare();
        let mut last = self.reopen();
        last.compare();
        last.mount.settle();
        assert_eq!(last.mount.fs.statfs().objects, last.model.nodes.len() as u64);
        last.possible.clear();
    }

    fn step(mut self, operation: Operation) -> Self {
        use Operation as Op;
        match operation {
            Op::Sync => {
                self.mount.sync();
                self.possible.clear();
            }
            Op::Checkpoint => {
                block_on(self.mount.fs.syncfs()).unwrap();
                self.possible.clear();
            }
            Op::Reopen => return self.reopen(),
            Op::Crash => return self.crash(),
            Op::Create(..) | Op::Mkdir(_) | Op::Symlink(..) => self.create(operation),
            Op::Tmpfile(..) => self.tmpfile(operation),
            Op::Publish(file, to) => self.publish(file, to),
            Op::Link(..) | Op::Unlink(_) | Op::Rmdir(_) | Op::Rename(..) => self.rename_names(operation),
            _ => self.change(operation),
        }
        self
    }

    fn create(&mut self, operation: Operation) {
        use Operation as Op;
        let (spot, file_type) = match operation {
            Op::Create(spot, regular) => (spot, if regular { FileType::Regular } else { FileType::Fifo }),
            Op::Mkdir(spot) => (spot, FileType::Directory),
            Op::Symlink(spot, _) => (spot, FileType::Symlink),
            _ => unreachable!(),
        };
        let (dir, name) = self.place(spot);
        let fs = &self.mount.fs;
        let mut contents = Vec::new();
        let (result, permissions): (Result<Attributes, FsError>, _) = match operation {
            Op::Mkdir(_) => (block_on(fs.mkdir(CALLER, dir, name.as_bytes(), 0o700)), 0o700),
            Op::Symlink(_, len) => {
                contents = vec![b'a' + (len % 26) as u8; usize::from(len)];
                (block_on(fs.symlink(CALLER, dir, name.as_bytes(), &contents)), 0o777)
            }
            _ => (block_on(fs.mknod(CALLER, dir, name.as_bytes(), file_type, 0o640, 0)), 0o640),
        };
        let expected = self.model.may_add(dir, &name);
        assert_eq!(outcome(result.as_ref().map_err(Clone::clone)), expected, "{operation:?}");
        if let Ok(attributes) = result {
            fs.forget(attributes.ino, 1);
            // A setgid directory passes setgid on.
            let setgid = self.model.nodes[&dir].permissions & 0o2000;
            let inherited = if file_type == FileType::Directory { setgid } else { 0 };
            let node = Node { contents, ..Node::new(file_type, permissions | inherited, dir) };
            self.model.add(dir, &name, attributes.ino, node);
        }
    }

    fn tmpfile(&mut self, operation: Operation) {
        let Operation::Tmpfile(spot, len, linkable) = operation else { unreachable!() };
        let (dir, _) = self.place(spot);
        let fs = &self.mount.fs;
        let made = block_on(fs.tmpfile(CALLER, dir, 0o640, linkable));
        if self.model.nodes[&dir].nlink == 0 {
            // The directory was removed while it was open.
            assert_eq!(made.unwrap_err().errno(), 1);
            return;
        }
        let ino = made.unwrap().ino;
        fs.forget(ino, 1);
        let contents = vec![b'0' + (len % 10) as u8; usize::from(len)];
        block_on(fs.write(ino, 0, Bytes::from(contents.clone()), false)).unwrap();
        let node = Node { nlink: 0, linkable, contents, ..Node::new(FileType::Regular, 0o640, dir) };
        self.model.nodes.insert(ino, node);
        self.model.opens.insert(ino, 1);
    }

    /// Gives a name to a file that has none, if that is allowed.
    fn publish(&mut self, file: Index, to: Spot) {
        let nameless = self.model.nodes.iter().filter(|(_, node)| node.nlink == 0);
        let nameless: Vec<Ino> = nameless.map(|(ino, _)| *ino).collect();
        if nameless.is_empty() {
            return;
        }
        let ino = nameless[file.index(nameless.len())];
        let (dir, name) = self.place(to);
        let linked = block_on(self.mount.fs.link(ino, dir, name.as_bytes()));
        if linked.is_ok() {
            self.mount.fs.forget(ino, 1);
        }
        assert_eq!(outcome(linked), self.model.link(ino, dir, &name));
    }

    fn rename_names(&mut self, operation: Operation) {
        use Operation as Op;
        let (fs, model) = (self.mount.fs.clone(), self.model.clone());
        let (found, expected) = match operation {
            Op::Link(from, to) => {
                let (Some(ino), (dir, name)) = (self.target(from), self.place(to)) else { return };
                let linked = block_on(fs.link(ino, dir, name.as_bytes()));
                if linked.is_ok() {
                    fs.forget(ino, 1);
                }
                (outcome(linked), self.model.link(ino, dir, &name))
            }
            Op::Unlink(spot) => {
                let (dir, name) = self.place(spot);
                (outcome(block_on(fs.unlink(dir, name.as_bytes()))), self.model.remove(dir, &name, false))
            }
            Op::Rmdir(spot) => {
                let (dir, name) = self.place(spot);
                (outcome(block_on(fs.rmdir(dir, name.as_bytes()))), self.model.remove(dir, &name, true))
            }
            Op::Rename(from, to, flags) => {
                let flags = RenameFlags {
                    no_replace: flags == 1,
                    exchange: flags == 2,
                    whiteout: (flags == 3).then_some(CALLER),
                };
                let ((dir, name), (new_dir, new_name)) = (self.place(from), self.place(to));
                let renamed = block_on(fs.rename(dir, name.as_bytes(), new_dir, new_name.as_bytes(), flags));
                let expected = self.model.rename((dir, &name), (new_dir, &new_name), flags);
                let gone = self.model.nodes.contains_key(&dir) && self.model.find(dir, &name).is_none();
                if flags.whiteout.is_some() && expected.is_ok() && gone {
                    let whiteout = self.mount.lookup(dir, &name).unwrap().ino;
                    self.model.add(dir, &name, whiteout, Node::new(FileType::CharDevice, 0, dir));
                }
                (outcome(renamed), expected)
            }
            _ => unreachable!(),
        };
        assert_eq!(found, expected, "{operation:?} in {model:#?}");
    }

    fn change(&mut self, operation: Operation) {
        use Operation as Op;
        let fs = self.mount.fs.clone();
        let (Op::Chmod(spot, _)
        | Op::Chown(spot, _)
        | Op::Write(spot, ..)
        | Op::SetXattr(spot, ..)
        | Op::RemoveXattr(spot, _)
        | Op::Open(spot)) = operation
        else {
            return self.release(operation);
        };
        let Some(ino) = self.target(spot) else { return };
        let node = self.model.nodes.get_mut(&ino).unwrap();
        match operation {
            Op::Chmod(_, permissions) => {
                let set = SetAttributes { permissions: Some(permissions), ..Default::default() };
                block_on(fs.setattr(CALLER, ino, set)).unwrap();
                node.permissions = permissions;
            }
            Op::Chown(_, uid) => {
                let set = SetAttributes { uid: Some(uid.into()), ..Default::default() };
                block_on(fs.setattr(CALLER, ino, set)).unwrap();
                node.uid = uid.into();
                if node.file_type != FileType::Directory {
                    node.permissions = crate::attributes::privileges::without_privileges(node.permissions);
                }
            }
            Op::Write(_, byte, len) if node.file_type == FileType::Regular => {
                let data = vec![byte; usize::from(len)];
                block_on(fs.write(ino, 0, Bytes::from(data.clone()), false)).unwrap();
                let rest = node.contents.get(data.len()..).unwrap_or_default().to_vec();
                node.contents = [data, rest].concat();
            }
            Op::SetXattr(_, name, len, mode) => {
                let mode = [XattrMode::Set, XattrMode::Create, XattrMode::Replace][usize::from(mode)];
                let (name, value) = (format!("user.{name}"), vec![len as u8; len as usize]);
                let found = outcome(block_on(fs.setxattr(ino, name.as_bytes(), &value, mode)));
                assert_eq!(found, self.model.setxattr(ino, &name, value, mode));
            }
            Op::RemoveXattr(_, name) => {
                let name = format!("user.{name}");
                let found = outcome(block_on(fs.removexattr(ino, name.as_bytes())));
                assert_eq!(found, self.model.removexattr(ino, &name));
            }
            Op::Open(_) => {
                block_on(fs.open_file(ino)).unwrap();
                *self.model.opens.entry(ino).or_insert(0) += 1;
            }
            _ => {}
        }
    }

    fn release(&mut self, operation: Operation) {
        let Operation::Release(index) = operation else { unreachable!() };
        let open: Vec<Ino> = self.model.opens.keys().copied().collect();
        if open.is_empty() {
            return;
        }
        let ino = open[index.index(open.len())];
        self.mount.fs.release_file(ino);
        let count = self.model.opens.get_mut(&ino).unwrap();
        *count -= 1;
        if *count == 0 {
            self.model.opens.remove(&ino);
        }
        self.model.prune();
    }

    fn reopen(self) -> Self {
        let (mount, model) = (self.mount.reopen(), self.model.remounted());
        let history = Self { mount, possible: vec![model.clone()], model };
        history.compare();
        history
    }

    fn crash(self) -> Self {
        let mount = self.mount.crash();
        let found = dump(&mount);
        let names_only = found.without_data();
        let possible: Vec<Model> =
            self.possible.iter().map(|model| model.clone().remounted().without_data()).collect();
        assert!(
            possible.contains(&names_only),
            "not a state since the last sync: {names_only:#?}\nlast: {:#?}",
            possible.last()
        );
        // The next crash can only return this state: recovery made it durable.
        Self { mount, possible: vec![found.clone()], model: found }
    }

    fn compare(&self) {
        let found = dump(&self.mount);
        let mut expected = self.model.clone();
        expected.opens.clear();
        // A walk does not find inodes without names; they must exist all the same.
        for (ino, node) in self.model.nodes.iter().filter(|(_, node)| node.nlink == 0) {
            assert_eq!(self.mount.getattr(*ino).permissions, node.permissions);
        }
        expected.prune();
        assert_eq!(found, expected);
    }
}

/// The whole tree as the filesystem presents it.
fn dump(mount: &Mount) -> Model {
    let mut nodes = BTreeMap::new();
    let mut waiting = vec![ROOT];
    while let Some(ino) = waiting.pop() {
        if nodes.contains_key(&ino) {
            continue;
        }
        let node = dump_node(mount, ino);
        waiting.extend(node.entries.values());
        nodes.insert(ino, node);
    }
    compare_paths(mount, &nodes);
    Model { nodes, opens: BTreeMap::new() }
}

/// Every inode knows exactly the paths that lead to it.
fn compare_paths(mount: &Mount, nodes: &BTreeMap<Ino, Node>) {
    let mut expected: BTreeMap<Ino, Vec<Vec<u8>>> = BTreeMap::new();
    let mut waiting = vec![(ROOT, String::new())];
    while let Some((directory, path)) = waiting.pop() {
        for (name, ino) in &nodes[&directory].entries {
            let below = format!("{path}/{name}");
            expected.entry(*ino).or_default().push(below.clone().into_bytes());
            if nodes[ino].file_type == FileType::Directory {
                waiting.push((*ino, below));
            }
        }
    }
    for (ino, mut paths) in expected {
        paths.sort_unstable();
        assert_eq!(block_on(mount.fs.paths(ino)).unwrap(), paths, "inode {ino}");
    }
}

fn dump_node(mount: &Mount, ino: Ino) -> Node {
    let attributes = mount.getattr(ino);
    let fs = &mount.fs;
    let mut node = Node::new(attributes.file_type, attributes.permissions, 0);
    (node.uid, node.nlink) = (attributes.uid, attributes.nlink);
    for name in block_on(fs.listxattr(ino)).unwrap().split(|&byte| byte == 0).filter(|name| !name.is_empty())
    {
        let value = block_on(fs.getxattr(ino, name)).unwrap();
        node.xattrs.insert(String::from_utf8(name.to_vec()).unwrap(), value.to_vec());
    }
    match attributes.file_type {
        FileType::Directory => {
            node.parent = mount.lookup(ino, "..").unwrap().ino;
            for name in mount.names(ino) {
                let entry = mount.lookup(ino, &name).unwrap();
                node.entries.insert(name, entry.ino);
            }
            assert_eq!(attributes.size, node.entries.len() as u64);
        }
        FileType::Regular => {
            node.contents = block_on(fs.read(ino, 0, usize::MAX >> 1)).unwrap().concat();
            assert_eq!(attributes.size, node.contents.len() as u64);
        }
        FileType::Symlink => node.contents = block_on(fs.readlink(ino)).unwrap().to_vec(),
        _ => {}
    }
    node
}

proptest! {
    // 32 cases unless PROPTEST_CASES asks for more: each has many operations and several mounts.
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases / 8, ..ProptestConfig::default() })]

    #[test]
    fn the_filesystem_does_what_the_model_does(operations in prop::collection::vec(operation(), 1..160)) {
        History::new(Setup::default()).run(operations);
    }

    /// Few hashes, small nodes, and a cache that forgets nearly everything.
    #[test]
    fn under_strain_too(operations in prop::collection::vec(operation(), 1..160)) {
        let setup = Setup { node_bytes: 4096, hashes: Some(2), cached_inodes_max: 1, ..Setup::default() };
        History::new(setup).run(operations);
    }
}
