//! Golden images: for each version of the format and each feature, one left by a clean unmount and
//! one left by a crash.
//!
//! They are opened, checked and compared, and the images that this program writes today are
//! compared with them item by item. So a change of the format fails here until the version is
//! raised and new images are added: `SYNCLINE_WRITE_GOLDEN=1 cargo test -p syncline-cli --test
//! program compat::`.

mod fork;

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use syncline::{
    Allocation, Durability, Filesystem, FormatOptions, ImageOptions, OpenOptions, QuotaLimits, Timestamp,
    format_device,
};
use syncline_device::{Background, Device, MemoryDevice, Spawn, WorkerOptions, block_on};
use syncline_format::items::extent::Extent;
use syncline_format::superblock::FEATURE_LEASE;
use syncline_format::{FORMAT_VERSION, Key, Kind};
use syncline_fs::ManualClock;
use syncline_fs::types::Algorithm;
use syncline_lease::{LeaseHolder, LeaseOptions, LeaseState, Leased, look};
use syncline_store::Store;

const SIZE: u64 = 16 << 20;
const SEED: [u8; 16] = *b"golden image no1";
const BORN_NS: u64 = 1_700_000_000_123_456_789;

/// A feature that not every image has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Feature {
    None,
    ParentPointers,
    Preallocation,
    Snapshots,
    Compression,
    Quotas,
    DataInLog,
    CountedXattrs,
    Lease,
    Durability,
}

const FEATURES: [Feature; 10] = [
    Feature::None,
    Feature::ParentPointers,
    Feature::Preallocation,
    Feature::Snapshots,
    Feature::Compression,
    Feature::Quotas,
    Feature::DataInLog,
    Feature::CountedXattrs,
    Feature::Lease,
    Feature::Durability,
];
/// Directories of each durability class, in images that have classes.
const CLASSES: [(&str, Durability); 3] =
    [("fsync", Durability::Fsync), ("ordered", Durability::Ordered(77)), ("strict", Durability::Strict)];
/// Limits of the directory in the image that has quotas.
const LIMITS: QuotaLimits = QuotaLimits { bytes: 10 << 20, inodes: 1000 };
/// Further names of one inode, in images with parent pointers: some fit its item, some do not.
const MORE_NAMES: u32 = 60;

fn golden(version: u32, feature: Feature, state: &str) -> PathBuf {
    let feature = match feature {
        Feature::None => "",
        Feature::ParentPointers => "parents-",
        Feature::Preallocation => "preallocation-",
        Feature::Snapshots => "snapshots-",
        Feature::Compression => "compression-",
        Feature::Quotas => "quotas-",
        Feature::DataInLog => "data-in-log-",
        Feature::CountedXattrs => "counted-xattrs-",
        Feature::Lease => "lease-",
        Feature::Durability => "durability-",
    };
    let name = format!("../../tests/compat/version-{version}-{feature}{state}.img.gz");
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(name)
}

fn unpack(path: &PathBuf) -> Arc<MemoryDevice> {
    let packed = fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut image = Vec::new();
    GzDecoder::new(&packed[..]).read_to_end(&mut image).unwrap();
    assert_eq!(image.len() as u64, SIZE);
    MemoryDevice::from_image(&image)
}

fn options() -> ImageOptions {
    ImageOptions::new()
        .owner(1000, 100)
        .laboratory(|_, engine| engine.clock = Arc::new(ManualClock::at(BORN_NS)))
}

