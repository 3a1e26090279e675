//! Connecting to a server, and the terms that the two agree on before the first request.

use super::channel::Channel;
use super::dial;
use super::protocol::{
    GREETING_MAGIC, OPTION_MAGIC, OPTION_REPLY_MAGIC, export, greeting, info, option, option_reply, u16_at,
    u32_at, u64_at, violation,
};
use super::{NbdOptions, tls};
use crate::location::{NbdAddress, NbdLocation};
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use syncline_device::BLOCK_BYTES;

/// The longest reply to an option that is read: room for a text of 4096 bytes and more.
const REPLY_MAX_BYTES: u32 = 64 << 10;
/// The most replies to one option; a server that sends more never ends.
const REPLIES_MAX: u32 = 256;
/// The largest payload for a server that names no limit of its own.
const PAYLOAD_MAX_BYTES: u32 = 32 << 20;

/// An export, as the server describes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Export {
    /// Rounded down to whole blocks.
    pub(super) size_bytes: u64,
    pub(super) flags: u16,
    /// The largest request, a multiple of 4096.
    pub(super) max_bytes: u32,
    pub(super) min_block_bytes: u32,
    pub(super) structured: bool,
}

impl Export {
    pub(super) fn offers(&self, feature: u16) -> bool {
        self.flags & feature == feature
    }

    /// Why this export can't be used, if so.
    pub(super) fn refusal(&self, read_only: bool, at_least_bytes: u64) -> Option<String> {
        if self.min_block_bytes > BLOCK_BYTES as u32 {
            return Some(format!(
                "its smallest block has {} bytes, and Syncline writes blocks of 4096: export it with smaller ones",
                self.min_block_bytes
            ));
        }
        if !read_only && self.offers(export::READ_ONLY) {
            return Some("it is exported read-only: export it for writing, or use '-o ro'".to_owned());
        }
        if !read_only && !self.offers(export::FLUSH) {
            return Some(
                "the server offers no flush, so nothing on it would ever be durable: use a server or a backend that does"
                    .to_owned(),
            );
        }
        if self.size_bytes < at_least_bytes {
            let size_bytes = self.size_bytes;
            return Some(format!(
                "it has {size_bytes} bytes, and {at_least_bytes} are needed: enlarge it on the server"
            ));
        }
        None
    }
}

/// Connects and agrees on everything. Connecting may take `limit`, and then the rest. The channel
/// keeps its deadline. With `peer`, it is that address which must answer: behind each of a name there
/// may be another server.
pub(super) fn connect(
    location: &NbdLocation,
    options: &NbdOptions,
    limit: Duration,
    peer: Option<SocketAddr>,
) -> io::Result<(Channel, Export)> {
    let mut handshake = Handshake::begin(location, options, limit, peer)?;
    let structured = handshake.structured_replies()?;
    let export = handshake.export(option::GO, &location.export, structured)?;
    Ok((handshake.channel, export))
}

/// Asks for the size of the export as it is now, over a connection that is used for nothing else.
pub(super) fn ask_size(
    location: &NbdLocation,
    options: &NbdOptions,
    limit: Duration,
    peer: Option<SocketAddr>,
) -> io::Result<u64> {
    let mut handshake = Handshake::begin(location, options, limit, peer)?;
    let export = handshake.export(option::INFO, &location.export, false)?;
    // The answer to this is of no interest.
    let _ = handshake.ask(option::ABORT, &[]);
    handshake.channel.say_end();
    Ok(export.size_bytes)
}

struct Handshake {
    channel: Channel,
}

/// A reply to an option.
struct OptionReply {
    kind: u32,
    data: Vec<u8>,
}

impl Handshake {
    /// Connects, and starts TLS where the location wants it.
    fn begin(
        location: &NbdLocation,
        options: &NbdOptions,
        limit: Duration,
        peer: Option<SocketAddr>,
    ) -> io::Result<Self> {
        let channel = match &location.address {
            NbdAddress::Unix(path) => Channel::unix(dial::unix(path, limit)?),
            NbdAddress::Tcp(host, port) => Channel::tcp(dial::tcp(host, *port, limit, peer)?, options)?,
        };
        channel.set_deadline(Some(Instant::now() + limit));
        let mut handshake = Self { channel };
        handshake.greet()?;
        if let Some(files) = &location.tls {
            // Nothing was read beyond the server's reply, so nothing that came unencrypted can be
            // taken for a message inside TLS.
            handshake.ask(option::STARTTLS, &[])?;
            let reply = handshake.reply(option::STARTTLS)?;
            if reply.kind != option_reply::ACK {
                return Err(refused(&reply, "TLS"));
            }
            let config = tls::config(files)?;
            handshake.channel = handshake.channel.start_tls(config, tls::server_name(&location.address)?)?;
        }
        Ok(handshake)
    }

