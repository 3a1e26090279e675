//! Tests of stores written in Rust: `programs NAME setup|work|check|version`.

mod canopydb;
mod fjall;
mod heed;
mod jammdb;
mod nebari;
mod persy;
mod records;
mod redb;
mod sled;
mod surrealkv;

use std::error::Error;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [name, verb, ..] = &arguments[..] else {
        eprintln!("Usage: programs NAME setup|work|check|version");
        std::process::exit(2);
    };
    if verb == "version" {
        println!("{}", records::version(name));
        return;
    }
    let result = match &name[..] {
        "canopydb" => canopydb::run(verb),
        "fjall" => fjall::run(verb),
        "heed" => heed::run(verb),
        "jammdb" => jammdb::run(verb),
        "nebari" => nebari::run(verb),
        "persy" => persy::run(verb),
        "redb" => redb::run(verb),
        "sled" => sled::run(verb),
        "surrealkv" => surrealkv::run(verb),
        _ => Err(format!("there is no program '{name}'").into()),
    };
    if let Err(error) = result {
        println!("{error}");
        std::process::exit(1);
    }
}