/// Makes an image by the same steps each time, with something of everything that the format can
/// express.
fn make(feature: Feature) -> (Arc<MemoryDevice>, Filesystem) {
    let device = MemoryDevice::new(SIZE);
    let format = FormatOptions::new()
        .label("golden")
        .owner(0, 0)
        .uuid(SEED)
        .hash_seed(SEED)
        .created(Timestamp { seconds: 1_700_000_000, nanoseconds: 123_456_789 })
        .parent_pointers(feature == Feature::ParentPointers)
        .data_in_log(feature == Feature::DataInLog)
        .counted_xattrs(feature == Feature::CountedXattrs)
        .shared(feature == Feature::Lease);
    format_device(device.clone(), &format).unwrap();
    let used: Arc<dyn Device> = match feature {
        Feature::Lease => lease(device.clone()),
        _ => device.clone(),
    };
    let fs = Filesystem::open_device(used, options()).unwrap();
    fs.create_dir_all("directory/below").unwrap();
    fs.write("empty", "").unwrap();
    fs.write("directory/inline", "fits the inode").unwrap();
    fs.write("directory/below/large", pattern(300_001)).unwrap();
    fs.create_file("sparse").unwrap().write_all_at(&pattern(5_000), 1 << 33).unwrap();
    fs.hard_link("directory/inline", "second name").unwrap();
    fs.symlink("directory/inline", "short link").unwrap();
    fs.symlink("./".repeat(2000), "long link").unwrap();
    fs.set_xattr("empty", "user.tiny", b"1").unwrap();
    fs.set_xattr("empty", "user.middle", &pattern(2_000)).unwrap();
    fs.set_xattr("empty", "user.long", &pattern(60_000)).unwrap();
    fs.set_permissions("directory/inline", 0o4750).unwrap();
    fs.set_owner("empty", Some(7), Some(8)).unwrap();
    for index in 0..200 {
        fs.write(format!("directory/{index}"), format!("{index}")).unwrap();
    }
    fs.remove_file("directory/100").unwrap();
    if feature == Feature::ParentPointers {
        for index in 0..MORE_NAMES {
            fs.hard_link("directory/inline", format!("directory/below/{index}")).unwrap();
        }
    }
    if feature == Feature::Preallocation {
        let file = fs.create_file("preallocated").unwrap();
        file.allocate(Allocation::Preallocate { keep_size: false }, 0, 1 << 20).unwrap();
        file.write_all_at(&pattern(9_000), 100_000).unwrap();
        file.sync_all().unwrap();
        let inline = OpenOptions::new().write(true).open(&fs, "directory/7").unwrap();
        inline.allocate(Allocation::Preallocate { keep_size: true }, 0, 50_000).unwrap();
    }
    if feature == Feature::Snapshots {
        fs.write("changing", pattern(100_000)).unwrap();
        fs.write("going", "only the first snapshot has it").unwrap();
        fs.create_snapshot("first, of März").unwrap();
        fs.remove_file("going").unwrap();
        fs.write("changing", pattern(70_000)).unwrap();
        fs.create_snapshot("second").unwrap();
        fs.write("changing", "small now").unwrap();
    }
    if feature == Feature::Compression {
        for (name, algorithm) in [("lz4", Algorithm::Lz4), ("zstd", Algorithm::Zstd)] {
            fs.create_dir(name).unwrap();
            let ino = fs.metadata(name).unwrap().ino();
            block_on(fs.engine().set_compression(ino, Some(algorithm))).unwrap();
            // Two whole units and some blocks; then the first unit is split in two parts.
            let file = fs.create_file(format!("{name}/units")).unwrap();
            file.write_all_at(&pattern(300_000), 0).unwrap();
            file.sync_all().unwrap();
            file.write_all_at(b"something else", 50_000).unwrap();
            file.sync_all().unwrap();
        }
    }
    if feature == Feature::Quotas {
        fs.set_quota("directory", LIMITS).unwrap();
        fs.write("directory/after", pattern(20_000)).unwrap();
        fs.open_file("directory/after").unwrap().sync_all().unwrap();
        fs.create_dir_all("removed/below").unwrap();
        fs.set_quota("removed", QuotaLimits::default()).unwrap();
        fs.remove_quota("removed").unwrap();
    }
    if feature == Feature::DataInLog {
        let file = fs.create_file("logged").unwrap();
        file.write_all_at(&pattern(100_000), 0).unwrap();
        file.sync_all().unwrap();
        // The log has these blocks whole; one of them is truncated, and a later block is cut off.
        for block in [3, 7, 20] {
            file.write_all_at(b"logged whole", block * 4096 + 100).unwrap();
            file.sync_all().unwrap();
        }
        file.set_len(80_000).unwrap();
        file.allocate(Allocation::PunchHole, 7 * 4096 + 104, 4000).unwrap();
    }
    if feature == Feature::CountedXattrs {
        fs.create_dir("counted").unwrap();
        fs.set_xattr("counted", "user.middle", &pattern(2_000)).unwrap();
        fs.set_quota("counted", LIMITS).unwrap();
        fs.write("counted/file", pattern(5_000)).unwrap();
        fs.open_file("counted/file").unwrap().sync_all().unwrap();
        fs.set_xattr("counted/file", "user.tiny", b"1").unwrap();
        fs.set_xattr("counted/file", "user.long", &pattern(60_000)).unwrap();
    }
    if feature == Feature::Durability {
        for (name, class) in CLASSES {
            fs.create_dir(name).unwrap();
            fs.set_durability(name, Some(class)).unwrap();
            let file = fs.create_file(format!("{name}/made in it")).unwrap();
            file.write_all_at(&pattern(20_000), 0).unwrap();
            file.sync_all().unwrap();
        }
        fs.set_durability("ordered/made in it", None).unwrap();
    }
    fs.open_file("empty").unwrap().sync_all().unwrap();
    (device, fs)
}

