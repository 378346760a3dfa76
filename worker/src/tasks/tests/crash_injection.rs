//! Backends that stop answering after so many calls, as if the agent had been killed there.

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use futures::stream::BoxStream;
use warren_network::fake::FakeNetwork;
use warren_network::{
    ClusterNetwork, Error as NetworkError, HostPort, Ipv4Net, NetworkBackend, NodeNetwork,
    NodeNetworkSettings, PortMapping, RangeConflict, Repairs, TaskKey, TaskNetwork, Underlay,
};
use warren_runtime::fake::FakeRuntime;
use warren_runtime::{
    AttachedProcess, ContainerHandles, ContainerId, ContainerMount, ContainerProcess, ContainerSpec,
    ContainerStatus, ContainerUser, ExecProcess, ExecSpec, ImageFiles, LayerUsage, ProcessExit, Reference,
    Result, Runtime, RuntimeEvent, RuntimeInfo, Signal, SweepReport,
};
use warren_types::{SeccompProfile, TaskAssignment, TaskId, TemplateValues};

use super::fakes::FakeSecretObjects;
use crate::handlers::secret_objects::{HasTask, SecretObjects, SecretObjectsError};

/// Number of calls until an agent is killed.
#[derive(Debug)]
pub struct CrashPlan {
    calls_left: AtomicI64,
    /// The last call takes effect, and only its answer is lost.
    last_takes_effect: bool,
    /// Duration of the set-up of the node network.
    network_setup_delay: Duration,
}

impl CrashPlan {
    /// Kills the agent only on request.
    pub fn never() -> Arc<Self> {
        Self::after_calls(i64::MAX, false)
    }

    /// Ends with the call that follows after `calls` others.
    pub fn after_calls(calls: i64, last_takes_effect: bool) -> Arc<Self> {
        Arc::new(Self {
            calls_left: AtomicI64::new(calls),
            last_takes_effect,
            network_setup_delay: Duration::ZERO,
        })
    }

    /// Ends only when killed, and takes so long to set up the node network.
    pub fn with_network_setup_delay(laying: Duration) -> Arc<Self> {
        Arc::new(Self {
            calls_left: AtomicI64::new(i64::MAX),
            last_takes_effect: false,
            network_setup_delay: laying,
        })
    }

    /// Kills it now.
    pub fn crash(&self) {
        self.calls_left.store(-1, Ordering::SeqCst);
    }

    /// Whether it was killed.
    pub fn has_crashed(&self) -> bool {
        self.calls_left.load(Ordering::SeqCst) < 0
    }

    async fn run_call<T>(&self, call: impl Future<Output = T>) -> T {
        let before = self.calls_left.fetch_sub(1, Ordering::SeqCst);
        if before > 0 {
            return call.await;
        }
        if before == 0 && self.last_takes_effect {
            call.await;
        }
        std::future::pending().await
    }
}

/// A backend of an agent that can be killed.
pub struct CrashingBackend<T> {
    backend: T,
    plan: Arc<CrashPlan>,
}

impl<T> CrashingBackend<T> {
    /// The backend for this run.
    pub fn new(backend: T, plan: &Arc<CrashPlan>) -> Self {
        Self { backend, plan: Arc::clone(plan) }
    }
}

#[tonic::async_trait]
impl Runtime for CrashingBackend<FakeRuntime> {
    async fn info(&self) -> Result<RuntimeInfo> {
        self.plan.run_call(self.backend.info()).await
    }

    async fn list(&self) -> Result<Vec<ContainerStatus>> {
        self.plan.run_call(self.backend.list()).await
    }

    async fn inspect(&self, id: &ContainerId) -> Result<Option<ContainerStatus>> {
        self.plan.run_call(self.backend.inspect(id)).await
    }

    async fn ensure_created(&self, spec: &ContainerSpec) -> Result<()> {
        self.plan.run_call(self.backend.ensure_created(spec)).await
    }

    async fn start(&self, id: &ContainerId) -> Result<u32> {
        self.plan.run_call(self.backend.start(id)).await
    }

    async fn signal(&self, id: &ContainerId, signal: Signal) -> Result<bool> {
        self.plan.run_call(self.backend.signal(id, signal)).await
    }

    async fn delete_process(&self, id: &ContainerId) -> Result<Option<ProcessExit>> {
        self.plan.run_call(self.backend.delete_process(id)).await
    }

    async fn remove(&self, id: &ContainerId) -> Result<()> {
        self.plan.run_call(self.backend.remove(id)).await
    }

    async fn remove_layer(&self, id: &ContainerId) -> Result<()> {
        self.plan.run_call(self.backend.remove_layer(id)).await
    }

    async fn layer_usage(&self, id: &ContainerId) -> Result<Option<LayerUsage>> {
        self.backend.layer_usage(id).await
    }

    async fn layer_root(&self) -> Result<Option<PathBuf>> {
        self.backend.layer_root().await
    }

