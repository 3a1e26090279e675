//! Tests that `include/syncline.h` has the same numbers and structures as this crate: a C compiler
//! is given the values from here and rejects any that differ.

use super::FILES_MAX;
use super::files::{FilesCommand, FilesIn};
use super::wire::{COMMAND, ControlIn, ControlOut, LIMIT_STAYS, MAGIC, MESSAGE_BYTES, NAME_BYTES, Question};
use std::mem::offset_of;
use std::process::{Command, Output};

fn assertions() -> String {
    let mut text = String::from(
        "#include <stddef.h>\n#include <syncline.h>\n#define SAME(header, here) _Static_assert((header) == (here), #header)\n",
    );
    let mut same = |header: &str, here: u64| text.push_str(&format!("SAME({header}, {here}u);\n"));
    same("SYNCLINE_FILES_MAX", FILES_MAX as u64);
    same("SYNCLINE_IOC_FSYNC2(3)", FilesCommand::Sync.number(3).into());
    same("SYNCLINE_IOC_FBARRIER(2046)", FilesCommand::Barrier.number(FILES_MAX).into());
    same("offsetof(struct syncline_files, flags)", offset_of!(FilesIn, flags) as u64);
    same("offsetof(struct syncline_files, inodes)", size_of::<FilesIn>() as u64);
    same("SYNCLINE_IOC_ASK", COMMAND.into());
    same("sizeof(union syncline_message)", MESSAGE_BYTES as u64);
    same("SYNCLINE_ASK_SET_QUOTA", Question::SetQuota as u64);
    same("SYNCLINE_ASK_REMOVE_QUOTA", Question::RemoveQuota as u64);
    same("SYNCLINE_ASK_QUOTA", Question::Quota as u64);
    same("SYNCLINE_LIMIT_STAYS", LIMIT_STAYS);
    same("offsetof(struct syncline_question, question)", offset_of!(ControlIn, question) as u64);
    same("offsetof(struct syncline_question, snapshot)", offset_of!(ControlIn, snapshot) as u64);
    same("offsetof(struct syncline_question, offset)", offset_of!(ControlIn, offset) as u64);
    same("offsetof(struct syncline_question, name)", offset_of!(ControlIn, name) as u64);
    same("sizeof(((struct syncline_question *)0)->name)", NAME_BYTES as u64);
    same("offsetof(struct syncline_question, limits)", size_of::<ControlIn>() as u64);
    same("offsetof(struct syncline_answer, len)", offset_of!(ControlOut, len) as u64);
    same("offsetof(struct syncline_answer, snapshot)", offset_of!(ControlOut, snapshot) as u64);
    same("offsetof(struct syncline_answer, total)", offset_of!(ControlOut, total) as u64);
    same("offsetof(struct syncline_answer, text)", size_of::<ControlOut>() as u64);
    text
}

/// The C compiler's output for a program; `None` if there is no compiler.
fn compile(text: &str) -> Option<Output> {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("header.c");
    std::fs::write(&source, text).unwrap();
    let include = concat!(env!("CARGO_MANIFEST_DIR"), "/../../include");
    let mut cc = Command::new("cc");
    cc.args(["-std=gnu11", "-fsyntax-only", "-I", include]).arg(&source);
    cc.output().ok()
}

#[test]
fn the_header_has_the_word_that_begins_messages() {
    let header = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../include/syncline.h"));
    let bytes = MAGIC.to_ne_bytes();
    let word = std::str::from_utf8(&bytes).unwrap();
    assert!(header.contains(&format!("#define SYNCLINE_MESSAGE_MAGIC \"{word}\"\n")));
}

#[test]
fn the_header_has_these_structures_and_numbers() {
    let text = assertions();
    let Some(output) = compile(&text) else {
        eprintln!("SKIPPED: there is no 'cc' here");
        return;
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    // A difference must be found.
    let wrong = text.replace("SAME(SYNCLINE_ASK_QUOTA, 9u)", "SAME(SYNCLINE_ASK_QUOTA, 10u)");
    assert_ne!(wrong, text);
    assert!(!compile(&wrong).unwrap().status.success());
}
