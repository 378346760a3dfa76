//! A manager that answers from a script and notes what it was asked.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use futures::{Stream, StreamExt};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tonic::transport::Server;
use tonic::{Code, Request, Response, Status, Streaming};
use warren_proto::status::{INCARNATION, OTHER_INCARNATION, Problem};
use warren_proto::v1;
use warren_proto::v1::cluster_server::ClusterServer;
use warren_proto::v1::images_server::ImagesServer;
use warren_proto::v1::logs_server::LogsServer;
use warren_proto::v1::services_server::ServicesServer;
use warren_proto::v1::tokens_server::TokensServer;
use warren_proto::v1::users_server::UsersServer;
use warren_security::{
    CertificateAuthority, CertificateRequest, HandshakeLimits, LocalListener, Peer, ReloadableCertificate,
    Role, serve_local, serve_tls, server_config,
};

use crate::contexts::{ClientIdentity, ClientTarget, PrivateKeyPem};

/// Longer than a loaded machine pauses.
const LONG: Duration = Duration::from_secs(60);

type EventStream<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// What the manager will answer, in order, and what it was asked.
#[derive(Default)]
pub struct FakeScript {
    /// Answers of `Services.Get`; when they run out: the service it was asked for.
    pub gets: VecDeque<Status>,
    /// Pages of `Services.List`, each with the token of the next.
    pub pages: VecDeque<(Vec<&'static str>, &'static str)>,
    /// What each `Cluster.Watch` streams before it ends.
    pub watches: VecDeque<Vec<Result<v1::WatchEvent, Status>>>,
    /// What `Cluster.Info` answers; nothing at all while it is not given.
    pub info: Option<v1::InfoResponse>,
    /// What `Services.Update`, `Rollback` and `Remove` answer, in order; nothing at all when they run out.
    pub writes: VecDeque<Result<v1::Service, Status>>,
    /// Woken when a write has come that is not answered.
    pub unanswered: Option<tokio::sync::oneshot::Sender<()>>,
    /// What each `Logs.Read` streams before it ends.
    pub logs: VecDeque<Vec<Result<v1::LogEntry, Status>>>,
    /// Renews certificates; without it no key is listed.
    pub authority: Option<Arc<CertificateAuthority>>,
    /// Tokens that were to be made.
    pub tokens: Vec<v1::CreateTokenRequest>,
    /// References, page tokens and resume indexes, in the order they came.
    pub requests: Vec<String>,
    /// What came of an archive, and whether its end did.
    pub archive: Vec<u8>,
    pub archive_ended: bool,
    /// What answers say of where managers are; nothing while it is empty.
    pub managers: String,
    /// Incarnation of the cluster.
    pub incarnation: u64,
    /// How many calls accepted an outdated answer.
    pub stale: usize,
    /// Woken when the first piece of an archive has come.
    pub first_piece: Option<tokio::sync::oneshot::Sender<()>>,
    /// Woken when an import is over on the manager's side, however it ended.
    pub import_ended: Option<tokio::sync::oneshot::Sender<()>>,
}

#[derive(Clone, Default)]
pub struct ScriptedApiServer(pub Arc<Mutex<FakeScript>>);

impl ScriptedApiServer {
    pub fn new(script: FakeScript) -> Self {
        Self(Arc::new(Mutex::new(script)))
    }

    pub fn requests(&self) -> Vec<String> {
        self.0.lock().unwrap().requests.clone()
    }

    async fn write(&self, asked: String) -> Result<Response<v1::Service>, Status> {
        let answer = {
            let mut script = self.0.lock().unwrap();
            script.requests.push(asked);
            let answer = script.writes.pop_front();
            if answer.is_none() {
                script.unanswered.take().map(|waiting| waiting.send(()));
            }
            answer
        };
        match answer {
            Some(answer) => answer.map(Response::new),
            // It must be the caller, or the end of the manager, that ends this.
            None => std::future::pending().await,
        }
    }

    fn router(&self) -> tonic::transport::server::Router {
        Server::builder()
            .add_service(ServicesServer::new(self.clone()))
            .add_service(ClusterServer::new(self.clone()))
            .add_service(ImagesServer::new(self.clone()))
            .add_service(TokensServer::new(self.clone()))
            .add_service(LogsServer::new(self.clone()))
            .add_service(UsersServer::new(self.clone()))
    }

