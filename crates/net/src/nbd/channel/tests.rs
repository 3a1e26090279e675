//! TLS over a socket without room.

use super::*;
use rcgen::{CertificateParams, KeyPair};
use rustls::crypto::ring::default_provider;
use rustls::pki_types::PrivateKeyDer;
use rustls::{RootCertStore, ServerConfig, ServerConnection};

/// The client's end of a connection with TLS, and the server's.
fn pair() -> (Channel, ServerConnection, UnixStream) {
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec!["server.example".to_owned()]).unwrap();
    let certificate = params.self_signed(&key).unwrap().der().clone();
    let mut known = RootCertStore::empty();
    known.add(certificate.clone()).unwrap();
    let client = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(known)
        .with_no_client_auth();
    let server = ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], PrivateKeyDer::try_from(key.serialize_der()).unwrap())
        .unwrap();
    let (ours, mut its) = UnixStream::pair().unwrap();
    let serving = std::thread::spawn(move || {
        let mut connection = ServerConnection::new(Arc::new(server)).unwrap();
        while connection.is_handshaking() || connection.wants_write() {
            connection.complete_io(&mut its).unwrap();
        }
        (connection, its)
    });
    let name = ServerName::try_from("server.example").unwrap();
    let channel = Channel::unix(ours).start_tls(Arc::new(client), name).unwrap();
    let (connection, its) = serving.join().unwrap();
    its.set_nonblocking(true).unwrap();
    (channel, connection, its)
}

/// Takes all that has arrived; returns how much.
fn arrived(mut socket: &UnixStream) -> usize {
    let (mut bytes, mut count) = (vec![0; 64 << 10], 0);
    loop {
        match socket.read(&mut bytes) {
            Ok(read) => count += read,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return count,
            Err(error) => panic!("{error}"),
        }
    }
}

/// A thread that sends a change asks before each part whether it may still send it. A thread that
/// receives an answer does not ask, so it must not send such a part.
#[test]
fn receiving_sends_nothing_that_waits_for_room() {
    let (channel, mut server, socket) = pair();
    let change = vec![1; 1 << 20];
    while !channel.send(&[IoSlice::new(&change)], Room::Take).unwrap().pending {}
    assert!(arrived(&socket) > 0, "now there is room");
    server.writer().write_all(b"answer").unwrap();
    while server.wants_write() {
        server.write_tls(&mut &socket).unwrap();
    }
    let mut answer = [0; 16];
    let received = channel.receive(&mut answer).unwrap();
    assert_eq!(answer[..received], *b"answer");
    assert_eq!(arrived(&socket), 0, "bytes of the change went with it");
    channel.send(&[], Room::Take).unwrap();
    assert!(arrived(&socket) > 0);
}
