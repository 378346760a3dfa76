//! The VXLAN device, and what leads through it to each peer. Blocking.

use std::net::Ipv4Addr;

use nix::errno::Errno;

use super::message::{self, LinkState};
use super::netlink::{Netlink, NetlinkChange, errno};
use super::{ports, sysctl};
use crate::Error;
use crate::desired::{DesiredNode, OverlayDevice, VxlanPeer};
use crate::model::{DEFAULT_VNI, DEFAULT_VXLAN_PORT, MIN_MTU};
use crate::names::{OVERLAY_DEVICE, overlay_mac};

/// Reconciles the device; returns its index, `None` when there is no overlay.
pub(super) fn ensure_device(
    netlink: &mut Netlink,
    desired: Option<&OverlayDevice>,
    repaired: &mut Vec<String>,
) -> Result<Option<u32>, Error> {
    let found = message::fetch_link(netlink, OVERLAY_DEVICE)?;
    let Some(device) = desired else {
        if let Some(found) = found {
            remove(netlink, found.index)?;
            repaired.push(format!("removed the former device {OVERLAY_DEVICE}"));
        }
        return Ok(None);
    };
    let index = match found {
        Some(found) if is_device(&found, device) => {
            adjust(netlink, device, &found, repaired)?;
            found.index
        }
        other => {
            if let Some(other) = other {
                remove(netlink, other.index)?;
            }
            let index = create(netlink, device)?;
            repaired.push(format!("created device {}", device.name));
            index
        }
    };
    for setting in device.sysctls() {
        if sysctl::ensure(&setting)? {
            repaired.push(format!("set {} to {}", setting.path.replace('/', "."), setting.value));
        }
    }
    Ok(Some(index))
}

fn is_device(found: &LinkState, desired: &OverlayDevice) -> bool {
    found.mac == desired.mac
        && found.vxlan.as_ref().is_some_and(|vxlan| {
            (vxlan.vni, vxlan.local, vxlan.port) == (desired.vni, Some(desired.local), desired.port)
                && vxlan.group_policy
                && !vxlan.learning
        })
}

/// Corrects what can be changed while the device exists.
fn adjust(
    netlink: &mut Netlink,
    desired: &OverlayDevice,
    found: &LinkState,
    repaired: &mut Vec<String>,
) -> Result<(), Error> {
    let name = desired.name;
    if found.mtu != desired.mtu {
        let what = format!("set the MTU of {name} to {}", desired.mtu);
        netlink
            .submit(vec![NetlinkChange::set(what.clone(), message::link_mtu(found.index, desired.mtu))])?;
        repaired.push(what);
    }
    if !found.up {
        bring_up(netlink, desired, found.index)?;
        repaired.push(format!("brought up {name}"));
    }
    Ok(())
}

fn create(netlink: &mut Netlink, device: &OverlayDevice) -> Result<u32, Error> {
    let what = format!("create device {}", device.name);
    let created = netlink.submit(vec![NetlinkChange::create(what.clone(), message::vxlan(device))]);
    created.map_err(|error| match errno(&error) {
        Some(Errno::EOPNOTSUPP) => Error::VxlanMissing,
        // A device with the same port and identifier.
        Some(Errno::EEXIST | Errno::EADDRINUSE) => port_taken(netlink, device),
        _ => error,
    })?;
    let Some(found) = message::fetch_link(netlink, device.name)? else {
        return Err(Error::Interrupted { what: format!("{what} (removed by another process)") });
    };
    bring_up(netlink, device, found.index)?;
    Ok(found.index)
}

/// The kernel binds the UDP port when the device comes up. A device that has none is removed.
fn bring_up(netlink: &mut Netlink, device: &OverlayDevice, index: u32) -> Result<(), Error> {
    let what = format!("bring up device {}", device.name);
    let Err(error) = netlink.submit(vec![NetlinkChange::set(what, message::link_up(index))]) else {
        return Ok(());
    };
    let error = match errno(&error) {
        Some(Errno::EADDRINUSE) => port_taken(netlink, device),
        _ => error,
    };
    remove(netlink, index)?;
    Err(error)
}

