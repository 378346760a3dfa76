//! The time of a stop beyond that of the container itself, and its leftovers.

use std::collections::BTreeSet;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use warren_testkit::cleanup;
use warren_testkit::wait::try_eventually;

use super::WorkerBenchScale;
use super::fixture::{BOX, SOON, WorkerBench, image};
use crate::figures::BenchFigures;

/// Between two checks of a process that is to end.
const LOOK_EVERY: Duration = Duration::from_micros(500);
/// A shell that ends at once on its stop signal.
const SCRIPT: &str = "trap 'exit 0' TERM; sleep 100000 & wait";

pub fn measure(
    figures: &mut BenchFigures,
    world: &mut WorkerBench,
    scale: WorkerBenchScale,
) -> anyhow::Result<()> {
    world.import(&image())?;
    let before = {
        start_and_remove(world)?;
        world.worker.inventory()
    };
    let (mut beyond, mut cleaned) = (Vec::new(), Vec::new());
    // The first round warms caches.
    for round in 0..=scale.stops {
        let own = signal_to_exit_time(world)?;
        let (stopped, left) = stop(world)?;
        if round > 0 {
            beyond.push(stopped - own);
            cleaned.push(left);
        }
    }
    try_eventually(SOON, "the machine as before", || {
        let difference = before.difference(&world.worker.inventory());
        if difference.is_empty() { Ok(()) } else { Err(difference.to_string()) }
    })?;
    figures.add_samples("service rm until the process is gone, beyond its own time", &beyond, "s", "< 0.2");
    figures.add_samples("from then until nothing is left of the container", &cleaned, "s", "< 1");
    Ok(())
}

fn create(world: &WorkerBench, name: &str, flags: &[&str]) -> anyhow::Result<(String, i32)> {
    let words = ["service", "create", name, "--image", BOX, "--drain-delay", "2s"];
    let command = ["--command", "sh", "--arg", "-c", "--arg", SCRIPT];
    world.warren().run_ok(&[&words[..], &command, flags].concat());
    let (id, pid) = world.only_task(name)?;
    // The shell runs before its trap is set. The program before it catches all signals, and loses one that it
    // gets.
    try_eventually(SOON, "the shell's trap", || {
        let status =
            std::fs::read_to_string(format!("/proc/{pid}/status")).map_err(|error| error.to_string())?;
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
        let mask = caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default();
        let bit = 1 << (Signal::SIGTERM as u64 - 1);
        if status.starts_with("Name:\tsh\n") && mask & bit != 0 { Ok(()) } else { Err(status) }
    })?;
    Ok((id, pid))
}

/// Permanent leftovers of a first container, like the kernel's own tables.
fn start_and_remove(world: &WorkerBench) -> anyhow::Result<()> {
    create(world, "first", &[])?;
    world.warren().run_ok(&["service", "rm", "first"]);
    Ok(())
}

/// From the signal until the process of such a container has ended, without Warren.
fn signal_to_exit_time(world: &WorkerBench) -> anyhow::Result<f64> {
    let (_, pid) = create(world, "own", &["--restart", "none"])?;
    let start = Instant::now();
    kill(Pid::from_raw(pid), Signal::SIGTERM)?;
    wait_exit(pid)?;
    let took = start.elapsed().as_secs_f64();
    world.warren().run_ok(&["service", "rm", "own"]);
    Ok(took)
}

/// From the command until the process has ended, and from then until everything is removed.
fn stop(world: &WorkerBench) -> anyhow::Result<(f64, f64)> {
    let empty = ContainerRemains::inspect(world)?;
    let (id, pid) = create(world, "stopped", &[])?;
    let full = ContainerRemains::inspect(world)?;
    let lacking = full.lacks_more_than(&empty);
    ensure!(lacking.is_empty(), "a container should have more of {lacking:?}; its id is {id}");
    let mut command = world.warren().command(&["service", "rm", "stopped"]);
    let start = Instant::now();
    let mut removing = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn()?;
    let ended = wait_exit(pid);
    let (stopped, end) = (start.elapsed().as_secs_f64(), Instant::now());
    let nothing = try_eventually(SOON, "nothing left of the container", || {
        let left = ContainerRemains::inspect(world).map_err(|error| error.to_string())?;
        if left == empty { Ok(()) } else { Err(format!("{left:?} instead of {empty:?}")) }
    });
    let cleaned = end.elapsed().as_secs_f64();
    let status = removing.wait()?;
    ended?;
    nothing?;
    ensure!(status.success(), "service rm ended with {status}");
    Ok((stopped, cleaned))
}

fn wait_exit(pid: i32) -> anyhow::Result<()> {
    let end = Instant::now() + SOON;
    let stat = format!("/proc/{pid}/stat");
    // A zombie has ended: its shim has not reaped it yet.
    while std::fs::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") Z ")) {
        ensure!(Instant::now() < end, "process {pid} did not end within {SOON:?}");
        std::thread::sleep(LOOK_EVERY);
    }
    Ok(())
}

/// The resources of a container. One check runs six programs, some tens of milliseconds, which are part of
/// the measured clean-up.
#[derive(Debug, PartialEq, Eq)]
struct ContainerRemains(Vec<(&'static str, BTreeSet<String>)>);

impl ContainerRemains {
    fn inspect(world: &WorkerBench) -> anyhow::Result<ContainerRemains> {
        let node = &world.worker;
        let lines = |text: String| text.lines().map(str::to_owned).collect::<BTreeSet<_>>();
        let inside = |words: &[&str]| -> anyhow::Result<BTreeSet<String>> {
            let mut command = node.host().command(words[0]);
            command.args(&words[1..]);
            let output = warren_testkit::tool::stdout(command, SOON)?;
            // Counters and times are not rules.
            let rules = output.lines().filter(|line| !line.starts_with([':', '#'])).map(str::to_owned);
            Ok(rules.collect())
        };
        let stored = |what: &[&str]| lines(node.ctr(["--namespace", "warren"].iter().chain(what).copied()));
        let names = std::fs::read_dir(node.run_dir().join("netns")).context("listing network namespaces")?;
        let names = names.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
        let cgroups = cleanup::cgroups(node.id()).iter().map(|path| path.display().to_string()).collect();
        Ok(ContainerRemains(vec![
            ("containers", stored(&["containers", "list", "--quiet"])),
            ("snapshots", stored(&["snapshots", "list"])),
            ("network namespaces", names.collect::<std::io::Result<_>>()?),
            ("links", inside(&["ip", "-oneline", "link"])?),
            ("routes", inside(&["ip", "route"])?),
            ("iptables rules", inside(&["iptables-save"])?),
            ("nft rules", inside(&["nft", "--stateless", "list", "ruleset"])?),
            ("cgroups", cgroups),
        ]))
    }

    /// Kinds that every container has, and of which there are no more than in `empty`.
    fn lacks_more_than(&self, empty: &ContainerRemains) -> Vec<&'static str> {
        let needed = ["containers", "snapshots", "network namespaces", "links", "cgroups"];
        let pairs = self.0.iter().zip(&empty.0);
        pairs
            .filter(|((kind, now), (_, before))| needed.contains(kind) && now.len() <= before.len())
            .map(|((kind, _), _)| *kind)
            .collect()
    }
}
