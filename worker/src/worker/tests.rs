use std::collections::BTreeMap;
use std::time::SystemTime;

use tonic::{Code, Status};
use warren_image::ContainerdConnection;
use warren_network::fake::FakeNetwork;
use warren_network::{Attachment, Error as NetworkError, NetworkBackend, TaskKey, TaskNetwork};
use warren_proto::status::{NODE_REMOVED, Problem};
use warren_proto::v1;
use warren_proto::v1::manager_frame::Frame;
use warren_proto::v1::worker_frame::Frame as FromWorker;
use warren_runtime::fake::FakeRuntime;
use warren_runtime::{ProcessState, Runtime};
use warren_security::{CertificateAuthority, Identity, client_config};
use warren_telemetry::Telemetry;
use warren_types::{DesiredTaskState, NodeCondition, TaskAssignment};

use super::*;
use crate::fake_manager::{FakeManager, FakeSession, at};
use crate::fixtures::{TIMEOUT, image, images, loopback_dns, network_view, port, settings, task, task_id};

struct Machine {
    dir: tempfile::TempDir,
    runtime: FakeRuntime,
    network: Arc<FakeNetwork>,
    authority: CertificateAuthority,
}

impl Machine {
    fn new() -> Self {
        let runtime = FakeRuntime::new();
        runtime.add_image(&image());
        let cluster = settings().cluster.to_string();
        Self {
            dir: tempfile::tempdir().unwrap(),
            runtime,
            network: Arc::new(FakeNetwork::new("/run/none")),
            authority: CertificateAuthority::create(&cluster, SystemTime::now()).unwrap(),
        }
    }

    fn config(&self, role: Role, id: &str) -> WorkerConfig {
        let identity = Identity::new(self.authority.cluster(), role, id).unwrap();
        let credentials = self.authority.issue(&identity, SystemTime::now()).unwrap();
        WorkerConfig {
            data_dir: self.dir.path().to_owned(),
            run_dir: self.dir.path().join("run"),
            managers: Vec::new(),
            certificate: ReloadableCertificate::new(&credentials),
            trust: Trust::new(&self.authority.roots()).unwrap(),
            overrides: NodeOverrides::default(),
            user_ids: UserIds::default(),
            max_archive_bytes: 1 << 30,
            membership: None,
        }
    }

    fn backends(&self) -> HostBackends {
        let connection = ContainerdConnection::new(self.dir.path().join("none.sock"), "warren").unwrap();
        HostBackends {
            runtime: Arc::new(self.runtime.clone()),
            network: self.network.clone(),
            bind_dns: loopback_dns(),
            images: ImageStore::new(connection, "overlayfs"),
            image_source: Arc::new(images()),
            containerd: None,
            namespace: None,
        }
    }

    /// A dialer without managers.
    fn unreachable_dialer(&self) -> SharedDialer {
        let tls = client_config(&self.authority.roots(), None).unwrap();
        Arc::new(TlsDialer::new(settings().node, Vec::new(), tls))
    }

    async fn worker(&self, dial: SharedDialer) -> Worker {
        let config = self.config(Role::Worker, &settings().node.to_string());
        Worker::start_with(config, self.backends(), dial, Arc::new(|| 0)).await.unwrap()
    }

    /// A worker that can be removed from its cluster.
    async fn removable_worker(&self, dial: SharedDialer) -> Worker {
        let membership = Some(MembershipStore::new(self.dir.path().join("worker")));
        let config = WorkerConfig { membership, ..self.config(Role::Worker, &settings().node.to_string()) };
        Worker::start_with(config, self.backends(), dial, Arc::new(|| 0)).await.unwrap()
    }

    fn removal_record(&self) -> RemovalRecord {
        RemovalRecord::new(self.dir.path(), settings().cluster, settings().node)
    }

    async fn pids(&self) -> BTreeMap<String, u32> {
        let found = self.runtime.list().await.unwrap().into_iter();
        let running = found.filter_map(|found| match found.process {
            ProcessState::Running { pid } => Some((found.id.to_string(), pid)),
            _ => None,
        });
        running.collect()
    }
}

fn publishing() -> TaskAssignment {
    TaskAssignment { ports: vec![port(8080)], ..task(1) }
}

/// Acknowledges reports until one matches.
pub(super) async fn store_reports_until(
    session: &mut FakeSession,
    expected: impl Fn(&v1::TaskReport) -> bool,
) -> v1::TaskReport {
    let reports = |frame: &FromWorker| match frame {
        FromWorker::Reports(reports) => Some(reports.clone()),
        _ => None,
    };
    loop {
        let batch = session.next_matching(reports).await;
        session.send(Frame::Stored(v1::ReportBatchAck { number: batch.number })).await;
        if let Some(found) = batch.reports.into_iter().find(&expected) {
            return found;
        }
    }
}

