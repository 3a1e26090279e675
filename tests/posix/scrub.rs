//! `syncline scrub` on real mounts while the image below is damaged.

use super::Ground;
use crate::skip_if;
use crate::support::{Answer, LIMIT, as_nobody, c_program, edit, no_fuse, not_root, program, run, tool};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Instant;
use syncline_format::superblock::Superblock;
use syncline_format::{BLOCK_BYTES, Geometry};

fn scrub(ground: &Ground, arguments: &[&str]) -> Answer {
    let mut command = program();
    command.arg("scrub").arg(ground.path("")).args(arguments);
    run(command)
}

/// A unique block.
fn pattern(number: u32) -> Vec<u8> {
    let mut block = b"a block of the scrub test ".repeat(200);
    block.truncate(BLOCK_BYTES - 4);
    block.extend_from_slice(&number.to_le_bytes());
    block
}

/// Address of the block with these bytes in the image.
fn find(image: &Path, block: &[u8]) -> u64 {
    let image = fs::read(image).unwrap();
    let index = image.chunks(BLOCK_BYTES).position(|found| found == block);
    index.expect("it was synced") as u64
}

/// The newest superblock.
fn newest(image: &Path) -> Superblock {
    let bytes = fs::read(image).unwrap();
    let blocks = (bytes.len() / BLOCK_BYTES) as u64;
    let copies = (0..2).map(|slot| Geometry::superblock_copies_for(blocks, slot)[0] as usize * BLOCK_BYTES);
    let decoded = copies.filter_map(|at| Superblock::decode(&bytes[at..at + BLOCK_BYTES]).ok());
    decoded.max_by_key(|superblock| superblock.generation).unwrap()
}

fn flip(image: &Path, block: u64) {
    edit(image, block * BLOCK_BYTES as u64 + 1000, 1, |bytes| bytes[0] ^= 1);
}

#[test]
fn a_sound_filesystem_is_scrubbed_while_it_is_used() {
    skip_if!(no_fuse());
    let ground = Ground::new();
    fs::write(ground.path("large"), vec![7; 5_000_000]).unwrap();
    fs::File::open(ground.path("large")).unwrap().sync_all().unwrap();
    let answer = scrub(&ground, &["--rate", "0", "--json"]).ok();
    let report: serde_json::Value = serde_json::from_str(&answer.out).unwrap();
    assert_eq!((&report["finished"], &report["cancelled"]), (&true.into(), &false.into()));
    assert!(report["data_blocks"].as_u64().unwrap() >= 5_000_000 / 4096, "{report}");
    assert!(report["nodes"].as_u64().unwrap() >= 1, "{report}");
    // Files come and go during the scrub.
    let busy = ground.path("busy");
    let answer = std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for round in 0..40u8 {
                fs::write(&busy, vec![round; 300_000]).unwrap();
                fs::File::open(&busy).unwrap().sync_all().unwrap();
            }
        });
        let answer = scrub(&ground, &["--rate", "20MiB/s"]);
        writer.join().unwrap();
        answer
    });
    assert!(answer.ok().out.contains("nothing is damaged"));
    assert_eq!(ground.mount.as_ref().unwrap().stats()["scrub"]["finished"], 2);
    ground.end();
}

#[test]
fn damage_under_a_mount_is_found_and_the_file_is_named() {
    skip_if!(no_fuse());
    let mut ground = Ground::new();
    fs::create_dir(ground.path("below")).unwrap();
    let contents: Vec<u8> = (0..8).flat_map(pattern).collect();
    fs::write(ground.path("below/damaged"), &contents).unwrap();
    fs::write(ground.path("sound"), "sound").unwrap();
    ground.remount();
    flip(&ground.place.image(), find(&ground.place.image(), &pattern(3)));
    let answer = scrub(&ground, &["--rate", "0"]);
    assert_eq!(answer.code, 4, "{answer:?}");
    let found = answer.out.lines().next().unwrap_or_default();
    assert!(
        found.starts_with("SL0023 data-damaged, inode ") && found.contains(" (/below/damaged), block "),
        "{answer:?}"
    );
    assert!(found.contains("block 3 of the file"), "{answer:?}");
    // A node that the daemon has cached, and continues to serve from the cache.
    fs::metadata(ground.path("sound")).unwrap();
    let root = newest(&ground.place.image()).tree.node;
    root.places().for_each(|copy| flip(&ground.place.image(), copy));
    let answer = scrub(&ground, &["--rate", "0", "--json"]);
    assert_eq!(answer.code, 4, "{answer:?}");
    let report: serde_json::Value = serde_json::from_str(&answer.out).unwrap();
    let node = report["findings"].as_array().unwrap().iter().find(|found| found["id"] == "SL0004");
    assert_eq!(node.unwrap()["block"], root.addr, "{report}");
    assert_eq!(fs::read(ground.path("sound")).unwrap(), b"sound");
    root.places().for_each(|copy| flip(&ground.place.image(), copy));
    fs::remove_file(ground.path("below/damaged")).unwrap();
    ground.end();
}

