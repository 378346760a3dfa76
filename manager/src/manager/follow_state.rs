//! Background tasks that follow the cluster object: they run when it, the members or the role of this manager change,
//! and at long intervals.

use std::sync::Arc;
use std::time::Duration;

use warren_control::{BackgroundTasks, BoxError, RunOutcome, RunnerSettings, Shutdown, WorkQueue};
use warren_core::Cluster;
use warren_store::{PublishedState, ReplicaRole, Store};
use warren_types::MemberId;

/// Delay of the next run when nothing is to be done.
pub(super) const IDLE: Duration = Duration::from_secs(30);
/// The same when this manager waits for something that the state does not show.
pub(super) const WAITING: Duration = Duration::from_secs(1);
const SETTINGS: RunnerSettings = RunnerSettings {
    concurrency: 1,
    // Longer than a manager takes to write all that it stores again.
    deadline: Duration::from_secs(3600),
    first_retry: Duration::from_secs(1),
    max_retry: IDLE,
};

/// What the work depends on.
struct Followed {
    cluster: Option<Arc<Cluster>>,
    /// With the versions.
    members: Vec<(MemberId, u64)>,
    role: ReplicaRole,
}

fn members(published: &PublishedState) -> impl Iterator<Item = (MemberId, u64)> {
    published.state.members().map(|member| (member.member_id, member.version))
}

impl Followed {
    fn of(published: &PublishedState) -> Self {
        let cluster = published.state.cluster().cloned();
        Self { cluster, members: members(published).collect(), role: published.role }
    }

    fn is_of(&self, published: &PublishedState) -> bool {
        let is_same_cluster = match (&self.cluster, published.state.cluster()) {
            (Some(known), Some(current)) => Arc::ptr_eq(known, current),
            (known, current) => known.is_none() && current.is_none(),
        };
        is_same_cluster && self.role == published.role && self.members.iter().copied().eq(members(published))
    }
}

/// Runs `work` now, when what it depends on changes, and after the delay that it returns. It is repeated within seconds
/// if it fails.
pub(super) fn follow_state<F, Fut>(
    name: &'static str,
    store: &Store,
    background_tasks: &BackgroundTasks,
    shutdown: &Shutdown,
    work: F,
) where
    F: Fn() -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<Duration, BoxError>> + Send + 'static,
{
    let (queue, store) = (WorkQueue::new(1), store.clone());
    let (wake, mut publications) = (queue.handle(), store.publications());
    // From before the first run.
    let mut followed = Followed::of(&store.read());
    wake.wake(()).expect("an empty queue has room for one key");
    background_tasks.spawn_queue(name, queue, SETTINGS, move |()| {
        let run = work();
        async move {
            match run.await {
                Ok(again) => RunOutcome::RequeueAfter(again),
                Err(error) => RunOutcome::Failed(error),
            }
        }
    });
    shutdown.spawn_cancellable(name, async move {
        while publications.changed().await.is_ok() {
            let published = store.read();
            if !followed.is_of(&published) {
                followed = Followed::of(&published);
                // The queue has room for its only key.
                let _ = wake.wake(());
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc;
    use tokio::time::{Instant, timeout};
    use warren_control::ManualClock;
    use warren_core::{AppliedIndex, Command, FEATURE_LEVEL, State};
    use warren_store::Publication;
    use warren_types::{ClusterId, Id, Timestamp};

    use super::*;

    const FOLLOWER: ReplicaRole =
        ReplicaRole { is_leader: false, leader_id: Some(2), term: 1, can_plan: false };

    fn published(state: &State, role: ReplicaRole) -> PublishedState {
        PublishedState { role, ..PublishedState::initial(state.clone()) }
    }

    #[tokio::test(start_paused = true)]
    async fn work_runs_when_the_state_changes_and_at_long_intervals() {
        let mut state = State::new();
        let (store, publisher, _inbox) = Store::new(published(&state, FOLLOWER), 4, 4);
        let shutdown = Shutdown::new();
        let background_tasks =
            BackgroundTasks::new(shutdown.clone(), Arc::new(ManualClock::new(1)), Arc::new(|| 0));
        let (ran, mut runs) = mpsc::unbounded_channel();
        follow_state("test", &store, &background_tasks, &shutdown, move || {
            ran.send(Instant::now()).unwrap();
            std::future::ready(Ok::<_, BoxError>(IDLE))
        });
        let mut last = timeout(IDLE, runs.recv()).await.unwrap().unwrap();
        let mut pause = async || {
            let next = timeout(2 * IDLE, runs.recv()).await.unwrap().unwrap();
            (next - std::mem::replace(&mut last, next)).as_secs()
        };
        state.advance_to(AppliedIndex { term: 1, index: 7 });
        publisher.publish(published(&state, FOLLOWER), Publication::default());
        assert_eq!(pause().await, IDLE.as_secs(), "nothing of it concerns the work");
        let no_leader = ReplicaRole { leader_id: None, ..FOLLOWER };
        publisher.publish(published(&state, no_leader), Publication::default());
        assert_eq!(pause().await, 0);
        let ranges = vec!["10.0.0.0/8".parse().unwrap()];
        let (id, at) = (ClusterId(Id(1)), Timestamp(1));
        state.apply(1, 8, &Command::CreateCluster { id, ranges, feature_level: FEATURE_LEVEL, at });
        publisher.publish(published(&state, no_leader), Publication::default());
        assert_eq!(pause().await, 0);
        assert_eq!(pause().await, IDLE.as_secs());
        shutdown.stop(IDLE).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn failed_work_is_repeated_within_seconds() {
        let (store, _publisher, _inbox) = Store::new(published(&State::new(), FOLLOWER), 4, 4);
        let shutdown = Shutdown::new();
        let background_tasks =
            BackgroundTasks::new(shutdown.clone(), Arc::new(ManualClock::new(1)), Arc::new(|| 0));
        let (ran, mut runs) = mpsc::unbounded_channel();
        follow_state("test", &store, &background_tasks, &shutdown, move || {
            ran.send(Instant::now()).unwrap();
            std::future::ready(Err::<Duration, BoxError>("no leader".into()))
        });
        let first = timeout(IDLE, runs.recv()).await.unwrap().unwrap();
        let second = timeout(IDLE, runs.recv()).await.unwrap().unwrap();
        assert!(second - first <= SETTINGS.first_retry, "{:?}", second - first);
        shutdown.stop(IDLE).await.unwrap();
    }
}
