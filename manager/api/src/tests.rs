//! Requests to a manager that applies concurrent writes directly after each write: both are published before
//! the write is answered.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::SystemTime;

use tempfile::TempDir;
use tonic::{Request, Status};
use warren_consensus::ConfState;
use warren_control::SystemClock;
use warren_core::state::VolumeData;
use warren_core::{AppliedIndex, Command, FEATURE_LEVEL, KeyCommand, State};
use warren_peers::{PeerCredentials, PeerTransport};
use warren_proto::Problem;
use warren_proto::v1;
use warren_proto::v1::managers_server::Managers;
use warren_proto::v1::networks_server::Networks;
use warren_proto::v1::nodes_server::Nodes;
use warren_proto::v1::secret_objects_server::SecretObjects;
use warren_proto::v1::services_server::Services;
use warren_proto::v1::tokens_server::Tokens;
use warren_proto::v1::users_server::Users;
use warren_proto::v1::volumes_server::Volumes;
use warren_registry::{RegistryClients, RegistrySettings};
use warren_security::{
    CertificateAuthority, CertificateRequest, Identity, PrivateKey, ReloadableCertificate,
    Role as CertificateRole, Trust,
};
use warren_store::codec;
use warren_store::{
    AppliedWrite, DriverInbox, DriverRequest, PublishedState, QueuedProposal, ReplicaRole, StatePublisher,
};
use warren_types::{
    Availability, ClusterId, Id, ManagerId, NetworkId, NodeId, NodeRole, SecretObjectId, ServiceId,
    ServiceSpec, Timestamp, TokenHash, TokenId, VolumeId,
};

use super::*;

const TERM: u64 = 1;
const AT: Timestamp = Timestamp(1);
const LEADER: ReplicaRole = ReplicaRole { is_leader: true, leader_id: Some(1), term: TERM, can_plan: true };

/// The concurrent writes after the next write of the test.
type ConcurrentWrites = Arc<Mutex<Vec<Command>>>;

struct ApiFixture {
    api: Api,
    concurrent_writes: ConcurrentWrites,
    _dir: TempDir,
    _outgoing: PeerTransport,
}

fn publish(publisher: &StatePublisher, state: &State) {
    let members = Arc::new(ConfState::of_voters(vec![1]));
    let published = PublishedState { role: LEADER, members, ..PublishedState::initial(state.clone()) };
    publisher.publish(published, Vec::new());
}

/// Applies proposals, each followed by the concurrent writes.
async fn drive(publisher: StatePublisher, mut inbox: DriverInbox, mut state: State, later: ConcurrentWrites) {
    publish(&publisher, &state);
    while let Some(QueuedProposal { data, reply }) = inbox.proposals.recv().await {
        let command = codec::decode(&data).unwrap();
        let place = AppliedIndex { term: TERM, index: state.applied().index + 1 };
        let outcome = state.apply(TERM, place.index, &command);
        for command in later.lock().unwrap().drain(..) {
            let outcome = state.apply(TERM, state.applied().index + 1, &command);
            assert!(matches!(outcome, warren_core::ApplyOutcome::Applied { .. }), "{command:?}: {outcome:?}");
        }
        publish(&publisher, &state);
        let result = warren_replica::command_result(&outcome);
        reply.send(Ok(AppliedWrite { position: place, result })).unwrap();
    }
}

fn certificate(authority: &CertificateAuthority) -> Arc<ReloadableCertificate> {
    let identity = Identity::new("c1", CertificateRole::Manager, id(1)).unwrap();
    ReloadableCertificate::new(&authority.issue(&identity, SystemTime::now()).unwrap())
}

fn peers(
    authority: &CertificateAuthority,
    certificate: Arc<ReloadableCertificate>,
) -> (Peers, PeerTransport) {
    let trust = Trust::new(&authority.roots()).unwrap();
    let credentials = PeerCredentials { cluster: "c1", id: ManagerId(Id(1)), trust, certificate };
    let (peers, outgoing, _) = Peers::new(1, "127.0.0.1:1".parse().unwrap(), credentials).unwrap();
    (peers, outgoing)
}