    /// Serves a unix socket until the guard is dropped.
    pub fn serve_socket(&self) -> (ClientTarget, (TempDir, FakeServer)) {
        let dir = tempfile::tempdir().unwrap();
        let socket: PathBuf = dir.path().join("s");
        let serving = self.serve_socket_at(&socket);
        (ClientTarget::Unix { socket }, (dir, serving))
    }

    /// Serves the unix socket at this path, where another manager may have been.
    pub fn serve_socket_at(&self, socket: &Path) -> FakeServer {
        let serving = FakeServer::new();
        let entered = serving.runtime().enter();
        let incoming = serve_local(LocalListener::bind(socket, None).unwrap());
        serving.runtime().spawn(self.router().serve_with_incoming(incoming));
        drop(entered);
        serving
    }

    /// Serves a port of loopback with a certificate of `authority`.
    pub fn serve_port(&self, authority: &CertificateAuthority, role: Role) -> (String, FakeServer) {
        let serving = FakeServer::new();
        let entered = serving.runtime().enter();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let own = warren_security::Identity::new(authority.cluster(), role, "m1").unwrap();
        let own = ReloadableCertificate::new(&authority.issue(&own, SystemTime::now()).unwrap());
        let config = server_config(&authority.roots(), own).unwrap();
        let listener = TcpListener::from_std(listener).unwrap();
        // A loaded machine may pause a client in the middle of its handshake.
        let limits = HandshakeLimits { hello_timeout: LONG, handshake_timeout: LONG, ..Default::default() };
        let incoming = serve_tls(listener, config, limits);
        serving.runtime().spawn(self.router().serve_with_incoming(incoming));
        drop(entered);
        (address, serving)
    }
}

/// A manager's process: when it is dropped, everything ends at once, open connections included.
pub struct FakeServer(Option<Runtime>);

impl FakeServer {
    fn new() -> Self {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        Self(Some(builder.worker_threads(1).enable_all().build().unwrap()))
    }

    fn runtime(&self) -> &Runtime {
        self.0.as_ref().expect("it runs until it is dropped")
    }
}

impl Drop for FakeServer {
    fn drop(&mut self) {
        let runtime = self.0.take().expect("dropped once");
        // Waited for, so that whoever takes its place finds it free; on a thread that may wait.
        let ending = std::thread::spawn(move || runtime.shutdown_timeout(LONG));
        ending.join().expect("ending does not panic");
    }
}

pub fn authority() -> CertificateAuthority {
    CertificateAuthority::create("0000000000000000000000001", SystemTime::now()).unwrap()
}

/// An admin with a certificate of `own` who takes managers of `trusted` for managers.
pub fn admin(trusted: &CertificateAuthority, own: &CertificateAuthority) -> ClientIdentity {
    admin_since(trusted, own, SystemTime::now())
}

/// The same, with a certificate of that time.
pub fn admin_since(
    trusted: &CertificateAuthority,
    own: &CertificateAuthority,
    issued_at: SystemTime,
) -> ClientIdentity {
    let identity = warren_security::Identity::new(own.cluster(), Role::User, "alice").unwrap();
    let credentials = own.issue(&identity, issued_at).unwrap();
    ClientIdentity {
        ca: trusted.certificate_pem().to_owned(),
        certificate: credentials.certificate_pem().to_owned(),
        key: PrivateKeyPem(credentials.key().pem().to_owned()),
    }
}

pub fn service(name: &str) -> v1::Service {
    let spec = v1::ServiceSpec { name: name.to_owned(), ..Default::default() };
    v1::Service { spec: Some(spec), ..Default::default() }
}

#[tonic::async_trait]
impl v1::services_server::Services for ScriptedApiServer {
    async fn get(&self, request: Request<v1::Reference>) -> Result<Response<v1::Service>, Status> {
        let mut script = self.0.lock().unwrap();
        script.stale +=
            usize::from(request.metadata().get("warren-allow-stale").is_some_and(|value| value == "true"));
        let seen = request
            .metadata()
            .get(INCARNATION)
            .map(|incarnation| incarnation.to_str().unwrap().parse::<u64>().unwrap());
        if seen.is_some_and(|seen| seen > script.incarnation) {
            return Err(Problem::new(Code::Unavailable, OTHER_INCARNATION, "an earlier incarnation").into());
        }
        let reference = request.into_inner().reference;
        script.requests.push(reference.clone());
        let mut answer =
            script.gets.pop_front().map_or_else(|| Ok(Response::new(service(&reference))), Err)?;
        answer.metadata_mut().insert(INCARNATION, script.incarnation.into());
        if !script.managers.is_empty() {
            answer.metadata_mut().insert("warren-manager-addresses", script.managers.parse().unwrap());
        }
        Ok(answer)
    }

