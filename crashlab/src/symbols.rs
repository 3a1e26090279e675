//! The functions, source files and lines of stacks. They are looked up in the modules, where those are
//! still what they were when the program was recorded.

use crate::stack::{Module, Place, Stacks};
use addr2line::{Loader, demangle_auto};
use object::{Object, ObjectSymbol};
use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fmt;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::rc::Rc;

/// How the names of libraries begin that belong to a language, not to a program.
const RUNTIMES: [&str; 9] =
    ["libc.", "libc-", "libc++", "ld-", "libpthread", "libstdc++", "libgcc_s", "libm.", "libdl."];
/// How the names of interpreters begin, whose own functions say nothing about a script.
const INTERPRETERS: [&str; 12] = [
    "python",
    "libpython",
    "node",
    "nodejs",
    "libnode",
    "java",
    "libjvm",
    "ruby",
    "libruby",
    "perl",
    "libperl",
    "php",
];

/// A function that had called another one, or made a system call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Frame {
    /// Its name, if that is known.
    pub function: Option<String>,
    /// The source file, if that is known.
    pub file: Option<String>,
    /// The line in it.
    pub line: Option<u32>,
    /// The name of the program or library.
    pub module: String,
    /// The address in it.
    pub address: u64,
    /// Why nothing can be looked up, if so.
    pub why_not: Option<&'static str>,
}

/// Looks up stacks.
pub struct Symbols<'a> {
    stacks: &'a Stacks,
    modules: RefCell<HashMap<u32, Result<Rc<Source>, &'static str>>>,
}

/// Where a module's functions are looked up.
struct Source {
    lines: Option<Loader>,
    functions: Vec<Function>,
}

/// An entry of a symbol table.
struct Function {
    start: u64,
    bytes: u64,
    /// As the compiler has encoded it.
    name: String,
}

impl<'a> Symbols<'a> {
    /// Of these stacks. Nothing is opened before it is needed.
    pub fn new(stacks: &'a Stacks) -> Self {
        Self { stacks, modules: RefCell::default() }
    }

    /// The functions of a stack, inlined ones too, from the innermost outwards.
    pub fn frames(&self, stack: u32) -> Vec<Frame> {
        self.stacks.get(stack).iter().flat_map(|place| self.functions(place)).collect()
    }

    /// The function that tells most about a stack: the innermost one of the program.
    pub fn frame(&self, stack: u32) -> Option<Frame> {
        let frames = self.frames(stack);
        let own = || {
            frames
                .iter()
                .take_while(|frame| !frame.is_of_interpreter())
                .filter(|frame| !frame.is_of_runtime())
        };
        let with_source = own().find(|frame| frame.file.is_some());
        let with_name = || own().find(|frame| frame.function.is_some());
        with_source.or_else(with_name).or_else(|| own().find(|frame| frame.why_not.is_some())).cloned()
    }

    fn functions(&self, place: &Place) -> Vec<Frame> {
        let Some(module) = self.stacks.modules.get(place.module as usize) else { return Vec::new() };
        let path = Path::new(OsStr::from_bytes(&module.path));
        let module_name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let address = place.address;
        let unknown =
            Frame { function: None, file: None, line: None, module: module_name, address, why_not: None };
        let source = {
            let mut modules = self.modules.borrow_mut();
            modules.entry(place.module).or_insert_with(|| Source::new(path, module).map(Rc::new)).clone()
        };
        match source {
            Ok(source) => {
                let Source { lines, functions } = &*source;
                let found = lines.as_ref().map(|lines| with_lines(lines, place.address, &unknown));
                let found = found.filter(|found| found.iter().any(|frame| frame.function.is_some()));
                found.unwrap_or_else(|| vec![Frame { function: named(functions, place.address), ..unknown }])
            }
            Err(why) => vec![Frame { why_not: Some(why), ..unknown }],
        }
    }
}