/// A cluster with one manager and one node, `n1`.
async fn fixture() -> ApiFixture {
    let mut state = State::new();
    let (name, address) = ("m1".parse().unwrap(), "127.0.0.1:1".parse().unwrap());
    let founding = [
        Command::CreateCluster {
            id: ClusterId(Id(1)),
            ranges: vec!["10.0.0.0/8".parse().unwrap()],
            feature_level: FEATURE_LEVEL,
            at: AT,
        },
        Command::RegisterMember {
            member: 1,
            id: ManagerId(Id(1)),
            name,
            address,
            level: FEATURE_LEVEL,
            at: AT,
        },
        Command::RegisterNode {
            id: NodeId(Id(1)),
            name: "n1".parse().unwrap(),
            role: NodeRole::Worker,
            description: Default::default(),
            taints: Default::default(),
            at: AT,
        },
    ];
    for (index, command) in (1..).zip(&founding) {
        state.apply(TERM, index, command);
    }
    let authority = CertificateAuthority::create("c1", SystemTime::now()).unwrap();
    let certificate = certificate(&authority);
    let (peers, outgoing) = peers(&authority, certificate.clone());
    let (store, publisher, inbox) = Store::new(PublishedState::initial(State::new()), 16, 16);
    let dir = TempDir::new().unwrap();
    let (clock, shutdown) = (Arc::new(SystemClock::new()), Shutdown::new());
    let tasks_run = BackgroundTasks::new(shutdown.clone(), clock.clone(), Arc::new(|| 0));
    let (later, mut newest) = (ConcurrentWrites::default(), store.watch(0));
    tokio::spawn(drive(publisher, inbox, state, later.clone()));
    newest.next().await.unwrap();
    let api = Api {
        leader: LeaderWatch::start(store.clone(), &tasks_run),
        networks: NetworkPublisher::new(store.clone()),
        registry: SessionRegistry::default(),
        streams: WorkerStreams::default(),
        placement_refusals: PlacementRefusals::default(),
        background_tasks: tasks_run,
        clock: TimestampSource::new(clock, store.clone()),
        shutdown,
        certificate,
        authority: CurrentAuthority::new(authority),
        secret_object_key: Arc::new(SecretObjectKey::create(&dir.path().join("key")).unwrap()),
        key_files: KeyFiles::open(dir.path(), None).unwrap(),
        manager_id: id(1),
        is_manager_only: false,
        member_id: 1,
        founders: [1].into(),
        peers,
        state_comparison: StateComparison::default(),
        membership_wait: MembershipWait::default(),
        progress_subscription: ProgressSubscription::default(),
        log_engine: LogEngine::default(),
        later_incarnation: LaterIncarnation::default(),
        audit: Auditor::start(dir.path().join("audit"), "m1".into(), ()).unwrap(),
        registries: Arc::new(RegistryClients::new(RegistrySettings::default())),
        store,
    };
    ApiFixture { api, concurrent_writes: later, _dir: dir, _outgoing: outgoing }
}

impl ApiFixture {
    /// Adds a concurrent write after the next write of the test.
    fn write_concurrently(&self, commands: impl Into<Vec<Command>>) {
        *self.concurrent_writes.lock().unwrap() = commands.into();
    }

    async fn service(&self, value: &str) -> v1::Service {
        let request = v1::CreateServiceRequest { id: id(7), spec: Some(spec(value)), ..Default::default() };
        self.api.create_service(request).await.unwrap()
    }
}

impl Api {
    async fn create_service(&self, request: v1::CreateServiceRequest) -> Result<v1::Service, Status> {
        Services::create(self, Request::new(request)).await.map(tonic::Response::into_inner)
    }

    async fn update_service(
        &self,
        value: &str,
        version: Option<u64>,
        force: bool,
    ) -> Result<v1::Service, Status> {
        let (reference, spec) = ("web".into(), Some(spec(value)));
        let request = v1::UpdateServiceRequest { reference, version, spec, force, ..Default::default() };
        Services::update(self, Request::new(request)).await.map(tonic::Response::into_inner)
    }

    async fn update_secret(
        &self,
        data: &'static [u8],
        version: Option<u64>,
    ) -> Result<v1::SecretObject, Status> {
        let (kind, reference, data) = (v1::SecretObjectKind::Secret.into(), "db".into(), data.into());
        let request = v1::UpdateSecretObjectRequest { kind, reference, version, data };
        SecretObjects::update(self, Request::new(request)).await.map(tonic::Response::into_inner)
    }

    async fn create_secret(&self, data: &'static [u8]) -> Result<v1::SecretObject, Status> {
        let (id, kind, name) = (id(7), v1::SecretObjectKind::Secret.into(), "db".into());
        let request =
            v1::CreateSecretObjectRequest { id, kind, name, labels: BTreeMap::new(), data: data.into() };
        SecretObjects::create(self, Request::new(request)).await.map(tonic::Response::into_inner)
    }
}

