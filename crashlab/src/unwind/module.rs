//! How to get from a function to its caller: the call frame information of a program or library.

use super::code::{CALL_BYTES_MAX, Call, PROLOGUE_BYTES_MAX, call_before, depth};
use gimli::{
    BaseAddresses, CfaRule, CieOrFde, DebugFrame, EhFrame, EndianSlice, LittleEndian, Operation,
    RegisterRule, UnwindContext, UnwindExpression, UnwindSection, UnwindTableRow, X86_64,
};
use object::read::ReadRef;
use object::{Architecture, Object, ObjectSection, ObjectSegment, ReadCache, SegmentFlags, elf};
use std::fs::File;
use std::os::unix::fs::FileExt;

/// Where the code of a module is read.
pub enum Image {
    /// In a file.
    File(File),
    /// In the recorded folder, whose files nobody can open while a request is handled.
    Bytes(Vec<u8>),
}

/// A register that call frame information counts from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Base {
    /// The stack pointer.
    Sp,
    /// The frame pointer.
    Bp,
    /// The stack pointer of the caller, once it is known.
    Cfa,
}

/// A word in a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Slot {
    /// The register that the offset is added to.
    pub base: Base,
    /// Bytes from there to the word.
    pub offset: i64,
}

/// How to leave a function.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rule {
    /// The caller's stack pointer: this address, or what is there.
    pub cfa: (Slot, bool),
    /// Where the return address is; none at the end of a stack.
    pub return_address: Option<Slot>,
    /// Where the caller's frame pointer is; none if it is still in its register.
    pub frame_pointer: Option<Slot>,
    /// The kernel has called it, for a signal.
    pub is_signal: bool,
    /// The address at which the function begins.
    pub start: u64,
    /// How far the stack pointer is below the frame pointer, where the function says so.
    pub depth: Option<u64>,
}

/// A function's range of addresses, and its place in a section.
struct Function {
    start: u64,
    end: u64,
    section: Section,
    offset: usize,
}

#[derive(Clone, Copy)]
enum Section {
    EhFrame,
    DebugFrame,
}

/// A part of the file, and its address.
struct Segment {
    offset: u64,
    bytes: u64,
    address: u64,
}

/// A program or library.
pub struct Code {
    image: Image,
    /// Its build id.
    pub build_id: Option<Vec<u8>>,
    segments: Vec<Segment>,
    /// Sorted by address.
    functions: Vec<Function>,
    eh_frame: Vec<u8>,
    debug_frame: Vec<u8>,
    bases: BaseAddresses,
}

type Slice<'a> = EndianSlice<'a, LittleEndian>;

impl Code {
    /// Reads a module; none if it is not for x86-64.
    pub fn new(image: Image) -> Option<Self> {
        match &image {
            Image::File(file) => {
                let cache = ReadCache::new(file);
                Self::parse(&object::File::parse(&cache).ok()?)
            }
            Image::Bytes(bytes) => Self::parse(&object::File::parse(&bytes[..]).ok()?),
        }
        .map(|code| Self { image, ..code })
    }

    fn parse<'a, R: ReadRef<'a>>(file: &object::File<'a, R>) -> Option<Self> {
        if file.architecture() != Architecture::X86_64 || !file.is_64() {
            return None;
        }
        let is_code =
            |flags| matches!(flags, SegmentFlags::Elf { p_flags, .. } if p_flags.0 & elf::PF_X.0 != 0);
        let segments = file.segments().filter(|segment| is_code(segment.flags()));
        let segments = segments.map(|segment| {
            let (offset, bytes) = segment.file_range();
            Segment { offset, bytes, address: segment.address() }
        });
        let bytes = |name: &str| {
            let section = file.section_by_name(name);
            let data = section.and_then(|section| section.uncompressed_data().ok());
            data.map(|data| data.into_owned()).unwrap_or_default()
        };
        let address = |name: &str| file.section_by_name(name).map_or(0, |section| section.address());
        let bases = BaseAddresses::default()
            .set_eh_frame(address(".eh_frame"))
            .set_text(address(".text"))
            .set_got(address(".got"));
        let mut code = Self {
            image: Image::Bytes(Vec::new()),
            build_id: file.build_id().ok().flatten().map(<[u8]>::to_vec),
            segments: segments.collect(),
            functions: Vec::new(),
            eh_frame: bytes(".eh_frame"),
            debug_frame: bytes(".debug_frame"),
            bases,
        };
        let mut functions = functions(&code.eh(), &code.bases, Section::EhFrame);
        functions.extend(self::functions(&code.debug(), &code.bases, Section::DebugFrame));
        functions.sort_by_key(|function| function.start);
        code.functions = functions;
        Some(code)
    }

