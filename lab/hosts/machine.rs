//! The machine of a test: network, mounts and processes of its own, and hosts in it that can be cut off.
//! Everything that runs there ends with it, even when the test fails.

use crate::support::{Place, eventually, missing_of, no_mounts, starting_a_namespace, tool};
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

/// Set in the machine: the folder for everything.
const FOLDER: &str = "SYNCLINE_HOSTS_FOLDER";
/// A file in the folder, made as soon as the machine has none of the other tests' mounts.
const DETACHED: &str = "detached";
/// Where servers listen.
pub const SERVER: &str = "10.77.0.1";
const BRIDGE: &str = "hosts";

/// Runs a test in a machine of its own, by starting this program's test `name`, which calls this, once more
/// in new namespaces. Skipped, with a line, if something is missing.
pub fn alone(name: &str, missing: Option<String>, time: Duration, test: impl FnOnce()) {
    alone_with(name, missing, time, &[], test);
}

/// The same with these variables set.
pub fn alone_with(
    name: &str,
    missing: Option<String>,
    time: Duration,
    set: &[(&str, &str)],
    test: impl FnOnce(),
) {
    if std::env::var_os(FOLDER).is_some() {
        set_up();
        return test();
    }
    // Another name would start no test, and pass.
    let thread = std::thread::current();
    assert!([Some(name), Some("main")].contains(&thread.name()), "{name} is called {:?}", thread.name());
    // Looked at once, before any machine: that is a mount, and a machine begins with all mounts.
    static NO_MOUNTS: OnceLock<Option<String>> = OnceLock::new();
    crate::skip_if!(NO_MOUNTS.get_or_init(no_mounts).clone());
    crate::skip_if!(missing.or_else(|| missing_of(&["setpriv", "unshare", "nsenter", "ip", "nft"])));
    let place = Place::new();
    let limit = (time.as_secs() + 240).to_string();
    // With this thread the machine ends, and with the machine all that runs in it.
    let ends = ["setpriv", "--pdeathsig", "KILL"];
    let mut command = Command::new(ends[0]);
    command.args(&ends[1..]).args(["timeout", "--signal=KILL", &limit]).args(ends);
    command
        .args(["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"])
        .arg(std::env::current_exe().unwrap());
    command.args([name, "--exact", "--include-ignored", "--nocapture"]).env(FOLDER, place.path());
    command.envs(set.iter().copied());
    let starting = starting_a_namespace();
    let mut machine = command.stdin(Stdio::null()).spawn().unwrap();
    let detached = place.path().join(DETACHED);
    eventually("the machine starts", || detached.exists() || machine.try_wait().unwrap().is_some());
    drop(starting);
    let status = machine.wait().unwrap();
    assert!(status.success(), "{name}: {status}");
}

/// The folder for everything, in memory.
pub fn folder() -> PathBuf {
    std::env::var_os(FOLDER).expect("set by `alone`").into()
}

/// The machine begins with the mounts of all other tests, which could not end before the machine.
fn detach_others() {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let others = mounts.lines().filter_map(|line| line.split(' ').nth(1));
    for path in others.filter(|path| path.contains("/syncline-test-")) {
        tool("umount", &["-i", "-l", path].map(OsStr::new));
    }
    fs::write(folder().join(DETACHED), "").unwrap();
}

fn set_up() {
    detach_others();
    must("mount", &["-t", "tmpfs", "-o", "size=12G", "none", folder().to_str().unwrap()]);
    must("ip", &["link", "set", "lo", "up"]);
    // With an address of its own: otherwise it has the lowest of its cables', and each host that comes
    // later may change it, while the others go on sending to the one before.
    must("ip", &["link", "add", BRIDGE, "address", "02:00:00:00:00:01", "type", "bridge"]);
    must("ip", &["addr", "add", &format!("{SERVER}/16"), "dev", BRIDGE]);
    must("ip", &["link", "set", BRIDGE, "up"]);
}

/// Runs a system tool that must succeed.
pub fn must(name: &str, arguments: &[&str]) -> String {
    let words: Vec<&OsStr> = arguments.iter().map(OsStr::new).collect();
    tool(name, &words).unwrap_or_else(|| panic!("{name} {arguments:?} failed"))
}

/// The part of a host's traffic that is dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cut {
    Incoming,
    Outgoing,
    Both,
}

/// A host: a network of its own with a cable to the server.
pub struct Host {
    /// A process that does nothing there.
    keeper: Child,
    network: PathBuf,
}

impl Host {
    /// The host with this number, from 1.
    pub fn new(number: usize) -> Self {
        let mut command = Command::new("unshare");
        let keeper = command.args(["--net", "--", "sleep", "infinity"]).stdin(Stdio::null()).spawn().unwrap();
        let network = PathBuf::from(format!("/proc/{}/ns/net", keeper.id()));
        let ours = fs::read_link("/proc/self/ns/net").unwrap();
        crate::support::eventually("a network of its own", || {
            fs::read_link(&network).is_ok_and(|network| network != ours)
        });
        let (pid, cable) = (keeper.id().to_string(), format!("to-h{number}"));
        let address = format!("10.77.{}.{}/16", 1 + number / 250, 1 + number % 250);
        must("ip", &["link", "add", &cable, "type", "veth", "peer", "name", "eth0", "netns", &pid]);
        must("ip", &["link", "set", &cable, "master", BRIDGE, "up"]);
        let host = Self { keeper, network };
        host.must("ip", &["addr", "add", &address, "dev", "eth0"]);
        host.must("ip", &["link", "set", "eth0", "up"]);
        host.must("ip", &["link", "set", "lo", "up"]);
        host.must("nft", &["add", "table", "inet", "cut"]);
        host
    }

    /// A command that runs on this host.
    pub fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={}", self.network.display())).arg("--").arg(program);
        command
    }

    fn must(&self, name: &str, arguments: &[&str]) {
        let net = format!("--net={}", self.network.display());
        must("nsenter", &[&[net.as_str(), "--", name], arguments].concat());
    }

    /// Drops its traffic from now on.
    pub fn cut(&self, cut: Cut) {
        for (hook, cuts) in [("input", Cut::Incoming), ("output", Cut::Outgoing)] {
            if cut == cuts || cut == Cut::Both {
                let chain = format!("{{ type filter hook {hook} priority 0; policy drop; }}");
                self.must("nft", &["add", "chain", "inet", "cut", hook, &chain]);
            }
        }
    }

    /// Ends a cut.
    pub fn heal(&self) {
        self.must("nft", &["delete", "table", "inet", "cut"]);
        self.must("nft", &["add", "table", "inet", "cut"]);
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.keeper.kill();
        let _ = self.keeper.wait();
    }
}
