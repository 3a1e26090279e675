//! `syncline inspect`: its output for intact and damaged images.

use crate::skip_if;
use crate::support::{Answer, Place, edit, no_fuse, program, run};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use serde_json::Value;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Stdio;

fn inspect(image: &Path, commands: &[&str], json: bool) -> Answer {
    let mut command = program();
    command.arg("inspect").arg(image).args(json.then_some("--json"));
    commands.iter().for_each(|one| {
        command.args(["-c", one]);
    });
    run(command)
}

fn answer(image: &Path, command: &str) -> Value {
    serde_json::from_str(&inspect(image, &[command], true).ok().out).expect("JSON")
}

fn golden(place: &Place, name: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/compat").join(name);
    let mut bytes = Vec::new();
    flate2::read::GzDecoder::new(File::open(path).unwrap()).read_to_end(&mut bytes).unwrap();
    fs::write(place.image(), bytes).unwrap();
}

fn list(answer: &Value) -> &Vec<Value> {
    answer["list"].as_array().unwrap_or_else(|| panic!("no list: {answer:#}"))
}

#[test]
fn structures_of_an_image_are_shown_and_agree() {
    skip_if!(no_fuse());
    let place = Place::with_image("64MiB");
    let mut mount = place.mount("mount");
    fs::create_dir(mount.path.join("a folder")).unwrap();
    let path = mount.path.join("a folder/data");
    let mut file = File::create(&path).unwrap();
    file.write_all(&[0x5a; 9 * 4096]).unwrap();
    file.sync_all().unwrap();
    fs::hard_link(&path, mount.path.join("other")).unwrap();
    file.sync_all().unwrap();
    let ino = fs::metadata(&path).unwrap().ino();
    drop(file);
    // So nothing has been merged into the tree: all of it comes from the log.
    mount.kill();
    drop(mount);
    let image = place.image();
    let before = fs::read(&image).unwrap();

    let named = answer(&image, "path /a folder/data");
    assert_eq!(
        (named["key"].as_str(), named["size"].as_u64()),
        (Some(&*format!("{ino} inode 0")), Some(9 * 4096))
    );
    assert_eq!(named["nlink"], 2);
    let mut paths: Vec<_> =
        named["paths"].as_array().unwrap().iter().map(|path| path.as_str().unwrap()).collect();
    paths.sort_unstable();
    assert_eq!(paths, ["/a folder/data", "/other"]);
    assert_eq!(named["extents_damaged"], 0);
    let extent = &list(&named)[0];
    assert_eq!(extent["data"], "as its checksums say");
    let checksum = format!("{:08x}", crc_of(&[0x5a; 4096]));
    assert!(extent["checksums"].as_str().unwrap().split(' ').all(|told| told == checksum), "{extent}");
    let names: Vec<_> = list(&answer(&image, "ls /"))
        .iter()
        .map(|entry| entry["name"].as_str().unwrap().to_owned())
        .collect();
    assert!(names.contains(&"a folder".to_owned()) && names.contains(&"other".to_owned()), "{names:?}");

    let start: u64 = extent["blocks"].as_str().unwrap().split('+').next().unwrap().parse().unwrap();
    let block = answer(&image, &format!("block {}", start + 2));
    assert_eq!((&block["space_map"], &block["with_the_log"]), (&"free".into(), &"in use".into()));
    assert_eq!(
        (list(&block)[0]["inode"].as_u64(), list(&block)[0]["file_block"].as_u64()),
        (Some(ino), Some(2))
    );
    let root = answer(&image, "info")["tree"]["block"].as_u64().unwrap();
    assert_eq!(list(&answer(&image, &format!("block {root}")))[0]["name"], "tree node");

    let log = answer(&image, "log");
    assert!(!list(&log).is_empty() && log["damage"].is_null());
    let mut named_blocks = false;
    for batch in list(&log) {
        let batch = answer(&image, &format!("batch {}", batch["number"]));
        let names = list(&batch).iter().filter(|record| record["record"] == "name");
        named_blocks |= names.into_iter().any(|record| record["blocks"] == extent["blocks"]);
        assert!(list(&batch).iter().all(|record| record["error"].is_null()), "{batch:#}");
    }
    assert!(named_blocks, "a batch names the data");
    let item = answer(&image, &format!("item {ino} extent 0"));
    assert_eq!(item["checksums"], extent["checksums"]);
    assert_eq!(answer(&image, "super").as_array().map(Vec::len), Some(4));
    assert_eq!(fs::read(&image).unwrap(), before, "nothing was written");

    // Damaged data is reported where it is met.
    edit(&image, (start + 1) * 4096, 1, |bytes| bytes[0] ^= 1);
    let damaged = answer(&image, &format!("inode {ino}"));
    assert_eq!(damaged["extents_damaged"], 1);
    assert_eq!(list(&damaged)[0]["data"], format!("DAMAGED: blocks {}", start + 1));
    let text = inspect(&image, &[&format!("inode {ino}")], false).ok().out;
    assert!(text.contains("DAMAGED: blocks") && text.contains("/a folder/data"), "{text}");
}

