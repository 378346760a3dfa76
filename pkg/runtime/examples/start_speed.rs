//! Measures create → running of this crate against `ctr run -d`, taking turns on one private containerd.
//!
//! `cargo run --release -p warren-runtime --features testing --example start_speed -- [ROUNDS]`

use std::collections::BTreeMap;
use std::error::Error;
use std::process::Command;
use std::time::{Duration, Instant};

use warren_image::ImportOptions;
use warren_image::build::Builder;
use warren_runtime::containerd::Containerd;
use warren_runtime::testing::PrivateContainerd;
use warren_runtime::{ContainerId, ContainerSpec, Limits, Log, Owner, Process, Reference, Runtime, Signal};

const IMAGE: &str = "docker.io/library/speed:1";

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let rounds: usize = std::env::args().nth(1).map_or(Ok(20), |text| text.parse())?;
    let containerd = PrivateContainerd::start().await;
    let runtime = Containerd::new(containerd.settings())?;
    let busybox = std::fs::read("/bin/busybox")?;
    let image = Builder::new(IMAGE).dir("bin", 0o755).file("bin/busybox", 0o755, busybox);
    let archive = image.config("Cmd", vec!["/bin/busybox", "sleep", "100000"]).oci_archive()?;
    let options = ImportOptions { spool_dir: containerd.dir().to_owned(), max_bytes: 64 << 20, name: None };
    runtime.images().import(&archive[..], options).await?;
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        ours.push(by_us(&runtime, round).await?);
        theirs.push(by_ctr(&containerd, &runtime, round).await?);
    }
    let (ours, theirs) = (median(ours), median(theirs));
    println!("create to running, median of {rounds}: ours {ours:?}, ctr run -d {theirs:?}");
    println!("ratio {:.2}", ours.as_secs_f64() / theirs.as_secs_f64());
    Ok(())
}

async fn by_us(runtime: &Containerd, round: usize) -> Result<Duration, Box<dyn Error>> {
    let spec = ContainerSpec {
        id: ContainerId::parse(&format!("ours-{round}"))?,
        owner: Owner { task: "t".into(), attempt: 1, spec_hash: "h".into() },
        image: Reference::parse(IMAGE)?,
        command: None,
        args: None,
        env: Vec::new(),
        hostname: "speed".into(),
        limits: Limits::default(),
        netns: None,
        mounts: Vec::new(),
        log: Log::Discard,
        assignment: vec![0; 1024],
        labels: BTreeMap::new(),
        stop_signal: None,
    };
    let begin = Instant::now();
    runtime.ensure_created(&spec).await?;
    runtime.start(&spec.id).await?;
    let took = begin.elapsed();
    remove(runtime, &spec.id).await?;
    Ok(took)
}

async fn by_ctr(
    at: &PrivateContainerd,
    runtime: &Containerd,
    round: usize,
) -> Result<Duration, Box<dyn Error>> {
    let settings = at.settings();
    let name = format!("ctr-{round}");
    let begin = Instant::now();
    let status = Command::new("ctr")
        .args(["-n", &settings.namespace, "--address"])
        .arg(&settings.socket)
        .args([
            "run",
            "-d",
            "--null-io",
            "--cgroup",
            &format!("{}/{name}", settings.cgroup_parent),
            IMAGE,
            &name,
        ])
        .status()?;
    let took = begin.elapsed();
    if !status.success() {
        return Err("ctr run failed".into());
    }
    remove(runtime, &ContainerId::parse(&name)?).await?;
    Ok(took)
}

async fn remove(runtime: &Containerd, id: &ContainerId) -> Result<(), Box<dyn Error>> {
    runtime.signal(id, Signal::KILL).await?;
    while matches!(runtime.inspect(id).await?.map(|found| found.process), Some(Process::Running { .. })) {
        tokio::task::yield_now().await;
    }
    Ok(runtime.remove(id).await?)
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}
