//! The cluster as a whole.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use ipnet::Ipv4Net;
use warren_types::{
    CaRotation, ClusterId, ClusterSettings, KeyRotation, SealedUnlockKey, Timestamp, Violations,
};

/// Default prefix length of a node's subnet: 253 tasks per node.
const DEFAULT_NODE_PREFIX: u8 = 24;
/// The longest prefix that leaves an address for a task.
const MAX_NODE_PREFIX: u8 = 30;
/// Default time without contact after which a node is down: two lost syncs and slack.
const DEFAULT_NODE_DOWN_AFTER: Duration = Duration::from_secs(8);
/// An eighth of each range is for virtual addresses.
const VIRTUAL_BITS: u8 = 3;
/// The most address ranges of a cluster.
const MAX_RANGES: usize = 64;

/// What is known of the cluster as a whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cluster {
    /// Fixed at creation.
    pub id: ClusterId,
    /// Incarnation of the cluster; rises with a restore and with a forced new cluster.
    pub incarnation: u64,
    /// When it was created.
    pub created_at: Timestamp,
    /// The ranges of the nodes' subnets, used in this order.
    pub ranges: Vec<Ipv4Net>,
    /// Prefix length of a node's subnet.
    pub node_prefix: u8,
    /// A node without contact for longer is down.
    pub node_down_after: Duration,
    /// Index of the entry that last changed the settings; 0 before the first.
    pub version: u64,
    /// Set by users.
    pub settings: ClusterSettings,
    /// The newest replacement of the certificate authority; `None` if it is the one that was created with the cluster.
    pub ca_rotation: Option<Arc<CaRotation>>,
    /// What managers lock the keys on their disks with; `None` while autolock is off.
    pub unlock_key: Option<Arc<SealedUnlockKey>>,
    /// The newest replacement of the keys that encrypt what managers store; `None` before the first.
    pub key_rotation: Option<Arc<KeyRotation>>,
}

impl Cluster {
    pub(super) fn new(id: ClusterId, ranges: Vec<Ipv4Net>, created_at: Timestamp) -> Self {
        Self {
            id,
            incarnation: 1,
            created_at,
            ranges,
            node_prefix: DEFAULT_NODE_PREFIX,
            node_down_after: DEFAULT_NODE_DOWN_AFTER,
            version: 0,
            settings: ClusterSettings::default(),
            ca_rotation: None,
            unlock_key: None,
            key_rotation: None,
        }
    }

    /// The part of each range for virtual addresses: its last eighth, or what comes next to it in whole subnets. A
    /// range of one subnet has none.
    pub(super) fn virtual_ranges(&self) -> impl Iterator<Item = Ipv4Net> {
        self.ranges.iter().filter_map(|range| {
            let bits = self.node_prefix.checked_sub(range.prefix_len())?.min(VIRTUAL_BITS);
            let size = 1u64 << (32 - range.prefix_len() - bits);
            let network = u64::from(u32::from(range.broadcast())) + 1 - size;
            let virtual_range =
                Ipv4Net::new(Ipv4Addr::from(network as u32), range.prefix_len() + bits).ok()?;
            (bits > 0).then_some(virtual_range)
        })
    }

    /// How many node subnets there are.
    pub(super) fn count_subnets(&self) -> u64 {
        self.ranges.iter().map(|range| self.subnets_in(range)).sum()
    }

    /// The node subnet with that number, counted from 0 through all ranges; `None` beyond the last.
    pub(super) fn subnet(&self, number: u64) -> Option<Ipv4Net> {
        let mut number = number;
        for range in &self.ranges {
            let subnets = self.subnets_in(range);
            if number < subnets {
                let offset = u32::try_from(number).ok()?.checked_mul(1 << (32 - self.node_prefix))?;
                let network = Ipv4Addr::from(u32::from(range.network()).checked_add(offset)?);
                return Ipv4Net::new(network, self.node_prefix).ok();
            }
            number -= subnets;
        }
        None
    }

    /// The number of that node subnet; `None` for any other subnet. The inverse of [`Self::subnet`].
    pub(super) fn subnet_number(&self, subnet: &Ipv4Net) -> Option<u64> {
        let mut before = 0;
        for range in &self.ranges {
            if range.contains(subnet) {
                let offset = u32::from(subnet.network()) - u32::from(range.network());
                let number = before + u64::from(offset >> (32 - self.node_prefix));
                let is_one = number < before + self.subnets_in(range) && self.subnet(number) == Some(*subnet);
                return is_one.then_some(number);
            }
            before += self.subnets_in(range);
        }
        None
    }

