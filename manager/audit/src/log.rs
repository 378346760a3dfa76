//! The thread that writes, and the readers.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{broadcast, mpsc, oneshot};
use tokio::time::sleep;

use crate::files::{AuditFiles, read_lines};
use crate::{AuditFileLimits, AuditLine, LINE_VERSION};

/// Lines that may wait for the thread.
const MAX_QUEUED: usize = 1024;
/// How long a call waits for a place in the queue, and how often it looks.
const QUEUE_TIMEOUT: Duration = Duration::from_secs(1);
const QUEUE_POLL: Duration = Duration::from_millis(5);
/// Lines in memory while the disk is full, beyond which lines are lost.
const MAX_UNWRITTEN: usize = 10_000;
/// Interval of attempts to write them, and of syncing.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// Lines of one write.
const MAX_BATCH: usize = 256;
/// Items that may wait for a reader.
const MAX_UNREAD: usize = 64;

enum Message {
    Line(Box<AuditLine>),
    /// Answered when all lines before it are written, or cannot be.
    Flush(oneshot::Sender<()>),
    /// The same, and the thread ends.
    Close(oneshot::Sender<()>),
}

/// What the thread and the readers share.
struct Shared {
    /// Locked while files are renamed, and while a reader opens them.
    files: Mutex<AuditFiles>,
    /// Why lines cannot be written.
    failure: Mutex<Option<String>>,
    /// Lines that no place in the queue was found for.
    refused: Mutex<u64>,
    written: broadcast::Sender<Arc<AuditLine>>,
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Which lines are read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AuditFilter {
    /// Only lines after this number.
    pub after: u64,
    /// From this time on, in milliseconds since the Unix epoch.
    pub since: Option<u64>,
    /// Before this time.
    pub until: Option<u64>,
    /// Only callers with this name or id, or `uid N`; empty for all.
    pub user: String,
    /// Only these methods: `Services`, or `Services/Create`, in any case; empty for all.
    pub method: String,
}

impl AuditFilter {
    fn matches(&self, line: &AuditLine) -> bool {
        let AuditFilter { after, since, until, user, method } = self;
        let caller = &line.caller;
        let is_user = user.is_empty()
            || [&caller.name, &caller.id].contains(&user)
            || caller.uid.is_some_and(|uid| *user == format!("uid {uid}") || *user == uid.to_string());
        let service = line.method.split('/').next().unwrap_or_default();
        let is_method = method.is_empty()
            || line.method.eq_ignore_ascii_case(method)
            || service.eq_ignore_ascii_case(method);
        line.number > *after
            && since.is_none_or(|since| line.time >= since)
            && until.is_none_or(|until| line.time < until)
            && is_user
            && is_method
    }
}

/// What a reader gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AuditItem {
    /// A line.
    Line(Arc<AuditLine>),
    /// Why lines are missing here.
    Warning(String),
    /// All existing lines were sent; what follows is new.
    CaughtUp,
}

/// The audit log of this manager. Cheap to clone.
#[derive(Clone)]
pub struct AuditLog {
    queue: SyncSender<Message>,
    shared: Arc<Shared>,
}

