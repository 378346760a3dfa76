//! The WireGuard device and its process. Blocking.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use warren_wireguard::{WireGuardControl, WireGuardProgram, start};

use super::message::{self, LinkState};
use super::netlink::{Netlink, NetlinkChange};
use super::sysctl;
use crate::Error;
use crate::desired::WireGuardDevice;
use crate::names::WIREGUARD_DEVICE;

/// How the process is started and found.
#[derive(Debug, Clone)]
pub(super) struct WireGuardPaths {
    pub program: WireGuardProgram,
    pub socket: PathBuf,
}

/// Reconciles the device, its key and its peers.
pub(super) fn ensure(
    netlink: &mut Netlink,
    desired: Option<&WireGuardDevice>,
    paths: &WireGuardPaths,
    repaired: &mut Vec<String>,
) -> Result<(), Error> {
    let found = message::fetch_link(netlink, WIREGUARD_DEVICE)?.filter(|found| found.up || desired.is_none());
    let mut control = WireGuardControl::connect(&paths.socket).ok();
    let Some(device) = desired else {
        if found.is_some() || control.is_some() {
            repaired.push(format!("removed the former device {WIREGUARD_DEVICE}"));
        }
        return remove(netlink, control, &paths.socket);
    };
    // One that does not answer is started again as well.
    let may_stay =
        control.as_mut().is_some_and(|control| matches!(control.must_restart(&device.settings), Ok(false)));
    let (link, mut control) = match (found, control) {
        (Some(found), Some(control)) if may_stay => (found, control),
        // A device without a process, a process without its device, or one with another key.
        (_, control) => {
            remove(netlink, control, &paths.socket)?;
            start(&paths.program, device.name, &paths.socket)?;
            repaired.push(format!("created device {}", device.name));
            (created(netlink, device)?, WireGuardControl::connect(&paths.socket)?)
        }
    };
    adjust(netlink, device, &link, repaired)?;
    match control.ensure(&device.settings) {
        Ok(changes) => repaired.extend(changes),
        Err(error) => {
            // What it did of the change is not known: the next pass starts it again.
            remove(netlink, Some(control), &paths.socket)?;
            return Err(error.into());
        }
    }
    for setting in device.sysctls() {
        if sysctl::ensure(&setting)? {
            repaired.push(format!("set {} to {}", setting.path.replace('/', "."), setting.value));
        }
    }
    Ok(())
}

fn created(netlink: &mut Netlink, device: &WireGuardDevice) -> Result<LinkState, Error> {
    let missing =
        || Error::Interrupted { what: format!("creating {} (removed by another process)", device.name) };
    message::fetch_link(netlink, device.name)?.ok_or_else(missing)
}

fn adjust(
    netlink: &mut Netlink,
    desired: &WireGuardDevice,
    found: &LinkState,
    repaired: &mut Vec<String>,
) -> Result<(), Error> {
    let (name, mut changes) = (desired.name, Vec::new());
    if found.mtu != desired.mtu {
        let what = format!("set the MTU of {name} to {}", desired.mtu);
        changes.push(NetlinkChange::set(what, message::link_mtu(found.index, desired.mtu)));
    }
    if !found.up {
        changes.push(NetlinkChange::set(format!("bring up {name}"), message::link_up(found.index)));
    }
    repaired.extend(changes.iter().map(|change| change.description.clone()));
    netlink.submit(changes)
}

/// Ends the process, and removes its device and its socket if they are left.
fn remove(netlink: &mut Netlink, control: Option<WireGuardControl>, socket: &Path) -> Result<(), Error> {
    control.map_or(Ok(()), WireGuardControl::stop)?;
    if let Some(found) = message::fetch_link(netlink, WIREGUARD_DEVICE)? {
        let what = format!("remove device {WIREGUARD_DEVICE}");
        netlink.submit(vec![NetlinkChange::remove(what, message::link_removed(found.index))])?;
    }
    match std::fs::remove_file(socket) {
        Err(source) if source.kind() != ErrorKind::NotFound => {
            Err(Error::File { operation: "remove", path: socket.to_owned(), source })
        }
        _ => Ok(()),
    }
}