    fn eh(&self) -> EhFrame<Slice<'_>> {
        EhFrame::new(&self.eh_frame, LittleEndian)
    }

    fn debug(&self) -> DebugFrame<Slice<'_>> {
        let mut section = DebugFrame::new(&self.debug_frame, LittleEndian);
        section.set_address_size(8);
        section
    }

    /// The address that the module itself gives the byte at this offset of the file.
    pub fn address(&self, offset: u64) -> Option<u64> {
        let inside =
            |segment: &&Segment| offset.checked_sub(segment.offset).is_some_and(|at| at < segment.bytes);
        self.segments.iter().find(inside).map(|segment| offset - segment.offset + segment.address)
    }

    /// The call instruction that ends at this offset of the file.
    pub fn call_before(&self, offset: u64) -> Option<Call> {
        call_before(&self.bytes(offset.checked_sub(CALL_BYTES_MAX as u64)?, CALL_BYTES_MAX))
    }

    fn bytes(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        let read = match &self.image {
            Image::File(file) => file.read_at(&mut bytes, offset).unwrap_or(0),
            Image::Bytes(image) => {
                let from = usize::try_from(offset).ok().and_then(|offset| image.get(offset..));
                let from = from.unwrap_or_default();
                let read = from.len().min(len);
                bytes[..read].copy_from_slice(&from[..read]);
                read
            }
        };
        bytes.truncate(read);
        bytes
    }

    /// How to leave the function at this address.
    pub fn rule(&self, address: u64) -> Option<Rule> {
        let after = self.functions.partition_point(|function| function.start <= address);
        let function = self.functions[..after].last().filter(|function| address < function.end)?;
        let mut rule = match function.section {
            Section::EhFrame => rule(&self.eh(), &self.bases, function, address),
            Section::DebugFrame => rule(&self.debug(), &self.bases, function, address),
        }?;
        if rule.cfa == (Slot { base: Base::Bp, offset: 16 }, false) {
            let inside = |segment: &&Segment| {
                rule.start.checked_sub(segment.address).is_some_and(|at| at < segment.bytes)
            };
            let segment = self.segments.iter().find(inside)?;
            rule.depth =
                depth(&self.bytes(rule.start - segment.address + segment.offset, PROLOGUE_BYTES_MAX));
        }
        Some(rule)
    }
}

/// The functions of a section, but those that the linker removed.
fn functions<'a, S>(section: &S, bases: &BaseAddresses, kind: Section) -> Vec<Function>
where
    S: UnwindSection<Slice<'a>>,
{
    let mut found = Vec::new();
    let mut entries = section.entries(bases);
    while let Ok(Some(entry)) = entries.next() {
        let CieOrFde::Fde(partial) = entry else { continue };
        let Ok(entry) = partial.parse(S::cie_from_offset) else { continue };
        let (start, offset) = (entry.initial_address(), entry.offset());
        if let Some(end) = start.checked_add(entry.len()).filter(|_| start != 0) {
            found.push(Function { start, end, section: kind, offset });
        }
    }
    found
}

fn rule<'a, S>(section: &S, bases: &BaseAddresses, function: &Function, address: u64) -> Option<Rule>
where
    S: UnwindSection<Slice<'a>>,
    S::Offset: From<usize>,
{
    let entry = section.fde_from_offset(bases, function.offset.into(), S::cie_from_offset).ok()?;
    let mut context = UnwindContext::new();
    let row = entry.unwind_info_for_address(section, bases, &mut context, address).ok()?;
    let encoding = entry.cie().encoding();
    let slot = |expression: &UnwindExpression<usize>| {
        let mut operations = expression.get(section).ok()?.operations(encoding);
        let first = operations.next().ok()??;
        let second = operations.next().ok()?;
        let Operation::RegisterOffset { register, offset, .. } = first else { return None };
        let is_deref = match second {
            None => false,
            Some(Operation::Deref { space: false, size: 8, .. }) => operations.next().ok()?.is_none(),
            Some(_) => return None,
        };
        Some((Slot { base: base(register)?, offset }, is_deref))
    };
    let cfa = match row.cfa() {
        CfaRule::RegisterAndOffset { register, offset } => {
            (Slot { base: base(*register)?, offset: *offset }, false)
        }
        CfaRule::Expression(expression) => slot(expression)?,
    };
    let saved = |register| saved(row, register, slot);
    // Where nothing is said of it, as in the last function of a stack.
    let return_address = match row.register(X86_64::RA) {
        None | Some(RegisterRule::Undefined) => None,
        _ => Some(saved(X86_64::RA)??),
    };
    let frame_pointer = saved(X86_64::RBP)?;
    let (is_signal, start) = (entry.is_signal_trampoline(), function.start);
    Some(Rule { cfa, return_address, frame_pointer, is_signal, start, depth: None })
}

/// Where a register is saved, if it is; none if that is not simple.
fn saved(
    row: &UnwindTableRow<usize>,
    register: gimli::Register,
    slot: impl Fn(&UnwindExpression<usize>) -> Option<(Slot, bool)>,
) -> Option<Option<Slot>> {
    match row.register(register) {
        None | Some(RegisterRule::SameValue) => Some(None),
        Some(RegisterRule::Offset(offset)) => Some(Some(Slot { base: Base::Cfa, offset })),
        Some(RegisterRule::Expression(expression)) => match slot(&expression)? {
            (slot, false) => Some(Some(slot)),
            _ => None,
        },
        _ => None,
    }
}

fn base(register: gimli::Register) -> Option<Base> {
    match register {
        X86_64::RSP => Some(Base::Sp),
        X86_64::RBP => Some(Base::Bp),
        _ => None,
    }
}
