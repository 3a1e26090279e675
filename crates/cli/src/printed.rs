//! Everything that the program prints. Names, labels and messages may contain anything, and a
//! terminal obeys some of it: control characters are shown as `\u001b`, and so are those that
//! reverse the direction of text. (JSON escapes them in the same way.)
//!
//! `say!` and `note!` print one line, whatever is in it; `say_text!` prints several, and names in
//! it go through [`one_line`]. Nothing else in this crate prints: clippy denies `println!` and its
//! like.

use crate::failure::Failure;
use std::fmt::{self, Write as _};
use std::io::{self, ErrorKind, Write};

/// Prints a line to standard output.
macro_rules! say {
    () => { $crate::printed::line(format_args!("")) };
    ($($words:tt)*) => { $crate::printed::line(format_args!($($words)*)) };
}

/// Prints a text with its line breaks to standard output.
macro_rules! say_text {
    ($($words:tt)*) => { $crate::printed::text(format_args!($($words)*)) };
}

/// Prints a line to standard error.
macro_rules! note {
    ($($words:tt)*) => { $crate::printed::note(format_args!($($words)*)) };
}

/// True for characters that a terminal could obey, or that would make a line look like another one.
fn is_obeyed(c: char) -> bool {
    c.is_control() || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{2028}' | '\u{2029}')
}

fn escape(text: &str, keeps: impl Fn(char) -> bool) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if is_obeyed(c) && !keeps(c) {
            // All of them fit in four digits.
            let _ = write!(shown, "\\u{:04x}", u32::from(c));
        } else {
            shown.push(c);
        }
    }
    shown
}

fn is_layout(c: char) -> bool {
    matches!(c, '\n' | '\t')
}

/// A value on one line, whatever it contains.
pub fn one_line(what: impl fmt::Display) -> String {
    escape(&what.to_string(), |_| false)
}

/// A number of things, with the singular or plural noun.
pub fn several(number: u64, one: &str, more: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { more })
}

/// The numbers of files and of directories that a command has changed.
pub fn files_and_directories(files: u64, directories: u64) -> String {
    let all = || several(files, "file", "files");
    let folders = || several(directories, "directory", "directories");
    match (files, directories) {
        (_, 0) => all(),
        (0, _) => folders(),
        _ => format!("{} and {}", all(), folders()),
    }
}

/// Width of the narrowest terminal that output is made for.
pub const COLUMNS: usize = 80;

/// Appends words that begin at column `indent`, and go on below it where a line would be longer than
/// a terminal is wide.
pub fn fold(words: &str, indent: usize, text: &mut String) {
    let mut column = indent;
    for (index, word) in words.split(' ').enumerate() {
        let width = word.chars().count();
        if index > 0 && column + 1 + width > COLUMNS {
            let _ = write!(text, "\n{:indent$}", "");
            column = indent;
        } else if index > 0 {
            text.push(' ');
            column += 1;
        }
        text.push_str(word);
        column += width;
    }
    text.push('\n');
}

/// The message about log batches that recovery leaves out.
pub fn left_out(batches: u64) -> String {
    let batches = several(batches, "batch is", "batches are");
    format!("the end of the log is not whole: {batches} left out, torn by the crash or rotten")
}

/// The bytes of a name on one line; bytes that are not text stay as they are.
pub fn name(bytes: &[u8]) -> Vec<u8> {
    escape_bytes(bytes, |_| false)
}

fn escape_bytes(bytes: &[u8], keeps: impl Fn(char) -> bool + Copy) -> Vec<u8> {
    let mut shown = Vec::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        shown.extend_from_slice(escape(chunk.valid(), keeps).as_bytes());
        shown.extend_from_slice(chunk.invalid());
    }
    shown
}

/// The result of writing to standard output. A reader that closes the pipe ends a command quietly.
pub fn written(result: io::Result<()>) -> Result<(), Failure> {
    match result {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Err(Failure::told(0)),
        result => Ok(result?),
    }
}

/// See `say!`.
pub fn line(words: fmt::Arguments<'_>) {
    print(&format!("{}\n", one_line(words)));
}

/// See `say_text!`.
pub fn text(words: fmt::Arguments<'_>) {
    print(&escape(&words.to_string(), is_layout));
}

/// Prints a value as JSON to standard output.
pub fn json(value: &impl serde::Serialize) {
    // Only maps whose keys are no strings, and types that refuse, can't be shown as JSON.
    text(format_args!("{}\n", serde_json::to_string_pretty(value).expect("numbers and text")));
}

fn print(text: &str) {
    let mut output = io::stdout().lock();
    match output.write_all(text.as_bytes()).and_then(|()| output.flush()) {
        Ok(()) => {}
        // The reader has closed the pipe.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => {}
        Err(error) => {
            note(format_args!("syncline: the output can't be written: {error}"));
            std::process::exit(1);
        }
    }
}

/// See `note!`.
pub fn note(words: fmt::Arguments<'_>) {
    // If not even this can be printed, there is no one to tell.
    let _ = io::stderr().lock().write_all(format!("{}\n", one_line(words)).as_bytes());
}

/// Standard output for callers that handle write errors. Keeps line breaks.
pub fn stdout() -> Escaped<io::StdoutLock<'static>> {
    Escaped(io::stdout().lock())
}

/// Standard error for log lines.
pub fn stderr() -> Escaped<io::Stderr> {
    Escaped(io::stderr())
}

/// Writes with everything that a terminal could obey escaped. Each write must end at the end of a
/// character.
pub struct Escaped<W>(W);

impl<W: Write> Write for Escaped<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write_all(&escape_bytes(bytes, is_layout))?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_obeys_is_shown() {
        assert_eq!(
            one_line("a\u{1b}[2Jb\nc\td\r\u{7f}\u{9b}"),
            r"a\u001b[2Jb\u000ac\u0009d\u000d\u007f\u009b"
        );
        assert_eq!(one_line("txt.\u{202e}exe"), r"txt.\u202eexe");
        assert_eq!(one_line("größe 日本 \\n"), "größe 日本 \\n");
        assert_eq!(name(b"a\x1b\xff\nb"), b"a\\u001b\xff\\u000ab");
    }

    #[test]
    fn kinds_of_which_there_are_none_are_not_counted() {
        assert_eq!(files_and_directories(0, 1), "1 directory");
        assert_eq!(files_and_directories(2, 0), "2 files");
        assert_eq!(files_and_directories(1, 3), "1 file and 3 directories");
        assert_eq!(files_and_directories(0, 0), "0 files");
    }

    #[test]
    fn texts_keep_their_lines_and_json_stays_json() {
        let mut written = Escaped(Vec::new());
        written.write_all("one\n\ttwo\u{1b}]0;x\u{7}\n".as_bytes()).unwrap();
        assert_eq!(written.0, b"one\n\ttwo\\u001b]0;x\\u0007\n");
        let value = serde_json::json!({ "name": "\u{1b}\u{7f}\u{9b}\u{202e}\n\"\\" });
        let shown = escape(&format!("{value:#}\n"), is_layout);
        assert!(!shown.chars().any(|c| is_obeyed(c) && c != '\n'), "{shown}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&shown).unwrap(), value);
    }
}
