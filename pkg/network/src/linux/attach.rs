//! One task's namespace and the cable to it.
//!
//! All of this is blocking and moves its thread between namespaces: see [`super::process::on_thread`].

use std::net::Ipv4Addr;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use super::message::{self, FoundLink};
use super::netlink::{Change, Netlink};
use super::{conntrack, namespace, sysctl};
use crate::Error;
use crate::model::TaskKey;
use crate::wanted::{GATEWAY_MAC, TaskLink, is_link_name, link_name};

/// The loopback device is the first of every namespace.
const LOOPBACK: u32 = 1;

/// File of a task's namespace within the directory of namespaces.
pub(super) fn path(directory: &Path, task: &TaskKey) -> PathBuf {
    directory.join(task.as_str())
}

/// Makes the task's namespace and link, or completes or replaces what is there. Returns the namespace's
/// path.
pub(super) fn ensure(directory: &Path, link: &TaskLink) -> Result<PathBuf, Error> {
    let path = path(directory, &link.task);
    let home = namespace::current()?;
    let mut outside = Netlink::open()?;
    let space = namespace::ensure(&path)?;
    let mut inside = Netlink::open()?;
    for setting in link.task_sysctls() {
        sysctl::ensure(&setting)?;
    }
    let (host, task) = cable(link, space.as_raw_fd(), &mut outside, &mut inside)?;
    namespace::enter(&home, &path)?;
    for setting in link.host_sysctls() {
        sysctl::ensure(&setting)?;
    }
    let TaskLink { name, address, gateway, .. } = link;
    outside.make(vec![
        Change::set(format!("bring up link {name}"), message::link_up_for(host, link)),
        Change::replace(
            format!("route {address} to link {name} from {gateway}"),
            message::route_to_link(*address, host, Some(*gateway)),
        ),
        Change::replace(
            format!("set neighbour {address} on {name}"),
            message::neighbour(host, *address, link.mac),
        ),
    ])?;
    let within = format!("in the namespace of task {}", link.task);
    inside.make(vec![
        Change::set(format!("bring up lo {within}"), message::link_up(LOOPBACK)),
        Change::replace(format!("add address {address} {within}"), message::address(task, *address, None)),
        Change::set(format!("bring up eth0 {within}"), message::link_up(task)),
        Change::replace(
            format!("route {gateway} to eth0 {within}"),
            message::route_to_link(*gateway, task, None),
        ),
        Change::replace(format!("route all to {gateway} {within}"), message::default_route(*gateway, task)),
        Change::replace(
            format!("set neighbour {gateway} {within}"),
            message::neighbour(task, *gateway, GATEWAY_MAC),
        ),
    ])?;
    Ok(path)
}

/// Makes sure that the veth pair joins the two namespaces; returns the indexes of its outer and its inner
/// end. A pair that is not exactly as wanted is replaced: it may lead elsewhere, or belong to an earlier
/// address of the task.
fn cable(
    link: &TaskLink,
    space: i32,
    outside: &mut Netlink,
    inside: &mut Netlink,
) -> Result<(u32, u32), Error> {
    let host = message::fetch_link(outside, &link.name)?;
    let task = message::fetch_link(inside, "eth0")?;
    if let (Some(host), Some(task)) = (&host, &task)
        && joined(link, host, task)
    {
        return Ok((host.index, task.index));
    }
    let name = &link.name;
    let left = |found: &Option<FoundLink>, what: &str| -> Vec<Change> {
        let remove =
            |found: &FoundLink| Change::remove(format!("remove {what}"), message::link_removed(found.index));
        found.iter().map(remove).collect()
    };
    outside.make(left(&host, &format!("link {name}")))?;
    inside.make(left(&task, &format!("eth0 of task {}", link.task)))?;
    outside.make(vec![Change::create(format!("create veth {name}"), message::veth(link, space))])?;
    let host = message::fetch_link(outside, name)?;
    let task = message::fetch_link(inside, "eth0")?;
    host.zip(task).map(|(host, task)| (host.index, task.index)).ok_or_else(|| Error::Interrupted {
        what: format!("creating veth {name} (somebody else removed it at once)"),
    })
}

