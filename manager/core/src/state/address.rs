//! Addresses of tasks within a node's subnet.

use std::net::Ipv4Addr;

use ipnet::Ipv4Net;

/// Offset of the first address for tasks: 0 is the network, 1 the gateway.
const FIRST_TASK_OFFSET: u32 = 2;

/// The number of task addresses of a subnet: all but network, gateway and broadcast.
pub fn subnet_capacity(subnet: Ipv4Net) -> u32 {
    let size = 1u64 << (32 - u32::from(subnet.prefix_len()));
    u32::try_from(size.saturating_sub(3)).unwrap_or(u32::MAX)
}

/// The `place`th address for tasks, counted from 0.
fn nth_address(subnet: Ipv4Net, place: u32) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(subnet.network()).wrapping_add(FIRST_TASK_OFFSET).wrapping_add(place))
}

/// Whether a task may have this address.
pub(super) fn is_task_address(subnet: Ipv4Net, given: Ipv4Addr) -> bool {
    let place = u32::from(given).wrapping_sub(u32::from(nth_address(subnet, 0)));
    place < subnet_capacity(subnet)
}

/// The first free address from index `cursor` on, wrapping around at the end of the subnet, and the cursor
/// after it. `None` if all are held.
pub(super) fn next_free(
    subnet: Ipv4Net,
    cursor: u32,
    is_held: impl Fn(Ipv4Addr) -> bool,
) -> Option<(Ipv4Addr, u32)> {
    let places = subnet_capacity(subnet);
    let start = if cursor < places { cursor } else { 0 };
    let place = (start..places).chain(0..start).find(|place| !is_held(nth_address(subnet, *place)))?;
    Some((nth_address(subnet, place), place + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Allocates addresses of a /29 that holds `held`, starting at `cursor`.
    #[track_caller]
    fn check(cursor: u32, held: &[u8], expected: Option<(u8, u32)>) {
        let subnet: Ipv4Net = "10.0.0.8/29".parse().unwrap();
        let found = next_free(subnet, cursor, |address| held.contains(&address.octets()[3]));
        assert_eq!(found.map(|(address, next)| (address.octets()[3], next)), expected);
    }

    #[test]
    fn reserved_addresses_are_not_allocated() {
        let subnet: Ipv4Net = "10.0.0.8/29".parse().unwrap();
        assert_eq!(subnet_capacity(subnet), 5);
        let given: Vec<u8> =
            (0..=255).filter(|last| is_task_address(subnet, Ipv4Addr::new(10, 0, 0, *last))).collect();
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
    fn tiny_subnet_has_no_capacity() {
        for (subnet, places) in
            [("10.0.0.0/30", 1), ("10.0.0.0/31", 0), ("10.0.0.0/32", 0), ("0.0.0.0/0", u32::MAX - 2)]
        {
            assert_eq!(subnet_capacity(subnet.parse().unwrap()), places, "{subnet}");
        }
    }
}