fn id(number: u128) -> String {
    Id(number).to_string()
}

fn reference(text: &str) -> Request<v1::Reference> {
    Request::new(v1::Reference { reference: text.into() })
}

/// A service `web` without tasks, with a label and its own image.
fn spec(value: &str) -> v1::ServiceSpec {
    v1::ServiceSpec {
        name: "web".into(),
        labels: BTreeMap::from([("value".to_owned(), value.to_owned())]),
        mode: Some(v1::service_spec::Mode::Replicated(v1::Replicated { replicas: 0 })),
        task: Some(v1::TaskSpec { image: format!("app:{}", value.replace(' ', "-")), ..Default::default() }),
        ..Default::default()
    }
}

fn value(service: &v1::Service) -> &str {
    &service.spec.as_ref().unwrap().labels["value"]
}

fn concurrent_update(value: &str) -> Command {
    let spec: ServiceSpec = spec(value).try_into().unwrap();
    Command::UpdateService { id: ServiceId(Id(7)), version: None, spec, force: false, at: AT }
}

fn reason<T: std::fmt::Debug>(answer: Result<T, Status>) -> String {
    Problem::from(&answer.unwrap_err()).reason
}

#[tokio::test]
async fn update_returns_own_version_despite_later_write() {
    let world = fixture().await;
    let created = world.service("first").await;
    world.write_concurrently([concurrent_update("theirs")]);
    let updated = world.api.update_service("mine", Some(created.version), false).await.unwrap();
    assert_eq!((value(&updated), updated.version, updated.revision), ("mine", created.version + 1, 2));
    let stale = world.api.update_service("again", Some(updated.version), false).await;
    assert_eq!(reason(stale), "VERSION_CONFLICT", "their write is not overwritten");
    let found = Services::get(&world.api, reference("web")).await.unwrap().into_inner();
    assert_eq!((value(&found), found.version), ("theirs", updated.version + 1));
}

#[tokio::test]
async fn superseded_update_reports_superseded_rollout() {
    let world = fixture().await;
    world.service("first").await;
    world.write_concurrently([concurrent_update("theirs")]);
    let rollout = world.api.update_service("mine", None, false).await.unwrap().rollout.unwrap();
    assert_eq!(rollout.stop_reason, "web was changed again meanwhile: it is at revision 3, not 2");
    world.write_concurrently([
        Command::RemoveService { id: ServiceId(Id(7)), version: None, force: false, at: AT },
        Command::DeleteService { term: TERM, id: ServiceId(Id(7)) },
    ]);
    let removed = world.api.update_service("mine again", None, false).await.unwrap();
    assert_eq!((value(&removed), removed.removing), ("mine again", false));
    assert_eq!(removed.rollout.unwrap().stop_reason, "web was removed meanwhile");
}

#[tokio::test]
async fn repeated_update_returns_first_version() {
    let world = fixture().await;
    let created = world.service("first").await;
    let updated = world.api.update_service("mine", Some(created.version), false).await.unwrap();
    world.write_concurrently([concurrent_update("theirs")]);
    let repeated = world.api.update_service("mine", Some(created.version), false).await.unwrap();
    assert_eq!((value(&repeated), repeated.version), ("mine", updated.version));
}

#[tokio::test]
async fn scale_force_and_rollback_return_own_result() {
    let world = fixture().await;
    let created = world.service("first").await;
    world.write_concurrently([concurrent_update("theirs")]);
    let request =
        v1::ScaleServiceRequest { reference: "web".into(), version: None, replicas: 3, ..Default::default() };
    let scaled = Services::scale(&world.api, Request::new(request)).await.unwrap().into_inner();
    assert_eq!((value(&scaled), scaled.version, scaled.desired_tasks), ("first", created.version + 1, 3));
    world.write_concurrently([concurrent_update("theirs again")]);
    let forced = world.api.update_service("theirs", None, true).await.unwrap();
    assert_eq!((value(&forced), forced.version, forced.revision), ("theirs", scaled.version + 2, 3));
    world.write_concurrently([concurrent_update("last")]);
    let request = v1::RollbackServiceRequest { reference: "web".into(), version: None, revision: Some(1) };
    let back = Services::rollback(&world.api, Request::new(request)).await.unwrap().into_inner();
    assert_eq!((back.version, back.revision), (forced.version + 2, 5));
    assert_eq!(back.spec.unwrap().task.unwrap().image, "app:first");
}

