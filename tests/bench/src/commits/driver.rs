//! The raft driver on a real log, without planners and API: the cost of a command until it is durable and
//! applied.

use std::time::Instant;

use anyhow::Context;
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;
use warren_core::{Command, FEATURE_LEVEL};
use warren_log::{DataDir, LogEngine, LogOwner};
use warren_security::seal::KeyFiles;
use warren_store::Store;
use warren_store::raft::open::{GroupConfig, ReplicaTuning, open_store};
use warren_types::{
    ClusterId, Id, ImageResolver, ManagerId, ServiceId, ServiceMode, ServiceSpec, TaskSpec, Timestamp,
};

use super::{CommitBenchmark, CommitSample, SPAN, WRITERS};

const NOW: Timestamp = Timestamp(1_000);
/// The cluster id of every log that a benchmark opens without a manager.
pub const OWNER: LogOwner = LogOwner { cluster: ClusterId(Id(1)), manager: ManagerId(Id(1)), member: 1 };

/// Ends its driver when it is dropped.
pub struct DriverBenchmark {
    store: Store,
    stop: CancellationToken,
}

impl Drop for DriverBenchmark {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl DriverBenchmark {
    /// A cluster in `directory` with a service for each writer.
    pub fn open(runtime: &Runtime, directory: &TempDir, engine: LogEngine) -> anyhow::Result<Self> {
        let path = directory.path().join("manager");
        std::fs::create_dir_all(&path)?;
        let (data_dir, stop) = (DataDir::open(directory.path())?, CancellationToken::new());
        let opened = open_store(
            data_dir,
            &KeyFiles::open(&path, None)?,
            (engine, OWNER),
            ReplicaTuning::default(),
            GroupConfig::single(),
            stop.clone(),
        )?;
        let benchmark = Self { store: opened.store, stop };
        runtime.block_on(benchmark.prepare())?;
        Ok(benchmark)
    }

    async fn prepare(&self) -> anyhow::Result<()> {
        let mut watch = self.store.watch(0);
        while !self.store.read().role.can_plan {
            // A missed change only causes another check.
            let _ = watch.next().await;
        }
        let ranges = vec!["10.0.0.0/8".parse().context("a range")?];
        self.store
            .propose(Command::CreateCluster {
                id: ClusterId(Id(1)),
                ranges,
                feature_level: FEATURE_LEVEL,
                at: NOW,
            })
            .await?;
        for writer in 0..WRITERS.into_iter().max().unwrap_or_default() {
            let spec = spec(&format!("bench-{writer}"))?;
            self.store.propose(Command::CreateService { id: service(writer), spec, at: NOW }).await?;
        }
        Ok(())
    }
}

impl CommitBenchmark for DriverBenchmark {
    /// Every writer scales its own service up and down: there is no planner, so no tasks follow.
    fn measure(&mut self, runtime: &Runtime, writers: usize) -> anyhow::Result<CommitSample> {
        let (start, before) = (Instant::now(), self.store.read().log.writes);
        let writing: Vec<_> = (0..writers)
            .map(|writer| {
                let store = self.store.clone();
                runtime.spawn(async move {
                    let mut latencies = Vec::new();
                    while start.elapsed() < SPAN {
                        let (id, replicas) = (service(writer), 1 + (latencies.len() as u32 & 1));
                        let begun = Instant::now();
                        let command = Command::ScaleService { id, version: None, replicas, at: NOW };
                        store.propose(command).await?;
                        latencies.push(begun.elapsed());
                    }
                    anyhow::Ok(latencies)
                })
            })
            .collect();
        let mut latencies = Vec::new();
        for writer in writing {
            latencies.push(runtime.block_on(writer)??);
        }
        Ok(CommitSample::new(start.elapsed(), self.store.read().log.writes - before, latencies))
    }
}

fn service(writer: usize) -> ServiceId {
    ServiceId(Id(writer as u128 + 1))
}

/// A minimal service.
pub fn spec(name: &str) -> anyhow::Result<ServiceSpec> {
    let mut task = TaskSpec::new("web:1".parse().context("an image's reference")?);
    task.resolve_image = ImageResolver::Worker;
    Ok(ServiceSpec {
        mode: ServiceMode::Replicated { replicas: 0 },
        ..ServiceSpec::new(name.parse().context("a service's name")?, task)
    })
}
