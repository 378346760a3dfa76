use std::collections::BTreeSet;
use std::io;
use std::sync::Mutex;

use proptest::prelude::*;
use tokio::sync::{Notify, mpsc};

use super::*;
use crate::{BackgroundTaskState, BackgroundTasks, ManualClock, Shutdown, WorkQueueHandle};

const LONG: Duration = Duration::from_secs(3600);

/// The next report, or none when there will be no more.
async fn next<T>(reports: &mut mpsc::UnboundedReceiver<T>) -> Option<T> {
    tokio::time::timeout(LONG, reports.recv()).await.expect("a report within the deadline")
}

/// With a chance that always gives the shortest delay, so that moments can be told exactly.
fn background_tasks() -> (BackgroundTasks, Shutdown) {
    let shutdown = Shutdown::new();
    (BackgroundTasks::new(shutdown.clone(), Arc::new(ManualClock::new(0)), Arc::new(|| 0)), shutdown)
}

fn settings(concurrency: usize) -> RunnerSettings {
    RunnerSettings { concurrency, deadline: Duration::from_secs(60), ..RunnerSettings::default() }
}

/// Starts a runner whose work reports (key, milliseconds since the start) and then does as `outcome` says.
fn reporting<F>(
    background_tasks: &BackgroundTasks,
    outcome: F,
) -> (WorkQueueHandle<u32>, mpsc::UnboundedReceiver<(u32, u128)>)
where
    F: Fn(u32, usize) -> RunOutcome + Send + Sync + 'static,
{
    let (started, starts) = mpsc::unbounded_channel();
    let (queue, begin, turns) = (WorkQueue::new(100), Instant::now(), Mutex::new(BTreeMap::new()));
    let (handle, outcome) = (queue.handle(), Arc::new(outcome));
    background_tasks.spawn_queue("tests", queue, settings(2), move |key| {
        started.send((key, begin.elapsed().as_millis())).unwrap();
        let turn = *turns.lock().unwrap().entry(key).and_modify(|turn| *turn += 1).or_insert(1);
        let outcome = Arc::clone(&outcome);
        async move { outcome(key, turn) }
    });
    (handle, starts)
}

#[tokio::test(start_paused = true)]
async fn keys_run_when_due_and_again_on_request() {
    let (tasks_run, shutdown) = background_tasks();
    let (handle, mut starts) = reporting(&tasks_run, |_, turn| match turn {
        1 => RunOutcome::RequeueAfter(Duration::from_secs(5)),
        _ => RunOutcome::Done,
    });
    let begin = Instant::now();
    handle.wake(1).unwrap();
    handle.wake_at(2, begin + Duration::from_secs(9)).unwrap();
    handle.wake_at(2, begin + Duration::from_secs(2)).unwrap();
    handle.wake_at(2, begin + Duration::from_secs(3)).unwrap();
    for expected in [(1, 0), (2, 2_000), (1, 5_000), (2, 7_000)] {
        assert_eq!(next(&mut starts).await.unwrap(), expected);
    }
    shutdown.stop(LONG).await.unwrap();
    assert_eq!(next(&mut starts).await, None);
    assert!(handle.is_empty());
}

#[tokio::test(start_paused = true)]
async fn failing_key_backs_off_alone() {
    let (tasks_run, shutdown) = background_tasks();
    let (handle, mut starts) = reporting(&tasks_run, |key, turn| match (key, turn) {
        (1, 1 | 3) => RunOutcome::from(Err(io::Error::other("store is away"))),
        (1, 2) => panic!("on purpose"),
        (1, 4) => RunOutcome::RequeueAfter(Duration::from_secs(1)),
        (1, 5) => RunOutcome::Failed("again".into()),
        _ => RunOutcome::from(Ok::<_, io::Error>(())),
    });
    handle.wake(1).unwrap();
    handle.wake(2).unwrap();
    // Delays of 100, 200, 400 ms; a success makes the next failure wait 100 ms again.
    for expected in [(1, 0), (2, 0), (1, 100), (1, 300), (1, 700), (1, 1_700), (1, 1_800)] {
        assert_eq!(next(&mut starts).await.unwrap(), expected);
    }
    shutdown.stop(LONG).await.unwrap();
    let [status] = tasks_run.snapshot().try_into().unwrap();
    assert_eq!((status.runs, status.failures, status.consecutive_failures), (7, 4, 0));
    assert_eq!(status.last_failure.unwrap().error, "again");
    assert_eq!((status.state, status.interval), (BackgroundTaskState::Stopped, None));
}

