//! Identifiers. Made by whoever asks (clients, joiners), and by `apply` only of volumes that nobody asked for; 128 bits
//! written as 25 base-36 digits.

use std::fmt;
use std::str::FromStr;

use crate::text::serde_as_text;

use serde::{Deserialize, Serialize};

/// How many base-36 digits hold 128 bits.
const DIGITS: usize = 25;

/// An opaque 128-bit identifier, written as 25 lower-case base-36 digits so that it sorts as it reads.
///
/// It is aligned as a word is, and not as a `u128`: managers hold several for each task, most beside a word, and would
/// hold as many bytes of padding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(Rust, packed(8))]
pub struct Id(pub u128);

/// A text that is not an identifier. Both repeat at most the first 64 characters of it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseIdError {
    /// It does not have the form.
    #[error("{found:?} is not {wanted}")]
    Form {
        /// What it should be.
        wanted: &'static str,
        /// What it is.
        found: String,
    },
    /// It is a number, and does not fit.
    #[error(
        "{found:?} is too long: an id has 128 bits, which are {DIGITS} base-36 digits up to {max}",
        max = Id(u128::MAX)
    )]
    TooLong {
        /// What it is.
        found: String,
    },
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut digits = [b'0'; DIGITS];
        let mut rest = self.0;
        for digit in digits.iter_mut().rev() {
            let value = (rest % 36) as u8;
            *digit = if value < 10 { b'0' + value } else { b'a' + value - 10 };
            rest /= 36;
        }
        f.pad(std::str::from_utf8(&digits).expect("base-36 digits are ASCII"))
    }
}

impl FromStr for Id {
    type Err = ParseIdError;

    fn from_str(text: &str) -> Result<Self, ParseIdError> {
        let is_digit = |byte| matches!(byte, b'0'..=b'9' | b'a'..=b'z');
        if text.len() < DIGITS || !text.bytes().all(is_digit) {
            let (wanted, found) = ("an id of 25 base-36 digits", shorten(text));
            return Err(ParseIdError::Form { wanted, found });
        }
        let too_long = || ParseIdError::TooLong { found: shorten(text) };
        if text.len() > DIGITS {
            return Err(too_long());
        }
        u128::from_str_radix(text, 36).map(Self).map_err(|_| too_long())
    }
}

/// Errors repeat what was sent, but not a megabyte of it.
fn shorten(text: &str) -> String {
    text.chars().take(64).collect()
}

macro_rules! identifiers {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub Id);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl FromStr for $name {
            type Err = ParseIdError;

            fn from_str(text: &str) -> Result<Self, ParseIdError> {
                text.parse().map(Self)
            }
        }
    )*};
}

identifiers! {
    /// A cluster, given at `manager init`.
    ClusterId,
    /// A machine with an agent.
    NodeId,
    /// A manager, made from the key in its certificate, or at `manager init`.
    ManagerId,
    /// A service; made by the client that creates it, so that a repeated create is recognised.
    ServiceId,
    /// A join token; says nothing about its secret.
    TokenId,
    /// A secret, a config or a registry's credential; made by the client that creates it.
    ContentId,
    /// A volume; made by the client that creates it, or by `apply` from the name and its index.
    VolumeId,
}

/// A task: its service and a number that the service never gives twice. Written `<service id>-<number>`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskId {
    /// The service that the task belongs to.
    pub service: ServiceId,
    /// Counts up from 1 within the service.
    pub number: u64,
}

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{}-{}", self.service, self.number))
    }
}

impl FromStr for TaskId {
    type Err = ParseIdError;

    fn from_str(text: &str) -> Result<Self, ParseIdError> {
        let wanted = "a task id (<service id>-<number>)";
        let wrong = || ParseIdError::Form { wanted, found: shorten(text) };
        let (service, number) = text.split_once('-').ok_or_else(wrong)?;
        let canonical = !number.starts_with(['0', '+']);
        let number = number.parse().ok().filter(|_| canonical).ok_or_else(wrong)?;
        Ok(Self { service: service.parse().map_err(|_| wrong())?, number })
    }
}

serde_as_text!(Id, TaskId);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_survive_the_round_trip_and_sort_as_they_read() {
        let ids = [0, 1, 35, 36, u128::from(u64::MAX), u128::MAX].map(Id);
        let texts = ids.map(|id| id.to_string());
        assert!(texts.is_sorted());
        assert_eq!(texts.clone().map(|t| t.parse::<Id>().unwrap()), ids);
        assert!(texts.iter().all(|t| t.len() == DIGITS));
    }

    #[test]
    fn what_is_not_an_id_is_refused() {
        let too_large = "z".repeat(DIGITS);
        for text in ["", "abc", "0000000000000000000000000", &too_large, "000000000000000000000000A"] {
            assert_eq!(text.parse::<Id>().is_ok(), text == "0".repeat(DIGITS), "{text}");
        }
    }

    #[test]
    fn id_above_128_bits_is_refused_as_too_long() {
        let largest = Id(u128::MAX).to_string();
        assert_eq!(largest.parse(), Ok(Id(u128::MAX)));
        let first_beyond = format!("{}4", &largest[..DIGITS - 1]);
        for text in [first_beyond, "z".repeat(DIGITS), format!("{largest}0"), "0".repeat(1_000)] {
            let error = text.parse::<Id>().unwrap_err();
            assert!(matches!(error, ParseIdError::TooLong { .. }), "{error}");
            assert!(error.to_string().contains("is too long: an id has 128 bits"), "{error}");
            assert!(error.to_string().contains(&largest) && error.to_string().len() < 256, "{error}");
        }
        for text in ["", "abc", "-000000000000000000000000", "00000000000000000000000000000A"] {
            let error = text.parse::<Id>().unwrap_err();
            assert!(matches!(error, ParseIdError::Form { .. }), "{error}");
        }
    }

    #[test]
    fn task_ids_have_one_spelling() {
        let id = TaskId { service: ServiceId(Id(7)), number: 12 };
        assert_eq!(id.to_string().parse(), Ok(id));
        let service = ServiceId(Id(7));
        for text in
            [format!("{service}-012"), format!("{service}-+1"), format!("{service}-"), service.to_string()]
        {
            assert!(text.parse::<TaskId>().is_err(), "{text}");
        }
    }
}
