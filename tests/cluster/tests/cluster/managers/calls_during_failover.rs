//! API calls while leaders are stopped: each kind is answered, by any manager that can.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rand::RngExt;
use warren_client::{
    Change, Client, ClientTarget, Error, NewSecretObject, NewVolume, NodeChange, TaskFilter, TokenOptions,
    VolumeListOptions,
};
use warren_testkit::soak;
use warren_testkit::wait::eventually_async;
use warren_types::{Id, NodeRole, SecretObjectId, SecretObjectKind, TokenId, VolumeId};

use super::group::ManagerGroup;
use crate::fixture::{WAIT_DEADLINE, new_id, spec};

/// Concurrent callers.
const CALLERS: usize = 4;
/// The longest time of a call while a majority answers: an election on a busy machine, plus the time until a
/// manager reports that it has no leader.
const LONGEST: Duration = Duration::from_secs(15);

/// The result of one call: its kind, its duration, and its error.
type Called = (&'static str, Duration, Option<String>);

/// A client that opens a new connection for each call, as the CLI does.
struct CallLoop {
    target: ClientTarget,
    called: Vec<Called>,
}

impl CallLoop {
    async fn call<T, Answer>(&mut self, kind: &'static str, call: impl FnOnce(Client) -> Answer) -> Option<T>
    where
        Answer: Future<Output = Result<T, Error>>,
    {
        let begun = Instant::now();
        let answer = match Client::connect(&self.target).await {
            Ok(client) => call(client).await,
            Err(error) => Err(error),
        };
        let failure = answer.as_ref().err().map(|error| format!("{error:?}"));
        self.called.push((kind, begun.elapsed(), failure));
        answer.ok()
    }

    /// One call of every kind, on objects called `name`.
    async fn run(&mut self, name: &str) {
        self.services(name).await;
        self.secrets(name).await;
        self.others(name).await;
    }

    async fn services(&mut self, name: &str) {
        let (id, made) = (new_id(), spec(name, 0));
        self.call("service create", |client| async move { client.services().create(id, &made).await }).await;
        self.call("service get", |client| async move { client.services().get(name).await }).await;
        self.call("service list", |client| async move { client.services().list().await }).await;
        self.call("service scale", |client| async move { client.services().scale(name, 1, None).await })
            .await;
        let mut changed = spec(name, 0);
        changed.task.image = "web:2".parse().unwrap();
        let update =
            |client: Client| async move { client.services().update(name, &changed, None, false).await };
        self.call("service update", update).await;
        let rollback = |client: Client| async move { client.services().rollback(name, Some(1), None).await };
        self.call("service rollback", rollback).await;
        self.call("service history", |client| async move { client.services().history(name).await }).await;
        self.call("task list", |client| async move { client.tasks().list(TaskFilter::default()).await })
            .await;
        let watch = |client: Client| async move {
            match client.cluster().watch("").next().await? {
                Change::Resync(_) => Ok::<(), Error>(()),
                other => panic!("a watch begins with a resync, not {other:?}"),
            }
        };
        self.call("watch", watch).await;
        self.call(
            "service remove",
            |client| async move { client.services().remove(name, None, false).await },
        )
        .await;
    }

    async fn secrets(&mut self, name: &str) {
        let new_object = NewSecretObject {
            id: SecretObjectId(Id(rand::rng().random())),
            name: name.parse().unwrap(),
            labels: BTreeMap::new(),
            data: b"one".to_vec().into(),
        };
        let kind = SecretObjectKind::Config;
        self.call(
            "config create",
            |client| async move { client.secret_objects(kind).create(new_object).await },
        )
        .await;
        let made = self
            .call("config get", |client| async move { client.secret_objects(kind).get(name).await })
            .await;
        let version = made.map(|made| made.version);
        let data = b"two".to_vec().into();
        let update =
            |client: Client| async move { client.secret_objects(kind).update(name, data, version).await };
        self.call("config update", update).await;
        self.call("config read", |client| async move { client.secret_objects(kind).read(name, None).await })
            .await;
        self.call("config list", |client| async move { client.secret_objects(kind).list().await }).await;
        self.call("config remove", |client| async move { client.secret_objects(kind).remove(name).await })
            .await;
    }

    async fn others(&mut self, name: &str) {
        let new_object = NewVolume {
            id: VolumeId(Id(rand::rng().random())),
            name: name.parse().unwrap(),
            driver: String::new(),
            options: BTreeMap::new(),
            labels: BTreeMap::new(),
            node: String::new(),
            reuse: false,
        };
        self.call("volume create", |client| async move { client.volumes().create(new_object).await }).await;
        self.call("volume list", |client| async move {
            client.volumes().list(VolumeListOptions::default()).await
        })
        .await;
        self.call("volume remove", |client| async move { client.volumes().remove(name, false).await }).await;
        let id = TokenId(Id(rand::rng().random()));
        let new_object =
            TokenOptions { role: NodeRole::Worker, ttl: None, max_uses: None, labels: Default::default() };
        self.call("token create", |client| async move { client.tokens().create(id, &new_object).await })
            .await;
        self.call("token list", |client| async move { client.tokens().list().await }).await;
        let id = id.to_string();
        self.call("token remove", |client| async move { client.tokens().remove(&id).await }).await;
        self.call("node list", |client| async move { client.nodes().list().await }).await;
        let change =
            NodeChange { label_add: [("by".to_owned(), name.to_owned())].into(), ..Default::default() };
        self.call("node update", |client| async move { client.nodes().update("n1", &change).await }).await;
        self.call("cluster info", |client| async move { client.cluster().info().await }).await;
        self.call("manager list", |client| async move { client.managers().list().await }).await;
    }
}

/// The number of stopped leaders. There are three ways to stop one.
fn rounds() -> usize {
    soak::count(3, 30)
}

/// Runs through all kinds of calls between two stops: each caller is inside of one when the leader stops.
fn runs_per_round() -> usize {
    soak::count(2 * CALLERS, 3 * CALLERS)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_kind_of_call_is_answered_while_leaders_end() {
    let mut group = ManagerGroup::of_three().await;
    group.node("n1").await;
    let addresses = group.hosts.iter().map(|host| host.advertised()).collect();
    let target = ClientTarget::Tcp { addresses, identity: group.identity() };
    let (over, runs) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let callers: Vec<_> = (0..CALLERS)
        .map(|number| {
            let (over, runs) = (over.clone(), runs.clone());
            let mut caller = CallLoop { target: target.clone(), called: Vec::new() };
            tokio::spawn(async move {
                for run in 0.. {
                    if over.load(Ordering::Relaxed) {
                        break;
                    }
                    caller.run(&format!("c{number}-{run}")).await;
                    runs.fetch_add(1, Ordering::Relaxed);
                }
                caller.called
            })
        })
        .collect();
    for round in 0..rounds() {
        let leader = group.leader().await;
        match round % 3 {
            0 => group.hosts[leader].drop_manager().await,
            1 => group.hosts[leader].stop().await,
            _ => {
                let other = group.follower().await;
                group.hosts[other].drop_manager().await;
                group.hosts[other].start(false).await.unwrap();
                let request = warren_proto::v1::TransferLeadershipRequest::default();
                // Another one may lead by now.
                let _ = group.managers(leader).await.transfer_leadership(request).await;
            }
        }
        let expected = (round + 1) * runs_per_round();
        eventually_async(4 * WAIT_DEADLINE, "calls to go on", || async {
            let found = runs.load(Ordering::Relaxed);
            if found >= expected { Ok(()) } else { Err(format!("{found} of {expected} runs")) }
        })
        .await;
        if !group.hosts[leader].is_running() {
            group.hosts[leader].start(false).await.unwrap();
        }
        // The next stopped manager must not break the majority.
        group.all_vote().await;
    }
    over.store(true, Ordering::Relaxed);
    let mut called = Vec::new();
    for caller in callers {
        called.extend(caller.await.unwrap());
    }
    let longest = called.iter().max_by_key(|(_, took, _)| *took).unwrap();
    println!("{} calls, longest {} {:?}", called.len(), longest.0, longest.1);
    let failed: Vec<&Called> = called.iter().filter(|(_, _, failure)| failure.is_some()).collect();
    assert!(failed.is_empty(), "{} of {} calls failed: {failed:#?}", failed.len(), called.len());
    assert!(longest.1 < LONGEST, "{longest:?}");
}
