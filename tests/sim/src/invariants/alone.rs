//! A node without a manager stops the tasks that mind when their time is over, and not before; all others run on.
//! Whoever takes the place of one that minds starts when that one has stopped.

use warren_task::Action;
use warren_types::{Desired, TaskId};

use super::Oracle;
use crate::worker::{Agent, Worker};

/// What stopping takes, failures on the way and the start of an agent included.
const STOPPED_WITHIN: u64 = 18_000;
/// What it takes a node that has a manager to stop what nobody wants.
const GONE_WITHIN: u64 = 20_000;

/// An agent decides to do this to a task. Answers whether it stops one that managers want, since it hears none.
pub fn decides(
    oracle: &Oracle,
    number: usize,
    worker: &Worker,
    task: TaskId,
    action: &Action,
    now: u64,
) -> Result<bool, String> {
    let runs = worker.machine.get(&task).is_some_and(|remains| remains.container.is_running());
    // What managers of a life that is over wanted may be done until another one is heard.
    if !super::kept::stops(action) || !runs || worker.life() != oracle.life() {
        return Ok(false);
    }
    let here = oracle.newest.task(&task).filter(|it| it.is_live() && it.node == Some(worker.id));
    let Some(wanted) = here.filter(|wanted| wanted.desired == Desired::Running) else { return Ok(false) };
    let Some(agent) = &worker.agent else { return Ok(false) };
    let Some(time) = wanted.revision.task.on_disconnect.stop_after() else {
        return Err(format!("what is wanted runs on: {action:?} of {wanted:?} on {}", worker.id));
    };
    let goes_on = agent.found(&task).is_some_and(|found| found.stop.is_some());
    let known = agent.found(&task).and_then(|found| found.alone_for);
    // An agent that heard none itself knows what an earlier one noted, which is older than the last word: a task may be
    // stopped too early by that, and never too late.
    let silent = match agent.contact.last_word() {
        Some(_) => oracle.silent_for(number, now),
        None => worker.silent_for(now),
    };
    // Of another boot nobody knows for how long.
    let is_endless = known == Some(std::time::Duration::MAX);
    if goes_on || is_endless || silent.is_none_or(|silent| u128::from(silent) >= time.as_millis()) {
        return Ok(!goes_on);
    }
    Err(format!(
        "nobody is left off too early: {action:?} of {wanted:?} on {}, {silent:?} ms alone",
        worker.id
    ))
}

/// What runs on a node whose agent has been there for a while.
pub fn looks(oracle: &Oracle, number: usize, worker: &Worker, now: u64) -> Result<(), String> {
    let Some(agent) = &worker.agent else { return Ok(()) };
    for (id, remains) in worker.machine.iter().filter(|(_, remains)| remains.container.is_running()) {
        let Some(found) = agent.found(id).filter(|found| found.troubles.is_empty()) else { continue };
        let time = remains.assignment.spec.on_disconnect.stop_after().map(|time| time.as_millis());
        let silent = oracle.silent_for(number, now).map(u128::from);
        let is_late = |(silent, time)| silent > time + u128::from(STOPPED_WITHIN);
        if silent.zip(time).is_some_and(is_late) && now > agent.since + STOPPED_WITHIN {
            return Err(format!(
                "whoever minds is stopped: {id} runs on {}, {silent:?} ms alone: {found:?}",
                worker.id
            ));
        }
        let since = oracle.told_to_go.get(id).copied();
        let is_told = agent.has_session_since().is_some_and(|has| now > has + GONE_WITHIN);
        if is_told && since.is_some_and(|since| now > since + GONE_WITHIN) && worker.life() == oracle.life() {
            return Err(format!("whoever was told to go goes: {id} runs on {}: {found:?}", worker.id));
        }
    }
    Ok(())
}

/// A task was started. Answers how many of lost nodes, which were given up for it, run beside it.
pub fn started(oracle: &Oracle, workers: &[Worker], task: TaskId) -> Result<u64, String> {
    let Some(new) = oracle.newest.task(&task) else { return Ok(0) };
    let mut beside = 0;
    for worker in workers {
        let running = worker.machine.iter().filter(|(id, it)| it.container.is_running() && **id != task);
        for (id, remains) in running.filter(|(id, _)| id.service == task.service) {
            let old =
                oracle.newest.task(id).filter(|old| old.slot == new.slot && old.node == Some(worker.id));
            // One that it was to replace goes on where it was.
            let old = old.filter(|old| old.id.number < new.id.number);
            let Some(lost) = old.and_then(|old| oracle.given_up_tasks.get(&old.id)) else { continue };
            beside += 1;
            // Where a manager's clock jumped meanwhile, nobody can tell how long it was.
            if !remains.assignment.spec.on_disconnect.is_keep() && oracle.jumped < *lost {
                return Err(format!(
                    "whoever minds does not run twice: {task} is started, {id} runs on {}, lost at {lost}",
                    worker.id
                ));
            }
        }
    }
    Ok(beside)
}

impl Agent {
    fn has_session_since(&self) -> Option<u64> {
        self.is_welcomed().then_some(self.welcomed_at)
    }
}
