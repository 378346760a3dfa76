//! Every method with every kind of caller: the table of permissions, and its completeness.

use std::collections::BTreeSet;
use std::time::SystemTime;

use tokio::time::timeout;
use tonic::client::Grpc;
use tonic::transport::Channel;
use tonic::{Code, Request, Status};
use tonic_prost::ProstCodec;
use warren_api::methods::{METHODS, RequiredRole};
use warren_api::relayed_caller::CALLER_METADATA;
use warren_client::NewToken;
use warren_core::Command;
use warren_proto::v1;
use warren_proto::v1::services_client::ServicesClient;
use warren_security::{CertificateAuthority, Credentials, Identity, Role};
use warren_testkit::wait::eventually_async;
use warren_types::{PublicKeyHash, Timestamp, UserRole};

use crate::fixture::{CallerKind, ManagerFixture, WAIT_DEADLINE};
use crate::joining::{JoiningMachine, token};

/// A kind of caller in the table of permissions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Caller {
    Plain(CallerKind),
    User(UserRole),
    /// An administrator that the CA certified and the state does not list.
    ForgedAdministrator,
    /// A certificate of the CA with the id of a manager or of a worker that joined, for another key.
    ForgedManager,
    ForgedWorker,
    /// The former agent of a node whose machine got another key.
    FormerAgent,
}

pub const CALLERS: [Caller; 11] = [
    Caller::Plain(CallerKind::Anonymous),
    Caller::User(UserRole::Viewer),
    Caller::User(UserRole::Operator),
    Caller::User(UserRole::Admin),
    Caller::Plain(CallerKind::Certified(Role::Worker)),
    Caller::Plain(CallerKind::Certified(Role::Manager)),
    Caller::Plain(CallerKind::Local),
    Caller::ForgedAdministrator,
    Caller::ForgedManager,
    Caller::ForgedWorker,
    Caller::FormerAgent,
];

/// A stream method that sends nothing until there is an event.
const SILENT_METHOD: &str = "/warren.v1.Peers/WatchProgress";

/// The response to an empty message to the method, up to its first message.
async fn call(grpc: &mut Grpc<Channel>, path: &'static str) -> Result<(), Status> {
    grpc.ready().await.unwrap();
    let method = http::uri::PathAndQuery::from_static(path);
    let answered = grpc.server_streaming(Request::new(()), method, ProstCodec::<(), ()>::default());
    let late = |_| panic!("{path} does not answer");
    let mut answer = timeout(WAIT_DEADLINE, answered).await.unwrap_or_else(late)?.into_inner();
    if path != SILENT_METHOD {
        timeout(WAIT_DEADLINE, answer.message())
            .await
            .unwrap_or_else(|_| panic!("{path} does not answer"))?;
    }
    Ok(())
}

pub fn is_allowed(caller: Caller, need: RequiredRole) -> bool {
    let least = match need {
        RequiredRole::Anonymous => return caller == Caller::Plain(CallerKind::Anonymous),
        RequiredRole::Renewal(_) if caller == Caller::Plain(CallerKind::Anonymous) => return true,
        RequiredRole::Renewal(Role::User) => UserRole::Viewer,
        RequiredRole::Renewal(role) => return caller == Caller::Plain(CallerKind::Certified(role)),
        RequiredRole::Worker => return caller == Caller::Plain(CallerKind::Certified(Role::Worker)),
        RequiredRole::Manager => return caller == Caller::Plain(CallerKind::Certified(Role::Manager)),
        RequiredRole::Viewer => UserRole::Viewer,
        RequiredRole::Operator => UserRole::Operator,
        RequiredRole::Admin => UserRole::Admin,
    };
    match caller {
        Caller::User(role) => role >= least,
        Caller::Plain(kind) => kind == CallerKind::Local,
        Caller::ForgedAdministrator | Caller::ForgedManager | Caller::ForgedWorker | Caller::FormerAgent => {
            false
        }
    }
}

/// What somebody with a copy of the CA's key can make: a certificate with the id of a manager.
fn forged_manager(world: &ManagerFixture) -> Credentials {
    let authority = CertificateAuthority::load(&world.data_dir().join("manager/ca.pem")).unwrap();
    let state = &world.manager().store().read().state;
    let id = state.members().next().expect("it is one itself").manager_id;
    let identity = Identity::new(authority.cluster(), Role::Manager, id.to_string()).unwrap();
    authority.issue(&identity, SystemTime::now()).unwrap()
}

