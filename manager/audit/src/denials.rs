//! Bounds how many lines calls may take that anybody can repeat, so that a flood of them does not displace other lines:
//! denied ones, and renewals without a certificate, whose request may be a copy.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use crate::{AuditCaller, AuditLine, AuditOutcome};

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
    /// All renewals without a certificate for one node or user, of which the cluster has a bounded number.
    Renewal(String),
    /// All callers beyond the limit of those that are told apart.
    Other {
        /// Whether they have no certificate.
        is_anonymous: bool,
    },
}

#[derive(Debug)]
struct DenialCount {
    lines: u64,
    /// Says how many have no line.
    summary: AuditLine,
}

/// Decides which of these calls get a line.
#[derive(Debug)]
pub struct DenialLimiter {
    window_start: Instant,
    counts: BTreeMap<DenialCaller, DenialCount>,
}

impl DenialLimiter {
    /// There was no such call yet.
    pub fn new(now: Instant) -> Self {
        Self { window_start: now, counts: BTreeMap::new() }
    }

    /// Whether the call with this `line` gets it.
    pub fn admit(&mut self, key: DenialCaller, line: &AuditLine) -> bool {
        let is_renewal = matches!(key, DenialCaller::Renewal(_));
        let is_anonymous = matches!(key, DenialCaller::Anonymous(_));
        let limit = if is_anonymous { MAX_ANONYMOUS } else { MAX_IDENTIFIED };
        let is_alike = |known: &&DenialCaller| match known {
            DenialCaller::Renewal(_) => false,
            known => matches!(known, DenialCaller::Anonymous(_)) == is_anonymous,
        };
        let has_room = is_renewal
            || self.counts.contains_key(&key)
            || self.counts.keys().filter(is_alike).count() < limit;
        let (caller, object) = (&line.caller, line.object.clone().filter(|_| is_renewal));
        let outcome = if is_renewal { AuditOutcome::Allowed } else { AuditOutcome::Denied };
        let (key, caller) = match has_room {
            true => (key, caller.clone()),
            false => (
                DenialCaller::Other { is_anonymous },
                AuditCaller { kind: caller.kind.clone(), ..AuditCaller::default() },
            ),
        };
        let count = self.counts.entry(key).or_insert_with(|| DenialCount {
            lines: 0,
            summary: AuditLine { caller, object, outcome, ..AuditLine::default() },
        });
        let is_admitted = count.lines < MAX_LINES;
        *(if is_admitted { &mut count.lines } else { &mut count.summary.suppressed }) += 1;
        is_admitted
    }

    /// At the end of a period: lines with how many calls of which caller had none, without time and manager. Also at
    /// the `end` of the process.
    pub fn take_suppressed(&mut self, now: Instant, end: bool) -> Vec<AuditLine> {
        if !end && now.saturating_duration_since(self.window_start) < WINDOW {
            return Vec::new();
        }
        self.window_start = now;
        let counts = std::mem::take(&mut self.counts).into_values();
        let suppressed = counts.map(|count| count.summary).filter(|summary| summary.suppressed > 0);
        // The port is that of one of the calls, as is the whole address of renewals.
        let without_port = |mut summary: AuditLine| {
            let address = summary.caller.address.parse::<std::net::SocketAddr>();
            if let Ok(address) = address {
                let is_renewal = summary.outcome == AuditOutcome::Allowed;
                summary.caller.address = if is_renewal { String::new() } else { address.ip().to_string() };
            }
            summary
        };
        suppressed.map(without_port).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::AuditObject;

    fn anonymous(last: u8) -> (DenialCaller, AuditLine) {
        let ip = IpAddr::from([10, 0, 0, last]);
        let address = format!("{ip}:40112");
        let caller = AuditCaller { kind: "anonymous".into(), address, ..AuditCaller::default() };
        (DenialCaller::Anonymous(ip), AuditLine { caller, ..AuditLine::default() })
    }

    #[test]
    fn flood_is_counted_instead_of_written() {
        let now = Instant::now();
        let mut limiter = DenialLimiter::new(now);
        let (key, line) = anonymous(7);
        let lines = (0..1000).filter(|_| limiter.admit(key.clone(), &line)).count();
        assert_eq!(lines, 10);
        // One flood leaves room for another caller.
        let (other, other_line) = anonymous(8);
        assert!(limiter.admit(other, &other_line));
        assert!(limiter.take_suppressed(now, false).is_empty(), "the period has not ended");
        let suppressed = limiter.take_suppressed(now + WINDOW, false);
        assert_eq!(suppressed.len(), 1);
        assert_eq!((suppressed[0].caller.address.as_str(), suppressed[0].suppressed), ("10.0.0.7", 990));
        assert_eq!(suppressed[0].outcome, AuditOutcome::Denied);
        assert!(limiter.admit(key, &line), "the next period has its own bound");
    }

    #[test]
    fn repeated_renewals_of_a_node_are_counted() {
        let now = Instant::now();
        let mut limiter = DenialLimiter::new(now);
        let mut admit = |number: u8, last: u8| {
            let name = format!("n{number}");
            let object = AuditObject { kind: "node".into(), name: name.clone(), ..AuditObject::default() };
            let line = AuditLine { object: Some(object), ..anonymous(last).1 };
            limiter.admit(DenialCaller::Renewal(name), &line)
        };
        assert_eq!((0..100).filter(|last| admit(0, *last)).count(), 10, "from whichever address");
        assert_eq!((1..=255).filter(|number| admit(*number, 1)).count(), 255, "each node has its own bound");
        let (key, line) = anonymous(7);
        assert!(limiter.admit(key, &line), "denied calls have theirs");
        let [summary] = &limiter.take_suppressed(now + WINDOW, false)[..] else { panic!("one node") };
        assert_eq!((summary.suppressed, summary.outcome), (90, AuditOutcome::Allowed));
        assert_eq!(summary.object.as_ref().unwrap().name, "n0");
        assert_eq!(summary.caller.address, "");
    }

    #[test]
    fn flood_of_many_addresses_is_bounded() {
        let now = Instant::now();
        let mut limiter = DenialLimiter::new(now);
        let calls = (0..=255).flat_map(|last| std::iter::repeat_n(anonymous(last), 20));
        let lines = calls.filter(|(key, line)| limiter.admit(key.clone(), line)).count();
        assert_eq!(lines, 90, "eight addresses, and all others together");
        let identified = DenialCaller::Identified("worker w1 at 10.0.0.1".into());
        assert!(limiter.admit(identified, &AuditLine::default()), "certificates have their own bound");
        let suppressed = limiter.take_suppressed(now, true);
        assert_eq!(suppressed.iter().map(|line| line.suppressed).sum::<u64>(), 256 * 20 - 90);
    }
}
