//! The contents of a scrape, and each probe failing.

use std::sync::Arc;

use tempfile::TempDir;
use tokio::sync::mpsc;
use warren_consensus::{ConfState, DurabilityStatus, LogPosition, PeerProgress};
use warren_control::{ManualClock, Shutdown};
use warren_core::{Command, State, StateDigest};
use warren_store::{
    AppliedWrite, DriverInbox, LogCost, PublishedState, QueuedProposal, ReplicaRole, StatePublisher,
    WriteStall,
};
use warren_telemetry::Telemetry;
use warren_types::{ClusterId, Id, Timestamp};

use super::*;

struct MetricsFixture {
    store: Store,
    publisher: StatePublisher,
    inbox: DriverInbox,
    background_tasks: BackgroundTasks,
    shutdown: Shutdown,
    clock: Arc<ManualClock>,
    metrics: ManagerMetrics,
    telemetry: Telemetry,
    state_comparison: StateComparison,
    _audit_dir: TempDir,
}

const LEADER: ReplicaRole = ReplicaRole { is_leader: true, leader_id: Some(1), term: 3, can_plan: true };

fn fixture() -> MetricsFixture {
    let (store, publisher, inbox) = Store::new(PublishedState::initial(State::new()), 1, 1);
    let (clock, shutdown) = (Arc::new(ManualClock::new(1_000)), Shutdown::new());
    let tasks_run = BackgroundTasks::new(shutdown.clone(), clock.clone(), Arc::new(|| 0));
    let (metrics, telemetry, state_comparison) =
        (ManagerMetrics::default(), Telemetry::with_components(&[]), StateComparison::default());
    let audit_dir = tempfile::tempdir().unwrap();
    let sources = ManagerMetricSources {
        audit: Auditor::start(audit_dir.path().to_owned(), "m1".into(), ()).unwrap(),
        store: store.clone(),
        leader: LeaderWatch::start(
            store.clone(),
            &BackgroundTasks::new(shutdown.clone(), clock.clone(), Arc::new(|| 0)),
        ),
        registry: SessionRegistry::default(),
        background_tasks: tasks_run.clone(),
        clock: clock.clone(),
        log_dir: "/".into(),
        state_comparison: (1, state_comparison.clone()),
    };
    telemetry.add("manager", telemetry_component(&metrics, &sources));
    MetricsFixture {
        store,
        publisher,
        inbox,
        background_tasks: tasks_run,
        shutdown,
        clock,
        metrics,
        telemetry,
        state_comparison,
        _audit_dir: audit_dir,
    }
}

impl MetricsFixture {
    fn publish(&self, role: ReplicaRole, held: Option<&str>) {
        let held = held
            .map(|why| Arc::new(WriteStall { since: Timestamp(0), reason: why.into(), is_disk_full: true }));
        let log = LogCost { writes: 4, bytes: 5000 };
        let members = ConfState { voters: vec![1, 2, 3], learners: vec![4], ..ConfState::default() };
        let members = Arc::new(members);
        let published = PublishedState {
            index: 7,
            role,
            write_stall: held,
            log,
            members,
            ..PublishedState::initial(state())
        };
        self.publisher.publish(published, Vec::new());
    }

    /// The resync has started a run, and will not start another.
    async fn run_resync(&self) {
        let (ran, mut runs) = mpsc::unbounded_channel();
        self.background_tasks.spawn(RESYNC_TASK, Duration::from_secs(3600), move || {
            ran.send(()).unwrap();
            std::future::ready(Ok::<(), std::io::Error>(()))
        });
        runs.recv().await.unwrap();
    }

    fn assert_shows(&self, expected: &[&str]) {
        let text = self.telemetry.metrics().unwrap();
        for line in expected {
            assert!(text.lines().any(|found| found == *line), "{line} is not in\n{text}");
        }
    }
}

/// An empty cluster.
fn state() -> State {
    let mut state = State::new();
    let (id, ranges) = (ClusterId(Id(1)), vec!["10.210.0.0/16".parse().unwrap()]);
    state.apply(
        3,
        7,
        &Command::CreateCluster { id, ranges, feature_level: warren_core::FEATURE_LEVEL, at: Timestamp(1) },
    );
    state
}

