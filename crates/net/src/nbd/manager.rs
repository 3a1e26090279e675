//! The device's own thread: it connects, reconnects, replays, watches for silence, and disconnects.

use super::exchange::{Exchange, Stop};
use super::handshake::{self, Export};
use super::lab::Canary;
use super::link::{Fresh, Link};
use super::operation::{Answer, Op, Work};
use super::protocol::{Command, Request, export};
use super::shared::Shared;
use super::state::{Outbox, Phase, State};
use rand::Rng;
use std::io::{self, IoSlice};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use syncline_device::{AlignedBuf, BLOCK_BYTES, DeviceError};

/// How long one attempt to connect and shake hands may take.
pub(super) const ATTEMPT_MAX: Duration = Duration::from_secs(10);
/// How long a connection beyond the first may take to stand; without it, it goes on with fewer.
const EXTRA_MAX: Duration = Duration::from_secs(2);
/// Pauses between attempts: they double from the one to the other.
const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// How often it is looked whether the server keeps silent.
const LOOK_MAX: Duration = Duration::from_secs(15);
/// How long an answer may take while nothing else is under way, though the server is waited for as
/// long as it takes. After that it may be back over another connection.
const REPLAY_MAX: Duration = Duration::from_secs(60);
/// How long saying good-bye may take.
const DISCONNECT_MAX: Duration = Duration::from_secs(1);

/// Why a new link does not stand.
pub(super) enum Failure {
    /// Another attempt may help.
    Again(io::Error),
    /// None will.
    Final(io::Error),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Again(error)
    }
}

enum Task {
    Restore { since: Instant, why: io::Error, old: Option<Arc<Link>> },
    EndLink(Arc<Link>),
    AskSize { link: Arc<Link> },
    Look,
    Close(Option<Arc<Link>>),
}

/// The thread's whole life.
pub(super) fn serve(shared: &Arc<Shared>) {
    let mut pause = PAUSE_MIN;
    loop {
        match next_task(shared) {
            Task::Restore { since, why, old } => {
                restore(shared, since, why, old, &mut pause);
                shared.state.lock().connecting = false;
            }
            Task::EndLink(link) => link.end(),
            Task::AskSize { link } => ask_size(shared, &link),
            Task::Look => look(shared),
            Task::Close(link) => {
                if let Some(link) = link {
                    disconnect(&link);
                }
                return;
            }
        }
    }
}

fn next_task(shared: &Shared) -> Task {
    let mut state = shared.state.lock();
    loop {
        let closing = state.closing && state.is_idle();
        let asks = !state.growing.is_empty() && !state.reopen;
        match &mut state.phase {
            Phase::Broken { old, .. } if old.is_some() => {
                if let Some(old) = old.take() {
                    return Task::EndLink(old);
                }
            }
            Phase::Up(link) if closing => return Task::Close(Some(link.clone())),
            Phase::Down { old, .. } if closing => return Task::Close(old.take()),
            Phase::Broken { .. } if closing => return Task::Close(None),
            Phase::Down { since, why, old } => {
                let why = io::Error::new(why.kind(), why.to_string());
                let task = Task::Restore { since: *since, why, old: old.take() };
                state.connecting = true;
                return task;
            }
            Phase::Up(link) if asks => return Task::AskSize { link: link.clone() },
            Phase::Up(_) | Phase::Broken { .. } => {}
        }
        match shared.wait {
            Some(wait) => {
                if shared.wake.wait_for(&mut state, (wait / 4).min(LOOK_MAX)).timed_out() {
                    return Task::Look;
                }
            }
            None => shared.wake.wait(&mut state),
        }
    }
}

