//! No address and no port is given twice before its first holder is gone from the machine.

use std::collections::BTreeMap;

use warren_types::{PublishedPort, Task, TaskId};

use crate::worker::Remains;

type Machine = BTreeMap<TaskId, Remains>;

/// A task was given its address: nothing on the machine may still have it, or another service its ports. What was made
/// in a life of the cluster that this one does not go on with may have any address; what was made in any that is over
/// holds its ports until it is gone, and the task waits for them.
pub fn given(machine: &Machine, task: &Task, lives: [u64; 2]) -> Result<(), String> {
    for (id, remains) in machine.iter().filter(|(id, _)| **id != task.id) {
        if lives.contains(&remains.life)
            && remains.network
            && Some(remains.assignment.address) == task.address
        {
            let address = remains.assignment.address;
            return Err(format!("nothing is given twice: {address} to {}, {id} still has it", task.id));
        }
        if remains.life == lives[0] {
            no_port_twice(*id, remains, task.id, &task.revision.ports)?;
        }
    }
    Ok(())
}

/// A worker said that nothing is left of a task.
pub fn removed(machine: &Machine, task: TaskId) -> Result<(), String> {
    match machine.get(&task) {
        None => Ok(()),
        Some(remains) => {
            Err(format!("nothing is given twice: {task} is said to be removed, found {remains:?}"))
        }
    }
}

/// What is on a machine after something was done there for `task`.
pub fn on_machine(machine: &Machine, task: TaskId, is_gone: bool, lives: [u64; 2]) -> Result<(), String> {
    let Some(mine) = machine.get(&task) else { return Ok(()) };
    if is_gone {
        return removed(machine, task);
    }
    for (id, remains) in machine.iter().filter(|(id, _)| **id != task) {
        let both = [mine, remains].iter().all(|remains| lives.contains(&remains.life));
        if both && mine.network && remains.network && mine.assignment.address == remains.assignment.address {
            return Err(format!("nothing is given twice: {task} and {id} have {}", mine.assignment.address));
        }
        if mine.holds_ports {
            no_port_twice(*id, remains, task, &mine.assignment.ports)?;
        }
    }
    Ok(())
}

/// Tasks of one service share its ports on a node; those of two never do.
fn no_port_twice(id: TaskId, remains: &Remains, task: TaskId, ports: &[PublishedPort]) -> Result<(), String> {
    let foreign = remains.holds_ports && id.service != task.service;
    for port in ports.iter().filter(|_| foreign) {
        if remains.assignment.ports.iter().any(|held| held.collides(port)) {
            return Err(format!("nothing is given twice: {port} to {task}, {id} still holds it"));
        }
    }
    Ok(())
}