/// CRC32C, bit by bit.
fn crc_of(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0u32, |crc, byte| {
        (0..8).fold(
            crc ^ u32::from(*byte),
            |crc, _| if crc & 1 == 1 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 },
        )
    })
}

#[test]
fn commands_come_from_standard_input_and_refusals_are_lines() {
    let place = Place::new();
    golden(&place, "version-1-parents-clean.img.gz");
    let mut command = program();
    command.arg("inspect").arg(place.image());
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let lines = "# a remark\n\nls /directory\nquit\nnonsense\n";
    child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(String::from_utf8(output.stdout).unwrap().contains("inode"));
    for (refused, words) in [
        ("nonsense", "there is no command"),
        ("batch", "call it so: batch NUMBER"),
        ("block x", "is no number"),
        ("block 0xffffffffffffffff", "is outside"),
        ("inode 999999", "there is no inode 999999"),
        ("path /no/such", "there is no 'no'"),
        ("item 1 inode 7", "there is no item"),
        ("item 1 thing", "there is no kind"),
        ("batch 1", "there is no batch 1"),
        ("node 16", "no node lies at block 16"),
    ] {
        inspect(&place.image(), &[refused], false).fails(1, &[words]);
    }
    // The commands that can run are run all the same.
    let answer = inspect(&place.image(), &["nonsense", "space"], false);
    assert!(answer.code == 1 && answer.out.contains("total_blocks"), "{answer:?}");
}

/// Every command, with arguments inside the image and beyond.
const EVERYTHING: [&str; 17] = [
    "info",
    "super",
    "tree 1000",
    "node",
    "node 77",
    "items 0 1000",
    "item 1 inode",
    "log",
    "batch 2",
    "inode 1",
    "inode 20",
    "ls /directory",
    "paths 19",
    "block 69",
    "space",
    "hex 4095",
    "help",
];

#[test]
fn damaged_images_are_shown_as_far_as_can_be() {
    const SEED: u64 = 20_260_101;
    for name in ["version-1-parents-clean.img.gz", "version-1-parents-crashed.img.gz"] {
        let place = Place::new();
        golden(&place, name);
        let whole = fs::read(place.image()).unwrap();
        let used: Vec<usize> = (0..whole.len())
            .step_by(4096)
            .filter(|&at| whole[at..at + 4096].iter().any(|&byte| byte != 0))
            .collect();
        let mut chance = ChaCha8Rng::seed_from_u64(SEED);
        for round in 0..12 {
            let mut bytes = whole.clone();
            for _ in 0..1 << (round % 6) {
                let block = used[chance.next_u32() as usize % used.len()];
                bytes[block + chance.next_u32() as usize % 4096] ^= 1 << (chance.next_u32() % 8);
            }
            fs::write(place.image(), &bytes).unwrap();
            let answer = inspect(&place.image(), &EVERYTHING, round % 2 == 0);
            assert!([0, 1].contains(&answer.code), "seed {SEED}, round {round}: {answer:?}");
            assert!(!answer.err.contains("panicked"), "seed {SEED}, round {round}: {answer:?}");
            assert!(answer.err.lines().all(|line| line.starts_with("syncline: ")), "{answer:?}");
            assert_eq!(fs::read(place.image()).unwrap(), bytes, "nothing was written");
        }
    }
}

#[test]
fn a_damaged_node_hides_only_what_is_below_it_and_no_superblock_leaves_the_bytes() {
    let place = Place::new();
    golden(&place, "version-1-parents-clean.img.gz");
    let image = place.image();
    let tree = answer(&image, "tree");
    let leaf = list(&tree).iter().find(|node| node["level"] == 0).expect("a leaf")["block"].as_u64().unwrap();
    edit(&image, leaf * 4096 + 100, 1, |bytes| bytes[0] ^= 4);
    let damaged = answer(&image, "tree");
    assert_eq!((damaged["damaged"].as_u64(), &damaged["nodes"]), (Some(1), &tree["nodes"]));
    assert!(list(&damaged).iter().any(|node| node["block"] == leaf && node["error"].is_string()));
    let items = answer(&image, "items 0 100000");
    assert_eq!(items["unreadable"][0]["block"], leaf);
    for addr in [16, 32, 4080, 4088] {
        edit(&image, addr * 4096 + 200, 1, |bytes| bytes[0] ^= 4);
    }
    inspect(&image, &["info"], false).fails(1, &["every superblock is damaged"]);
    let copies = answer(&image, "super");
    assert!(
        copies.as_array().unwrap().iter().all(|copy| copy["error"].is_string() || copy["state"].is_string())
    );
    assert!(inspect(&image, &["hex 16"], false).ok().out.contains("SYNCLINE"));
}
