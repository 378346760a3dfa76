use std::io;
use std::sync::atomic::{AtomicU32, Ordering};

use tokio::sync::mpsc;
use tokio::time::Instant;

use super::*;
use crate::{BackgroundTaskState, ManualClock, RunFailure};

const EVERY: Duration = Duration::from_secs(10);
const LONG: Duration = Duration::from_secs(3600);

/// The next report, or none when there will be no more.
async fn next<T>(reports: &mut mpsc::UnboundedReceiver<T>) -> Option<T> {
    tokio::time::timeout(LONG, reports.recv()).await.expect("a report within the deadline")
}

fn background_tasks() -> (BackgroundTasks, Shutdown, Arc<ManualClock>) {
    let (shutdown, clock) = (Shutdown::new(), Arc::new(ManualClock::new(1_000)));
    (
        BackgroundTasks::new(shutdown.clone(), Arc::clone(&clock) as Arc<dyn Clock>, Arc::new(|| 0)),
        shutdown,
        clock,
    )
}

fn only(background_tasks: &BackgroundTasks) -> BackgroundTaskStatus {
    let [status] = background_tasks.snapshot().try_into().unwrap();
    status
}

/// A loop that reports when each of its runs starts.
fn reporting(background_tasks: &BackgroundTasks) -> (BackgroundTaskHandle, mpsc::UnboundedReceiver<Instant>) {
    let (started, starts) = mpsc::unbounded_channel();
    let handle = background_tasks.spawn("sync", EVERY, move || {
        started.send(Instant::now()).unwrap();
        async { Ok::<_, io::Error>(()) }
    });
    (handle, starts)
}

#[tokio::test(start_paused = true)]
async fn runs_at_once_then_by_interval_and_earlier_when_woken() {
    let (tasks_run, shutdown, _) = background_tasks();
    let begin = Instant::now();
    let (handle, mut starts) = reporting(&tasks_run);
    let mut second = async || (next(&mut starts).await.unwrap() - begin).as_secs();
    assert_eq!(second().await, 0);
    assert_eq!(second().await, 10);
    handle.wake();
    handle.wake();
    assert_eq!(second().await, 10);
    assert_eq!(second().await, 20);
    shutdown.stop(LONG).await.unwrap();
    let status = only(&tasks_run);
    assert_eq!((status.state, status.runs, status.failures), (BackgroundTaskState::Stopped, 4, 0));
    assert_eq!((status.name, status.interval), ("sync", Some(EVERY)));
}

#[tokio::test(start_paused = true)]
async fn a_wake_during_a_run_is_followed_by_another_run() {
    let (tasks_run, shutdown, _) = background_tasks();
    let (started, mut starts) = mpsc::unbounded_channel();
    let gate = Arc::new(Notify::new());
    let opened = Arc::clone(&gate);
    let handle = tasks_run.spawn("sweep", LONG, move || {
        started.send(Instant::now()).unwrap();
        let opened = Arc::clone(&opened);
        async move {
            opened.notified().await;
            Ok::<_, io::Error>(())
        }
    });
    let first = next(&mut starts).await.unwrap();
    handle.wake();
    gate.notify_one();
    assert_eq!(next(&mut starts).await.unwrap(), first);
    gate.notify_one();
    shutdown.stop(LONG).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn failures_and_panics_do_not_end_the_task() {
    let (tasks_run, shutdown, clock) = background_tasks();
    let turn = Arc::new(AtomicU32::new(0));
    let (ended, mut ends) = mpsc::unbounded_channel();
    tasks_run.spawn("gc", EVERY, move || {
        let (turn, ended) = (turn.fetch_add(1, Ordering::Relaxed), ended.clone());
        let clock = Arc::clone(&clock);
        async move {
            clock.advance(Duration::from_millis(500));
            ended.send(()).unwrap();
            match turn {
                0 => Err(io::Error::other("no disk")),
                1 => panic!("bad index"),
                _ => Ok(()),
            }
        }
    });
    let failure = |at_unix_millis, error: &str| Some(RunFailure { at_unix_millis, error: error.to_owned() });
    let expected = [
        (1, 1, 1, 1_000, failure(1_500, "no disk")),
        (2, 2, 2, 1_500, failure(2_000, "panicked: bad index")),
        (3, 2, 0, 2_000, failure(2_000, "panicked: bad index")),
    ];
    for (runs, failures, in_a_row, last_run, last_failure) in expected {
        next(&mut ends).await.unwrap();
        tokio::task::yield_now().await;
        let status = only(&tasks_run);
        assert_eq!((status.runs, status.failures, status.consecutive_failures), (runs, failures, in_a_row));
        assert_eq!((status.last_run_unix_millis, status.last_failure), (Some(last_run), last_failure));
        assert_eq!(status.last_duration, Some(Duration::from_millis(500)));
        assert_eq!(status.state, BackgroundTaskState::Idle);
    }
    shutdown.stop(LONG).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn respawned_task_keeps_its_counters() {
    let (tasks_run, shutdown, _) = background_tasks();
    let (handle, mut starts) = reporting(&tasks_run);
    next(&mut starts).await.unwrap();
    handle.stop();
    handle.stop();
    assert_eq!(next(&mut starts).await, None);
    assert_eq!(only(&tasks_run).state, BackgroundTaskState::Stopped);
    let (_handle, mut starts) = reporting(&tasks_run);
    next(&mut starts).await.unwrap();
    shutdown.stop(LONG).await.unwrap();
    assert_eq!(only(&tasks_run).runs, 2);
}

#[tokio::test(start_paused = true)]
async fn hanging_task_is_named_at_shutdown() {
    let (tasks_run, shutdown, _) = background_tasks();
    let (started, mut starts) = mpsc::unbounded_channel();
    tasks_run.spawn("probe", EVERY, move || {
        started.send(()).unwrap();
        std::future::pending::<Result<(), io::Error>>()
    });
    next(&mut starts).await.unwrap();
    assert_eq!(only(&tasks_run).state, BackgroundTaskState::Running);
    let refused = shutdown.stop(Duration::from_secs(1)).await.unwrap_err();
    assert_eq!(refused.names, ["probe"]);
    assert_eq!(next(&mut starts).await, None);
    assert_eq!((only(&tasks_run).state, only(&tasks_run).runs), (BackgroundTaskState::Stopped, 0));
}

/// A task that fails each second does not fill the log.
#[tokio::test(start_paused = true)]
async fn same_error_is_logged_once_a_minute() {
    let (tasks_run, ..) = background_tasks();
    let (record, began, mut logged) = (tasks_run.record("sync"), Instant::now(), None);
    for (second, error, expected) in
        [(0, "one", 0), (1, "one", 0), (2, "two", 2), (61, "two", 2), (62, "two", 62)]
    {
        tokio::time::sleep_until(began + Duration::from_secs(second)).await;
        let mut work = || async move { Err::<(), _>(io::Error::other(error)) };
        run_once("sync", &record, &mut work, &mut logged).await;
        let (known, at) = logged.clone().unwrap();
        assert_eq!((known.as_str(), (at - began).as_secs()), (error, expected), "after {second} seconds");
    }
    run_once("sync", &record, &mut || async { Ok::<_, io::Error>(()) }, &mut logged).await;
    assert_eq!(logged, None);
}