#[tokio::test]
async fn create_returns_service_despite_concurrent_change() {
    let world = fixture().await;
    world.write_concurrently([concurrent_update("theirs")]);
    let created = world.service("mine").await;
    assert_eq!((value(&created), created.revision), ("mine", 1));
    let request = v1::CreateServiceRequest { id: id(7), spec: Some(spec("mine")), ..Default::default() };
    let repeated = world.api.create_service(request).await;
    assert_eq!(reason(repeated), "CHANGED_SINCE_CREATED", "version and revision are theirs");
    let gone = [
        Command::RemoveService { id: ServiceId(Id(8)), version: None, force: false, at: AT },
        Command::DeleteService { term: TERM, id: ServiceId(Id(8)) },
    ];
    world.write_concurrently(gone);
    let other = v1::ServiceSpec { name: "other".into(), ..spec("mine") };
    let request = v1::CreateServiceRequest { id: id(8), spec: Some(other), ..Default::default() };
    let created = world.api.create_service(request).await.unwrap();
    assert_eq!((value(&created), created.removing), ("mine", false));
}

#[tokio::test]
async fn remove_returns_service_marked_for_removal() {
    let world = fixture().await;
    let created = world.service("mine").await;
    world.write_concurrently([Command::DeleteService { term: TERM, id: ServiceId(Id(7)) }]);
    let request = v1::RemoveServiceRequest { reference: "web".into(), version: None, force: false };
    let removed = Services::remove(&world.api, Request::new(request)).await.unwrap().into_inner();
    assert_eq!((removed.removing, removed.version), (true, created.version + 1));
}

#[tokio::test]
async fn secret_object_writes_return_own_version() {
    let world = fixture().await;
    let (theirs, second) = {
        let seal = |data: &[u8]| world.api.secret_object_key.seal(SecretObjectId(Id(7)), data);
        (seal(b"theirs"), seal(b"theirs, later"))
    };
    let others =
        |data| Command::UpdateSecretObject { id: SecretObjectId(Id(7)), version: None, data, at: AT };
    world.write_concurrently([others(theirs)]);
    let created = world.api.create_secret(b"first").await.unwrap();
    assert_eq!(created.version_number, 1);
    let repeated = world.api.create_secret(b"first").await;
    assert_eq!(reason(repeated), "CHANGED_SINCE_CREATED", "number and version are theirs");
    world.write_concurrently([others(second)]);
    let updated = world.api.update_secret(b"mine", Some(created.version + 1)).await.unwrap();
    assert_eq!((updated.version_number, updated.version), (3, created.version + 3));
    let stale = world.api.update_secret(b"mine again", Some(updated.version)).await;
    assert_eq!(reason(stale), "VERSION_CONFLICT");
    world.write_concurrently([Command::RemoveSecretObject { id: SecretObjectId(Id(7)), at: AT }]);
    let last = world.api.update_secret(b"last", None).await.unwrap();
    assert_eq!(last.version_number, 5);
    world.write_concurrently([Command::RemoveSecretObject { id: SecretObjectId(Id(7)), at: AT }]);
    let created = world.api.create_secret(b"first").await.unwrap();
    assert_eq!(created.version_number, 1, "it was made, though it is gone by now");
}

#[tokio::test]
async fn volume_writes_return_own_object_despite_removal() {
    let world = fixture().await;
    let gone =
        || [Command::RemoveVolume { id: VolumeId(Id(7)), purge: false, data: VolumeData::Absent, at: AT }];
    world.write_concurrently(gone());
    let request = v1::CreateVolumeRequest { id: id(7), name: "data".into(), ..Default::default() };
    let created = Volumes::create(&world.api, Request::new(request.clone())).await.unwrap().into_inner();
    assert_eq!(created.name, "data");
    let again = Volumes::create(&world.api, Request::new(request)).await.unwrap().into_inner();
    assert!(again.version > created.version);
    let request = v1::RemoveVolumeRequest { reference: "data".into(), ..Default::default() };
    let removed = Volumes::remove(&world.api, Request::new(request)).await.unwrap().into_inner();
    assert_eq!((removed.id, removed.version), (again.id, again.version));
}

