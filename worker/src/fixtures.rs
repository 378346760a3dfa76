//! Values that tests of this crate share.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::handlers::images::fake::FakeImages;
pub use crate::network::dns::loopback_dns;
use crate::node::metrics::WorkerMetrics;
use crate::tasks::checks::{CheckContext, CheckResults};
use crate::verification::{CheckContainers, NodeVerifier};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use warren_health::{Exec, ExecResult, ExecStatus, ProbeLimits, ProbeTarget, Prober};
use warren_image::{Digest, Reference};
use warren_network::WireGuard;
use warren_runtime::fake::FakeRuntime;
use warren_security::{CertificateAuthority, Identity, ReloadableCertificate, Role, Trust};
use warren_task::DesiredState;
use warren_types::fixtures::task_assignment;
pub use warren_types::fixtures::{image_digest as digest, published_port as port};
use warren_types::{
    AssignmentVersion, Catalogue, CatalogueService, ClusterId, DataPlane, Endpoint, EndpointMode, Id,
    ImageResolver, LogLimits, NetworkId, NetworkPeer, NetworkView, NodeId, NodeSettings, RetainedLog,
    ServiceId, TaskAssignment, TaskId, WireGuardKey,
};

/// Timeout of every wait in a test.
pub const TIMEOUT: Duration = Duration::from_secs(60);

/// Task `number` of the service that tests use.
pub fn task_id(number: u64) -> TaskId {
    TaskId { service: ServiceId(Id(7)), number }
}

/// The retained log of that task.
pub fn retained_log(number: u64) -> RetainedLog {
    let slot = u32::try_from(number).unwrap();
    RetainedLog { task: task_id(number), slot, limits: LogLimits::default() }
}

/// A desired task without ports.
pub fn task(number: u64) -> TaskAssignment {
    let mut task = TaskAssignment {
        slot: u32::try_from(number).unwrap(),
        digest: Some(digest('a')),
        address: Ipv4Addr::new(10, 210, 0, 1 + u8::try_from(number).unwrap()),
        ..task_assignment(task_id(number))
    };
    task.spec.resolve_image = ImageResolver::Worker;
    task
}

/// A catalogue of the network `name` without services.
pub fn catalogue(name: &str, number: u32) -> Catalogue {
    let network = NetworkId(Id(u128::from(number)));
    Catalogue { network, name: name.parse().unwrap(), number, internal: false, services: BTreeMap::new() }
}

/// Adds a service with a virtual address in the third eighth of the last byte, and with these endpoints.
pub fn add_service(
    catalogue: &mut Catalogue,
    name: &str,
    virtual_address: u8,
    endpoints: &[(Ipv4Addr, bool)],
) {
    let endpoint = |(slot, (address, ready)): (u32, &(Ipv4Addr, bool))| Endpoint {
        slot,
        address: *address,
        ready: *ready,
    };
    let service = CatalogueService {
        mode: EndpointMode::Vip,
        virtual_address: Some(Ipv4Addr::new(10, 210, 224, virtual_address)),
        endpoints: (1..).zip(endpoints).map(endpoint).collect(),
        ..CatalogueService::default()
    };
    catalogue.services.insert(name.parse().unwrap(), service);
}

/// A view of version `index`: two nodes, and the default network with the tasks [`task`] 1 and 2 as service `web`, of
/// which the first is ready.
pub fn network_view(index: u64) -> NetworkView {
    let peer = |number: u8| NetworkPeer {
        subnets: vec![format!("10.210.{}.0/24", number - 1).parse().unwrap()],
        address: Ipv4Addr::new(198, 51, 100, number),
        key: Some(WireGuardKey([number; 32])),
    };
    let mut default = catalogue("default", 1);
    add_service(&mut default, "web", 1, &[(task(1).address, true), (task(2).address, false)]);
    NetworkView {
        version: AssignmentVersion { incarnation: 1, index },
        peers: [(1, peer(1)), (2, peer(2))].into(),
        catalogues: [(default.network, Arc::new(default))].into(),
    }
}