    /// Agrees on structured replies, if the server has them.
    fn structured_replies(&mut self) -> io::Result<bool> {
        self.ask(option::STRUCTURED_REPLY, &[])?;
        match self.reply(option::STRUCTURED_REPLY)? {
            OptionReply { kind: option_reply::ACK, .. } => Ok(true),
            reply @ OptionReply { kind: option_reply::TLS_REQUIRED | option_reply::SHUTDOWN, .. } => {
                Err(refused(&reply, "a client without TLS"))
            }
            OptionReply { kind, .. } if kind & option_reply::ERROR_BIT != 0 => Ok(false),
            OptionReply { kind, .. } => Err(violation(format!("an answer to an option is of kind {kind}"))),
        }
    }

    /// Reads the greeting and answers it.
    fn greet(&mut self) -> io::Result<()> {
        let greeting = self.read(18)?;
        if u64_at(&greeting, 0) != GREETING_MAGIC {
            return Err(violation("no NBD server listens there"));
        }
        let flags = u16_at(&greeting, 16);
        if u64_at(&greeting, 8) != OPTION_MAGIC || flags & greeting::FIXED_NEWSTYLE == 0 {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "the server speaks an NBD that is too old (no fixed newstyle): use a newer server",
            ));
        }
        let answer = u32::from(greeting::FIXED_NEWSTYLE | flags & greeting::NO_ZEROES);
        self.write(&[&answer.to_be_bytes()])
    }

    /// Asks for the export, by GO or INFO; after GO, requests can be sent.
    fn export(&mut self, option: u32, name: &str, structured: bool) -> io::Result<Export> {
        let mut data = (name.len() as u32).to_be_bytes().to_vec();
        data.extend(name.as_bytes());
        data.extend(1u16.to_be_bytes());
        data.extend(info::BLOCK_SIZE.to_be_bytes());
        self.ask(option, &data)?;
        let (mut size_and_flags, mut blocks) = (None, (1, PAYLOAD_MAX_BYTES));
        for _ in 0..REPLIES_MAX {
            let reply = self.reply(option)?;
            match reply.kind {
                option_reply::ACK => {
                    let found = size_and_flags.ok_or_else(|| violation("an export without a size"))?;
                    return export_of(found, blocks, structured);
                }
                option_reply::INFO if reply.data.len() >= 2 => match u16_at(&reply.data, 0) {
                    info::EXPORT if reply.data.len() == 12 => {
                        size_and_flags = Some((u64_at(&reply.data, 2), u16_at(&reply.data, 10)));
                    }
                    info::BLOCK_SIZE if reply.data.len() == 14 => {
                        blocks = (u32_at(&reply.data, 2), u32_at(&reply.data, 10));
                    }
                    kind @ (info::EXPORT | info::BLOCK_SIZE) => {
                        return Err(violation(format!("information {kind} has {} bytes", reply.data.len())));
                    }
                    _ => {}
                },
                kind if kind & option_reply::ERROR_BIT != 0 => {
                    return Err(refused(&reply, &format!("the export '{}'", name.escape_debug())));
                }
                kind => return Err(violation(format!("an answer to an option is of kind {kind}"))),
            }
        }
        Err(violation("its answer to an option has no end"))
    }

    fn ask(&mut self, option: u32, data: &[u8]) -> io::Result<()> {
        let len = (data.len() as u32).to_be_bytes();
        self.write(&[&OPTION_MAGIC.to_be_bytes(), &option.to_be_bytes(), &len, data])
    }

    fn reply(&mut self, option: u32) -> io::Result<OptionReply> {
        let header = self.read(20)?;
        let (kind, len_bytes) = (u32_at(&header, 12), u32_at(&header, 16));
        if u64_at(&header, 0) != OPTION_REPLY_MAGIC || u32_at(&header, 8) != option {
            return Err(violation("an answer to another option than the one asked for"));
        }
        if len_bytes > REPLY_MAX_BYTES {
            return Err(violation(format!("an answer to an option has {len_bytes} bytes")));
        }
        Ok(OptionReply { kind, data: self.read(len_bytes as usize)? })
    }

    /// Reads exactly this much and not a byte more.
    fn read(&mut self, len_bytes: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; len_bytes];
        let mut filled = 0;
        while filled < len_bytes {
            match self.channel.receive(&mut bytes[filled..])? {
                0 => {
                    return Err(io::Error::new(
                        io::ErrorKind::UnexpectedEof,
                        "the server ended the connection before both had agreed on the export; see its log",
                    ));
                }
                read => filled += read,
            }
        }
        Ok(bytes)
    }

    fn write(&mut self, parts: &[&[u8]]) -> io::Result<()> {
        let mut slices: Vec<IoSlice<'_>> = parts.iter().map(|part| IoSlice::new(part)).collect();
        self.channel.send_all(&mut slices)
    }
}

