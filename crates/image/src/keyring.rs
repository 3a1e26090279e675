//! The keys that this process knows, and whom it asks for others.
//!
//! Every encrypted image that the process opens gets its key here: images, the bases of forks, and images that are opened
//! again. So a key is asked for once, and each function that opens images does without a parameter for it.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use syncline_crypt::{Cipher, KeyError, KeyId, KeyRecord, Secret};

/// A question for the key of an image.
#[derive(Clone, Copy, Debug)]
pub struct Question<'a> {
    /// The path or location of the image, as the user gave it.
    pub image: &'a Path,
    /// How many answers did not open it.
    pub attempt: usize,
    /// Nobody waits who could be asked.
    pub unattended: bool,
}

/// Answers questions; `None` if there is no other answer.
pub type AskKey = dyn Fn(Question<'_>) -> Result<Option<Secret>, KeyError> + Send + Sync;

/// A key that has opened an image.
#[derive(Clone)]
pub(crate) struct Unlocked {
    pub(crate) cipher: Arc<Cipher>,
    pub(crate) secret: Arc<Secret>,
}

#[derive(Default)]
struct Keyring {
    secrets: Vec<Arc<Secret>>,
    unlocked: HashMap<KeyId, Unlocked>,
    ask: Option<Arc<AskKey>>,
    is_needed: bool,
}

static KEYRING: Mutex<Option<Keyring>> = Mutex::new(None);

fn with<T>(act: impl FnOnce(&mut Keyring) -> T) -> T {
    act(KEYRING.lock().get_or_insert_default())
}

/// Adds a passphrase, or the contents of a key file, which is tried on every encrypted image that this process opens
/// from now on.
pub fn add_key(secret: Secret) {
    with(|ring| {
        ring.secrets.retain(|known| **known != secret);
        ring.secrets.push(Arc::new(secret));
    });
}

/// The key that was added last.
pub(crate) fn newest() -> Option<Arc<Secret>> {
    with(|ring| ring.secrets.last().cloned())
}

/// Forgets all keys. Images that are open stay open.
pub fn forget_keys() {
    with(|ring| (ring.secrets.clear(), ring.unlocked.clear()));
}

/// From now on, refuses images that are not encrypted: the user gives a key, and does not want to write in the clear.
pub fn need_keys() {
    with(|ring| ring.is_needed = true);
}

pub(crate) fn is_needed() -> bool {
    with(|ring| ring.is_needed)
}

/// Sets whom this process asks for a key that it does not know.
pub fn ask_for_keys(ask: Arc<AskKey>) {
    with(|ring| ring.ask = Some(ask));
}

/// The passphrase or key file that opens an image with this record.
pub fn secret_for(image: &Path, record: &KeyRecord) -> Result<Arc<Secret>, KeyError> {
    unlock(image, record, false).map(|unlocked| unlocked.secret)
}

/// Finds the key of an image with this record.
pub(crate) fn unlock(image: &Path, record: &KeyRecord, unattended: bool) -> Result<Unlocked, KeyError> {
    let (known, secrets, ask) =
        with(|ring| (ring.unlocked.get(&record.key_id).cloned(), ring.secrets.clone(), ring.ask.clone()));
    if let Some(known) = known {
        return Ok(known);
    }
    let mut refused = KeyError::Missing;
    let mut tried = |secret: &Arc<Secret>| match record.open(secret) {
        Ok((master, _)) => {
            let unlocked = Unlocked { cipher: Arc::new(Cipher::new(&master)), secret: secret.clone() };
            with(|ring| ring.unlocked.insert(record.key_id, unlocked.clone()));
            Some(unlocked)
        }
        Err(error) => {
            refused = error;
            None
        }
    };
    if let Some(unlocked) = secrets.iter().find_map(&mut tried) {
        return Ok(unlocked);
    }
    for attempt in 0.. {
        let Some(ask) = &ask else { break };
        let Some(secret) = ask(Question { image, attempt, unattended })? else { break };
        if let Some(unlocked) = tried(&Arc::new(secret)) {
            return Ok(unlocked);
        }
    }
    Err(refused)
}
