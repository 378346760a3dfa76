//! Unary calls: retries, deadlines, errors, pages.

use std::time::Duration;

use tonic::{Code, Status};
use warren_proto::v1::cluster_client::ClusterClient;
use warren_proto::{Problem, v1};
use warren_security::CaDigest;
use warren_types::{Id, NodeRole, SecretObjectId, SecretObjectKind, TokenId, Violation, Violations};

use super::scripted_server::{FakeScript, ScriptedApiServer, service};
use crate::{Client, Error, LogOptions, LogTarget, NewSecretObject, TokenOptions};

#[tokio::test]
async fn unavailable_manager_is_tried_again() {
    let gone = || Status::unavailable("no leader yet");
    let manager =
        ScriptedApiServer::new(FakeScript { gets: [gone(), gone()].into(), ..FakeScript::default() });
    let (target, _serving) = manager.serve_socket();
    let client = Client::connect(&target).await.unwrap();
    let found = client.services().get("web").await.unwrap();
    assert_eq!(found.spec.unwrap().name, "web");
    assert_eq!(manager.requests(), ["web", "web", "web"]);
}

#[tokio::test]
async fn last_manager_error_is_returned_after_retries() {
    let problem = Problem::new(Code::Unavailable, "DISK_FAILED", "the log cannot be written");
    let gone = std::iter::repeat_with(|| Status::from(problem.clone())).take(100);
    let manager = ScriptedApiServer::new(FakeScript { gets: gone.collect(), ..FakeScript::default() });
    let (target, _serving) = manager.serve_socket();
    let client = Client::connect(&target).await.unwrap();
    let error = client.services().get("web").await.unwrap_err();
    assert!(matches!(&error, Error::Refused { problem: found } if *found == problem), "{error:?}");
    assert_eq!(manager.requests().len(), 6);
}

#[tokio::test]
async fn a_refusal_arrives_with_its_fields_and_is_not_repeated() {
    let mut violations = Violations::default();
    violations.add("spec.task.limits.memory", "1MiB is below the runtime's minimum of 6MiB");
    violations.0.push(Violation::new("spec.name", "is missing"));
    let problem = Problem::from(violations);
    let manager =
        ScriptedApiServer::new(FakeScript { gets: [problem.clone().into()].into(), ..FakeScript::default() });
    let (target, _serving) = manager.serve_socket();
    let client = Client::connect(&target).await.unwrap();
    match client.services().get("web").await.unwrap_err() {
        Error::Refused { problem: found } => assert_eq!(found, problem),
        other => panic!("{other:?}"),
    }
    assert_eq!(manager.requests().len(), 1);
}

#[tokio::test]
async fn oversized_secret_is_not_sent() {
    // It serves no contents: whatever is sent is answered with `Unimplemented`.
    let (target, _serving) = ScriptedApiServer::default().serve_socket();
    let client = Client::connect(&target).await.unwrap();
    let data = b"hunter2".to_vec().into();
    let name = "db".parse().unwrap();
    let request = NewSecretObject { id: SecretObjectId(Id(7)), name, labels: Default::default(), data };
    assert!(
        !format!("{request:?}").contains("hunter2") && format!("{request:?}").contains("7 bytes"),
        "{request:?}"
    );
    let refusal = |error| match error {
        Error::Refused { problem } => problem,
        other => panic!("{other:?}"),
    };
    let secrets = client.secret_objects(SecretObjectKind::Secret);
    assert_eq!(refusal(secrets.create(request.clone()).await.unwrap_err()).code, Code::Unimplemented, "sent");
    let large = secrets.update("db", vec![0; 5 << 20].into(), None).await.unwrap_err();
    assert_eq!(refusal(large).violations.0[0].path, "data");
    let credentials = client.secret_objects(SecretObjectKind::Credential);
    let no_login = refusal(credentials.create(request).await.unwrap_err());
    assert_eq!((no_login.code, no_login.violations.0[0].path.as_str()), (Code::InvalidArgument, "data"));
    assert!(!format!("{no_login:?}").contains("hunter2"), "{no_login:?}");
}

#[tokio::test]
async fn not_found_and_denied_differ() {
    let gets =
        [Status::not_found("there is no service web"), Status::permission_denied("needs the role admin")];
    let manager = ScriptedApiServer::new(FakeScript { gets: gets.into(), ..FakeScript::default() });
    let (target, _serving) = manager.serve_socket();
    let client = Client::connect(&target).await.unwrap();
    assert!(client.services().get("web").await.unwrap_err().is_not_found());
    let denied = client.services().get("web").await.unwrap_err();
    assert!(matches!(&denied, Error::Denied { why, .. } if why == "needs the role admin"), "{denied:?}");
}

#[tokio::test]
async fn a_call_without_an_answer_ends_at_its_deadline() {
    let manager = ScriptedApiServer::default();
    let (target, _serving) = manager.serve_socket();
    let client = Client::connect(&target).await.unwrap();
    // Only now: with the clock paused from the start, the connection itself would time out. The deadline is before
    // the first keepalive, whose answer takes real time.
    tokio::time::pause();
    let within = Duration::from_secs(5);
    let call = |channel, request| async move { ClusterClient::new(channel).info(request).await };
    let error = client.unary_within(within, v1::InfoRequest {}, call).await.unwrap_err();
    assert!(matches!(&error, Error::NoAnswer { after, .. } if *after == within), "{error:?}");
}

