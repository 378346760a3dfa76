//! For how long this node has been without any manager, which tasks may mind.
//!
//! Counted from the last word of a manager, by a clock that nobody sets. While there is a task that minds, that moment
//! is also kept in a file, by a clock that runs on through restarts of the agent. An agent that starts counts from
//! what the file says, so the time for which no agent ran counts as well; it only waits a moment for a first
//! session before it says so (`warren_task::Contact`). Without a file of this boot nobody knows for how long, and it
//! is taken for endless: a process that runs is stopped then, and one that does not is started when a manager wants it.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;
use warren_control::Loops;
use warren_security::files::{FileError, ensure_private_dir, write_private};
use warren_task::Wishes;

/// How often the file is brought up to date.
const NOTE_EVERY: Duration = Duration::from_secs(2);
/// How the file's content begins.
const FORMAT: &str = "v1";
/// Tells the boots of a machine apart (proc(5)).
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
/// Seconds since the boot, those in which it was suspended included (proc(5)).
const UPTIME: &str = "/proc/uptime";

/// How this node stands with managers.
pub(crate) type Standing = warren_task::Standing<Instant>;

/// Keeps the standing.
#[derive(Debug)]
pub(crate) struct Contact {
    standing: watch::Sender<Standing>,
    file: PathBuf,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    contact: warren_task::Contact<Instant>,
    /// What the file says.
    noted: Option<Instant>,
}

impl Contact {
    /// Of an agent that starts now, after others that kept their file in `run_dir`.
    pub fn resume(run_dir: &Path) -> Self {
        let file = run_dir.join("contact");
        let kept = std::fs::read_to_string(&file).ok().zip(boot_clock());
        let before = kept.and_then(|(text, now)| silence(&text, &now));
        let state = State { contact: warren_task::Contact::resume(Instant::now(), before), noted: None };
        Self { standing: watch::Sender::default(), file, state: Mutex::new(state) }
    }

    /// How the node stands from now on.
    pub fn standing(&self) -> watch::Receiver<Standing> {
        self.standing.subscribe()
    }

    /// Calls [`Contact::note`] for as long as `loops` run.
    pub fn keep(self: Arc<Self>, wishes: watch::Receiver<Wishes>, loops: &Loops) {
        loops.spawn("worker.contact", NOTE_EVERY, move || {
            let contact = Arc::clone(&self);
            let minds = wishes.borrow().tasks.values().any(|task| !task.spec.on_disconnect.is_keep());
            async move {
                let note = move || contact.note(minds);
                tokio::task::spawn_blocking(note).await.expect("writing a file does not panic")
            }
        });
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A manager that has welcomed the node says something.
    pub fn heard(&self) {
        self.change(|contact| contact.heard(Instant::now()));
    }

    /// For how long no manager has said a word.
    pub fn silent_for(&self) -> Duration {
        self.state().contact.silent_for(Instant::now())
    }

    /// There is no session any more, or none came about.
    pub fn lost(&self) {
        self.change(warren_task::Contact::lost);
    }

    fn change(&self, change: impl FnOnce(&mut warren_task::Contact<Instant>)) {
        let mut state = self.state();
        change(&mut state.contact);
        let standing = state.contact.standing();
        // Under the lock, so that of two changes the later one is told last.
        self.standing.send_if_modified(|before| std::mem::replace(before, standing) != standing);
    }

    /// Called again and again: says when a start is over that found no manager, and keeps the file while a task
    /// `minds`.
    pub fn note(&self, minds: bool) -> Result<(), FileError> {
        self.change(|contact| contact.look(Instant::now()));
        let state = self.state();
        let Some(last) = state.contact.last_word().filter(|word| minds && state.noted != Some(*word)) else {
            return Ok(());
        };
        // Every frame asks for the state, and the disk may take its time.
        drop(state);
        let Some(now) = boot_clock() else { return Ok(()) };
        let heard = now.millis.saturating_sub(last.elapsed().as_millis());
        self.file.parent().map_or(Ok(()), ensure_private_dir)?;
        write_private(&self.file, format!("{FORMAT} {} {heard}\n", now.boot).as_bytes())?;
        self.state().noted = Some(last);
        Ok(())
    }
}

/// A moment of one boot of this machine.
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

/// How long ago by `now` the moment was that a file's text names; `None` where it says nothing of this boot.
fn silence(text: &str, now: &BootMoment) -> Option<Duration> {
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

    fn alone(contact: &Contact) -> Option<Duration> {
        contact.standing().borrow().alone_for(Instant::now())
    }

    #[tokio::test(start_paused = true)]
    async fn the_time_counts_from_a_managers_last_word() {
        let dir = tempfile::tempdir().unwrap();
        let contact = Contact::resume(dir.path());
        assert_eq!(alone(&contact), None, "too early to say");
        contact.heard();
        tokio::time::advance(5 * SEC).await;
        contact.heard();
        tokio::time::advance(4 * SEC).await;
        assert_eq!(alone(&contact), None);
        for _ in 0..2 {
            contact.lost();
            assert_eq!(alone(&contact), Some(4 * SEC), "not from when it was noticed");
        }
        tokio::time::advance(SEC).await;
        contact.lost();
        assert_eq!(alone(&contact), Some(5 * SEC));
        contact.heard();
        assert_eq!(alone(&contact), None);
    }

    #[tokio::test(start_paused = true)]
    async fn an_agent_that_starts_has_a_moment_and_then_counts_what_was_before() {
        let dir = tempfile::tempdir().unwrap();
        let first = Contact::resume(dir.path());
        first.heard();
        first.note(false).unwrap();
        assert!(!first.file.exists(), "nobody minds");
        first.note(true).unwrap();
        let second = Contact::resume(dir.path());
        second.lost();
        tokio::time::advance(START_GRACE - Duration::from_millis(1)).await;
        second.note(true).unwrap();
        second.lost();
        assert_eq!(alone(&second), None);
        tokio::time::advance(Duration::from_millis(1)).await;
        second.note(true).unwrap();
        let counted = alone(&second).unwrap();
        assert!((START_GRACE..START_GRACE + 60 * SEC).contains(&counted), "{counted:?}");
        // What is not known any better is not written down either.
        let text = std::fs::read_to_string(&second.file).unwrap();
        tokio::time::advance(60 * SEC).await;
        second.note(true).unwrap();
        assert_eq!(std::fs::read_to_string(&second.file).unwrap(), text);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_not_known_counts_as_endless() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("contact"), "v1 another-boot 1\n").unwrap();
        let contact = Contact::resume(dir.path());
        tokio::time::advance(START_GRACE).await;
        contact.note(true).unwrap();
        assert_eq!(alone(&contact), Some(Duration::MAX));
        contact.heard();
        contact.lost();
        assert_eq!(alone(&contact), Some(Duration::ZERO));
    }

    #[test]
    fn a_file_says_something_of_its_own_boot_only() {
        let now = BootMoment { boot: "a".into(), millis: 5_000 };
        for (text, wanted) in [
            ("v1 a 2000\n", Some(3 * SEC)),
            ("v1 a 5000\n", Some(Duration::ZERO)),
            ("v1 a 5001\n", None),
            ("v1 b 2000\n", None),
            ("v2 a 2000\n", None),
            ("v1 a 2000 more\n", None),
            ("v1 a\n", None),
            ("", None),
        ] {
            assert_eq!(silence(text, &now), wanted, "{text:?}");
        }
        let (one, two) = (boot_clock().unwrap(), boot_clock().unwrap());
        assert!(one.boot == two.boot && one.millis <= two.millis && one.millis > 0);
    }
}