    async fn list(
        &self,
        request: Request<v1::ListServicesRequest>,
    ) -> Result<Response<v1::ListServicesResponse>, Status> {
        let mut script = self.0.lock().unwrap();
        let content = request.get_ref().content();
        script.requests.push(request.into_inner().page_token);
        let (names, next) = script.pages.pop_front().expect("the script has enough pages");
        let mut page = v1::ListServicesResponse { next_page_token: next.to_owned(), ..Default::default() };
        match content {
            v1::ServiceListContent::Whole => page.services = names.into_iter().map(service).collect(),
            v1::ServiceListContent::Summaries => {
                let summary = |name| v1::ServiceSummary::from(&service(name));
                page.summaries = names.into_iter().map(summary).collect();
            }
            v1::ServiceListContent::Names => page.names = names.into_iter().map(str::to_owned).collect(),
        }
        Ok(Response::new(page))
    }

    async fn create(&self, _: Request<v1::CreateServiceRequest>) -> Result<Response<v1::Service>, Status> {
        Err(Status::unimplemented("not in the script"))
    }

    async fn scale(&self, _: Request<v1::ScaleServiceRequest>) -> Result<Response<v1::Service>, Status> {
        Err(Status::unimplemented("not in the script"))
    }

    async fn remove(
        &self,
        request: Request<v1::RemoveServiceRequest>,
    ) -> Result<Response<v1::Service>, Status> {
        let v1::RemoveServiceRequest { reference, version, force: _ } = request.into_inner();
        self.write(format!("{reference} {version:?}")).await
    }

    async fn update(
        &self,
        request: Request<v1::UpdateServiceRequest>,
    ) -> Result<Response<v1::Service>, Status> {
        let v1::UpdateServiceRequest { reference, version, force, .. } = request.into_inner();
        self.write(format!("{reference} {version:?} {force}")).await
    }

    async fn rollback(
        &self,
        request: Request<v1::RollbackServiceRequest>,
    ) -> Result<Response<v1::Service>, Status> {
        let v1::RollbackServiceRequest { reference, version, revision } = request.into_inner();
        self.write(format!("{reference} {version:?} {revision:?}")).await
    }

    async fn resume(
        &self,
        request: Request<v1::ResumeServiceRequest>,
    ) -> Result<Response<v1::Service>, Status> {
        let v1::ResumeServiceRequest { reference, version } = request.into_inner();
        self.write(format!("{reference} {version:?}")).await
    }

    async fn forecast(
        &self,
        _: Request<v1::ForecastRequest>,
    ) -> Result<Response<v1::ForecastResponse>, Status> {
        Err(Status::unimplemented("not in the script"))
    }

    async fn list_revisions(
        &self,
        _: Request<v1::Reference>,
    ) -> Result<Response<v1::ListRevisionsResponse>, Status> {
        Err(Status::unimplemented("not in the script"))
    }
}

#[tonic::async_trait]
impl v1::tokens_server::Tokens for ScriptedApiServer {
    async fn create(&self, request: Request<v1::CreateTokenRequest>) -> Result<Response<v1::Token>, Status> {
        let request = request.into_inner();
        let token = v1::Token { id: request.id.clone(), ..Default::default() };
        self.0.lock().unwrap().tokens.push(request);
        Ok(Response::new(token))
    }

    async fn list(&self, _: Request<v1::ListRequest>) -> Result<Response<v1::ListTokensResponse>, Status> {
        Err(Status::unimplemented("not in the script"))
    }

    async fn remove(&self, _: Request<v1::Reference>) -> Result<Response<v1::Token>, Status> {
        Err(Status::unimplemented("not in the script"))
    }
}

#[tonic::async_trait]
impl v1::users_server::Users for ScriptedApiServer {
    async fn create(&self, _: Request<v1::CreateUserRequest>) -> Result<Response<v1::User>, Status> {
        Err(Status::unimplemented("not in the script"))
    }

    async fn get(&self, _: Request<v1::Reference>) -> Result<Response<v1::User>, Status> {
        Err(Status::unimplemented("not in the script"))
    }

    async fn list(&self, _: Request<v1::ListRequest>) -> Result<Response<v1::ListUsersResponse>, Status> {
        Err(Status::unimplemented("not in the script"))
    }

