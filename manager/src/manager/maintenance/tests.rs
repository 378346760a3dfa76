use std::time::SystemTime;

use tokio::time::timeout;
use warren_control::ManualClock;
use warren_core::{FEATURE_LEVEL, State};
use warren_security::Credentials;
use warren_store::{DriverRequest, NoTransport, Publication, PublishedState, ReplicaRole};
use warren_types::{ClusterId, ClusterSettingsChange, Id, Timestamp};

use super::*;

const DAY: Duration = Duration::from_secs(24 * 3600);
const FOLLOWER: ReplicaRole = ReplicaRole { is_leader: false, leader_id: Some(2), term: 1, can_plan: false };
const NO_LEADER: ReplicaRole = ReplicaRole { leader_id: None, ..FOLLOWER };

#[tokio::test]
async fn certificates_from_the_future_are_reissued_after_the_wall_clock_was_set_back() {
    let dir = tempfile::tempdir().unwrap();
    let (now, ahead) = (SystemTime::now(), 20 * DAY);
    let keys = Arc::new(ManagerKeys::open(dir.path(), true, now + ahead).unwrap());
    let since = (now + ahead).duration_since(UNIX_EPOCH).unwrap();
    let clock = Arc::new(ManualClock::new(u64::try_from(since.as_millis()).unwrap()));
    clock.set_back(ahead);
    let (store, _publisher, _inbox) = Store::new(PublishedState::initial(State::new()), 1, 1);
    let shutdown = Shutdown::new();
    let background_tasks = BackgroundTasks::new(shutdown.clone(), clock.clone(), Arc::new(|| 0));
    let mut admin = keys.admin();
    renew_certificates(&keys, clock, &store, &background_tasks, DAY);
    timeout(Duration::from_secs(60), admin.changed()).await.unwrap().unwrap();
    shutdown.stop(Duration::from_secs(60)).await.unwrap();
    for file in ["manager.pem", "admin.pem"] {
        let issued = Credentials::load(&dir.path().join(file)).unwrap();
        assert!(issued.is_valid(now) && issued.issued_at() <= now, "{file}");
    }
}

/// The state of a cluster with this lifetime of certificates.
fn state(lifetime: Duration) -> State {
    let mut state = State::new();
    let (at, ranges) = (Timestamp(1), vec!["10.0.0.0/8".parse().unwrap()]);
    state.apply(
        1,
        1,
        &Command::CreateCluster { id: ClusterId(Id(1)), ranges, feature_level: FEATURE_LEVEL, at },
    );
    let change = ClusterSettingsChange { node_certificate_lifetime: Some(lifetime), ..Default::default() };
    state.apply(1, 2, &Command::UpdateCluster { version: None, change, at });
    state
}

#[tokio::test]
async fn lifetime_of_certificates_is_taken_from_the_newest_state_alone() {
    let open = |state: State, role: ReplicaRole| {
        let first = PublishedState { role, ..PublishedState::initial(state) };
        Store::of_group(first, 1, Arc::new(NoTransport), 4, 4)
    };
    let (store, _publisher, mut inbox) = open(state(DAY), NO_LEADER);
    assert_eq!(certificate_lifetime(&store).await, None);
    assert!(inbox.requests.try_recv().is_err());

    // What a snapshot has, or nothing, and the log something newer.
    for earlier in [state(90 * DAY), State::new()] {
        let (store, publisher, mut inbox) = open(earlier, FOLLOWER);
        let newest = PublishedState { role: FOLLOWER, ..PublishedState::initial(state(365 * DAY)) };
        let driver = tokio::spawn(async move {
            let Some(DriverRequest::Read(reply)) = inbox.requests.recv().await else { panic!("it reads") };
            publisher.publish(newest, Publication::default());
            reply.send(()).unwrap();
        });
        assert_eq!(certificate_lifetime(&store).await, Some(365 * DAY));
        driver.await.unwrap();
    }
}
