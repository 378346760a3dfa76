//! Every method by every kind of caller: the table, and that it is complete.

use std::collections::BTreeSet;
use std::time::SystemTime;

use tokio::time::timeout;
use tonic::client::Grpc;
use tonic::transport::Channel;
use tonic::{Code, Request, Status};
use tonic_prost::ProstCodec;
use warren_manager::api::access::{METHODS, Need};
use warren_security::{CertificateAuthority, Identity, Role};

use crate::world::{Caller, PATIENCE, World};

const CALLERS: [Caller; 6] = [
    Caller::Anonymous,
    Caller::Certified(Role::Viewer),
    Caller::Certified(Role::Worker),
    Caller::Certified(Role::Admin),
    Caller::Certified(Role::Manager),
    Caller::Local,
];

/// Says nothing until there is something to say.
const QUIET: &str = "/warren.v1.Peers/Progress";

/// What an empty message to the method is answered with, up to its first word.
async fn call(grpc: &mut Grpc<Channel>, path: &'static str) -> Result<(), Status> {
    grpc.ready().await.unwrap();
    let method = http::uri::PathAndQuery::from_static(path);
    let answered = grpc.server_streaming(Request::new(()), method, ProstCodec::<(), ()>::default());
    let late = |_| panic!("{path} does not answer");
    let mut answer = timeout(PATIENCE, answered).await.unwrap_or_else(late)?.into_inner();
    if path != QUIET {
        timeout(PATIENCE, answer.message()).await.unwrap_or_else(|_| panic!("{path} says nothing"))?;
    }
    Ok(())
}

fn may(caller: Caller, need: Need) -> bool {
    match need {
        Need::Stranger => caller == Caller::Anonymous,
        Need::Viewer => {
            [Caller::Certified(Role::Viewer), Caller::Certified(Role::Admin), Caller::Local].contains(&caller)
        }
        Need::Admin => [Caller::Certified(Role::Admin), Caller::Local].contains(&caller),
        Need::Worker => caller == Caller::Certified(Role::Worker),
        Need::Manager => caller == Caller::Certified(Role::Manager),
    }
}

/// As `caller`; a manager is one of the group.
async fn channel(world: &World, caller: Caller) -> Channel {
    if caller != Caller::Certified(Role::Manager) {
        return world.channel(caller).await;
    }
    let member = world.manager().store().read().state.members().next().expect("it is one itself").id;
    let authority = CertificateAuthority::load(&world.data_dir().join("manager/ca.pem")).unwrap();
    let identity = Identity::new(authority.cluster(), Role::Manager, member.to_string()).unwrap();
    let credentials = authority.issue(&identity, SystemTime::now()).unwrap();
    world.channel_as(Some(&credentials)).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exactly_those_who_may_get_an_answer() {
    let world = World::new().await;
    for caller in CALLERS {
        let mut grpc = Grpc::new(channel(&world, caller).await);
        let denied = match caller {
            Caller::Anonymous => Code::Unauthenticated,
            Caller::Certified(_) | Caller::Local => Code::PermissionDenied,
        };
        for (path, need) in METHODS {
            let code = call(&mut grpc, path).await.map_or_else(|status| status.code(), |()| Code::Ok);
            if may(caller, need) {
                let refused = [Code::Unauthenticated, Code::PermissionDenied, Code::Unimplemented];
                assert!(!refused.contains(&code), "{caller:?} {path}: {code:?}");
            } else {
                assert_eq!(code, denied, "{caller:?} {path}");
            }
        }
        let unknown = call(&mut grpc, "/warren.v1.Services/Guess").await.unwrap_err().code();
        let wanted = if caller == Caller::Anonymous { Code::Unauthenticated } else { Code::Unimplemented };
        assert_eq!(unknown, wanted, "{caller:?}");
    }
}

#[test]
fn a_stranger_can_join_and_nothing_else() {
    let open = METHODS.iter().filter(|(_, need)| *need == Need::Stranger).map(|(path, _)| *path);
    assert_eq!(open.collect::<Vec<_>>(), ["/warren.v1.Membership/Join", "/warren.v1.Managers/Join"]);
}

/// A certificate of the right role is not enough between managers: it must be of one that is a member.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_manager_that_is_no_member_gets_nothing_done() {
    let world = World::new().await;
    // Issued by the cluster's authority to somebody who is not in its state.
    let mut grpc = Grpc::new(world.channel(Caller::Certified(Role::Manager)).await);
    for (path, _) in METHODS.iter().filter(|(_, need)| *need == Need::Manager) {
        let refused = call(&mut grpc, path).await.unwrap_err();
        assert_eq!(refused.code(), Code::PermissionDenied, "{path}: {refused:?}");
    }
}

#[test]
fn the_table_has_every_method_of_every_service() {
    let mut methods = BTreeSet::new();
    for file in ["api", "session", "peers"] {
        let path = format!("{}/../../proto/warren/v1/{file}.proto", env!("CARGO_MANIFEST_DIR"));
        let mut service = String::new();
        for line in std::fs::read_to_string(path).unwrap().lines() {
            let words: Vec<&str> = line.split([' ', '(']).filter(|word| !word.is_empty()).collect();
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
