//! A machine with a manager and an agent is lost, also the leader's: its tasks soon run elsewhere, tasks on
//! the other machines are not disturbed, and what it still runs when it returns is stopped.

use std::time::{Duration, Instant};

use warren_testkit::machine_load;
use warren_testkit::wait::eventually;

use crate::e2e::fixture::SOON;
use crate::e2e::task_document;
use crate::e2e::three_managers::{REPLICAS, SERVICE, ThreeManagers};

/// The time until the tasks of a lost machine run elsewhere, if the remaining machines have enough CPU.
const ELSEWHERE: Duration = Duration::from_secs(20);

/// How a machine is lost.
#[derive(Debug, Clone, Copy)]
enum MachineLoss {
    /// It is disconnected, and keeps running.
    Cable,
    /// All its processes end at once.
    Power,
}

/// A follower is lost, then the leader.
#[track_caller]
fn lose_machines(loss: MachineLoss) {
    let mut trio = ThreeManagers::new();
    trio.create_service(&[]);
    for is_leader in [false, true] {
        let leader = trio.wait_all_voters();
        let lost = if is_leader { leader } else { (leader + 1) % 3 };
        let other = (lost + 1) % 3;
        let kept = trio.pids(Some(lost));
        let moment = Instant::now();
        match loss {
            MachineLoss::Cable => trio.nodes[lost].host().disconnect(),
            MachineLoss::Power => trio.nodes[lost].lose_power(),
        }
        let lost_name = trio.nodes[lost].name();
        eventually(2 * SOON, "all tasks on the other machines", || {
            let tasks = task_document::serving(&trio.nodes[other], SERVICE, REPLICAS)?;
            let there = tasks.iter().filter(|task| task.node_name == lost_name).count();
            if there == 0 { Ok(()) } else { Err(format!("{tasks:#?}")) }
        });
        let took = moment.elapsed();
        let who = if is_leader { "the leader" } else { "a follower" };
        println!("{loss:?} of {who} lost: all tasks elsewhere after {:.1} s", took.as_secs_f64());
        let bound = if machine_load::is_heavy() { 2 * ELSEWHERE } else { ELSEWHERE };
        assert!(took < bound, "{loss:?} of {who}: {took:?}");
        let now = trio.pids(Some(lost));
        assert!(kept.iter().all(|(id, pid)| now.get(id) == Some(pid)), "{kept:?} {now:?}");
        match loss {
            MachineLoss::Cable => trio.nodes[lost].host().connect(),
            MachineLoss::Power => trio.nodes[lost].run_again(),
        }
        trio.nodes[lost].wait_ready();
        eventually(2 * SOON, "the end of what was replaced", || {
            let left = task_document::pids(&trio.nodes[lost]);
            if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
        });
        trio.wait_serving(lost);
    }
}

#[test]
fn disconnected_machine_is_replaced_also_the_leader() {
    lose_machines(MachineLoss::Cable);
}

#[test]
fn powered_off_machine_is_replaced_also_the_leader() {
    lose_machines(MachineLoss::Power);
}
