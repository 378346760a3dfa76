//! A manager without disk, raft or workers. What becomes of a service's tasks is said by its image:
//! `runs`, `rejected` (never runs), `pending` (no node fits), `unhealthy` (its check always fails), `unsure` (its check
//! has failed, but not often enough yet).

mod cluster;
mod forecast;
mod images;
mod logs;
mod managers;
mod networks;
mod nodes;
mod secret_objects;
mod services;
mod tasks;
mod tokens;
mod users;
mod volumes;

use std::collections::BTreeMap;
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tonic::transport::Server;
use tonic::transport::server::Router;
use tonic::{Code, Status};
use warren_proto::v1::watch_event::Change;
use warren_proto::{Problem, v1};
use warren_security::{
    CertificateAuthority, HandshakeLimits, Identity, LocalListener, ReloadableCertificate, Role, Trust,
    serve_local, serve_tls, trusting_server_config,
};

pub use managers::BACKUP;

type ResponseStream<T> = Pin<Box<dyn tokio_stream::Stream<Item = Result<T, Status>> + Send>>;
type WatchSender = mpsc::UnboundedSender<Result<v1::WatchEvent, Status>>;

#[derive(Default)]
struct FakeState {
    index: u64,
    settings: warren_types::ClusterSettings,
    /// How many unlock keys there were, and whether autolock is on.
    unlock_keys: (usize, bool),
    /// The replacement of the certificate authority.
    ca_phase: Option<i32>,
    /// The replacement of the keys that encrypt what managers store.
    key_phase: Option<i32>,
    /// The authority that replaced another.
    authority: Option<Arc<CertificateAuthority>>,
    services: BTreeMap<String, v1::Service>,
    /// Newest first, by service.
    history: BTreeMap<String, Vec<v1::Revision>>,
    tasks: BTreeMap<String, v1::Task>,
    nodes: BTreeMap<String, v1::Node>,
    tokens: BTreeMap<String, v1::Token>,
    /// What was asked of logs and of pruning, to be looked at.
    logs_asked: Vec<v1::ReadLogsRequest>,
    prunes_asked: Vec<v1::PruneImagesRequest>,
    hashes: Vec<Vec<u8>>,
    contents: Vec<secret_objects::StoredSecretObject>,
    volumes: Vec<v1::Volume>,
    networks: Vec<v1::Network>,
    managers_listed: Vec<v1::Manager>,
    /// Volumes whose data is gone.
    purged: Vec<String>,
    watchers: Vec<WatchSender>,
    next_task: u64,
    /// What `Cluster.Info` says beside its answer of where managers are; nothing while it is empty.
    managers: String,
    /// How many of these accepted an outdated answer.
    stale: usize,
}

/// Runs until it is dropped.
pub struct FakeCliManager {
    state: FakeApi,
    runtime: Option<Runtime>,
}

#[derive(Clone, Default)]
struct FakeApi(Arc<Mutex<FakeState>>);

