//! Programs that serve NBD. A server ends with its test.

use super::super::*;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use syncline_net::{NbdAddress, NbdLocation};

/// True if a program is there; says so if not.
pub fn installed(program: &str) -> bool {
    let found = Command::new(program).arg("--version").stdin(Stdio::null()).output().is_ok();
    if !found {
        println!("skipped: {program} is not installed");
    }
    found
}

pub struct Server {
    child: Child,
    location: NbdLocation,
}

impl Server {
    /// nbdkit on a socket in this folder.
    pub fn nbdkit(dir: &Path, arguments: &[&str]) -> Self {
        let socket = dir.join("socket");
        let _ = std::fs::remove_file(&socket);
        let mut command = Command::new("nbdkit");
        command.args(["--foreground", "--exit-with-parent", "--unix"]).arg(&socket).args(arguments);
        Self::start(command, socket, "")
    }

    /// A command that listens on a socket.
    pub fn start(command: Command, socket: PathBuf, export: &str) -> Self {
        let _ = std::fs::remove_file(&socket);
        let address = NbdAddress::Unix(socket);
        Self::start_at(command, NbdLocation { address, export: export.to_owned(), tls: None, wait: None })
    }

    /// A command that listens at a location.
    pub fn start_at(mut command: Command, location: NbdLocation) -> Self {
        let child = command.stdin(Stdio::null()).spawn().unwrap();
        let mut server = Self { child, location };
        let begun = Instant::now();
        while !server.listens() {
            assert!(server.child.try_wait().unwrap().is_none(), "the server ended");
            assert!(begun.elapsed() < LIMIT, "the server does not listen");
            std::thread::sleep(Duration::from_millis(5));
        }
        server
    }

    fn listens(&self) -> bool {
        match &self.location.address {
            NbdAddress::Unix(path) => std::os::unix::net::UnixStream::connect(path).is_ok(),
            NbdAddress::Tcp(host, port) => std::net::TcpStream::connect((host.as_str(), *port)).is_ok(),
        }
    }

    pub fn open(&self, wait: Wait) -> Arc<NbdDevice> {
        let location = NbdLocation { wait: Some(wait), ..self.location.clone() };
        NbdDevice::open(&location, NbdOptions::default()).unwrap()
    }

    /// Ends it as a power cut would.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
