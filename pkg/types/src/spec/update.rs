//! How a service's tasks are replaced by those of another revision.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::Violations;
use crate::text::serde_as_text;

/// How long a task without a health check must run until it counts as ready, unless the service says otherwise.
pub const DEFAULT_UPDATE_MONITOR: Duration = Duration::from_secs(3);
/// The longest delay and the longest monitor period.
pub const MAX_UPDATE_PERIOD: Duration = Duration::from_secs(24 * 3600);

/// How an update or a rollback replaces tasks. It does not shape tasks, so it is not part of a revision.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct UpdatePolicy {
    /// How many slots are replaced at a time.
    pub parallelism: Parallelism,
    /// The time between the end of one replacement and the start of the next.
    #[serde(with = "crate::text::duration")]
    pub delay: Duration,
    /// Which task of a slot comes first. `None`: the new one starts first, unless both write to volumes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub order: Option<UpdateOrder>,
    /// How long a task without a health check must run until it counts as ready.
    #[serde(with = "crate::text::duration")]
    pub monitor: Duration,
    /// The share of slots whose new task may fail.
    pub failure_ratio: FailureRatio,
    /// What follows if more fail. `None` for an update: it is rolled back, unless a new task may have changed
    /// the data of a volume, then it is paused. `None` for a rollback: it is paused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_failure: Option<FailureAction>,
}

/// How many slots are replaced at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Parallelism {
    /// This many; 0 for all.
    Slots(u32),
    /// This share of the slots, at least one.
    Percent(u8),
}

/// Which task of a slot comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum UpdateOrder {
    /// The new task starts, then the old one is stopped.
    StartFirst,
    /// The old task is stopped as soon as the new one is prepared, and the new one starts after that.
    StopFirst,
}

/// What follows if too many new tasks fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FailureAction {
    /// The last revision that was good becomes the current one again.
    Rollback,
    /// No further task is replaced until a user decides.
    Pause,
    /// The other slots are replaced all the same.
    Continue,
}

/// A share of slots, in thousandths.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct FailureRatio(pub u16);

serde_as_text!(Parallelism, FailureRatio);

impl Default for UpdatePolicy {
    fn default() -> Self {
        Self {
            parallelism: Parallelism::Slots(1),
            delay: Duration::ZERO,
            order: None,
            monitor: DEFAULT_UPDATE_MONITOR,
            failure_ratio: FailureRatio::default(),
            on_failure: None,
        }
    }
}

impl UpdatePolicy {
    /// Whether it is the default.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// All violations of the policy; paths are relative to it.
    pub fn validate(&self) -> Violations {
        let Self { parallelism, delay, order: _, monitor, failure_ratio, on_failure: _ } = *self;
        let mut wrong = Violations::default();
        if let Parallelism::Percent(percent) = parallelism
            && !(1..=100).contains(&percent)
        {
            wrong.add("parallelism", format!("{percent}% is not between 1% and 100%"));
        }
        for (path, period) in [("delay", delay), ("monitor", monitor)] {
            if period > MAX_UPDATE_PERIOD {
                wrong.add(path, "is longer than 24 hours");
            }
        }
        if failure_ratio.0 > 1000 {
            wrong.add("failureRatio", format!("{failure_ratio} is more than 1"));
        }
        wrong
    }
}

impl Parallelism {
    /// How many of `total` slots are replaced at a time: at least one.
    pub fn slots(self, total: u32) -> u32 {
        match self {
            Self::Slots(0) => u32::MAX,
            Self::Slots(slots) => slots,
            Self::Percent(percent) => {
                let share = (u64::from(total) * u64::from(percent)).div_ceil(100);
                u32::try_from(share).unwrap_or(u32::MAX).max(1)
            }
        }
    }
}

impl FailureRatio {
    /// Whether so many failed slots of `total` are too many.
    pub fn is_exceeded(self, failed: u32, total: u32) -> bool {
        u64::from(failed) * 1000 > u64::from(self.0) * u64::from(total)
    }
}

impl fmt::Display for Parallelism {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Slots(slots) => write!(f, "{slots}"),
            Self::Percent(percent) => write!(f, "{percent}%"),
        }
    }
}

