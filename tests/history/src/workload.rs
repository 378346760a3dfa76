//! Clients that use the services of a live cluster as registers: the value is a label, the version that of
//! the service. All calls and answers are recorded for the checker, and the time
//! until writes are acknowledged again after a failure is measured.
//!
//! A call is one attempt at one manager. After a failed call its client uses the next manager.
//! Start reading at [`RegisterWorkload::start`]; `client` is one client.

mod access;
mod client;
mod progress;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::{HistoryRecorder, OperationRecord};
use nix::sched::{CloneFlags, setns};
use tokio::task::LocalSet;

pub use access::AdminAccess;
use client::RegisterClient;
use progress::WriteProgress;

/// The configuration of the clients.
#[derive(Debug, Clone)]
pub struct RegisterWorkloadConfig {
    /// The API address of each manager.
    pub managers: Vec<SocketAddr>,
    /// The number of registers.
    pub registers: usize,
    /// The number of clients.
    pub clients: u32,
    /// The pause of a client after each call.
    pub pause: Duration,
    /// The network namespace of the clients; `None`: that of the caller.
    pub netns: Option<PathBuf>,
    /// The seed of their choices.
    pub seed: u64,
}

/// Running clients, all on one thread. Dropping it stops them.
pub struct RegisterWorkload {
    recorder: HistoryRecorder,
    progress: Arc<WriteProgress>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl RegisterWorkload {
    /// Creates the registers, and starts the clients.
    ///
    /// # Panics
    /// If the registers cannot be created within a minute.
    #[must_use]
    #[track_caller]
    pub fn start(access: AdminAccess, plan: RegisterWorkloadConfig) -> Self {
        let (recorder, progress) = (HistoryRecorder::default(), Arc::new(WriteProgress::new()));
        let stop = Arc::new(AtomicBool::new(false));
        let parts = (recorder.clone(), Arc::clone(&progress), Arc::clone(&stop));
        let run = move || {
            if let Some(netns) = &plan.netns {
                let netns = std::fs::File::open(netns).expect("the network namespace exists");
                setns(netns, CloneFlags::CLONE_NEWNET).expect("root can enter a network namespace");
            }
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let clients = LocalSet::new();
            runtime.expect("a runtime can be made").block_on(clients.run_until(work(access, plan, parts)));
        };
        let thread = std::thread::Builder::new().name("registers".into()).spawn(run);
        let thread = Some(thread.expect("a thread can be started"));
        let started = Self { recorder, progress, stop, thread };
        started.wait_for_write(Instant::now(), Duration::from_secs(60));
        started
    }

    /// The time from `moment` to the first acknowledgement of a write that was sent after it.
    ///
    /// # Panics
    /// If there was none within `deadline`.
    #[track_caller]
    pub fn wait_for_write(&self, moment: Instant, deadline: Duration) -> Duration {
        match self.progress.acknowledged_after(moment, deadline) {
            Some(took) => took,
            None => panic!("no write was acknowledged within {deadline:?}: {}", self.progress.last_failure()),
        }
    }

    /// Begins to measure the longest time without an acknowledged write.
    pub fn watch(&self) {
        self.progress.watch(Instant::now());
    }

    /// The longest time without an acknowledged write since [`RegisterWorkload::watch`].
    #[must_use]
    pub fn longest_silence(&self) -> Duration {
        self.progress.longest_silence(Instant::now())
    }

    /// The number of acknowledged writes so far.
    #[must_use]
    pub fn acknowledged(&self) -> u64 {
        self.progress.acknowledged()
    }

    /// Stops the clients, and returns their history.
    ///
    /// # Panics
    /// If one of them panicked.
    #[must_use]
    #[track_caller]
    pub fn finish(mut self) -> Vec<OperationRecord> {
        self.stop.store(true, Ordering::Relaxed);
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(matches!(ended, Some(Ok(()))), "a client of the registers panicked");
        self.recorder.history()
    }
}

impl Drop for RegisterWorkload {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // The runtime has reported a panic there.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

async fn work(
    access: AdminAccess,
    plan: RegisterWorkloadConfig,
    (recorder, progress, stop): (HistoryRecorder, Arc<WriteProgress>, Arc<AtomicBool>),
) {
    client::make_registers(&access, &plan, &recorder, &stop).await;
    let clients: Vec<_> = (0..plan.clients)
        .map(|number| {
            let parts = (recorder.clone(), Arc::clone(&progress), Arc::clone(&stop));
            tokio::task::spawn_local(RegisterClient::new(number, access.clone(), plan.clone(), parts).run())
        })
        .collect();
    for client in clients {
        client.await.expect("no client panics");
    }
}
