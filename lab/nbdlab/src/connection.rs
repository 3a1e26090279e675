//! One connection of the laboratory's server.

use crate::socket::Socket;
use crate::{Handshake, Hostile, Inner, Spec, command};
use rand::Rng;
use rand::seq::SliceRandom;
use std::io;
use std::time::Duration;

const SIMPLE: u32 = 0x6744_6698;
const STRUCTURED: u32 = 0x668e_33ef;
const OPTION: u64 = 0x4948_4156_454f_5054;
const OPTION_REPLY: u64 = 0x0003_e889_0455_65a9;

/// A stream that the faults may cut at any byte.
struct Stream<'a> {
    inner: &'a Inner,
    socket: &'a Socket,
}

impl Stream<'_> {
    /// Takes bytes from a budget; cuts the connection when it is used up.
    fn allow(&self, wanted: usize, sending: bool) -> io::Result<usize> {
        let mut faults = self.inner.faults.lock().unwrap();
        let budget = if sending { &mut faults.cut_sending } else { &mut faults.cut_receiving };
        let Some(left) = budget else { return Ok(wanted) };
        let allowed = wanted.min(*left);
        *left -= allowed;
        if allowed == 0 {
            *budget = None;
            self.socket.end();
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        Ok(allowed)
    }

    fn send(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let allowed = self.allow(bytes.len(), true)?;
            self.socket.send(&bytes[..allowed])?;
            bytes = &bytes[allowed..];
        }
        Ok(())
    }

    fn receive(&self, len: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        let mut filled = 0;
        while filled < len {
            let allowed = self.allow(len - filled, false)?;
            self.socket.receive(&mut bytes[filled..filled + allowed])?;
            filled += allowed;
        }
        Ok(bytes)
    }
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes(bytes[at..at + 2].try_into().unwrap())
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap())
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(bytes[at..at + 8].try_into().unwrap())
}

pub(crate) fn serve(inner: &Inner, socket: &Socket, incarnation: u64) -> io::Result<()> {
    let stream = Stream { inner, socket };
    let spec = *inner.spec.lock().unwrap();
    let structured = shake_hands(&stream, spec)?;
    Connection { stream, structured, incarnation }.serve()
}

fn shake_hands(stream: &Stream<'_>, spec: Spec) -> io::Result<bool> {
    let fault = stream.inner.faults.lock().unwrap().handshake;
    match fault {
        Some(Handshake::NotNbd) => stream.send(b"SSH-2.0-OpenSSH_9.9\r\n")?,
        Some(Handshake::Silent) => std::thread::sleep(Duration::from_secs(30)),
        Some(Handshake::CutShort) => {
            stream.send(b"NBD")?;
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        _ => {}
    }
    stream.send(b"NBDMAGIC")?;
    stream.send(&OPTION.to_be_bytes())?;
    stream.send(&(if fault == Some(Handshake::OldStyle) { 0u16 } else { 3 }).to_be_bytes())?;
    stream.receive(4)?;
    let mut structured = false;
    loop {
        let header = stream.receive(16)?;
        assert_eq!(u64_at(&header, 0), OPTION);
        let (option, len) = (u32_at(&header, 8), u32_at(&header, 12));
        let data = stream.receive(len as usize)?;
        let reply = |kind: u32, data: &[u8]| {
            let mut bytes = OPTION_REPLY.to_be_bytes().to_vec();
            let option = if fault == Some(Handshake::WrongOption) { 99 } else { option };
            bytes.extend(option.to_be_bytes());
            bytes.extend(kind.to_be_bytes());
            let len = if fault == Some(Handshake::HugeReply) { u32::MAX } else { data.len() as u32 };
            bytes.extend(len.to_be_bytes());
            bytes.extend(data);
            stream.send(&bytes)
        };
        match option {
            2 => {
                reply(1, &[])?;
                return Err(io::ErrorKind::ConnectionAborted.into());
            }
            8 if spec.structured => {
                structured = true;
                reply(1, &[])?;
            }
            6 | 7 => match fault {
                Some(Handshake::UnknownExport) => reply((1 << 31) + 6, b"no such disk")?,
                Some(Handshake::TlsRequired) => reply((1 << 31) + 5, &[])?,
                _ => {
                    let name_end = 4 + u32_at(&data, 0) as usize;
                    let is_known = data[4..name_end] == *stream.inner.export().as_bytes();
                    // The name belongs to a host that has died: its export is empty.
                    let size = if is_known { spec.size } else { 0 };
                    let export = [&[0, 0][..], &size.to_be_bytes(), &(spec.flags | 1).to_be_bytes()].concat();
                    while fault == Some(Handshake::Endless) {
                        reply(3, &export)?;
                    }
                    if fault != Some(Handshake::NoSize) {
                        reply(3, &export)?;
                    }
                    if let Some((min, preferred, max)) = spec.blocks {
                        let sizes = [min, preferred, max].map(u32::to_be_bytes).concat();
                        reply(3, &[&[0, 3][..], &sizes].concat())?;
                    }
                    reply(1, &[])?;
                    if option == 7 {
                        return Ok(structured);
                    }
                }
            },
            _ => reply((1 << 31) + 1, b"unknown")?,
        }
    }
}

struct Request {
    flags: u16,
    command: u16,
    cookie: u64,
    offset: u64,
    len: u32,
    data: Vec<u8>,
}

struct Connection<'a> {
    stream: Stream<'a>,
    structured: bool,
    incarnation: u64,
}

