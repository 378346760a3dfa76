//! No address and no port is allocated again before its first owner is removed from the machine.

use std::collections::BTreeMap;

use warren_types::{PublishedPort, Task, TaskId};

use crate::worker::TaskOnMachine;

type Machine = BTreeMap<TaskId, TaskOnMachine>;

/// A task got its address: no other task on the machine may have it, and no other service its ports. A task
/// of an incarnation that this one does not continue may have any address; a task of an older incarnation
/// keeps its ports until it is removed, and the new task waits for them.
pub fn check_assigned(machine: &Machine, task: &Task, lives: [u64; 2]) -> Result<(), String> {
    for (id, remains) in machine.iter().filter(|(id, _)| **id != task.id) {
        if lives.contains(&remains.incarnation)
            && remains.has_network
            && Some(remains.assignment.address) == task.address
        {
            let address = remains.assignment.address;
            return Err(format!(
                "addresses and ports have one owner: {address} to {}, {id} still has it",
                task.id
            ));
        }
        if remains.incarnation == lives[0] {
            no_port_twice(*id, remains, task.id, &task.revision.ports)?;
        }
    }
    Ok(())
}

/// A worker reported a task as fully removed.
pub fn check_removed(machine: &Machine, task: TaskId) -> Result<(), String> {
    match machine.get(&task) {
        None => Ok(()),
        Some(remains) => Err(format!(
            "addresses and ports have one owner: {task} was reported as removed, observed {remains:?}"
        )),
    }
}

/// Checks a machine after an action on `task`.
pub fn check_machine(machine: &Machine, task: TaskId, is_gone: bool, lives: [u64; 2]) -> Result<(), String> {
    let Some(mine) = machine.get(&task) else { return Ok(()) };
    if is_gone {
        return check_removed(machine, task);
    }
    for (id, remains) in machine.iter().filter(|(id, _)| **id != task) {
        let both = [mine, remains].iter().all(|remains| lives.contains(&remains.incarnation));
        if both
            && mine.has_network
            && remains.has_network
            && mine.assignment.address == remains.assignment.address
        {
            return Err(format!(
                "addresses and ports have one owner: {task} and {id} have {}",
                mine.assignment.address
            ));
        }
        if mine.holds_ports {
            no_port_twice(*id, remains, task, &mine.assignment.ports)?;
        }
    }
    Ok(())
}

/// Tasks of one service share its ports on a node; tasks of two services never do.
fn no_port_twice(
    id: TaskId,
    remains: &TaskOnMachine,
    task: TaskId,
    ports: &[PublishedPort],
) -> Result<(), String> {
    let foreign = remains.holds_ports && id.service != task.service;
    for port in ports.iter().filter(|_| foreign) {
        if remains.assignment.ports.iter().any(|held| held.conflicts_with(port)) {
            return Err(format!("addresses and ports have one owner: {port} to {task}, {id} still holds it"));
        }
    }
    Ok(())
}
