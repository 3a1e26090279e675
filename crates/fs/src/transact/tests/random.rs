//! Random transactions against a model, on images that are full, have quotas, or forget inodes at
//! once: each is applied as a whole, or nothing has changed, and none breaks off half-way.

use super::*;
use crate::QuotaLimits;
use crate::types::{FileType, SetAttributes};
use crate::{AccessTime, Filesystem, ManualClock, Options};
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::sync::Arc;
use syncline_device::{Background, MemoryDevice, Spawn, WorkerOptions};
use syncline_store::{FormatOptions, Store, StoreOptions, format};

type Random = rand::rngs::StdRng;

/// Paths with the contents of files; directories have none.
type Model = BTreeMap<String, Option<Vec<u8>>>;

const DIRS: [&str; 4] = ["/", "/d", "/e", "/d/f"];

struct Image {
    fs: Arc<Filesystem>,
    device: Arc<MemoryDevice>,
    spawn: Arc<dyn Spawn>,
    options: Options,
}

impl Image {
    fn new(rng: &mut Random) -> Self {
        let spawn: Arc<dyn Spawn> = Arc::new(Background::start(WorkerOptions::default()).unwrap());
        let device = MemoryDevice::new(16 << 20);
        let root = Filesystem::initial_transaction(0, 0, 0o755, Default::default());
        let node_bytes = if rng.random() { 16384 } else { 4096 };
        let options = FormatOptions { node_bytes, parent_pointers: node_bytes > 4096, ..Default::default() };
        block_on(format(device.clone(), options, root, spawn.clone())).unwrap();
        let options = Options {
            clock: Arc::new(ManualClock::at(10_000_000_000)),
            cached_inodes_max: if rng.random() { 4 } else { 1000 },
            dirty_bytes_max: 1 << rng.random_range(16..24),
            extents_at_once: rng.random_range(1..20),
            parallel_blocks: rng.random_range(1..300),
            access_time: AccessTime::Never,
            ..Options::default()
        };
        Self::open(device, spawn, options)
    }

    fn open(device: Arc<MemoryDevice>, spawn: Arc<dyn Spawn>, options: Options) -> Self {
        let store_options =
            StoreOptions { memtable_bytes: 128 << 10, seal_bytes: 4096, ..Default::default() };
        let (store, _) = block_on(Store::open(device.clone(), store_options, spawn.clone())).unwrap();
        let fs = block_on(Filesystem::open(store, spawn.clone(), options.clone())).unwrap();
        Self { fs, device, spawn, options }
    }

    /// Leaves little room.
    fn fill(&self, rng: &mut Random) {
        let ino = block_on(self.fs.mknod(CALLER, ROOT, b"fill", FileType::Regular, 0o600, 0)).unwrap().ino;
        self.fs.forget(ino, 1);
        let piece = Bytes::from(vec![8; 200_000]);
        while block_on(self.fs.append(ino, piece.clone(), false)).is_ok() {}
        let size = block_on(self.fs.getattr(ino)).unwrap().size;
        let set = SetAttributes { size: Some(size - rng.random_range(0..1_500_000)), ..Default::default() };
        block_on(self.fs.setattr(CALLER, ino, set)).unwrap();
        block_on(self.fs.syncfs()).unwrap();
    }

    /// The state that a crash now would leave.
    fn crash(&self) -> Self {
        Self::open(self.device.snapshot(), self.spawn.clone(), self.options.clone())
    }

    /// Everything that is in the filesystem.
    fn model(&self) -> Model {
        let mut model = Model::new();
        let mut todo = vec![("".to_owned(), ROOT)];
        while let Some((path, dir)) = todo.pop() {
            let entries = block_on(self.fs.readdir(dir, 0, 10_000)).unwrap();
            for entry in entries.into_iter().filter(|entry| entry.name != b"." && entry.name != b"..") {
                let path = format!("{path}/{}", String::from_utf8(entry.name).unwrap());
                if entry.file_type == FileType::Directory {
                    model.insert(path.clone(), None);
                    todo.push((path, entry.ino));
                } else {
                    let bytes = block_on(self.fs.read(entry.ino, 0, 1 << 30)).unwrap().concat();
                    model.insert(path, Some(bytes));
                }
            }
        }
        model
    }
}

fn random_path(rng: &mut Random) -> String {
    let dir = DIRS.choose(rng).unwrap().trim_end_matches('/');
    format!("{dir}/{}", ["d", "e", "f", "g", "h"].choose(rng).unwrap())
}

fn random_step(rng: &mut Random, model: &Model) -> Step {
    let known: Vec<&String> = model.keys().filter(|path| *path != "/fill").collect();
    let path = match known.choose(rng) {
        Some(path) if rng.random_range(0..4) > 0 => (*path).clone(),
        _ => random_path(rng),
    };
    match rng.random_range(0..10) {
        0 | 1 => create(&random_path(rng)),
        2 => mkdir(&random_path(rng)),
        3..6 => {
            let len = [10, 3000, 50_000, 400_000][rng.random_range(0..4)];
            write(&path, rng.random_range(0..10_000), &vec![rng.random(); rng.random_range(1..len)])
        }
        6 => step(&path, Action::SetLen { size: rng.random_range(0..100_000) }),
        7 => rename(&path, &random_path(rng)),
        8 => step(&path, if rng.random() { Action::RemoveFile } else { Action::RemoveDir }),
        _ => set_xattr(&path, "user.x", &vec![1; rng.random_range(0..8000)]),
    }
}

/// Does to the model what the steps do, if all of them are possible.
fn after(model: &Model, steps: &[Step]) -> Option<Model> {
    let mut model = model.clone();
    for step in steps {
        apply(&mut model, step)?;
    }
    Some(model)
}

