//! Time without any manager, for tasks that stop on disconnect.
//!
//! Measured from the last message of a manager, by a monotonic clock. While such a task exists, that moment
//! is also stored in a file, by a clock that continues through restarts of the agent. A starting agent
//! continues from the file, so the time without an agent counts as well; it only waits a moment for a first
//! session before it reports the state (`warren_task::Connectivity`). Without a file of this boot the time is
//! unknown and counts as infinite: a running process is then stopped, and others are started when a manager
//! requests it.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;
use warren_control::BackgroundTasks;
use warren_security::files::{FileError, ensure_private_dir, write_private};
use warren_task::DesiredState;

/// Interval of updates of the file.
const SAVE_INTERVAL: Duration = Duration::from_secs(2);
/// Prefix of the file's content.
const FORMAT: &str = "v1";
/// Identifies the boot of a machine (proc(5)).
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
/// Seconds since the boot, including suspended time (proc(5)).
const UPTIME: &str = "/proc/uptime";

/// Connectivity of this node to managers.
pub(crate) type NodeConnectivity = warren_task::Connectivity<Instant>;

/// Tracks the connectivity.
#[derive(Debug)]
pub(crate) struct ConnectivityMonitor {
    connectivity: watch::Sender<NodeConnectivity>,
    path: PathBuf,
    locked: Mutex<State>,
}

#[derive(Debug)]
struct State {
    tracker: warren_task::ConnectivityTracker<Instant>,
    /// The moment in the file.
    last_saved: Option<Instant>,
}

impl ConnectivityMonitor {
    /// For a starting agent, with the file of earlier agents in `run_dir`.
    pub fn resume(run_dir: &Path) -> Self {
        let file = run_dir.join("connectivity");
        let kept = std::fs::read_to_string(&file).ok().zip(boot_clock());
        let before = kept.and_then(|(text, now)| parse_silence(&text, &now));
        let state = State {
            tracker: warren_task::ConnectivityTracker::resume(Instant::now(), before),
            last_saved: None,
        };
        Self { connectivity: watch::Sender::default(), path: file, locked: Mutex::new(state) }
    }

    /// The connectivity, with every change.
    pub fn connectivity(&self) -> watch::Receiver<NodeConnectivity> {
        self.connectivity.subscribe()
    }

    /// Calls [`ConnectivityMonitor::refresh`] periodically while `background_tasks` run.
    pub fn start(
        self: Arc<Self>,
        desired_state: watch::Receiver<DesiredState>,
        background_tasks: &BackgroundTasks,
    ) {
        background_tasks.spawn("worker.connectivity", SAVE_INTERVAL, move || {
            let contact = Arc::clone(&self);
            let minds = desired_state.borrow().tasks.values().any(|task| !task.spec.on_disconnect.is_keep());
            async move {
                let note = move || contact.refresh(minds);
                tokio::task::spawn_blocking(note).await.expect("writing a file does not panic")
            }
        });
    }

    fn locked(&self) -> MutexGuard<'_, State> {
        self.locked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a message of a manager that has accepted the session.
    pub fn record_contact(&self) {
        self.update(|contact| contact.record_contact(Instant::now()));
    }

    /// Time since the last message of a manager.
    pub fn time_since_contact(&self) -> Duration {
        self.locked().tracker.time_since_contact(Instant::now())
    }

    /// Records that there is no session.
    pub fn record_disconnect(&self) {
        self.update(warren_task::ConnectivityTracker::record_disconnect);
    }

    fn update(&self, change: impl FnOnce(&mut warren_task::ConnectivityTracker<Instant>)) {
        let mut state = self.locked();
        change(&mut state.tracker);
        let standing = state.tracker.connectivity();
        // Under the lock, so that changes are published in order.
        self.connectivity.send_if_modified(|before| std::mem::replace(before, standing) != standing);
    }

    /// Called periodically: decides when a start without a manager is over, and updates the file while a task
    /// stops on disconnect (`minds`).
    pub fn refresh(&self, minds: bool) -> Result<(), FileError> {
        self.update(|contact| contact.update(Instant::now()));
        let state = self.locked();
        let Some(last) = state.tracker.last_contact().filter(|word| minds && state.last_saved != Some(*word))
        else {
            return Ok(());
        };
        // Every frame takes this lock, and the disk may be slow.
        drop(state);
        let Some(now) = boot_clock() else { return Ok(()) };
        let last_contact = now.millis.saturating_sub(last.elapsed().as_millis());
        self.path.parent().map_or(Ok(()), ensure_private_dir)?;
        write_private(&self.path, format!("{FORMAT} {} {last_contact}\n", now.boot).as_bytes())?;
        self.locked().last_saved = Some(last);
        Ok(())
    }
}

/// A moment in one boot of this machine.
#[derive(Debug, PartialEq, Eq)]
struct BootMoment {
    boot: String,
    millis: u128,
}