    async fn set_attempt_history(&self, id: &ContainerId, history: &str) -> Result<()> {
        self.plan.run_call(self.backend.set_attempt_history(id, history)).await
    }

    async fn exec(&self, id: &ContainerId, spec: &ExecSpec) -> Result<ExecProcess> {
        self.plan.run_call(self.backend.exec(id, spec)).await
    }

    async fn attach(&self, id: &ContainerId, with_input: bool) -> Result<AttachedProcess> {
        self.backend.attach(id, with_input).await
    }

    async fn open(&self, id: &ContainerId) -> Result<ContainerHandles> {
        self.backend.open(id).await
    }

    fn processes(&self, id: &ContainerId) -> Vec<ContainerProcess> {
        self.backend.processes(id)
    }

    fn events(&self) -> BoxStream<'static, RuntimeEvent> {
        self.backend.events()
    }

    async fn image_files(&self, image: &Reference) -> Result<ImageFiles> {
        self.plan.run_call(self.backend.image_files(image)).await
    }

    async fn resolve_user(&self, image: &Reference, user: Option<&str>) -> Result<ContainerUser> {
        self.plan.run_call(self.backend.resolve_user(image, user)).await
    }

    async fn sweep_orphans(&self) -> Result<SweepReport> {
        self.plan.run_call(self.backend.sweep_orphans()).await
    }

    async fn remove_node(&self) -> Result<()> {
        self.plan.run_call(Runtime::remove_node(&self.backend)).await
    }
}

#[tonic::async_trait]
impl SecretObjects for CrashingBackend<FakeSecretObjects> {
    async fn ensure(
        &self,
        task: &TaskAssignment,
        values: &TemplateValues<'_>,
    ) -> std::result::Result<Vec<ContainerMount>, SecretObjectsError> {
        self.plan.run_call(self.backend.ensure(task, values)).await
    }

    async fn seccomp_profile(
        &self,
        task: &TaskAssignment,
    ) -> std::result::Result<Option<SeccompProfile>, SecretObjectsError> {
        // It changes nothing.
        self.backend.seccomp_profile(task).await
    }

    async fn remove(&self, task: &TaskId) -> std::result::Result<(), SecretObjectsError> {
        self.plan.run_call(self.backend.remove(task)).await
    }

    async fn sweep(&self, has: HasTask<'_>) -> std::result::Result<usize, SecretObjectsError> {
        self.plan.run_call(self.backend.sweep(has)).await
    }
}

#[tonic::async_trait]
impl NetworkBackend for CrashingBackend<Arc<FakeNetwork>> {
    async fn check(&self) -> std::result::Result<(), NetworkError> {
        self.plan.run_call(self.backend.check()).await
    }

    async fn ensure_node(&self, node: &NodeNetworkSettings) -> std::result::Result<(), NetworkError> {
        self.plan.run_call(self.backend.ensure_node(node)).await
    }

    async fn ensure_cluster(
        &self,
        cluster: &Arc<ClusterNetwork>,
    ) -> std::result::Result<Repairs, NetworkError> {
        self.plan.run_call(self.backend.ensure_cluster(cluster)).await
    }

    async fn underlay(
        &self,
        address: Ipv4Addr,
        peers: &[Ipv4Addr],
    ) -> std::result::Result<Underlay, NetworkError> {
        self.plan.run_call(self.backend.underlay(address, peers)).await
    }

    async fn range_conflict(
        &self,
        range: Ipv4Net,
    ) -> std::result::Result<Option<RangeConflict>, NetworkError> {
        self.plan.run_call(self.backend.range_conflict(range)).await
    }

    async fn ensure_task(&self, task: &TaskNetwork) -> std::result::Result<PathBuf, NetworkError> {
        self.plan.run_call(self.backend.ensure_task(task)).await
    }

    async fn remove_task(&self, task: &TaskKey) -> std::result::Result<(), NetworkError> {
        self.plan.run_call(self.backend.remove_task(task)).await
    }

    async fn ensure_port(&self, port: &PortMapping) -> std::result::Result<(), NetworkError> {
        self.plan.run_call(self.backend.ensure_port(port)).await
    }

    async fn remove_port(&self, at: HostPort) -> std::result::Result<(), NetworkError> {
        self.plan.run_call(self.backend.remove_port(at)).await
    }

    async fn ensure(&self, all: &NodeNetwork) -> std::result::Result<Repairs, NetworkError> {
        if !self.plan.network_setup_delay.is_zero() {
            // Not a wait: in virtual time this is its duration.
            tokio::time::sleep(self.plan.network_setup_delay).await;
        }
        self.plan.run_call(self.backend.ensure(all)).await
    }

    async fn repair(&self) -> std::result::Result<Repairs, NetworkError> {
        self.plan.run_call(self.backend.repair()).await
    }

    async fn remove_node(&self) -> std::result::Result<(), NetworkError> {
        self.plan.run_call(self.backend.remove_node()).await
    }
}