#[tokio::test]
async fn all_pages_of_a_list_are_fetched() {
    let pages = [(vec!["a", "b"], "b"), (vec!["c"], "c"), (vec!["d"], "")];
    let pages = [pages.clone(), pages.clone(), pages].concat();
    let manager = ScriptedApiServer::new(FakeScript { pages: pages.into(), ..FakeScript::default() });
    let (target, _serving) = manager.serve_socket();
    let client = Client::connect(&target).await.unwrap();
    let names = client.services().list_as(|service| service.spec.unwrap().name).await.unwrap();
    assert_eq!(names, ["a", "b", "c", "d"]);
    assert_eq!(manager.requests(), ["", "b", "c"]);
    assert_eq!(client.services().summaries_as(|summary| summary.name).await.unwrap(), names);
    assert_eq!(client.services().names().await.unwrap(), names);
}

#[tokio::test]
async fn a_list_that_does_not_advance_ends() {
    let pages = [(vec!["a"], "a"), (vec!["a"], "a")];
    let manager = ScriptedApiServer::new(FakeScript { pages: pages.into(), ..FakeScript::default() });
    let (target, _serving) = manager.serve_socket();
    let client = Client::connect(&target).await.unwrap();
    assert_eq!(client.services().list().await.unwrap().len(), 2);
}

#[tokio::test]
async fn rollback_with_lost_answer_is_not_repeated() {
    let lost = Err(Status::unavailable("the manager stops"));
    let writes = [lost, Ok(service("web")), Ok(service("web"))];
    let manager = ScriptedApiServer::new(FakeScript { writes: writes.into(), ..FakeScript::default() });
    let (target, _serving) = manager.serve_socket();
    let client = Client::connect(&target).await.unwrap();
    client.services().rollback("web", None, None).await.unwrap();
    client.services().rollback("web", Some(3), None).await.unwrap();
    assert_eq!(manager.requests(), ["web", "web Some(0) None", "web Some(0) None", "web None Some(3)"]);
}

#[tokio::test]
async fn token_secret_is_not_sent() {
    let digest = CaDigest::from_bytes([5; 32]);
    let info = v1::InfoResponse { ca_digest: digest.to_string(), ..Default::default() };
    let manager = ScriptedApiServer::new(FakeScript { info: Some(info), ..FakeScript::default() });
    let (target, _serving) = manager.serve_socket();
    let client = Client::connect(&target).await.unwrap();
    let ttl = Some(std::time::Duration::from_micros(1));
    let labels = std::collections::BTreeMap::from([("zone".to_owned(), "b".to_owned())]);
    let request = TokenOptions { role: NodeRole::Worker, ttl, max_uses: Some(1), labels };
    let id = TokenId(Id(9));
    let made = client.tokens().create(id, &request).await.unwrap();
    assert_eq!((&made.token.id, made.secret.authority()), (&id.to_string(), digest));
    let sent = manager.0.lock().unwrap().tokens.remove(0);
    assert_eq!(sent.hash[..], made.secret.hash().0);
    assert_eq!((sent.ttl_ms, sent.max_uses), (1, Some(1)), "a short lifetime is not unlimited");
    assert_eq!(sent.labels, request.labels);
    assert!(!format!("{made:?}").contains(&made.secret.reveal()[71..]));
}

#[tokio::test]
async fn lines_arrive_until_they_end_or_are_refused() {
    let entry = |slot| v1::LogEntry { slot, ..Default::default() };
    let refused = Status::from(Problem::new(Code::FailedPrecondition, "GONE", "the task is gone"));
    let logs = [vec![Ok(entry(1)), Ok(entry(2))], vec![Ok(entry(3)), Err(refused)]];
    let manager = ScriptedApiServer::new(FakeScript { logs: logs.into(), ..FakeScript::default() });
    let (target, _serving) = manager.serve_socket();
    let client = Client::connect(&target).await.unwrap();
    let mut entries =
        client.logs().read(LogTarget::Task("web.1".into()), LogOptions::default()).await.unwrap();
    assert_eq!(entries.next().await.unwrap(), Some(entry(1)));
    assert_eq!(entries.next().await.unwrap(), Some(entry(2)));
    assert_eq!(entries.next().await.unwrap(), None);
    let request = LogOptions {
        follow: true,
        tail: Some(7),
        since: Some(warren_types::Timestamp(8)),
        ..LogOptions::default()
    };
    let mut entries = client.logs().read(LogTarget::Service("web".into()), request).await.unwrap();
    assert_eq!(entries.next().await.unwrap(), Some(entry(3)));
    let error = entries.next().await.unwrap_err();
    assert!(matches!(&error, Error::Refused { problem } if problem.reason == "GONE"), "{error:?}");
    let expected = v1::ReadLogsRequest {
        service: "web".into(),
        follow: true,
        tail: Some(7),
        since: Some(8),
        ..Default::default()
    };
    assert_eq!(manager.requests()[1], format!("{expected:?}"));
}
