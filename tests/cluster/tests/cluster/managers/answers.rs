//! The answer to a write shows the result of that write, even with concurrent writes through other managers.

mod client;

use std::collections::BTreeMap;

use futures::future::{join, join_all};
use tokio::time::timeout;
use tonic::{Code, Status};
use warren_proto::Problem;
use warren_proto::v1;
use warren_testkit::soak;

use self::client::{AcknowledgedWrite, AnsweredObject, ConcurrentClient, RegisterKind};
use super::group::ManagerGroup;
use crate::fixture::{WAIT_DEADLINE, new_id};

const CLIENTS: usize = 16;
/// Objects of each kind. Few, so that their writers compete.
const OBJECTS: usize = 2;

/// In each round every client updates one service and one config: 1,024 updates.
const UPDATE_ROUNDS: usize = 32;

/// Rounds of removals.
fn rounds() -> usize {
    soak::count(10, 100)
}

/// Three managers, and clients of all of them.
async fn group_with_clients() -> (ManagerGroup, Vec<ConcurrentClient>) {
    let group = ManagerGroup::of_three().await;
    let clients = join_all((0..CLIENTS).map(|number| ConcurrentClient::at(&group, number))).await;
    (group, clients)
}

/// Names of objects; each client uses one of each kind.
fn name(client: usize) -> String {
    format!("register-{}", client % OBJECTS)
}

/// The findings in all answers.
#[derive(Debug, Default, PartialEq, Eq)]
struct AnswerFindings {
    updates: usize,
    /// Answers that do not show the caller's write.
    foreign_values: usize,
    /// Answers with a version that another write was answered with as well.
    repeated_versions: usize,
    /// The same for the numbers of configs.
    repeated_numbers: usize,
    /// Numbers that are missing between the first and the last.
    missing_numbers: usize,
    /// Writes with a lower version than another one that was answered before they were called.
    late_versions: usize,
    stale_sets: usize,
    accepted_stale_sets: usize,
}

impl AnswerFindings {
    fn of(writes: &[AcknowledgedWrite]) -> Self {
        let foreign_values = writes.iter().filter(|write| write.answer.value != write.value).count();
        let mut found = Self { updates: writes.len(), foreign_values, ..Self::default() };
        let mut objects: BTreeMap<(RegisterKind, &str), Vec<&AcknowledgedWrite>> = BTreeMap::new();
        for write in writes {
            objects.entry((write.kind, &write.name)).or_default().push(write);
        }
        objects.into_iter().for_each(|((kind, _), writes)| found.add(kind, writes));
        found
    }

    fn add(&mut self, kind: RegisterKind, mut writes: Vec<&AcknowledgedWrite>) {
        writes.sort_by_key(|write| write.answer.version);
        let pairs = || writes.windows(2).map(|pair| (pair[0], pair[1]));
        self.repeated_versions += pairs().filter(|(a, b)| a.answer.version == b.answer.version).count();
        // All writes with lower versions must have been called before this one was answered.
        let mut called = writes[0].called;
        for write in &writes {
            self.late_versions += usize::from(write.answered < called);
            called = called.max(write.called);
        }
        if kind == RegisterKind::Config {
            let steps = || pairs().map(|(a, b)| b.answer.number.wrapping_sub(a.answer.number));
            self.repeated_numbers += steps().filter(|step| *step == 0).count();
            self.missing_numbers += steps().filter(|step| *step > 1).count();
        }
    }
}

/// Whether a compare-and-set was refused because the object has another version.
fn is_conflict(status: &Status) -> bool {
    (status.code(), Problem::from(status).reason.as_str()) == (Code::Aborted, "VERSION_CONFLICT")
}

