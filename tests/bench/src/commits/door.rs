//! The raft driver on a real log, without planners and API: what a command costs until it is durable and applied.

use std::time::Instant;

use anyhow::Context;
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;
use warren_core::{Command, LEVEL};
use warren_log::{DataDir, Engine, Owner};
use warren_manager::Tuning;
use warren_manager::raft::restore::{Group, open_store};
use warren_manager::store::Store;
use warren_types::{ClusterId, Id, ManagerId, Mode, ServiceId, ServiceSpec, TaskSpec, Timestamp};

use super::{SPAN, Sample, Subject, WRITERS};

const NOW: Timestamp = Timestamp(1_000);
/// Of every log that a benchmark opens without a manager.
pub const OWNER: Owner = Owner { cluster: ClusterId(Id(1)), manager: ManagerId(Id(1)), member: 1 };

/// Ends its driver when it is dropped.
pub struct Door {
    store: Store,
    stop: CancellationToken,
}

impl Drop for Door {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Door {
    /// A cluster in `directory` with a service for each writer.
    pub fn open(runtime: &Runtime, directory: &TempDir, engine: Engine) -> anyhow::Result<Self> {
        let path = directory.path().join("manager");
        std::fs::create_dir_all(&path)?;
        let (data_dir, stop) = (DataDir::open(directory.path())?, CancellationToken::new());
        let opened =
            open_store(data_dir, &path, (engine, OWNER), Tuning::default(), Group::of_one(), stop.clone())?;
        let door = Self { store: opened.store, stop };
        runtime.block_on(door.prepare())?;
        Ok(door)
    }

    async fn prepare(&self) -> anyhow::Result<()> {
        let mut watch = self.store.watch(0);
        while !self.store.read().role.may_plan {
            // A missed change is as good a reason to look again as any.
            let _ = watch.next().await;
        }
        let ranges = vec!["10.0.0.0/8".parse().context("a range")?];
        self.store
            .propose(Command::CreateCluster { id: ClusterId(Id(1)), ranges, level: LEVEL, at: NOW })
            .await?;
        for writer in 0..WRITERS.into_iter().max().unwrap_or_default() {
            let spec = spec(&format!("bench-{writer}"))?;
            self.store.propose(Command::CreateService { id: service(writer), spec, at: NOW }).await?;
        }
        Ok(())
    }
}

impl Subject for Door {
    /// Every writer scales a service of its own up and down: nobody plans here, so no tasks follow.
    fn measure(&mut self, runtime: &Runtime, writers: usize) -> anyhow::Result<Sample> {
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
        Ok(Sample::new(start.elapsed(), self.store.read().log.writes - before, latencies))
    }
}

fn service(writer: usize) -> ServiceId {
    ServiceId(Id(writer as u128 + 1))
}

/// A service as small as they come.
pub fn spec(name: &str) -> anyhow::Result<ServiceSpec> {
    Ok(ServiceSpec {
        name: name.parse().context("a service's name")?,
        labels: Default::default(),
        mode: Mode::Replicated { replicas: 0 },
        task: TaskSpec::new("web:1".parse().context("an image's reference")?),
        ports: Vec::new(),
        placement: Default::default(),
        replace_after: Default::default(),
    })
}
