//! A real node on real containers: the time of a start compared to `ctr run`, and the cost of an idle node.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use nix::unistd::{SysconfVar, sysconf};
use warren_testkit::image::TestImage;
use warren_testkit::netns::NetworkSwitch;
use warren_testkit::node::{LabNode, NodeOptions};

use crate::figures::BenchFigures;

const IMAGE: &str = "warren.local/bench:1";
/// Pairs of starts.
const ROUNDS: usize = 15;
/// The observation time of the idle node: several heartbeats and a repair of its network.
const IDLE: Duration = Duration::from_secs(40);

pub fn measure(figures: &mut BenchFigures) -> anyhow::Result<()> {
    println!("\none node, real containers");
    let lab = NetworkSwitch::new();
    let mut node = LabNode::start(lab.add_host(), NodeOptions::default());
    let archive = node.scratch().join("bench.tar");
    TestImage::busybox(IMAGE).arguments(["sleep", "100000"]).oci_archive().write(&archive)?;
    let archive = archive.to_str().context("a path in UTF-8")?;
    node.warren().run_ok(&["image", "import", archive]);
    node.ctr(["--namespace", "bench", "images", "import", archive]);
    starts(figures, &node);
    idle(figures, &mut node)
}

/// Pairs of `ctr run -d` and `warren service create`, alternating, each until the container runs.
fn starts(figures: &mut BenchFigures, node: &LabNode) {
    let warren = node.warren();
    let (mut ctr, mut ours, mut ratio, mut inside) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for round in 0..=ROUNDS {
        let name = format!("bench-{round}");
        let start = Instant::now();
        node.ctr(["--namespace", "bench", "run", "--detach", "--null-io", IMAGE, &name, "sleep", "100000"]);
        let theirs = start.elapsed().as_secs_f64();
        let start = Instant::now();
        // Until it runs, as `ctr run` does; not until it has run for a while.
        let immediately = ["--update-monitor", "0s", "--stop-grace", "0s"];
        warren.run_ok(&[&["service", "create", &name, "--image", IMAGE][..], &immediately].concat());
        let own = start.elapsed().as_secs_f64();
        let task = &warren.json(&["service", "ps", &name])[0];
        node.ctr(["--namespace", "bench", "task", "kill", "--signal", "9", &name]);
        warren.run_ok(&["service", "rm", &name]);
        node.ctr(["--namespace", "bench", "task", "delete", "--force", &name]);
        node.ctr(["--namespace", "bench", "container", "delete", &name]);
        // The first pair warms caches.
        if round > 0 {
            ctr.push(theirs);
            ours.push(own);
            ratio.push(own / theirs);
            inside.extend(since_creation(task));
        }
    }
    figures.add_samples("ctr run -d, whole command", &ctr, "s", "");
    figures.add_samples("warren service create until running, whole command", &ours, "s", "");
    figures.add_samples("ratio, pair by pair", &ratio, "x", "<= 1.0");
    figures.add_samples("created to running, by the cluster's own record", &inside, "s", "");
}

/// Seconds from the task's creation to its state.
fn since_creation(task: &serde_json::Value) -> Option<f64> {
    let time = |field: &str| task[field].as_str()?.parse::<jiff::Timestamp>().ok();
    Some((time("stateSince")?.as_millisecond() - time("createdAt")?.as_millisecond()) as f64 / 1000.0)
}

/// Memory, CPU and log of an idle hybrid node.
fn idle(figures: &mut BenchFigures, node: &mut LabNode) -> anyhow::Result<()> {
    let pid = node.process().pid();
    let written = |node: &LabNode| node.warren().json(&["cluster", "info"])["logBytesWritten"].as_u64();
    let before = (written(node).context("cluster info tells logBytesWritten")?, cpu_seconds(pid)?);
    // Not a wait for something: what is measured is this time itself.
    std::thread::sleep(IDLE);
    let after = (written(node).context("cluster info tells logBytesWritten")?, cpu_seconds(pid)?);
    ensure!(after.0 >= before.0, "the log's counter went back");
    let share = (after.1 - before.1) / IDLE.as_secs_f64() * 100.0;
    figures.add("idle hybrid node, RSS", resident_mebibytes(pid)?, "MiB", "< 40");
    figures.add("idle hybrid node, CPU", share, "% of core", "");
    figures.add("idle cluster, bytes written to the log in 40 s", (after.0 - before.0) as f64, "bytes", "0");
    Ok(())
}

/// Resident memory.
pub fn resident_mebibytes(pid: i32) -> anyhow::Result<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("VmRSS in status")?;
    let kibibytes: f64 = line.trim().trim_end_matches(" kB").parse()?;
    Ok(kibibytes / 1024.0)
}

/// User and system time of all threads so far.
pub fn cpu_seconds(pid: i32) -> anyhow::Result<f64> {
    cpu_ticks(pid, &[11, 12])
}

/// The same, including all its children that have ended.
pub fn cpu_seconds_with_children(pid: i32) -> anyhow::Result<f64> {
    cpu_ticks(pid, &[11, 12, 13, 14])
}

/// The time that all CPUs of the machine were busy so far.
pub fn machine_cpu_seconds() -> anyhow::Result<f64> {
    let stat = std::fs::read_to_string("/proc/stat")?;
    let fields = stat.lines().next().and_then(|line| line.strip_prefix("cpu ")).context("cpu in stat")?;
    let ticks: Vec<f64> = fields.split_whitespace().map(str::parse).collect::<Result<_, _>>()?;
    // user, nice, system, idle, iowait, irq, softirq (proc(5)).
    let busy: f64 =
        ticks.iter().take(7).enumerate().filter(|(i, _)| ![3, 4].contains(i)).map(|(_, it)| it).sum();
    let per_second = sysconf(SysconfVar::CLK_TCK)?.context("ticks per second")?;
    Ok(busy / per_second as f64)
}

/// The sum of the fields of proc(5)'s `stat` at `places` after the name, in seconds.
fn cpu_ticks(pid: i32, places: &[usize]) -> anyhow::Result<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let (_, after_name) = stat.rsplit_once(')').context("a name in stat")?;
    let fields: Vec<&str> = after_name.split_whitespace().collect();
    let ticks = |place: &usize| fields.get(*place).and_then(|field| field.parse::<f64>().ok());
    let sum: f64 = places.iter().map(ticks).sum::<Option<f64>>().context("times in stat")?;
    let per_second = sysconf(SysconfVar::CLK_TCK)?.context("ticks per second")?;
    Ok(sum / per_second as f64)
}
