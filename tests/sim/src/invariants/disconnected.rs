//! A node without a manager stops the tasks with a disconnect timeout when that has passed, and not before;
//! all other tasks keep running. The replacement of such a task starts only after that task has stopped.

use warren_task::Action;
use warren_types::{DesiredTaskState, TaskId};

use super::InvariantOracle;
use crate::worker::{SimAgent, SimWorker};

/// Longest time that stopping takes, including failures and the start of an agent.
const STOPPED_WITHIN: u64 = 18_000;
/// Longest time that a connected node takes to stop a task that is not desired.
const GONE_WITHIN: u64 = 23_000;

/// An agent chose this action for a task. Returns whether it stops a desired task because no manager is
/// reachable.
pub fn check_action(
    oracle: &InvariantOracle,
    number: usize,
    worker: &SimWorker,
    task: TaskId,
    action: &Action,
    now: u64,
) -> Result<bool, String> {
    let runs = worker.machine.get(&task).is_some_and(|remains| remains.container.is_running());
    // An agent may follow assignments of a superseded incarnation until it has a session in the current one.
    if !super::no_needless_stop::stops(action) || !runs || worker.incarnation() != oracle.incarnation() {
        return Ok(false);
    }
    let here = oracle.newest.task(&task).filter(|it| it.is_live() && it.node == Some(worker.id));
    let Some(expected) = here.filter(|expected| expected.desired == DesiredTaskState::Running) else {
        return Ok(false);
    };
    let Some(agent) = &worker.agent else { return Ok(false) };
    let Some(time) = expected.revision.task.on_disconnect.stop_after() else {
        return Err(format!("desired tasks keep running: {action:?} of {expected:?} on {}", worker.id));
    };
    let goes_on = agent.observed(&task).is_some_and(|found| found.stop.is_some());
    let known = agent.observed(&task).and_then(|found| found.disconnected_for);
    // An agent without any contact of its own uses the time that an earlier agent recorded, which is older
    // than the last contact: it may stop a task too early by that, and never too late.
    let silent = match agent.contact.last_contact() {
        Some(_) => oracle.silent_for(number, now),
        None => worker.silent_for(now),
    };
    // After a reboot the time without a manager is unknown.
    let is_endless = known == Some(std::time::Duration::MAX);
    if goes_on || is_endless || silent.is_none_or(|silent| u128::from(silent) >= time.as_millis()) {
        return Ok(!goes_on);
    }
    Err(format!(
        "no task is stopped before its disconnect timeout: {action:?} of {expected:?} on {}, {silent:?} ms \
         without a manager",
        worker.id
    ))
}

/// Checks the running tasks of a node whose agent has run for a while.
pub fn check_running(
    oracle: &InvariantOracle,
    number: usize,
    worker: &SimWorker,
    now: u64,
) -> Result<(), String> {
    let Some(agent) = &worker.agent else { return Ok(()) };
    for (id, remains) in worker.machine.iter().filter(|(_, remains)| remains.container.is_running()) {
        let Some(found) = agent.observed(id).filter(|found| found.failures.is_empty()) else { continue };
        let time = remains.assignment.spec.on_disconnect.stop_after().map(|time| time.as_millis());
        let silent = oracle.silent_for(number, now).map(u128::from);
        let is_late = |(silent, time)| silent > time + u128::from(STOPPED_WITHIN);
        if silent.zip(time).is_some_and(is_late) && now > agent.since + STOPPED_WITHIN {
            return Err(format!(
                "a disconnected task is stopped in time: {id} runs on {}, {silent:?} ms without a manager: {found:?}",
                worker.id
            ));
        }
        let since = oracle.stop_requested_at.get(id).copied();
        let is_told = agent.has_session_since().is_some_and(|has| now > has + GONE_WITHIN);
        if is_told
            && since.is_some_and(|since| now > since + GONE_WITHIN)
            && worker.incarnation() == oracle.incarnation()
        {
            return Err(format!("removed tasks are stopped: {id} runs on {}: {found:?}", worker.id));
        }
    }
    Ok(())
}

/// A task was started. Returns how many replaced tasks of lost nodes still run in the same slot.
pub fn check_started(oracle: &InvariantOracle, workers: &[SimWorker], task: TaskId) -> Result<u64, String> {
    let Some(new) = oracle.newest.task(&task) else { return Ok(0) };
    let mut beside = 0;
    for worker in workers {
        let running = worker.machine.iter().filter(|(id, it)| it.container.is_running() && **id != task);
        for (id, remains) in running.filter(|(id, _)| id.service == task.service) {
            let old =
                oracle.newest.task(id).filter(|old| old.slot == new.slot && old.node == Some(worker.id));
            // A task that it replaces in an update keeps running.
            let old = old.filter(|old| old.id.number < new.id.number);
            let Some(lost) = old.and_then(|old| oracle.given_up_tasks.get(&old.id)) else { continue };
            beside += 1;
            // If the clock of a manager jumped in the meantime, the elapsed time is unknown.
            if !remains.assignment.spec.on_disconnect.is_keep() && oracle.jumped < *lost {
                return Err(format!(
                    "a disconnected task does not run twice: {task} is started, {id} runs on {}, lost at {lost}",
                    worker.id
                ));
            }
        }
    }
    Ok(beside)
}

impl SimAgent {
    fn has_session_since(&self) -> Option<u64> {
        self.is_welcomed().then_some(self.welcomed_at)
    }
}
