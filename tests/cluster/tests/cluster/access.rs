//! Every method by every kind of caller: the table, and that it is complete.

use std::collections::BTreeSet;

use tonic::client::Grpc;
use tonic::{Code, Request, Status};
use tonic_prost::ProstCodec;
use warren_manager::api::access::{METHODS, Need};
use warren_security::Role;

use crate::world::{Caller, PATIENCE, World};

const CALLERS: [Caller; 6] = [
    Caller::Anonymous,
    Caller::Certified(Role::Viewer),
    Caller::Certified(Role::Worker),
    Caller::Certified(Role::Admin),
    Caller::Certified(Role::Manager),
    Caller::Local,
];

/// What an empty message to the method is answered with, up to its first word.
async fn call(grpc: &mut Grpc<tonic::transport::Channel>, path: &'static str) -> Result<(), Status> {
    grpc.ready().await.unwrap();
    let path = http::uri::PathAndQuery::from_static(path);
    let answered = grpc.server_streaming(Request::new(()), path, ProstCodec::<(), ()>::default());
    let mut answer = tokio::time::timeout(PATIENCE, answered).await.unwrap()?.into_inner();
    tokio::time::timeout(PATIENCE, answer.message()).await.unwrap()?;
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
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exactly_those_who_may_get_an_answer() {
    let world = World::new().await;
    for caller in CALLERS {
        let mut grpc = Grpc::new(world.channel(caller).await);
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
fn the_table_has_every_method_of_every_service() {
    let mut methods = BTreeSet::new();
    for file in ["api", "session"] {
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
    assert!(methods.len() >= 15, "{methods:?}");
    assert_eq!(METHODS.iter().map(|(path, _)| (*path).to_owned()).collect::<BTreeSet<_>>(), methods);
}