impl AuditLog {
    /// Starts the thread that writes into `dir`. It ends with the last clone, with [`AuditLog::close`] or
    /// [`AuditLog::begin_close`], and drops `data_dir_lock` then.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start(
        dir: PathBuf,
        limits: AuditFileLimits,
        data_dir_lock: impl Send + 'static,
    ) -> std::io::Result<Self> {
        let (queue, messages) = sync_channel(MAX_QUEUED);
        let shared = Arc::new(Shared {
            files: Mutex::new(AuditFiles::new(dir, limits)),
            failure: Mutex::default(),
            refused: Mutex::default(),
            written: broadcast::Sender::new(MAX_QUEUED),
        });
        let writer = AuditWriter {
            shared: shared.clone(),
            unwritten: VecDeque::new(),
            lost: 0,
            next_number: None,
            is_synced: true,
        };
        std::thread::Builder::new().name("audit".into()).spawn(move || {
            let closed = writer.run(&messages);
            drop(data_dir_lock);
            // The caller may have left.
            closed.map(|closed| closed.send(()));
        })?;
        Ok(Self { queue, shared })
    }

    /// Hands a line over; its version and number are set by the thread. Waits at most a second.
    pub async fn record(&self, line: AuditLine) {
        let mut message = Message::Line(Box::new(line));
        let deadline = Instant::now() + QUEUE_TIMEOUT;
        loop {
            message = match self.queue.try_send(message) {
                Ok(()) => return,
                Err(TrySendError::Full(message)) if Instant::now() < deadline => message,
                Err(_) => break,
            };
            sleep(QUEUE_POLL).await;
        }
        *locked(&self.shared.refused) += 1;
    }

    /// Waits until all lines before are on disk, or cannot be written.
    pub async fn flush(&self) {
        self.request(Message::Flush).await;
    }

    /// Waits until all lines before are on disk, or cannot be written, and nothing is written any more.
    pub async fn close(&self) {
        self.request(Message::Close).await;
    }

    /// Begins to close without waiting. If the queue is full, the thread ends with the last clone.
    pub fn begin_close(&self) {
        let (done, _) = oneshot::channel();
        let _ = self.queue.try_send(Message::Close(done));
    }

    async fn request(&self, message: impl FnOnce(oneshot::Sender<()>) -> Message) {
        let (done, answer) = oneshot::channel();
        let mut message = message(done);
        loop {
            message = match self.queue.try_send(message) {
                Ok(()) => break,
                Err(TrySendError::Full(message)) => message,
                Err(TrySendError::Disconnected(_)) => return,
            };
            sleep(QUEUE_POLL).await;
        }
        // The thread ends without an answer if it was closed meanwhile, or panics.
        let _ = answer.await;
    }

    /// Why lines cannot be written at this time.
    pub fn failure(&self) -> Option<String> {
        locked(&self.shared.failure).clone()
    }

    /// Reads the lines in the order they were written; with `follow` also those that are written later.
    pub async fn read(&self, filter: AuditFilter, follow: bool) -> mpsc::Receiver<AuditItem> {
        self.flush().await;
        let later = follow.then(|| self.shared.written.subscribe());
        let (items, output) = mpsc::channel(MAX_UNREAD);
        let shared = self.shared.clone();
        tokio::spawn(async move {
            let (sink, known) = (items.clone(), filter.clone());
            let read = tokio::task::spawn_blocking(move || read_files(&shared, &known, &sink)).await;
            // The reader has left, or the runtime ends.
            let (Ok(Some(last)), Some(later)) = (read, later) else { return };
            if items.send(AuditItem::CaughtUp).await.is_ok() {
                tokio::select! {
                    () = follow_lines(later, AuditFilter { after: last.max(filter.after), ..filter }, &items) => {}
                    () = items.closed() => {}
                }
            }
        });
        output
    }
}

/// Sends the lines of the files. The number of the last one; `None` when the reader has left.
fn read_files(shared: &Shared, filter: &AuditFilter, items: &mpsc::Sender<AuditItem>) -> Option<u64> {
    let opened = locked(&shared.files).open_all();
    let warn = |why: String| items.blocking_send(AuditItem::Warning(why)).ok();
    let unreadable = |error: std::io::Error| format!("the audit log cannot be read: {error}");
    let mut last = 0;
    let files = match opened {
        Ok(files) => files,
        Err(error) => {
            warn(unreadable(error))?;
            Vec::new()
        }
    };
    for file in files {
        for line in read_lines(file) {
            match line {
                Ok(Ok(line)) => {
                    last = line.number;
                    if filter.matches(&line) {
                        items.blocking_send(AuditItem::Line(Arc::new(line))).ok()?;
                    }
                }
                Ok(Err(why)) => warn(why)?,
                Err(error) => warn(unreadable(error))?,
            }
        }
    }
    if let Some(why) = locked(&shared.failure).clone() {
        warn(format!("the newest lines are not written yet: {why}"))?;
    }
    Some(last)
}

