//! The namespace and the veth pair of one task.
//!
//! Everything here blocks and moves its thread between namespaces: see [`super::process::run_on_thread`].

use std::net::Ipv4Addr;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use super::message::{self, LinkState, NeighbourState};
use super::netlink::{Netlink, NetlinkChange};
use super::{conntrack, namespace, sysctl};
use crate::Error;
use crate::desired::TaskLink;
use crate::keys::TaskKey;
use crate::names::{GATEWAY_MAC, is_link_name, link_name};

/// The loopback device is the first of every namespace.
const LOOPBACK: u32 = 1;

/// File of a task's namespace within the directory of namespaces.
pub(super) fn namespace_path(directory: &Path, task: &TaskKey) -> PathBuf {
    directory.join(task.as_str())
}

/// Creates the task's namespace, unless one is given, and its link, or completes or replaces existing ones. Returns the
/// namespace's path.
pub(super) fn ensure(directory: &Path, link: &TaskLink, given: Option<&Path>) -> Result<PathBuf, Error> {
    let path = namespace_path(directory, &link.task);
    let home = namespace::current()?;
    let mut outside = Netlink::open()?;
    let space = namespace::ensure(&path, given)?;
    let mut inside = Netlink::open()?;
    for setting in link.task_sysctls() {
        sysctl::ensure(&setting)?;
    }
    let (host, task) = create_veth(link, space.as_raw_fd(), &mut outside, &mut inside)?;
    namespace::enter(&home, &path)?;
    for setting in link.host_sysctls() {
        sysctl::ensure(&setting)?;
    }
    let TaskLink { name, address, gateway, .. } = link;
    outside.submit(vec![
        NetlinkChange::set(format!("set the MTU of {name}"), message::link_mtu(host, link.mtu)),
        NetlinkChange::set(format!("bring up link {name}"), message::link_up_for(host, link)),
        NetlinkChange::replace(
            format!("route {address} to link {name} from {gateway}"),
            message::route_to_link(*address, host, Some(*gateway)),
        ),
        NetlinkChange::replace(
            format!("set neighbour {address} on {name}"),
            message::neighbour(host, *address, link.mac),
        ),
    ])?;
    let within = format!("in the namespace of task {}", link.task);
    inside.submit(vec![
        NetlinkChange::set(format!("bring up lo {within}"), message::link_up(LOOPBACK)),
        NetlinkChange::replace(
            format!("add address {address} {within}"),
            message::address(task, *address, None),
        ),
        NetlinkChange::set(format!("set the MTU of eth0 {within}"), message::link_mtu(task, link.mtu)),
        NetlinkChange::set(format!("bring up eth0 {within}"), message::link_up(task)),
        NetlinkChange::replace(
            format!("route {gateway} to eth0 {within}"),
            message::route_to_link(*gateway, task, None),
        ),
        NetlinkChange::replace(
            format!("route all to {gateway} {within}"),
            message::default_route(*gateway, task),
        ),
        NetlinkChange::replace(
            format!("set neighbour {gateway} {within}"),
            message::neighbour(task, *gateway, GATEWAY_MAC),
        ),
    ])?;
    Ok(path)
}

/// Ensures that the veth pair joins the two namespaces; returns the indexes of its outer and its inner end.
/// A pair with any deviation is replaced: it may lead elsewhere, or belong to an earlier address of the
/// task.
fn create_veth(
    link: &TaskLink,
    space: i32,
    outside: &mut Netlink,
    inside: &mut Netlink,
) -> Result<(u32, u32), Error> {
    let host = message::fetch_link(outside, &link.name)?;
    let task = message::fetch_link(inside, "eth0")?;
    if let (Some(host), Some(task)) = (&host, &task)
        && is_connected(link, host, task)
    {
        return Ok((host.index, task.index));
    }
    let name = &link.name;
    let left = |found: &Option<LinkState>, what: &str| -> Vec<NetlinkChange> {
        let remove = |found: &LinkState| {
            NetlinkChange::remove(format!("remove {what}"), message::link_removed(found.index))
        };
        found.iter().map(remove).collect()
    };
    outside.submit(left(&host, &format!("link {name}")))?;
    inside.submit(left(&task, &format!("eth0 of task {}", link.task)))?;
    outside.submit(vec![NetlinkChange::create(format!("create veth {name}"), message::veth(link, space))])?;
    let host = message::fetch_link(outside, name)?;
    let task = message::fetch_link(inside, "eth0")?;
    host.zip(task).map(|(host, task)| (host.index, task.index)).ok_or_else(|| Error::Interrupted {
        what: format!("creating veth {name} (removed by another process)"),
    })
}

fn is_connected(link: &TaskLink, host: &LinkState, task: &LinkState) -> bool {
    let ends = host.peer == Some(task.index) && task.peer == Some(host.index);
    let macs = host.mac == GATEWAY_MAC && task.mac == link.mac;
    ends && macs && host.veth
}

/// Removes the task's link, its namespace, and the connection tracking entries of its address.
pub(super) fn remove(directory: &Path, task: &TaskKey, address: Option<Ipv4Addr>) -> Result<(), Error> {
    remove_link(&link_name(task), address)?;
    namespace::remove(&namespace_path(directory, task))
}

