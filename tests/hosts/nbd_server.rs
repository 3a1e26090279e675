//! An NBD server that can lose its power: what no flush covered is then forgotten, block by block by
//! chance. It listens on TCP, for any number of connections, and answers in order on each.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

const BLOCK: usize = 4096;
const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const REPLY_MAGIC: u32 = 0x6744_6698;
/// HAS_FLAGS, SEND_FLUSH, SEND_FUA, SEND_TRIM, CAN_MULTI_CONN.
const EXPORT_FLAGS: u16 = 1 | 1 << 2 | 1 << 3 | 1 << 5 | 1 << 8;
const EINVAL: u32 = 22;
const REQUEST_MAX: usize = 32 << 20;

/// A disk with a cache that only a flush empties.
struct Disk {
    durable: Vec<u8>,
    /// Blocks that no flush has covered yet.
    cached: BTreeMap<usize, Box<[u8]>>,
    /// How often the power was lost: requests of before are not carried out.
    lives: u64,
    rng: ChaCha8Rng,
}

impl Disk {
    fn read(&self, offset: usize, len: usize) -> Vec<u8> {
        let mut bytes = self.durable[offset..offset + len].to_vec();
        for (block, cached) in self.cached.range(offset / BLOCK..(offset + len).div_ceil(BLOCK)) {
            let at = block * BLOCK - offset;
            bytes[at..at + BLOCK].copy_from_slice(cached);
        }
        bytes
    }

    fn write(&mut self, offset: usize, bytes: &[u8], through: bool) {
        for (index, block) in bytes.chunks(BLOCK).enumerate() {
            let number = offset / BLOCK + index;
            match through {
                true => {
                    self.cached.remove(&number);
                    self.durable[number * BLOCK..][..BLOCK].copy_from_slice(block);
                }
                false => drop(self.cached.insert(number, block.into())),
            }
        }
    }

    fn flush(&mut self) {
        for (number, block) in std::mem::take(&mut self.cached) {
            self.durable[number * BLOCK..][..BLOCK].copy_from_slice(&block);
        }
    }

    /// Some of the blocks are there by chance, most often none.
    fn lose_power(&mut self) {
        self.lives += 1;
        let survive = *[0.0, 0.0, 0.5, 0.9].get(self.rng.random_range(0..4)).expect("four");
        for (number, block) in std::mem::take(&mut self.cached) {
            if self.rng.random_bool(survive) {
                self.durable[number * BLOCK..][..BLOCK].copy_from_slice(&block);
            }
        }
    }
}

