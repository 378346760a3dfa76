//! Writes of which an attempt may have been applied without an answer.

use std::time::Duration;

use tonic::{Code, Status};
use warren_proto::convert::stored_service_spec;
use warren_proto::v1::services_client::ServicesClient;
use warren_proto::{Problem, v1};
use warren_security::Role;
use warren_types::ServiceSpec;

use super::LONG_TIMES;
use super::scripted_server::{FakeScript, ScriptedApiServer, admin, authority, service};
use crate::contexts::ClientTarget;
use crate::{Client, Error};

fn problem(code: Code, reason: &str) -> Status {
    Problem::new(code, reason, format!("refused as {reason}")).into()
}

fn conflict() -> Status {
    problem(Code::Aborted, "VERSION_CONFLICT")
}

fn reason(error: &Error) -> &str {
    match error {
        Error::Refused { problem } => &problem.reason,
        other => panic!("{other:?}"),
    }
}

/// What the last attempt of an unconfirmed write ended with, and where the unconfirmed one was sent to.
fn unconfirmed(error: Error) -> (Error, String) {
    assert!(error.is_unconfirmed() && error.to_string().contains("may have been applied"), "{error}");
    match error {
        Error::Unconfirmed { address, end } => (*end, address),
        other => panic!("{other:?}"),
    }
}

fn spec() -> ServiceSpec {
    let wire = v1::ServiceSpec {
        name: "web".into(),
        mode: Some(v1::service_spec::Mode::Replicated(v1::Replicated { replicas: 1 })),
        task: Some(v1::TaskSpec { image: "web:1".into(), ..Default::default() }),
        ..Default::default()
    };
    stored_service_spec(wire).unwrap()
}

/// A client of one manager that answers writes like this, and what keeps the manager there.
async fn asking(script: FakeScript) -> (Client, ScriptedApiServer, impl Sized) {
    let manager = ScriptedApiServer::new(script);
    let (target, serving) = manager.serve_socket();
    (Client::connect(&target).await.unwrap(), manager, serving)
}

#[tokio::test]
async fn refusal_after_unanswered_attempt_is_indeterminate() {
    let lost = || Status::unavailable("a proxy gave up");
    for first in [lost(), problem(Code::Unavailable, "UNCONFIRMED")] {
        for refusal in [
            conflict(),
            problem(Code::AlreadyExists, "CHANGED_SINCE_CREATED"),
            problem(Code::AlreadyExists, "ALREADY_EXISTS"),
            problem(Code::FailedPrecondition, "SERVICE_REMOVING"),
        ] {
            let writes = [Err(first.clone()), Err(refusal.clone())].into();
            let (client, manager, _serving) = asking(FakeScript { writes, ..FakeScript::default() }).await;
            let error = client.services().rollback("web", None, Some(4)).await.unwrap_err();
            let (end, address) = unconfirmed(error);
            assert_eq!((reason(&end), address), (Problem::from(&refusal).reason.as_str(), client.address()));
            assert_eq!(manager.requests().len(), 2);
        }
    }
    // A read changes nothing, whatever became of it.
    let gets = [lost(), problem(Code::NotFound, "NOT_FOUND")].into();
    let (client, _, _serving) = asking(FakeScript { gets, ..FakeScript::default() }).await;
    assert_eq!(reason(&client.services().get("web").await.unwrap_err()), "NOT_FOUND");
}

#[tokio::test]
async fn attempt_without_effect_is_not_indeterminate() {
    for (code, output) in [
        (Code::Unavailable, "NO_LEADER"),
        (Code::Unavailable, "NOT_LEADER"),
        (Code::Unavailable, "MANAGER_STOPPING"),
        (Code::Unavailable, "DISK_FAILED"),
        (Code::ResourceExhausted, "BUSY"),
    ] {
        let writes = [Err(problem(code, output)), Err(conflict())].into();
        let (client, _, _serving) = asking(FakeScript { writes, ..FakeScript::default() }).await;
        let error = client.services().rollback("web", None, Some(4)).await.unwrap_err();
        assert!(!error.is_unconfirmed());
        assert_eq!(reason(&error), "VERSION_CONFLICT", "{output}");
    }
}