/// Waits until the condition holds.
///
/// # Panics
/// If it does not in time.
pub async fn eventually(what: &str, condition: impl AsyncFn() -> bool) {
    let waiting = async {
        while !condition().await {
            // Between two checks; the loop has a deadline.
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(TIMEOUT * 10, waiting).await.unwrap_or_else(|_| panic!("never: {what}"));
}

/// Checks that never run a program.
pub fn check_context() -> Arc<CheckContext> {
    struct NoPrograms;

    #[tonic::async_trait]
    impl Exec for NoPrograms {
        async fn run(&self, _: &ProbeTarget, _: &[String], _: Duration) -> ExecResult {
            ExecResult { status: ExecStatus::Failed("a test runs no programs".into()), output: String::new() }
        }
    }

    let (prober, metrics) =
        (Prober::new(Arc::new(NoPrograms), ProbeLimits::for_cores(1)), WorkerMetrics::default());
    Arc::new(CheckContext { prober, results: CheckResults::default(), metrics })
}

/// Name of the image that tests use.
pub fn tag() -> Reference {
    Reference::parse("demo:1").unwrap()
}

/// The image of [`task`] with its digest.
pub fn image() -> Reference {
    tag().with_digest(&Digest::parse(digest('a').as_str()).unwrap())
}

/// A node with [`image`], and a registry that does not answer.
pub fn images() -> FakeImages {
    let images = FakeImages::default();
    images.add(&tag(), image().digest().unwrap().clone());
    images
}

/// Key and port for packets between nodes.
pub fn wireguard() -> WireGuard {
    WireGuard { private_key: "11".repeat(32).parse().unwrap(), port: 51820 }
}

/// Node settings of tests.
pub fn settings() -> NodeSettings {
    NodeSettings {
        cluster: ClusterId(Id(1)),
        node: NodeId(Id(2)),
        name: "n1".parse().unwrap(),
        labels: BTreeMap::from([("zone".into(), "a".into())]),
        number: 1,
        subnets: vec!["10.210.0.0/24".parse().unwrap()],
        ranges: vec!["10.210.0.0/16".parse().unwrap()],
        data_plane: DataPlane::Vxlan,
        heartbeat: Duration::from_secs(5),
        sync: Duration::from_secs(3),
        managers: Vec::new(),
        authority: None,
        revoked_managers: Vec::new(),
    }
}

/// Of a cluster of its own.
pub fn trust() -> Arc<Trust> {
    let authority = CertificateAuthority::create(&settings().cluster.to_string(), SystemTime::now()).unwrap();
    Trust::new(&authority.roots()).unwrap()
}

/// A certificate of the node with the settings above.
pub fn certificate() -> Arc<ReloadableCertificate> {
    let (cluster, node) = (settings().cluster.to_string(), settings().node.to_string());
    let authority = CertificateAuthority::create(&cluster, SystemTime::now()).unwrap();
    let identity = Identity::new(cluster, Role::Worker, node).unwrap();
    ReloadableCertificate::new(&authority.issue(&identity, SystemTime::now()).unwrap())
}

/// The checks of a node with the settings above.
pub fn verifier(dir: &Path, runtime: &FakeRuntime, view: watch::Receiver<NetworkView>) -> NodeVerifier {
    let desired_state = DesiredState { settings: Some(settings()), ..DesiredState::default() };
    let containers = CheckContainers {
        runtime: Arc::new(runtime.clone()),
        node: settings().node,
        logger: "/bin/true".into(),
        output_dir: dir.join("checks"),
        lock: tokio::sync::Mutex::default(),
    };
    let desired_state = watch::channel(desired_state).1;
    NodeVerifier::new(Arc::default(), desired_state, view, dir.to_owned(), containers)
}
