//! The moments of a recording after which a power cut leaves different states, or must leave more.

use crate::recording::{MarkKind, Recording};
use std::collections::BTreeMap;
use syncline_powercut::Event;

/// The reason why a moment is a point.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Cause {
    /// COMMAND began.
    Begin,
    /// The device ended a flush.
    Flush,
    /// An fsync of this inode was acknowledged.
    Fsync(u64),
    /// An fdatasync of this inode was acknowledged.
    Fdatasync(u64),
    /// A sync of the whole filesystem was acknowledged.
    SyncFs,
    /// COMMAND printed this line.
    Line(Vec<u8>),
    /// COMMAND ended.
    Ended,
    /// The image was unmounted, and everything was written.
    Unmounted,
}

/// A moment that matters.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Point {
    /// Number of events before it.
    pub position: usize,
    /// Nanoseconds since the start.
    pub time_ns: u64,
    /// The reasons.
    pub causes: Vec<Cause>,
    /// Writes since the previous point.
    pub writes: u64,
    /// Bytes in them.
    pub bytes: u64,
    /// Writes whose fate was open just before the point: each subset of them is an image.
    pub open_writes: usize,
}

/// From one point up to the next: the durable contents and the acknowledgements stay the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stretch {
    /// First position.
    pub begin: usize,
    /// Last position, with all writes of the stretch submitted.
    pub end: usize,
}

/// The points of a recording, from the start of COMMAND on.
pub fn points(recording: &Recording) -> Vec<Point> {
    let mut images = recording.images();
    let mut points: Vec<Point> = Vec::new();
    for (position, causes) in causes(recording) {
        let before = points.last().map_or(position, |point: &Point| point.position);
        let lens = recording.events[before..position].iter().filter_map(|event| match event {
            Event::Write { bufs, .. } => Some(bufs.iter().map(|buf| buf.len() as u64).sum::<u64>()),
            _ => None,
        });
        let (writes, bytes) = lens.fold((0, 0), |(writes, bytes), len| (writes + 1, bytes + len));
        let time = recording.marks.iter().find(|mark| mark.position >= position);
        let time_ns = time.or(recording.marks.last()).map_or(0, |mark| mark.time_ns);
        let open_writes = images.cut(position.saturating_sub(1).max(before)).open().len();
        points.push(Point { position, time_ns, causes, writes, bytes, open_writes });
    }
    points
}

fn causes(recording: &Recording) -> BTreeMap<usize, Vec<Cause>> {
    let (begin, end) = (recording.info.begin, recording.events.len());
    let mut causes = BTreeMap::from([(begin, vec![Cause::Begin])]);
    let mut add = |position: usize, cause| {
        if position >= begin {
            causes.entry(position).or_default().push(cause);
        }
    };
    // The flush that ended the mount's own recovery does not belong to COMMAND.
    for (at, event) in recording.events.iter().enumerate().skip(begin) {
        if matches!(event, Event::FlushEnded { ok: true, .. }) {
            add(at + 1, Cause::Flush);
        }
    }
    for mark in &recording.marks {
        let cause = match &mark.kind {
            MarkKind::Flush => continue,
            MarkKind::Fsync(ino) => Cause::Fsync(*ino),
            MarkKind::Fdatasync(ino) => Cause::Fdatasync(*ino),
            MarkKind::SyncFs => Cause::SyncFs,
            MarkKind::Line(line) => Cause::Line(line.clone()),
            MarkKind::Ended => Cause::Ended,
        };
        add(mark.position, cause);
    }
    add(end, Cause::Unmounted);
    causes
}

/// The stretches between the points, and the one after the last.
pub fn stretches(recording: &Recording) -> Vec<Stretch> {
    let begins: Vec<usize> = causes(recording).into_keys().collect();
    let ends = begins.iter().skip(1).map(|next| next - 1).chain([recording.events.len()]);
    begins.iter().zip(ends).map(|(begin, end)| Stretch { begin: *begin, end }).collect()
}
