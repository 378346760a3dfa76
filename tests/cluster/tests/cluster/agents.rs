//! The real agent and the real manager: only containers and the kernel's network are fakes.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use warren_client::TaskFilter;
use warren_image::{ContainerdConnection, Digest, ImageStore};
use warren_network::fake::FakeNetwork;
use warren_proto::v1;
use warren_runtime::fake::FakeRuntime;
use warren_runtime::{ProcessState, Reference, Runtime};
use warren_security::{Credentials, MembershipStore, NodeMembership, ReloadableCertificate, Roots, Trust};
use warren_testkit::wait::eventually_async;
use warren_types::Timestamp;
use warren_worker::{
    FakeImages, HostBackends, ImageSource, NodeOverrides, UserIds, Worker, WorkerConfig, loopback_dns,
};

use crate::fixture::{ManagerFixture, WAIT_DEADLINE, new_id, spec};
use crate::worker::DIGEST;

/// The machine of an agent, which survives it.
pub struct AgentMachine {
    directory: tempfile::TempDir,
    pub runtime: FakeRuntime,
    images: FakeImages,
    network: Arc<FakeNetwork>,
}

impl AgentMachine {
    pub async fn new() -> Self {
        let (runtime, images) = (FakeRuntime::new(), FakeImages::default());
        let (tag, digest) = (Reference::parse("web:1").unwrap(), Digest::parse(DIGEST).unwrap());
        runtime.add_image(&tag.with_digest(&digest));
        images.add(&tag, digest);
        // An image that was unused for long would be removed.
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        images.mark_used(&tag, Timestamp(now.as_millis() as u64)).await.unwrap();
        let network = Arc::new(FakeNetwork::new("/run/none"));
        Self { directory: tempfile::tempdir().unwrap(), runtime, images, network }
    }

    async fn agent(&self, world: &ManagerFixture) -> Worker {
        let manager = world.manager();
        self.agent_of(vec![manager.address()], &manager.node().unwrap().1, manager.roots()).await
    }

    /// The agent of the node with these credentials. It starts with these managers, and learns of others.
    pub async fn agent_of(&self, managers: Vec<SocketAddr>, node: &Credentials, roots: Roots) -> Worker {
        self.start_agent(managers, (node, &roots), None).await
    }

    /// Where the membership of a node that joined is stored.
    pub fn membership(&self) -> MembershipStore {
        MembershipStore::new(self.directory.path().join("member"))
    }

    /// The node that joined here, and what it trusts.
    pub fn member(&self) -> (Credentials, Roots) {
        match self.membership().load().unwrap() {
            NodeMembership::Member { credentials, roots } => (credentials, roots),
            other => panic!("{other:?}"),
        }
    }

    /// The agent of the node that joined here, which renews its certificate.
    pub async fn joined_agent(&self, managers: Vec<SocketAddr>) -> Worker {
        let (credentials, roots) = self.member();
        self.start_agent(managers, (&credentials, &roots), Some(self.membership())).await
    }

    async fn start_agent(
        &self,
        managers: Vec<SocketAddr>,
        (node, roots): (&Credentials, &Roots),
        membership: Option<MembershipStore>,
    ) -> Worker {
        let config = WorkerConfig {
            data_dir: self.directory.path().to_owned(),
            run_dir: self.directory.path().join("run"),
            managers: managers.iter().map(SocketAddr::to_string).collect(),
            certificate: ReloadableCertificate::new(node),
            trust: Trust::new(roots).unwrap(),
            overrides: NodeOverrides::default(),
            user_ids: UserIds::default(),
            max_archive_bytes: 1 << 30,
            membership,
        };
        let connection =
            ContainerdConnection::new(self.directory.path().join("none.sock"), "warren").unwrap();
        let backends = HostBackends {
            runtime: Arc::new(self.runtime.clone()),
            network: self.network.clone(),
            bind_dns: loopback_dns(),
            images: ImageStore::new(connection, "overlayfs"),
            image_source: Arc::new(self.images.clone()),
            containerd: None,
            namespace: None,
        };
        Worker::start(config, backends).await.unwrap()
    }

    /// Running processes, by container.
    pub async fn processes(&self) -> BTreeMap<String, u32> {
        let found = self.runtime.list().await.unwrap().into_iter();
        let running = found.filter_map(|found| match found.process {
            ProcessState::Running { pid } => Some((found.id.to_string(), pid)),
            _ => None,
        });
        running.collect()
    }
}

/// Waits until that many tasks are RUNNING and no others are left.
async fn running(world: &ManagerFixture, expected: usize) {
    let client = world.local().await;
    eventually_async(WAIT_DEADLINE, "tasks to run", || async {
        let filter = TaskFilter { current: true, ..TaskFilter::default() };
        let tasks = client.tasks().list(filter).await.map_err(|error| error.to_string())?;
        let run = tasks.iter().filter(|task| task.state() == v1::TaskState::Running).count();
        if (run, tasks.len()) == (expected, expected) { Ok(()) } else { Err(format!("{tasks:#?}")) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn service_survives_its_agent_and_leaves_nothing() {
    let (mut world, machine) = (ManagerFixture::new().await, AgentMachine::new().await);
    let agent = machine.agent(&world).await;
    let client = world.local().await;
    client.services().create(new_id(), &spec("web", 3)).await.unwrap();
    running(&world, 3).await;
    let processes = machine.processes().await;
    assert_eq!(processes.len(), 3);

    agent.stop().await.unwrap();
    assert_eq!(machine.processes().await, processes, "containers outlive the agent");
    let agent = machine.agent(&world).await;
    eventually_async(WAIT_DEADLINE, "the new agent to be ready", || async {
        agent.ready().map_err(|missing| missing.to_string())
    })
    .await;
    running(&world, 3).await;
    assert_eq!(machine.processes().await, processes, "the new agent took them over");

    world.stop().await;
    assert_eq!(machine.processes().await, processes, "containers outlive the manager");
    agent.stop().await.unwrap();
    world.start(false).await.unwrap();
    let agent = machine.agent(&world).await;
    let client = world.local().await;
    client.services().scale("web", 5, None).await.unwrap();
    running(&world, 5).await;
    client.services().scale("web", 1, None).await.unwrap();
    running(&world, 1).await;
    client.services().remove("web", None, false).await.unwrap();
    running(&world, 0).await;
    eventually_async(WAIT_DEADLINE, "everything to be gone", || async {
        let left = (machine.runtime.list().await.unwrap().len(), machine.network.tasks().len());
        let services = client.services().list().await.unwrap().len();
        if (left, services) == ((0, 0), 0) { Ok(()) } else { Err(format!("{left:?}, {services} services")) }
    })
    .await;
    agent.stop().await.unwrap();
}
