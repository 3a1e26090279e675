//! `syncline mount`: serves an image at a directory.
//!
//! Without `--foreground` the program starts itself again as a daemon and waits until that reports
//! that the mount is usable. Until then the daemon's messages go to the caller's standard error.

use super::closing::{Closing, Kernel};
use super::image;
use super::mount_options::{Fuseblk, MountChoices};
use super::place::Place;
use super::snapshot::image_of;
use super::transfers::Transfers;
use super::{reach, remote, signals, systemd};
use crate::failure::{Cause, Failure, Outcome};
use crate::{keys, size, utab};
use signal_hook::iterator::Handle;
use std::fs::File;
use std::io::{BufRead, BufReader, PipeReader, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use syncline::FormatOptions;
use syncline_check::{Readable, Scrub};
use syncline_device::{DeviceError, MountDevice, OpenOptions, Spawn, block_on};
use syncline_format::superblock::Superblock;
use syncline_fs::Filesystem;
use syncline_fuse::{Mounted, Session, SyncReach};
use syncline_image::{How, Image, TakeOver};
use syncline_store::{Recovered, RecoveryReport, Store, StoreError};

/// The daemon writes this to standard output when the mount is usable.
const READY: &str = "ready";
/// Where messages go that nobody asked for.
const NOWHERE: &str = "/dev/null";

/// Arguments of `mount`.
#[derive(clap::Args)]
pub struct Args {
    /// Image file, block device, or storage on a network: nbd://HOST/EXPORT, nbds://HOST/EXPORT,
    /// nbd+unix:///EXPORT?socket=PATH, rbd:POOL/IMAGE
    image: PathBuf,
    /// Empty directory to mount it at
    directory: PathBuf,
    /// Make an image of this size first, if there is none
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    create: Option<u64>,
    /// Stay in the foreground and serve until it is unmounted
    #[arg(long, short)]
    foreground: bool,
    /// Mount read-only, like -o ro
    #[arg(long, short, alias = "ro")]
    read_only: bool,
    /// Options, separated by commas: ro, nosuid, nodev, noexec, nosymfollow, allow_other, noatime,
    /// nodiratime, relatime, strictatime, sync, dirsync, durability=fsync|ordered[:SECONDS]|strict,
    /// discard[=punch], compress[=lz4|zstd|no], commit=SECONDS, memory=SIZE,
    /// direct_io=never|synced|write, transport=auto|available|uring|classic,
    /// fuseblk=auto|always|never, snapshot=NAME, log=FILE, key-file=FILE, key-command=COMMAND,
    /// accept-damaged-log
    #[arg(short = 'o', value_name = "OPTIONS", value_delimiter = ',')]
    options: Vec<String>,
    /// Mount this snapshot, read-only, like -o snapshot; the filesystem itself may be mounted too
    #[arg(long, value_name = "NAME", conflicts_with = "create")]
    snapshot: Option<String>,
    /// Mount a writable fork of the snapshot that --snapshot or IMAGE@SNAPSHOT names; it is thrown away
    /// when it is unmounted. Its own blocks lie in a file in $TMPDIR
    #[arg(long, conflicts_with_all = ["create", "takeover"])]
    fork: bool,
    /// Take the image from another host that has it: at once if the storage can end the other's
    /// writes (RBD), otherwise when its device lease has ended
    #[arg(long)]
    takeover: bool,
    /// Transport of the kernel's requests, like -o transport, which counts if both are given
    #[arg(long, value_name = "WAY", value_parser = ["auto", "available", "uring", "classic"])]
    transport: Option<String>,
    /// File for the daemon's messages once the mount is usable, like -o log. Default: syslog or the
    /// journal; in the foreground standard error
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// The image is a fork that is removed at the end
    #[arg(long, hide = true)]
    temporary: bool,
    /// The daemon's end of a mount in the background
    #[arg(long, hide = true)]
    daemon: bool,
}

impl Args {
    /// The arguments to mount a snapshot.
    pub(super) fn of_snapshot(image: PathBuf, name: &str, directory: PathBuf) -> Self {
        let snapshot = Some(name.to_owned());
        // Looking at a snapshot must not change the machine's settings.
        let options = vec!["transport=available".to_owned()];
        let (create, transport, log) = (None, None, None);
        let (foreground, read_only, daemon, takeover) = (false, false, false, false);
        let (fork, temporary) = (false, false);
        Self {
            image,
            directory,
            create,
            foreground,
            read_only,
            options,
            snapshot,
            fork,
            takeover,
            temporary,
            transport,
            log,
            daemon,
        }
    }
}

/// Runs the command.
pub fn run(mut args: Args) -> Outcome {
    let place = Place::of(&args.image.clone().into_os_string());
    if let Some(name) = place.snapshot.filter(|_| !args.daemon && args.create.is_none()) {
        args.image = image_of(&place.image)?;
        args.snapshot = Some(name);
    }
    args.options = keys::take_options(&args.options)?;
    if args.fork {
        return mount_temporary_fork(args);
    }
    args.options.extend(args.read_only.then(|| "ro".to_owned()));
    if args.options.iter().flat_map(|list| list.split(',')).any(|option| option == "remount") {
        return super::remount::remount(&args.directory, &args.options, &[]);
    }
    // As an option, the transport also reaches the daemon. It comes first, so that -o overrides it:
    // 'syncline-lab bench' passes --transport for all contestants and -o for one of them.
    args.options.splice(0..0, args.transport.take().map(|way| format!("transport={way}")));
    let mut choices = MountChoices::parse(&args.options)?;
    if let Some(name) = &args.snapshot {
        choices.set_snapshot(name).map_err(|text| Failure::usage(format!("--snapshot {name}: {text}")))?;
    }
    args.log = args.log.or_else(|| choices.log.take());
    if args.foreground || args.daemon {
        return serve(&args, &choices);
    }
    let mut command = daemon_command(&args)?;
    let key = keys::hand_over(&args.image, &mut command)?;
    start_daemon(command, key)
}

/// Makes a fork that ends with its mount, and mounts it. Its daemon removes it at the end.
fn mount_temporary_fork(mut args: Args) -> Outcome {
    args.fork = false;
    let name = args.snapshot.take();
    let name =
        name.ok_or_else(|| Failure::usage("--fork needs a snapshot").next("name it: IMAGE@SNAPSHOT"))?;
    syncline_fuse::require_mountable(&args.directory)?;
    let fork = Image::make_temporary_fork(&args.image, &name, &std::env::temp_dir(), &How::default());
    let fork = fork.map_err(|error| match &error {
        DeviceError::Create { .. } => Failure::from(error)
            .next("set TMPDIR to a directory that can be written and has room for what the fork will write"),
        _ => error.into(),
    })?;
    args.image = fork.to_path_buf();
    args.temporary = true;
    let mounted = run(args)?;
    // From now on it is the daemon's.
    let _ = fork.keep();
    Ok(mounted)
}

/// The command line of the daemon.
fn daemon_command(args: &Args) -> Result<Command, Failure> {
    let mut command = Command::new(std::env::current_exe()?);
    // Independent of the name under which the program was started.
    command.arg0("syncline");
    command.arg("mount").arg(&args.image).arg(&args.directory).arg("--daemon");
    if let Some(size) = args.create {
        command.arg("--create").arg(size.to_string());
    }
    if let Some(name) = &args.snapshot {
        command.arg("--snapshot").arg(name);
    }
    command.args(args.takeover.then_some("--takeover"));
    command.args(args.temporary.then_some("--temporary"));
    if !args.options.is_empty() {
        command.arg("-o").arg(args.options.join(","));
    }
    if let Some(log) = &args.log {
        command.arg("--log").arg(log);
    }
    Ok(command)
}

/// Starts a daemon; returns when the mount is usable or the daemon has given up.
fn start_daemon(mut command: Command, key: Option<PipeReader>) -> Outcome {
    require_null()?;
    let input = key.map_or_else(Stdio::null, Stdio::from);
    let mut daemon =
        command.envs(crate::logging::environment()).stdin(input).stdout(Stdio::piped()).spawn()?;
    let output = daemon.stdout.take().expect("it was asked for");
    let mut line = String::new();
    BufReader::new(output).read_line(&mut line)?;
    if line.trim() == READY {
        return Ok(ExitCode::SUCCESS);
    }
    // It has reported the reason on standard error, which it shares with us.
    let status = daemon.wait()?;
    if let Some(signal) = status.signal() {
        let text = format!("the daemon was ended by signal {signal} before the mount was usable");
        return Err(Failure::new(text).next("'syncline umount' removes what may be left of the mount"));
    }
    Err(Failure::told(status.code().unwrap_or(1).clamp(1, 255) as u8))
}

/// Names the device that a container lacks; the system's error would name nothing. Opening the log
/// there would make a regular file of it.
fn require_null() -> Result<(), Failure> {
    std::fs::metadata(NOWHERE).map(drop).map_err(|error| {
        let failure = Failure::of(Cause::Fuse, error).about(Path::new(NOWHERE));
        failure.next("the daemon needs it, and /dev/fuse: mount a /dev that has both (in a container, start it with '--device /dev/fuse')")
    })
}

/// Opens the image, mounts it and serves it until it is unmounted.
fn serve(args: &Args, choices: &MountChoices) -> Outcome {
    if args.daemon {
        // A session of its own: closing the terminal must not end it.
        rustix::process::setsid()?;
    }
    require_null()?;
    // Open the log now, so that an error reaches the caller.
    let log = open_log(args.log.as_deref().unwrap_or(Path::new(NOWHERE)))?;
    let made = make_image(args, choices)?;
    let mounted = open_and_mount(args, choices, made.clone()).map_err(|failure| {
        // Nobody else has had the new image, so remove it.
        made.iter().for_each(|made| made.take_away());
        if choices.snapshot.is_some() { failure.of_reading_only() } else { failure }
    });
    let Served { mounted, closing, signals } = mounted?;
    if let Some(made) = made.filter(|_| choices.store.read_only) {
        made.let_read()?;
    }
    // Its device has what it needs.
    syncline_image::forget_keys();
    let line = utab::Line::enter(&args.image, &args.directory, &args.options);
    if args.daemon {
        detach_from_terminal(&log)?;
    } else if args.log.is_some() {
        rustix::stdio::dup2_stderr(&log)?;
    }
    systemd::tell("READY=1");
    match args.daemon && args.log.is_none() {
        true => crate::logging::serve_into_syslog(mounted.path()),
        false => crate::logging::serve(),
    }
    let (image, directory) = (args.image.display(), args.directory.display());
    tracing::info!(%image, %directory, version = env!("CARGO_PKG_VERSION"), "serving");
    let served = mounted.run_until_unmounted();
    drop(line);
    signals.close();
    // Where the kernel has waited for it, that is done.
    let closed = closing.finish();
    closing.device.iter().for_each(|device| device.remove());
    closed?;
    served?;
    Ok(ExitCode::SUCCESS)
}

/// Makes the image that `--create` asks for, if there is none. The mount takes over the locked
/// device, so nobody else can get the image between making and mounting.
fn make_image(args: &Args, choices: &MountChoices) -> Result<Option<Image>, Failure> {
    if args.create.is_some() && syncline_image::is_remote(&args.image) {
        return Err(Failure::usage("--create makes image files only")
            .next("make the image with 'syncline mkfs' first"));
    }
    let Some(size) = args.create.filter(|_| !args.image.exists()) else { return Ok(None) };
    if keys::is_chosen() {
        return Err(Failure::usage("--create makes an image that is not encrypted")
            .next("make it with 'syncline mkfs --encrypt' first"));
    }
    if size < image::LEAST_BYTES {
        return Err(Failure::usage("--create makes an image of at least 16MiB"));
    }
    // Making the image takes a while, so first check that it can be mounted.
    syncline_fuse::require_mountable(&args.directory)?;
    let how = How::new(OpenOptions { punch_holes: choices.punch_holes, ..OpenOptions::default() });
    image::make(&args.image, Some(size), false, false, &how, &FormatOptions::default()).map(Some)
}

fn open_log(path: &Path) -> Result<File, Failure> {
    let opened = File::options().create(true).append(true).open(path);
    opened
        .map_err(|error| Failure::from(error).about(path).next("name a file that can be written with --log"))
}

/// A mount and everything that belongs to it.
struct Served {
    mounted: Mounted,
    closing: Arc<Closing>,
    signals: Handle,
}

/// Everything that can fail comes before the first write, so that a refused mount leaves the image
/// unchanged, byte for byte: the log of a crash is replayed into memory and checked, the mount is
/// made and negotiated with the kernel, and only then does recovery write. Requests that come
/// meanwhile wait.
fn open_and_mount(args: &Args, choices: &MountChoices, made: Option<Image>) -> Result<Served, Failure> {
    let image = image::whole_name(&args.image)?;
    let spawn = image::background()?;
    let about = |error: StoreError| Failure::from(error).about(&image);
    let truly = |failure| of_what_is_damaged(failure, &image, choices);
    let (storage, opened, report) =
        block_on(open(&image, args.takeover, choices, made, spawn.clone())).map_err(truly)?;
    tell(&image, &report);
    if let (Some(known), Some(base)) = (storage.is_known_at(), storage.base()) {
        let (image, base) = (image.display(), base.display());
        note!(
            "syncline: {base} knows this fork as {known}: 'syncline fork --base {base} {image}' corrects that, so that nobody releases it"
        );
    }
    let loaded = block_on(Filesystem::load(opened.store().clone(), spawn.clone(), choices.fs.clone()));
    let loaded = match loaded {
        Ok(loaded) => loaded,
        Err(error) => {
            // Close it, so that the next step can examine it.
            drop((opened, storage));
            return Err(truly(Failure::from(error).about(&image)));
        }
    };
    let fs = loaded.fs().clone();
    // Before anyone can see the mount, and want to end it.
    let caught = signals::catch()?;
    // A mount that will be refused must not change the machine's settings.
    syncline_fuse::require_mountable(&args.directory)?;
    if choices.switches_uring_on() && syncline_fuse::switch_uring_on() && !crate::logging::is_quiet() {
        note!(
            "FUSE over io_uring was switched off on this machine, and is on from now on; \
             -o transport=available would have left it, and 'echo N > {}' switches it off again",
            syncline_fuse::URING_SWITCH
        );
    }
    let device = reach::device(&storage, &image, fs.uuid(), choices)?;
    let (device, without) = (device.as_ref().ok().cloned(), device.err());
    let read = block_on(superblock_of_device(&storage, device.as_deref())).map_err(about)?;
    let mut options = choices.kernel(&image);
    options.kernel.device = device.clone();
    let prepared = Session::prepare(fs.clone(), &args.directory, &options)?;
    let why_not = reach::why_not(prepared.session().sync_reach(), without.as_deref());
    if let (Some(why), Fuseblk::Always) = (&why_not, choices.fuseblk) {
        return Err(reach::impossible(why));
    }
    if read != block_on(superblock_of_device(&storage, device.as_deref())).map_err(about)? {
        let text = "another program used the image just before it was mounted";
        return Err(Failure::of(Cause::InUse, text).about(&image).next("mount it again"));
    }
    let scrub = Scrub::new(fs.store(), spawn);
    let figures = storage.figures();
    super::figures::register(
        prepared.session(),
        &fs,
        &scrub,
        (&figures, &image, args.temporary),
        (choices.class(), choices.synchronous()),
        (reach::told(why_not.as_deref()), args.options.join(",")),
        report,
    );
    let transfers = Transfers::register(prepared.session().control(), &fs);
    remote::shut_down_when_lost(&storage, &image, prepared.session(), &fs);
    if let Opened::Whole(recovered) = opened {
        block_on(recovered.begin()).map_err(about)?;
    }
    loaded.start();
    if let Some(why) = why_not.filter(|_| !choices.store.read_only) {
        reach::tell_without(&why, choices);
    }
    // The kernel may have refused it.
    let device = device.filter(|_| !matches!(prepared.session().sync_reach(), SyncReach::NoDevice(_)));
    let (state, name, temporary) = (Default::default(), image.clone(), args.temporary);
    let closing = Arc::new(Closing { image: name, temporary, fs, scrub, transfers, storage, device, state });
    let at_the_end = closing.clone();
    prepared.session().before_the_end(move || at_the_end.close(Kernel::Waits));
    let (session, last) = (Arc::downgrade(prepared.session()), closing.clone());
    let close = move || {
        session.upgrade().iter().for_each(|session| session.take_over_mapped());
        // The dead mount keeps the kernel's claim as long as files are open there.
        last.close(Kernel::Waits);
        last.finish()
    };
    let signals = signals::unmount(caught, prepared.unmounter(), close)?;
    Ok(Served { mounted: prepared.serve(), closing, signals })
}

/// The superblock of a block device that the kernel claims for the mount; of another image `None`. We
/// give up our claim right before. If somebody else has written to the image between the two, there is
/// another superblock, since nobody writes anything before one of a new log epoch.
async fn superblock_of_device(
    storage: &Image,
    device: Option<&MountDevice>,
) -> Result<Option<Superblock>, StoreError> {
    match device.is_some_and(MountDevice::is_image) {
        true => Ok(Some(syncline_store::read_superblocks(&storage.device()).await?.superblock)),
        false => Ok(None),
    }
}

/// The next step for a damaged image: not a read-only mount, if that would fail as well.
fn of_what_is_damaged(failure: Failure, image: &Path, choices: &MountChoices) -> Failure {
    let damaged = failure.code() == Cause::Damaged as u8;
    if !damaged || choices.snapshot.is_some() {
        return failure;
    }
    match image::what_can_be_read(image) {
        Readable::Present | Readable::Nothing if choices.store.read_only => failure.of_reading_only(),
        Readable::Present => failure,
        readable => failure.next(format!(
            "{}; 'syncline check --repair --dry-run' lists the files that can be restored",
            image::without_present(&readable)
        )),
    }
}

/// The mounted filesystem or snapshot.
enum Opened {
    Whole(Box<Recovered>),
    Snapshot(Arc<Store>),
}

impl Opened {
    fn store(&self) -> &Arc<Store> {
        match self {
            Self::Whole(recovered) => recovered.store(),
            Self::Snapshot(store) => store,
        }
    }
}

async fn open(
    image: &Path,
    takeover: bool,
    choices: &MountChoices,
    made: Option<Image>,
    spawn: Arc<dyn Spawn>,
) -> Result<(Image, Opened, RecoveryReport), Failure> {
    let storage = match made {
        Some(made) => made,
        None => {
            let how = How::new(OpenOptions {
                read_only: choices.store.read_only,
                beside_writer: choices.snapshot.is_some(),
                punch_holes: choices.punch_holes,
                ..OpenOptions::default()
            });
            let take_over = takeover.then_some(TakeOver::WhenExpired);
            image::open(image, &How { take_over, ..how })?
        }
    };
    tell_of_discards(image, choices, storage.is_block_device());
    let device = storage.device();
    let options = choices.store.clone();
    let about = |error: StoreError| Failure::from(error).about(image);
    let Some(name) = &choices.snapshot else {
        let (recovered, report) = Store::recover(device, options, spawn).await.map_err(about)?;
        return Ok((storage, Opened::Whole(Box::new(recovered)), report));
    };
    syncline_store::require_visible(name).map_err(about)?;
    let (store, _) = Store::open_snapshot(device, options, spawn, name).await.map_err(about)?;
    Ok((storage, Opened::Snapshot(store), RecoveryReport { clean: true, ..RecoveryReport::default() }))
}

/// Explains `-o discard` for an image file. An image that was fully allocated can never meet a full
/// host; one that gave space back can, and then its log can't be written.
fn tell_of_discards(image: &Path, choices: &MountChoices, block_device: bool) {
    if block_device || !choices.store.discard || choices.store.read_only {
        return;
    }
    let what = match choices.punch_holes {
        true => {
            "gives room back to its host; if the host is full when that is needed again, writes fail and the filesystem turns read-only"
        }
        false => {
            "an image file keeps its room, so -o discard does nothing here; -o discard=punch gives it back to the host"
        }
    };
    note!("syncline: {}: {what}", image.display());
}

/// Reports what recovery found, if it is worth mentioning.
fn tell(image: &Path, report: &RecoveryReport) {
    super::recovered::tell(image, report);
    tracing::info!(batches = report.batches, records = report.records, clean = report.clean, "recovered");
}

/// Tells the parent that the mount is usable and detaches from its terminal.
pub(super) fn detach_from_terminal(log: &File) -> Result<(), Failure> {
    let mut output = std::io::stdout();
    writeln!(output, "{READY}")?;
    output.flush()?;
    rustix::stdio::dup2_stdout(log)?;
    rustix::stdio::dup2_stderr(log)?;
    std::env::set_current_dir("/")?;
    Ok(())
}
