//! `syncline key`: the keys of an encrypted image.

use crate::examples;
use crate::failure::{Failure, Outcome};
use crate::keys::NewKeyChoices;
use crate::printed::one_line;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, UNIX_EPOCH};
use syncline_device::OpenOptions;
use syncline_image::{How, KeyError, Keys, MasterKey, SLOTS, new_key, peek_keys, secret_for};

/// Arguments of `key`.
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// List the keys of an image, which may be mounted. That needs no key
    #[command(after_help = examples::KEY_LIST)]
    List {
        /// The encrypted image
        image: PathBuf,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Add another key: up to eight open an image
    #[command(after_help = examples::KEY_ADD)]
    Add {
        /// The encrypted image, which must not be mounted
        image: PathBuf,
        /// Name of the new key, at most 64 bytes
        #[arg(long, default_value = "")]
        name: String,
        #[command(flatten)]
        new: NewKeyChoices,
    },
    /// Put another key in the place of the one that is given
    #[command(after_help = examples::KEY_CHANGE)]
    Change {
        /// The encrypted image, which must not be mounted
        image: PathBuf,
        #[command(flatten)]
        new: NewKeyChoices,
    },
    /// Remove a key, so that it opens the image no more. The last one can't be removed
    #[command(after_help = examples::KEY_REMOVE)]
    Remove {
        /// The encrypted image, which must not be mounted
        image: PathBuf,
        /// Number of the key, as 'key list' shows it
        number: usize,
    },
}

/// Runs the command.
pub fn run(args: Args) -> Outcome {
    match args.command {
        Command::List { image, json } => list(&image, json)?,
        Command::Add { image, name, new } => {
            let (mut keys, master, _) = unlock(&image)?;
            let about = |error| about(&image, error);
            let secret = new.secret().map_err(about)?;
            let number = keys.change(|record| record.add(new_key(&master, &secret, &name))).map_err(about)?;
            say!("key {number} was added");
        }
        Command::Change { image, new } => {
            let (mut keys, master, number) = unlock(&image)?;
            let about = |error| about(&image, error);
            let secret = new.secret().map_err(about)?;
            let name = keys.record().slots[number - 1].as_ref().map(|slot| slot.name.clone());
            let name = name.unwrap_or_default();
            keys.change(|record| record.replace(number, new_key(&master, &secret, &name))).map_err(about)?;
            say!("key {number} was changed");
        }
        Command::Remove { image, number } => {
            let (mut keys, _, _) = unlock(&image)?;
            keys.change(|record| record.remove(number)).map_err(|error| about(&image, error))?;
            say!("key {number} was removed");
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn about(image: &Path, error: KeyError) -> Failure {
    Failure::from(error).about(image)
}

fn open(image: &Path, how: &How) -> Result<Keys, Failure> {
    Keys::open(image, how)?.ok_or_else(|| {
        Failure::new(format!("{}: it is not encrypted", image.display()))
            .next("'syncline mkfs --encrypt' makes an encrypted image; copy the files over")
    })
}

/// Opens the record for changing, and asks for a key: its number is returned.
fn unlock(image: &Path) -> Result<(Keys, MasterKey, usize), Failure> {
    let keys = open(image, &How::default())?;
    let opened = secret_for(image, keys.record()).and_then(|secret| keys.record().open(&secret));
    let (master, number) = opened.map_err(|error| about(image, error))?;
    Ok((keys, master, number))
}

fn list(image: &Path, json: bool) -> Result<(), Failure> {
    let how = How::new(OpenOptions { beside_writer: true, read_only: true, ..OpenOptions::default() });
    // Of an image on a network, another host may have the lease.
    let peeked = if syncline_image::is_remote(image) { peek_keys(image) } else { None };
    let record = match peeked {
        Some(record) => record,
        None => {
            let keys = open(image, &how)?;
            if keys.has_stale_copy() {
                note!("syncline: a copy of the key record is damaged; the next mount writes it again");
            }
            keys.record().clone()
        }
    };
    let slots = record.slots.iter().enumerate();
    let slots = slots.filter_map(|(index, slot)| Some((index + 1, slot.as_ref()?)));
    if json {
        let list: Vec<_> = slots
            .map(|(number, slot)| {
                json!({ "number": number, "name": slot.name, "added_ns": slot.added_ns,
                    "memory_kib": slot.cost.memory_kib, "passes": slot.cost.passes, "lanes": slot.cost.lanes })
            })
            .collect();
        say_text!("{:#}\n", json!({ "keys": list, "most": SLOTS }));
        return Ok(());
    }
    for (number, slot) in slots {
        let added = humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_nanos(slot.added_ns));
        say!("{number}  added {added}  {}", one_line(&slot.name));
    }
    Ok(())
}
