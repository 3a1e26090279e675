//! What the kernel tells of a thread that waits in a system call: its registers and its memory.

use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::Pid;
use std::fs::File;
use std::io::{IoSliceMut, Read};
use std::os::unix::fs::FileExt;

/// How often the registers are asked for. A request can arrive before its thread sleeps.
const TRIES: usize = 1000;
/// The key of the address of random bytes in the auxiliary vector.
const AT_RANDOM: u64 = 25;
/// Bytes that most files have in which the kernel tells something.
const TOLD_BYTES: usize = 16 << 10;
/// Bytes of a stack that are read at once.
const CHUNK_BYTES: u64 = 4096;
/// The most bytes of a stack that are read.
const STACK_BYTES_MAX: u64 = 1 << 20;

/// The registers that the kernel shows.
#[derive(Clone, Copy, Debug)]
pub struct Registers {
    /// Stack pointer.
    pub sp: u64,
    /// The instruction behind the system call.
    pub pc: u64,
}

/// Shows the registers of a thread while it is in a system call.
pub struct Watch(File);

impl Watch {
    /// Of this thread.
    pub fn new(thread: u32) -> Option<Self> {
        File::open(format!("/proc/{thread}/syscall")).ok().map(Self)
    }

    /// Its registers; none if it has ended.
    pub fn registers(&self) -> Option<Registers> {
        let mut bytes = [0; 256];
        for _ in 0..TRIES {
            let len = self.0.read_at(&mut bytes, 0).ok()?;
            let text = std::str::from_utf8(&bytes[..len]).ok()?;
            if text.starts_with("running") {
                std::thread::yield_now();
                continue;
            }
            // Number, six arguments, stack pointer, instruction; outside of a system call -1 and the last two.
            let mut fields = text.split_ascii_whitespace().skip(7);
            let mut next = || u64::from_str_radix(fields.next()?.strip_prefix("0x")?, 16).ok();
            return Some(Registers { sp: next()?, pc: next()? });
        }
        None
    }
}

/// Memory of another process from one address to the next.
pub struct Memory {
    thread: u32,
    from: u64,
    bytes: Vec<u8>,
    /// The first address behind it that must not be read.
    end: u64,
}

impl Memory {
    /// The stack above `sp`, in a mapping that ends at `end`.
    pub fn new(thread: u32, sp: u64, end: u64) -> Self {
        Self { thread, from: sp, bytes: Vec::new(), end: end.min(sp.saturating_add(STACK_BYTES_MAX)) }
    }

    /// Reads the beginning, and whatever else is named.
    pub fn begin(&mut self, other: (u64, &mut [u8])) -> Option<()> {
        self.read(self.from.checked_add(CHUNK_BYTES)?, Some(other))
    }

    /// The word at an address.
    pub fn word(&mut self, address: u64) -> Option<u64> {
        let after = address.checked_add(8)?;
        let at = usize::try_from(address.checked_sub(self.from)?).ok()?;
        if at + 8 > self.bytes.len() {
            self.read(after.checked_add(CHUNK_BYTES)?, None)?;
        }
        let word = self.bytes.get(at..at + 8)?;
        word.try_into().ok().map(u64::from_le_bytes)
    }

    /// Reads on up to this address.
    fn read(&mut self, to: u64, other: Option<(u64, &mut [u8])>) -> Option<()> {
        let have = self.bytes.len();
        let from = self.from + have as u64;
        let len = usize::try_from(to.min(self.end).checked_sub(from)?).ok().filter(|len| *len > 0)?;
        self.bytes.resize(have + len, 0);
        let mut remote = vec![RemoteIoVec { base: from as usize, len }];
        let mut local = Vec::with_capacity(2);
        if let Some((address, bytes)) = other {
            remote.insert(0, RemoteIoVec { base: address as usize, len: bytes.len() });
            local.push(IoSliceMut::new(bytes));
        }
        local.push(IoSliceMut::new(&mut self.bytes[have..]));
        let wanted: usize = remote.iter().map(|piece| piece.len).sum();
        let pid = Pid::from_raw(i32::try_from(self.thread).ok()?);
        let read = process_vm_readv(pid, &mut local, &remote);
        (read == Ok(wanted)).then_some(())
    }
}

