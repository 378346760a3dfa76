//! A killed agent adopts its containers.
//!
//! Measured from the agent's own log at debug level, whose times are compared with the time before its
//! process started: a container is adopted when the agent has inspected it, for from then on it holds its
//! process and notices its end; all is settled at the last action, after network and ports of each were
//! checked. Each run verifies the log: a container that is killed directly afterwards is restarted.

use std::collections::BTreeSet;

use anyhow::{Context, ensure};
use jiff::Timestamp;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use warren_testkit::wait::try_eventually;

use super::WorkerBenchScale;
use super::fixture::{SOON, WorkerBench};
use super::idle::SERVICE;
use crate::figures::BenchFigures;

pub fn measure(
    figures: &mut BenchFigures,
    world: &mut WorkerBench,
    scale: WorkerBenchScale,
) -> anyhow::Result<()> {
    let (mut known, mut settled) = (Vec::new(), Vec::new());
    for round in 0..scale.adoptions {
        let before = world.pids()?;
        ensure!(before.len() == scale.containers, "{} containers run", before.len());
        let read = world.worker.process().log().len();
        world.worker.kill();
        let start = Timestamp::now();
        world.worker.run_again();
        let all = try_eventually(SOON, "the adoption of all containers", || {
            let log = world.worker.process().log();
            let done = AdoptionLog::of(log.get(read..).unwrap_or_default());
            if done.inspected.len() == before.len() {
                Ok(())
            } else {
                Err(format!("{} known", done.inspected.len()))
            }
        });
        all.with_context(|| world.worker.process().log_tail(20))?;
        world.worker.wait_ready();
        // Not a wait: an agent without actions for this long is settled.
        std::thread::sleep(std::time::Duration::from_secs(3));
        let log = world.worker.process().log();
        let done = AdoptionLog::of(log.get(read..).unwrap_or_default());
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

/// The finished actions in an agent's log.
#[derive(Default)]
struct AdoptionLog<'a> {
    inspected: BTreeSet<&'a str>,
    /// When the last container was inspected for the first time.
    known: Option<Timestamp>,
    last: Option<Timestamp>,
}

impl<'a> AdoptionLog<'a> {
    fn of(log: &'a str) -> Self {
        let mut done = AdoptionLog::default();
        for line in log.lines().filter(|line| line.contains(": action completed ")) {
            let field = |name| line.split(' ').find_map(|keyword| keyword.strip_prefix(name));
            let at = line.split(' ').next().and_then(|keyword| keyword.parse::<Timestamp>().ok());
            done.last = at.or(done.last);
            let inspected = field("task=").filter(|_| field("action=") == Some("Inspect"));
            if inspected.is_some_and(|task| done.inspected.insert(task)) {
                done.known = at;
            }
        }
        done
    }
}

/// Kills one container and waits until the agent restarted it. Each round uses another one, because restarts
/// are limited.
fn notices(world: &WorkerBench, round: usize) -> anyhow::Result<()> {
    let pids = world.pids()?;
    let (id, pid) = pids.iter().nth(round).context("a container for each round")?;
    kill(Pid::from_raw(*pid), Signal::SIGKILL)?;
    try_eventually(SOON, "the container's next process", || {
        let now = world.pids().map_err(|error| error.to_string())?;
        let is_new = now.get(id).is_some_and(|found| found != pid);
        let task = world.task(SERVICE, id).ok_or("no such task")?;
        if is_new && task["state"] == "RUNNING" { Ok(()) } else { Err(task.to_string()) }
    })?;
    Ok(())
}