/// Repeats each overwritten write of a round with its own acknowledged version. Counts the attempts and those
/// that were accepted.
async fn stale_sets(
    clients: &[ConcurrentClient],
    writes: &[AcknowledgedWrite],
    first_value: u64,
) -> (usize, usize) {
    let newest = join_all(writes.iter().map(|write| clients[0].get(write.kind, &write.name))).await;
    let followed =
        writes.iter().zip(newest).filter(|(write, now)| now.as_ref().unwrap().value != write.value);
    let stale: Vec<&AcknowledgedWrite> = followed.map(|(write, _)| write).collect();
    let sets = stale.iter().zip(clients.iter().cycle()).zip(first_value..).map(|((write, client), value)| {
        client.update(write.kind, &write.name, Some(write.answer.version), value)
    });
    let mut accepted = 0;
    for set in join_all(sets).await {
        match set {
            Ok(_) => accepted += 1,
            Err(status) => assert!(is_conflict(&status), "{status:?}"),
        }
    }
    (stale.len(), accepted)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_updates_get_their_own_answer() {
    let (_group, clients) = group_with_clients().await;
    for (object, client) in clients.iter().enumerate().take(OBJECTS) {
        client.create(RegisterKind::Service, &name(object), 1).await.unwrap();
        client.create(RegisterKind::Config, &name(object), 1).await.unwrap();
    }
    // Every write has a unique value.
    let mut values = 2..;
    let (mut writes, mut stale, mut accepted) = (Vec::new(), 0, 0);
    for _ in 0..UPDATE_ROUNDS {
        let updates = clients.iter().enumerate().map(|(number, client)| {
            let (name, values) = (name(number), [values.next().unwrap(), values.next().unwrap()]);
            async move {
                let service = client.update(RegisterKind::Service, &name, None, values[0]);
                join(service, client.update(RegisterKind::Config, &name, None, values[1])).await
            }
        });
        let round = join_all(updates).await.into_iter().flat_map(|(service, config)| [service, config]);
        let round: Vec<AcknowledgedWrite> = round.map(Result::unwrap).collect();
        let (tried, passed) = stale_sets(&clients, &round, values.start).await;
        values.start += tried as u64;
        (stale, accepted) = (stale + tried, accepted + passed);
        writes.extend(round);
    }
    let found =
        AnswerFindings { stale_sets: stale, accepted_stale_sets: accepted, ..AnswerFindings::of(&writes) };
    let (updates, stale_sets) = (UPDATE_ROUNDS * CLIENTS * 2, UPDATE_ROUNDS * (CLIENTS - OBJECTS) * 2);
    assert_eq!(found, AnswerFindings { updates, stale_sets, ..AnswerFindings::default() });
}

/// Wrong answers to writes of an object that was removed meanwhile.
fn check_answers(
    updates: &[Result<AcknowledgedWrite, Status>],
    first: &AnsweredObject,
    removed: &AnsweredObject,
) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut newest = first;
    for update in updates {
        match update {
            Ok(write) => {
                if write.answer.value != write.value || write.answer.removing {
                    wrong.push(format!("an update to {} was answered with {:?}", write.value, write.answer));
                }
                newest = if write.answer.version > newest.version { &write.answer } else { newest };
            }
            Err(status) => {
                let reason = Problem::from(status).reason;
                if !["NOT_FOUND", "SERVICE_REMOVING"].contains(&reason.as_str()) {
                    wrong.push(format!("an update was refused: {status}, reason {reason:?}"));
                }
            }
        }
    }
    let same = (&newest.name, newest.value, newest.number) == (&removed.name, removed.value, removed.number);
    if !same {
        wrong.push(format!(
            "the answer to the removal is {removed:?}, although {newest:?} was acknowledged last"
        ));
    }
    wrong
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn updates_during_removal_get_a_definite_answer() {
    let (_group, clients) = group_with_clients().await;
    let mut wrong = Vec::new();
    let kinds = [RegisterKind::Service, RegisterKind::Config].into_iter().cycle();
    for (round, kind) in (0..rounds()).zip(kinds) {
        let (name, remover) = (format!("removed-{round}"), round % CLIENTS);
        let first = clients[0].create(kind, &name, 1).await.unwrap();
        let updates = clients.iter().zip(2..).map(|(client, value)| client.update(kind, &name, None, value));
        let (removed, updates) = join(clients[remover].remove(kind, &name), join_all(updates)).await;
        wrong.extend(check_answers(&updates, &first, &removed.unwrap()));
    }
    assert!(wrong.is_empty(), "{} answers are wrong:\n{}", wrong.len(), wrong.join("\n"));
}

/// Removes the object as soon as it exists.
async fn remove_concurrently<T>(remove: impl AsyncFn() -> Result<T, Status>) -> T {
    let removed = async {
        loop {
            match remove().await {
                Ok(removed) => break removed,
                Err(status) => assert_eq!(status.code(), Code::NotFound, "{status:?}"),
            }
        }
    };
    timeout(WAIT_DEADLINE, removed).await.expect("the object exists soon")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn create_answer_survives_immediate_removal() {
    let (_group, clients) = group_with_clients().await;
    let mut wrong = Vec::new();
    for round in 0..rounds() {
        let kind = if round % 2 == 0 { RegisterKind::Service } else { RegisterKind::Config };
        let pairs = clients.chunks(2).enumerate().map(|(pair, both)| {
            let name = format!("short-lived-{round}-{pair}");
            async move {
                let removed = remove_concurrently(async || both[0].remove(kind, &name).await);
                (name.clone(), join(both[1].create(kind, &name, 7), removed).await)
            }
        });
        for (name, (created, removed)) in join_all(pairs).await {
            let is_whole = |shown: &AnsweredObject| (shown.value, &shown.name) == (7, &name);
            match created {
                Ok(created) if is_whole(&created) && !created.removing => {}
                Ok(other) => {
                    wrong.push(format!("the creation of {kind:?} {name} was answered with {other:?}"))
                }
                Err(status) => wrong.push(format!("the creation of {kind:?} {name} was refused: {status}")),
            }
            if !is_whole(&removed) || removed.removing != (kind == RegisterKind::Service) {
                wrong.push(format!("the removal of {kind:?} {name} was answered with {removed:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{} answers are wrong:\n{}", wrong.len(), wrong.join("\n"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn volume_create_answer_survives_immediate_removal() {
    let (_group, clients) = group_with_clients().await;
    let mut wrong = Vec::new();
    for round in 0..rounds() / 2 {
        let pairs = clients.chunks(2).enumerate().map(|(pair, both)| async move {
            let (name, id) = (format!("volume-{round}-{pair}"), new_id().to_string());
            let request = v1::CreateVolumeRequest { id, name: name.clone(), ..Default::default() };
            let removal = v1::RemoveVolumeRequest { reference: name.clone(), ..Default::default() };
            let removed = remove_concurrently(async || both[0].volumes.clone().remove(removal.clone()).await);
            let mut volumes = both[1].volumes.clone();
            (name, join(volumes.create(request), removed).await)
        });
        for (name, (created, removed)) in join_all(pairs).await {
            let created = created.map(|volume| volume.into_inner().name);
            if !created.as_ref().is_ok_and(|shown| *shown == name) || removed.get_ref().name != name {
                wrong.push(format!("{name}: created {created:?}, removed {:?}", removed.get_ref()));
            }
        }
    }
    assert!(wrong.is_empty(), "{} answers are wrong:\n{}", wrong.len(), wrong.join("\n"));
}

/// The same request from every client.
async fn create_everywhere(
    clients: &[ConcurrentClient],
    id: &str,
    kind: RegisterKind,
) -> Vec<Result<AnsweredObject, Status>> {
    join_all(clients.iter().map(|client| client.create_as(id.to_owned(), kind, "repeated", 1))).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn repeated_create_is_never_answered_with_a_later_write() {
    let (_group, clients) = group_with_clients().await;
    for kind in [RegisterKind::Service, RegisterKind::Config] {
        let id = new_id().to_string();
        let first = clients[0].create_as(id.clone(), kind, "repeated", 1).await.unwrap();
        for shown in create_everywhere(&clients, &id, kind).await {
            assert_eq!(shown.unwrap(), first, "the object did not change");
        }
        clients[1].update(kind, "repeated", None, 2).await.unwrap();
        for shown in create_everywhere(&clients, &id, kind).await {
            match shown {
                Ok(shown) => assert_eq!(shown, first),
                Err(status) => assert_ne!(Problem::from(&status).reason, "", "{status:?}"),
            }
        }
    }
}
