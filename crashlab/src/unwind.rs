//! Finds the stack of the thread that asks for a change. It waits in its system call meanwhile, so its stack
//! pointer, its stack and its mappings can be read without stopping it. The call frame information of its
//! program and libraries leads from each function to its caller. Only the stack pointer is known, so a
//! frame pointer is looked for where one is needed. A doubtful frame ends the stack.

mod callers;
mod code;
mod module;
mod process;

pub use callers::Callers;

use crate::recording::{Caller, Recorder};
use crate::stack::{FRAMES_MAX, Module, Place};
use crate::tree::Tree;
use code::Call;
use module::{Base, Code, Image, Rule, Slot};
use process::{Mapping, Mappings, Memory, Registers, Watch, random_bytes};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

/// The most threads that are remembered, each with an open file.
const THREADS_MAX: usize = 128;
/// The most stacks of a recording.
const STACKS_MAX: u32 = 1 << 17;
/// The largest module of the recorded folder.
const MODULE_BYTES_MAX: u64 = 256 << 20;
/// Bytes of a stack that are searched for a frame.
const SEARCHED_BYTES: u64 = 16 << 10;

/// The mount that the program works in.
pub struct Mounted {
    /// Its device.
    pub device: (u32, u32),
    /// Its path there.
    pub path: PathBuf,
    /// The folder whose copy it has.
    pub folder: PathBuf,
}

/// Finds stacks, and writes each new one into the recording.
pub struct Unwinder {
    recorder: Arc<Recorder>,
    /// Set once there is a mount. Its files must not be opened while a request is handled.
    mounted: Arc<OnceLock<Mounted>>,
    threads: HashMap<u32, Thread>,
    modules: HashMap<Identity, Option<Loaded>>,
    module_count: u32,
    /// How to leave functions, and the calls before instructions, which are the same in every process.
    rules: HashMap<(Place, bool), (Option<Rule>, Option<Call>)>,
    stacks: HashMap<Vec<Place>, u32>,
}

/// A thread, and the code that its program has loaded.
struct Thread {
    id: u32,
    watch: Watch,
    /// The 16 random bytes of AT_RANDOM, which every exec changes, and their address.
    random: (u64, [u8; 16]),
    mappings: Mappings,
    /// The modules of mappings, by their first addresses.
    loaded: HashMap<u64, Loaded>,
    /// The mappings were read while the present request waits.
    is_fresh: bool,
    /// The instructions met on stacks; none where nothing is known.
    known: HashMap<Instruction, Option<Known>>,
    stacks: HashMap<Vec<Instruction>, u32>,
}

/// Where a function was left.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Instruction {
    address: u64,
    /// It is the next one to be executed, and not behind a call.
    is_next: bool,
}

impl Instruction {
    /// An address inside of the instruction that was left: a call can be the last one of its function.
    fn inside(self) -> u64 {
        self.address - u64::from(!self.is_next)
    }
}

#[derive(Clone, Copy)]
struct Known {
    place: Place,
    /// None without call frame information. Its addresses are those of the process.
    rule: Option<Rule>,
    call: Option<Call>,
}

/// A module that may be loaded by many processes.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Identity {
    device: (u32, u32),
    inode: u64,
    path: Vec<u8>,
    size: u64,
    mtime_ns: i128,
}

#[derive(Clone)]
struct Loaded {
    number: u32,
    code: Arc<Code>,
}

impl Unwinder {
    /// Nothing is known yet.
    pub fn new(recorder: Arc<Recorder>, mounted: Arc<OnceLock<Mounted>>) -> Self {
        let (threads, modules) = (HashMap::new(), HashMap::new());
        let (rules, stacks) = (HashMap::new(), HashMap::new());
        Self { recorder, mounted, threads, modules, module_count: 0, rules, stacks }
    }

    /// Finds the stack of a thread that waits for the answer to a request. `tree` has the files of the mount.
    pub fn caller(&mut self, thread: u32, tree: &Tree) -> Caller {
        let unknown = Caller::from(thread);
        let known = self.threads.remove(&thread);
        let was_known = known.as_ref().map(|known| known.random);
        let Some((mut thread, registers, memory)) = begin(thread, known) else { return unknown };
        let is_known = was_known == Some(thread.random);
        let instructions = self.walk(&mut thread, registers, memory, tree);
        let stack = match thread.stacks.get(&instructions) {
            Some(stack) => *stack,
            None => match self.places(&mut thread, &instructions, tree) {
                Some(places) => {
                    let stack = self.number(places);
                    thread.stacks.insert(instructions, stack);
                    stack
                }
                // Another library has taken the place of one that is known.
                None => return unknown,
            },
        };
        if self.threads.len() >= THREADS_MAX {
            self.threads.clear();
        }
        let caller = Caller { thread: thread.id, stack, is_known };
        self.threads.insert(thread.id, thread);
        caller
    }

