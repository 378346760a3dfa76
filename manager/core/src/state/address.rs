//! Addresses of tasks within a node's subnet.

use std::net::Ipv4Addr;

use ipnet::Ipv4Net;

/// Offset of the first address for tasks: 0 is the network, 1 the gateway.
const FIRST: u32 = 2;

/// How many tasks a subnet has addresses for: all but network, gateway and broadcast.
pub fn capacity(subnet: Ipv4Net) -> u32 {
    let size = 1u64 << (32 - u32::from(subnet.prefix_len()));
    u32::try_from(size.saturating_sub(3)).unwrap_or(u32::MAX)
}

/// The `place`th address for tasks, counted from 0.
fn address(subnet: Ipv4Net, place: u32) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(subnet.network()).wrapping_add(FIRST).wrapping_add(place))
}

/// Whether a task may have this address.
pub(super) fn is_for_tasks(subnet: Ipv4Net, given: Ipv4Addr) -> bool {
    let place = u32::from(given).wrapping_sub(u32::from(address(subnet, 0)));
    place < capacity(subnet)
}

/// The first free address from place `cursor` on, around the end of the subnet, and the cursor after it.
/// `None` when all are held.
pub(super) fn next_free(
    subnet: Ipv4Net,
    cursor: u32,
    is_held: impl Fn(Ipv4Addr) -> bool,
) -> Option<(Ipv4Addr, u32)> {
    let places = capacity(subnet);
    let start = if cursor < places { cursor } else { 0 };
    let place = (start..places).chain(0..start).find(|place| !is_held(address(subnet, *place)))?;
    Some((address(subnet, place), place + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives out addresses of a /29 that holds `held`, starting at `cursor`.
    #[track_caller]
    fn check(cursor: u32, held: &[u8], wanted: Option<(u8, u32)>) {
        let subnet: Ipv4Net = "10.0.0.8/29".parse().unwrap();
        let found = next_free(subnet, cursor, |address| held.contains(&address.octets()[3]));
        assert_eq!(found.map(|(address, next)| (address.octets()[3], next)), wanted);
    }

    #[test]
    fn network_gateway_and_broadcast_are_never_given() {
        let subnet: Ipv4Net = "10.0.0.8/29".parse().unwrap();
        assert_eq!(capacity(subnet), 5);
        let given: Vec<u8> =
            (0..=255).filter(|last| is_for_tasks(subnet, Ipv4Addr::new(10, 0, 0, *last))).collect();
        assert_eq!(given, [10, 11, 12, 13, 14]);
        check(0, &[], Some((10, 1)));
        check(4, &[], Some((14, 5)));
        check(5, &[], Some((10, 1)));
    }

    #[test]
    fn a_freed_address_rests_until_the_cursor_comes_around() {
        check(1, &[], Some((11, 2)));
        check(1, &[11, 12], Some((13, 4)));
        check(3, &[13, 14], Some((10, 1)));
        check(2, &[10, 11, 12, 13, 14], None);
    }

    #[test]
    fn small_subnets_have_no_room() {
        for (subnet, places) in
            [("10.0.0.0/30", 1), ("10.0.0.0/31", 0), ("10.0.0.0/32", 0), ("0.0.0.0/0", u32::MAX - 2)]
        {
            assert_eq!(capacity(subnet.parse().unwrap()), places, "{subnet}");
        }
    }
}
