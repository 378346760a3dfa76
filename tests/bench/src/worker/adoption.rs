//! An agent that was killed takes its containers over.
//!
//! Seen from outside by the agent's own log at debug level, whose times are compared with the moment before its process
//! was started: a container is known when the agent has inspected it, for from then on it holds its process and
//! notices its end; all is settled at the last action, after network and ports of each were looked at. That the words
//! are true is tried each time: a container that is killed right after is started again.

use std::collections::BTreeSet;

use anyhow::{Context, ensure};
use jiff::Timestamp;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use warren_testkit::wait::reached;

use super::Scale;
use super::idle::SERVICE;
use super::world::{SOON, World};
use crate::figures::Figures;

pub fn measure(figures: &mut Figures, world: &mut World, scale: Scale) -> anyhow::Result<()> {
    let (mut known, mut settled) = (Vec::new(), Vec::new());
    for round in 0..scale.adoptions {
        let before = world.pids()?;
        ensure!(before.len() == scale.containers, "{} containers run", before.len());
        let read = world.worker.process().log().len();
        world.worker.kill();
        let start = Timestamp::now();
        world.worker.run_again();
        let all = reached(SOON, "an agent that knows all its containers", || {
            let log = world.worker.process().log();
            let done = Done::of(log.get(read..).unwrap_or_default());
            if done.inspected.len() == before.len() {
                Ok(())
            } else {
                Err(format!("{} known", done.inspected.len()))
            }
        });
        all.with_context(|| world.worker.process().log_tail(20))?;
        world.worker.wait_ready();
        // Not a wait: an agent that does nothing for so long is done.
        std::thread::sleep(std::time::Duration::from_secs(3));
        let log = world.worker.process().log();
        let done = Done::of(log.get(read..).unwrap_or_default());
        known.push(seconds(start, done.known.context("an inspection has a time")?));
        settled.push(seconds(start, done.last.context("an action has a time")?));
        ensure!(world.pids()? == before, "a container got another process when its agent was killed");
        notices(world, round)?;
    }
    let count = scale.containers;
    let what = |to: &str| format!("agent killed with {count} containers: its start until it {to}");
    figures.add_samples(&what("has taken over all"), &known, "s", "< 1");
    figures.add_samples(&what("has looked at their networks and rests"), &settled, "s", "");
    Ok(())
}

fn seconds(from: Timestamp, to: Timestamp) -> f64 {
    (to.as_microsecond() - from.as_microsecond()) as f64 / 1e6
}

/// What an agent's log says that it finished.
#[derive(Default)]
struct Done<'a> {
    inspected: BTreeSet<&'a str>,
    /// When the last container was inspected for the first time.
    known: Option<Timestamp>,
    last: Option<Timestamp>,
}

impl<'a> Done<'a> {
    fn of(log: &'a str) -> Self {
        let mut done = Done::default();
        for line in log.lines().filter(|line| line.contains(": done ")) {
            let field = |name| line.split(' ').find_map(|word| word.strip_prefix(name));
            let at = line.split(' ').next().and_then(|word| word.parse::<Timestamp>().ok());
            done.last = at.or(done.last);
            let inspected = field("task=").filter(|_| field("verb=") == Some("Inspect"));
            if inspected.is_some_and(|task| done.inspected.insert(task)) {
                done.known = at;
            }
        }
        done
    }
}

/// Kills one container and waits until the agent started it again. Each round has its own one: nothing is started
/// again for ever.
fn notices(world: &World, round: usize) -> anyhow::Result<()> {
    let pids = world.pids()?;
    let (id, pid) = pids.iter().nth(round).context("a container for each round")?;
    kill(Pid::from_raw(*pid), Signal::SIGKILL)?;
    reached(SOON, "the container's next process", || {
        let now = world.pids().map_err(|error| error.to_string())?;
        let is_new = now.get(id).is_some_and(|found| found != pid);
        let task = world.task(SERVICE, id).ok_or("no such task")?;
        if is_new && task["state"] == "RUNNING" { Ok(()) } else { Err(task.to_string()) }
    })?;
    Ok(())
}
