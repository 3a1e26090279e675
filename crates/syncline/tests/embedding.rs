//! The program that docs/EMBEDDING.md shows. It is run here as it stands there.

use crate::alone::is_alone;
use std::path::Path;

fn shown() -> syncline::Result<()> {
    let fs =
        syncline::Filesystem::open_or_create("disk.img", 1 << 30, &Default::default(), Default::default())?;
    let (alice, bob) = (fs.create_file("/alice")?, fs.create_file("/bob")?);
    alice.write_all_at(b"90", 0)?;
    bob.write_all_at(b"110", 0)?;
    fs.sync_many(&[&alice, &bob])?;
    let mut all = fs.transaction();
    all.write("/alice", "80").write("/bob", "120").create_dir("/paid").write("/paid/1", "10");
    all.commit()?;
    fs.create_snapshot("monday")?;
    fs.copy("/alice", "/copy")?;
    drop((alice, bob));
    fs.close()?;
    Ok(())
}

#[test]
fn the_example_of_the_page_runs() {
    // It names its image by a relative path.
    if !is_alone("embedding::the_example_of_the_page_runs") {
        return;
    }
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/EMBEDDING.md");
    let page = std::fs::read_to_string(page).unwrap();
    let block = page.split("```rust\n").nth(1).unwrap().split("```").next().unwrap();
    // Lines without their comments; however the code is broken into lines here.
    let plain = |text: &str| text.split_whitespace().collect::<String>();
    let here = plain(include_str!("embedding.rs"));
    for line in block.lines().map(|line| line.split(" //").next().unwrap()) {
        assert!(here.contains(&plain(line)), "{line}");
    }
    let folder = tempfile::tempdir().unwrap();
    std::env::set_current_dir(folder.path()).unwrap();
    shown().unwrap();
    let fs = syncline::Filesystem::open("disk.img", Default::default()).unwrap();
    assert_eq!(fs.read("/copy").unwrap(), b"80");
    fs.close().unwrap();
}
