//! The commands of the shell.

use super::answer::Answer;
use super::image::Image;
use super::{blocks, files, log, tree};
use serde_json::{Value, json};

/// A command.
struct Command {
    name: &'static str,
    arguments: &'static str,
    help: &'static str,
    run: fn(&Image, &[&str]) -> Answer,
}

const COMMANDS: &[Command] = &[
    Command {
        name: "info",
        arguments: "",
        help: "the newest superblock, and the damage of the image",
        run: |image, _| blocks::info(image),
    },
    Command {
        name: "super",
        arguments: "",
        help: "every copy of the superblocks",
        run: |image, _| blocks::superblocks(image),
    },
    Command {
        name: "tree",
        arguments: "[MOST]",
        help: "the nodes of the tree, parents first",
        run: tree::tree,
    },
    Command {
        name: "node",
        arguments: "[BLOCK]",
        help: "a node and its items; the root unless told otherwise",
        run: tree::node,
    },
    Command {
        name: "items",
        arguments: "[OBJECT [MOST]]",
        help: "items from an object on, log included",
        run: tree::items,
    },
    Command { name: "item", arguments: "OBJECT KIND [OFFSET]", help: "one item by its key", run: tree::item },
    Command {
        name: "log",
        arguments: "",
        help: "the batches after the last checkpoint, and how they are chained",
        run: |image, _| log::log(image),
    },
    Command { name: "batch", arguments: "NUMBER", help: "a batch's header and records", run: log::batch },
    Command {
        name: "inode",
        arguments: "INODE",
        help: "an inode: attributes, paths, extents, checksums compared with the data",
        run: files::inode,
    },
    Command { name: "ls", arguments: "PATH", help: "a directory's entries", run: files::list },
    Command { name: "path", arguments: "PATH", help: "the inode that a path names", run: files::path },
    Command { name: "paths", arguments: "INODE", help: "the paths of an inode", run: files::paths },
    Command {
        name: "block",
        arguments: "BLOCK",
        help: "the use of a block: space map, and references to it",
        run: blocks::block,
    },
    Command {
        name: "space",
        arguments: "",
        help: "a summary of the space map",
        run: |image, _| blocks::space(image),
    },
    Command { name: "hex", arguments: "BLOCK", help: "the bytes of a block", run: blocks::hex },
    Command { name: "help", arguments: "", help: "this list; 'quit' ends", run: |_, _| Ok(help()) },
];

/// Runs a command.
pub fn answer(image: &Image, name: &str, arguments: &[&str]) -> Answer {
    let known = COMMANDS.iter().find(|command| command.name == name);
    let command = known.ok_or_else(|| format!("there is no command '{name}'; 'help' lists them"))?;
    let required = command.arguments.split(['[']).next().unwrap_or_default().split_whitespace().count();
    let most = command.arguments.split_whitespace().count();
    if !(required..=most).contains(&arguments.len()) {
        return Err(format!("call it so: {} {}", command.name, command.arguments).trim_end().to_owned());
    }
    (command.run)(image, arguments)
}

fn help() -> Value {
    let lines = COMMANDS.iter().map(|command| {
        json!({ "command": format!("{:5} {:20}", command.name, command.arguments), "shows": command.help })
    });
    lines.collect()
}