/// The device with its lease, as an NBD export is used.
fn lease(device: Arc<MemoryDevice>) -> Arc<Leased> {
    let host = LeaseHolder::encode_host("golden");
    let holder = LeaseHolder { host, machine_id: SEED, boot_id: SEED, pid: 1, process_start_ticks: 1 };
    let options = LeaseOptions { holder: Some(holder), cached_by_server: true, ..LeaseOptions::default() };
    Leased::acquire(device, &options, |_| ControlFlow::Continue(())).unwrap()
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|index| (index % 241) as u8).collect()
}

/// The image after a clean close.
fn make_clean(feature: Feature) -> Arc<MemoryDevice> {
    let (device, fs) = make(feature);
    fs.close().unwrap();
    device
}

/// The image after a crash, with everything in the log.
fn make_crashed(feature: Feature) -> Arc<MemoryDevice> {
    let (device, fs) = make(feature);
    for name in ["directory/below/large", "sparse", "directory/inline"] {
        fs.open_file(name).unwrap().sync_all().unwrap();
    }
    for index in (0..200).filter(|index| *index != 100) {
        fs.open_file(format!("directory/{index}")).unwrap().sync_data().unwrap();
    }
    device.snapshot()
}

/// Compares the contents that every golden image has.
fn compare(fs: &Filesystem, feature: Feature) {
    assert_eq!(fs.read("empty").unwrap(), b"");
    assert_eq!(fs.read("second name").unwrap(), b"fits the inode");
    assert_eq!(fs.read("short link").unwrap(), b"fits the inode");
    assert_eq!(fs.read("directory/below/large").unwrap(), pattern(300_001));
    let mut tail = vec![0; 5_000];
    fs.open_file("sparse").unwrap().read_exact_at(&mut tail, 1 << 33).unwrap();
    assert_eq!(tail, pattern(5_000));
    assert_eq!(fs.read_link("long link").unwrap().to_str().unwrap(), "./".repeat(2000));
    for (name, len) in [("user.middle", 2_000), ("user.long", 60_000)] {
        assert_eq!(fs.xattr("empty", name).unwrap().unwrap(), pattern(len));
    }
    let inline = fs.metadata("directory/inline").unwrap();
    assert_eq!((inline.permissions(), inline.uid(), inline.gid()), (0o4750, 1000, 100));
    if feature == Feature::Preallocation {
        let mut expected = vec![0; 1 << 20];
        expected[100_000..109_000].copy_from_slice(&pattern(9_000));
        assert_eq!(fs.read("preallocated").unwrap(), expected);
        assert_eq!(fs.open_file("preallocated").unwrap().usage().unwrap().total_bytes, 1 << 20);
        assert_eq!(fs.open_file("directory/7").unwrap().usage().unwrap().total_bytes, 13 * 4096 + 512);
    }
    if feature == Feature::Snapshots {
        let open = |name| {
            let device = fs.engine().store().device().clone();
            Filesystem::open_snapshot_device(device, name, options()).unwrap()
        };
        let (first, second) = (open("first, of März"), open("second"));
        assert_eq!(first.read("going").unwrap(), b"only the first snapshot has it");
        assert_eq!(first.read("changing").unwrap(), pattern(100_000));
        assert_eq!(second.read("changing").unwrap(), pattern(70_000));
        assert!(!second.try_exists("going").unwrap());
        assert_eq!(fs.snapshots().unwrap().len(), 2);
    }
    if feature == Feature::Compression {
        let mut expected = pattern(300_000);
        expected[50_000..50_014].copy_from_slice(b"something else");
        for name in ["lz4/units", "zstd/units"] {
            assert!(fs.read(name).unwrap() == expected, "{name}");
            assert!(fs.open_file(name).unwrap().usage().unwrap().total_bytes < 100_000, "{name}");
        }
    }
    if feature == Feature::Quotas {
        let usage = fs.quota("directory").unwrap();
        assert_eq!((usage.limits, usage.being_set, usage.used_inodes), (LIMITS, false, 204));
        let blocks = 74 + 5;
        assert_eq!(
            usage.used_bytes,
            blocks * 4096 + 200 * 512,
            "two files of blocks, the others in their items"
        );
        assert_eq!(fs.quotas(), [usage]);
    }
    if feature == Feature::DataInLog {
        let mut expected = pattern(80_000);
        for at in [3 * 4096 + 100, 7 * 4096 + 100] {
            expected[at..at + 12].copy_from_slice(b"logged whole");
        }
        expected[7 * 4096 + 104..7 * 4096 + 4104].fill(0);
        assert!(fs.read("logged").unwrap() == expected);
    }
    if feature == Feature::Durability {
        for (name, class) in CLASSES {
            assert_eq!(fs.durability(name).unwrap(), class);
            assert_eq!(fs.read(format!("{name}/made in it")).unwrap(), pattern(20_000));
        }
        assert_eq!(fs.durability("strict/made in it").unwrap(), Durability::Strict);
        assert_eq!(fs.durability("ordered/made in it").unwrap(), Durability::Fsync);
    }
    let middle_and_long = 4 + 118;
    if feature == Feature::CountedXattrs {
        assert_eq!(fs.metadata("empty").unwrap().blocks(), middle_and_long);
        assert_eq!(fs.metadata("counted/file").unwrap().blocks(), 2 * 8 + 118);
        assert_eq!(fs.quota("counted").unwrap().used_bytes, (middle_and_long + 2 * 8) * 512);
    } else {
        assert_eq!(fs.metadata("empty").unwrap().blocks(), 0);
    }
    match feature {
        Feature::None
        | Feature::DataInLog
        | Feature::Preallocation
        | Feature::Snapshots
        | Feature::Compression
        | Feature::Quotas
        | Feature::CountedXattrs
        | Feature::Lease
        | Feature::Durability => {
            assert_eq!(inline.nlink(), 2);
            assert_eq!(fs.paths(inline.ino()).unwrap_err().errno(), 61);
        }
        Feature::ParentPointers => {
            let mut expected: Vec<_> =
                (0..MORE_NAMES).map(|index| format!("/directory/below/{index}").into_bytes()).collect();
            expected.extend([b"/directory/inline".to_vec(), b"/second name".to_vec()]);
            expected.sort_unstable();
            assert_eq!(fs.paths(inline.ino()).unwrap(), expected);
            assert_eq!(inline.nlink(), MORE_NAMES + 2);
        }
    }
    let empty = fs.metadata("empty").unwrap();
    assert_eq!((empty.uid(), empty.gid()), (7, 8));
    let born = std::time::UNIX_EPOCH + std::time::Duration::from_nanos(BORN_NS);
    assert_eq!(empty.created(), born);
    let names = fs.read_dir("directory").unwrap().count();
    let more = usize::from(feature == Feature::Quotas);
    assert_eq!(names, 201 + more, "200 files less one, and two more");
    for index in (0..200).filter(|index| *index != 100) {
        assert_eq!(fs.read(format!("directory/{index}")).unwrap(), index.to_string().as_bytes());
    }
    assert!(!fs.try_exists("directory/100").unwrap());
}

