//! Base64 (RFC 4648, section 4), for data that is not text.

const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Encodes with padding.
pub fn encode_base64(bytes: &[u8]) -> String {
    let group = |three: &[u8]| {
        let at = |i: usize| u32::from(three.get(i).copied().unwrap_or(0));
        let bits = at(0) << 16 | at(1) << 8 | at(2);
        let digit = move |i: usize| match i > three.len() {
            true => '=',
            false => char::from(DIGITS[(bits >> (18 - 6 * i) & 63) as usize]),
        };
        [digit(0), digit(1), digit(2), digit(3)]
    };
    bytes.chunks(3).flat_map(group).collect()
}

/// Decodes with padding; blanks and line breaks are skipped. `None` if it is not base64.
pub fn decode_base64(text: &str) -> Option<Vec<u8>> {
    let digits: Vec<u8> = text.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
    if !digits.len().is_multiple_of(4) {
        return None;
    }
    let padding = digits.iter().rev().take_while(|byte| **byte == b'=').count();
    if padding > 2 {
        return None;
    }
    let value = |byte: u8| match byte {
        b'A'..=b'Z' => Some(byte - b'A'),
        b'a'..=b'z' => Some(byte - b'a' + 26),
        b'0'..=b'9' => Some(byte - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    };
    let mut bytes = Vec::with_capacity(digits.len() / 4 * 3);
    for four in digits[..digits.len() - padding].chunks(4) {
        let mut bits = 0_u32;
        for digit in four {
            bits = bits << 6 | u32::from(value(*digit)?);
        }
        bits <<= 6 * (4 - four.len());
        let [_, one, two, three] = bits.to_be_bytes();
        bytes.extend(&[one, two, three][..four.len() - 1]);
        // Digits beyond the last byte are zero, so that one value has one text.
        if four.len() < 4 && [one, two, three][four.len() - 1] != 0 {
            return None;
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_survive_encoding() {
        for (bytes, text) in
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foobar", "Zm9vYmFy")]
        {
            assert_eq!(encode_base64(bytes.as_bytes()), text);
            assert_eq!(decode_base64(text).unwrap(), bytes.as_bytes());
        }
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(decode_base64(&encode_base64(&all)).unwrap(), all);
        assert_eq!(decode_base64("Zm9v\n YmFy\n").unwrap(), b"foobar");
        for wrong in ["Z", "Zg", "Zg=", "Z===", "Zh==", "Zm9=", "Zm\u{e4}v", "Zm9-", "=Zm9"] {
            assert_eq!(decode_base64(wrong), None, "{wrong}");
        }
    }
}
