//! Nobody is sent to an address that belongs to another task: whatever the kernel of a node knows of the cluster's
//! network is right, or leads to nobody.
//!
//! Nodes that are not in the newest state are excepted, as viewers and as owners. What was withdrawn does not wait for
//! them, since nobody knows when, or if ever, they will be told; the other nodes have no route to them.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use warren_core::State;
use warren_core::state::WithdrawnAddress;
use warren_types::{Endpoint, NetworkView, ServiceName, TaskId};

use super::address_owners::{AddressOwner, AddressOwners};
use crate::worker::{SimWorker, TaskOnMachine};

/// The kernel of a node changed.
pub fn check_kernel(
    newest: &State,
    owners: &AddressOwners,
    workers: &[SimWorker],
    viewer: &SimWorker,
) -> Result<(), String> {
    if newest.node(&viewer.id).is_none() {
        return Ok(());
    }
    check_owners(newest, owners, viewer)?;
    let services = viewer.kernel.catalogues.values().flat_map(|catalogue| &catalogue.services);
    let listed: BTreeSet<Ipv4Addr> =
        services.flat_map(|(_, service)| &service.endpoints).map(|endpoint| endpoint.address).collect();
    let running = workers.iter().filter(|worker| newest.node(&worker.id).is_some()).flat_map(running);
    let mut known = running.filter(|(_, remains)| listed.contains(&remains.assignment.address));
    known.try_for_each(|(task, remains)| check_address(viewer, *task, remains))
}

/// A container started.
pub fn check_container(
    newest: &State,
    workers: &[SimWorker],
    worker: &SimWorker,
    task: TaskId,
) -> Result<(), String> {
    let remains = worker.machine.get(&task).filter(|remains| remains.container.is_running());
    let Some(remains) = remains.filter(|_| newest.node(&worker.id).is_some()) else { return Ok(()) };
    for other in workers.iter().filter(|other| newest.node(&other.id).is_some()) {
        check_address(other, task, remains)?;
        let has_it = |(id, found): &(&TaskId, &TaskOnMachine)| {
            **id != task && found.assignment.address == remains.assignment.address
        };
        if let Some((id, _)) = running(other).find(has_it).filter(|_| other.id != worker.id) {
            let address = remains.assignment.address;
            return Err(format!("addresses and ports have one owner: {task} and {id} run with {address}"));
        }
    }
    Ok(())
}

/// The parts of the node's network view have the owners that the newest state says, or none. A view of an earlier
/// incarnation is excepted: it may have been made of writes that are lost.
pub fn check_owners(newest: &State, owners: &AddressOwners, viewer: &SimWorker) -> Result<(), String> {
    let NetworkView { version, peers, catalogues } = &*viewer.kernel;
    let incarnation = newest.cluster().map_or(0, |cluster| cluster.incarnation);
    if version.incarnation != incarnation || newest.node(&viewer.id).is_none() {
        return Ok(());
    }
    let wrong = |what: String, owner: Option<AddressOwner>| {
        let now = newest.applied().index;
        Err(format!(
            "nobody is sent to another owner's address: {} has {what} at {version:?}, which {owner:?} has at {now}",
            viewer.id
        ))
    };
    for (service, listed) in catalogues.values().flat_map(|catalogue| &catalogue.services) {
        let owner = listed.virtual_address.and_then(|address| owners.owner(address.into()));
        let is_right = match owner {
            Some(AddressOwner::Service(id)) => {
                newest.service(&id).is_none_or(|found| found.spec.name == *service)
            }
            Some(_) => false,
            None => true,
        };
        if !is_right {
            return wrong(format!("{:?} of {service}", listed.virtual_address), owner);
        }
        for endpoint in &listed.endpoints {
            let owner = owners.owner(endpoint.address.into());
            let is_right = match owner {
                Some(AddressOwner::Task(id)) => newest.task(&id).is_none_or(|task| {
                    let found = newest.service(&id.service);
                    task.slot == endpoint.slot && found.is_none_or(|found| found.spec.name == *service)
                }),
                Some(_) => false,
                None => true,
            };
            if !is_right {
                return wrong(format!("{endpoint:?} of {service}"), owner);
            }
        }
    }
    for (number, peer) in peers {
        for subnet in &peer.subnets {
            let owner = owners.owner(WithdrawnAddress::Subnet(*subnet));
            let is_right = match owner {
                Some(AddressOwner::Node(id)) => newest.node(&id).is_none_or(|node| node.number == *number),
                Some(_) => false,
                None => true,
            };
            if !is_right {
                return wrong(format!("{subnet} of node number {number}"), owner);
            }
        }
    }
    Ok(())
}

/// The container is what the node takes it for, if it knows its address.
fn check_address(viewer: &SimWorker, task: TaskId, remains: &TaskOnMachine) -> Result<(), String> {
    let assignment = &remains.assignment;
    let listed = endpoints(&viewer.kernel, assignment.address);
    for (service, endpoint) in listed {
        if *service != assignment.service || endpoint.slot != assignment.slot {
            let (version, slot) = (viewer.kernel.version, assignment.slot);
            return Err(format!(
                "nobody is sent to another owner's address: {} has {endpoint:?} of {service} at {version:?}, where \
                 {task} of {} runs in slot {slot}",
                viewer.id, assignment.service
            ));
        }
    }
    Ok(())
}

fn endpoints(view: &NetworkView, address: Ipv4Addr) -> impl Iterator<Item = (&ServiceName, &Endpoint)> {
    let services = view.catalogues.values().flat_map(|catalogue| &catalogue.services);
    services.flat_map(move |(name, service)| {
        service.endpoints.iter().filter(move |it| it.address == address).map(move |it| (name, it))
    })
}

fn running(worker: &SimWorker) -> impl Iterator<Item = (&TaskId, &TaskOnMachine)> {
    worker.machine.iter().filter(|(_, remains)| remains.container.is_running())
}