impl Connection<'_> {
    fn serve(&self) -> io::Result<()> {
        let inner = self.stream.inner;
        loop {
            let mut requests = vec![self.request()?];
            let reorder = inner.faults.lock().unwrap().reorder;
            while reorder && requests.len() < 8 && self.more_is_there() {
                requests.push(self.request()?);
            }
            requests.shuffle(&mut inner.store.lock().unwrap().rng);
            for request in requests {
                inner.log.lock().unwrap().push((request.command, request.flags));
                if request.command == command::DISC {
                    return Ok(());
                }
                if inner.crashes_now(request.command) {
                    return Ok(());
                }
                let delay = inner.faults.lock().unwrap().delay;
                std::thread::sleep(delay);
                let waits = |inner: &Inner| {
                    let faults = inner.faults.lock().unwrap();
                    faults.stalled || faults.stalled_command == Some(request.command)
                };
                while waits(inner) {
                    std::thread::sleep(Duration::from_millis(5));
                    if inner.stop.load(std::sync::atomic::Ordering::SeqCst) {
                        return Ok(());
                    }
                }
                self.carry_out(request)?;
            }
        }
    }

    fn more_is_there(&self) -> bool {
        std::thread::sleep(Duration::from_micros(200));
        self.stream.socket.is_readable()
    }

    fn request(&self) -> io::Result<Request> {
        let header = self.stream.receive(28)?;
        assert_eq!(u32_at(&header, 0), 0x2560_9513);
        let (flags, command, len) = (u16_at(&header, 4), u16_at(&header, 6), u32_at(&header, 24));
        let (cookie, offset) = (u64_at(&header, 8), u64_at(&header, 16));
        let data = if command == command::WRITE { self.stream.receive(len as usize)? } else { Vec::new() };
        Ok(Request { flags, command, cookie, offset, len, data })
    }

    fn carry_out(&self, request: Request) -> io::Result<()> {
        let inner = self.stream.inner;
        let spec = *inner.spec.lock().unwrap();
        let max = spec.blocks.map_or(32 << 20, |blocks| blocks.2);
        assert!(request.len <= max, "a request of {} bytes", request.len);
        let mut store = inner.store.lock().unwrap();
        if store.incarnation != self.incarnation {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        if let Some(hostile) = self.hostile(&request) {
            drop(store);
            return self.answer_badly(&request, hostile);
        }
        let mut faults = inner.faults.lock().unwrap();
        let fault = faults.errors.iter().position(|(kind, _)| *kind == request.command);
        let error = fault.map(|index| faults.errors.remove(index).1);
        drop(faults);
        let fua = request.flags & 1 != 0;
        let read = match (error, request.command) {
            (Some(error), kind) => {
                if kind == command::FLUSH {
                    store.fail_flush();
                }
                drop(store);
                return self.answer_error(&request, error);
            }
            (None, command::READ) => Some(store.read(request.offset, request.len as usize)),
            (None, kind) => {
                let write = match kind {
                    command::WRITE => Some(request.data.clone()),
                    command::TRIM => Some(vec![0xdd; request.len as usize]),
                    command::WRITE_ZEROES => Some(vec![0; request.len as usize]),
                    command::FLUSH => None,
                    kind => panic!("a request of kind {kind}"),
                };
                match write {
                    Some(bytes) => {
                        let number = store.write(request.offset, &bytes, fua);
                        // Another connection's flush may come in between, and does not cover it.
                        drop(store);
                        std::thread::yield_now();
                        store = inner.store.lock().unwrap();
                        if store.incarnation != self.incarnation {
                            return Err(io::ErrorKind::ConnectionAborted.into());
                        }
                        store.reply(number);
                    }
                    None => store.flush(),
                }
                None
            }
        };
        drop(store);
        self.hold_answer(request.command);
        match read {
            Some(bytes) if self.structured => self.answer_in_parts(&request, &bytes),
            Some(bytes) => self.stream.send(&[&simple(request.cookie, 0)[..], &bytes].concat()),
            None if self.structured && request.cookie.is_multiple_of(2) => {
                self.stream.send(&chunk(request.cookie, true, 0, &[]))
            }
            None => self.stream.send(&simple(request.cookie, 0)),
        }
    }

    fn hold_answer(&self, command: u16) {
        let inner = self.stream.inner;
        if command == command::FLUSH {
            let delay = inner.faults.lock().unwrap().flush_delay;
            std::thread::sleep(delay);
        }
        while inner.faults.lock().unwrap().held_answer == Some(command) {
            std::thread::sleep(Duration::from_millis(1));
            if inner.stop.load(std::sync::atomic::Ordering::SeqCst) {
                return;
            }
        }
    }

    fn answer_error(&self, request: &Request, error: u32) -> io::Result<()> {
        if !self.structured || request.command != command::READ && request.cookie.is_multiple_of(2) {
            return self.stream.send(&simple(request.cookie, error));
        }
        let text = b"an error of the laboratory";
        let payload = [&error.to_be_bytes()[..], &(text.len() as u16).to_be_bytes(), text].concat();
        self.stream.send(&chunk(request.cookie, false, 0x8001, &payload))?;
        self.stream.send(&chunk(request.cookie, true, 0, &[]))
    }

    /// A read's data in parts, some of them as holes, in any order.
    fn answer_in_parts(&self, request: &Request, bytes: &[u8]) -> io::Result<()> {
        let mut parts = Vec::new();
        {
            let rng = &mut self.stream.inner.store.lock().unwrap().rng;
            let mut at = 0;
            while at < bytes.len() {
                let len = rng.random_range(1..=bytes.len() - at);
                let len = if rng.random_bool(0.7) { bytes.len() - at } else { len };
                let offset = (request.offset + at as u64).to_be_bytes();
                let data = &bytes[at..at + len];
                parts.push(if data.iter().all(|&byte| byte == 0) {
                    (2, [&offset[..], &(len as u32).to_be_bytes()].concat())
                } else {
                    (1, [&offset[..], data].concat())
                });
                at += len;
            }
            parts.shuffle(rng);
        }
        let ends_with_data = request.cookie.is_multiple_of(3);
        let count = parts.len();
        for (index, (kind, payload)) in parts.into_iter().enumerate() {
            let last = ends_with_data && index + 1 == count;
            self.stream.send(&chunk(request.cookie, last, kind, &payload))?;
        }
        if ends_with_data { Ok(()) } else { self.stream.send(&chunk(request.cookie, true, 0, &[])) }
    }

    fn hostile(&self, request: &Request) -> Option<Hostile> {
        let mut faults = self.stream.inner.faults.lock().unwrap();
        let (_, hostile) = faults.hostile.filter(|(kind, _)| *kind == request.command)?;
        if !faults.hostile_for_ever {
            faults.hostile = None;
        }
        Some(hostile)
    }

    fn answer_badly(&self, request: &Request, hostile: Hostile) -> io::Result<()> {
        let cookie = request.cookie;
        let data = |offset: u64, len: usize| [&offset.to_be_bytes()[..], &vec![7; len]].concat();
        let len = request.len as usize;
        let huge = |kind: u16| {
            let mut bytes = chunk(cookie, true, kind, &request.offset.to_be_bytes());
            bytes[16..20].copy_from_slice(&u32::MAX.to_be_bytes());
            bytes
        };
        let bytes = match hostile {
            Hostile::Magic => vec![0x42; 16],
            Hostile::UnknownCookie => simple(cookie + 1_000_000, 0).to_vec(),
            Hostile::HugeChunk => huge(1),
            Hostile::HugeError => huge(0x8001),
            Hostile::Overlap => {
                let first = chunk(cookie, false, 1, &data(request.offset, len));
                [first, chunk(cookie, true, 1, &data(request.offset + 100, 8))].concat()
            }
            Hostile::Missing => chunk(cookie, true, 1, &data(request.offset, len - 1)),
            Hostile::Outside => chunk(cookie, true, 1, &data(request.offset + 1, len)),
            Hostile::DataForWrite => chunk(cookie, true, 1, &data(request.offset, 8)),
            Hostile::SimpleForStructured => [&simple(cookie, 0)[..], &vec![7; len]].concat(),
            Hostile::Twice => [simple(cookie, 0), simple(cookie, 0)].concat(),
            Hostile::OtherConnection => simple(cookie ^ 1, 0).to_vec(),
            Hostile::UnknownChunk => chunk(cookie, true, 77, &[]),
            Hostile::EmptyChunk => chunk(cookie, false, 0, &[]),
            Hostile::Crumbs => {
                let order = (0..len).step_by(2).chain((1..len).step_by(2)).enumerate();
                let crumb = |(count, at): (usize, usize)| {
                    chunk(cookie, count + 1 == len, 1, &data(request.offset + at as u64, 1))
                };
                order.flat_map(crumb).collect()
            }
        };
        self.stream.send(&bytes)
    }
}

fn simple(cookie: u64, error: u32) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..4].copy_from_slice(&SIMPLE.to_be_bytes());
    bytes[4..8].copy_from_slice(&error.to_be_bytes());
    bytes[8..].copy_from_slice(&cookie.to_be_bytes());
    bytes
}

fn chunk(cookie: u64, last: bool, kind: u16, payload: &[u8]) -> Vec<u8> {
    let mut bytes = STRUCTURED.to_be_bytes().to_vec();
    bytes.extend(u16::from(last).to_be_bytes());
    bytes.extend(kind.to_be_bytes());
    bytes.extend(cookie.to_be_bytes());
    bytes.extend((payload.len() as u32).to_be_bytes());
    bytes.extend(payload);
    bytes
}