/// The server; it loses power when it is dropped.
pub struct NbdServer {
    address: (&'static str, u16),
    disk: Arc<Mutex<Disk>>,
    running: Option<Running>,
}

struct Running {
    ends: Arc<AtomicBool>,
    connections: Arc<Mutex<Vec<TcpStream>>>,
    accepting: JoinHandle<()>,
}

impl NbdServer {
    pub fn new(address: (&'static str, u16), bytes: usize, seed: u64) -> Self {
        let rng = ChaCha8Rng::seed_from_u64(seed);
        let disk = Disk { durable: vec![0; bytes], cached: BTreeMap::new(), lives: 0, rng };
        let mut server = Self { address, disk: Arc::new(Mutex::new(disk)), running: None };
        server.start();
        server
    }

    pub fn image(&self) -> String {
        format!("nbd://{}:{}/?wait=60", self.address.0, self.address.1)
    }

    pub fn start(&mut self) {
        if self.running.is_some() {
            return;
        }
        let listener = TcpListener::bind(self.address).expect("the address is ours");
        listener.set_nonblocking(true).unwrap();
        let (ends, connections) = (Arc::<AtomicBool>::default(), Arc::<Mutex<Vec<TcpStream>>>::default());
        let (disk, life) = (self.disk.clone(), self.disk.lock().unwrap().lives);
        let accepting = {
            let (ends, connections) = (ends.clone(), connections.clone());
            std::thread::spawn(move || {
                while !ends.load(Ordering::SeqCst) {
                    let Ok((stream, _)) = listener.accept() else {
                        std::thread::sleep(Duration::from_millis(5));
                        continue;
                    };
                    stream.set_nonblocking(false).unwrap();
                    stream.set_nodelay(true).unwrap();
                    connections.lock().unwrap().push(stream.try_clone().unwrap());
                    let disk = disk.clone();
                    // It ends with its connection, whatever the reason.
                    std::thread::spawn(move || {
                        let _ = serve(&stream, &disk, life);
                        let _ = stream.shutdown(Shutdown::Both);
                    });
                }
            })
        };
        self.running = Some(Running { ends, connections, accepting });
    }

    /// Power is lost: connections break, and what was cached is forgotten.
    pub fn kill(&mut self) {
        let Some(running) = self.running.take() else { return };
        self.disk.lock().unwrap().lose_power();
        running.ends.store(true, Ordering::SeqCst);
        running.accepting.join().expect("no panic");
        for stream in running.connections.lock().unwrap().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

impl Drop for NbdServer {
    fn drop(&mut self) {
        self.kill();
    }
}

fn receive<const N: usize>(mut stream: &TcpStream) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn receive_vec(mut stream: &TcpStream, len: usize) -> io::Result<Vec<u8>> {
    if len > REQUEST_MAX {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut bytes = vec![0; len];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn serve(stream: &TcpStream, disk: &Mutex<Disk>, life: u64) -> io::Result<()> {
    let size = disk.lock().unwrap().durable.len() as u64;
    if !shake_hands(stream, size)? {
        return Ok(());
    }
    loop {
        let header: [u8; 28] = receive(stream)?;
        let number = |at: usize| u32::from_be_bytes(header[at..at + 4].try_into().expect("four"));
        if number(0) != REQUEST_MAGIC {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let (flags, command) = (number(4) >> 16, number(4) & 0xffff);
        let offset = u64::from_be_bytes(header[16..24].try_into().expect("eight")) as usize;
        let len = number(24) as usize;
        let data = if command == 1 { receive_vec(stream, len)? } else { Vec::new() };
        let mut reply = [&REPLY_MAGIC.to_be_bytes()[..], &[0; 4], &header[8..16]].concat();
        let aligned = offset.is_multiple_of(BLOCK) && len.is_multiple_of(BLOCK);
        let known = matches!(command, 0..=4);
        if !known || !aligned || offset as u64 + len as u64 > size || len > REQUEST_MAX {
            reply[4..8].copy_from_slice(&EINVAL.to_be_bytes());
        } else {
            let mut disk = disk.lock().unwrap();
            if disk.lives != life {
                return Ok(());
            }
            match command {
                0 => reply.extend(disk.read(offset, len)),
                1 => disk.write(offset, &data, flags & 1 != 0),
                2 => return Ok(()),
                3 => disk.flush(),
                // What was discarded may hold anything.
                _ => {}
            }
        }
        (&*stream).write_all(&reply)?;
    }
}

/// The fixed newstyle handshake; false if the client only had a look.
fn shake_hands(mut stream: &TcpStream, size: u64) -> io::Result<bool> {
    stream.write_all(&[b"NBDMAGIC".as_slice(), &OPTION_MAGIC.to_be_bytes(), &[0, 3]].concat())?;
    let _: [u8; 4] = receive(stream)?;
    loop {
        let header: [u8; 16] = receive(stream)?;
        let option = u32::from_be_bytes(header[8..12].try_into().expect("four"));
        let len = u32::from_be_bytes(header[12..16].try_into().expect("four"));
        receive_vec(stream, len as usize)?;
        let reply = |kind: u32, data: &[u8]| {
            let head = [&OPTION_REPLY_MAGIC.to_be_bytes()[..], &option.to_be_bytes(), &kind.to_be_bytes()];
            [&head.concat()[..], &(data.len() as u32).to_be_bytes(), data].concat()
        };
        let (ack, info, unsupported) = (1, 3, 1 << 31 | 1);
        match option {
            // GO and INFO.
            6 | 7 => {
                let export = [&[0, 0][..], &size.to_be_bytes(), &EXPORT_FLAGS.to_be_bytes()].concat();
                let sizes = [BLOCK, BLOCK, REQUEST_MAX].map(|size| (size as u32).to_be_bytes()).concat();
                stream.write_all(&reply(info, &export))?;
                stream.write_all(&reply(info, &[&[0, 3][..], &sizes].concat()))?;
                stream.write_all(&reply(ack, &[]))?;
                if option == 7 {
                    return Ok(true);
                }
            }
            2 => return stream.write_all(&reply(ack, &[])).map(|()| false),
            _ => stream.write_all(&reply(unsupported, &[]))?,
        }
    }
}
