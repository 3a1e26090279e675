//! IOCTL: the control channel, fsync2 and fbarrier, flags of files, durability
//! classes, the label, FITRIM. Every other command is "not for this file".

use super::shutdown::{self, SHUT_DOWN};
use super::syncs::tell;
use super::{Answer, Refusal, clones, durability, flags, label, quotas, reflink, resize, trim};
use crate::abi::{IoctlIn, IoctlOut};
use crate::control::Asker;
use crate::control::blocks::BlocksCommand;
use crate::control::durability::DURABILITY;
use crate::control::files::{self, FilesCommand};
use crate::control::trim::TRIM;
use crate::control::wire::{COMMAND, ControlIn, MAGIC, MESSAGE_BYTES, Question};
use crate::options::Synced;
use crate::reply::Reply;
use crate::request::Request;
use crate::session::Session;
use syncline_device::in_background;
use syncline_fs::{FsError, Hold};

pub(super) async fn ioctl(session: &Session, request: &Request) -> Answer {
    let mut arguments = request.arguments();
    let input: IoctlIn = arguments.take()?;
    if let Some(command) = FilesCommand::from_number(input.command) {
        let inos = files::inodes(arguments.bytes(input.in_size as usize)?);
        let inos = inos.ok_or(Refusal::Errno(libc::EINVAL))?;
        return name_files(session, command, &inos, request.caller().uid).await;
    }
    if let Some(command) = BlocksCommand::from_number(input.command) {
        let argument = arguments.bytes(input.in_size as usize)?;
        let answer = reflink::ioctl(session, request, command, argument, input.out_size as usize).await?;
        let reply = Reply::fixed(&IoctlOut::default()).with_data(answer);
        // The file may have fewer blocks now, which the kernel can't know.
        let stale = command == BlocksCommand::Compress;
        return Ok(reply.with_stale_attributes(request.ino(), stale));
    }
    if let Some(answer) = flags::ioctl(session, request, &input, &mut arguments).await {
        return answer;
    }
    if let Some(answer) = label::ioctl(session, request, &input, &mut arguments).await {
        return answer;
    }
    if input.command == DURABILITY {
        return durability::ioctl(session, request, &input, &mut arguments).await;
    }
    if input.command == TRIM {
        return trim::trim(session, request, &input, &mut arguments).await;
    }
    if input.command == SHUT_DOWN {
        return shutdown::shut_down(session, request, &input).await;
    }
    if input.command != COMMAND {
        return Err(Refusal::Errno(libc::ENOTTY));
    }
    if (input.in_size as usize, input.out_size as usize) != (MESSAGE_BYTES, MESSAGE_BYTES) {
        return Err(Refusal::Malformed);
    }
    let message = arguments.bytes(MESSAGE_BYTES)?;
    let (question, rest) = zerocopy::FromBytes::read_from_prefix(message).map_err(|_| Refusal::Malformed)?;
    let asker = Asker::new(request.ino(), request.caller().uid);
    let answer = answer(session, asker, request.pid(), question, rest).await?;
    Ok(Reply::fixed(&IoctlOut::default()).with_data(answer))
}

/// True for a command that changes a file, or may: all but those known only to ask or to sync. Changes
/// by the control channel are durable when it answers, except copies of files: those wait for the sync that
/// `syncline clone` ends with. And the answers about a filesystem that can't sync any more are needed most.
pub(super) fn changes_a_file(command: u32) -> bool {
    let asks = flags::only_asks(command)
        || matches!(command, TRIM | COMMAND | SHUT_DOWN)
        || FilesCommand::from_number(command).is_some();
    !asks
}

async fn name_files(session: &Session, command: FilesCommand, inos: &[u64], uid: u32) -> Answer {
    match command {
        FilesCommand::Sync => {
            Box::pin(session.fs().sync_many(inos, uid)).await?;
            tell(session, inos, Synced::Fsync).await?;
        }
        FilesCommand::Barrier => session.fs().barrier(inos).await?,
    }
    Ok(Reply::fixed(&IoctlOut::default()))
}