/// Asks a mount for a text of its daemon, through a file that the user may open.
const ASK: &str = r#"
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>

static struct { uint32_t magic, question; uint64_t snapshot, offset; char name[32], rest[16128 - 56]; } message;

int main(int argc, char **argv)
{
    (void)argc;
        int fd = open(argv[1], O_RDONLY);

        memcpy(&message.magic, "Sync", 4);
        message.question = 1;
        strncpy(message.name, argv[2], sizeof message.name);
        if (fd < 0 || ioctl(fd, _IOC(_IOC_READ | _IOC_WRITE, 0xf5, 0x53, sizeof message), &message) < 0) {
                printf("errno %d\n", errno);
                return 1;
        }
        fwrite((char *)&message + 24, 1, sizeof message - 24, stdout);
        return 0;
}
"#;

#[test]
fn what_was_found_is_told_to_root_and_the_owner_only() {
    skip_if!(no_fuse());
    skip_if!(not_root());
    skip_if!(tool("cc", &["--version".as_ref()]).is_none().then_some("there is no compiler"));
    let mut ground = Ground::new();
    let secret = ground.path("closed");
    fs::create_dir(&secret).unwrap();
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o700)).unwrap();
    fs::write(secret.join("a secret name"), (0..4).flat_map(pattern).collect::<Vec<_>>()).unwrap();
    ground.remount();
    flip(&ground.place.image(), find(&ground.place.image(), &pattern(2)));
    let answer = scrub(&ground, &["--rate", "0"]);
    assert!(answer.code == 4 && answer.out.contains("/closed/a secret name"), "{answer:?}");
    let asking = c_program(&ground.place, ASK);
    for path in [ground.place.path(), &asking] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let ask = |text: &str| {
        let mut command = Command::new(&asking);
        command.arg(ground.path("")).arg(text);
        command
    };
    let told = run(ask("scrub")).ok();
    assert!(told.out.contains("a secret name"), "{told:?}");
    let refused = run(as_nobody(ask("scrub")));
    assert_eq!((refused.code, refused.out.as_str()), (1, "errno 1\n"));
    // The number of findings is not secret.
    let stats = run(as_nobody(ask("stats"))).ok();
    assert!(stats.out.contains("\"damaged\":1") && !stats.out.contains("secret"), "{stats:?}");
    fs::remove_file(secret.join("a secret name")).unwrap();
    ground.end();
}

#[test]
fn a_scrub_is_slow_when_told_so_and_can_be_interrupted() {
    skip_if!(no_fuse());
    let ground = Ground::new();
    fs::write(ground.path("large"), vec![7; 20_000_000]).unwrap();
    fs::File::open(ground.path("large")).unwrap().sync_all().unwrap();
    let mut command = program();
    command.arg("scrub").arg(ground.path("")).args(["--rate", "1MiB/s"]);
    let child = command.stdout(std::process::Stdio::piped()).spawn().unwrap();
    let stats = || ground.mount.as_ref().unwrap().stats()["scrub"]["bytes"].as_u64().unwrap();
    let started = Instant::now();
    while stats() == 0 {
        assert!(started.elapsed() < LIMIT, "it does not begin");
    }
    // Only one scrub at a time.
    scrub(&ground, &[]).fails(3, &["a scrub is under way already", "wait for it"]);
    let pid = rustix::process::Pid::from_raw(child.id() as i32).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    assert!(String::from_utf8_lossy(&output.stdout).contains("interrupted, nothing is damaged"));
    assert!(stats() < 20_000_000, "it was slow");
    scrub(&ground, &["--rate", "0"]).ok();
    ground.end();
}

#[test]
fn what_is_no_mount_can_not_be_scrubbed() {
    let mut command = program();
    command.args(["scrub", "/proc"]);
    run(command).fails(6, &["is not on a mounted Syncline filesystem"]);
}
