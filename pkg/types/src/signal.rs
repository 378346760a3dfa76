//! Signals by number or name, including real-time signals: images of init systems use `SIGRTMIN+3`.

use std::fmt;
use std::str::FromStr;

use crate::text::{serde_as_text, shorten};

/// The first real-time signal that programs may use, and the last. Source: glibc on Linux.
const RTMIN: u8 = 34;
const RTMAX: u8 = 64;

/// Names by number, as on x86 and Arm. Source: signal(7).
const NAMES: [(&str, u8); 31] = [
    ("HUP", 1),
    ("INT", 2),
    ("QUIT", 3),
    ("ILL", 4),
    ("TRAP", 5),
    ("ABRT", 6),
    ("BUS", 7),
    ("FPE", 8),
    ("KILL", 9),
    ("USR1", 10),
    ("SEGV", 11),
    ("USR2", 12),
    ("PIPE", 13),
    ("ALRM", 14),
    ("TERM", 15),
    ("STKFLT", 16),
    ("CHLD", 17),
    ("CONT", 18),
    ("STOP", 19),
    ("TSTP", 20),
    ("TTIN", 21),
    ("TTOU", 22),
    ("URG", 23),
    ("XCPU", 24),
    ("XFSZ", 25),
    ("VTALRM", 26),
    ("PROF", 27),
    ("WINCH", 28),
    ("IO", 29),
    ("PWR", 30),
    ("SYS", 31),
];

/// A signal that can be sent to a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Signal(u8);

/// A text that is not a signal.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{found:?} is not a signal; give a name like SIGTERM or RTMIN+3, or a number of 1 to 64")]
pub struct ParseSignalError {
    found: String,
}

impl Signal {
    /// The terminal or the caller of a process has gone.
    pub const HUP: Self = Self(1);
    /// Asks a process to end.
    pub const TERM: Self = Self(15);
    /// Kills a process unconditionally.
    pub const KILL: Self = Self(9);

    /// A signal by its number on Linux, 1 to 64.
    pub fn from_number(number: i32) -> Option<Self> {
        let number = u8::try_from(number).ok()?;
        (1..=RTMAX).contains(&number).then_some(Self(number))
    }

    /// Its number on Linux.
    pub fn number(self) -> i32 {
        i32::from(self.0)
    }

    /// Reads `SIGTERM`, `TERM`, `15` or `RTMIN+3`, in any case.
    pub fn parse(text: &str) -> Option<Self> {
        let upper = text.trim().to_ascii_uppercase();
        if let Ok(number) = upper.parse() {
            return Self::from_number(number);
        }
        let name = upper.strip_prefix("SIG").unwrap_or(&upper);
        if let Some(offset) = name.strip_prefix("RTMIN") {
            return real_time_offset(offset, '+').map(|offset| Self(RTMIN + offset));
        }
        if let Some(offset) = name.strip_prefix("RTMAX") {
            return real_time_offset(offset, '-').map(|offset| Self(RTMAX - offset));
        }
        NAMES.iter().find(|(known, _)| *known == name).map(|(_, number)| Self(*number))
    }
}

/// The distance from an end of the real-time range: empty, or `sign` and a number within the range.
fn real_time_offset(text: &str, sign: char) -> Option<u8> {
    let offset = if text.is_empty() { 0 } else { text.strip_prefix(sign)?.parse().ok()? };
    (offset <= RTMAX - RTMIN).then_some(offset)
}

impl FromStr for Signal {
    type Err = ParseSignalError;

    fn from_str(text: &str) -> Result<Self, ParseSignalError> {
        Self::parse(text).ok_or_else(|| ParseSignalError { found: shorten(text) })
    }
}

impl fmt::Display for Signal {
    /// `SIGTERM`; real-time ones by their number.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match NAMES.iter().find(|(_, number)| *number == self.0) {
            Some((name, _)) => f.pad(&format!("SIG{name}")),
            None => f.pad(&self.0.to_string()),
        }
    }
}

serde_as_text!(Signal);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_parse_from_names_and_numbers() {
        for (text, number) in [
            ("SIGTERM", 15),
            ("term", 15),
            ("9", 9),
            ("SIGQUIT", 3),
            ("SIGRTMIN+3", 37),
            ("RTMIN", 34),
            ("RTMAX-1", 63),
            ("SIGRTMAX", 64),
        ] {
            assert_eq!(Signal::parse(text).map(Signal::number), Some(number), "{text}");
        }
        for text in ["", "0", "65", "-1", "SIGNOPE", "RTMIN+99", "RTMIN3", "RTMAX+1"] {
            assert_eq!(Signal::parse(text), None, "{text}");
        }
        assert_eq!(Signal::TERM.to_string(), "SIGTERM");
        assert_eq!(Signal::parse("RTMIN+3").unwrap().to_string(), "37");
    }

    #[test]
    fn signal_has_one_spelling() {
        for signal in (1..=64).filter_map(Signal::from_number) {
            assert_eq!(signal.to_string().parse(), Ok(signal));
        }
    }
}
