//! What a scrape shows, and each probe failing.

use std::sync::Arc;

use tokio::sync::mpsc;
use warren_consensus::{ConfState, Durability, Peer, Position};
use warren_control::{ManualClock, Shutdown};
use warren_core::{Command, Digest, State};
use warren_telemetry::Telemetry;
use warren_types::{ClusterId, Id, Timestamp};

use super::*;
use crate::store::{Held, Inbox, LogCost, Proposal, Published, Publisher, Role, Written};

struct World {
    store: Store,
    publisher: Publisher,
    inbox: Inbox,
    loops: Loops,
    shutdown: Shutdown,
    clock: Arc<ManualClock>,
    metrics: Metrics,
    telemetry: Telemetry,
    agreement: Agreement,
}

const LEADER: Role = Role { leader: true, leader_id: Some(1), term: 3, may_plan: true };

fn world() -> World {
    let (store, publisher, inbox) = Store::new(Published::first(State::new()), 1, 1);
    let (clock, shutdown) = (Arc::new(ManualClock::new(1_000)), Shutdown::new());
    let loops = Loops::new(shutdown.clone(), clock.clone(), Arc::new(|| 0));
    let (metrics, telemetry, agreement) = (Metrics::default(), Telemetry::of(&[]), Agreement::default());
    let sources = Sources {
        store: store.clone(),
        registry: Registry::default(),
        loops: loops.clone(),
        clock: clock.clone(),
        dir: "/".into(),
        compared: (1, agreement.clone()),
    };
    telemetry.add("manager", part(&metrics, &sources));
    World { store, publisher, inbox, loops, shutdown, clock, metrics, telemetry, agreement }
}

impl World {
    fn publish(&self, role: Role, held: Option<&str>) {
        let held = held.map(|why| Arc::new(Held { since: Timestamp(0), why: why.into(), full: true }));
        let log = LogCost { writes: 4, bytes: 5000 };
        let members = ConfState { voters: vec![1, 2, 3], learners: vec![4], ..ConfState::default() };
        let members = Arc::new(members);
        let published = Published { index: 7, role, held, log, members, ..Published::first(state()) };
        self.publisher.publish(published, Vec::new());
    }

    /// The sweep has begun a run, and will not begin another.
    async fn sweep(&self) {
        let (ran, mut runs) = mpsc::unbounded_channel();
        self.loops.spawn(SWEEP_LOOP, Duration::from_secs(3600), move || {
            ran.send(()).unwrap();
            std::future::ready(Ok::<(), std::io::Error>(()))
        });
        runs.recv().await.unwrap();
    }

    fn shows(&self, wanted: &[&str]) {
        let text = self.telemetry.metrics().unwrap();
        for line in wanted {
            assert!(text.lines().any(|found| found == *line), "{line} is not in\n{text}");
        }
    }
}

/// A cluster without anything in it.
fn state() -> State {
    let mut state = State::new();
    let (id, ranges) = (ClusterId(Id(1)), vec!["10.210.0.0/16".parse().unwrap()]);
    state.apply(3, 7, &Command::CreateCluster { id, ranges, level: warren_core::LEVEL, at: Timestamp(1) });
    state
}

#[tokio::test]
async fn a_manager_is_ready_when_it_leads_and_can_write() {
    let world = world();
    assert_eq!(world.telemetry.unready().await, ["manager: leader: this manager knows of none"]);
    world.publish(LEADER, None);
    assert!(world.telemetry.unready().await.is_empty());
    world.publish(LEADER, Some("the disk of this manager is full"));
    assert_eq!(world.telemetry.unready().await, ["manager: log: the disk of this manager is full"]);
    world.publish(Role { may_plan: false, ..LEADER }, None);
    assert_eq!(world.telemetry.unready().await, ["manager: leader: this manager knows of none"]);
}

#[tokio::test]
async fn a_manager_that_follows_is_ready_while_it_hears_the_leader() {
    let world = world();
    let follows = Role { leader: false, may_plan: false, leader_id: Some(2), ..LEADER };
    world.publisher.heard_leader();
    world.publish(follows, None);
    assert!(world.telemetry.unready().await.is_empty());
    world.publish(Role { leader_id: None, ..follows }, None);
    assert_eq!(world.telemetry.unready().await, ["manager: leader: this manager knows of none"]);
}

#[tokio::test]
async fn a_manager_works_while_its_loops_go_round() {
    let world = world();
    assert_eq!(world.telemetry.unhealthy().await, ["manager: sweep: the loop does not run"]);
    world.sweep().await;
    world.publisher.went_round();
    assert!(world.telemetry.unhealthy().await.is_empty());
    world.clock.advance(SWEEP_PATIENCE + Duration::from_secs(1));
    assert_eq!(world.telemetry.unhealthy().await, ["manager: sweep: the loop began its last run 121 s ago"]);
    world.shutdown.stop(Duration::from_secs(5)).await.unwrap();
}

#[tokio::test]
async fn manager_that_knows_of_lost_entries_is_unhealthy_and_shows_it() {
    let world = world();
    world.sweep().await;
    world.publisher.went_round();
    world.publish(LEADER, None);
    assert!(world.telemetry.unhealthy().await.is_empty());
    world.shows(&["warren_raft_regressed 0.0", "warren_raft_acknowledged_lost 0.0"]);
    let durability = Durability { regressed: Some(Position { term: 3, index: 9 }), lost: Some(8) };
    world.publisher.publish(Published { durability, ..Published::first(state()) }, Vec::new());
    let [wrong] = world.telemetry.unhealthy().await.try_into().unwrap();
    assert!(wrong.starts_with("manager: durability: acknowledged writes up to entry 8 may"), "{wrong}");
    world.shows(&["warren_raft_regressed 1.0", "warren_raft_acknowledged_lost 1.0"]);
    world.shutdown.stop(Duration::from_secs(5)).await.unwrap();
}

