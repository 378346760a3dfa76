use std::collections::BTreeMap;
use std::time::SystemTime;

use warren_image::Connection;
use warren_network::fake::FakeNetwork;
use warren_network::{Error as NetworkError, Network, TaskKey, TaskNetwork};
use warren_proto::v1;
use warren_proto::v1::manager_frame::Frame;
use warren_proto::v1::worker_frame::Frame as FromWorker;
use warren_runtime::fake::Fake;
use warren_runtime::{Process, Runtime};
use warren_security::{CertificateAuthority, Identity};
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

    async fn worker(&self, dial: Dial) -> Worker {
        let config = self.config(Role::Worker, &settings().node.to_string());
        Worker::start_with(config, self.doors(), dial, Arc::new(|| 0)).await.unwrap()
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
    let want =
        ["heartbeat", "images", "network", "relist", "sweep", "sync"].map(|name| format!("worker.{name}"));
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
    let nobody = Dialer::new(Vec::new(), client_config(&machine.authority.roots(), None).unwrap());
    let worker = machine.worker(nobody.into_dial()).await;
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

#[tokio::test]
async fn only_a_nodes_certificate_makes_a_worker() {
    let machine = Machine::new();
    for (role, id) in [(Role::Admin, settings().node.to_string()), (Role::Worker, "somebody".to_string())] {
        let refused = Worker::start(machine.config(role, &id), machine.doors()).await;
        assert!(matches!(refused, Err(StartError::Certificate { .. })), "{role:?} {id}");
    }
}