/// Removes a task link and the connection tracking entries of the addresses that are routed to it.
pub(super) fn remove_link(name: &str, address: Option<Ipv4Addr>) -> Result<(), Error> {
    let mut outside = Netlink::open()?;
    let mut addresses: Vec<Ipv4Addr> = address.into_iter().collect();
    if let Some(host) = message::fetch_link(&mut outside, name)?.filter(|found| found.veth) {
        for route in message::fetch_routes(&mut outside, Some(host.index))? {
            addresses.push(route.destination.addr());
        }
        addresses.sort();
        addresses.dedup();
        // Once before the link is removed, because its routes are the only record of the address for the
        // next agent if this one is killed here; and once after, when no new entries can appear.
        addresses.iter().try_for_each(|address| conntrack::remove(*address))?;
        outside.submit(vec![NetlinkChange::remove(
            format!("remove link {name}"),
            message::link_removed(host.index),
        )])?;
    }
    addresses.iter().try_for_each(|address| conntrack::remove(*address))
}

/// Inspects every task's network without changing it; returns deviating tasks and the reasons.
pub(super) fn inspect(directory: &Path, links: &[TaskLink]) -> Result<Vec<(TaskKey, String)>, Error> {
    let home = namespace::current()?;
    let mut outside = Netlink::open()?;
    let found = message::fetch_links(&mut outside)?;
    let routes = message::fetch_routes(&mut outside, None)?;
    let neighbours = message::fetch_neighbours(&mut outside)?;
    let mut broken = Vec::new();
    for link in links {
        let host = found.iter().find(|found| found.name == link.name);
        let outer = host.ok_or_else(|| format!("link {} is missing", link.name)).and_then(|host| {
            let routed = routes.iter().any(|route| {
                let to = route.destination.addr() == link.address && route.destination.prefix_len() == 32;
                to && route.device == Some(host.index) && route.source == Some(link.gateway)
            });
            let neighbour =
                NeighbourState { device: host.index, address: link.address, mac: link.mac.to_vec() };
            let known = neighbours.contains(&neighbour);
            let set = link.host_sysctls().iter().all(sysctl::is_set);
            match (host.up, routed, known, set) {
                (false, ..) => Err(format!("link {} is down", link.name)),
                (_, false, ..) => Err(format!("the route to {} is missing", link.address)),
                (.., false, _) => Err(format!("the neighbour entry of {} is missing", link.address)),
                (.., false) => Err(format!("a setting of link {} was changed", link.name)),
                _ => Ok(host),
            }
        });
        let whole = match outer {
            Ok(host) => inspect_inside(directory, link, host).unwrap_or_else(|error| Err(error.to_string())),
            Err(reason) => Err(reason),
        };
        namespace::enter(&home, directory)?;
        broken.extend(whole.err().map(|reason| (link.task.clone(), reason)));
    }
    Ok(broken)
}

/// Inspects the task's side of its link; leaves the thread in the task's namespace.
fn inspect_inside(directory: &Path, link: &TaskLink, host: &LinkState) -> Result<Result<(), String>, Error> {
    let path = namespace_path(directory, &link.task);
    if !namespace::is_bound(&path) {
        return Ok(Err("its namespace is missing".to_owned()));
    }
    namespace::ensure(&path, None)?;
    let mut inside = Netlink::open()?;
    let Some(task) = message::fetch_link(&mut inside, "eth0")?.filter(|task| is_connected(link, host, task))
    else {
        return Ok(Err("its eth0 is missing or connected elsewhere".to_owned()));
    };
    let addressed =
        message::fetch_addresses(&mut inside, task.index)?.iter().any(|found| found.address == link.address);
    let routes = message::fetch_routes(&mut inside, Some(task.index))?;
    let routed = routes.iter().any(|route| route.gateway == Some(link.gateway));
    if [host.mtu, task.mtu] != [link.mtu; 2] {
        return Ok(Err(format!("the MTU of its link is not {}", link.mtu)));
    }
    let gateway = NeighbourState { device: task.index, address: link.gateway, mac: GATEWAY_MAC.to_vec() };
    let known = message::fetch_neighbours(&mut inside)?.contains(&gateway);
    Ok(match task.up && addressed && routed && known {
        true => Ok(()),
        false => Err("its eth0 lost its address, route or neighbour".to_owned()),
    })
}

/// Links of this crate that belong to none of the tasks.
pub(super) fn orphan_links(desired: &[TaskLink]) -> Result<Vec<String>, Error> {
    let found = message::fetch_links(&mut Netlink::open()?)?;
    let ours = found.into_iter().filter(|link| link.veth && is_link_name(&link.name)).map(|link| link.name);
    Ok(ours.filter(|name| desired.iter().all(|link| link.name != *name)).collect())
}

/// Tasks that have a namespace file but are not desired.
pub(super) fn orphan_tasks(directory: &Path, desired: &[TaskLink]) -> Result<Vec<TaskKey>, Error> {
    let failed = |source| Error::File { operation: "list", path: directory.to_owned(), source };
    let entries = match std::fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(source) => return Err(failed(source)),
    };
    let mut orphans = Vec::new();
    for entry in entries {
        let name = entry.map_err(failed)?.file_name();
        let task = name.to_str().and_then(|name| TaskKey::parse(name).ok());
        orphans.extend(task.filter(|task| desired.iter().all(|link| link.task != *task)));
    }
    orphans.sort();
    Ok(orphans)
}