    fn walk(
        &mut self,
        thread: &mut Thread,
        registers: Registers,
        mut memory: Memory,
        tree: &Tree,
    ) -> Vec<Instruction> {
        let mut found = Vec::new();
        let (mut sp, mut frame_pointer) = (registers.sp, None);
        let mut at = Instruction { address: registers.pc, is_next: false };
        while found.len() < FRAMES_MAX {
            let Some(known) = self.known(thread, at, tree) else { break };
            let is_first = found.is_empty();
            let is_signal = known.rule.is_some_and(|rule| rule.is_signal);
            if !is_first && !at.is_next && !is_signal && known.call.is_none() {
                break;
            }
            found.push(at);
            let Some(rule) = known.rule else { break };
            if rule.needs_frame_pointer() && frame_pointer.is_none() {
                frame_pointer = self.frame_pointer(thread, &rule, sp, &mut memory, tree);
            }
            let Some(outer) = leave(&rule, sp, frame_pointer, &mut memory) else { break };
            (sp, frame_pointer) = (outer.sp, outer.frame_pointer);
            at = Instruction { address: outer.pc, is_next: is_signal };
        }
        found
    }

    /// The frame pointer of a function that keeps one. It points to the frame pointer of the caller, with a
    /// return address behind it.
    fn frame_pointer(
        &mut self,
        thread: &mut Thread,
        rule: &Rule,
        sp: u64,
        memory: &mut Memory,
        tree: &Tree,
    ) -> Option<u64> {
        let mut call = |at: u64| {
            let address = memory.word(at.checked_add(8)?)?;
            thread.mappings.code(address)?;
            let call = self.known(thread, Instruction { address, is_next: false }, tree)?.call?;
            Some(match call {
                Call::Direct(distance) => address.wrapping_add_signed(distance) == rule.start,
                Call::Indirect => false,
            })
        };
        if let Some(at) = rule.depth.and_then(|depth| sp.checked_add(depth))
            && call(at).is_some()
        {
            return Some(at);
        }
        // A call of this very function; not one of several, which earlier calls may have left.
        let mut calls =
            (sp..sp.saturating_add(SEARCHED_BYTES)).step_by(8).filter(|at| call(*at) == Some(true));
        calls.next().filter(|_| calls.next().is_none())
    }

    fn known(&mut self, thread: &mut Thread, at: Instruction, tree: &Tree) -> Option<Known> {
        if let Some(known) = thread.known.get(&at) {
            return *known;
        }
        let found = self.find(thread, at, tree);
        thread.known.insert(at, found);
        found
    }

    fn find(&mut self, thread: &mut Thread, at: Instruction, tree: &Tree) -> Option<Known> {
        if at.address == 0 {
            return None;
        }
        thread.refresh()?;
        let (offset, Loaded { number, code }) = self.loaded(thread, at, tree)?;
        let place = Place { module: number, address: code.address(offset)? };
        let (rule, call) = *self.rules.entry((place, at.is_next)).or_insert_with(|| {
            let next = offset + u64::from(!at.is_next);
            (code.rule(place.address), code.call_before(next))
        });
        // From an address of the module to one of the process.
        let distance = at.inside().wrapping_sub(place.address);
        let rule = rule.map(|rule| Rule { start: rule.start.wrapping_add(distance), ..rule });
        Some(Known { place, rule, call })
    }

    /// The module with an instruction, and the instruction's offset in it.
    fn loaded(&mut self, thread: &mut Thread, at: Instruction, tree: &Tree) -> Option<(u64, Loaded)> {
        let mapping = thread.mappings.code(at.inside())?;
        let offset = at.inside() - mapping.start + mapping.offset;
        if let Some(loaded) = thread.loaded.get(&mapping.start) {
            return Some((offset, loaded.clone()));
        }
        let loaded = self.module(mapping, tree)?;
        thread.loaded.insert(mapping.start, loaded.clone());
        Some((offset, loaded))
    }

    /// The places of instructions, as the mappings are now.
    fn places(
        &mut self,
        thread: &mut Thread,
        instructions: &[Instruction],
        tree: &Tree,
    ) -> Option<Vec<Place>> {
        thread.refresh()?;
        let mut places = Vec::new();
        for at in instructions {
            let known = thread.known.get(at).copied()??;
            if self.loaded(thread, *at, tree)?.1.number != known.place.module {
                return None;
            }
            places.push(known.place);
        }
        Some(places)
    }

    /// The number of a stack, which is recorded if it is new.
    fn number(&mut self, places: Vec<Place>) -> u32 {
        let next = self.stacks.len() as u32 + 1;
        if places.is_empty() || next > STACKS_MAX && !self.stacks.contains_key(&places) {
            return 0;
        }
        *self.stacks.entry(places).or_insert_with_key(|places| {
            self.recorder.add_stack(places.clone());
            next
        })
    }

