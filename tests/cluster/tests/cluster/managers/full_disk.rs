//! One of three managers has a full disk: its clients, its sessions, and its restart.

use std::time::{Duration, Instant};

use tokio::time::timeout;
use tonic::transport::Channel;
use tonic::{Code, Request};
use warren_client::{Client, ClientIdentity, ClientTarget, NewUser, PrivateKeyPem};
use warren_manager::ManagerTuning;
use warren_proto::v1::cluster_client::ClusterClient;
use warren_proto::v1::services_client::ServicesClient;
use warren_proto::v1::users_client::UsersClient;
use warren_proto::v1::watch_event::Change;
use warren_proto::{Problem, v1};
use warren_security::{CertificateRequest, Credentials, PrivateKey};
use warren_testkit::scratch::ScratchDir;
use warren_testkit::tool;
use warren_testkit::wait::eventually_async;
use warren_types::{EnvVar, ServiceSpec, UserId, UserRole};

use super::group::{ManagerGroup, stale};
use super::host::ManagerHost;
use crate::fixture::{WAIT_DEADLINE, new_id, spec};

/// Room for the log and some snapshots; the engine takes some MiB before the first entry.
const MEBIBYTES: u64 = 24;
/// An answer that takes longer waited for something.
const AT_ONCE: Duration = Duration::from_secs(1);
/// The host with the small disk. It never leads.
const FULL: usize = 2;
const READS: usize = 100;

impl ManagerGroup {
    /// Three voters; the last one has a small disk, and the first one leads.
    async fn with_a_small_disk() -> Self {
        let mut group = Self::founded(ManagerTuning::default()).await;
        group.add("m2").await;
        group.hosts.push(ManagerHost::on_small_disk("m3", ManagerTuning::default(), MEBIBYTES));
        group.join(FULL).await;
        group.all_vote().await;
        group.ensure_leader(|leader| leader != FULL).await;
        group.assert_reads_current("before").await;
        group
    }

    fn is_write_stalled(&self) -> bool {
        self.hosts[FULL].manager().store().read().write_stall.is_some()
    }

    /// Fills the small disk, and writes until its manager cannot store more.
    async fn fill_disk(&self, prefix: &str) {
        self.hosts[FULL].disk().fill();
        let mut services = self.services(0).await;
        for number in 0..10_000 {
            if self.is_write_stalled() {
                return;
            }
            let id = new_id().to_string();
            let spec = Some((&large(&format!("{prefix}-{number}"))).into());
            services.create(v1::CreateServiceRequest { id, spec, ..Default::default() }).await.unwrap();
        }
        panic!("a full disk takes everything");
    }

    /// Frees the disk, and waits until the manager has caught up.
    async fn free_disk(&self) {
        self.hosts[FULL].disk().free();
        eventually_async(WAIT_DEADLINE, "the manager to catch up", || async {
            let (led, own) =
                (self.hosts[0].manager().store().read(), self.hosts[FULL].manager().store().read());
            let is_there = own.write_stall.is_none() && own.index >= led.index;
            if is_there {
                Ok(())
            } else {
                Err(format!("{} of {}, {:?}", own.index, led.index, own.write_stall))
            }
        })
        .await;
    }

    /// Ends the manager with the full disk so that its directory is as after a kill.
    async fn kill(&mut self) {
        let host = &mut self.hosts[FULL];
        let left = ScratchDir::new();
        let (data, copy) = (host.data_dir(), left.path().join("data"));
        tool::run("cp", ["-a", data.to_str().unwrap(), copy.to_str().unwrap()]);
        host.drop_manager().await;
        host.disk().free();
        std::fs::remove_dir_all(&data).unwrap();
        tool::run("cp", ["-a", copy.to_str().unwrap(), data.to_str().unwrap()]);
        host.disk().fill();
    }

    /// A client that knows these hosts, the first one first.
    async fn client(&self, hosts: &[usize]) -> Client {
        let identity = ClientIdentity {
            ca: self.roots.pem().to_owned(),
            certificate: self.admin.certificate_pem().to_owned(),
            key: PrivateKeyPem(self.admin.key().pem().to_owned()),
        };
        let addresses = hosts.iter().map(|host| self.hosts[*host].advertised()).collect();
        Client::connect(&ClientTarget::Tcp { addresses, identity }).await.unwrap()
    }