impl FakeCliManager {
    pub fn serve(socket: &Path) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let state = FakeApi::default();
        for (id, name) in [("n1", "node-1"), ("n2", "node-2"), ("n3", "stuck")] {
            state.0.lock().unwrap().nodes.insert(id.to_owned(), nodes::node(id, name));
        }
        state.0.lock().unwrap().networks = vec![networks::default()];
        state.0.lock().unwrap().managers_listed = (1..=3).map(managers::manager).collect();
        let entered = runtime.enter();
        let incoming = serve_local(LocalListener::bind(socket, None).unwrap());
        runtime.spawn(state.router().serve_with_incoming(incoming));
        drop(entered);
        Self { state, runtime: Some(runtime) }
    }

    /// Another manager of the same cluster, on a port of this machine.
    pub fn add_peer(&self, authority: &CertificateAuthority) -> (String, Self) {
        self.serve_peer(authority, Trust::new(&authority.roots()).unwrap())
    }

    /// The same, which accepts the certificates of users by the authority from before as well.
    pub fn add_peer_trusting(
        &self,
        authority: &CertificateAuthority,
        before: &CertificateAuthority,
    ) -> (String, Self) {
        let trust = Trust::new(&authority.roots()).unwrap();
        trust.replace(&authority.roots(), &[before.certificate_pem().to_owned()]).unwrap();
        self.serve_peer(authority, trust)
    }

    fn serve_peer(&self, authority: &CertificateAuthority, trust: Arc<Trust>) -> (String, Self) {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = builder.worker_threads(1).enable_all().build().unwrap();
        let entered = runtime.enter();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let own = Identity::new(authority.cluster(), Role::Manager, "m1").unwrap();
        let own = ReloadableCertificate::new(&authority.issue(&own, SystemTime::now()).unwrap());
        let config = trusting_server_config(trust, own).unwrap();
        let listener = tokio::net::TcpListener::from_std(listener).unwrap();
        // A loaded machine may pause a client in the middle of its handshake.
        let long = Duration::from_secs(60);
        let limits = HandshakeLimits { hello_timeout: long, handshake_timeout: long, ..Default::default() };
        let incoming = serve_tls(listener, config, limits);
        runtime.spawn(self.state.router().serve_with_incoming(incoming));
        drop(entered);
        (address, Self { state: self.state.clone(), runtime: Some(runtime) })
    }

    /// From now on the answers to `Cluster.Info` say that managers are there.
    pub fn set_advertised_managers(&self, addresses: &[&str]) {
        self.state.0.lock().unwrap().managers = addresses.join(",");
    }

    /// How many calls of `Cluster.Info` accepted an outdated answer.
    pub fn stale(&self) -> usize {
        self.state.0.lock().unwrap().stale
    }

    /// How many replicas of the service are wanted now.
    pub fn replicas(&self, name: &str) -> Option<i64> {
        self.state.0.lock().unwrap().find(name).ok().map(|service| replicas(&service))
    }

    /// What was last asked of logs.
    pub fn last_logs_request(&self) -> v1::ReadLogsRequest {
        self.state.0.lock().unwrap().logs_asked.last().cloned().unwrap()
    }

    /// What was asked to be pruned.
    pub fn prune_requests(&self) -> Vec<v1::PruneImagesRequest> {
        self.state.0.lock().unwrap().prunes_asked.clone()
    }

    /// The bytes of the newest version of a secret, a config or a credential.
    pub fn secret_bytes(&self, name: &str) -> Option<Vec<u8>> {
        let state = self.state.0.lock().unwrap();
        let held = state.contents.iter().find(|held| held.object.name == name);
        held.and_then(|held| held.versions.last().cloned())
    }

    /// Names of the volumes whose data was deleted.
    pub fn purged(&self) -> Vec<String> {
        self.state.0.lock().unwrap().purged.clone()
    }

    /// Hashes of the tokens that were made.
    pub fn hashes(&self) -> Vec<Vec<u8>> {
        self.state.0.lock().unwrap().hashes.clone()
    }
}

impl FakeApi {
    fn router(&self) -> Router {
        let state = self;
        Server::builder()
            .add_service(v1::services_server::ServicesServer::new(state.clone()))
            .add_service(v1::tasks_server::TasksServer::new(state.clone()))
            .add_service(v1::nodes_server::NodesServer::new(state.clone()))
            .add_service(v1::tokens_server::TokensServer::new(state.clone()))
            .add_service(v1::secret_objects_server::SecretObjectsServer::new(state.clone()))
            .add_service(v1::volumes_server::VolumesServer::new(state.clone()))
            .add_service(v1::networks_server::NetworksServer::new(state.clone()))
            .add_service(v1::logs_server::LogsServer::new(state.clone()))
            .add_service(v1::managers_server::ManagersServer::new(state.clone()))
            .add_service(v1::cluster_server::ClusterServer::new(state.clone()))
            .add_service(v1::images_server::ImagesServer::new(state.clone()))
            .add_service(v1::users_server::UsersServer::new(state.clone()))
    }
}

impl Drop for FakeCliManager {
    fn drop(&mut self) {
        self.runtime.take().unwrap().shutdown_background();
    }
}

/// A global service has a task on each of the three nodes.
fn replicas(service: &v1::Service) -> i64 {
    match service.spec.as_ref().unwrap().mode {
        Some(v1::service_spec::Mode::Replicated(replicated)) => replicated.replicas,
        Some(v1::service_spec::Mode::Global(v1::Global {})) => 3,
        None => panic!("{service:?} has no mode"),
    }
}

fn missing(what: &str, reference: &str) -> Status {
    Problem::new(Code::NotFound, "NOT_FOUND", format!("there is no {what} {reference}")).into()
}

impl FakeState {
    fn find(&self, reference: &str) -> Result<v1::Service, Status> {
        let known = |service: &&v1::Service| {
            service.id == reference || service.spec.as_ref().unwrap().name == reference
        };
        self.services.values().find(known).cloned().ok_or_else(|| missing("service", reference))
    }

    fn notify(&mut self, change: Change) {
        self.index += 1;
        let event = v1::WatchEvent { index: self.index, change: Some(change) };
        self.watchers.retain(|watcher| watcher.send(Ok(event.clone())).is_ok());
    }

    fn put_task(&mut self, task: v1::Task) {
        self.tasks.insert(task.id.clone(), task.clone());
        self.notify(Change::Task(task));
    }

    fn put_service(&mut self, service: &mut v1::Service) {
        service.version = self.index + 1;
        self.services.insert(service.id.clone(), service.clone());
        self.notify(Change::Service(service.clone()));
    }
}
