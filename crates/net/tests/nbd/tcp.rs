//! Connections over TCP: where they lead, and what their sockets hold when they are given up.

use super::*;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::Mutex;
use syncline_net::{NbdAddress, NbdLocation};

/// The server's side of a handshake: an export of 64 MiB that several connections may use.
fn greet(stream: &TcpStream) {
    const OPTION_REPLY: u64 = 0x0003_e889_0455_65a9;
    let received = |len: usize| {
        let mut bytes = vec![0; len];
        (&*stream).read_exact(&mut bytes).unwrap();
        bytes
    };
    (&*stream).write_all(b"NBDMAGICIHAVEOPT\0\x03").unwrap();
    received(4);
    loop {
        let header = received(16);
        let number = |at: usize| u32::from_be_bytes(header[at..at + 4].try_into().unwrap());
        let option = number(8);
        received(number(12) as usize);
        let reply = |kind: u32, data: &[u8]| {
            let mut bytes = OPTION_REPLY.to_be_bytes().to_vec();
            [option, kind, data.len() as u32].iter().for_each(|field| bytes.extend(field.to_be_bytes()));
            bytes.extend(data);
            (&*stream).write_all(&bytes).unwrap();
        };
        if option != 7 {
            reply((1 << 31) + 1, b"unknown");
            continue;
        }
        let flags = 1 | server::FLUSH | server::MULTI_CONN;
        reply(3, &[&[0, 0][..], &(64u64 << 20).to_be_bytes(), &flags.to_be_bytes()].concat());
        return reply(1, &[]);
    }
}

/// Answers the read by which the client sees that the connection is alive, if it asks.
fn answer_read(mut stream: &TcpStream) {
    let mut request = [0; 28];
    stream.read_exact(&mut request).unwrap();
    if request[6..8] != [0, 0] {
        return;
    }
    let header = [&[0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0], &request[8..16]].concat();
    stream.write_all(&[header, vec![0; BLOCK]].concat()).unwrap();
}

/// One connection breaks, so both are given up, and everything is sent again over new ones. If the
/// socket of the other one still sent its bytes, they would arrive after that: over newer contents.
#[test]
fn a_connection_that_was_given_up_delivers_nothing_more() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = NbdAddress::Tcp("127.0.0.1".into(), listener.local_addr().unwrap().port());
    // This thread has so long for each answer.
    let wait = Some(Wait::Seconds(5));
    let location = NbdLocation { address, export: "disk".into(), tls: None, wait };
    let options = NbdOptions { connections: 2, ..NbdOptions::default() };
    let opening = std::thread::spawn(move || NbdDevice::open(&location, options).unwrap());
    let accept = || listener.accept().unwrap().0;
    let first = accept();
    greet(&first);
    let second = accept();
    greet(&second);
    answer_read(&first);
    let device = opening.join().unwrap();

    // More than the server's side of a connection takes.
    let writes: Vec<_> = (0..16).map(|index| write(&device, index << 22, 1, 4 << 20)).collect();
    std::thread::sleep(Duration::from_millis(300));
    first.shutdown(Shutdown::Both).unwrap();
    // The next one comes when the client is done with those before.
    let _third = accept();
    assert_eq!(end_of(&second), Some(ErrorKind::ConnectionReset), "all that the socket held has arrived");
    for write in writes {
        write.wait().unwrap_err();
    }
}

/// A connection of a server that carries nothing out: it takes so many writes and answers each, and no
/// flush.
fn take_writes(mut stream: &TcpStream, count: usize) {
    for _ in 0..count {
        let cookie = take_write(stream);
        stream.write_all(&[&[0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0][..], &cookie].concat()).unwrap();
    }
}

/// Takes a write, and returns its cookie.
fn take_write(mut stream: &TcpStream) -> [u8; 8] {
    loop {
        let mut request = [0; 28];
        stream.read_exact(&mut request).unwrap();
        let cookie = request[8..16].try_into().unwrap();
        let len = u32::from_be_bytes(request[24..28].try_into().unwrap());
        match request[6..8] {
            [0, 1] => {
                stream.read_exact(&mut vec![0; len as usize]).unwrap();
                return cookie;
            }
            _ => assert_eq!(request[6..8], [0, 3], "neither a write nor a flush"),
        }
    }
}

/// A device with writes that no flush covers, whose connection has broken; and the next one, over
/// which it writes them again.
fn write_again(count: usize, len: usize) -> (TcpListener, Arc<NbdDevice>, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = NbdAddress::Tcp("127.0.0.1".into(), listener.local_addr().unwrap().port());
    let wait = Some(Wait::Seconds(20));
    let location = NbdLocation { address, export: "disk".into(), tls: None, wait };
    let options = NbdOptions { connections: 1, ..NbdOptions::default() };
    let opening = std::thread::spawn(move || NbdDevice::open(&location, options).unwrap());
    let first = listener.accept().unwrap().0;
    greet(&first);
    let device = opening.join().unwrap();
    let writes: Vec<_> = (0..count).map(|index| write(&device, (index * len) as u64, 1, len)).collect();
    take_writes(&first, count);
    writes.into_iter().for_each(|write| write.wait().unwrap());
    drop(first);
    let second = listener.accept().unwrap().0;
    greet(&second);
    second.set_read_timeout(Some(LIMIT)).unwrap();
    (listener, device, second)
}

