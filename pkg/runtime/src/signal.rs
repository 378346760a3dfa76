//! Signals by number or name, real-time ones included: images of init systems ask for `SIGRTMIN+3`.

use std::fmt;

use nix::sys::signal::Signal as Named;

/// The first real-time signal that programs may use, and the last. Source: glibc on Linux.
const RTMIN: i32 = 34;
const RTMAX: i32 = 64;

/// A signal that can be sent to a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Signal(i32);

impl Signal {
    /// Asks a process to end.
    pub const TERM: Self = Self(15);
    /// Ends a process whatever it does.
    pub const KILL: Self = Self(9);

    /// A signal by its number on Linux, 1 to 64.
    pub fn from_number(number: i32) -> Option<Self> {
        (1..=RTMAX).contains(&number).then_some(Self(number))
    }

    /// Reads `SIGTERM`, `TERM`, `15` or `RTMIN+3`, in any case.
    pub fn parse(text: &str) -> Option<Self> {
        let upper = text.trim().to_ascii_uppercase();
        if let Ok(number) = upper.parse() {
            return Self::from_number(number);
        }
        let name = upper.strip_prefix("SIG").unwrap_or(&upper);
        if let Some(offset) = name.strip_prefix("RTMIN") {
            return Self::real_time(RTMIN, offset.strip_prefix('+'), offset);
        }
        if let Some(offset) = name.strip_prefix("RTMAX") {
            return Self::real_time(RTMAX, offset.strip_prefix('-'), offset).map(|up| Self(2 * RTMAX - up.0));
        }
        format!("SIG{name}").parse::<Named>().ok().map(|named| Self(named as i32))
    }

    /// `base` plus an offset that keeps within the real-time range; the base itself without one. For an
    /// offset that counts down from the end, the caller mirrors the result.
    fn real_time(base: i32, offset: Option<&str>, whole: &str) -> Option<Self> {
        let offset: i32 = match offset {
            Some(offset) => offset.parse().ok()?,
            None if whole.is_empty() => 0,
            None => return None,
        };
        (0..=RTMAX - RTMIN).contains(&offset).then_some(Self(base + offset))
    }

    /// Its number on Linux.
    pub fn number(self) -> i32 {
        self.0
    }
}

impl fmt::Display for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Named::try_from(self.0) {
            Ok(named) => f.write_str(named.as_str()),
            Err(_) => write!(f, "{}", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers() {
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
}