fn is_dir(model: &Model, path: &str) -> bool {
    path.is_empty() || model.get(path) == Some(&None)
}

fn is_empty(model: &Model, path: &str) -> bool {
    !model.keys().any(|other| other.starts_with(&format!("{path}/")))
}

fn apply(model: &mut Model, step: &Step) -> Option<()> {
    let path = std::str::from_utf8(&step.path).unwrap().to_owned();
    let parent = |path: &str| path[..path.rfind('/').unwrap()].to_owned();
    let new = |model: &Model, path: &str| is_dir(model, &parent(path)) && !model.contains_key(path);
    match &step.action {
        Action::Create { .. } => new(model, &path).then(|| drop(model.insert(path, Some(Vec::new())))),
        Action::Mkdir { .. } => new(model, &path).then(|| drop(model.insert(path, None))),
        Action::Write { offset, data } => {
            let bytes = model.get_mut(&path)?.as_mut()?;
            let end = *offset as usize + data.len();
            bytes.resize(bytes.len().max(end), 0);
            bytes[*offset as usize..end].copy_from_slice(data);
            Some(())
        }
        Action::SetLen { size } => {
            model.get_mut(&path)?.as_mut()?.resize(*size as usize, 0);
            Some(())
        }
        Action::RemoveFile => model.get(&path)?.is_some().then(|| drop(model.remove(&path))),
        Action::RemoveDir => {
            (is_dir(model, &path) && is_empty(model, &path)).then(|| drop(model.remove(&path)))
        }
        Action::Rename { to } => {
            let to = std::str::from_utf8(to).unwrap().to_owned();
            let moved = model.get(&path)?.clone();
            let within = to.starts_with(&format!("{path}/"));
            let fits = match model.get(&to) {
                None => is_dir(model, &parent(&to)),
                Some(target) if target.is_none() => moved.is_none() && is_empty(model, &to),
                Some(_) => moved.is_some(),
            };
            if to == path {
                return Some(());
            }
            if within || !fits {
                return None;
            }
            model.insert(to.clone(), model.get(&path)?.clone());
            model.remove(&path);
            let below: Vec<String> =
                model.keys().filter(|other| other.starts_with(&format!("{path}/"))).cloned().collect();
            for old in below {
                let contents = model.remove(&old)?;
                model.insert(format!("{to}{}", &old[path.len()..]), contents);
            }
            Some(())
        }
        _ => model.contains_key(&path).then_some(()),
    }
}

/// One life; returns how many transactions were committed, refused for a step, and refused for lack
/// of room.
fn life(seed: u64) -> [u32; 3] {
    let mut rng = Random::seed_from_u64(seed);
    let image = Image::new(&mut rng);
    let mut model = Model::new();
    let mut counts = [0; 3];
    block_on(image.fs.transact(CALLER, &[mkdir("/d"), mkdir("/e"), mkdir("/d/f")])).unwrap();
    ["/d", "/e", "/d/f"].iter().for_each(|dir| drop(model.insert((*dir).to_owned(), None)));
    if rng.random() {
        image.fill(&mut rng);
        model = image.model();
    }
    if rng.random() && image.fs.has_parent_pointers() {
        let dir = block_on(image.fs.lookup(ROOT, b"e")).unwrap().ino;
        let limits = QuotaLimits { bytes: 1 << rng.random_range(14..21), inodes: rng.random_range(3..9) };
        block_on(image.fs.set_quota(dir, limits)).unwrap();
    }
    for round in 0..40 {
        let mut steps = Vec::new();
        let mut ahead = model.clone();
        for _ in 0..rng.random_range(1..8) {
            let step = random_step(&mut rng, &ahead);
            // Mostly steps that are possible, or nearly all transactions would be refused.
            let mut next = ahead.clone();
            match apply(&mut next, &step) {
                Some(()) => ahead = next,
                None if rng.random_range(0..20) > 0 => continue,
                None => {}
            }
            steps.push(step);
        }
        let expected = after(&model, &steps);
        match block_on(image.fs.transact(CALLER, &steps)) {
            Ok(()) => {
                model = expected.unwrap_or_else(|| panic!("seed {seed}: {steps:?} is impossible"));
                counts[0] += 1;
            }
            Err(NotCommitted::Refused { error, .. }) => {
                let limited = matches!(error.errno(), 122 | 18);
                assert!(expected.is_none() || limited, "seed {seed}, round {round}: {error}");
                counts[1] += 1;
            }
            Err(NotCommitted::Unchanged(error)) => {
                assert_eq!(error.errno(), 28, "seed {seed}: {error}");
                counts[2] += 1;
            }
            Err(broken) => panic!("seed {seed}, round {round}: {broken}"),
        }
        assert!(image.model() == model, "seed {seed}, round {round}: {steps:?}");
        if round % 8 == 0 {
            let crashed = image.crash();
            assert!(crashed.model() == model, "seed {seed}, round {round}, after a crash: {steps:?}");
            block_on(crashed.fs.close()).unwrap();
        }
    }
    block_on(image.fs.close()).unwrap();
    block_on(image.fs.store().close()).unwrap();
    counts
}

#[test]
fn a_random_transaction_is_applied_or_changes_nothing() {
    let seeds = std::env::var("SYNCLINE_TRANSACTION_SEEDS").ok().and_then(|seeds| seeds.parse().ok());
    let mut sums = [0; 3];
    for seed in 0..seeds.unwrap_or(12) {
        life(seed).iter().zip(&mut sums).for_each(|(count, sum)| *sum += count);
    }
    println!("{} committed, {} refused, {} without room", sums[0], sums[1], sums[2]);
    assert!(sums.iter().all(|sum| *sum > 0), "{sums:?}: some outcome never came");
}
