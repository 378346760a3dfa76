use std::collections::BTreeMap;
use std::time::SystemTime;

use tonic::{Code, Status};
use warren_image::Connection;
use warren_network::fake::FakeNetwork;
use warren_network::{Error as NetworkError, Network, TaskKey, TaskNetwork};
use warren_proto::status::{NODE_REMOVED, Problem};
use warren_proto::v1;
use warren_proto::v1::manager_frame::Frame;
use warren_proto::v1::worker_frame::Frame as FromWorker;
use warren_runtime::fake::Fake;
use warren_runtime::{Process, Runtime};
use warren_security::{CertificateAuthority, Identity};
use warren_telemetry::Telemetry;
use warren_types::{Desired, TaskAssignment};

use super::*;
use crate::samples::{image, images, port, settings, task, task_id};
use crate::scripted::{Manager, PATIENCE, Session};

struct Machine {
    dir: tempfile::TempDir,
    runtime: Fake,
    network: Arc<FakeNetwork>,
    authority: CertificateAuthority,
}

impl Machine {
    fn new() -> Self {
        let runtime = Fake::new();
        runtime.add_image(&image());
        let cluster = settings().cluster.to_string();
        Self {
            dir: tempfile::tempdir().unwrap(),
            runtime,
            network: Arc::new(FakeNetwork::new("/run/none")),
            authority: CertificateAuthority::create(&cluster, SystemTime::now()).unwrap(),
        }
    }

    fn config(&self, role: Role, id: &str) -> Config {
        let identity = Identity::new(self.authority.cluster(), role, id).unwrap();
        let credentials = self.authority.issue(&identity, SystemTime::now()).unwrap();
        Config {
            data_dir: self.dir.path().to_owned(),
            run_dir: self.dir.path().join("run"),
            managers: Vec::new(),
            certificate: LiveCertificate::new(&credentials),
            roots: self.authority.roots(),
            overrides: NodeOverrides::default(),
            max_archive: 1 << 30,
            membership: None,
        }
    }

    fn doors(&self) -> Doors {
        let connection = Connection::new(self.dir.path().join("none.sock"), "warren").unwrap();
        Doors {
            runtime: Arc::new(self.runtime.clone()),
            network: self.network.clone(),
            images: Images::new(connection, "overlayfs"),
            source: Arc::new(images()),
            containerd: None,
            namespace: None,
        }
    }

    /// The way to no manager.
    fn nobody(&self) -> Dial {
        let tls = client_config(&self.authority.roots(), None).unwrap();
        Arc::new(Dialer::new(settings().node, Vec::new(), tls))
    }

    async fn worker(&self, dial: Dial) -> Worker {
        let config = self.config(Role::Worker, &settings().node.to_string());
        Worker::start_with(config, self.doors(), dial, Arc::new(|| 0)).await.unwrap()
    }

    /// A worker that can be removed from its cluster.
    async fn member(&self, dial: Dial) -> Worker {
        let membership = Some(MembershipStore::new(self.dir.path().join("worker")));
        let config = Config { membership, ..self.config(Role::Worker, &settings().node.to_string()) };
        Worker::start_with(config, self.doors(), dial, Arc::new(|| 0)).await.unwrap()
    }

    fn note(&self) -> RemovalNote {
        RemovalNote::new(self.dir.path(), settings().cluster, settings().node)
    }

    async fn pids(&self) -> BTreeMap<String, u32> {
        let found = self.runtime.list().await.unwrap().into_iter();
        let running = found.filter_map(|found| match found.process {
            Process::Running { pid } => Some((found.id.to_string(), pid)),
            _ => None,
        });
        running.collect()
    }
}

fn publishing() -> TaskAssignment {
    TaskAssignment { ports: vec![port(8080)], ..task(1) }
}

