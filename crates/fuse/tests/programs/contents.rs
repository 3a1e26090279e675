//! Contents that tell who wrote them and where: every byte follows from a tag and its offset.

/// The bytes `offset..offset + len` of the data with this tag. None of them is zero. The data of
/// every second tag compresses.
pub fn contents(tag: u64, offset: u64, len: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(len + 16);
    for word in offset / 8..(offset + len as u64).div_ceil(8) {
        let place = if tag.is_multiple_of(2) { word % 4 } else { word };
        bytes.extend(mix(tag << 32 ^ place).to_le_bytes().map(|byte| byte | 1));
    }
    bytes.drain(..(offset % 8) as usize);
    bytes.truncate(len);
    bytes
}

/// The finalizer of splitmix64.
fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// Says where two contents differ, and which bytes are found there.
pub fn difference(found: &[u8], expected: &[u8]) -> Option<String> {
    if found.len() != expected.len() {
        return Some(format!("{} bytes, not {}", found.len(), expected.len()));
    }
    let first = found.iter().zip(expected).position(|(found, expected)| found != expected)?;
    let count = found.iter().zip(expected).filter(|(found, expected)| found != expected).count();
    let what = match (found[first], expected[first]) {
        (0, _) => "zeros in place of data",
        (_, 0) => "data in place of zeros",
        _ => "other data",
    };
    Some(format!("{what}: {count} bytes from byte {first} on"))
}