    /// Every read through the manager with the full disk is answered with the newest write.
    async fn assert_reads_current(&self, prefix: &str) {
        let mut services = self.services(FULL).await;
        let mut refused = Vec::new();
        for number in 0..READS {
            let name = format!("{prefix}-{number}");
            if number % 10 == 0 {
                self.create(0, &name).await.unwrap();
            }
            let reference = format!("{prefix}-{}", number - number % 10);
            refused.extend(services.get(v1::Reference { reference }).await.err());
        }
        assert!(refused.is_empty(), "{} of {READS} refused, first: {}", refused.len(), refused[0]);
    }

    async fn assert_writes_succeed(&self, prefix: &str) {
        for number in 0..10 {
            let name = format!("{prefix}-{number}");
            let made = self.create(FULL, &name).await.unwrap();
            assert_eq!(made.spec.unwrap().name, name);
            assert!(listed(self.channel(1).await, false).await.contains(&name), "{name}");
        }
    }
}

/// A service that takes some space in the log and none on nodes.
fn large(name: &str) -> ServiceSpec {
    let mut spec = spec(name, 0);
    spec.task.env = vec![EnvVar { name: "TEXT".into(), value: "x".repeat(12 << 10) }];
    spec
}

async fn listed(channel: Channel, is_stale: bool) -> Vec<String> {
    let request = v1::ListServicesRequest { page_size: 1_000, ..Default::default() };
    let request = if is_stale { stale(request) } else { tonic::Request::new(request) };
    let listed = ServicesClient::new(channel).list(request).await.unwrap().into_inner();
    listed.services.into_iter().map(|service| service.spec.unwrap().name).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn full_manager_forwards_calls() {
    let group = ManagerGroup::with_a_small_disk().await;
    group.fill_disk("a").await;
    group.assert_reads_current("read").await;
    group.assert_writes_succeed("write").await;
    assert!(group.is_write_stalled());

    // Stale reads are answered by this manager, which lacks the latest writes.
    let own = listed(group.channel(FULL).await, true).await;
    let has = |name: &str| own.iter().any(|own| own == name);
    assert!(has("before-0") && !has("write-9"), "{own:?}");
    let mut cluster = ClusterClient::new(group.channel(FULL).await);
    for request in [stale(v1::InfoRequest {}), Request::new(v1::InfoRequest {})] {
        let info = cluster.info(request).await.unwrap().into_inner();
        assert!(info.log_write_stall.contains("the disk of this manager is full"), "{info:?}");
        let store = group.hosts[FULL].manager().store();
        assert_eq!(
            info.manager_id,
            store.read().state.member(store.own_id()).unwrap().manager_id.to_string()
        );
    }

    // A client gets its answer at once, whether it knows the other managers or not.
    for hosts in [&[FULL, 0, 1][..], &[FULL]] {
        let client = group.client(hosts).await;
        let mut times = Vec::new();
        // A write may wait for a slow disk of the others, but not each.
        while times.iter().all(|took| *took >= AT_ONCE) {
            let began = Instant::now();
            let name = format!("by-{}-{}", hosts.len(), times.len());
            client.services().create(new_id(), &spec(&name, 0)).await.unwrap();
            let names: Vec<_> = client.services().list().await.unwrap();
            assert!(names.iter().any(|service| service.spec.as_ref().unwrap().name == name));
            times.push(began.elapsed());
            assert!(times.len() < 10, "{hosts:?}: {times:?}");
        }
    }

    // The permissions are those of the caller, not of the forwarding manager.
    let (name, role, minute) = ("bob".parse().unwrap(), UserRole::Viewer, Duration::from_secs(60));
    let user = NewUser { name, role, ttl: None, login_ttl: minute };
    let created = group.client(&[0]).await.users().create(UserId(new_id().0), &user).await;
    let key = PrivateKey::generate().unwrap();
    let certificate_request = CertificateRequest::create(&key).unwrap();
    let login = v1::LoginRequest { token: created.unwrap().1.reveal().to_string(), certificate_request };
    let anonymous = group.hosts[0].channel(&group.roots, None).await;
    let certificate = UsersClient::new(anonymous).login(login).await.unwrap().into_inner().certificate;
    let viewer = Credentials::new(certificate, key).unwrap();
    let channel = group.hosts[FULL].channel(&group.roots, Some(&viewer)).await;
    assert!(listed(channel.clone(), false).await.contains(&"write-9".to_owned()));
    let request = v1::CreateServiceRequest {
        id: new_id().to_string(),
        spec: Some((&spec("no", 0)).into()),
        ..Default::default()
    };
    let refused = ServicesClient::new(channel).create(request).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied, "{refused}");

    group.free_disk().await;
    group.assert_reads_current("after").await;
    group.assert_writes_succeed("again").await;
    assert!(listed(group.channel(FULL).await, true).await.contains(&"again-9".to_owned()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_managers_may_relay_callers() {
    let group = ManagerGroup::of_three().await;
    let mut request = tonic::Request::new(v1::ListServicesRequest::default());
    request.metadata_mut().insert("warren-forwarded-caller", "local 0 0".parse().unwrap());
    let node = group.node("n1").await;
    let channel = group.hosts[0].channel(&group.roots, Some(&node)).await;
    let refused = ServicesClient::new(channel).list(request).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied, "{refused}");
    // Nor for a caller with the permissions of a manager.
    let manager = group.hosts[1].credentials();
    let channel = group.hosts[0].channel(&group.roots, Some(&manager)).await;
    let (own, other) = (group.admin.key().public_hash().unwrap(), manager.key().public_hash().unwrap());
    let name = group.admin.identity().id();
    for (caller, code) in [
        (format!("certificate manager m2 {own} 10.0.0.7:1"), Code::InvalidArgument),
        (format!("certificate user {name} {other} 10.0.0.7:1"), Code::Unauthenticated),
        (format!("certificate user bob {own} 10.0.0.7:1"), Code::Unauthenticated),
        ("anonymous 10.0.0.7:1".to_owned(), Code::Unauthenticated),
        (format!("certificate user {name} {own} 10.0.0.7:1"), Code::Ok),
    ] {
        let mut request = tonic::Request::new(v1::ListServicesRequest::default());
        request.metadata_mut().insert("warren-forwarded-caller", caller.parse().unwrap());
        let answer = ServicesClient::new(channel.clone()).list(request).await;
        assert_eq!(answer.map_or_else(|status| status.code(), |_| Code::Ok), code, "{caller}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_and_watches_leave_full_manager() {
    let group = ManagerGroup::with_a_small_disk().await;
    let node = group.node("n1").await;
    let mut worker = group.session(FULL, &node, None).await;
    group.run(0, "web", 1).await;
    worker.has("the task", |tasks| tasks.len() == 1).await;
    let version = worker.version;
    let mut cluster = ClusterClient::new(group.channel(FULL).await);
    let mut before = cluster.watch(v1::WatchRequest::default()).await.unwrap().into_inner();
    let alive = worker.keep_alive();
    group.fill_disk("a").await;

    // A watch would be silent: it ends, and resumes at a manager that is up to date.
    let ended = async {
        while before.message().await?.is_some() {}
        Ok::<(), tonic::Status>(())
    };
    let ended = timeout(WAIT_DEADLINE, ended).await.expect("the watch ends").unwrap_err();
    assert_eq!(Problem::from(&ended).reason, "DISK_FULL", "{ended}");
    let mut after = cluster.watch(v1::WatchRequest::default()).await.unwrap().into_inner();
    group.create(0, "seen").await.unwrap();
    let seen = async {
        loop {
            match after.message().await.unwrap().unwrap().change {
                Some(Change::Service(service)) if service.spec.as_ref().unwrap().name == "seen" => return,
                _ => {}
            }
        }
    };
    timeout(WAIT_DEADLINE, seen).await.expect("the change is seen");

    // Sessions end, none begins here, and the next manager serves the worker.
    let ended = worker.end().await;
    drop(alive);
    assert_eq!(Problem::from(&ended).reason, "NO_LEADER", "{ended}");
    let channel = group.hosts[FULL].channel(&group.roots, Some(&node)).await;
    let refused = crate::worker::ScriptedWorker::connect(channel, version).await.end().await;
    assert_eq!(Problem::from(&refused).reason, "NO_LEADER", "{refused}");
    let mut worker = group.session(1, &node, version).await;
    worker.version = version;
    worker.sync().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn manager_on_full_disk_serves_by_forwarding() {
    let mut group = ManagerGroup::with_a_small_disk().await;
    group.fill_disk("a").await;
    for round in ["first", "second"] {
        group.kill().await;
        group.create(0, round).await.unwrap();
        group.hosts[FULL].start(false).await.unwrap();
        group.fill_disk(round).await;
        group.assert_reads_current(&format!("{round}-read")).await;
        group.assert_writes_succeed(&format!("{round}-write")).await;
        let own = listed(group.channel(FULL).await, true).await;
        assert!(own.contains(&"before-0".to_owned()), "{own:?}");
    }
    group.free_disk().await;
    assert!(listed(group.channel(FULL).await, true).await.contains(&"second-write-9".to_owned()));
    // The next start can decrypt what it wrote since.
    group.hosts[FULL].stop().await;
    group.hosts[FULL].start(false).await.unwrap();
    group.assert_reads_current("third").await;
}
