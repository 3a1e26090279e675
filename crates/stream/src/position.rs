//! Where a stream stands, and the token by which its sender goes on from there.

use crate::fields::Fields;
use crate::{Header, StreamError};
use std::fmt;
use std::str::FromStr;

/// The form of tokens that this program writes and reads.
const TOKEN_FORM: u8 = 1;
/// Bytes of a token: form, UUID, features, two times, records, two checksums.
const TOKEN_BYTES: usize = 1 + 16 + 4 + 8 + 8 + 8 + 4 + 4;

/// A place between two records.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Position {
    /// The number of the record before it.
    pub records: u64,
    /// The checksum of everything before it, header included.
    pub checksum: u32,
}

/// The facts that a sender needs to go on with a stream: which one it is, and how much of it came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Token {
    /// The UUID of the filesystem that the snapshot is sent from.
    pub uuid: [u8; 16],
    /// Features of that filesystem when the stream began; they stand in its header.
    pub filesystem_features: u32,
    /// When the snapshot was made.
    pub created_ns: u64,
    /// When the snapshot was made that the stream starts from; 0 if it starts from none.
    pub parent_ns: u64,
    /// The position up to which the stream has come.
    pub position: Position,
}

impl Token {
    /// The token of a stream with this header.
    pub fn new(header: &Header, position: Position) -> Self {
        Self {
            uuid: header.uuid,
            filesystem_features: header.filesystem_features,
            created_ns: header.snapshot.created_ns,
            parent_ns: header.parent.as_ref().map_or(0, |parent| parent.created_ns),
            position,
        }
    }

    fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![TOKEN_FORM];
        bytes.extend_from_slice(&self.uuid);
        bytes.extend_from_slice(&self.filesystem_features.to_le_bytes());
        for field in [self.created_ns, self.parent_ns, self.position.records] {
            bytes.extend_from_slice(&field.to_le_bytes());
        }
        bytes.extend_from_slice(&self.position.checksum.to_le_bytes());
        let sum = crc32c::crc32c(&bytes);
        bytes.extend_from_slice(&sum.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Result<Self, StreamError> {
        let (covered, sum) = bytes.split_at_checked(TOKEN_BYTES - 4).ok_or(StreamError::Token)?;
        if crc32c::crc32c(covered).to_le_bytes() != sum {
            return Err(StreamError::Token);
        }
        let mut fields = Fields::new(covered, 0);
        match fields.u8()? {
            TOKEN_FORM => {}
            form => return Err(StreamError::Unknown(format!("has a token of form {form}"))),
        }
        let (uuid, filesystem_features) = (fields.array()?, fields.u32()?);
        let (created_ns, parent_ns) = (fields.u64()?, fields.u64()?);
        let position = Position { records: fields.u64()?, checksum: fields.u32()? };
        match position.records {
            0 => Err(StreamError::Token),
            _ => Ok(Self { uuid, filesystem_features, created_ns, parent_ns, position }),
        }
    }
}

/// Hexadecimal digits: one word for every shell.
impl fmt::Display for Token {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.encode().into_iter().try_for_each(|byte| write!(out, "{byte:02x}"))
    }
}

impl FromStr for Token {
    type Err = StreamError;

    fn from_str(text: &str) -> Result<Self, StreamError> {
        let digits = text.trim().as_bytes();
        if digits.len() != 2 * TOKEN_BYTES {
            return Err(StreamError::Token);
        }
        let digit = |byte: u8| char::from(byte).to_digit(16).ok_or(StreamError::Token);
        let pairs =
            digits.chunks(2).map(|pair| Ok::<_, StreamError>((digit(pair[0])? << 4 | digit(pair[1])?) as u8));
        Self::decode(&pairs.collect::<Result<Vec<u8>, StreamError>>()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token() -> Token {
        let position = Position { records: 77, checksum: 0x1234_5678 };
        Token { uuid: [9; 16], filesystem_features: 5, created_ns: 1 << 60, parent_ns: 3, position }
    }

    #[test]
    fn a_token_is_read_as_it_was_written() {
        let text = token().to_string();
        assert_eq!(text.len(), 2 * TOKEN_BYTES);
        assert_eq!(text.parse::<Token>().unwrap(), token());
        assert_eq!(format!(" {}\n", text.to_uppercase()).parse::<Token>().unwrap(), token());
    }

    #[test]
    fn a_damaged_token_is_refused() {
        let text = token().to_string();
        for at in 0..text.len() {
            let mut bytes = text.clone().into_bytes();
            bytes[at] = if bytes[at] == b'0' { b'1' } else { b'0' };
            let changed = String::from_utf8(bytes).unwrap();
            assert!(matches!(changed.parse::<Token>(), Err(StreamError::Token)), "digit {at}");
            assert!(matches!(text[..at].parse::<Token>(), Err(StreamError::Token)), "{at} digits");
        }
        assert!(matches!(text.replace('0', "\u{e9}").parse::<Token>(), Err(StreamError::Token)));
        assert!(matches!(format!("{text}00").parse::<Token>(), Err(StreamError::Token)));
        let none = Token { position: Position { records: 0, checksum: 0 }, ..token() };
        assert!(matches!(none.to_string().parse::<Token>(), Err(StreamError::Token)));
    }
}