fn boot_clock() -> Option<BootMoment> {
    let boot = std::fs::read_to_string(BOOT_ID).ok()?.trim().to_owned();
    let uptime = std::fs::read_to_string(UPTIME).ok()?;
    let seconds: f64 = uptime.split(' ').next()?.parse().ok()?;
    Some(BootMoment { boot, millis: Duration::try_from_secs_f64(seconds).ok()?.as_millis() })
}

/// Time between the moment in the text and `now`; `None` if the text is not of this boot.
fn parse_silence(text: &str, now: &BootMoment) -> Option<Duration> {
    let mut words = text.split_whitespace();
    let (format, boot, millis) = (words.next()?, words.next()?, words.next()?.parse::<u128>().ok()?);
    let known = format == FORMAT && boot == now.boot && words.next().is_none();
    let passed = now.millis.checked_sub(millis).filter(|_| known)?;
    Some(Duration::from_millis(u64::try_from(passed).unwrap_or(u64::MAX)))
}

#[cfg(test)]
mod tests {
    use warren_task::START_GRACE;

    use super::*;

    const SEC: Duration = Duration::from_secs(1);

    fn disconnected_for(contact: &ConnectivityMonitor) -> Option<Duration> {
        contact.connectivity().borrow().disconnected_for(Instant::now())
    }

    #[tokio::test(start_paused = true)]
    async fn disconnection_counts_from_last_frame() {
        let dir = tempfile::tempdir().unwrap();
        let contact = ConnectivityMonitor::resume(dir.path());
        assert_eq!(disconnected_for(&contact), None, "too early to say");
        contact.record_contact();
        tokio::time::advance(5 * SEC).await;
        contact.record_contact();
        tokio::time::advance(4 * SEC).await;
        assert_eq!(disconnected_for(&contact), None);
        for _ in 0..2 {
            contact.record_disconnect();
            assert_eq!(disconnected_for(&contact), Some(4 * SEC), "not from when it was noticed");
        }
        tokio::time::advance(SEC).await;
        contact.record_disconnect();
        assert_eq!(disconnected_for(&contact), Some(5 * SEC));
        contact.record_contact();
        assert_eq!(disconnected_for(&contact), None);
    }

    #[tokio::test(start_paused = true)]
    async fn restarted_agent_adds_earlier_disconnection_after_grace() {
        let dir = tempfile::tempdir().unwrap();
        let first = ConnectivityMonitor::resume(dir.path());
        first.record_contact();
        first.refresh(false).unwrap();
        assert!(!first.path.exists(), "a missing file is no error");
        first.refresh(true).unwrap();
        let second = ConnectivityMonitor::resume(dir.path());
        second.record_disconnect();
        tokio::time::advance(START_GRACE - Duration::from_millis(1)).await;
        second.refresh(true).unwrap();
        second.record_disconnect();
        assert_eq!(disconnected_for(&second), None);
        tokio::time::advance(Duration::from_millis(1)).await;
        second.refresh(true).unwrap();
        let counted = disconnected_for(&second).unwrap();
        assert!((START_GRACE..START_GRACE + 60 * SEC).contains(&counted), "{counted:?}");
        // An unknown moment is not stored either.
        let text = std::fs::read_to_string(&second.path).unwrap();
        tokio::time::advance(60 * SEC).await;
        second.refresh(true).unwrap();
        assert_eq!(std::fs::read_to_string(&second.path).unwrap(), text);
    }

    #[tokio::test(start_paused = true)]
    async fn unknown_disconnection_counts_as_endless() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("connectivity"), "v1 another-boot 1\n").unwrap();
        let contact = ConnectivityMonitor::resume(dir.path());
        tokio::time::advance(START_GRACE).await;
        contact.refresh(true).unwrap();
        assert_eq!(disconnected_for(&contact), Some(Duration::MAX));
        contact.record_contact();
        contact.record_disconnect();
        assert_eq!(disconnected_for(&contact), Some(Duration::ZERO));
    }

    #[test]
    fn contact_file_of_other_boot_is_ignored() {
        let now = BootMoment { boot: "a".into(), millis: 5_000 };
        for (text, expected) in [
            ("v1 a 2000\n", Some(3 * SEC)),
            ("v1 a 5000\n", Some(Duration::ZERO)),
            ("v1 a 5001\n", None),
            ("v1 b 2000\n", None),
            ("v2 a 2000\n", None),
            ("v1 a 2000 more\n", None),
            ("v1 a\n", None),
            ("", None),
        ] {
            assert_eq!(parse_silence(text, &now), expected, "{text:?}");
        }
        let (one, two) = (boot_clock().unwrap(), boot_clock().unwrap());
        assert!(one.boot == two.boot && one.millis <= two.millis && one.millis > 0);
    }
}