/// How a connection ends of which the rest is read.
fn end_of(mut stream: &TcpStream) -> Option<ErrorKind> {
    let mut arrived = vec![0; 1 << 20];
    loop {
        match stream.read(&mut arrived) {
            Ok(0) => return None,
            Ok(_) => {}
            Err(error) => return Some(error.kind()),
        }
    }
}

/// The lease is lost while unflushed changes are written again, to a server that takes nothing more:
/// another host may have the image by then, so nothing more may leave this one.
#[test]
fn writing_again_ends_with_the_device() {
    // More than the server's side of a connection takes, in one piece.
    let (_listener, device, second) = write_again(1, 16 << 20);
    std::thread::sleep(Duration::from_millis(300));
    device.end(io::Error::other("another host has it"));
    assert_eq!(end_of(&second), Some(ErrorKind::ConnectionReset), "the rest has arrived");
}

/// The server refuses one of the writes that it is told again. The others that are under way on that
/// connection must not come behind those of the next attempt.
#[test]
fn an_attempt_that_failed_delivers_nothing_more() {
    let (listener, _device, second) = write_again(16, 16 << 10);
    let cookie = take_write(&second);
    (&second).write_all(&[&[0x67, 0x44, 0x66, 0x98, 0, 0, 0, 28][..], &cookie].concat()).unwrap();
    // The client is done with the second when this one comes.
    let _third = listener.accept().unwrap();
    assert_eq!(end_of(&second), Some(ErrorKind::ConnectionReset), "the others have arrived");
}

/// A name may have several addresses, and behind each another server, though its export looks alike.
#[test]
fn all_connections_lead_to_one_server() {
    let here: Option<Vec<_>> = TcpListener::bind("localhost:0").ok().and_then(|one| {
        let port = one.local_addr().ok()?.port();
        drop(one);
        let addresses = ("localhost", port).to_socket_addrs().ok()?;
        addresses.map(|address| TcpListener::bind(address).ok()).collect()
    });
    let Some(Ok([first, other])) = here.map(<[TcpListener; 2]>::try_from) else {
        return eprintln!("skipped: localhost has no two addresses here");
    };
    let address = NbdAddress::Tcp("localhost".into(), first.local_addr().unwrap().port());
    let location = NbdLocation { address, export: "disk".into(), tls: None, wait: None };
    std::thread::spawn(move || greet(&other.accept().unwrap().0));
    std::thread::spawn(move || {
        let stream = first.accept().unwrap().0;
        // It accepts no more.
        drop(first);
        greet(&stream);
        answer_read(&stream);
    });
    let device = NbdDevice::open(&location, NbdOptions::default()).unwrap();
    assert_eq!(device.connections(), 1);
}

/// Serves a connection, one request after the other, and reads nothing for a while after each
/// `every` bytes: its disk is busy.
fn serve_haltingly(
    mut stream: &TcpStream,
    disk: &Mutex<Vec<u8>>,
    since: &Mutex<u64>,
    every: u64,
    halt: Duration,
) -> io::Result<()> {
    loop {
        let mut request = [0; 28];
        stream.read_exact(&mut request)?;
        let number = |range: std::ops::Range<usize>| {
            request[range].iter().fold(0u64, |number, byte| number << 8 | u64::from(*byte))
        };
        let (offset, len) = (number(16..24) as usize, number(24..28) as usize);
        let mut reply = [&[0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0], &request[8..16]].concat();
        match number(6..8) {
            0 => reply.extend(&disk.lock().unwrap()[offset..offset + len]),
            1 => {
                let mut data = vec![0; len];
                stream.read_exact(&mut data)?;
                let mut disk = disk.lock().unwrap();
                disk[offset..offset + len].copy_from_slice(&data);
                *since.lock().unwrap() += len as u64;
                if *since.lock().unwrap() >= every {
                    *since.lock().unwrap() = 0;
                    std::thread::sleep(halt);
                }
            }
            3 => {}
            _ => return Ok(()),
        }
        stream.write_all(&reply)?;
    }
}

/// A server whose disk is busy reads nothing meanwhile, and its connections break, since their data
/// must not be under way for that long. That costs time, and nothing else.
#[test]
fn a_server_that_halts_is_slow_and_not_away() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = NbdAddress::Tcp("127.0.0.1".into(), listener.local_addr().unwrap().port());
    let location = NbdLocation { address, export: "disk".into(), tls: None, wait: None };
    std::thread::spawn(move || {
        let (disk, since) = (Arc::new(Mutex::new(vec![0; 64 << 20])), Arc::new(Mutex::new(0)));
        for stream in listener.incoming().map(Result::unwrap) {
            let (disk, since) = (disk.clone(), since.clone());
            std::thread::spawn(move || {
                greet(&stream);
                serve_haltingly(&stream, &disk, &since, 16 << 20, Duration::from_secs(2))
            });
        }
    });
    let options = NbdOptions { connections: 1, dead_after: Duration::from_secs(1), ..NbdOptions::default() };
    let device = NbdDevice::open(&location, options).unwrap();
    let began = Instant::now();
    let writes: Vec<_> = (0..48).map(|index| write(&device, index << 20, index as u8, 1 << 20)).collect();
    for write in writes {
        write.wait().unwrap();
    }
    flush(&device).wait().unwrap();
    eprintln!("{:?}, {} reconnects", began.elapsed(), device.counters().reconnects);
    for index in 0..48 {
        assert_filled(&device, index << 20, index as u8, 1 << 20);
    }
}