#[tokio::test]
async fn broken_connection_leaves_write_unconfirmed() {
    let (sender, unanswered) = tokio::sync::oneshot::channel();
    let first = ScriptedApiServer::new(FakeScript { unanswered: Some(sender), ..FakeScript::default() });
    let second =
        ScriptedApiServer::new(FakeScript { writes: [Err(conflict())].into(), ..FakeScript::default() });
    let ours = authority();
    let (lost, serving) = first.serve_port(&ours, Role::Manager);
    let (other, _other) = second.serve_port(&ours, Role::Manager);
    let addresses = [&lost, &other].map(|address| address.parse().unwrap()).into();
    let target = ClientTarget::Tcp { addresses, identity: admin(&ours, &ours) };
    let client = Client::connect_timed(&target, LONG_TIMES).await.unwrap();
    let ending = async {
        unanswered.await.unwrap();
        drop(serving);
    };
    let spec = spec();
    let services = client.services();
    let (updated, ()) = tokio::join!(services.update("web", &spec, Some(4), false), ending);
    let (end, address) = unconfirmed(updated.unwrap_err());
    assert_eq!((reason(&end), address), ("VERSION_CONFLICT", lost));
}

#[tokio::test]
async fn write_without_connection_is_not_indeterminate() {
    let (client, _, serving) = asking(FakeScript::default()).await;
    drop(serving);
    // After this it is known that the connection is lost, and each attempt begins with a new one.
    client.services().get("web").await.unwrap_err();
    tokio::time::pause();
    let error = client.services().rollback("web", None, Some(4)).await.unwrap_err();
    assert!(matches!(&error, Error::Unreachable { .. }), "{error:?}");
}

#[tokio::test]
async fn deadline_without_an_answer_leaves_the_write_unconfirmed() {
    let leaderless = || Err(problem(Code::Unavailable, "NO_LEADER"));
    for writes in [vec![], vec![leaderless()]] {
        let is_first = writes.is_empty();
        let (sender, unanswered) = tokio::sync::oneshot::channel();
        let script = FakeScript { writes: writes.into(), unanswered: Some(sender), ..FakeScript::default() };
        let (client, _, _serving) = asking(script).await;
        // Only when it waits for nothing but the deadline: what else it waits for takes real time. The deadline is
        // before the first keepalive.
        let pausing = async {
            unanswered.await.unwrap();
            tokio::time::pause();
        };
        let message =
            v1::RollbackServiceRequest { reference: "web".into(), version: Some(4), revision: None };
        let call = |channel, request| async move { ServicesClient::new(channel).rollback(request).await };
        let writing = client.writing();
        let (ended, ()) = tokio::join!(writing.unary_within(Duration::from_secs(5), message, call), pausing);
        tokio::time::resume();
        match unconfirmed(ended.unwrap_err()).0 {
            Error::NoAnswer { .. } if is_first => {}
            end => assert_eq!(reason(&end), "NO_LEADER"),
        }
    }
}

#[tokio::test]
async fn removal_whose_answer_was_lost_is_done_once_nothing_is_there() {
    let gone = Err(problem(Code::NotFound, "NOT_FOUND"));
    let writes = [Err(Status::unavailable("a proxy gave up")), gone].into();
    let (client, _, _serving) = asking(FakeScript { writes, ..FakeScript::default() }).await;
    assert!(client.services().remove("web", None, false).await.unwrap().removing);
}

#[tokio::test]
async fn forced_update_sends_newest_version_each_attempt() {
    let lost = Err(Status::unavailable("a proxy gave up"));
    let writes = [lost, Err(conflict()), Ok(service("web"))].into();
    let (client, manager, _serving) = asking(FakeScript { writes, ..FakeScript::default() }).await;
    let client = client.stale(true);
    let (spec, services) = (spec(), client.services());
    let refused = unconfirmed(services.update("web", &spec, None, true).await.unwrap_err());
    assert_eq!(reason(&refused.0), "VERSION_CONFLICT", "it is not forced twice");
    services.update("web", &spec, None, false).await.unwrap();
    assert_eq!(manager.requests(), ["web", "web Some(0) true", "web Some(0) true", "web None false"]);
    assert_eq!(manager.0.lock().unwrap().stale, 0);
}