    async fn update(&self, _: Request<v1::UpdateUserRequest>) -> Result<Response<v1::User>, Status> {
        Err(Status::unimplemented("not in the script"))
    }

    async fn remove(&self, _: Request<v1::Reference>) -> Result<Response<v1::User>, Status> {
        Err(Status::unimplemented("not in the script"))
    }

    async fn login(&self, _: Request<v1::LoginRequest>) -> Result<Response<v1::LoginResponse>, Status> {
        Err(Status::unimplemented("not in the script"))
    }

    async fn list_keys(
        &self,
        _: Request<v1::ListRequest>,
    ) -> Result<Response<v1::ListUserKeysResponse>, Status> {
        Err(Status::unimplemented("not in the script"))
    }

    async fn revoke_key(&self, _: Request<v1::RevokeKeyRequest>) -> Result<Response<v1::UserKey>, Status> {
        Err(Status::unimplemented("not in the script"))
    }

    async fn renew(
        &self,
        request: Request<v1::RenewUserRequest>,
    ) -> Result<Response<v1::RenewUserResponse>, Status> {
        let mut script = self.0.lock().unwrap();
        let is_anonymous = matches!(request.extensions().get::<Peer>(), Some(Peer::Anonymous { .. }));
        script.requests.push(if is_anonymous { "renew without certificate" } else { "renew" }.to_owned());
        let refused = || Problem::new(Code::Unauthenticated, "KEY_NOT_LISTED", "the key is not listed");
        let authority = script.authority.clone().ok_or_else(refused)?;
        let certificate = CertificateRequest::parse(&request.into_inner().certificate_request).unwrap();
        let certificate =
            authority.sign_user("alice", &certificate, SystemTime::now(), Role::User.validity());
        let authorities = authority.certificate_pem().to_owned();
        Ok(Response::new(v1::RenewUserResponse { certificate: certificate.unwrap(), authorities }))
    }
}

#[tonic::async_trait]
impl v1::logs_server::Logs for ScriptedApiServer {
    type ReadStream = EventStream<v1::LogEntry>;

    async fn read(
        &self,
        request: Request<v1::ReadLogsRequest>,
    ) -> Result<Response<Self::ReadStream>, Status> {
        let mut script = self.0.lock().unwrap();
        script.requests.push(format!("{:?}", request.into_inner()));
        let entries = script.logs.pop_front().expect("the script has enough logs");
        Ok(Response::new(futures::stream::iter(entries).boxed()))
    }
}

#[tonic::async_trait]
impl v1::cluster_server::Cluster for ScriptedApiServer {
    type WatchStream = EventStream<v1::WatchEvent>;
    type StreamEventsStream = EventStream<v1::StreamEventsResponse>;
    type AuditStream = EventStream<v1::AuditResponse>;

    async fn audit(&self, _: Request<v1::AuditRequest>) -> Result<Response<Self::AuditStream>, Status> {
        Err(Status::unimplemented("there is no audit log"))
    }

    async fn stream_events(
        &self,
        _: Request<v1::StreamEventsRequest>,
    ) -> Result<Response<Self::StreamEventsStream>, Status> {
        Err(Status::unimplemented("not in the script"))
    }

    async fn why(&self, _: Request<v1::WhyRequest>) -> Result<Response<v1::WhyResponse>, Status> {
        Err(Status::unimplemented("not in the script"))
    }

    async fn watch(&self, request: Request<v1::WatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let mut script = self.0.lock().unwrap();
        script.requests.push(request.into_inner().resume_index.to_string());
        let events = script.watches.pop_front().expect("the script has enough watches");
        let mut answer: Response<Self::WatchStream> = Response::new(futures::stream::iter(events).boxed());
        answer.metadata_mut().insert(INCARNATION, script.incarnation.into());
        Ok(answer)
    }

    async fn info(&self, _: Request<v1::InfoRequest>) -> Result<Response<v1::InfoResponse>, Status> {
        let info = self.0.lock().unwrap().info.clone();
        match info {
            Some(info) => Ok(Response::new(info)),
            // Never answers: it must be the caller who ends this.
            None => std::future::pending().await,
        }
    }

    async fn update(
        &self,
        _: Request<v1::UpdateClusterRequest>,
    ) -> Result<Response<v1::InfoResponse>, Status> {
        Err(Status::unimplemented("not in the script"))
    }

    async fn rotate_ca(&self, _: Request<v1::RotateCaRequest>) -> Result<Response<v1::CaStatus>, Status> {
        Err(Status::unimplemented("not in the script"))
    }

