//! Replaces a file without a sync between the write and the rename, also from a thread.

use std::fs::{File, rename};
use std::io::Write;

#[inline(never)]
fn save(number: u32) {
    let mut file = File::create("settings.new").unwrap(); // create
    file.write_all(format!("version {number}\n").as_bytes()).unwrap(); // write
    drop(file);
    rename("settings.new", "settings").unwrap(); // rename
    File::open(".").unwrap().sync_all().unwrap(); // fsync
}

fn main() {
    save(1);
    std::thread::spawn(|| save(2)).join().unwrap();
}