async fn follow_lines(
    mut later: broadcast::Receiver<Arc<AuditLine>>,
    filter: AuditFilter,
    items: &mpsc::Sender<AuditItem>,
) {
    loop {
        let item = match later.recv().await {
            Ok(line) if filter.matches(&line) => AuditItem::Line(line),
            Ok(_) => continue,
            Err(broadcast::error::RecvError::Lagged(count)) => {
                AuditItem::Warning(format!("{count} lines are not shown, since they were read too slowly"))
            }
            Err(broadcast::error::RecvError::Closed) => return,
        };
        if items.send(item).await.is_err() {
            return;
        }
    }
}

/// The thread.
struct AuditWriter {
    shared: Arc<Shared>,
    unwritten: VecDeque<AuditLine>,
    /// Lines that were dropped since the last one was written.
    lost: u64,
    /// `None` until the number of the last line has been read.
    next_number: Option<u64>,
    is_synced: bool,
}

impl AuditWriter {
    /// Whom to tell that it has ended.
    fn run(mut self, messages: &Receiver<Message>) -> Option<oneshot::Sender<()>> {
        loop {
            let is_idle = self.unwritten.is_empty() && self.is_synced;
            let first = match is_idle {
                true => messages.recv().map_err(|_| RecvTimeoutError::Disconnected),
                false => messages.recv_timeout(RETRY_INTERVAL),
            };
            let is_timeout = matches!(first, Err(RecvTimeoutError::Timeout));
            if matches!(first, Err(RecvTimeoutError::Disconnected)) {
                self.write();
                self.sync();
                return None;
            }
            let waiting = messages.try_iter().take(MAX_BATCH);
            let (mut flushed, mut closed) = (Vec::new(), None);
            for message in first.into_iter().chain(waiting) {
                match message {
                    Message::Line(line) => self.keep(*line),
                    Message::Flush(done) => flushed.push(done),
                    Message::Close(done) => closed = Some(done),
                }
            }
            let must_write = is_timeout || !flushed.is_empty() || closed.is_some();
            // While the disk is full, each attempt costs time.
            if must_write || locked(&self.shared.failure).is_none() {
                self.write();
            }
            if must_write {
                self.sync();
            }
            for done in flushed {
                // The caller may have left.
                let _ = done.send(());
            }
            if closed.is_some() {
                return closed;
            }
        }
    }

    fn keep(&mut self, line: AuditLine) {
        match self.unwritten.len() < MAX_UNWRITTEN {
            true => self.unwritten.push_back(line),
            false => self.lost += 1,
        }
    }

    fn write(&mut self) {
        self.lost += std::mem::take(&mut *locked(&self.shared.refused));
        while !self.unwritten.is_empty() || self.lost > 0 {
            let written = self.write_batch();
            let mut failure = locked(&self.shared.failure);
            match written {
                Ok(()) if failure.is_some() => {
                    tracing::info!("the audit log is written again");
                    *failure = None;
                }
                Ok(()) => {}
                Err(error) => {
                    if failure.is_none() {
                        tracing::error!(%error, "the audit log cannot be written; its lines are kept in memory");
                    }
                    *failure = Some(format!("the audit log cannot be written: {error}"));
                    return;
                }
            }
        }
    }

    fn write_batch(&mut self) -> std::io::Result<()> {
        let mut files = locked(&self.shared.files);
        let mut number = match self.next_number {
            Some(number) => number,
            None => files.last_number()? + 1,
        };
        let count = self.unwritten.len().min(MAX_BATCH);
        let lost = (self.lost > 0).then(|| AuditLine {
            time: u64::try_from(jiff::Timestamp::now().as_millisecond()).unwrap_or_default(),
            lost: self.lost,
            ..AuditLine::default()
        });
        let (mut text, mut written) = (Vec::new(), Vec::new());
        for line in self.unwritten.iter().take(count).cloned().chain(lost) {
            let line = AuditLine { version: LINE_VERSION, number, ..line };
            line.encode(&mut text);
            written.push(Arc::new(line));
            number += 1;
        }
        files.append(&text)?;
        drop(files);
        self.unwritten.drain(..count);
        (self.next_number, self.lost, self.is_synced) = (Some(number), 0, false);
        for line in written {
            // Nobody may follow.
            let _ = self.shared.written.send(line);
        }
        Ok(())
    }

