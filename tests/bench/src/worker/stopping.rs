//! How long a stop takes beyond what the container itself needs, and what is left of it afterwards.

use std::collections::BTreeSet;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use warren_testkit::leftovers;
use warren_testkit::wait::reached;

use super::Scale;
use super::world::{BOX, SOON, World, image};
use crate::figures::Figures;

/// Between two looks at a process that is to end.
const LOOK_EVERY: Duration = Duration::from_micros(500);
/// A shell that ends at once when it is asked to.
const SCRIPT: &str = "trap 'exit 0' TERM; sleep 100000 & wait";

pub fn measure(figures: &mut Figures, world: &mut World, scale: Scale) -> anyhow::Result<()> {
    world.import(&image())?;
    let before = {
        start_and_remove(world)?;
        world.worker.inventory()
    };
    let (mut beyond, mut cleaned) = (Vec::new(), Vec::new());
    // The first round warms caches.
    for round in 0..=scale.stops {
        let own = own_time(world)?;
        let (stopped, left) = stop(world)?;
        if round > 0 {
            beyond.push(stopped - own);
            cleaned.push(left);
        }
    }
    reached(SOON, "the machine as before", || {
        let difference = before.difference(&world.worker.inventory());
        if difference.is_empty() { Ok(()) } else { Err(difference.to_string()) }
    })?;
    figures.add_samples("service rm until the process is gone, beyond its own time", &beyond, "s", "< 0.2");
    figures.add_samples("from then until nothing is left of the container", &cleaned, "s", "< 1");
    Ok(())
}

fn create(world: &World, name: &str, flags: &[&str]) -> anyhow::Result<(String, i32)> {
    let words =
        ["service", "create", name, "--image", BOX, "--command", "sh", "--arg", "-c", "--arg", SCRIPT];
    world.warren().ok(&[&words[..], flags].concat());
    let (id, pid) = world.only_task(name)?;
    // The shell is running before it has said what it does when asked to end. What becomes the shell catches all
    // signals, and loses one that it gets.
    reached(SOON, "the shell's trap", || {
        let status =
            std::fs::read_to_string(format!("/proc/{pid}/status")).map_err(|error| error.to_string())?;
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
        let mask = caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default();
        let bit = 1 << (Signal::SIGTERM as u64 - 1);
        if status.starts_with("Name:\tsh\n") && mask & bit != 0 { Ok(()) } else { Err(status) }
    })?;
    Ok((id, pid))
}

/// What a first container leaves for good, like the machine's own tables.
fn start_and_remove(world: &World) -> anyhow::Result<()> {
    create(world, "first", &[])?;
    world.warren().ok(&["service", "rm", "first"]);
    Ok(())
}

/// From the signal until such a container's process is gone, without Warren.
fn own_time(world: &World) -> anyhow::Result<f64> {
    let (_, pid) = create(world, "own", &["--restart", "none"])?;
    let start = Instant::now();
    kill(Pid::from_raw(pid), Signal::SIGTERM)?;
    gone(pid)?;
    let took = start.elapsed().as_secs_f64();
    world.warren().ok(&["service", "rm", "own"]);
    Ok(took)
}

/// From the command until the process is gone, and from then until nothing is left.
fn stop(world: &World) -> anyhow::Result<(f64, f64)> {
    let empty = Left::look(world)?;
    let (id, pid) = create(world, "stopped", &[])?;
    let full = Left::look(world)?;
    let lacking = full.lacks_more_than(&empty);
    ensure!(lacking.is_empty(), "a container should have more of {lacking:?}; its id is {id}");
    let mut command = world.warren().command(&["service", "rm", "stopped"]);
    let start = Instant::now();
    let mut removing = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn()?;
    let ended = gone(pid);
    let (stopped, end) = (start.elapsed().as_secs_f64(), Instant::now());
    let nothing = reached(SOON, "nothing left of the container", || {
        let left = Left::look(world).map_err(|error| error.to_string())?;
        if left == empty { Ok(()) } else { Err(format!("{left:?} instead of {empty:?}")) }
    });
    let cleaned = end.elapsed().as_secs_f64();
    let status = removing.wait()?;
    ended?;
    nothing?;
    ensure!(status.success(), "service rm ended with {status}");
    Ok((stopped, cleaned))
}

fn gone(pid: i32) -> anyhow::Result<()> {
    let end = Instant::now() + SOON;
    let stat = format!("/proc/{pid}/stat");
    // A zombie has ended: its shim has not asked how yet.
    while std::fs::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") Z ")) {
        ensure!(Instant::now() < end, "process {pid} did not end within {SOON:?}");
        std::thread::sleep(LOOK_EVERY);
    }
    Ok(())
}

/// What a container has on the machine. One look runs six programs, some tens of milliseconds, which count as
/// part of the clean-up.
#[derive(Debug, PartialEq, Eq)]
struct Left(Vec<(&'static str, BTreeSet<String>)>);

impl Left {
    fn look(world: &World) -> anyhow::Result<Left> {
        let node = &world.worker;
        let lines = |text: String| text.lines().map(str::to_owned).collect::<BTreeSet<_>>();
        let inside = |words: &[&str]| -> anyhow::Result<BTreeSet<String>> {
            let mut command = node.host().command(words[0]);
            command.args(&words[1..]);
            let said = warren_testkit::tool::stdout(command, SOON)?;
            // Counters and times are no rules.
            let rules = said.lines().filter(|line| !line.starts_with([':', '#'])).map(str::to_owned);
            Ok(rules.collect())
        };
        let stored = |what: &[&str]| lines(node.ctr(["--namespace", "warren"].iter().chain(what).copied()));
        let names = std::fs::read_dir(node.run_dir().join("netns")).context("listing network namespaces")?;
        let names = names.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
        let cgroups = leftovers::cgroups(node.id()).iter().map(|path| path.display().to_string()).collect();
        Ok(Left(vec![
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

    /// Kinds that every container must have of, and of which there are no more than in `empty`.
    fn lacks_more_than(&self, empty: &Left) -> Vec<&'static str> {
        let needed = ["containers", "snapshots", "network namespaces", "links", "cgroups"];
        let pairs = self.0.iter().zip(&empty.0);
        pairs
            .filter(|((kind, now), (_, before))| needed.contains(kind) && now.len() <= before.len())
            .map(|((kind, _), _)| *kind)
            .collect()
    }
}