#[tokio::test]
async fn a_manager_whose_state_is_not_that_of_the_others_does_not_work() {
    let world = world();
    world.sweep().await;
    world.publisher.went_round();
    let take = |told: [(MemberId, u64); 3]| {
        let digest = |(id, value)| (id, vec![Digest { index: 7, value }]);
        world.agreement.take(&told.map(digest).into(), Some(1), &[1, 2, 3].into());
    };
    take([(1, 5), (2, 5), (3, 6)]);
    assert!(world.telemetry.unhealthy().await.is_empty(), "another one is wrong");
    world.shows(&[
        "warren_raft_state_differs{member=\"1\"} 0.0",
        "warren_raft_state_differs{member=\"3\"} 1.0",
    ]);
    take([(1, 5), (2, 6), (3, 6)]);
    let [wrong] = world.telemetry.unhealthy().await.try_into().unwrap();
    assert!(wrong.starts_with("manager: state: its state after entry 7 has the digest"), "{wrong}");
    world.shows(&[
        "warren_raft_state_differs{member=\"1\"} 1.0",
        "warren_raft_state_differs{member=\"3\"} 0.0",
    ]);
    world.shutdown.stop(Duration::from_secs(5)).await.unwrap();
}

#[test]
fn a_disk_without_room_is_told_before_anything_has_to_be_written() {
    let room = |free: u64, read_only| has_room(Path::new("/d/manager"), Bytes(free), read_only);
    assert_eq!(room(1 << 20, false), Ok(()));
    let full = "the disk of this manager is full: /d/manager has 512KiB free";
    assert_eq!(room(512 << 10, false), Err(full.to_owned()));
    assert_eq!(room(1 << 30, true), Err("the disk with /d/manager can only be read".to_owned()));
}

#[tokio::test]
async fn a_directory_that_is_gone_is_no_place_for_a_log() {
    let telemetry = Telemetry::of(&[]);
    telemetry.add("manager", Part { readiness: vec![disk_probe("/none/such".into())], ..Part::default() });
    let [wrong] = telemetry.unready().await.try_into().unwrap();
    assert!(wrong.starts_with("manager: disk: /none/such cannot be looked at"), "{wrong}");
}

#[test]
fn a_driver_that_hangs_is_noticed() {
    assert_eq!(goes_round(DRIVER_PATIENCE), Ok(()));
    let late = DRIVER_PATIENCE + Duration::from_secs(1);
    assert_eq!(goes_round(late), Err("the driver has not gone round for 11 s".to_owned()));
}

#[tokio::test]
async fn a_scrape_shows_the_log_the_scheduler_and_how_many_there_are_of_what() {
    let mut world = world();
    world.publish(LEADER, None);
    let peer = |id, matched, active| Peer { id, matched, active, silent: !active };
    world.publisher.know([peer(2, 2, true), peer(3, 7, false)].into());
    world.metrics.scheduler.ran(Duration::from_millis(3), 5);
    world.sweep().await;
    let command = Command::CreateCluster {
        id: ClusterId(Id(1)),
        ranges: Vec::new(),
        level: warren_core::LEVEL,
        at: Timestamp(1),
    };
    let answer = async {
        let Proposal { reply, .. } = world.inbox.proposals.recv().await.unwrap();
        let answer = warren_core::Answer::Done;
        let (place, outcome) = (Default::default(), warren_core::Outcome::Unchanged { answer });
        reply.send(Ok(Written { place, outcome })).unwrap();
    };
    let (proposed, ()) = tokio::join!(world.store.propose(command), answer);
    proposed.unwrap();
    world.shows(&[
        "warren_raft_term 3.0",
        "warren_raft_applied_index 7.0",
        "warren_raft_leader{member=\"1\"} 1.0",
        "warren_raft_leader{member=\"2\"} 0.0",
        "warren_raft_leader{member=\"4\"} 0.0",
        "warren_raft_members{suffrage=\"voter\"} 3.0",
        "warren_raft_members{suffrage=\"learner\"} 1.0",
        "warren_raft_lag{member=\"2\"} 5.0",
        "warren_raft_active{member=\"2\"} 1.0",
        "warren_raft_active{member=\"3\"} 0.0",
        "warren_raft_held 0.0",
        "warren_raft_log_writes_total 4.0",
        "warren_raft_log_written_bytes_total 5000.0",
        "warren_raft_commit_duration_seconds_count 1",
        "warren_scheduler_runs_total 1",
        "warren_scheduler_placed_total 5",
        "warren_scheduler_unplaced 0.0",
        "warren_scheduler_duration_seconds_count 1",
        "warren_controller_runs_total{loop=\"sweep\"} 1.0",
        "warren_nodes{status=\"READY\"} 0.0",
        "warren_tasks{state=\"RUNNING\"} 0.0",
        "warren_services 0.0",
        "warren_sessions 0.0",
    ]);
    world.shutdown.stop(Duration::from_secs(5)).await.unwrap();
}
