//! Values that Compose writes as text: durations, sizes, booleans, permission bits and shell words.

use std::time::Duration;

/// Units of durations, longest first where one begins another.
const TIME_UNITS: [(&str, u64); 7] = [
    ("us", 1_000),
    ("\u{b5}s", 1_000),
    ("ms", 1_000_000),
    ("ns", 1),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

/// A duration as Compose and Go write it: `1h5m30s20ms`, `1.5s`, `0`.
pub fn parse_duration(text: &str) -> Option<Duration> {
    if text == "0" {
        return Some(Duration::ZERO);
    }
    let (mut rest, mut total) = (text, 0_u64);
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, after) = rest.split_at(end);
        let unit_end = after.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(after.len());
        let (unit, next) = after.split_at(unit_end);
        let (_, nanoseconds) = TIME_UNITS.iter().find(|(name, _)| *name == unit)?;
        total = total.checked_add(decimal(number, *nanoseconds)?)?;
        rest = next;
    }
    (!text.is_empty()).then_some(Duration::from_nanos(total))
}

/// As [`parse_duration`] reads it.
pub fn duration_text(duration: Duration) -> String {
    let mut rest = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
    let mut text = String::new();
    for (unit, nanoseconds) in [
        ("h", 3_600_000_000_000),
        ("m", 60_000_000_000),
        ("s", 1_000_000_000),
        ("ms", 1_000_000),
        ("us", 1_000),
        ("ns", 1),
    ] {
        if rest >= nanoseconds {
            text += &format!("{}{unit}", rest / nanoseconds);
            rest %= nanoseconds;
        }
    }
    if text.is_empty() { "0s".to_owned() } else { text }
}

/// Bytes as Docker writes them: `64m`, `1.5gb`, `1024`. All units are powers of 1024.
pub fn parse_size(text: &str) -> Option<u64> {
    let lower = text.trim().to_ascii_lowercase();
    let end = lower.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(lower.len());
    let (number, unit) = lower.split_at(end);
    let bits = match unit.trim_start().trim_end_matches('b').trim_end_matches('i') {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "t" => 40,
        "p" => 50,
        _ => return None,
    };
    decimal(number, 1 << bits)
}

/// A decimal number of units, rounded down.
fn decimal(number: &str, unit: u64) -> Option<u64> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
    if !digits(whole) || !digits(fraction) || (whole.is_empty() && fraction.is_empty()) {
        return None;
    }
    let whole: u64 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    let fraction = fraction.get(..9).unwrap_or(fraction);
    let scale = 10_u128.pow(u32::try_from(fraction.len()).ok()?);
    let part: u128 = if fraction.is_empty() { 0 } else { fraction.parse().ok()? };
    let part = u64::try_from(part * u128::from(unit) / scale).ok()?;
    whole.checked_mul(unit)?.checked_add(part)
}

/// A boolean as text.
pub fn parse_bool(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "yes" | "on" | "y" | "t" | "1" => Some(true),
        "false" | "no" | "off" | "n" | "f" | "0" => Some(false),
        _ => None,
    }
}

/// Splits a command as a POSIX shell does, without expansions: blanks, quotes and backslashes.
///
/// # Errors
/// A quote is not closed.
pub fn split_words(text: &str) -> Result<Vec<String>, String> {
    let (mut words, mut word): (Vec<String>, Option<String>) = (Vec::new(), None);
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        match letter {
            ' ' | '\t' | '\n' | '\r' => words.extend(word.take()),
            '\'' | '"' => {
                let current = word.get_or_insert_default();
                loop {
                    match letters.next() {
                        None => return Err(format!("a quote {letter} is not closed")),
                        Some(end) if end == letter => break,
                        Some('\\') if letter == '"' => match letters.next() {
                            Some(escaped @ ('"' | '\\' | '$' | '`')) => current.push(escaped),
                            Some('\n') => {}
                            Some(other) => current.extend(['\\', other]),
                            None => return Err(format!("a quote {letter} is not closed")),
                        },
                        Some(inner) => current.push(inner),
                    }
                }
            }
            '\\' => match letters.next() {
                Some('\n') => {}
                Some(escaped) => word.get_or_insert_default().push(escaped),
                None => return Err("nothing follows the last backslash".to_owned()),
            },
            letter => word.get_or_insert_default().push(letter),
        }
    }
    words.extend(word);
    Ok(words)
}

/// The file of the security option `seccomp:FILE`; `None` for another one.
pub fn seccomp_file(option: &str) -> Option<&str> {
    let (name, value) = option.split_once(['=', ':'])?;
    (name == "seccomp" && !matches!(value, "" | "unconfined" | "builtin")).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_several_units() {
        let millis = Duration::from_millis;
        for (text, expected, shown) in [
            ("10s", millis(10_000), "10s"),
            ("1m30s", millis(90_000), "1m30s"),
            ("90s", millis(90_000), "1m30s"),
            ("1h5m30s20ms", millis(3_930_020), "1h5m30s20ms"),
            ("1.5s", millis(1500), "1s500ms"),
            ("250us", Duration::from_micros(250), "250us"),
            ("0", Duration::ZERO, "0s"),
        ] {
            assert_eq!(parse_duration(text), Some(expected), "{text}");
            assert_eq!(duration_text(expected), shown);
            assert_eq!(parse_duration(shown), Some(expected));
        }
        for bad in ["", "10", "s", "1x", "1d", "-1s", "1..5s", "99999999999h"] {
            assert_eq!(parse_duration(bad), None, "{bad}");
        }
    }

    #[test]
    fn sizes_are_powers_of_1024() {
        for (text, expected) in [
            ("0", 0),
            ("1024", 1024),
            ("10b", 10),
            ("64m", 64 << 20),
            ("64MB", 64 << 20),
            ("2kb", 2048),
            ("1.5g", 3 << 29),
            ("1GiB", 1 << 30),
            ("1 k", 1024),
        ] {
            assert_eq!(parse_size(text), Some(expected), "{text}");
        }
        for bad in ["", "m", "-1", "1x", "1.2.3", "99999999999t"] {
            assert_eq!(parse_size(bad), None, "{bad}");
        }
    }

    #[test]
    fn commands_are_split_as_by_a_shell() {
        for (text, expected) in [
            ("", vec![]),
            ("a b  c", vec!["a", "b", "c"]),
            (r#"sh -c 'echo "x y"'"#, vec!["sh", "-c", "echo \"x y\""]),
            (r#"a "b \"c\" \d" ''"#, vec!["a", "b \"c\" \\d", ""]),
            (r"a\ b c\'", vec!["a b", "c'"]),
            ("a'b'\"c\"", vec!["abc"]),
        ] {
            assert_eq!(split_words(text).unwrap(), expected, "{text}");
        }
        assert!(
            split_words("a 'b").is_err() && split_words("a \"b\\").is_err() && split_words("\\").is_err()
        );
    }
}
