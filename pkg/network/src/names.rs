//! Names that identify the objects of this crate on any node, without a record.

use std::net::Ipv4Addr;

use crate::keys::TaskKey;

/// Name prefix of every task's link on the host. Firewall rules match `wc+`.
pub const LINK_PREFIX: &str = "wc";

/// Name prefix of every chain of this crate.
pub const CHAIN_PREFIX: &str = "WARREN-";

/// Chain for the rules of users, before published traffic is accepted. Created when it is missing, never
/// changed.
pub const USER_CHAIN: &str = "WARREN-USER";

/// The VXLAN device of the node.
pub const OVERLAY_DEVICE: &str = "warren-vx";

/// The WireGuard device of the node, below the VXLAN device.
pub const WIREGUARD_DEVICE: &str = "warren-wg";

/// The nftables table, of family `ip`, that separates the networks.
pub const ISOLATION_TABLE: &str = "warren";

/// Label of the gateway address. The kernel requires the device name as its prefix.
pub const GATEWAY_LABEL: &str = "lo:warren";

/// Origin (`rtm_protocol`) of every route of this crate: `W` in ASCII, a number that no routing daemon has
/// registered in iproute2's `rt_protos`.
pub const ROUTE_PROTOCOL: u8 = 87;

/// Mark of packets that this node sends in the name of a server, see `linux/conntrack/open_connection.rs`. It has no
/// bit of an entry node or of Kubernetes, and no rule selects routes by it.
pub const PROBE_MARK: u32 = 0x77000;

/// Hardware address of the host's end of every task link. The links are separate, so one suffices.
pub const GATEWAY_MAC: [u8; 6] = [0x02, 0x57, 0, 0, 0, 1];

const HASH_DIGITS: usize = 13;
const ALPHABET: &[u8; 32] = b"0123456789abcdefghijklmnopqrstuv";

/// Name of a task's link on the host: `wc` and 13 base-32 digits of the id's FNV-1a hash, 15 characters in
/// total, the maximum length of a link name. It has all 64 bits, so that collisions on a node are
/// practically excluded; [`crate::NodeNetwork::admit`] rejects the second task otherwise.
pub fn link_name(task: &TaskKey) -> String {
    let mut hash = task.as_str().bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    let mut name = String::from(LINK_PREFIX);
    for _ in 0..HASH_DIGITS {
        name.push(char::from(ALPHABET[(hash & 31) as usize]));
        hash >>= 5;
    }
    name
}

/// Whether a link name has the form of [`link_name`].
pub fn is_link_name(name: &str) -> bool {
    name.strip_prefix(LINK_PREFIX)
        .is_some_and(|rest| rest.len() == HASH_DIGITS && rest.bytes().all(|byte| ALPHABET.contains(&byte)))
}

/// Hardware address of a task's end of its link: locally administered, with the IP address in the last four
/// bytes.
pub fn task_mac(address: Ipv4Addr) -> [u8; 6] {
    let [a, b, c, d] = address.octets();
    [0x02, 0x58, a, b, c, d]
}

/// Hardware address of a node's VXLAN device: locally administered, with the node's address on the underlay
/// in the last four bytes.
pub fn overlay_mac(underlay: Ipv4Addr) -> [u8; 6] {
    let [a, b, c, d] = underlay.octets();
    [0x02, 0x57, a, b, c, d]
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn link_names_fit_and_differ() {
        let names: BTreeSet<String> =
            (0..20_000).map(|n| link_name(&TaskKey::parse(&format!("service.{n}")).unwrap())).collect();
        assert_eq!(names.len(), 20_000);
        assert!(names.iter().all(|name| name.len() == 15 && is_link_name(name)));
    }

    #[test]
    fn link_names_never_change() {
        // Links outlive the process that created them: another release must compute the same name.
        assert_eq!(link_name(&TaskKey::parse("web.1").unwrap()), "wcke49m4o5ieuc6");
    }

    #[test]
    fn other_link_names_are_not_recognised() {
        for name in ["wc", "wc1", "wcz000000000000", "wx00000000000000", "wc00000000000000", "eth0"] {
            assert!(!is_link_name(name), "{name}");
        }
    }

    #[test]
    fn hardware_addresses_are_local_unicast() {
        assert_eq!(overlay_mac(Ipv4Addr::new(192, 0, 2, 1)), [0x02, 0x57, 192, 0, 2, 1]);
        assert_eq!(task_mac(Ipv4Addr::new(10, 210, 1, 2)), [0x02, 0x58, 10, 210, 1, 2]);
    }
}