    fn module(&mut self, mapping: &Mapping, tree: &Tree) -> Option<Loaded> {
        let mounted = self.mounted.get()?;
        let (device, inode) = (mapping.device, mapping.inode);
        let path = Path::new(OsStr::from_bytes(&mapping.path));
        let inside = path.strip_prefix(&mounted.path);
        let (path, size, mtime_ns) = if device == mounted.device {
            let node = tree.node(inode)?;
            let path = mounted.folder.join(inside.ok()?);
            (path, tree.contents(inode)?.len(), node.mtime_ns)
        } else if inside.is_err() {
            let metadata = path.metadata().ok().filter(|metadata| metadata.ino() == inode)?;
            let mtime_ns = i128::from(metadata.mtime()) * 1_000_000_000 + i128::from(metadata.mtime_nsec());
            (path.to_owned(), metadata.len(), mtime_ns)
        } else {
            return None;
        };
        let path = path.into_os_string().into_vec();
        let identity = Identity { device, inode, path, size, mtime_ns };
        if let Some(known) = self.modules.get(&identity) {
            return known.clone();
        }
        let image = match tree.contents(inode).filter(|_| device == mounted.device) {
            // Nobody's machine code is larger, and a file with a hole may be of any size.
            Some(_) if size > MODULE_BYTES_MAX => None,
            Some(contents) => contents.read(0, usize::try_from(size).ok()?).ok().map(Image::Bytes),
            None => File::open(Path::new(OsStr::from_bytes(&identity.path))).ok().map(Image::File),
        };
        let loaded = image.and_then(Code::new).map(|code| {
            let (path, build_id) = (identity.path.clone(), code.build_id.clone());
            self.recorder.add_module(Module { path, build_id, size, mtime_ns });
            self.module_count += 1;
            Loaded { number: self.module_count - 1, code: Arc::new(code) }
        });
        self.modules.insert(identity, loaded.clone());
        loaded
    }
}

impl Thread {
    /// Reads the mappings, once for a request.
    fn refresh(&mut self) -> Option<()> {
        if !self.is_fresh {
            self.mappings = Mappings::of(self.id)?;
            self.loaded.clear();
            self.is_fresh = true;
        }
        Some(())
    }
}

/// A thread that waits, its registers and its stack.
fn begin(id: u32, known: Option<Thread>) -> Option<(Thread, Registers, Memory)> {
    known.and_then(begin_known).or_else(|| begin_new(id))
}

/// Of a thread that has been seen before and runs the same program.
fn begin_known(mut thread: Thread) -> Option<(Thread, Registers, Memory)> {
    let registers = thread.watch.registers()?;
    thread.is_fresh = false;
    if thread.mappings.data(registers.sp).is_none() {
        thread.refresh()?;
    }
    let mut memory = Memory::new(thread.id, registers.sp, thread.mappings.data(registers.sp)?.end);
    let (address, random) = thread.random;
    let mut bytes = [0; 16];
    memory.begin((address, &mut bytes))?;
    (bytes == random).then_some((thread, registers, memory))
}

fn begin_new(id: u32) -> Option<(Thread, Registers, Memory)> {
    let watch = Watch::new(id)?;
    let registers = watch.registers()?;
    let (address, mappings) = (random_bytes(id)?, Mappings::of(id)?);
    let mut memory = Memory::new(id, registers.sp, mappings.data(registers.sp)?.end);
    let mut random = [0; 16];
    memory.begin((address, &mut random))?;
    let (random, loaded) = ((address, random), HashMap::new());
    let (known, stacks) = (HashMap::new(), HashMap::new());
    let thread = Thread { id, watch, random, mappings, loaded, is_fresh: true, known, stacks };
    Some((thread, registers, memory))
}

/// The registers of the function that called another one.
struct Outer {
    sp: u64,
    pc: u64,
    frame_pointer: Option<u64>,
}

impl Rule {
    fn needs_frame_pointer(&self) -> bool {
        let slots = [Some(self.cfa.0), self.return_address, self.frame_pointer];
        slots.into_iter().flatten().any(|slot| slot.base == Base::Bp)
    }
}

/// Goes from a function to its caller, if that is certain.
fn leave(rule: &Rule, sp: u64, frame_pointer: Option<u64>, memory: &mut Memory) -> Option<Outer> {
    let address = |slot: Slot, cfa: u64| {
        let base = match slot.base {
            Base::Sp => sp,
            Base::Bp => frame_pointer?,
            Base::Cfa => cfa,
        };
        base.checked_add_signed(slot.offset)
    };
    let (slot, is_stored) = rule.cfa;
    let mut cfa = address(slot, 0)?;
    if is_stored {
        cfa = memory.word(cfa)?;
    }
    let pc = memory.word(address(rule.return_address?, cfa)?)?;
    let frame_pointer = match rule.frame_pointer {
        Some(slot) => Some(memory.word(address(slot, cfa)?)?),
        None => frame_pointer,
    };
    (cfa > sp && pc != 0).then_some(Outer { sp: cfa, pc, frame_pointer })
}
