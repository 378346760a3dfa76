//! Events: selection, order, and what is not kept any more.

use tonic::Code;
use warren_client::{Client, Error, EventMessage, EventQuery, EventStart};
use warren_manager::ManagerTuning;
use warren_proto::status::EVENTS_EXPIRED;
use warren_proto::v1;
use warren_store::raft::open::ReplicaTuning;
use warren_store::raft::snapshot::SnapshotThresholds;
use warren_testkit::wait::eventually_async;

use crate::fixture::{ManagerFixture, WAIT_DEADLINE, new_id, spec};
use crate::worker::{ScriptedWorker, report};

pub async fn listed(
    client: &Client,
    query: EventQuery,
) -> Result<(v1::EventsBegin, Vec<(u64, v1::ClusterEvent)>), Error> {
    let (mut begin, mut found) = (v1::EventsBegin::default(), Vec::new());
    let mut events = client.cluster().events(query);
    while let Some(message) = events.next().await? {
        match message {
            EventMessage::Begin(first) => begin = first,
            EventMessage::Event(position, event) => found.push((position.index, *event)),
        }
    }
    Ok((begin, found))
}

pub fn of(kind: &str, reference: &str) -> EventQuery {
    EventQuery { kind: kind.into(), reference: reference.into(), ..EventQuery::default() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_are_selected_by_object_and_begin() {
    let world = ManagerFixture::new().await;
    let client = world.local().await;
    client.services().create(new_id(), &spec("web", 1)).await.unwrap();
    client.services().create(new_id(), &spec("api", 0)).await.unwrap();
    let mut worker = ScriptedWorker::dial(&world).await;
    worker.has("a task", |tasks| tasks.len() == 1).await;
    let id = worker.tasks.keys().next().unwrap().clone();
    worker.report(vec![report(&id, v1::TaskState::Running)]).await;
    let exit = Some(v1::TaskExit { code: 7, out_of_memory: false });
    let failed = v1::TaskReport { exit, reason: "exited".into(), ..report(&id, v1::TaskState::Failed) };
    worker.report(vec![failed]).await;
    let is_told = |events: &[(u64, v1::ClusterEvent)]| events.iter().any(|(_, event)| event.exit.is_some());
    let (begin, all) = eventually_async(WAIT_DEADLINE, "the event of the report", || async {
        let answer = listed(&client, of("", "")).await.map_err(|error| error.to_string())?;
        if is_told(&answer.1) { Ok(answer) } else { Err(format!("{:?}", answer.1)) }
    })
    .await;
    assert!(!begin.truncated, "{begin:?}");
    let first = all.iter().take_while(|(index, _)| *index == all[0].0);
    assert!(first.map(|(_, event)| &event.kind).eq(["network", "cluster"]), "from the beginning: {all:?}");
    let (_, web) = listed(&client, of("service", "web")).await.unwrap();
    assert!(web.iter().all(|(_, event)| event.name == "web" || event.service_name == "web"), "{web:?}");
    let ended = web.iter().find(|(_, event)| event.exit.is_some()).unwrap();
    assert_eq!((ended.1.name.as_str(), ended.1.exit, ended.1.reason.as_str()), ("web.1", exit, "exited"));
    let (_, api) = listed(&client, of("", "api")).await.unwrap();
    assert_eq!(api.len(), 1);
    let start = EventStart::After { index: ended.0 - 1, number: None };
    let (_, rest) = listed(&client, EventQuery { start, ..EventQuery::default() }).await.unwrap();
    assert_eq!(rest[0], *ended);
    let start = EventStart::Since(ended.1.at);
    let (_, recent) = listed(&client, EventQuery { start, ..EventQuery::default() }).await.unwrap();
    assert!(recent.contains(ended) && recent.iter().all(|(_, event)| event.at >= ended.1.at));
    let Err(Error::Refused { problem }) = listed(&client, of("pod", "web")).await else { panic!() };
    assert_eq!(problem.code, Code::InvalidArgument);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_before_a_snapshot_are_refused_and_a_later_begin_is_told() {
    let snapshot_thresholds = SnapshotThresholds { bytes: 1 << 20, entries: 5 };
    let replica = ReplicaTuning { snapshot_thresholds, kept_entries: 2, history_changes: 1 << 16 };
    let mut world = ManagerFixture::tuned(ManagerTuning { replica, ..ManagerTuning::default() }).await;
    for number in 0..20 {
        let created = world.local().await.services().create(new_id(), &spec(&format!("s{number}"), 0)).await;
        created.unwrap();
    }
    world.stop().await;
    world.start(false).await.unwrap();
    let client = world.local().await;
    let (begin, found) = listed(&client, EventQuery::default()).await.unwrap();
    assert!(begin.truncated && begin.oldest_index > 1 && begin.oldest_at > 0, "{begin:?}");
    assert!(found.iter().all(|(index, _)| *index > begin.oldest_index));
    let after = |index| {
        let start = EventStart::After { index, number: None };
        listed(&client, EventQuery { start, ..EventQuery::default() })
    };
    assert_eq!(after(begin.oldest_index).await.unwrap().1, found);
    for index in [1, u64::MAX / 2] {
        let Err(Error::Refused { problem }) = after(index).await else { panic!("{index}") };
        assert_eq!((problem.code, problem.reason.as_str()), (Code::OutOfRange, EVENTS_EXPIRED), "{problem}");
    }
    let oldest = begin.oldest_index.to_string();
    let Err(error) = after(1).await else { panic!() };
    assert!(error.to_string().ends_with(&format!("give --since {oldest}")), "{error}");
}
