//! Addresses of tasks within a node's subnets, and what was withdrawn and is not yet assigned again.

use std::net::Ipv4Addr;
use std::time::Duration;

use ipnet::Ipv4Net;
use warren_types::{Node, Timestamp};

/// The highest number of a node: VXLAN's group policy id, which can carry it, has 16 bits.
pub(super) const MAX_NODE_NUMBER: u16 = u16::MAX;

/// How long something that was withdrawn is not assigned again, also if all nodes have acknowledged that: the
/// longest time for which the kernel remembers a silent UDP flow.
pub(super) const WITHDRAWAL_TIME: Duration = Duration::from_secs(120);

/// Offset of the first address for tasks: 0 is the network, 1 the gateway.
const FIRST_TASK_OFFSET: u32 = 2;

/// Something that had an owner, and is not assigned again until all nodes have forgotten that owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WithdrawnAddress {
    /// The address of a task, or the virtual address of a service.
    Address(Ipv4Addr),
    /// A node's subnet.
    Subnet(Ipv4Net),
    /// A node's number.
    NodeNumber(u16),
}

impl From<Ipv4Addr> for WithdrawnAddress {
    fn from(address: Ipv4Addr) -> Self {
        Self::Address(address)
    }
}

/// When something was withdrawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Withdrawal {
    /// Time of the entry.
    pub at: Timestamp,
    /// Index of the entry: a node that has acknowledged network state of this index has forgotten the owner.
    pub index: u64,
}

/// The number of task addresses of a subnet: all but network, gateway and broadcast.
pub(super) fn subnet_capacity(subnet: Ipv4Net) -> u32 {
    let size = 1u64 << (32 - u32::from(subnet.prefix_len()));
    u32::try_from(size.saturating_sub(3)).unwrap_or(u32::MAX)
}

/// The number of task addresses of a node.
pub fn address_capacity(node: &Node) -> u32 {
    node.subnets.iter().fold(0, |sum, subnet| subnet_capacity(*subnet).saturating_add(sum))
}

/// The `place`th address for tasks, counted from 0 through all subnets.
fn nth_address(subnets: &[Ipv4Net], place: u32) -> Option<Ipv4Addr> {
    let mut place = place;
    for subnet in subnets {
        match place.checked_sub(subnet_capacity(*subnet)) {
            Some(beyond) => place = beyond,
            None => {
                let first = u32::from(subnet.network()).wrapping_add(FIRST_TASK_OFFSET);
                return Some(Ipv4Addr::from(first.wrapping_add(place)));
            }
        }
    }
    None
}

/// Whether a task of a node with these subnets may have this address.
pub(super) fn is_task_address(subnets: &[Ipv4Net], given: Ipv4Addr) -> bool {
    subnets.iter().any(|subnet| {
        let first = u32::from(subnet.network()).wrapping_add(FIRST_TASK_OFFSET);
        u32::from(given).wrapping_sub(first) < subnet_capacity(*subnet)
    })
}

/// The first free address from index `cursor` on, wrapping around at the end of the last subnet, and the cursor
/// after it. `None` if all are held. The cursor makes a freed address the last one to be used again.
pub(super) fn next_free(
    subnets: &[Ipv4Net],
    cursor: u32,
    is_held: impl Fn(Ipv4Addr) -> bool,
) -> Option<(Ipv4Addr, u32)> {
    let places = subnets.iter().fold(0, |sum, subnet| subnet_capacity(*subnet).saturating_add(sum));
    let start = if cursor < places { cursor } else { 0 };
    (start..places).chain(0..start).find_map(|place| {
        let address = nth_address(subnets, place).filter(|address| !is_held(*address))?;
        Some((address, place + 1))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nets(texts: &[&str]) -> Vec<Ipv4Net> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    /// Allocates addresses of a /29 that holds `held`, starting at `cursor`.
    #[track_caller]
    fn check(cursor: u32, held: &[u8], expected: Option<(u8, u32)>) {
        let found = next_free(&nets(&["10.0.0.8/29"]), cursor, |address| held.contains(&address.octets()[3]));
        assert_eq!(found.map(|(address, next)| (address.octets()[3], next)), expected);
    }

    #[test]
    fn reserved_addresses_are_not_allocated() {
        let subnets = nets(&["10.0.0.8/29"]);
        assert_eq!(subnet_capacity(subnets[0]), 5);
        let given: Vec<u8> =
            (0..=255).filter(|last| is_task_address(&subnets, Ipv4Addr::new(10, 0, 0, *last))).collect();
        assert_eq!(given, [10, 11, 12, 13, 14]);
        check(0, &[], Some((10, 1)));
        check(4, &[], Some((14, 5)));
        check(5, &[], Some((10, 1)));
    }

    #[test]
    fn freed_address_is_reused_last() {
        check(1, &[], Some((11, 2)));
        check(1, &[11, 12], Some((13, 4)));
        check(3, &[13, 14], Some((10, 1)));
        check(2, &[10, 11, 12, 13, 14], None);
    }

    #[test]
    fn further_subnet_continues_the_first() {
        let subnets = nets(&["10.0.0.8/29", "10.0.0.32/30"]);
        let next = |cursor| next_free(&subnets, cursor, |_| false).unwrap();
        assert_eq!(next(4), (Ipv4Addr::new(10, 0, 0, 14), 5));
        assert_eq!(next(5), (Ipv4Addr::new(10, 0, 0, 34), 6));
        assert_eq!(next(6), (Ipv4Addr::new(10, 0, 0, 10), 1));
        assert!(is_task_address(&subnets, Ipv4Addr::new(10, 0, 0, 34)));
        assert!(!is_task_address(&subnets, Ipv4Addr::new(10, 0, 0, 33)));
    }

    #[test]
    fn tiny_subnet_has_no_capacity() {
        for (subnet, places) in
            [("10.0.0.0/30", 1), ("10.0.0.0/31", 0), ("10.0.0.0/32", 0), ("0.0.0.0/0", u32::MAX - 2)]
        {
            assert_eq!(subnet_capacity(subnet.parse().unwrap()), places, "{subnet}");
        }
    }
}