#[tokio::test]
async fn network_writes_return_own_object_despite_removal() {
    let world = fixture().await;
    world.write_concurrently([Command::RemoveNetwork { id: NetworkId(Id(7)), at: AT }]);
    let labels = BTreeMap::from([("team".to_owned(), "a".to_owned())]);
    let request = v1::CreateNetworkRequest { id: id(7), name: "back".into(), labels, internal: true };
    let created = Networks::create(&world.api, Request::new(request.clone())).await.unwrap().into_inner();
    assert_eq!((created.name.as_str(), created.internal, created.labels.len()), ("back", true, 1));
    let again = Networks::create(&world.api, Request::new(request.clone())).await.unwrap().into_inner();
    assert!(again.version > created.version);
    let repeated = Networks::create(&world.api, Request::new(request)).await.unwrap().into_inner();
    assert_eq!(repeated, again);
    let removed = Networks::remove(&world.api, reference("back")).await.unwrap().into_inner();
    assert_eq!(removed, again);
    assert_eq!(reason(Networks::get(&world.api, reference("back")).await), "NOT_FOUND");
}

#[tokio::test]
async fn networks_are_listed_by_name_with_their_services() {
    let world = fixture().await;
    for (number, name) in [(7, "back"), (8, "front")] {
        let request = v1::CreateNetworkRequest { id: id(number), name: name.into(), ..Default::default() };
        Networks::create(&world.api, Request::new(request)).await.unwrap();
    }
    world.service("first").await;
    let mut listed = Vec::new();
    let mut page_token = String::new();
    for _ in 0..3 {
        let request = v1::ListNetworksRequest { page_size: 1, page_token };
        let page = Networks::list(&world.api, Request::new(request)).await.unwrap().into_inner();
        listed.extend(page.networks.into_iter().map(|network| (network.name, network.services)));
        page_token = page.next_page_token;
    }
    let web = vec!["web".to_owned()];
    assert_eq!(listed, [("back".into(), vec![]), ("default".into(), web), ("front".into(), vec![])]);
    assert_eq!(page_token, "");
    assert_eq!(reason(Networks::remove(&world.api, reference("default")).await), "DEFAULT_NETWORK");
}

#[tokio::test]
async fn invalid_network_names_every_field() {
    let world = fixture().await;
    let labels = BTreeMap::from([(String::new(), String::new())]);
    let request = v1::CreateNetworkRequest { id: "x".into(), name: "Back".into(), labels, internal: false };
    let refused = Networks::create(&world.api, Request::new(request)).await.unwrap_err();
    let fields = Problem::from(&refused).violations.0.into_iter().map(|wrong| wrong.path);
    assert_eq!(fields.collect::<Vec<_>>(), ["id", "name", "labels[\"\"]"]);
    let request = v1::CreateNetworkRequest { id: id(7), name: "host".into(), ..Default::default() };
    let refused = Networks::create(&world.api, Request::new(request)).await.unwrap_err();
    assert_eq!(Problem::from(&refused).violations.0[0].path, "name");
}

#[tokio::test]
async fn node_writes_return_own_object_despite_concurrent_change() {
    let world = fixture().await;
    let update = |availability, key: &str| Command::UpdateNode {
        id: NodeId(Id(1)),
        version: None,
        label_add: BTreeMap::from([(key.to_owned(), String::new())]),
        label_rm: Default::default(),
        availability,
        taint_add: Default::default(),
        taint_rm: Default::default(),
        at: AT,
    };
    world.write_concurrently([update(Some(Availability::Active), "theirs")]);
    let request = v1::UpdateNodeRequest {
        reference: "n1".into(),
        availability: v1::Availability::Drain.into(),
        ..Default::default()
    };
    let updated = Nodes::update(&world.api, Request::new(request.clone())).await.unwrap().into_inner();
    assert_eq!((updated.availability(), updated.labels.len()), (v1::Availability::Drain, 0));
    world.write_concurrently([Command::RemoveNode { id: NodeId(Id(1)), force: false, at: AT }]);
    let again = Nodes::update(&world.api, Request::new(request)).await.unwrap().into_inner();
    assert_eq!((again.version, again.labels.len()), (updated.version + 2, 1));
}