/// Makes a new link, until it stands or the time is over.
fn restore(
    shared: &Arc<Shared>,
    since: Instant,
    why: io::Error,
    old: Option<Arc<Link>>,
    pause: &mut Duration,
) {
    let mut last = why;
    if let Some(old) = old {
        // One that broke before it answered anything counts as an attempt that failed.
        if old.was_heard() {
            *pause = PAUSE_MIN;
        } else if shared.state.lock().reopen {
            *pause = Duration::ZERO;
        }
        end_old(shared, &old, &last);
        if !old.was_heard() {
            rest(shared, pause, None);
        }
    }
    loop {
        let away_since = {
            let state = shared.state.lock();
            if matches!(state.phase, Phase::Broken { .. }) {
                return;
            }
            state.away_since(since)
        };
        let left = shared.wait.map(|wait| wait.saturating_sub(away_since.elapsed()));
        if left.is_some_and(|left| left.is_zero()) {
            let seconds = shared.wait.unwrap_or_default().as_secs_f64();
            let text = format!(
                "{} has been away for {seconds} s ({last}): it fails for good; start the server and mount again",
                shared.name
            );
            let error = io::Error::new(io::ErrorKind::TimedOut, text);
            return shared.with(|state, outbox| state.end(error, outbox));
        }
        let limit = left.unwrap_or(ATTEMPT_MAX).clamp(Duration::from_millis(100), ATTEMPT_MAX);
        let asking = shared.state.lock().growing.len();
        match attempt(shared, limit) {
            Ok((link, size_bytes)) => return stands(shared, link, size_bytes, asking, since),
            Err(Failure::Final(error)) => return shared.with(|state, outbox| state.end(error, outbox)),
            Err(Failure::Again(error)) => last = error,
        }
        if rest(shared, pause, left) {
            return;
        }
    }
}

/// Ends a link, and takes back the operations that were on their way.
fn end_old(shared: &Shared, old: &Link, why: &io::Error) {
    if shared.state.lock().reopen {
        tracing::info!("connecting to {} again, to learn its size", shared.name);
        disconnect(old);
    } else {
        tracing::warn!("the connection to {} broke ({why}): reconnecting", shared.name);
        old.abort();
        old.end();
    }
    shared.with(State::requeue);
}

/// Waits before the next attempt, each time longer and never exactly as long as others do. True if
/// none is needed any more.
fn rest(shared: &Shared, pause: &mut Duration, left: Option<Duration>) -> bool {
    let mut state = shared.state.lock();
    if state.closing && state.is_idle() {
        return true;
    }
    let now = left.map_or(*pause, |left| left.min(*pause)).mul_f64(rand::rng().random_range(0.5..1.0));
    shared.wake.wait_for(&mut state, now);
    *pause = (2 * *pause).clamp(PAUSE_MIN, PAUSE_MAX);
    state.closing && state.is_idle()
}

/// The new link is used from now on, the old one having broken at `since`. Of those who ask for the size, `asking` did so before the
/// server told it.
fn stands(shared: &Shared, link: Arc<Link>, size_bytes: u64, asking: usize, since: Instant) {
    tracing::info!("connected to {} again, by {} connections", shared.name, link.connections.len());
    shared.counters.reconnected(since.elapsed());
    shared.flags.store(link.export.flags, Ordering::Release);
    shared.with(|state, outbox| {
        answer_growing(shared, state, asking, Ok(size_bytes), outbox);
        state.link_stands(link, outbox);
    });
}

/// Asks the server for its size. The connections in use know the old one, so for a new one they are
/// replaced. Where it has not changed they stay: some servers end with their last client.
fn ask_size(shared: &Shared, link: &Link) {
    let (known_bytes, peer) = (link.export.size_bytes, link.connections[0].channel.peer());
    let asking = shared.state.lock().growing.len();
    let told = handshake::ask_size(&shared.location, &shared.options, EXTRA_MAX, peer);
    shared.with(|state, outbox| match told {
        Ok(size_bytes) if size_bytes > known_bytes => state.reopen(outbox),
        told => answer_growing(shared, state, asking, told, outbox),
    });
}