/// The error that names who has the port: another VXLAN device, or a process.
fn port_taken(netlink: &mut Netlink, device: &OverlayDevice) -> Error {
    let others = devices_with_port(netlink, device.port).into_iter().find(|name| name != device.name);
    let by = match others {
        Some(other) => Some(format!("device {other}")),
        None => ports::udp_holder(device.port).map(|holder| format!("process {holder}")),
    };
    Error::VxlanPortTaken { port: device.port, by }
}

/// Names of the VXLAN devices with this UDP port.
pub(super) fn devices_with_port(netlink: &mut Netlink, port: u16) -> Vec<String> {
    let links = message::fetch_links(netlink).unwrap_or_default().into_iter();
    let has_port = |link: &LinkState| link.vxlan.as_ref().is_some_and(|vxlan| vxlan.port == port);
    links.filter(has_port).map(|link| link.name).collect()
}

/// Creates a VXLAN device as tasks need it, in a network namespace that ends with the calling thread.
pub(super) fn try_device(netlink: &mut Netlink) -> Result<(), Error> {
    let local = Ipv4Addr::new(192, 0, 2, 1);
    let device = OverlayDevice {
        name: OVERLAY_DEVICE,
        mac: overlay_mac(local),
        mtu: MIN_MTU,
        local,
        port: DEFAULT_VXLAN_PORT,
        vni: DEFAULT_VNI,
    };
    let created =
        netlink.submit(vec![NetlinkChange::create("try VXLAN".to_owned(), message::vxlan(&device))]);
    created.map_err(|error| match errno(&error) {
        Some(Errno::EOPNOTSUPP) => Error::VxlanMissing,
        _ => error,
    })
}

fn remove(netlink: &mut Netlink, index: u32) -> Result<(), Error> {
    let what = format!("remove device {OVERLAY_DEVICE}");
    netlink.submit(vec![NetlinkChange::remove(what, message::link_removed(index))])
}

/// Removes the device if it exists.
pub(super) fn remove_device(netlink: &mut Netlink) -> Result<(), Error> {
    ensure_device(netlink, None, &mut Vec::new()).map(drop)
}

/// Reconciles the neighbours and forwarding entries of the device. All of them are of this crate.
pub(super) fn ensure_peers(
    netlink: &mut Netlink,
    device: u32,
    desired: &DesiredNode,
    repaired: &mut Vec<String>,
) -> Result<(), Error> {
    let neighbours: Vec<_> =
        message::fetch_neighbours(netlink)?.into_iter().filter(|found| found.device == device).collect();
    let entries = message::fetch_forwarding(netlink, device)?;
    let peers = &desired.peers;
    let mut changes = Vec::new();
    for found in &neighbours {
        if !peers.iter().any(|peer| (peer.gateway, &peer.mac[..]) == (found.address, &found.mac)) {
            let what = format!("remove the neighbour {} of {OVERLAY_DEVICE}", found.address);
            changes.push(NetlinkChange::remove(what, message::neighbour_removed(found)));
        }
    }
    for found in &entries {
        if !peers.iter().any(|peer| (peer.underlay, &peer.mac[..]) == (found.node, &found.mac)) {
            let what = format!("remove the forwarding entry of {}", found.node);
            changes.push(NetlinkChange::remove(what, message::forwarding_removed(device, found)));
        }
    }
    for VxlanPeer { gateway, mac, underlay } in peers {
        if !neighbours.iter().any(|found| (found.address, &found.mac[..]) == (*gateway, mac)) {
            let what = format!("set the neighbour {gateway} on {OVERLAY_DEVICE}");
            changes.push(NetlinkChange::replace(what, message::neighbour(device, *gateway, *mac)));
        }
        if !entries.iter().any(|found| (found.node, &found.mac[..]) == (*underlay, mac)) {
            let what = format!("set the forwarding entry of {underlay} on {OVERLAY_DEVICE}");
            changes.push(NetlinkChange::replace(what, message::forwarding(device, *mac, *underlay)));
        }
    }
    repaired.extend(changes.iter().map(|change| change.description.clone()));
    netlink.submit(changes)
}