#[tokio::test]
async fn token_and_manager_writes_return_own_object() {
    let world = fixture().await;
    let hash = vec![7; 32];
    let create = || v1::CreateTokenRequest {
        id: id(7),
        role: v1::NodeRole::Worker.into(),
        hash: hash.clone().into(),
        ttl_ms: 60_000,
        max_uses: None,
        labels: Default::default(),
    };
    let gone = || [Command::RemoveToken { id: TokenId(Id(7)), at: AT }];
    let made = Tokens::create(&world.api, Request::new(create())).await.unwrap().into_inner();
    world.write_concurrently(gone());
    let repeated = Tokens::create(&world.api, Request::new(create())).await.unwrap().into_inner();
    assert_eq!((repeated.version, repeated.expires_at), (made.version, made.expires_at));
    world.write_concurrently(gone());
    Tokens::create(&world.api, Request::new(create())).await.unwrap();
    let moved = |port| Command::UpdateMember {
        member: 1,
        version: None,
        desired_suffrage: None,
        address: Some(format!("127.0.0.1:{port}").parse().unwrap()),
        at: AT,
    };
    world.write_concurrently([moved(3)]);
    let request = v1::UpdateManagerRequest {
        reference: "m1".into(),
        address: "127.0.0.1:2".into(),
        ..Default::default()
    };
    let updated = Managers::update(&world.api, Request::new(request)).await.unwrap().into_inner();
    assert_eq!(updated.address, "127.0.0.1:2");
}

#[tokio::test]
async fn repeated_manager_removal_succeeds() {
    let world = fixture().await;
    let hash = TokenHash([9; 32]);
    let (name, address) = ("m2".parse().unwrap(), "127.0.0.1:9".parse().unwrap());
    let token = Command::CreateToken {
        id: TokenId(Id(9)),
        role: NodeRole::Manager,
        hash,
        expires_at: None,
        max_uses: None,
        labels: Default::default(),
        at: AT,
    };
    let join =
        Command::JoinManager { hash, id: ManagerId(Id(2)), name, address, level: FEATURE_LEVEL, at: AT };
    let leaves = Command::RemoveMember { member: 2, at: AT };
    world.write_concurrently([token, join, leaves]);
    world.service("any").await;
    let remove = |reference: String| {
        let request = Request::new(v1::RemoveManagerRequest { reference, force: false });
        Managers::remove(&world.api, request)
    };
    for reference in ["m2".to_owned(), id(2)] {
        let removed = remove(reference).await.unwrap().into_inner();
        assert_eq!((removed.name.as_str(), removed.removing), ("m2", true));
    }
    world.write_concurrently([Command::DeleteMember { term: TERM, member: 2 }]);
    world.api.create_secret(b"x").await.unwrap();
    for _ in 0..2 {
        let done = remove(id(2)).await.unwrap_err();
        assert_eq!(done.code(), tonic::Code::NotFound, "what a client takes for done");
        assert!(done.message().contains("is already removed; nothing was changed"), "{done}");
    }
    assert_eq!(reason(remove("m2".to_owned()).await), "NOT_FOUND", "the name may be another one's by now");
}

/// A manager that lags knows neither that the key is revoked nor that it lags.
#[tokio::test]
async fn long_certificate_of_a_revoked_key_needs_the_newest_state() {
    const DAY_MS: u64 = 24 * 60 * 60 * 1000;
    let mut world = fixture().await;
    let own = PrivateKey::generate().unwrap();
    let key = own.public_hash().unwrap();
    let mut state = State::clone(&world.api.store.read().state);
    let mut apply = |command: Command| {
        let index = state.applied().index + 1;
        state.apply(TERM, index, &command);
        PublishedState {
            role: ReplicaRole { is_leader: false, leader_id: Some(2), term: TERM, can_plan: false },
            members: Arc::new(ConfState::of_voters(vec![1, 2, 3])),
            ..PublishedState::initial(state.clone())
        }
    };
    let behind = apply(Command::SetAdministratorKey { member: 1, key, at: AT });
    let newest = apply(Command::Key(KeyCommand::Revoke { key, at: AT }));
    let (store, publisher, mut inbox) = Store::new(behind, 16, 16);
    world.api.store = store;
    let renew = |ttl_ms| {
        let certificate_request = CertificateRequest::create(&own).unwrap();
        let request = v1::RenewUserRequest { certificate_request, ttl_ms, ..Default::default() };
        Users::renew(&world.api, Request::new(request))
    };
    for ttl_ms in [0, DAY_MS] {
        renew(ttl_ms).await.unwrap();
    }
    let catch_up = async {
        let Some(DriverRequest::Read(reply)) = inbox.requests.recv().await else { panic!("no read") };
        publisher.publish(newest, Vec::new());
        reply.send(()).unwrap();
    };
    let (refused, ()) = tokio::join!(renew(DAY_MS + 1), catch_up);
    assert_eq!(reason(refused), "KEY_NOT_LISTED");
}