/// Answers the first of those who ask for the size, as many as did before the server told it.
fn answer_growing(
    shared: &Shared,
    state: &mut State,
    asking: usize,
    told: io::Result<u64>,
    outbox: &mut Outbox,
) {
    let present_bytes = match told {
        Ok(size_bytes) if asking > 0 => {
            shared.size_bytes.fetch_max(size_bytes, Ordering::AcqRel).max(size_bytes)
        }
        _ => shared.size_bytes.load(Ordering::Acquire),
    };
    let asking = asking.min(state.growing.len());
    for (wanted, done) in state.growing.drain(..asking) {
        let why = match &told {
            Ok(size_bytes) if *size_bytes < present_bytes => {
                format!(
                    "the server's export has {size_bytes} bytes now, {present_bytes} before: it must not shrink"
                )
            }
            Err(error) => {
                format!("the server can't be asked for its size during the connection in use ({error})")
            }
            Ok(size_bytes) if wanted > *size_bytes => {
                format!(
                    "the server's export has {size_bytes} bytes: enlarge it there to {wanted}, and try again"
                )
            }
            Ok(_) => {
                outbox.answers.push(Answer::Size(done, Ok(present_bytes)));
                continue;
            }
        };
        let (path, source) = (shared.name.clone(), Arc::new(io::Error::other(why)));
        outbox.answers.push(Answer::Size(done, Err(DeviceError::Extend { path, source })));
    }
}

/// Connects and makes everything ready: the fence has agreed, and the kept changes are written.
pub(super) fn attempt(shared: &Arc<Shared>, limit: Duration) -> Result<(Arc<Link>, u64), Failure> {
    let mut fresh = Vec::new();
    let made = make_link(shared, limit, &mut fresh);
    if made.is_err() {
        // Bytes that a socket still holds would arrive after the next attempt has written the same
        // changes again, or after another host has taken the image.
        fresh.iter().for_each(|fresh| fresh.channel.abort());
        shared.state.lock().replays_on = None;
    }
    made
}

/// Leaves the connections in `fresh` if it fails.
fn make_link(
    shared: &Arc<Shared>,
    limit: Duration,
    fresh: &mut Vec<Fresh>,
) -> Result<(Arc<Link>, u64), Failure> {
    let (channel, export) = handshake::connect(&shared.location, &shared.options, limit, None)?;
    check(shared, &export)?;
    fresh.push(Fresh::new(channel));
    add_connections(shared, &export, fresh)?;
    let (fence, epoch) = (shared.guard.get(), shared.state.lock().next_epoch());
    if !shared.options.read_only {
        shared.state.lock().replays_on = Some(fresh[0].channel.clone());
        let mut exchange = Exchange::new(&mut fresh[0], export, shared.wait.or(Some(REPLAY_MAX)));
        if let Some(fence) = &fence
            && let Err(error) = fence.may_write(&mut exchange)
        {
            return Err(match exchange.failed {
                true => Failure::Again(io::Error::other(error)),
                false => Failure::Final(io::Error::new(io::ErrorKind::PermissionDenied, error)),
            });
        }
        let changes = match shared.options.canary {
            Some(Canary::ForgetKept) => Vec::new(),
            _ => shared.state.lock().kept.completed(),
        };
        let (count, bytes) = (changes.len() as u64, changes.iter().map(|(_, len_bytes, _)| len_bytes).sum());
        let may_go_on = || {
            if let Phase::Broken { error: source, .. } = &shared.state.lock().phase {
                return Err(DeviceError::Poisoned { source: source.clone() });
            }
            fence.as_ref().map_or(Ok(()), |fence| fence.may_still_write())
        };
        exchange.replay(changes, &may_go_on).map_err(|stop| match stop {
            Stop::Failed(error) => Failure::Again(error),
            Stop::Fenced(error) => Failure::Final(io::Error::new(io::ErrorKind::PermissionDenied, error)),
        })?;
        shared.counters.rewritten.add(count);
        shared.counters.rewritten_bytes.add(bytes);
    }
    Ok((Link::start(epoch, export, std::mem::take(fresh), shared)?, export.size_bytes))
}