    /// The node subnets of a range: those that are not in its part for virtual addresses.
    fn subnets_in(&self, range: &Ipv4Net) -> u64 {
        let bits = self.node_prefix.checked_sub(range.prefix_len());
        bits.map_or(0, |bits| (1 << bits) - if bits > 0 { 1 << (bits - bits.min(VIRTUAL_BITS)) } else { 0 })
    }

    /// All violations of the address ranges; paths are relative to the request.
    pub(super) fn validate(&self) -> Violations {
        let (ranges, prefix) = (&self.ranges, self.node_prefix);
        let mut violations = Violations::default();
        if !(1..=MAX_NODE_PREFIX).contains(&prefix) {
            violations
                .add("nodePrefix", format!("/{prefix} has no room for tasks; give /1 to /{MAX_NODE_PREFIX}"));
        }
        if ranges.is_empty() || ranges.len() > MAX_RANGES {
            violations.add("ranges", format!("{} ranges; give 1 to {MAX_RANGES}", ranges.len()));
        }
        for (i, range) in ranges.iter().enumerate() {
            if range.prefix_len() == 0 || range.prefix_len() > prefix {
                let message =
                    format!("{range} cannot be cut into node subnets of /{prefix}; give a /1 to /{prefix}");
                violations.add(format!("ranges[{i}]"), message);
            }
            if *range != range.trunc() {
                let message = format!("{range} has host bits; the range is {}", range.trunc());
                violations.add(format!("ranges[{i}]"), message);
            }
            let overlaps = |other: &Ipv4Net| other.contains(range) || range.contains(other);
            if let Some(earlier) = ranges[..i].iter().find(|other| overlaps(other)) {
                violations.add(format!("ranges[{i}]"), format!("{range} overlaps {earlier}"));
            }
        }
        violations
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use warren_types::Id;

    fn ranges(texts: &[&str]) -> Vec<Ipv4Net> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn subnets_are_allocated_in_range_order() {
        let ranges = ranges(&["10.0.0.0/22", "172.16.5.0/24"]);
        let cluster = Cluster::new(ClusterId(Id(1)), ranges, Timestamp(0));
        let subnets: Vec<_> = (0..5).map(|n| cluster.subnet(n).map(|net| net.to_string())).collect();
        let expected =
            [Some("10.0.0.0/24"), Some("10.0.1.0/24"), Some("10.0.2.0/24"), Some("172.16.5.0/24"), None];
        assert_eq!(subnets, expected.map(|net| net.map(String::from)));
        assert_eq!(cluster.subnet(u64::MAX), None);
        for number in 0..4 {
            assert_eq!(cluster.subnet_number(&cluster.subnet(number).unwrap()), Some(number));
        }
        for other in ["10.0.3.0/24", "10.0.0.0/23", "10.0.1.0/25", "10.0.1.7/24", "172.16.0.0/16"] {
            assert_eq!(cluster.subnet_number(&other.parse().unwrap()), None, "{other}");
        }
    }

    #[test]
    fn last_eighth_of_a_range_is_virtual() {
        for (range, expected, subnets) in [
            ("10.210.0.0/16", Some("10.210.224.0/19"), 224),
            ("10.0.0.0/21", Some("10.0.7.0/24"), 7),
            ("10.0.0.0/22", Some("10.0.3.0/24"), 3),
            ("10.0.0.0/23", Some("10.0.1.0/24"), 1),
            ("10.0.0.0/24", None, 1),
        ] {
            let cluster = Cluster::new(ClusterId(Id(1)), ranges(&[range]), Timestamp(0));
            let found: Vec<String> = cluster.virtual_ranges().map(|net| net.to_string()).collect();
            assert_eq!((found.first().map(String::as_str), cluster.count_subnets()), (expected, subnets));
        }
    }

    #[test]
    fn invalid_ranges_are_refused() {
        let faults =
            |texts: &[&str]| Cluster::new(ClusterId(Id(1)), ranges(texts), Timestamp(0)).validate().0.len();
        assert_eq!(faults(&["10.0.0.0/8", "192.168.0.0/24"]), 0);
        assert_eq!(faults(&[]), 1);
        assert_eq!(faults(&["10.0.0.0/25"]), 1);
        assert_eq!(faults(&["0.0.0.0/0"]), 1);
        assert_eq!(faults(&["10.0.0.1/8"]), 1);
        assert_eq!(faults(&["10.0.0.0/8", "10.1.0.0/16"]), 1);
    }
}