/// Reads a file of the thread in /proc.
fn told(thread: u32, name: &str) -> Option<Vec<u8>> {
    // Much at once: each read has its price, and the size is not known before.
    let mut bytes = Vec::with_capacity(TOLD_BYTES);
    File::open(format!("/proc/{thread}/{name}")).and_then(|mut file| file.read_to_end(&mut bytes)).ok()?;
    Some(bytes)
}

/// The address of the 16 random bytes that the kernel gives a program when it starts.
pub fn random_bytes(thread: u32) -> Option<u64> {
    let bytes = told(thread, "auxv")?;
    let words = bytes.chunks_exact(8).map(|word| word.try_into().map_or(0, u64::from_le_bytes));
    let words: Vec<u64> = words.collect();
    words.chunks_exact(2).find(|pair| pair[0] == AT_RANDOM).map(|pair| pair[1])
}

/// A part of the memory of a process.
#[derive(Clone, Debug)]
pub struct Mapping {
    /// Its first address.
    pub start: u64,
    /// The first address behind it.
    pub end: u64,
    /// Offset in the file.
    pub offset: u64,
    /// Device of the file.
    pub device: (u32, u32),
    /// Inode of the file; 0 if there is none.
    pub inode: u64,
    /// Path of the file.
    pub path: Vec<u8>,
}

/// The mappings of a process.
#[derive(Debug, Default)]
pub struct Mappings {
    /// Executable ones of files.
    code: Vec<Mapping>,
    /// Writable mappings without a file, such as stacks.
    data: Vec<Mapping>,
}

impl Mappings {
    /// The mappings as they are now.
    pub fn of(thread: u32) -> Option<Self> {
        let text = told(thread, "maps")?;
        let mut found = Self::default();
        for line in text.split(|byte| *byte == b'\n') {
            let Some((mapping, permissions)) = mapping(line) else { continue };
            match mapping.inode {
                0 if permissions.starts_with(b"rw") => found.data.push(mapping),
                inode if inode != 0 && permissions.get(2) == Some(&b'x') => found.code.push(mapping),
                _ => {}
            }
        }
        Some(found)
    }

    /// The executable mapping of a file that has this address.
    pub fn code(&self, address: u64) -> Option<&Mapping> {
        containing(&self.code, address)
    }

    /// The mapping without a file that has this address.
    pub fn data(&self, address: u64) -> Option<&Mapping> {
        containing(&self.data, address)
    }
}

fn containing(mappings: &[Mapping], address: u64) -> Option<&Mapping> {
    let after = mappings.partition_point(|mapping| mapping.start <= address);
    mappings[..after].last().filter(|mapping| address < mapping.end)
}

/// A line such as `7f0-7f8 r-xp 00001000 fd:01 1234    /usr/lib/libc.so.6`, and its permissions.
fn mapping(line: &[u8]) -> Option<(Mapping, &[u8])> {
    let mut rest = line;
    let mut field = || {
        let end = rest.iter().position(|byte| *byte == b' ').unwrap_or(rest.len());
        let (field, after) = rest.split_at(end);
        rest = after.get(1..).unwrap_or_default();
        field
    };
    let (range, permissions, offset, device, inode) = (field(), field(), field(), field(), field());
    let hex = |text: &str| u64::from_str_radix(text, 16).ok();
    let (start, end) = std::str::from_utf8(range).ok()?.split_once('-')?;
    let (major, minor) = std::str::from_utf8(device).ok()?.split_once(':')?;
    let mapping = Mapping {
        start: hex(start)?,
        end: hex(end)?,
        offset: hex(std::str::from_utf8(offset).ok()?)?,
        device: (hex(major)? as u32, hex(minor)? as u32),
        inode: std::str::from_utf8(inode).ok()?.parse().ok()?,
        path: rest.trim_ascii_start().to_vec(),
    };
    Some((mapping, permissions))
}