/// Stores reports until one is as wanted.
pub(super) async fn reported(
    session: &mut Session,
    wanted: impl Fn(&v1::TaskReport) -> bool,
) -> v1::TaskReport {
    let reports = |frame: &FromWorker| match frame {
        FromWorker::Reports(reports) => Some(reports.clone()),
        _ => None,
    };
    loop {
        let batch = session.hear_until(reports).await;
        session.say(Frame::Stored(v1::ReportsStored { number: batch.number })).await;
        if let Some(found) = batch.reports.into_iter().find(&wanted) {
            return found;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_worker_runs_what_a_manager_wants_and_leaves_nothing_when_it_is_empty() {
    let machine = Machine::new();
    let (mut manager, dial) = Manager::in_memory();
    let worker = machine.worker(dial).await;
    assert_eq!(worker.ready(), Err(NotReady::Session));
    let mut session = manager.welcomed().await;
    session.assign(1, vec![publishing()]).await;
    reported(&mut session, |report| report.ready).await;
    assert_eq!(worker.ready(), Ok(()));
    assert!(worker.conditions().is_empty());
    let loops: Vec<&str> = worker.loops().snapshot().iter().map(|status| status.name).collect();
    let want = ["contact", "heartbeat", "images", "network", "relist", "sweep", "sync", "vitals"];
    let want = want.map(|name| format!("worker.{name}"));
    assert_eq!(loops, want);
    let removing = TaskAssignment { desired: Desired::Remove, ..publishing() };
    session.assign(2, vec![removing]).await;
    reported(&mut session, |report| report.removed).await;
    session.assign(3, vec![]).await;
    worker.stop().await.unwrap();
    let key = TaskKey::parse("probe").unwrap();
    let probe = TaskNetwork { task: key, address: task(1).address };
    let none = machine.network.ensure_task(&probe).await.unwrap_err();
    assert!(matches!(none, NetworkError::NoNode), "the node's network went too: {none}");
}

#[tokio::test(start_paused = true)]
async fn a_worker_without_managers_resumes_from_its_cache() {
    let machine = Machine::new();
    let (mut manager, dial) = Manager::in_memory();
    let worker = machine.worker(dial).await;
    let mut session = manager.welcomed().await;
    session.assign(1, vec![publishing()]).await;
    reported(&mut session, |report| report.ready).await;
    session.assign(2, vec![publishing(), task(2)]).await;
    reported(&mut session, |report| report.ready && report.task_id == task_id(2).to_string()).await;
    let before = machine.pids().await;
    worker.stop().await.unwrap();
    assert_eq!(machine.pids().await, before, "stopping keeps the containers");
    drop((session, manager));
    let nobody = machine.nobody();
    let worker = machine.worker(nobody).await;
    let ports = || machine.network.ports().values().map(|backends| backends.len()).sum::<usize>();
    let serving = async {
        while ports() != 1 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, serving).await.unwrap();
    // A process that ends meanwhile is started again without any manager.
    let id = warren_runtime::ContainerId::parse(&task_id(2).to_string()).unwrap();
    machine.runtime.end_process(&id, 1, false);
    let restarted = async {
        while machine.pids().await.len() != 2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, restarted).await.unwrap();
    assert_eq!(machine.pids().await[&task_id(1).to_string()], before[&task_id(1).to_string()]);
    assert_eq!(worker.ready(), Err(NotReady::Session));
    worker.stop().await.unwrap();
}

fn removed() -> Status {
    Problem::new(Code::FailedPrecondition, NODE_REMOVED, "the manager's words").into()
}

/// Waits until the worker knows that it was removed.
async fn cast_out(worker: &Worker) -> Outcast {
    tokio::time::timeout(PATIENCE, worker.outcast(None)).await.unwrap()
}

async fn assert_nothing_is_left(machine: &Machine, containers: usize) {
    assert!(machine.runtime.list().await.unwrap().is_empty());
    let tasks = std::fs::read_dir(machine.dir.path().join("tasks")).into_iter().flatten().count();
    assert_eq!(tasks, 0, "directories of tasks");
    let key = TaskKey::parse("probe").unwrap();
    let probe = TaskNetwork { task: key, address: task(1).address };
    let none = machine.network.ensure_task(&probe).await.unwrap_err();
    assert!(matches!(none, NetworkError::NoNode), "the node's network went too: {none}");
    let removal = machine.note().load().unwrap();
    assert_eq!((removal.reason.as_str(), removal.cleared), ("the manager's words", true));
    // Some may have been gone already when they were first counted.
    assert!(removal.containers <= containers, "{removal:?}");
    assert!(!machine.dir.path().join("worker/cache.json").exists());
}

#[tokio::test(start_paused = true)]
async fn a_removed_node_stops_what_it_runs_and_leaves_nothing() {
    let machine = Machine::new();
    let (mut manager, dial) = Manager::in_memory();
    let worker = machine.member(dial).await;
    let mut session = manager.welcomed().await;
    // One after the other, since one batch may say both.
    session.assign(1, vec![publishing()]).await;
    reported(&mut session, |report| report.ready).await;
    session.assign(2, vec![publishing(), task(2)]).await;
    reported(&mut session, |report| report.ready && report.task_id == task_id(2).to_string()).await;
    session.refuse(removed()).await;
    let reason = "the manager's words".to_owned();
    assert_eq!(cast_out(&worker).await, Outcast::Removed { reason, before: false });
    worker.cleared().await.unwrap();
    worker.stop().await.unwrap();
    assert_nothing_is_left(&machine, 2).await;
}

#[tokio::test(start_paused = true)]
async fn a_removed_node_that_was_killed_goes_on_without_any_manager() {
    let machine = Machine::new();
    let (mut manager, dial) = Manager::in_memory();
    let worker = machine.worker(dial).await;
    let mut session = manager.welcomed().await;
    session.assign(1, vec![publishing()]).await;
    reported(&mut session, |report| report.ready).await;
    // Stopped at the moment where nothing but the note was made of it.
    worker.stop().await.unwrap();
    drop((session, manager));
    assert_eq!(machine.pids().await.len(), 1);
    let removal = Removal { reason: "the manager's words".into(), containers: 3, cleared: false };
    machine.note().store(&removal).unwrap();

    let nobody = || machine.nobody();
    let worker = machine.member(nobody()).await;
    let reason = "the manager's words".to_owned();
    assert_eq!(cast_out(&worker).await, Outcast::Removed { reason, before: true });
    worker.cleared().await.unwrap();
    worker.stop().await.unwrap();
    assert_nothing_is_left(&machine, 3).await;
    // The second time there is nothing to do.
    let worker = machine.member(nobody()).await;
    worker.cleared().await.unwrap();
    worker.stop().await.unwrap();
    assert_nothing_is_left(&machine, 3).await;
}

#[tokio::test(start_paused = true)]
async fn a_managers_node_hears_no_removal_but_is_cleared_by_what_is_written_down_of_it() {
    let machine = Machine::new();
    let (mut manager, dial) = Manager::in_memory();
    let worker = machine.worker(dial).await;
    let mut session = manager.welcomed().await;
    session.assign(1, vec![publishing()]).await;
    reported(&mut session, |report| report.ready).await;
    session.refuse(removed()).await;
    assert!(matches!(cast_out(&worker).await, Outcast::Unknown { .. }));
    worker.stop().await.unwrap();
    assert_eq!((machine.pids().await.len(), machine.note().load()), (1, None));

    let removal = Removal { reason: "the manager's words".into(), containers: 0, cleared: false };
    machine.note().store(&removal).unwrap();
    for _ in 0..2 {
        let worker = machine.worker(machine.nobody()).await;
        worker.cleared().await.unwrap();
        worker.stop().await.unwrap();
        assert_nothing_is_left(&machine, 1).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_removed_node_gives_up_when_nothing_goes() {
    let machine = Machine::new();
    let removal = Removal { reason: "the manager's words".into(), containers: 0, cleared: false };
    machine.note().store(&removal).unwrap();
    let stuck = machine.dir.path().join("tasks").join(task_id(1).to_string());
    let nobody = machine.nobody();
    let worker = machine.member(nobody).await;
    // A file in place of a directory cannot be swept.
    std::fs::create_dir_all(stuck.parent().unwrap()).unwrap();
    std::fs::write(&stuck, "").unwrap();
    let began = tokio::time::Instant::now();
    let error = worker.cleared().await.unwrap_err();
    assert!(error.to_string().contains("directories of 1 tasks"), "{error}");
    assert_eq!(began.elapsed().as_secs(), 60);
    worker.stop().await.unwrap();
}

#[tokio::test]
async fn only_a_nodes_certificate_makes_a_worker() {
    let machine = Machine::new();
    for (role, id) in [(Role::Admin, settings().node.to_string()), (Role::Worker, "somebody".to_string())] {
        let refused = Worker::start(machine.config(role, &id), machine.doors()).await;
        assert!(matches!(refused, Err(StartError::Certificate { .. })), "{role:?} {id}");
    }
}

/// Waits until exactly this keeps the worker from its work.
async fn lacks(node: &Telemetry, wanted: &[&str]) {
    let asked = async {
        while node.unready().await != wanted {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let found = tokio::time::timeout(PATIENCE, asked).await;
    assert!(found.is_ok(), "wanted {wanted:?}, found {:?}", node.unready().await);
}

#[tokio::test(start_paused = true)]
async fn a_worker_shows_what_it_lacks_and_whether_it_works() {
    let machine = Machine::new();
    let (mut manager, dial) = Manager::in_memory();
    let worker = machine.worker(dial).await;
    let node = Telemetry::of(&[]);
    node.add("worker", worker.telemetry());
    let no_session = "worker: session: there is none with a manager";
    lacks(&node, &[no_session, "worker: network: the node's network is not made yet"]).await;
    let session = manager.welcomed().await;
    lacks(&node, &[]).await;
    assert_eq!(node.unhealthy().await, [""; 0]);
    machine.runtime.set_reachable(false);
    let [away] = node.unready().await.try_into().unwrap();
    assert!(away.starts_with("worker: containerd: "), "asked at once: {away}");
    machine.runtime.set_reachable(true);
    lacks(&node, &[]).await;
    drop((session, manager));
    lacks(&node, &[no_session]).await;
    let missed = |text: String| !text.contains("\nworker_heartbeat_failures_total 0.0\n");
    let counted = async {
        while !missed(node.metrics().unwrap()) {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    };
    tokio::time::timeout(PATIENCE, counted).await.unwrap();
    worker.stop().await.unwrap();
    let stopped = ["relist", "vitals"].map(|name| format!("worker: worker.{name}: the loop does not run"));
    assert_eq!(node.unhealthy().await, stopped);
}