#[tokio::test]
async fn leader_with_writable_log_is_ready() {
    let world = fixture();
    assert_eq!(world.telemetry.unready().await, ["manager: leader: no known leader"]);
    world.publish(LEADER, None);
    assert!(world.telemetry.unready().await.is_empty());
    world.publish(LEADER, Some("the disk of this manager is full"));
    assert_eq!(world.telemetry.unready().await, ["manager: log: the disk of this manager is full"]);
    world.publish(ReplicaRole { can_plan: false, ..LEADER }, None);
    assert_eq!(world.telemetry.unready().await, ["manager: leader: no known leader"]);
}

#[tokio::test]
async fn follower_is_ready_while_leader_is_known() {
    let world = fixture();
    let follows = ReplicaRole { is_leader: false, can_plan: false, leader_id: Some(2), ..LEADER };
    world.publish(follows, None);
    let is_ready = async {
        loop {
            // A busy machine can take longer than a leader counts as known.
            world.publisher.record_leader_seen();
            if world.telemetry.unready().await.is_empty() {
                return;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(60), is_ready).await.unwrap();
    let is_lost = async {
        while world.telemetry.unready().await != ["manager: leader: no known leader"] {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), is_lost).await.unwrap();
    world.publish(ReplicaRole { leader_id: None, ..follows }, None);
    assert_eq!(world.telemetry.unready().await, ["manager: leader: no known leader"]);
}

#[tokio::test]
async fn manager_is_healthy_while_background_tasks_run() {
    let world = fixture();
    assert_eq!(world.telemetry.unhealthy().await, ["manager: resync: background task is not running"]);
    world.run_resync().await;
    world.publisher.record_turn();
    assert!(world.telemetry.unhealthy().await.is_empty());
    world.clock.advance(RESYNC_STALL_LIMIT + Duration::from_secs(1));
    assert_eq!(world.telemetry.unhealthy().await, ["manager: resync: last run started 121 s ago"]);
    world.shutdown.stop(Duration::from_secs(60)).await.unwrap();
}

#[tokio::test]
async fn lost_entries_make_manager_unhealthy() {
    let world = fixture();
    world.run_resync().await;
    world.publisher.record_turn();
    world.publish(LEADER, None);
    assert!(world.telemetry.unhealthy().await.is_empty());
    world.assert_shows(&["warren_raft_log_missing_entries 0.0", "warren_raft_acknowledged_entries_lost 0.0"]);
    let durability =
        DurabilityStatus { missing_entry: Some(LogPosition { term: 3, index: 9 }), lost_entry: Some(8) };
    world.publisher.publish(PublishedState { durability, ..PublishedState::initial(state()) }, Vec::new());
    let [wrong] = world.telemetry.unhealthy().await.try_into().unwrap();
    assert!(wrong.starts_with("manager: durability: acknowledged writes up to index 8 may"), "{wrong}");
    world.assert_shows(&["warren_raft_log_missing_entries 1.0", "warren_raft_acknowledged_entries_lost 1.0"]);
    world.shutdown.stop(Duration::from_secs(60)).await.unwrap();
}

#[tokio::test]
async fn divergent_state_makes_manager_unhealthy() {
    let world = fixture();
    world.run_resync().await;
    world.publisher.record_turn();
    let take = |reported: [(MemberId, u64); 3]| {
        let digest = |(id, value)| (id, vec![StateDigest { index: 7, value }]);
        world.state_comparison.record_digests(&reported.map(digest).into(), Some(1), &[1, 2, 3].into());
    };
    take([(1, 5), (2, 5), (3, 6)]);
    assert!(world.telemetry.unhealthy().await.is_empty(), "another one is wrong");
    world.assert_shows(&[
        "warren_raft_state_diverged{member_id=\"1\"} 0.0",
        "warren_raft_state_diverged{member_id=\"3\"} 1.0",
    ]);
    take([(1, 5), (2, 6), (3, 6)]);
    let [wrong] = world.telemetry.unhealthy().await.try_into().unwrap();
    assert!(wrong.starts_with("manager: state: state digest at index 7 is"), "{wrong}");
    world.assert_shows(&[
        "warren_raft_state_diverged{member_id=\"1\"} 1.0",
        "warren_raft_state_diverged{member_id=\"3\"} 0.0",
    ]);
    world.shutdown.stop(Duration::from_secs(60)).await.unwrap();
}

#[test]
fn low_disk_space_makes_manager_unready() {
    let room = |free: u64, read_only| check_free_space(Path::new("/d/manager"), Bytes(free), read_only);
    assert_eq!(room(1 << 20, false), Ok(()));
    let full = "the disk of this manager is full: /d/manager has 512KiB free";
    assert_eq!(room(512 << 10, false), Err(full.to_owned()));
    assert_eq!(room(1 << 30, true), Err("/d/manager is on a read-only file system".to_owned()));
}

#[tokio::test]
async fn missing_log_directory_makes_manager_unready() {
    let telemetry = Telemetry::with_components(&[]);
    telemetry.add(
        "manager",
        TelemetryComponent {
            readiness: vec![disk_probe("/none/such".into())],
            ..TelemetryComponent::default()
        },
    );
    let [wrong] = telemetry.unready().await.try_into().unwrap();
    assert!(wrong.starts_with("manager: disk: cannot stat /none/such"), "{wrong}");
}

#[test]
fn stalled_driver_makes_manager_unhealthy() {
    assert_eq!(check_driver_progress(DRIVER_STALL_LIMIT), Ok(()));
    let late = DRIVER_STALL_LIMIT + Duration::from_secs(1);
    assert_eq!(check_driver_progress(late), Err("raft driver made no progress for 11 s".to_owned()));
}

#[tokio::test]
async fn scrape_shows_log_scheduler_and_object_counts() {
    let mut world = fixture();
    world.publish(LEADER, None);
    let peer = |id, matched, active| PeerProgress { id, matched, active, silent: !active };
    world.publisher.set_peers([peer(2, 2, true), peer(3, 7, false)].into());
    world.metrics.scheduler.record_run(Duration::from_millis(3), 5);
    world.run_resync().await;
    let command = Command::CreateCluster {
        id: ClusterId(Id(1)),
        ranges: Vec::new(),
        feature_level: warren_core::FEATURE_LEVEL,
        at: Timestamp(1),
    };
    let answer = async {
        let QueuedProposal { reply, .. } = world.inbox.proposals.recv().await.unwrap();
        let (position, result) = (Default::default(), Ok(warren_core::CommandResponse::Done));
        reply.send(Ok(AppliedWrite { position, result })).unwrap();
    };
    let (proposed, ()) = tokio::join!(world.store.propose(command), answer);
    proposed.unwrap();
    world.assert_shows(&[
        "warren_raft_term 3.0",
        "warren_raft_applied_index 7.0",
        "warren_raft_is_leader{member_id=\"1\"} 1.0",
        "warren_raft_is_leader{member_id=\"2\"} 0.0",
        "warren_raft_is_leader{member_id=\"4\"} 0.0",
        "warren_raft_members{suffrage=\"voter\"} 3.0",
        "warren_raft_members{suffrage=\"learner\"} 1.0",
        "warren_raft_peer_lag_entries{member_id=\"2\"} 5.0",
        "warren_raft_peer_active{member_id=\"2\"} 1.0",
        "warren_raft_peer_active{member_id=\"3\"} 0.0",
        "warren_raft_log_write_stalled 0.0",
        "warren_raft_log_writes_total 4.0",
        "warren_raft_log_written_bytes_total 5000.0",
        "warren_raft_commit_duration_seconds_count 1",
        "warren_scheduler_runs_total 1",
        "warren_scheduler_placed_tasks_total 5",
        "warren_scheduler_pending_tasks 0.0",
        "warren_scheduler_duration_seconds_count 1",
        "warren_background_task_runs_total{task=\"resync\"} 1.0",
        "warren_nodes{status=\"READY\"} 0.0",
        "warren_tasks{state=\"RUNNING\"} 0.0",
        "warren_services 0.0",
        "warren_sessions 0.0",
    ]);
    world.shutdown.stop(Duration::from_secs(60)).await.unwrap();
}