/// Checks a server's description of its export.
fn export_of((size, flags): (u64, u16), (min, max): (u32, u32), structured: bool) -> io::Result<Export> {
    let block = BLOCK_BYTES as u32;
    if flags & export::HAS_FLAGS == 0 || !min.is_power_of_two() || max < min {
        return Err(violation(format!("an export with flags {flags:#x} and blocks of {min} to {max} bytes")));
    }
    // A size beyond this overflows offsets; no server has it.
    if size > i64::MAX as u64 {
        return Err(violation(format!("an export of {size} bytes")));
    }
    let max_bytes = max.min(PAYLOAD_MAX_BYTES) / block * block;
    if max_bytes == 0 {
        let text =
            format!("the server takes no more than {max} bytes at once, and Syncline writes blocks of 4096");
        return Err(io::Error::new(io::ErrorKind::Unsupported, text));
    }
    let size_bytes = size - size % u64::from(block);
    Ok(Export { size_bytes, flags, max_bytes, min_block_bytes: min, structured })
}

/// The error for an option that the server refused.
fn refused(reply: &OptionReply, what: &str) -> io::Error {
    let why = match reply.kind {
        option_reply::UNSUPPORTED if what == "TLS" => "it has none: use nbd:// if the network can be trusted",
        option_reply::UNSUPPORTED => "it does not know the option: use a newer server",
        option_reply::POLICY => "it is not allowed here",
        option_reply::PLATFORM => "the server can't",
        option_reply::TLS_REQUIRED => "it must be encrypted: use nbds://",
        option_reply::UNKNOWN => "there is none of that name",
        option_reply::SHUTDOWN => "the server is shutting down",
        _ => "no reason is given",
    };
    let text = String::from_utf8_lossy(&reply.data);
    let said = if text.is_empty() { String::new() } else { format!(" ({})", text.trim().escape_debug()) };
    let kind = match reply.kind {
        option_reply::UNKNOWN => io::ErrorKind::NotFound,
        option_reply::POLICY | option_reply::TLS_REQUIRED => io::ErrorKind::PermissionDenied,
        _ => io::ErrorKind::Unsupported,
    };
    io::Error::new(kind, format!("the server refused {what}: {why}{said}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn export(flags: u16) -> Export {
        Export {
            size_bytes: 1 << 20,
            flags: flags | export::HAS_FLAGS,
            max_bytes: 1 << 20,
            min_block_bytes: 512,
            structured: true,
        }
    }

    #[test]
    fn what_an_export_lacks_is_named() {
        let good = export(export::FLUSH);
        assert_eq!(good.refusal(false, 1 << 20), None);
        for (bad, read_only, at_least, part) in [
            (Export { min_block_bytes: 8192, ..good }, true, 0, "blocks of 4096"),
            (export(export::FLUSH | export::READ_ONLY), false, 0, "read-only"),
            (export(0), false, 0, "no flush"),
            (good, true, (1 << 20) + 1, "enlarge it"),
        ] {
            let refusal = bad.refusal(read_only, at_least).unwrap();
            assert!(refusal.contains(part) && !refusal.contains('\n'), "{refusal}");
        }
        assert_eq!(export(export::READ_ONLY).refusal(true, 0), None);
    }

    #[test]
    fn sizes_and_limits_are_rounded_to_blocks_or_refused() {
        let flags = export::HAS_FLAGS;
        let found = export_of((10_000, flags), (1, 10_000), false).unwrap();
        assert_eq!((found.size_bytes, found.max_bytes), (8192, 8192));
        assert_eq!(export_of((0, flags), (1, u32::MAX), false).unwrap().max_bytes, PAYLOAD_MAX_BYTES);
        assert!(export_of((4096, 0), (1, 4096), false).is_err());
        assert!(export_of((4096, flags), (3, 4096), false).is_err());
        assert!(export_of((4096, flags), (1, 1024), false).is_err());
        assert!(export_of((u64::MAX, flags), (1, 4096), false).is_err());
    }
}