fn joined(link: &TaskLink, host: &FoundLink, task: &FoundLink) -> bool {
    let ends = host.peer == Some(task.index) && task.peer == Some(host.index);
    let macs = host.mac == GATEWAY_MAC && task.mac == link.mac;
    ends && macs && host.veth && [host.mtu, task.mtu] == [link.mtu; 2]
}

/// Removes the task's link, its namespace, and the connection tracking entries of its address.
pub(super) fn remove(directory: &Path, task: &TaskKey, address: Option<Ipv4Addr>) -> Result<(), Error> {
    remove_link(&link_name(task), address)?;
    namespace::remove(&path(directory, task))
}

/// Removes a link of ours and the connection tracking entries of the addresses that are routed to it.
pub(super) fn remove_link(name: &str, address: Option<Ipv4Addr>) -> Result<(), Error> {
    let mut outside = Netlink::open()?;
    let mut addresses: Vec<Ipv4Addr> = address.into_iter().collect();
    if let Some(host) = message::fetch_link(&mut outside, name)?.filter(|found| found.veth) {
        for route in message::fetch_routes(&mut outside, Some(host.index))? {
            addresses.push(route.destination.addr());
        }
        addresses.sort();
        addresses.dedup();
        // Once before the link goes, because its routes are the only record of the address for the next
        // agent if this one is killed here; and once after, when nothing can make new entries.
        addresses.iter().try_for_each(|address| conntrack::remove(*address))?;
        outside
            .make(vec![Change::remove(format!("remove link {name}"), message::link_removed(host.index))])?;
    }
    addresses.iter().try_for_each(|address| conntrack::remove(*address))
}

/// Looks at every task's network without changing it and says which are not as wanted, and why.
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
            let known = neighbours.contains(&(host.index, link.address, link.mac.to_vec()));
            let set = link.host_sysctls().iter().all(sysctl::holds);
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

/// Looks at the task's side of its link; leaves the thread in the task's namespace.
fn inspect_inside(directory: &Path, link: &TaskLink, host: &FoundLink) -> Result<Result<(), String>, Error> {
    let path = path(directory, &link.task);
    if !namespace::is_bound(&path) {
        return Ok(Err("its namespace is gone".to_owned()));
    }
    namespace::ensure(&path)?;
    let mut inside = Netlink::open()?;
    let Some(task) = message::fetch_link(&mut inside, "eth0")?.filter(|task| joined(link, host, task)) else {
        return Ok(Err("its eth0 is missing or leads elsewhere".to_owned()));
    };
    let addressed =
        message::fetch_addresses(&mut inside, task.index)?.iter().any(|found| found.address == link.address);
    let routes = message::fetch_routes(&mut inside, Some(task.index))?;
    let routed = routes.iter().any(|route| route.gateway == Some(link.gateway));
    let known =
        message::fetch_neighbours(&mut inside)?.contains(&(task.index, link.gateway, GATEWAY_MAC.to_vec()));
    Ok(match task.up && addressed && routed && known {
        true => Ok(()),
        false => Err("its eth0 lost its address, route or neighbour".to_owned()),
    })
}

/// Links of ours that belong to none of the tasks.
pub(super) fn stray_links(wanted: &[TaskLink]) -> Result<Vec<String>, Error> {
    let found = message::fetch_links(&mut Netlink::open()?)?;
    let ours = found.into_iter().filter(|link| link.veth && is_link_name(&link.name)).map(|link| link.name);
    Ok(ours.filter(|name| wanted.iter().all(|link| link.name != *name)).collect())
}

/// Tasks that have a namespace file but are not among the wanted.
pub(super) fn stray_tasks(directory: &Path, wanted: &[TaskLink]) -> Result<Vec<TaskKey>, Error> {
    let failed = |source| Error::File { operation: "list", path: directory.to_owned(), source };
    let entries = match std::fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(source) => return Err(failed(source)),
    };
    let mut strays = Vec::new();
    for entry in entries {
        let name = entry.map_err(failed)?.file_name();
        let task = name.to_str().and_then(|name| TaskKey::parse(name).ok());
        strays.extend(task.filter(|task| wanted.iter().all(|link| link.task != *task)));
    }
    strays.sort();
    Ok(strays)
}