/// The certificate of `caller`, if it has one; a manager is a member of the group.
pub async fn credentials(world: &ManagerFixture, caller: Caller) -> Option<Credentials> {
    let authority = CertificateAuthority::load(&world.data_dir().join("manager/ca.pem")).unwrap();
    let issue = |role, id: &str| {
        let identity = Identity::new(authority.cluster(), role, id).unwrap();
        authority.issue(&identity, SystemTime::now()).unwrap()
    };
    Some(match caller {
        Caller::Plain(CallerKind::Certified(Role::Manager)) => {
            Credentials::load(&world.data_dir().join("manager/manager.pem")).unwrap()
        }
        Caller::Plain(CallerKind::Certified(role)) => world.credentials(role),
        Caller::Plain(CallerKind::Local | CallerKind::Anonymous) => return None,
        Caller::User(role) => world.user(role.as_str().trim_end_matches('n'), role).await,
        Caller::ForgedAdministrator => issue(Role::User, "admin"),
        Caller::ForgedManager => forged_manager(world),
        Caller::ForgedWorker => {
            let NewToken { secret, .. } = token(world, None, None).await;
            let worker = JoiningMachine::new("n2").join(world, &secret).await.unwrap();
            issue(Role::Worker, worker.identity().id())
        }
        Caller::FormerAgent => {
            let NewToken { secret, .. } = token(world, None, None).await;
            let worker = JoiningMachine::new("n3").join(world, &secret).await.unwrap();
            let (id, key) = (worker.identity().id().parse().unwrap(), PublicKeyHash([1; 32]));
            let command = Command::SetNodeKey { id, key, at: Timestamp(1) };
            world.manager().store().propose(command).await.unwrap();
            worker
        }
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_method_admits_exactly_its_callers() {
    let world = ManagerFixture::new().await;
    for caller in CALLERS {
        let channel = match credentials(&world, caller).await {
            None if caller == Caller::Plain(CallerKind::Local) => world.channel(CallerKind::Local).await,
            credentials => world.channel_as(credentials.as_ref()).await,
        };
        let mut grpc = Grpc::new(channel);
        let denied = match caller {
            Caller::Plain(CallerKind::Anonymous)
            | Caller::ForgedAdministrator
            | Caller::ForgedManager
            | Caller::ForgedWorker
            | Caller::FormerAgent => Code::Unauthenticated,
            Caller::Plain(_) | Caller::User(_) => Code::PermissionDenied,
        };
        for (path, need) in METHODS {
            let code = call(&mut grpc, path).await.map_or_else(|status| status.code(), |()| Code::Ok);
            if is_allowed(caller, need) {
                let refused = [Code::Unauthenticated, Code::PermissionDenied, Code::Unimplemented];
                assert!(!refused.contains(&code), "{caller:?} {path}: {code:?}");
            } else {
                assert_eq!(code, denied, "{caller:?} {path}");
            }
        }
        let unknown = call(&mut grpc, "/warren.v1.Services/Guess").await.unwrap_err().code();
        let expected = if denied == Code::Unauthenticated { denied } else { Code::Unimplemented };
        assert_eq!(unknown, expected, "{caller:?}");
    }
}

#[test]
fn anonymous_caller_can_only_join_log_in_renew_and_ask_whether_it_was_removed() {
    let is_open = |need: RequiredRole| matches!(need, RequiredRole::Anonymous | RequiredRole::Renewal(_));
    let open = METHODS.into_iter().filter(|(_, need)| is_open(*need)).map(|(path, _)| path);
    assert_eq!(
        open.collect::<Vec<_>>(),
        [
            "/warren.v1.Users/Login",
            "/warren.v1.Users/Renew",
            "/warren.v1.Membership/Join",
            "/warren.v1.Membership/Renew",
            "/warren.v1.Managers/Join",
            "/warren.v1.Sessions/CheckNode",
            "/warren.v1.Peers/CheckManager",
        ]
    );
}

/// A certificate of the right role is not enough between managers: it must belong to a member.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn non_member_manager_is_refused() {
    let world = ManagerFixture::new().await;
    // Issued by the cluster's CA to a manager that is not in its state.
    let mut grpc = Grpc::new(world.channel(CallerKind::Certified(Role::Manager)).await);
    for (path, _) in METHODS.iter().filter(|(_, need)| *need == RequiredRole::Manager) {
        let refused = call(&mut grpc, path).await.unwrap_err();
        // The first frame of a stream is read before, and is empty here.
        let is_stream = path.ends_with("/StreamRaft") || path.ends_with("/InstallSnapshot");
        let expected = if is_stream { Code::InvalidArgument } else { Code::Unavailable };
        assert_eq!(refused.code(), expected, "{path}: {refused:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forged_manager_speaks_for_nobody() {
    let world = ManagerFixture::new().await;
    let list = async |credentials: &Credentials| {
        let mut services = ServicesClient::new(world.channel_as(Some(credentials)).await);
        let mut request = Request::new(v1::ListServicesRequest::default());
        // As a manager forwards the call of an administrator on its own socket.
        request.metadata_mut().insert(CALLER_METADATA, "local 0 0".parse().unwrap());
        services.list(request).await
    };
    let own = Credentials::load(&world.data_dir().join("manager/manager.pem")).unwrap();
    eventually_async(WAIT_DEADLINE, "the manager to know itself", || async {
        list(&own).await.map(drop).map_err(|status| status.to_string())
    })
    .await;
    let refused = list(&forged_manager(&world)).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unauthenticated, "{refused:?}");
}

#[test]
fn the_table_has_every_method_of_every_service() {
    let mut methods = BTreeSet::new();
    for file in ["api", "session", "peers"] {
        let path = format!("{}/../../proto/warren/v1/{file}.proto", env!("CARGO_MANIFEST_DIR"));
        let mut service = String::new();
        for line in std::fs::read_to_string(path).unwrap().lines() {
            let words: Vec<&str> = line.split([' ', '(']).filter(|text| !text.is_empty()).collect();
            match words[..] {
                ["service", name, ..] => service = name.to_owned(),
                ["rpc", name, ..] => drop(methods.insert(format!("/warren.v1.{service}/{name}"))),
                _ => {}
            }
        }
    }
    assert!(methods.len() >= 50, "{methods:?}");
    assert_eq!(METHODS.iter().map(|(path, _)| (*path).to_owned()).collect::<BTreeSet<_>>(), methods);
}