/// The lease is given back by a clean unmount, and stays with its holder after a crash.
fn compare_lease(device: Arc<MemoryDevice>, feature: Feature, state: &str) {
    let device: Arc<dyn Device> = device;
    let superblock = block_on(syncline_store::read_superblocks(&device)).unwrap().superblock;
    let lease = block_on(look(&device)).unwrap();
    if feature != Feature::Lease {
        assert_eq!((superblock.features & FEATURE_LEASE, lease), (0, None));
        return;
    }
    assert_ne!(superblock.features & FEATURE_LEASE, 0);
    let lease = lease.unwrap();
    assert_eq!((lease.holder.host_text().as_str(), lease.term), ("golden", 1));
    assert_eq!(lease.state == LeaseState::Released, state == "clean", "{:?}", lease.state);
}

fn spawn() -> Arc<dyn Spawn> {
    Arc::new(Background::start(WorkerOptions::default()).unwrap())
}

/// Every item, without the addresses of extents and without removed files: how far background
/// removal got is not part of the format.
fn items(device: &Arc<MemoryDevice>) -> Vec<(Key, Vec<u8>)> {
    let options = syncline_store::StoreOptions { read_only: true, ..syncline_store::StoreOptions::default() };
    let (store, _) = block_on(Store::open(device.clone(), options, spawn())).unwrap();
    let chunk = block_on(store.scan(Key::MIN, Key::MAX, 1 << 20)).unwrap();
    assert!(chunk.complete);
    let orphans: BTreeSet<u64> = chunk
        .items
        .iter()
        .filter(|(key, _)| key.kind == Kind::Orphan as u8)
        .map(|(key, _)| key.offset)
        .collect();
    let strip = |(key, value): (Key, bytes::Bytes)| {
        let value = match Kind::from_u8(key.kind) {
            Some(Kind::Extent) => strip_extent(Extent::decode(key.offset, &value).unwrap()).encode(),
            _ => value.to_vec(),
        };
        (key, value)
    };
    let lives =
        |(key, _): &(Key, bytes::Bytes)| !(key.kind == Kind::Orphan as u8 || orphans.contains(&key.object));
    chunk.items.into_iter().filter(lives).map(strip).collect()
}