async fn answer(
    session: &Session,
    asker: Asker<'_>,
    thread: u32,
    question: ControlIn,
    rest: &[u8],
) -> Result<Vec<u8>, Refusal> {
    if question.magic != MAGIC {
        return Err(Refusal::Errno(libc::ENOTTY));
    }
    match Question::from_number(question.question).ok_or(Refusal::Errno(libc::EOPNOTSUPP))? {
        Question::Text => session.control().page(&question, asker).map_err(Refusal::Errno),
        Question::Command => {
            // Commands cost others time, so not everybody who can enter the mount may run them.
            require_owner(&asker)?;
            session.control().command(&question).map_err(Refusal::Errno)
        }
        Question::Paths => {
            // Names may be in directories that not everybody may read.
            require_owner(&asker)?;
            paths(session, &question, asker.uid).await
        }
        Question::Sync => {
            session.fs().syncfs().await?;
            Ok(question.empty_answer())
        }
        Question::CreateSnapshot => {
            require_owner(&asker)?;
            session.page_cache().take_over_known(session.fs()).await;
            let (fs, name) = (session.fs().clone(), name_in(&question, rest)?.to_owned());
            let make = async move {
                match Hold::of_name(&name) {
                    Some(hold) => fs.hold_snapshot(&hold).await.map(drop),
                    None => fs.create_snapshot(&name).await.map(drop),
                }
            };
            apart(session, Box::pin(make)).await?;
            Ok(question.empty_answer())
        }
        Question::DeleteSnapshot => {
            require_owner(&asker)?;
            let (fs, name) = (session.fs().clone(), name_in(&question, rest)?.to_owned());
            apart(session, async move { fs.delete_snapshot(&name).await }).await?;
            Ok(question.empty_answer())
        }
        Question::SetQuota => {
            require_owner(&asker)?;
            quotas::set(session, asker.ino, rest).await?;
            Ok(question.empty_answer())
        }
        Question::RemoveQuota => {
            require_owner(&asker)?;
            quotas::remove(session, asker.ino).await?;
            Ok(question.empty_answer())
        }
        // Anyone who can enter the directory can see this with df(1) anyway.
        Question::Quota => quotas::page(session, &question, asker.uid, Some(asker.ino)).await,
        Question::Quotas => {
            // The paths of other quotas may be secret.
            require_owner(&asker)?;
            quotas::page(session, &question, asker.uid, None).await
        }
        Question::Resize => {
            require_owner(&asker)?;
            resize::resize(session, &question).await
        }
        Question::Receive => {
            require_owner(&asker)?;
            session.control().receive(&question, rest).map_err(Refusal::Errno)
        }
        Question::CloneFiles => Box::pin(clones::make(session, (asker.ino, thread), &question, rest)).await,
    }
}

/// Has the background do this work, whose checkpoint would keep this thread from other requests for
/// too long.
async fn apart(
    session: &Session,
    work: impl Future<Output = Result<(), FsError>> + Send + 'static,
) -> Result<(), Refusal> {
    let done = in_background(session.fs().spawner(), work).await;
    Ok(done.ok_or(Refusal::Errno(libc::EIO))??)
}

/// The name that follows a question.
fn name_in<'a>(question: &ControlIn, rest: &'a [u8]) -> Result<&'a str, Refusal> {
    let name = usize::try_from(question.offset).ok().and_then(|len| rest.get(..len));
    name.and_then(|name| std::str::from_utf8(name).ok()).ok_or(Refusal::Errno(libc::EINVAL))
}

/// Refuses everybody but root and the owner of the daemon.
pub(super) fn require_owner(asker: &Asker<'_>) -> Result<(), Refusal> {
    if asker.is_owner { Ok(()) } else { Err(Refusal::Errno(libc::EPERM)) }
}

async fn paths(session: &Session, question: &ControlIn, uid: u32) -> Result<Vec<u8>, Refusal> {
    if question.snapshot != 0 {
        return session.control().kept_page(question, uid).map_err(Refusal::Errno);
    }
    let number = std::str::from_utf8(question.name()).ok().and_then(|name| name.parse().ok());
    let ino = number.ok_or(Refusal::Errno(libc::EINVAL))?;
    let mut text = Vec::new();
    for path in session.fs().paths(ino).await? {
        text.extend_from_slice(&path);
        text.push(0);
    }
    Ok(session.control().first_page(question, uid, text.into()))
}
