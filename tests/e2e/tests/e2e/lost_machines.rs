//! A machine with a manager and an agent on it is lost, also the one that leads: its tasks run elsewhere soon, nothing
//! that runs on the others notices, and what it still runs when it is back is stopped.

use std::time::{Duration, Instant};

use warren_testkit::load;
use warren_testkit::wait::eventually;

use crate::e2e::task;
use crate::e2e::trio::{REPLICAS, SERVICE, Trio};
use crate::e2e::world::SOON;

/// How soon the tasks of a lost machine run elsewhere, if the machines that are left have CPU for it.
const ELSEWHERE: Duration = Duration::from_secs(15);

/// How a machine is lost.
#[derive(Debug, Clone, Copy)]
enum Loss {
    /// Nobody hears of it any more, and it runs on.
    Cable,
    /// All its processes end at once.
    Power,
}

/// One that follows is lost, then the one that leads.
#[track_caller]
fn lose_machines(loss: Loss) {
    let mut trio = Trio::new();
    trio.create_service(&[]);
    for is_leader in [false, true] {
        let leader = trio.all_vote();
        let lost = if is_leader { leader } else { (leader + 1) % 3 };
        let other = (lost + 1) % 3;
        let kept = trio.pids(Some(lost));
        let moment = Instant::now();
        match loss {
            Loss::Cable => trio.nodes[lost].host().disconnect(),
            Loss::Power => trio.nodes[lost].lose_power(),
        }
        let lost_name = trio.nodes[lost].name();
        eventually(2 * SOON, "all tasks on the other machines", || {
            let tasks = task::serving(&trio.nodes[other], SERVICE, REPLICAS)?;
            let there = tasks.iter().filter(|task| task.node_name == lost_name).count();
            if there == 0 { Ok(()) } else { Err(format!("{tasks:#?}")) }
        });
        let took = moment.elapsed();
        let who = if is_leader { "the leader" } else { "a follower" };
        println!("{loss:?} of {who} lost: all tasks elsewhere after {:.1} s", took.as_secs_f64());
        let bound = if load::is_heavy() { 2 * ELSEWHERE } else { ELSEWHERE };
        assert!(took < bound, "{loss:?} of {who}: {took:?}");
        let now = trio.pids(Some(lost));
        assert!(kept.iter().all(|(id, pid)| now.get(id) == Some(pid)), "{kept:?} {now:?}");
        match loss {
            Loss::Cable => trio.nodes[lost].host().connect(),
            Loss::Power => trio.nodes[lost].run_again(),
        }
        trio.nodes[lost].wait_ready();
        eventually(2 * SOON, "the end of what was replaced", || {
            let left = task::pids(&trio.nodes[lost]);
            if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
        });
        trio.serves(lost);
    }
}

#[test]
fn tasks_of_a_machine_whose_cable_is_pulled_run_elsewhere_also_if_it_led() {
    lose_machines(Loss::Cable);
}

#[test]
fn tasks_of_a_machine_without_power_run_elsewhere_also_if_it_led() {
    lose_machines(Loss::Power);
}
