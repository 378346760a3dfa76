//! Whether the removal of a large service slows down the commands for other services: the same commands, on the
//! same cluster, idle and during the removal.

use std::time::{Duration, Instant};

use anyhow::ensure;
use tokio::runtime::Runtime;
use tonic::Code;
use tonic::transport::Channel;
use warren_proto::v1;
use warren_proto::v1::services_client::ServicesClient;

use super::ManagerBenchScale;
use super::fake_workers::FakeWorkers;
use super::group::{ManagerProcesses, SOON};
use super::services::{LOOK, connect, create, wait_running};
use crate::figures::BenchFigures;
use crate::node::resident_mebibytes;

const ROUNDS: usize = 3;
/// Tasks on each worker.
const PER_WORKER: u32 = 100;

/// Milliseconds of commands for other services.
#[derive(Default)]
struct CommandLatencies {
    /// A service is created and removed.
    writes: Vec<f64>,
    reads: Vec<f64>,
}

pub fn measure(
    figures: &mut BenchFigures,
    runtime: &Runtime,
    scale: ManagerBenchScale,
) -> anyhow::Result<()> {
    let group = ManagerProcesses::start(1)?;
    let workers = (scale.tasks / PER_WORKER).max(1) as usize;
    let mut fakes = FakeWorkers::join(group.warren(), &group.addresses(), workers)?;
    fakes.open()?;
    let mut services = connect(&group, runtime)?;
    let resident = || resident_mebibytes(group.pid(0));
    let mut memory = vec![resident()?];
    let (mut taken, mut writes, mut reads) = (Vec::new(), Ratios::default(), Ratios::default());
    for _ in 0..ROUNDS {
        let (removal, idle, busy) = runtime.block_on(measure_removal(&mut services, scale))?;
        taken.push(removal.as_secs_f64());
        writes.add(idle.writes, busy.writes);
        reads.add(idle.reads, busy.reads);
        memory.push(resident()?);
    }
    let what = format!("a service of {} tasks on {workers} workers is removed", scale.tasks);
    figures.add_samples(&format!("{what}: until nothing is left"), &taken, "s", "");
    figures.add(
        &format!("{what}: RSS of the manager before the first one was created"),
        memory[0],
        "MiB",
        "",
    );
    figures.add_samples(&format!("{what}: RSS of the manager after that"), &memory[1..], "MiB", "");
    writes.show(figures, &format!("{what}: writes for others"));
    reads.show(figures, &format!("{what}: reads of others"));
    Ok(())
}

/// How long a removal takes, and the commands before it and meanwhile.
async fn measure_removal(
    services: &mut ServicesClient<Channel>,
    scale: ManagerBenchScale,
) -> anyhow::Result<(Duration, CommandLatencies, CommandLatencies)> {
    let large = create(services, scale.tasks).await?;
    wait_running(services, large.clone(), scale.tasks).await?;
    let (mut idle, mut busy) = (CommandLatencies::default(), CommandLatencies::default());
    let start = Instant::now();
    while start.elapsed() < scale.observed_for {
        idle.sample(services).await?;
    }
    let start = Instant::now();
    services
        .remove(v1::RemoveServiceRequest { reference: large.clone(), version: None, force: false })
        .await?;
    while exists(services, &large).await? {
        ensure!(start.elapsed() < 10 * SOON, "the service is not removed after {:?}", start.elapsed());
        busy.sample(services).await?;
    }
    Ok((start.elapsed(), idle, busy))
}

async fn exists(services: &mut ServicesClient<Channel>, id: &str) -> anyhow::Result<bool> {
    match services.get(v1::Reference { reference: id.to_owned() }).await {
        Ok(_) => Ok(true),
        Err(status) if status.code() == Code::NotFound => Ok(false),
        Err(status) => Err(status.into()),
    }
}

impl CommandLatencies {
    /// The commands for one other service.
    async fn sample(&mut self, services: &mut ServicesClient<Channel>) -> anyhow::Result<()> {
        let begin = Instant::now();
        let reference = create(services, 0).await?;
        self.writes.push(milliseconds(begin));
        let begin = Instant::now();
        services.get(v1::Reference { reference: reference.clone() }).await?;
        self.reads.push(milliseconds(begin));
        let begin = Instant::now();
        services.remove(v1::RemoveServiceRequest { reference, version: None, force: false }).await?;
        self.writes.push(milliseconds(begin));
        // Not a wait for a condition: people and tools pause as well.
        tokio::time::sleep(LOOK).await;
        Ok(())
    }
}

fn milliseconds(begin: Instant) -> f64 {
    begin.elapsed().as_secs_f64() * 1000.0
}

/// Of each round: latencies while idle and during the removal, and their ratio.
#[derive(Default)]
struct Ratios {
    p50: [Vec<f64>; 3],
    p99: [Vec<f64>; 3],
}

impl Ratios {
    fn add(&mut self, mut idle: Vec<f64>, mut busy: Vec<f64>) {
        idle.sort_by(f64::total_cmp);
        busy.sort_by(f64::total_cmp);
        for (columns, share) in [(&mut self.p50, 0.5), (&mut self.p99, 0.99)] {
            let (idle, busy) = (quantile(&idle, share), quantile(&busy, share));
            columns.iter_mut().zip([idle, busy, busy / idle]).for_each(|(column, value)| column.push(value));
        }
    }

    fn show(&self, figures: &mut BenchFigures, what: &str) {
        for (name, [idle, busy, ratio], aim) in [("p50", &self.p50, "< 2"), ("p99", &self.p99, "")] {
            figures.add_samples(&format!("{what}: {name} while idle"), idle, "ms", "");
            figures.add_samples(&format!("{what}: {name} meanwhile"), busy, "ms", "");
            figures.add_samples(&format!("{what}: {name}, meanwhile / idle"), ratio, "x", aim);
        }
    }
}

/// Of sorted values.
fn quantile(sorted: &[f64], share: f64) -> f64 {
    let last = sorted.len().saturating_sub(1) as f64;
    sorted.get((last * share).round() as usize).copied().unwrap_or_default()
}