/// The disk and the memory of the machine that runs the tests may be short.
pub(super) fn assert_conditions_only_of_machine(worker: &Worker) {
    let of_machine = [NodeCondition::DiskPressure, NodeCondition::MemoryPressure];
    let found = worker.conditions.conditions();
    assert!(found.iter().all(|condition| of_machine.contains(condition)), "{:?}", worker.conditions());
}

#[tokio::test(start_paused = true)]
async fn worker_runs_assigned_tasks_and_leaves_nothing() {
    let machine = Machine::new();
    let (mut manager, dial) = FakeManager::in_memory();
    let worker = machine.worker(dial).await;
    assert_eq!(worker.ready(), Err(WorkerNotReady::Session));
    let mut session = manager.next_welcomed_session().await;
    session.assign(1, vec![publishing()]).await;
    store_reports_until(&mut session, |report| report.ready).await;
    assert_eq!(worker.ready(), Ok(()));
    assert_conditions_only_of_machine(&worker);
    let background_tasks: Vec<&str> =
        worker.background_tasks().snapshot().iter().map(|status| status.name).collect();
    let want = [
        "connectivity",
        "disk",
        "disk-pressure",
        "heartbeat",
        "image-gc",
        "inventory",
        "monitor",
        "network",
        "relist",
        "storage-limits",
        "sweep",
        "sync",
        "task-logs",
        "unreachable-peers",
    ];
    let want = want.map(|name| format!("worker.{name}"));
    assert_eq!(background_tasks, want);
    let removing = TaskAssignment { desired: DesiredTaskState::Remove, ..publishing() };
    session.assign(2, vec![removing]).await;
    store_reports_until(&mut session, |report| report.removed).await;
    session.assign(3, vec![]).await;
    worker.stop().await.unwrap();
    let key = TaskKey::parse("probe").unwrap();
    let attachment = Attachment::new(task(1).address);
    let probe = TaskNetwork { task: key, attachment, namespace: None };
    let none = machine.network.ensure_task(&probe).await.unwrap_err();
    assert!(matches!(none, NetworkError::NodeNotConfigured), "the node's network went too: {none}");
}

