//! The worker on real backends: a private containerd, and a network namespace that is removed with the test.
//! Needs root, containerd, runc, iptables and a static busybox.

mod networks;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::SystemTime;

use nix::mount::{MntFlags, umount2};
use nix::sched::{CloneFlags, unshare};
use warren_dns::DnsSockets;
use warren_image::build::ImageBuilder;
use warren_network::LinuxNetwork;
use warren_proto::v1::manager_frame::Frame;
use warren_runtime::containerd::ContainerdRuntime;
use warren_runtime::testing::PrivateContainerd;
use warren_runtime::{ProcessState, Runtime};
use warren_security::{CertificateAuthority, Identity};
use warren_types::spec::{HealthCheck, Probe};
use warren_types::{DesiredTaskState, EnvVar, ImageDigest, NodeSettings, TaskAssignment};

use super::tests::{assert_conditions_only_of_machine, store_reports_until};
use super::*;
use crate::fake_manager::FakeManager;
use crate::fixtures::{TIMEOUT, eventually, port, settings, task, task_id};

const PAGE: &str = "served by a real container";

/// Detaches the network namespaces that a failed test leaves in the directory, so that it can be removed.
struct NetnsMounts(PathBuf);

impl Drop for NetnsMounts {
    fn drop(&mut self) {
        for entry in std::fs::read_dir(&self.0).into_iter().flatten().flatten() {
            while umount2(&entry.path(), MntFlags::MNT_DETACH).is_ok() {}
        }
    }
}

