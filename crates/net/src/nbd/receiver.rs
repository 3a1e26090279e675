//! The receiving thread of a connection: replies, and the data of reads straight into their
//! buffers.

use super::channel::Incoming;
use super::link::Link;
use super::protocol::{Content, Reply, read_reply, told};
use super::shared::Shared;
use super::wires::Span;
use std::io::{self, BufReader, Read};

/// Receives until the connection ends; returns why it did.
pub(super) fn serve(shared: &Shared, link: &Link, index: usize, mut input: BufReader<Incoming>) -> io::Error {
    loop {
        match receive(shared, link, index, &mut input) {
            Ok(()) => link.hear(),
            Err(error) => return told(error),
        }
    }
}

fn receive(shared: &Shared, link: &Link, index: usize, input: &mut BufReader<Incoming>) -> io::Result<()> {
    match read_reply(input, link.export.structured)? {
        Reply::Simple { cookie, error: 0 } => {
            if shared.succeeded(link, index, cookie)? {
                fill(shared, link, index, cookie, Span::Whole, true, |into| input.read_exact(into))?;
            }
            Ok(())
        }
        Reply::Simple { cookie, error } => shared.replied(link, index, cookie, Some(error), true),
        Reply::Chunk { cookie, last, content } => match content {
            Content::Nothing => shared.replied(link, index, cookie, None, last),
            Content::Error(error) => shared.replied(link, index, cookie, Some(error), last),
            Content::Data { offset, len_bytes } => {
                let span = Span::Part { offset, len_bytes };
                fill(shared, link, index, cookie, span, last, |into| input.read_exact(into))
            }
            Content::Hole { offset, len_bytes } => {
                fill(shared, link, index, cookie, Span::Part { offset, len_bytes }, last, |into| {
                    into.fill(0);
                    Ok(())
                })
            }
        },
    }
}

/// Fills a span of a read's buffer, which is this thread's meanwhile.
fn fill(
    shared: &Shared,
    link: &Link,
    index: usize,
    cookie: u64,
    span: Span,
    last: bool,
    fill: impl FnOnce(&mut [u8]) -> io::Result<()>,
) -> io::Result<()> {
    let (mut buf, range) = shared.lend(link, index, cookie, span)?;
    let filled = fill(&mut buf[range]);
    // In any case: the read goes on over another connection, with the same buffer.
    let back = shared.give_back(link, cookie, buf, last && filled.is_ok());
    filled.and(back)
}