/// Refuses an export that can't be this device any more.
fn check(shared: &Shared, export: &Export) -> Result<(), Failure> {
    let known_bytes = shared.size_bytes.load(Ordering::Acquire);
    let needed_bytes = shared.options.at_least_bytes.max(known_bytes);
    match export.refusal(shared.options.read_only, needed_bytes) {
        None => Ok(()),
        Some(why) => {
            let back = if known_bytes > 0 { " came back changed" } else { " can't be used" };
            let text = format!("{}{back}: {why}", shared.name);
            let kind = match !shared.options.read_only && export.offers(export::READ_ONLY) {
                true => io::ErrorKind::ReadOnlyFilesystem,
                false => io::ErrorKind::Unsupported,
            };
            Err(Failure::Final(io::Error::new(kind, text)))
        }
    }
}

/// Adds the connections beyond the first, where the server allows several.
fn add_connections(shared: &Shared, export: &Export, fresh: &mut Vec<Fresh>) -> Result<(), Failure> {
    if !export.offers(export::MULTI_CONN) || export.size_bytes < BLOCK_BYTES as u64 {
        return Ok(());
    }
    let peer = fresh[0].channel.peer();
    while fresh.len() < shared.options.connections {
        match handshake::connect(&shared.location, &shared.options, EXTRA_MAX, peer) {
            Ok((channel, other)) if other == *export => fresh.push(Fresh::new(channel)),
            Ok(_) => break,
            Err(error) => {
                tracing::debug!("{}: {} connections, no more ({error})", shared.name, fresh.len());
                break;
            }
        }
    }
    // The server may have been restarted in between, and a flush over a later connection would prove
    // nothing about writes over an earlier one. So each must be alive after the last stands.
    let last = fresh.len() - 1;
    for fresh in &mut fresh[..last] {
        let mut block = AlignedBuf::zeroed(BLOCK_BYTES);
        Exchange::new(fresh, *export, shared.wait.or(Some(ATTEMPT_MAX))).read(0, &mut block)?;
    }
    Ok(())
}

/// Looks whether the server keeps silent though it was asked for something. Half-way through its
/// time it is asked for a block: one that answers that is slow, not away.
fn look(shared: &Shared) {
    let Some(wait) = shared.wait else { return };
    shared.with(|state, outbox| {
        let Phase::Up(link) = &state.phase else { return };
        let Some(oldest) = state.wires.values().map(|wire| wire.sent).min() else { return };
        let silent = link.heard().max(oldest).elapsed();
        if silent >= wait {
            let seconds = wait.as_secs_f64();
            let text = format!(
                "{} has not answered for {seconds} s: it fails for good; look after the server and mount again",
                shared.name
            );
            state.end(io::Error::new(io::ErrorKind::TimedOut, text), outbox);
        } else if silent >= wait / 2 && !state.is_probing() {
            let work = Work::Read { buf: Some(AlignedBuf::for_read(BLOCK_BYTES)), done: Box::new(|_| {}) };
            let number = state.start(Op::new(0, BLOCK_BYTES as u64, work), outbox);
            state.probe = number;
        }
    });
}

/// Ends a link as the protocol wants it.
fn disconnect(link: &Link) {
    for connection in &link.connections {
        let request = Request { command: Command::Disconnect, flags: 0, cookie: 0, offset: 0, len_bytes: 0 };
        connection.channel.set_deadline(Some(Instant::now() + DISCONNECT_MAX));
        // A server that has gone needs no good-bye.
        let _ = connection.channel.send_all(&mut [IoSlice::new(&request.encode())]);
        connection.channel.say_end();
    }
    link.end();
}
