//! Bounds how many lines denied calls may take, so that a flood of them does not displace other lines.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use crate::AuditCaller;

/// Period of the bounds.
const WINDOW: Duration = Duration::from_secs(600);
/// Lines of one caller in a period.
const MAX_LINES: u64 = 10;
/// Callers without a certificate that are told apart in a period, about 5 MB of lines a day in all.
const MAX_ANONYMOUS: usize = 8;
/// Callers with a certificate or on the unix socket that are told apart in a period.
const MAX_IDENTIFIED: usize = 64;

/// Who is counted together.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum DenialCaller {
    /// All callers without a certificate at an address.
    Anonymous(IpAddr),
    /// All calls of one identity from one machine.
    Identified(String),
    /// All callers beyond the limit of those that are told apart.
    Other {
        /// Whether they have no certificate.
        is_anonymous: bool,
    },
}

#[derive(Debug, Default)]
struct DenialCount {
    lines: u64,
    suppressed: u64,
    caller: AuditCaller,
}

/// Decides which denied calls get a line.
#[derive(Debug)]
pub struct DenialLimiter {
    window_start: Instant,
    counts: BTreeMap<DenialCaller, DenialCount>,
}

impl DenialLimiter {
    /// No call has been denied yet.
    pub fn new(now: Instant) -> Self {
        Self { window_start: now, counts: BTreeMap::new() }
    }

    /// Whether this denied call gets a line.
    pub fn admit(&mut self, key: DenialCaller, caller: &AuditCaller) -> bool {
        let is_anonymous = matches!(key, DenialCaller::Anonymous(_));
        let limit = if is_anonymous { MAX_ANONYMOUS } else { MAX_IDENTIFIED };
        let is_alike = |known: &&DenialCaller| matches!(known, DenialCaller::Anonymous(_)) == is_anonymous;
        let has_room = self.counts.contains_key(&key) || self.counts.keys().filter(is_alike).count() < limit;
        let (key, caller) = match has_room {
            true => (key, caller.clone()),
            false => (
                DenialCaller::Other { is_anonymous },
                AuditCaller { kind: caller.kind.clone(), ..AuditCaller::default() },
            ),
        };
        let count =
            self.counts.entry(key).or_insert_with(|| DenialCount { caller, ..DenialCount::default() });
        let is_admitted = count.lines < MAX_LINES;
        *(if is_admitted { &mut count.lines } else { &mut count.suppressed }) += 1;
        is_admitted
    }

    /// At the end of a period: how many calls of which caller had no line. Also at the `end` of the process.
    pub fn take_suppressed(&mut self, now: Instant, end: bool) -> Vec<(AuditCaller, u64)> {
        if !end && now.saturating_duration_since(self.window_start) < WINDOW {
            return Vec::new();
        }
        self.window_start = now;
        let counts = std::mem::take(&mut self.counts).into_values();
        let suppressed = counts.filter(|count| count.suppressed > 0);
        // The port is that of one of the calls.
        let without_port = |mut caller: AuditCaller| {
            if let Ok(address) = caller.address.parse::<std::net::SocketAddr>() {
                caller.address = address.ip().to_string();
            }
            caller
        };
        suppressed.map(|count| (without_port(count.caller), count.suppressed)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn anonymous(last: u8) -> (DenialCaller, AuditCaller) {
        let ip = IpAddr::from([10, 0, 0, last]);
        let address = format!("{ip}:40112");
        (
            DenialCaller::Anonymous(ip),
            AuditCaller { kind: "anonymous".into(), address, ..AuditCaller::default() },
        )
    }

    #[test]
    fn flood_is_counted_instead_of_written() {
        let now = Instant::now();
        let mut limiter = DenialLimiter::new(now);
        let (key, caller) = anonymous(7);
        let lines = (0..1000).filter(|_| limiter.admit(key.clone(), &caller)).count();
        assert_eq!(lines, 10);
        // One flood leaves room for another caller.
        let (other, other_caller) = anonymous(8);
        assert!(limiter.admit(other, &other_caller));
        assert!(limiter.take_suppressed(now, false).is_empty(), "the period has not ended");
        let suppressed = limiter.take_suppressed(now + WINDOW, false);
        assert_eq!(suppressed.len(), 1);
        assert_eq!((suppressed[0].0.address.as_str(), suppressed[0].1), ("10.0.0.7", 990));
        assert!(limiter.admit(key, &caller), "the next period has its own bound");
    }

    #[test]
    fn flood_of_many_addresses_is_bounded() {
        let now = Instant::now();
        let mut limiter = DenialLimiter::new(now);
        let calls = (0..=255).flat_map(|last| std::iter::repeat_n(anonymous(last), 20));
        let lines = calls.filter(|(key, caller)| limiter.admit(key.clone(), caller)).count();
        assert_eq!(lines, 90, "eight addresses, and all others together");
        let identified = DenialCaller::Identified("worker w1 at 10.0.0.1".into());
        assert!(limiter.admit(identified, &AuditCaller::default()), "certificates have their own bound");
        let suppressed = limiter.take_suppressed(now, true);
        assert_eq!(suppressed.iter().map(|(_, count)| count).sum::<u64>(), 256 * 20 - 90);
    }
}