#[tokio::test(start_paused = true)]
async fn disconnected_worker_resumes_from_cache() {
    let machine = Machine::new();
    let (mut manager, dial) = FakeManager::in_memory();
    let worker = machine.worker(dial).await;
    let mut session = manager.next_welcomed_session().await;
    session.assign(1, vec![publishing()]).await;
    store_reports_until(&mut session, |report| report.ready).await;
    session.assign(2, vec![publishing(), task(2)]).await;
    store_reports_until(&mut session, |report| report.ready && report.task_id == task_id(2).to_string())
        .await;
    let before = machine.pids().await;
    worker.stop().await.unwrap();
    assert_eq!(machine.pids().await, before, "stopping keeps the containers");
    drop((session, manager));
    let nobody = machine.unreachable_dialer();
    let worker = machine.worker(nobody).await;
    let ports = || machine.network.ports().values().map(|backends| backends.len()).sum::<usize>();
    let serving = async {
        while ports() != 1 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(TIMEOUT, serving).await.unwrap();
    // A process that ends meanwhile is restarted without a manager.
    let id = warren_runtime::ContainerId::parse(&task_id(2).to_string()).unwrap();
    machine.runtime.end_process(&id, 1, false);
    let restarted = async {
        while machine.pids().await.len() != 2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(TIMEOUT, restarted).await.unwrap();
    assert_eq!(machine.pids().await[&task_id(1).to_string()], before[&task_id(1).to_string()]);
    assert_eq!(worker.ready(), Err(WorkerNotReady::Session));
    worker.stop().await.unwrap();
}

fn removed() -> Status {
    Problem::new(Code::FailedPrecondition, NODE_REMOVED, "the manager's words").into()
}

/// Waits until the worker has its removal.
async fn wait_for_rejection(worker: &Worker) -> SessionRejection {
    tokio::time::timeout(TIMEOUT, worker.wait_for_rejection(None)).await.unwrap()
}

async fn assert_nothing_is_left(machine: &Machine, containers: usize) {
    assert!(machine.runtime.list().await.unwrap().is_empty());
    let tasks = std::fs::read_dir(machine.dir.path().join("tasks")).into_iter().flatten().count();
    assert_eq!(tasks, 0, "directories of tasks");
    let key = TaskKey::parse("probe").unwrap();
    let attachment = Attachment::new(task(1).address);
    let probe = TaskNetwork { task: key, attachment, namespace: None };
    let none = machine.network.ensure_task(&probe).await.unwrap_err();
    assert!(matches!(none, NetworkError::NodeNotConfigured), "the node's network went too: {none}");
    let removal = machine.removal_record().load().unwrap();
    assert_eq!((removal.reason.as_str(), removal.cleared), ("the manager's words", true));
    // Some may have been removed before the first count.
    assert!(removal.containers <= containers, "{removal:?}");
    assert!(!machine.dir.path().join("worker/cache.json").exists());
}

#[tokio::test(start_paused = true)]
async fn removed_node_stops_everything() {
    let machine = Machine::new();
    let (mut manager, dial) = FakeManager::in_memory();
    let worker = machine.removable_worker(dial).await;
    let mut session = manager.next_welcomed_session().await;
    // One after the other, since one batch may have both.
    session.assign(1, vec![publishing()]).await;
    store_reports_until(&mut session, |report| report.ready).await;
    session.assign(2, vec![publishing(), task(2)]).await;
    store_reports_until(&mut session, |report| report.ready && report.task_id == task_id(2).to_string())
        .await;
    session.refuse(removed()).await;
    let reason = "the manager's words".to_owned();
    assert_eq!(
        wait_for_rejection(&worker).await,
        SessionRejection::Removed { reason, never_connected: false }
    );
    worker.wait_for_cleanup().await.unwrap();
    worker.stop().await.unwrap();
    assert_nothing_is_left(&machine, 2).await;
}

#[tokio::test(start_paused = true)]
async fn killed_removed_node_finishes_cleanup_alone() {
    let machine = Machine::new();
    let (mut manager, dial) = FakeManager::in_memory();
    let worker = machine.worker(dial).await;
    let mut session = manager.next_welcomed_session().await;
    session.assign(1, vec![publishing()]).await;
    store_reports_until(&mut session, |report| report.ready).await;
    // Stopped when only the record was written.
    worker.stop().await.unwrap();
    drop((session, manager));
    assert_eq!(machine.pids().await.len(), 1);
    let removal = Removal { reason: "the manager's words".into(), containers: 3, cleared: false };
    machine.removal_record().store(&removal).unwrap();

    let nobody = || machine.unreachable_dialer();
    let worker = machine.removable_worker(nobody()).await;
    let reason = "the manager's words".to_owned();
    assert_eq!(
        wait_for_rejection(&worker).await,
        SessionRejection::Removed { reason, never_connected: true }
    );
    worker.wait_for_cleanup().await.unwrap();
    worker.stop().await.unwrap();
    assert_nothing_is_left(&machine, 3).await;
    // Idempotent.
    let worker = machine.removable_worker(nobody()).await;
    worker.wait_for_cleanup().await.unwrap();
    worker.stop().await.unwrap();
    assert_nothing_is_left(&machine, 3).await;
}

#[tokio::test(start_paused = true)]
async fn manager_node_ignores_removal_but_honours_removal_record() {
    let machine = Machine::new();
    let (mut manager, dial) = FakeManager::in_memory();
    let worker = machine.worker(dial).await;
    let mut session = manager.next_welcomed_session().await;
    session.assign(1, vec![publishing()]).await;
    store_reports_until(&mut session, |report| report.ready).await;
    session.refuse(removed()).await;
    assert!(matches!(wait_for_rejection(&worker).await, SessionRejection::Unknown { .. }));
    worker.stop().await.unwrap();
    assert_eq!((machine.pids().await.len(), machine.removal_record().load()), (1, None));

    let removal = Removal { reason: "the manager's words".into(), containers: 0, cleared: false };
    machine.removal_record().store(&removal).unwrap();
    for _ in 0..2 {
        let worker = machine.worker(machine.unreachable_dialer()).await;
        worker.wait_for_cleanup().await.unwrap();
        worker.stop().await.unwrap();
        assert_nothing_is_left(&machine, 1).await;
    }
}

#[tokio::test(start_paused = true)]
async fn stuck_cleanup_times_out() {
    let machine = Machine::new();
    let removal = Removal { reason: "the manager's words".into(), containers: 0, cleared: false };
    machine.removal_record().store(&removal).unwrap();
    let stuck = machine.dir.path().join("tasks").join(task_id(1).to_string());
    let nobody = machine.unreachable_dialer();
    let worker = machine.removable_worker(nobody).await;
    // A file instead of a directory cannot be swept.
    std::fs::create_dir_all(stuck.parent().unwrap()).unwrap();
    std::fs::write(&stuck, "").unwrap();
    let began = tokio::time::Instant::now();
    let error = worker.wait_for_cleanup().await.unwrap_err();
    assert!(error.to_string().contains("directories of 1 tasks"), "{error}");
    assert_eq!(began.elapsed().as_secs(), 60);
    worker.stop().await.unwrap();
}

#[tokio::test]
async fn non_node_certificate_is_refused() {
    let machine = Machine::new();
    for (role, id) in [(Role::User, settings().node.to_string()), (Role::Worker, "somebody".to_string())] {
        let refused = Worker::start(machine.config(role, &id), machine.backends()).await;
        assert!(matches!(refused, Err(WorkerStartError::Certificate { .. })), "{role:?} {id}");
    }
}

/// Waits until exactly this makes the worker unready.
async fn wait_for_unready(node: &Telemetry, expected: &[&str]) {
    let asked = async {
        while node.unready().await != expected {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let found = tokio::time::timeout(TIMEOUT, asked).await;
    assert!(found.is_ok(), "wanted {expected:?}, found {:?}", node.unready().await);
}

#[tokio::test(start_paused = true)]
async fn readiness_and_health_are_reported() {
    let machine = Machine::new();
    let (mut manager, dial) = FakeManager::in_memory();
    let worker = machine.worker(dial).await;
    let node = Telemetry::with_components(&[]);
    node.add("worker", worker.telemetry());
    let no_session = "worker: session: not connected to a manager";
    wait_for_unready(&node, &[no_session, "worker: network: node network is not ready yet"]).await;
    let session = manager.next_welcomed_session().await;
    wait_for_unready(&node, &[]).await;
    assert_eq!(node.unhealthy().await, [""; 0]);
    machine.runtime.set_reachable(false);
    let [away] = node.unready().await.try_into().unwrap();
    assert!(away.starts_with("worker: containerd: "), "asked at once: {away}");
    machine.runtime.set_reachable(true);
    wait_for_unready(&node, &[]).await;
    drop((session, manager));
    wait_for_unready(&node, &[no_session]).await;
    let missed = |text: String| !text.contains("\nworker_heartbeat_failures_total 0.0\n");
    let counted = async {
        while !missed(node.metrics().unwrap()) {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    };
    tokio::time::timeout(TIMEOUT, counted).await.unwrap();
    worker.stop().await.unwrap();
    let stopped =
        ["relist", "monitor"].map(|name| format!("worker: worker.{name}: background task is not running"));
    assert_eq!(node.unhealthy().await, stopped);
}

#[tokio::test(start_paused = true)]
async fn network_view_outlives_agent_without_managers() {
    let machine = Machine::new();
    let (mut manager, dial) = FakeManager::in_memory();
    let worker = machine.worker(dial).await;
    let mut session = manager.next_welcomed_session().await;
    session.send_view(&network_view(3)).await;
    let ack = |frame: &FromWorker| match frame {
        FromWorker::NetworkAck(ack) => ack.version,
        _ => None,
    };
    assert_eq!(session.next_matching(ack).await, at(3).into());
    let cluster = || machine.network.requested().unwrap().cluster;
    let known = cluster();
    assert_eq!((known.peers.len(), known.services.len()), (1, 1));
    session.assign(1, vec![task(1)]).await;
    store_reports_until(&mut session, |report| report.ready).await;
    worker.stop().await.unwrap();
    let worker = machine.worker(machine.unreachable_dialer()).await;
    let mut ready = worker.node_network.clone();
    ready.wait_for(|state| *state == NodeNetworkState::Ready).await.unwrap();
    assert_eq!(cluster(), known);
    worker.stop().await.unwrap();
    // A cache that is missing costs what it had, and nothing else.
    std::fs::remove_file(machine.dir.path().join("worker/network.json")).unwrap();
    let worker = machine.worker(machine.unreachable_dialer()).await;
    let mut ready = worker.node_network.clone();
    ready.wait_for(|state| *state == NodeNetworkState::Ready).await.unwrap();
    assert!(cluster().peers.is_empty());
    worker.stop().await.unwrap();
}

#[tokio::test]
async fn network_is_acknowledged_once_it_is_applied_and_cached() {
    let version = |index| AssignmentVersion { incarnation: 1, index };
    let (applied, applied_rx) = watch::channel(AssignmentVersion::default());
    let (stored, stored_rx) = watch::channel(version(3));
    let (sender, mut acknowledged) = watch::channel(AssignmentVersion::default());
    tokio::spawn(publish_lesser(applied_rx, stored_rx, sender));
    applied.send_replace(version(4));
    assert_eq!(*acknowledged.wait_for(|found| *found > version(0)).await.unwrap(), version(3));
    stored.send_replace(version(5));
    assert_eq!(*acknowledged.wait_for(|found| *found > version(3)).await.unwrap(), version(4));
}
