//! Doors that stop answering after so many calls, as if the agent had been killed there.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use futures::stream::BoxStream;
use warren_network::fake::FakeNetwork;
use warren_network::{
    Error as NetworkError, HostPort, Network, NodeNetwork, NodeSettings, PublishedPort, Repairs, TaskKey,
    TaskNetwork,
};
use warren_runtime::fake::Fake;
use warren_runtime::{
    ContainerId, ContainerSpec, Exit, Found, ImageFiles, Info, Mount, ProcessSetup, Reference, Result,
    RunsAs, Runtime, RuntimeEvent, Signal, Swept,
};
use warren_types::{TaskAssignment, TaskId};

use super::around::FakeContents;
use crate::tasks::contents::{Contents, Has};
use crate::tasks::failure::Failure;

/// How long an agent lives, in calls.
#[derive(Debug)]
pub struct Life {
    left: AtomicI64,
    /// The last call takes effect, and only its answer is not heard.
    last_takes_effect: bool,
    /// How long making the node's whole network takes.
    laying: Duration,
}

impl Life {
    /// Ends only when it is ended.
    pub fn endless() -> Arc<Self> {
        Self::of(i64::MAX, false)
    }

    /// Ends with the call that follows after `calls` others.
    pub fn of(calls: i64, last_takes_effect: bool) -> Arc<Self> {
        Arc::new(Self { left: AtomicI64::new(calls), last_takes_effect, laying: Duration::ZERO })
    }

    /// Ends only when it is ended, and takes so long to make the node's whole network.
    pub fn laying_for(laying: Duration) -> Arc<Self> {
        Arc::new(Self { left: AtomicI64::new(i64::MAX), last_takes_effect: false, laying })
    }

    /// Ends it now.
    pub fn end(&self) {
        self.left.store(-1, Ordering::SeqCst);
    }

    /// Whether it has ended.
    pub fn is_over(&self) -> bool {
        self.left.load(Ordering::SeqCst) < 0
    }

    async fn through<T>(&self, call: impl Future<Output = T>) -> T {
        let before = self.left.fetch_sub(1, Ordering::SeqCst);
        if before > 0 {
            return call.await;
        }
        if before == 0 && self.last_takes_effect {
            call.await;
        }
        std::future::pending().await
    }
}

/// A door of an agent that can die.
pub struct Mortal<T> {
    door: T,
    life: Arc<Life>,
}

impl<T> Mortal<T> {
    /// The door as this life sees it.
    pub fn new(door: T, life: &Arc<Life>) -> Self {
        Self { door, life: Arc::clone(life) }
    }
}

#[tonic::async_trait]
impl Runtime for Mortal<Fake> {
    async fn info(&self) -> Result<Info> {
        self.life.through(self.door.info()).await
    }

    async fn list(&self) -> Result<Vec<Found>> {
        self.life.through(self.door.list()).await
    }

    async fn inspect(&self, id: &ContainerId) -> Result<Option<Found>> {
        self.life.through(self.door.inspect(id)).await
    }

    async fn ensure_created(&self, spec: &ContainerSpec) -> Result<()> {
        self.life.through(self.door.ensure_created(spec)).await
    }

    async fn start(&self, id: &ContainerId) -> Result<u32> {
        self.life.through(self.door.start(id)).await
    }

    async fn signal(&self, id: &ContainerId, signal: Signal) -> Result<bool> {
        self.life.through(self.door.signal(id, signal)).await
    }

    async fn delete_process(&self, id: &ContainerId) -> Result<Option<Exit>> {
        self.life.through(self.door.delete_process(id)).await
    }

    async fn remove(&self, id: &ContainerId) -> Result<()> {
        self.life.through(self.door.remove(id)).await
    }

    async fn set_ledger(&self, id: &ContainerId, ledger: &str) -> Result<()> {
        self.life.through(self.door.set_ledger(id, ledger)).await
    }

    async fn process_setup(&self, id: &ContainerId) -> Result<ProcessSetup> {
        self.life.through(self.door.process_setup(id)).await
    }

    fn events(&self) -> BoxStream<'static, RuntimeEvent> {
        self.door.events()
    }

    async fn image_files(&self, image: &Reference) -> Result<ImageFiles> {
        self.life.through(self.door.image_files(image)).await
    }

    async fn runs_as(&self, image: &Reference, user: Option<&str>) -> Result<RunsAs> {
        self.life.through(self.door.runs_as(image, user)).await
    }

    async fn sweep_strays(&self) -> Result<Swept> {
        self.life.through(self.door.sweep_strays()).await
    }

    async fn remove_node(&self) -> Result<()> {
        self.life.through(Runtime::remove_node(&self.door)).await
    }
}

#[tonic::async_trait]
impl Contents for Mortal<FakeContents> {
    async fn ensure(
        &self,
        task: &TaskAssignment,
        node: &warren_types::NodeSettings,
    ) -> std::result::Result<Vec<Mount>, Failure> {
        self.life.through(self.door.ensure(task, node)).await
    }

    async fn remove(&self, task: &TaskId) -> std::result::Result<(), Failure> {
        self.life.through(self.door.remove(task)).await
    }

    async fn sweep(&self, has: Has<'_>) -> std::result::Result<usize, Failure> {
        self.life.through(self.door.sweep(has)).await
    }
}

#[tonic::async_trait]
impl Network for Mortal<Arc<FakeNetwork>> {
    async fn check(&self) -> std::result::Result<(), NetworkError> {
        self.life.through(self.door.check()).await
    }

    async fn ensure_node(&self, node: &NodeSettings) -> std::result::Result<(), NetworkError> {
        self.life.through(self.door.ensure_node(node)).await
    }

    async fn ensure_task(&self, task: &TaskNetwork) -> std::result::Result<PathBuf, NetworkError> {
        self.life.through(self.door.ensure_task(task)).await
    }

    async fn remove_task(&self, task: &TaskKey) -> std::result::Result<(), NetworkError> {
        self.life.through(self.door.remove_task(task)).await
    }

    async fn ensure_port(&self, port: &PublishedPort) -> std::result::Result<(), NetworkError> {
        self.life.through(self.door.ensure_port(port)).await
    }

    async fn remove_port(&self, at: HostPort) -> std::result::Result<(), NetworkError> {
        self.life.through(self.door.remove_port(at)).await
    }

    async fn ensure(&self, all: &NodeNetwork) -> std::result::Result<Repairs, NetworkError> {
        if !self.life.laying.is_zero() {
            // Not a wait: in virtual time this is how long it takes.
            tokio::time::sleep(self.life.laying).await;
        }
        self.life.through(self.door.ensure(all)).await
    }

    async fn repair(&self) -> std::result::Result<Repairs, NetworkError> {
        self.life.through(self.door.repair()).await
    }

    async fn remove_node(&self) -> std::result::Result<(), NetworkError> {
        self.life.through(self.door.remove_node()).await
    }
}
