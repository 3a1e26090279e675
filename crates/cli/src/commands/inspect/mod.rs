//! `syncline inspect`: a shell that examines an image, block by block if need be, and never writes.

mod answer;
mod blocks;
mod decode;
mod files;
mod image;
mod log;
mod shell;
mod text;
mod tree;

use super::mounted::refuse_mounted;
use crate::failure::{Failure, Outcome};
use crate::printed;
use image::Image;
use std::io::{BufRead, ErrorKind, IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  syncline inspect disk.img                      ask, on a terminal
  syncline inspect disk.img -c super
  syncline inspect disk.img -c log -c tree
  syncline inspect disk.img -c help              every command
  syncline inspect disk.img --json -c info
Without a terminal and without -c, commands are read from standard input, one in a line. Nothing is ever written, and a damaged
image is shown as far as it can be read.";

/// Arguments of `inspect`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Image file or block device that is not mounted
    image: PathBuf,
    /// Run this command and end; may be given several times
    #[arg(short, long = "command", value_name = "COMMAND")]
    commands: Vec<String>,
    /// Print JSON, an object or array for each command
    #[arg(long)]
    json: bool,
}

/// The outcome of running a command.
enum Next {
    Done,
    Refused,
    End,
}

/// Runs the command.
pub fn run(args: Args) -> Outcome {
    refuse_mounted(&args.image, "unmount it with 'syncline umount', then inspect the image")?;
    let image = Image::open(&args.image)?;
    let refused = if !args.commands.is_empty() {
        lines(&image, args.commands.iter().cloned().map(Ok), args.json)?
    } else if std::io::stdin().is_terminal() && std::io::stdout().is_terminal() {
        converse(&image, args.json)?;
        false
    } else {
        let mut given = false;
        let each = std::io::stdin().lock().lines().inspect(|_| given = true);
        let refused = lines(&image, each, args.json)?;
        if !given {
            let text = "there is no terminal to ask, and no command came on standard input";
            return Err(Failure::usage(text).next("name one with -c; '-c help' lists them"));
        }
        refused
    };
    Ok(ExitCode::from(u8::from(refused)))
}

/// Runs commands one by one; true if any failed.
fn lines(
    image: &Image,
    lines: impl Iterator<Item = std::io::Result<String>>,
    json: bool,
) -> Result<bool, Failure> {
    let mut refused = false;
    for line in lines {
        match one(image, &line?, json)? {
            Next::Done => {}
            Next::Refused => refused = true,
            Next::End => break,
        }
    }
    Ok(refused)
}

/// Asks for commands on a terminal.
fn converse(image: &Image, json: bool) -> Result<(), Failure> {
    let broken =
        |error: rustyline::error::ReadlineError| Failure::new(format!("the terminal fails: {error}"));
    let mut editor = rustyline::DefaultEditor::new().map_err(broken)?;
    say!("'help' lists the commands, 'quit' ends. Nothing is ever written.");
    loop {
        let line = match editor.readline("syncline> ") {
            Ok(line) => line,
            Err(rustyline::error::ReadlineError::Eof | rustyline::error::ReadlineError::Interrupted) => {
                return Ok(());
            }
            Err(error) => return Err(broken(error)),
        };
        // A history that can't be saved is no reason to stop.
        let _ = editor.add_history_entry(&line);
        if let Next::End = one(image, &line, json)? {
            return Ok(());
        }
    }
}

fn one(image: &Image, line: &str, json: bool) -> Result<Next, Failure> {
    let (name, rest) = line.trim().split_once(char::is_whitespace).unwrap_or((line.trim(), ""));
    if name.is_empty() || name.starts_with('#') {
        return Ok(Next::Done);
    }
    // The rest of the line is one path, including any spaces in it.
    let arguments: Vec<&str> = match name {
        "ls" | "path" => Some(rest.trim()).filter(|path| !path.is_empty()).into_iter().collect(),
        _ => rest.split_whitespace().collect(),
    };
    if ["quit", "exit", "q"].contains(&name) {
        return Ok(Next::End);
    }
    let answer = match shell::answer(image, name, &arguments) {
        Ok(answer) => answer,
        Err(refusal) => {
            note!("syncline: {refusal}");
            return Ok(Next::Refused);
        }
    };
    let text = if json { format!("{answer:#}\n") } else { text::of(&answer) };
    match printed::stdout().write_all(text.as_bytes()) {
        // The reader has closed the pipe.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(Next::End),
        written => Ok(written.map(|()| Next::Done)?),
    }
}