impl FromStr for Parallelism {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parsed = match text.strip_suffix('%') {
            Some(percent) => {
                percent.parse().ok().filter(|percent| (1..=100).contains(percent)).map(Self::Percent)
            }
            None => text.parse().ok().map(Self::Slots),
        };
        parsed.ok_or_else(|| {
            format!("{text:?} is not a number of tasks; give one like 2, 25% or 0 (all at once)")
        })
    }
}

impl fmt::Display for FailureRatio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = format!("{}.{:03}", self.0 / 1000, self.0 % 1000);
        f.write_str(digits.trim_end_matches('0').trim_end_matches('.'))
    }
}

impl FromStr for FailureRatio {
    type Err = String;

    /// `0.25`, `.25` or `25%`.
    fn from_str(text: &str) -> Result<Self, String> {
        let (number, scale) = match text.strip_suffix('%') {
            Some(percent) => (percent, 10),
            None => (text, 1000),
        };
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        let is_number = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
        let decimals = if scale == 10 { 1 } else { 3 };
        let valid = is_number(whole)
            && is_number(fraction)
            && !(whole.is_empty() && fraction.is_empty())
            && fraction.len() <= decimals;
        let parsed = valid.then(|| {
            let whole: u16 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
            let fraction: u16 = format!("{fraction:0<decimals$}").parse().ok()?;
            whole.checked_mul(scale)?.checked_add(fraction)
        });
        parsed.flatten().filter(|thousandths| *thousandths <= 1000).map(Self).ok_or_else(|| {
            format!("{text:?} is not a ratio; give one from 0 to 1 like 0.25, or a percentage like 25%")
        })
    }
}

impl UpdateOrder {
    /// All values.
    pub const ALL: [Self; 2] = [Self::StartFirst, Self::StopFirst];

    /// As in files and flags: `start-first`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::StartFirst => "start-first",
            Self::StopFirst => "stop-first",
        }
    }
}

impl FromStr for UpdateOrder {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = Self::ALL.into_iter().find(|order| order.as_str() == text);
        known.ok_or_else(|| format!("{text:?} is not an order; give start-first or stop-first"))
    }
}

impl FailureAction {
    /// All values.
    pub const ALL: [Self; 3] = [Self::Rollback, Self::Pause, Self::Continue];

    /// As in files and flags: `rollback`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Rollback => "rollback",
            Self::Pause => "pause",
            Self::Continue => "continue",
        }
    }
}

impl FromStr for FailureAction {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = Self::ALL.into_iter().find(|action| action.as_str() == text);
        known.ok_or_else(|| format!("{text:?} is not an action; give rollback, pause or continue"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parallelism_is_number_or_share() {
        let parsed = |text: &str| text.parse::<Parallelism>();
        assert_eq!(parsed("2"), Ok(Parallelism::Slots(2)));
        assert_eq!(parsed("25%"), Ok(Parallelism::Percent(25)));
        for wrong in ["", "-1", "0%", "101%", "two", "%", "2.5"] {
            assert!(parsed(wrong).unwrap_err().contains("give one like 2, 25% or 0"), "{wrong}");
        }
        assert_eq!(Parallelism::Slots(0).slots(7), u32::MAX);
        assert_eq!([0, 1, 4, 5, 100].map(|total| Parallelism::Percent(25).slots(total)), [1, 1, 1, 2, 25]);
    }

    #[test]
    fn failure_ratio_is_fraction_or_percentage() {
        let parsed = |text: &str| text.parse::<FailureRatio>();
        for (text, expected, shown) in [
            ("0", 0, "0"),
            ("0.25", 250, "0.25"),
            (".5", 500, "0.5"),
            ("12.5%", 125, "0.125"),
            ("1", 1000, "1"),
        ] {
            assert_eq!(parsed(text), Ok(FailureRatio(expected)), "{text}");
            assert_eq!(FailureRatio(expected).to_string(), shown);
        }
        for wrong in ["", ".", "-0.1", "1.1", "101%", "0.0001", "a", "1e-1"] {
            assert!(parsed(wrong).is_err(), "{wrong}");
        }
        let quarter = FailureRatio(250);
        assert!(!quarter.is_exceeded(1, 4) && quarter.is_exceeded(2, 4));
        assert!(FailureRatio(0).is_exceeded(1, 1000) && !FailureRatio(0).is_exceeded(0, 0));
    }
}