#[tokio::test(start_paused = true)]
async fn a_wake_cuts_a_back_off_short() {
    let (tasks_run, shutdown) = background_tasks();
    let (handle, mut starts) = reporting(&tasks_run, |_, turn| match turn {
        1 => RunOutcome::Failed("not yet".into()),
        _ => RunOutcome::Done,
    });
    handle.wake(1).unwrap();
    assert_eq!(next(&mut starts).await.unwrap(), (1, 0));
    handle.wake(1).unwrap();
    assert_eq!(next(&mut starts).await.unwrap(), (1, 0));
    shutdown.stop(LONG).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_run_past_its_deadline_is_dropped_and_retried() {
    let (tasks_run, shutdown) = background_tasks();
    let (started, mut starts) = mpsc::unbounded_channel();
    let (queue, begin) = (WorkQueue::new(1), Instant::now());
    let handle = queue.handle();
    tasks_run.spawn_queue("hangs", queue, settings(1), move |()| {
        started.send(begin.elapsed().as_millis()).unwrap();
        std::future::pending()
    });
    handle.wake(()).unwrap();
    assert_eq!(next(&mut starts).await, Some(0));
    assert_eq!(next(&mut starts).await, Some(60_100));
    let [status] = tasks_run.snapshot().try_into().unwrap();
    assert!(status.last_failure.unwrap().error.contains("deadline of 60s"));
    shutdown.stop(LONG).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn stopping_starts_nothing_new_and_lets_a_run_finish() {
    let (tasks_run, shutdown) = background_tasks();
    let (reports, mut reported) = mpsc::unbounded_channel();
    let (queue, gate) = (WorkQueue::new(10), Arc::new(Notify::new()));
    let (handle, opened) = (queue.handle(), Arc::clone(&gate));
    tasks_run.spawn_queue("slow", queue, settings(1), move |key: u32| {
        let (reports, opened) = (reports.clone(), Arc::clone(&opened));
        async move {
            reports.send((key, "started")).unwrap();
            opened.notified().await;
            reports.send((key, "ended")).unwrap();
            RunOutcome::Done
        }
    });
    handle.wake(1).unwrap();
    assert_eq!(next(&mut reported).await, Some((1, "started")));
    handle.wake(2).unwrap();
    let stopping = tokio::spawn(async move { shutdown.stop(LONG).await });
    tokio::task::yield_now().await;
    gate.notify_one();
    assert_eq!(next(&mut reported).await, Some((1, "ended")));
    assert_eq!(next(&mut reported).await, None);
    stopping.await.unwrap().unwrap();
}

/// What the runs of one property case saw.
#[derive(Default)]
struct RunLog {
    tick: u64,
    running: BTreeSet<u8>,
    most_at_once: usize,
    last_start: BTreeMap<u8, u64>,
    last_wake: BTreeMap<u8, u64>,
    overlaps: u32,
}

impl RunLog {
    fn tick(&mut self) -> u64 {
        self.tick += 1;
        self.tick
    }
}

#[derive(Clone, Debug)]
struct Wake {
    key: u8,
    delay: u64,
    pause: u64,
}

fn wakes() -> impl Strategy<Value = Vec<Wake>> {
    let wake = (0u8..5, 0u64..30, 0u64..15).prop_map(|(key, delay, pause)| Wake { key, delay, pause });
    proptest::collection::vec(wake, 1..60)
}

async fn churn(wakes: Vec<Wake>, concurrency: usize, failing: u8) -> Arc<Mutex<RunLog>> {
    let (tasks_run, shutdown) = background_tasks();
    let seen = Arc::new(Mutex::new(RunLog::default()));
    let (queue, inside) = (WorkQueue::new(5), Arc::clone(&seen));
    let handle = queue.handle();
    tasks_run.spawn_queue("churn", queue, settings(concurrency), move |key: u8| {
        let inside = Arc::clone(&inside);
        async move {
            let turn = {
                let mut seen = inside.lock().unwrap();
                let turn = seen.tick();
                seen.last_start.insert(key, turn);
                seen.overlaps += u32::from(!seen.running.insert(key));
                seen.most_at_once = seen.most_at_once.max(seen.running.len());
                turn
            };
            tokio::time::sleep(Duration::from_millis(turn * 7 % 23)).await;
            inside.lock().unwrap().running.remove(&key);
            match turn % 7 {
                0 if key == failing => panic!("on purpose"),
                1 if key == failing => RunOutcome::Failed("on purpose".into()),
                2 => RunOutcome::RequeueAfter(Duration::from_millis(turn % 11)),
                _ => RunOutcome::Done,
            }
        }
    });
    for Wake { key, delay, pause } in wakes {
        {
            let mut seen = seen.lock().unwrap();
            let tick = seen.tick();
            seen.last_wake.insert(key, tick);
            handle.wake_at(key, Instant::now() + Duration::from_millis(delay)).unwrap();
        }
        tokio::time::sleep(Duration::from_millis(pause)).await;
    }
    let emptied = async {
        while !handle.is_empty() {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    };
    tokio::time::timeout(LONG, emptied).await.expect("the queue empties");
    shutdown.stop(LONG).await.unwrap();
    seen
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn no_key_overlaps_and_every_wake_runs(
        wakes in wakes(), concurrency in 1usize..4, failing in 0u8..5,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time().start_paused(true).build().unwrap();
        let seen = runtime.block_on(churn(wakes, concurrency, failing));
        let seen = seen.lock().unwrap();
        prop_assert_eq!(seen.overlaps, 0);
        prop_assert!(seen.most_at_once <= concurrency);
        for (key, woken) in &seen.last_wake {
            prop_assert!(seen.last_start.get(key).is_some_and(|started| started > woken), "key {}", key);
        }
    }
}
