//! Tests of stores written in Rust: `programs NAME setup|work|check|version`.

mod fjall;
mod heed;
mod records;
mod redb;
mod sled;

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
        "fjall" => fjall::run(verb),
        "heed" => heed::run(verb),
        "redb" => redb::run(verb),
        "sled" => sled::run(verb),
        _ => Err(format!("there is no program '{name}'").into()),
    };
    if let Err(error) = result {
        println!("{error}");
        std::process::exit(1);
    }
}