    async fn get_ca(&self, _: Request<v1::GetCaRequest>) -> Result<Response<v1::CaStatus>, Status> {
        Err(Status::unimplemented("not in the script"))
    }

    async fn rotate_keys(
        &self,
        _: Request<v1::RotateKeysRequest>,
    ) -> Result<Response<v1::KeyStatus>, Status> {
        Err(Status::unimplemented("not in the script"))
    }

    async fn get_keys(&self, _: Request<v1::GetKeysRequest>) -> Result<Response<v1::KeyStatus>, Status> {
        Err(Status::unimplemented("not in the script"))
    }

    async fn get_unlock_key(
        &self,
        _: Request<v1::GetUnlockKeyRequest>,
    ) -> Result<Response<v1::UnlockKey>, Status> {
        Err(Status::unimplemented("not in the script"))
    }

    async fn rotate_unlock_key(
        &self,
        _: Request<v1::RotateUnlockKeyRequest>,
    ) -> Result<Response<v1::UnlockKey>, Status> {
        Err(Status::unimplemented("not in the script"))
    }

    async fn list_background_tasks(
        &self,
        _: Request<v1::ListBackgroundTasksRequest>,
    ) -> Result<Response<v1::ListBackgroundTasksResponse>, Status> {
        Err(Status::unimplemented("not in the script"))
    }
}

#[tonic::async_trait]
impl v1::images_server::Images for ScriptedApiServer {
    type ImportStream = EventStream<v1::ImportProgress>;
    type CopyStream = EventStream<v1::ImportProgress>;
    type PullStream = EventStream<v1::PullProgress>;

    async fn copy(&self, _: Request<v1::CopyImageRequest>) -> Result<Response<Self::CopyStream>, Status> {
        Err(Status::unimplemented("not in the script"))
    }

    async fn find_holders(
        &self,
        _: Request<v1::FindHoldersRequest>,
    ) -> Result<Response<v1::FindHoldersResponse>, Status> {
        Err(Status::unimplemented("not in the script"))
    }

    async fn pull(&self, _: Request<v1::PullRequest>) -> Result<Response<Self::PullStream>, Status> {
        Err(Status::unimplemented("not in the script"))
    }

    async fn list(
        &self,
        _: Request<v1::ListImagesRequest>,
    ) -> Result<Response<v1::ListImagesResponse>, Status> {
        Err(Status::unimplemented("not in the script"))
    }

    async fn resolve(
        &self,
        _: Request<v1::ResolveImageRequest>,
    ) -> Result<Response<v1::ResolvedImage>, Status> {
        Err(Status::unimplemented("not in the script"))
    }

    async fn prune(
        &self,
        _: Request<v1::PruneImagesRequest>,
    ) -> Result<Response<v1::PruneImagesResponse>, Status> {
        Err(Status::unimplemented("not in the script"))
    }

    async fn import(
        &self,
        request: Request<Streaming<v1::ImportRequest>>,
    ) -> Result<Response<Self::ImportStream>, Status> {
        let (sender, receiver) = tokio::sync::mpsc::channel(1);
        tokio::spawn(receive_archive(Arc::clone(&self.0), request.into_inner(), sender));
        Ok(Response::new(tokio_stream::wrappers::ReceiverStream::new(receiver).boxed()))
    }
}

async fn receive_archive(
    script: Arc<Mutex<FakeScript>>,
    mut archive: Streaming<v1::ImportRequest>,
    sender: tokio::sync::mpsc::Sender<Result<v1::ImportProgress, Status>>,
) {
    loop {
        match archive.message().await {
            Ok(Some(v1::ImportRequest { message: Some(message) })) => {
                let mut script = script.lock().unwrap();
                match message {
                    v1::import_request::Message::Target(target) => script.requests.extend(target.nodes),
                    v1::import_request::Message::Chunk(chunk) => {
                        script.archive.extend_from_slice(&chunk);
                        script.first_piece.take().map(|waiting| waiting.send(()));
                    }
                }
            }
            Ok(_) => {
                script.lock().unwrap().archive_ended = true;
                break;
            }
            Err(_) => break,
        }
    }
    let event = Some(v1::import_progress::Event::Done(v1::NodeDone {}));
    // A client that gave up does not hear it.
    let _ = sender.send(Ok(v1::ImportProgress { node: "n1".into(), event })).await;
    if let Some(over) = script.lock().unwrap().import_ended.take() {
        over.send(()).unwrap();
    }
}