impl Source {
    fn new(path: &Path, module: &Module) -> Result<Self, &'static str> {
        // Others, such as a named pipe, are not opened.
        let Some(metadata) = path.metadata().ok().filter(|metadata| metadata.is_file()) else {
            return Err("missing");
        };
        let Ok(bytes) = fs::read(path) else { return Err("missing") };
        let Ok(object) = object::File::parse(&*bytes) else { return Err("changed since") };
        let is_same = match &module.build_id {
            Some(id) => object.build_id().ok().flatten() == Some(id),
            None => {
                let mtime_ns =
                    i128::from(metadata.mtime()) * 1_000_000_000 + i128::from(metadata.mtime_nsec());
                (metadata.len(), mtime_ns) == (module.size, module.mtime_ns)
            }
        };
        if !is_same {
            return Err("changed since");
        }
        let symbols = object.symbols().chain(object.dynamic_symbols());
        let symbols = symbols.filter(|symbol| symbol.is_definition() && symbol.size() > 0);
        let mut functions: Vec<Function> = symbols
            .filter_map(|symbol| {
                let name = symbol.name().ok()?.to_owned();
                Some(Function { start: symbol.address(), bytes: symbol.size(), name })
            })
            .collect();
        functions.sort_by_key(|function| function.start);
        Ok(Self { lines: Loader::new(path).ok(), functions })
    }
}

/// The functions at an address, by debug information.
fn with_lines(lines: &Loader, address: u64, unknown: &Frame) -> Vec<Frame> {
    let mut found = Vec::new();
    let Ok(mut frames) = lines.find_frames(address) else { return found };
    while let Ok(Some(frame)) = frames.next() {
        let function = frame.function.and_then(|function| function.demangle().ok().map(Cow::into_owned));
        let location = frame.location.as_ref();
        let file = location.and_then(|location| location.file).map(str::to_owned);
        let line = location.and_then(|location| location.line);
        found.push(Frame { function, file, line, ..unknown.clone() });
    }
    found
}

/// The name of the function that has this address.
fn named(functions: &[Function], address: u64) -> Option<String> {
    let after = functions.partition_point(|function| function.start <= address);
    let inside = |function: &&Function| address - function.start < function.bytes;
    let function = functions[..after].iter().rev().take(16).find(inside)?;
    Some(demangle_auto(Cow::Borrowed(&function.name), None).into_owned())
}

impl Frame {
    fn is_of(&self, names: &[&str]) -> bool {
        names.iter().any(|name| self.module.starts_with(name))
    }

    /// True for a module of an interpreter, whose name may end with a version: python3.11, libnode.so.
    fn is_of_interpreter(&self) -> bool {
        let is_version = |rest: &str| !rest.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
        INTERPRETERS.iter().any(|name| self.module.strip_prefix(name).is_some_and(is_version))
    }

    /// True for a function of the standard library of C, C++, Rust or Go.
    fn is_of_runtime(&self) -> bool {
        let file = self.file.as_deref().unwrap_or_default();
        let is_rust = (file.starts_with("/rustc/") || file.contains("/rustlib/src/rust/"))
            && file.contains("/library/");
        is_rust || file.contains("/include/c++/") || self.is_of_go(file) || self.is_of(&RUNTIMES)
    }

    /// True for a package of Go's own: its path has no dot before the first slash, and the folder of the file
    /// is named like it, in `src` of Go or, built with `-trimpath`, in none.
    fn is_of_go(&self, file: &str) -> bool {
        let function = self.function.as_deref().unwrap_or_default();
        let name = function.rfind('/').map_or(0, |slash| slash + 1);
        let Some(dot) = function[name..].find('.') else { return false };
        let package = &function[..name + dot];
        let folder = file.rsplit_once('/').filter(|_| [".go", ".s"].iter().any(|end| file.ends_with(end)));
        let folder = folder.map(|(folder, _)| folder);
        let is_standard = package != "main" && !package.split('/').next().unwrap_or_default().contains('.');
        let folder = folder.map(|folder| folder.strip_prefix("./").unwrap_or(folder));
        folder.is_some_and(|folder| folder == package || folder.ends_with(&format!("/go/src/{package}")))
            && is_standard
    }
}

impl fmt::Display for Frame {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let clean =
            |text: &str| -> String { text.chars().map(|c| if c.is_control() { '?' } else { c }).collect() };
        if let Some(function) = &self.function {
            let brackets = if function.ends_with(')') { "" } else { "()" };
            write!(to, "{}{brackets}", clean(function))?;
        }
        match (&self.file, &self.function) {
            (Some(file), _) => {
                let here = std::env::current_dir().unwrap_or_default();
                let path = Path::new(file);
                let path = path.strip_prefix(here).unwrap_or(path).display().to_string();
                let line = self.line.map_or(String::new(), |line| format!(":{line}"));
                write!(to, " at {}{line}", clean(&path))
            }
            (None, Some(_)) => write!(to, " in {}", clean(&self.module)),
            (None, None) => write!(to, "{}+{:#x}", clean(&self.module), self.address),
        }?;
        self.why_not.map_or(Ok(()), |why| write!(to, " ({why})"))
    }
}
