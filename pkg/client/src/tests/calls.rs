//! Unary calls: retries, deadlines, errors, pages.

use tonic::{Code, Status};
use warren_proto::Problem;
use warren_types::{Violation, Violations};

use super::fake::{Manager, Script};
use crate::{Client, Error};

#[tokio::test]
async fn a_manager_that_is_unavailable_for_a_moment_is_asked_again() {
    let gone = || Status::unavailable("no leader yet");
    let manager = Manager::new(Script { gets: [gone(), gone()].into(), ..Script::default() });
    let (target, _serving) = manager.serve_socket();
    let client = Client::connect(&target).await.unwrap();
    let found = client.services().get("web").await.unwrap();
    assert_eq!(found.spec.unwrap().name, "web");
    assert_eq!(manager.asked(), ["web", "web", "web"]);
}

#[tokio::test]
async fn retries_end_and_the_managers_words_stay() {
    let problem = Problem::new(Code::Unavailable, "NO_LEADER", "the managers have no leader");
    let gone = std::iter::repeat_with(|| Status::from(problem.clone())).take(100);
    let manager = Manager::new(Script { gets: gone.collect(), ..Script::default() });
    let (target, _serving) = manager.serve_socket();
    let client = Client::connect(&target).await.unwrap();
    let error = client.services().get("web").await.unwrap_err();
    assert!(matches!(&error, Error::Refused { problem: found } if *found == problem), "{error:?}");
    assert_eq!(manager.asked().len(), 6);
}

#[tokio::test]
async fn a_refusal_arrives_with_its_fields_and_is_not_repeated() {
    let mut violations = Violations::default();
    violations.add("spec.task.limits.memory", "1MiB is below the runtime's minimum of 6MiB");
    violations.0.push(Violation::new("spec.name", "is missing"));
    let problem = Problem::from(violations);
    let manager = Manager::new(Script { gets: [problem.clone().into()].into(), ..Script::default() });
    let (target, _serving) = manager.serve_socket();
    let client = Client::connect(&target).await.unwrap();
    match client.services().get("web").await.unwrap_err() {
        Error::Refused { problem: found } => assert_eq!(found, problem),
        other => panic!("{other:?}"),
    }
    assert_eq!(manager.asked().len(), 1);
}

#[tokio::test]
async fn what_is_not_there_and_what_is_not_allowed_are_told_apart() {
    let gets =
        [Status::not_found("there is no service web"), Status::permission_denied("needs the role Admin")];
    let manager = Manager::new(Script { gets: gets.into(), ..Script::default() });
    let (target, _serving) = manager.serve_socket();
    let client = Client::connect(&target).await.unwrap();
    assert!(client.services().get("web").await.unwrap_err().is_not_found());
    let denied = client.services().get("web").await.unwrap_err();
    assert!(matches!(&denied, Error::Denied { why, .. } if why == "needs the role Admin"), "{denied:?}");
}

#[tokio::test]
async fn a_call_without_an_answer_ends_at_its_deadline() {
    let manager = Manager::default();
    let (target, _serving) = manager.serve_socket();
    let client = Client::connect(&target).await.unwrap();
    // Only now: with the clock paused from the start, the connection itself would time out.
    tokio::time::pause();
    let error = client.cluster().info().await.unwrap_err();
    assert!(matches!(&error, Error::NoAnswer { .. }), "{error:?}");
}

#[tokio::test]
async fn all_pages_of_a_list_are_fetched() {
    let pages = [(vec!["a", "b"], "b"), (vec!["c"], "c"), (vec!["d"], "")];
    let manager = Manager::new(Script { pages: pages.into(), ..Script::default() });
    let (target, _serving) = manager.serve_socket();
    let client = Client::connect(&target).await.unwrap();
    let names = client.services().list().await.unwrap().into_iter().map(|s| s.spec.unwrap().name);
    assert_eq!(names.collect::<Vec<_>>(), ["a", "b", "c", "d"]);
    assert_eq!(manager.asked(), ["", "b", "c"]);
}

#[tokio::test]
async fn a_list_that_does_not_advance_ends() {
    let pages = [(vec!["a"], "a"), (vec!["a"], "a")];
    let manager = Manager::new(Script { pages: pages.into(), ..Script::default() });
    let (target, _serving) = manager.serve_socket();
    let client = Client::connect(&target).await.unwrap();
    assert_eq!(client.services().list().await.unwrap().len(), 2);
}
