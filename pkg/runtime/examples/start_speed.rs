//! Measures the time of a container's operations: create → running of this crate against `ctr run -d`,
//! alternating on one private containerd, and then SIGTERM → reported exit, and the clean-up. Containers of
//! this crate have the logger, those of `ctr` have none.
//!
//! `cargo run --release -p warren-runtime --features testing --example start_speed -- [ROUNDS]`

use std::error::Error;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use futures::StreamExt;
use futures::stream::BoxStream;
use warren_image::ImportOptions;
use warren_image::build::ImageBuilder;
use warren_runtime::containerd::ContainerdRuntime;
use warren_runtime::testing::PrivateContainerd;
use warren_runtime::{
    ContainerId, ContainerOwner, ContainerSpec, OutputTarget, ProcessState, Reference, Runtime, RuntimeEvent,
    SeccompPolicy, Signal,
};
use warren_types::Bytes;

const IMAGE: &str = "docker.io/library/speed:1";
/// Exits at once on SIGTERM, which a first process ignores by default.
const WELL_BEHAVED: &str = "trap 'exit 0' TERM; while :; do /bin/busybox sleep 1000 & wait $!; done";

const TIMEOUT: Duration = Duration::from_secs(20);

type Failure = Box<dyn Error>;

/// One container of this crate.
struct ContainerRun {
    start: Duration,
    /// From the signal until the exit is reported.
    stop: Duration,
    /// Removal of process, record and file system.
    clean_up: Duration,
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let rounds: usize = std::env::args().nth(1).map_or(Ok(20), |text| text.parse())?;
    let containerd = PrivateContainerd::start().await;
    let runtime = ContainerdRuntime::new(containerd.settings())?;
    let busybox = std::fs::read("/bin/busybox")?;
    let image = ImageBuilder::new(IMAGE).dir("bin", 0o755).file("bin/busybox", 0o755, busybox);
    let command = vec!["/bin/busybox", "sh", "-c", WELL_BEHAVED];
    let archive = image.config("Cmd", command).oci_archive()?;
    let options = ImportOptions { spool_dir: containerd.dir().to_owned(), max_bytes: 64 << 20, name: None };
    runtime.images().import(&archive[..], options).await?;
    let logger = warren_container_programs::ensure_installed(containerd.dir())?.logger;
    let (mut ours, mut silent, mut unconfined, mut theirs) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for round in 0..rounds {
        let log = log(&containerd, &logger, round)?;
        ours.push(by_us(&runtime, &format!("ours-{round}"), log.clone(), SeccompPolicy::Default).await?);
        silent.push(
            by_us(&runtime, &format!("mute-{round}"), OutputTarget::Discard, SeccompPolicy::Default).await?,
        );
        unconfined.push(by_us(&runtime, &format!("free-{round}"), log, SeccompPolicy::Unconfined).await?);
        theirs.push(by_ctr(&containerd, &runtime, round).await?);
    }
    let theirs = median(theirs);
    println!("medians of {rounds}");
    for (name, lives) in [("ours", ours), ("without the logger", silent), ("without seccomp", unconfined)] {
        let part = |pick: fn(&ContainerRun) -> Duration| median(lives.iter().map(pick).collect());
        let (start, stop, clean_up) =
            (part(|life| life.start), part(|life| life.stop), part(|life| life.clean_up));
        println!("{name}: create to running {start:?}, SIGTERM to end told {stop:?}, clean-up {clean_up:?}");
        println!("  start is {:.2} of ctr run -d, {theirs:?}", start.as_secs_f64() / theirs.as_secs_f64());
    }
    Ok(())
}

fn log(at: &PrivateContainerd, program: &Path, round: usize) -> Result<OutputTarget, Failure> {
    let dir = at.dir().join(format!("log-{round}"));
    std::fs::create_dir_all(&dir)?;
    Ok(OutputTarget::Binary { program: program.to_owned(), dir, max_size: Bytes(10 << 20), max_files: 3 })
}

async fn by_us(
    runtime: &ContainerdRuntime,
    name: &str,
    log: OutputTarget,
    seccomp: SeccompPolicy,
) -> Result<ContainerRun, Failure> {
    let owner = ContainerOwner { task: "t".into(), attempt: 1, spec_hash: "h".into() };
    let spec = ContainerSpec {
        assignment: vec![0; 1024],
        log,
        seccomp,
        ..ContainerSpec::new(ContainerId::parse(name)?, owner, Reference::parse(IMAGE)?)
    };
    let mut events = runtime.events();
    let begin = Instant::now();
    runtime.ensure_created(&spec).await?;
    let pid = runtime.start(&spec.id).await?;
    let start = begin.elapsed();
    tokio::time::timeout(TIMEOUT, wait_until_ready(pid, Signal::TERM)).await??;
    let begin = Instant::now();
    runtime.signal(&spec.id, Signal::TERM).await?;
    tokio::time::timeout(TIMEOUT, ended(&mut events, &spec.id)).await??;
    let stop = begin.elapsed();
    let begin = Instant::now();
    runtime.remove(&spec.id).await?;
    Ok(ContainerRun { start, stop, clean_up: begin.elapsed() })
}

/// A first process ignores signals until it has set its handlers. Before that it is still runc, which
/// receives the signal and does nothing.
async fn wait_until_ready(pid: u32, signal: Signal) -> Result<(), Failure> {
    let read = |file: &str| std::fs::read_to_string(format!("/proc/{pid}/{file}"));
    loop {
        let is_command = read("comm")?.trim() == "busybox";
        let status = read("status")?;
        let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).ok_or("no SigCgt")?;
        if is_command && u64::from_str_radix(mask.trim(), 16)? & (1 << (signal.number() - 1)) != 0 {
            return Ok(());
        }
        tokio::task::yield_now().await;
    }
}

async fn ended(events: &mut BoxStream<'static, RuntimeEvent>, id: &ContainerId) -> Result<(), Failure> {
    loop {
        match events.next().await.ok_or("events never end")? {
            RuntimeEvent::Exited { id: which, .. } if which == *id => return Ok(()),
            _ => {}
        }
    }
}

async fn by_ctr(
    at: &PrivateContainerd,
    runtime: &ContainerdRuntime,
    round: usize,
) -> Result<Duration, Failure> {
    let settings = at.settings();
    let name = format!("ctr-{round}");
    let cgroup = format!("{}/{name}", settings.cgroup_parent);
    let begin = Instant::now();
    let status = Command::new("ctr")
        .args(["-n", &settings.namespace, "--address"])
        .arg(&settings.socket)
        .args(["run", "-d", "--null-io", "--cgroup", &cgroup, IMAGE, &name])
        .status()?;
    let took = begin.elapsed();
    if !status.success() {
        return Err("ctr run failed".into());
    }
    let id = ContainerId::parse(&name)?;
    runtime.signal(&id, Signal::KILL).await?;
    while matches!(runtime.inspect(&id).await?.map(|found| found.process), Some(ProcessState::Running { .. }))
    {
        tokio::task::yield_now().await;
    }
    runtime.remove(&id).await?;
    Ok(took)
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}