/// An extent without its address and packed size: how well a unit compresses depends on the
/// library, not on the format.
fn strip_extent(mut extent: Extent) -> Extent {
    extent.addr = 64;
    if let Some(packed) = &mut extent.packed {
        packed.bytes = 1;
        extent.checksums = vec![0];
    }
    extent
}

#[test]
fn golden_images_of_every_version_open_and_hold_what_was_put_in() {
    write_golden_if_asked();
    for (version, feature) in (1..=FORMAT_VERSION).flat_map(|version| FEATURES.map(|has| (version, has))) {
        for state in ["clean", "crashed"] {
            let device = unpack(&golden(version, feature, state));
            let report = block_on(syncline_check::check(device.clone(), spawn(), &mut |_| {})).unwrap();
            assert!(report.is_clean(), "version {version}, {state}: {:#?}", report.findings);
            assert_eq!(report.clean_unmount, state == "clean");
            assert_eq!(report.batches_replayed > 0, state == "crashed");
            let fs = Filesystem::open_device(device.clone(), ImageOptions::read_only()).unwrap();
            compare(&fs, feature);
            drop(fs);
            compare_lease(device.clone(), feature, state);
            // And for writing, which recovers and writes a new superblock.
            let fs = Filesystem::open_device(device, options()).unwrap();
            compare(&fs, feature);
            fs.write("new", "file").unwrap();
            fs.close().unwrap();
        }
    }
}

/// The program writes the same images as it did when this version of the format was introduced.
#[test]
fn the_format_has_not_changed_without_a_new_version() {
    write_golden_if_asked();
    for feature in FEATURES {
        for (state, today) in [("clean", make_clean(feature)), ("crashed", make_crashed(feature))] {
            let golden = items(&unpack(&golden(FORMAT_VERSION, feature, state)));
            let today = items(&today);
            for (then, now) in golden.iter().zip(&today) {
                assert_eq!(then, now, "{feature:?}, {state}: raise FORMAT_VERSION and add golden images");
            }
            assert_eq!(golden.len(), today.len(), "{feature:?}, {state}");
        }
    }
}

fn write_golden_if_asked() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    if std::env::var_os("SYNCLINE_WRITE_GOLDEN").is_none() {
        return;
    }
    ONCE.call_once(|| {
        let all = FEATURES.iter().flat_map(|&has| [(has, "clean"), (has, "crashed")]);
        for (feature, state) in all {
            let path = golden(FORMAT_VERSION, feature, state);
            if path.exists() {
                // Golden images are never changed.
                continue;
            }
            let device = if state == "clean" { make_clean(feature) } else { make_crashed(feature) };
            pack(&device, &path);
        }
    });
}

fn pack(device: &MemoryDevice, path: &Path) {
    let mut packed = GzEncoder::new(Vec::new(), Compression::best());
    packed.write_all(&device.image()).unwrap();
    fs::write(path, packed.finish().unwrap()).unwrap();
}
