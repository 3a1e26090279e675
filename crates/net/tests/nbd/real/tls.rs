//! TLS with nbdkit, and certificates made here.

use super::programs::{Server, installed};
use super::{super::*, exercise};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use syncline_net::{NbdAddress, NbdLocation, TlsFiles};

/// An authority, a server's certificate for this host, and a client's, as nbdkit names them.
fn make_certificates(dir: &Path, host: &str) {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(rcgen::DnType::CommonName, "an authority of a test");
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    std::fs::write(dir.join("ca-cert.pem"), authority.pem()).unwrap();
    for (name, subject) in [("server", host), ("client", "client.example")] {
        let key = KeyPair::generate().unwrap();
        let certificate =
            CertificateParams::new(vec![subject.to_owned()]).unwrap().signed_by(&key, &authority).unwrap();
        std::fs::write(dir.join(format!("{name}-cert.pem")), certificate.pem()).unwrap();
        std::fs::write(dir.join(format!("{name}-key.pem")), key.serialize_pem()).unwrap();
    }
}

fn serve(dir: &Path, extra: &[&str]) -> (Server, NbdLocation) {
    // Another program may take the port in between; the server then says so and ends.
    let port = TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port();
    let mut command = Command::new("nbdkit");
    command.args(["--foreground", "--exit-with-parent", "--ipaddr=127.0.0.1", "--tls=require"]);
    command.arg(format!("--port={port}")).arg(format!("--tls-certificates={}", dir.display()));
    command.args(extra).args(["memory", "64M"]);
    let address = NbdAddress::Tcp("127.0.0.1".into(), port);
    let tls = Some(TlsFiles { ca: Some(dir.join("ca-cert.pem")), ..TlsFiles::default() });
    let location = NbdLocation { address, export: String::new(), tls, wait: Some(Wait::Seconds(10)) };
    (Server::start_at(command, location.clone()), location)
}

fn has_tls() -> bool {
    if !installed("nbdkit") {
        return false;
    }
    let about = Command::new("nbdkit").arg("--dump-config").output().unwrap().stdout;
    let has = String::from_utf8_lossy(&about).contains("tls=yes");
    if !has {
        println!("skipped: this nbdkit has no TLS");
    }
    has
}

fn refusal(location: &NbdLocation) -> String {
    let refused = NbdDevice::open(location, NbdOptions::default()).map(drop);
    let text = refused.unwrap_err().to_string();
    assert!(text.starts_with("cannot open nbd") && !text.contains('\n'), "{text}");
    text
}

#[test]
fn everything_goes_through_tls() {
    if !has_tls() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    make_certificates(dir.path(), "127.0.0.1");
    let (server, location) = serve(dir.path(), &[]);
    let device = server.open(Wait::Seconds(20));
    exercise(&device);
    assert_eq!(device.counters().reconnects, 0);
    let plain = NbdLocation { tls: None, ..location };
    assert!(refusal(&plain).contains("use nbds://"), "{}", refusal(&plain));
}

#[test]
fn a_client_shows_its_certificate_where_it_is_asked_for() {
    if !has_tls() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    make_certificates(dir.path(), "127.0.0.1");
    let (_server, location) = serve(dir.path(), &["--tls-verify-peer"]);
    let file = |name: &str| Some(dir.path().join(name));
    let own =
        TlsFiles { ca: file("ca-cert.pem"), cert: file("client-cert.pem"), key: file("client-key.pem") };
    let known = NbdLocation { tls: Some(own), ..location.clone() };
    exercise(&NbdDevice::open(&known, NbdOptions::default()).unwrap());
    refusal(&location);
}

#[test]
fn a_server_that_can_t_be_trusted_is_refused() {
    if !has_tls() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    make_certificates(dir.path(), "other.example");
    let (_server, location) = serve(dir.path(), &[]);
    assert!(refusal(&location).contains("certificate"), "another name: {}", refusal(&location));
    let system = NbdLocation { tls: Some(TlsFiles::default()), ..location.clone() };
    refusal(&system);
    let elsewhere = tempfile::tempdir().unwrap();
    make_certificates(elsewhere.path(), "127.0.0.1");
    let ca = |path: PathBuf| NbdLocation {
        tls: Some(TlsFiles { ca: Some(path), ..TlsFiles::default() }),
        ..location.clone()
    };
    assert!(refusal(&ca(elsewhere.path().join("ca-cert.pem"))).contains("certificate"));
    assert!(refusal(&ca(dir.path().join("none.pem"))).contains("none.pem is no certificate"));
    let empty = dir.path().join("empty.pem");
    std::fs::write(&empty, "").unwrap();
    assert!(refusal(&ca(empty)).contains("there is none in it"));
}
