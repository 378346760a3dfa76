//! Amounts of CPU and memory, and their text forms.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::text::{serde_as_text, shorten};

/// An amount of memory or disk, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Bytes(pub u64);

/// An amount of CPU, in thousandths of one core.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct MilliCpu(pub u64);

serde_as_text!(Bytes, MilliCpu);

/// What a task reserves or a node offers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Resources {
    /// CPU in thousandths of a core.
    pub cpu: MilliCpu,
    /// Memory in bytes.
    pub memory: Bytes,
}

/// A text that is not a quantity.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{found:?} is not {expected}")]
pub struct ParseQuantityError {
    expected: &'static str,
    found: String,
}

/// Suffixes of [`Bytes`], as Kubernetes and Docker write them. One-letter suffixes are decimal, as in Kubernetes.
const UNITS: [(&str, u64); 17] = [
    ("", 1),
    ("b", 1),
    ("k", 1000),
    ("kb", 1000),
    ("ki", 1 << 10),
    ("kib", 1 << 10),
    ("m", 1_000_000),
    ("mb", 1_000_000),
    ("mi", 1 << 20),
    ("mib", 1 << 20),
    ("g", 1_000_000_000),
    ("gb", 1_000_000_000),
    ("gi", 1 << 30),
    ("gib", 1 << 30),
    ("t", 1_000_000_000_000),
    ("ti", 1 << 40),
    ("tib", 1 << 40),
];

impl FromStr for Bytes {
    type Err = ParseQuantityError;

    /// Whole numbers with a suffix of any case: `1073741824`, `512MiB`, `256Mi`, `256M`, `1g`.
    fn from_str(text: &str) -> Result<Self, ParseQuantityError> {
        let invalid = || ParseQuantityError {
            expected: "an amount of memory (a whole number with B, K, Ki, M, Mi, G, Gi, T or Ti: 512MiB)",
            found: shorten(text),
        };
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let (number, suffix) = text.split_at(digits);
        let number: u64 = number.parse().map_err(|_| invalid())?;
        let suffix = suffix.to_ascii_lowercase();
        let (_, unit) = UNITS.iter().find(|(name, _)| *name == suffix).ok_or_else(invalid)?;
        number.checked_mul(*unit).map(Self).ok_or_else(invalid)
    }
}

impl fmt::Display for Bytes {
    /// The largest binary unit that divides the amount: `512MiB`, `1500B`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)]
            .into_iter()
            .find(|(_, bits)| self.0 != 0 && self.0.trailing_zeros() >= *bits);
        match unit {
            Some((name, bits)) => f.pad(&format!("{}{name}", self.0 >> bits)),
            None => f.pad(&format!("{}B", self.0)),
        }
    }
}

impl FromStr for MilliCpu {
    type Err = ParseQuantityError;

    /// Cores with up to three decimals, or thousandths with `m`: `2`, `0.5`, `500m`.
    fn from_str(text: &str) -> Result<Self, ParseQuantityError> {
        let invalid = || ParseQuantityError {
            expected: "an amount of CPU (cores with up to three decimals, or thousandths: 1.5, 500m)",
            found: shorten(text),
        };
        let number = |digits: &str| -> Option<u64> {
            (!digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit())).then(|| digits.parse().ok())?
        };
        if let Some(thousandths) = text.strip_suffix('m') {
            return number(thousandths).map(Self).ok_or_else(invalid);
        }
        let (cores, decimals) = text.split_once('.').unwrap_or((text, "0"));
        if decimals.is_empty() || decimals.len() > 3 {
            return Err(invalid());
        }
        let padded = format!("{decimals:0<3}");
        let (cores, thousandths) = number(cores).zip(number(&padded)).ok_or_else(invalid)?;
        cores.checked_mul(1000).and_then(|c| c.checked_add(thousandths)).map(Self).ok_or_else(invalid)
    }
}

impl fmt::Display for MilliCpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (cores, thousandths) = (self.0 / 1000, self.0 % 1000);
        if thousandths == 0 {
            return f.pad(&cores.to_string());
        }
        let decimals = format!("{thousandths:03}");
        f.pad(&format!("{cores}.{}", decimals.trim_end_matches('0')))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_parsed_with_suffixes() {
        let cases = [
            ("0", 0),
            ("512MiB", 512 << 20),
            ("256Mi", 256 << 20),
            ("256M", 256_000_000),
            ("1g", 1_000_000_000),
        ];
        for (text, bytes) in cases {
            assert_eq!(text.parse(), Ok(Bytes(bytes)), "{text}");
        }
        for bad in ["", "MiB", "-1", "1.5G", "1 G", "1x", "99999999999999999999", "18446744073709551615k"] {
            assert!(bad.parse::<Bytes>().is_err(), "{bad}");
        }
    }

    #[test]
    fn milli_cpu_is_parsed_with_suffixes() {
        let cases = [("2", 2000), ("0.5", 500), ("1.25", 1250), ("500m", 500), ("0.001", 1)];
        for (text, thousandths) in cases {
            assert_eq!(text.parse(), Ok(MilliCpu(thousandths)), "{text}");
        }
        for bad in ["", ".", "1.", ".5", "1.2345", "-1", "1e3", "m", "+1"] {
            assert!(bad.parse::<MilliCpu>().is_err(), "{bad}");
        }
    }

    #[test]
    fn displayed_quantity_parses_back() {
        for bytes in [0, 1, 1500, 1 << 10, 512 << 20, 3 << 40].map(Bytes) {
            assert_eq!(bytes.to_string().parse(), Ok(bytes));
        }
        for cpu in [0, 1, 500, 1000, 1250, 12_000].map(MilliCpu) {
            assert_eq!(cpu.to_string().parse(), Ok(cpu));
        }
    }
}