    fn sync(&mut self) {
        if !self.is_synced {
            self.is_synced = true;
            if let Err(error) = locked(&self.shared.files).sync() {
                tracing::error!(%error, "the audit log cannot be synced");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(method: &str, time: u64) -> AuditLine {
        AuditLine { method: method.into(), time, manager: "m1".into(), ..AuditLine::default() }
    }

    async fn numbers(items: &mut mpsc::Receiver<AuditItem>) -> Vec<u64> {
        let mut numbers = Vec::new();
        while let Some(item) = items.recv().await {
            match item {
                AuditItem::Line(line) => numbers.push(line.number),
                AuditItem::CaughtUp => break,
                AuditItem::Warning(why) => panic!("{why}"),
            }
        }
        numbers
    }

    #[tokio::test]
    async fn lines_are_numbered_and_followed_across_restart() {
        let dir = tempfile::tempdir().unwrap();
        let lock = Arc::new(());
        let start =
            || AuditLog::start(dir.path().join("audit"), AuditFileLimits::default(), lock.clone()).unwrap();
        let log = start();
        for time in 1..=3 {
            log.record(line("Services/Create", time)).await;
        }
        log.close().await;
        assert_eq!(Arc::strong_count(&lock), 1);
        // Too late, but neither is an error.
        log.record(line("Services/Create", 4)).await;
        log.flush().await;
        let log = start();
        log.record(line("Tasks/Exec", 4)).await;
        let filter = AuditFilter { since: Some(2), method: "services".into(), ..AuditFilter::default() };
        assert_eq!(numbers(&mut log.read(filter, false).await).await, [2, 3]);
        let mut items = log.read(AuditFilter { after: 3, ..AuditFilter::default() }, true).await;
        assert_eq!(numbers(&mut items).await, [4]);
        log.record(line("Tasks/Exec", 5)).await;
        let next = items.recv().await.unwrap();
        assert!(matches!(&next, AuditItem::Line(line) if line.number == 5), "{next:?}");
        assert_eq!(log.failure(), None);
        // Others still hold it.
        let clone = log.clone();
        log.begin_close();
        let released = async {
            while Arc::strong_count(&lock) > 1 {
                sleep(QUEUE_POLL).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), released).await.expect("the lock is released");
        drop(clone);
    }

    #[tokio::test]
    async fn lines_wait_in_memory_while_the_disk_fails() {
        let dir = tempfile::tempdir().unwrap();
        let (blocked, limits) = (dir.path().join("audit"), AuditFileLimits::default());
        // No directory can be created where a file is.
        std::fs::write(&blocked, "").unwrap();
        let log = AuditLog::start(blocked.clone(), limits, ()).unwrap();
        log.record(line("Services/Create", 1)).await;
        log.flush().await;
        assert!(log.failure().unwrap().contains("cannot be written"));
        let mut items = log.read(AuditFilter::default(), false).await;
        assert!(matches!(items.recv().await, Some(AuditItem::Warning(_))));
        std::fs::remove_file(&blocked).unwrap();
        log.flush().await;
        assert_eq!(log.failure(), None);
        assert_eq!(numbers(&mut log.read(AuditFilter::default(), false).await).await, [1]);
    }

    #[test]
    fn filter_selects_users_and_methods() {
        let mut exec = line("Tasks/Exec", 5);
        exec.number = 1;
        exec.caller.uid = Some(1000);
        let filter = |user: &str, method: &str| AuditFilter {
            user: user.into(),
            method: method.into(),
            ..AuditFilter::default()
        };
        for (user, method) in [("", ""), ("uid 1000", "tasks"), ("1000", "TASKS/EXEC")] {
            assert!(filter(user, method).matches(&exec), "{user} {method}");
        }
        for (user, method) in [("alice", ""), ("", "Tasks/Restart"), ("", "Task")] {
            assert!(!filter(user, method).matches(&exec), "{user} {method}");
        }
    }
}
