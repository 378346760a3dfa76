//! Bytes as hexadecimal digits: written in lower case, read in either.

/// The bytes that `digits` stand for; the index of the first character that is no digit, otherwise. There must be
/// two digits to a byte.
pub(crate) fn parse(digits: &[u8], bytes: &mut [u8]) -> Result<(), usize> {
    assert_eq!(digits.len(), 2 * bytes.len(), "two digits to a byte");
    for (index, digit) in digits.iter().enumerate() {
        let value =
            char::from(*digit).to_digit(16).and_then(|value| u8::try_from(value).ok()).ok_or(index)?;
        bytes[index / 2] = bytes[index / 2] << 4 | value;
    }
    Ok(())
}

/// The digits of the bytes, one after the other.
pub(crate) fn digits(bytes: &[u8]) -> impl Iterator<Item = char> {
    let nibbles = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    nibbles.map(|nibble| char::from_digit(u32::from(nibble), 16).expect("four bits are a digit"))
}