/// Runs a test on a thread and a tokio runtime in their own network namespace.
fn in_own_namespace<F: Future<Output = ()>>(test: impl FnOnce() -> F + Send + 'static) {
    let thread = std::thread::spawn(move || {
        unshare(CloneFlags::CLONE_NEWNET).unwrap();
        let up = Command::new("ip").args(["link", "set", "lo", "up"]).status().unwrap();
        assert!(up.success());
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        runtime.unwrap().block_on(test());
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

fn archive() -> Vec<u8> {
    let busybox = std::fs::read("/bin/busybox").unwrap();
    let serve = ["/bin/busybox", "httpd", "-f", "-p", "80", "-h", "/www"];
    ImageBuilder::new("demo:1")
        .file("bin/busybox", 0o755, busybox)
        .file("www/index.html", 0o644, PAGE)
        .config("Entrypoint", serve.to_vec())
        .oci_archive()
        .unwrap()
}

/// The answer of the published port; empty without one.
async fn fetch_page() -> String {
    let fetch = || -> std::io::Result<String> {
        let at: SocketAddr = ([127, 0, 0, 1], 8080).into();
        let mut stream = TcpStream::connect_timeout(&at, TIMEOUT)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.write_all(b"GET / HTTP/1.0\r\n\r\n")?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        Ok(text)
    };
    tokio::task::spawn_blocking(move || fetch().unwrap_or_default()).await.unwrap()
}

/// The pid of a task's running process.
async fn pid(runtime: &ContainerdRuntime, number: u64) -> Option<u32> {
    let found = runtime.list().await.unwrap();
    let id = task_id(number).to_string();
    found.iter().filter(|found| found.id.as_str() == id).find_map(|found| match found.process {
        ProcessState::Running { pid } => Some(pid),
        _ => None,
    })
}

struct Machine {
    runtime: ContainerdRuntime,
    /// The image of [`archive`], which is on it.
    digest: ImageDigest,
    settings: NodeSettings,
    data_address: Option<Ipv4Addr>,
    authority: CertificateAuthority,
    data_dir: tempfile::TempDir,
    run_dir: PathBuf,
    _mounts: NetnsMounts,
    _containerd: PrivateContainerd,
}

impl Machine {
    async fn new(settings: NodeSettings, data_address: Option<Ipv4Addr>) -> Self {
        let containerd = PrivateContainerd::start().await;
        let runtime = ContainerdRuntime::new(containerd.settings()).unwrap();
        let (run_dir, data_dir) = (containerd.dir().join("run"), tempfile::tempdir().unwrap());
        let spool_dir = data_dir.path().to_owned();
        let options = ImportOptions { spool_dir, max_bytes: 1 << 30, name: None };
        let imported = runtime.images().import(&archive()[..], options).await.unwrap();
        let cluster = settings.cluster.to_string();
        Self {
            runtime,
            digest: imported[0].digest.to_string().parse().unwrap(),
            settings,
            data_address,
            authority: CertificateAuthority::create(&cluster, SystemTime::now()).unwrap(),
            data_dir,
            _mounts: NetnsMounts(run_dir.join("netns")),
            run_dir,
            _containerd: containerd,
        }
    }

    async fn worker(&self) -> (Worker, FakeManager) {
        let identity =
            Identity::new(self.authority.cluster(), Role::Worker, self.settings.node.to_string()).unwrap();
        let credentials = self.authority.issue(&identity, SystemTime::now()).unwrap();
        let config = WorkerConfig {
            data_dir: self.data_dir.path().to_owned(),
            run_dir: self.run_dir.clone(),
            managers: Vec::new(),
            certificate: ReloadableCertificate::new(&credentials),
            trust: Trust::new(&self.authority.roots()).unwrap(),
            overrides: NodeOverrides { data_address: self.data_address, ..NodeOverrides::default() },
            user_ids: UserIds::default(),
            max_archive_bytes: 1 << 30,
            membership: None,
        };
        let backends = HostBackends {
            runtime: Arc::new(self.runtime.clone()),
            network: Arc::new(LinuxNetwork::new(&self.run_dir, warren_network::WireGuardProgram::own())),
            bind_dns: Arc::new(DnsSockets::bind),
            images: self.runtime.images().clone(),
            image_source: Arc::new(self.runtime.images().clone()),
            containerd: None,
            namespace: None,
        };
        let (manager, dial) = FakeManager::in_memory();
        (Worker::start_with(config, backends, dial, system_random()).await.unwrap(), manager)
    }
}

fn serving(desired: DesiredTaskState, digest: Option<ImageDigest>) -> TaskAssignment {
    let mut task = TaskAssignment { desired, digest, ports: vec![port(8080)], ..task(1) };
    // The first process of a container ignores SIGTERM unless it handles it, and httpd does not.
    task.spec.stop_grace = Duration::from_secs(1);
    let probe = Probe::Http { port: 80, path: "/index.html".into(), headers: Vec::new() };
    task.spec.health = Some(HealthCheck { interval: Duration::from_secs(1), ..HealthCheck::new(probe) });
    task.spec.env = vec![EnvVar { name: "GREETING".into(), value: "hello".into() }];
    task
}

/// Content of one file in the container.
fn container_file(pid: u32, file: &str) -> String {
    std::fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("root").join(file)).unwrap()
}

#[test]
fn container_survives_agent_and_leaves_nothing() {
    in_own_namespace(|| async {
        let machine = Machine::new(settings(), None).await;
        let (worker, mut manager) = machine.worker().await;
        let mut session = manager.next_welcomed_session().await;
        session.assign(1, vec![serving(DesiredTaskState::Running, None)]).await;
        let image = store_reports_until(&mut session, |report| !report.image.is_empty()).await.image;
        let digest: Option<ImageDigest> = Some(image.parse().unwrap());
        session.assign(2, vec![serving(DesiredTaskState::Running, digest.clone())]).await;
        store_reports_until(&mut session, |report| report.ready).await;
        let page = session.alive_during(fetch_page()).await;
        assert!(page.ends_with(PAGE), "the port leads to the container: {page}");
        let running = pid(&machine.runtime, 1).await.unwrap();
        assert_eq!(container_file(running, "etc/hostname"), "web-1\n");
        assert!(container_file(running, "etc/hosts").contains("10.210.0.2\tweb-1"));
        worker.stop().await.unwrap();
        drop((session, manager));
        assert!(fetch_page().await.ends_with(PAGE), "also while there is no agent");

        let (worker, mut manager) = machine.worker().await;
        let mut session = manager.next_welcomed_session().await;
        session.assign(3, vec![serving(DesiredTaskState::Running, digest.clone())]).await;
        store_reports_until(&mut session, |report| report.ready).await;
        assert_eq!(pid(&machine.runtime, 1).await, Some(running), "the same process");
        assert!(session.alive_during(fetch_page()).await.ends_with(PAGE));

        session.assign(4, vec![serving(DesiredTaskState::Remove, digest)]).await;
        store_reports_until(&mut session, |report| {
            report.removed && report.task_id == task_id(1).to_string()
        })
        .await;
        session.send(Frame::Current(Default::default())).await;
        assert!(session.alive_during(fetch_page()).await.is_empty(), "nobody answers any more");
        // Its log is retained until the manager drops it.
        let directories = || std::fs::read_dir(machine.data_dir.path().join("tasks")).unwrap().count();
        assert_eq!(directories(), 1);
        session.assign(5, vec![]).await;
        session.alive_during(eventually("its directory is removed", async || directories() == 0)).await;
        worker.stop().await.unwrap();
        assert!(machine.runtime.list().await.unwrap().is_empty());
        let namespaces = std::fs::read_dir(machine.run_dir.join("netns")).into_iter().flatten().count();
        assert_eq!(namespaces, 0, "no network namespace is left");
    });
}
