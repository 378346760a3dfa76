//! Clients that use the services of a live cluster as registers: the value is a label, the version that of the service.
//! What each asked and heard is recorded, for the checker of `warren-test-history`; and how soon writes are
//! acknowledged again after something broke is told.
//!
//! A call is one attempt at one manager. One that fails sends its client to the next manager.
//! Start reading at [`Registers::start`]; `client` is what one of them does.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod access;
mod client;
mod progress;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::sched::{CloneFlags, setns};
use tokio::task::LocalSet;
use warren_test_history::{Record, Recorder};

pub use access::Access;
use client::Client;
use progress::Progress;

/// What clients do, and where.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The API of each manager.
    pub managers: Vec<SocketAddr>,
    /// How many registers there are.
    pub registers: usize,
    /// How many clients.
    pub clients: u32,
    /// How long a client rests after each call.
    pub pause: Duration,
    /// The network namespace that they are in; `None`: that of the caller.
    pub netns: Option<PathBuf>,
    /// Decides what they do.
    pub seed: u64,
}

/// Clients at work, all on one thread. Dropping it stops them.
pub struct Registers {
    recorder: Recorder,
    progress: Arc<Progress>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Registers {
    /// Makes the registers, and starts.
    ///
    /// # Panics
    /// They cannot be made within a minute.
    #[must_use]
    #[track_caller]
    pub fn start(access: Access, plan: Plan) -> Self {
        let (recorder, progress) = (Recorder::default(), Arc::new(Progress::new()));
        let stop = Arc::new(AtomicBool::new(false));
        let parts = (recorder.clone(), Arc::clone(&progress), Arc::clone(&stop));
        let run = move || {
            if let Some(netns) = &plan.netns {
                let netns = std::fs::File::open(netns).expect("the network namespace is there");
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

    /// How long after `moment` the first write was acknowledged that was sent after it.
    ///
    /// # Panics
    /// None was within `deadline`.
    #[track_caller]
    pub fn wait_for_write(&self, moment: Instant, deadline: Duration) -> Duration {
        match self.progress.acknowledged_after(moment, deadline) {
            Some(took) => took,
            None => panic!("no write was acknowledged within {deadline:?}: {}", self.progress.last_failure()),
        }
    }

    /// Begins to watch for how long no write is acknowledged.
    pub fn watch(&self) {
        self.progress.watch(Instant::now());
    }

    /// The longest time since [`Registers::watch`] for which none was.
    #[must_use]
    pub fn longest_silence(&self) -> Duration {
        self.progress.longest_silence(Instant::now())
    }

    /// How many writes were acknowledged so far.
    #[must_use]
    pub fn acknowledged(&self) -> u64 {
        self.progress.acknowledged()
    }

    /// Stops the clients, and gives what they asked and heard.
    ///
    /// # Panics
    /// One of them panicked.
    #[must_use]
    #[track_caller]
    pub fn finish(mut self) -> Vec<Record> {
        self.stop.store(true, Ordering::Relaxed);
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(matches!(ended, Some(Ok(()))), "a client of the registers panicked");
        self.recorder.history()
    }
}

impl Drop for Registers {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // A panic there has been reported by the runtime.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

async fn work(
    access: Access,
    plan: Plan,
    (recorder, progress, stop): (Recorder, Arc<Progress>, Arc<AtomicBool>),
) {
    client::make_registers(&access, &plan, &recorder, &stop).await;
    let clients: Vec<_> = (0..plan.clients)
        .map(|number| {
            let parts = (recorder.clone(), Arc::clone(&progress), Arc::clone(&stop));
            tokio::task::spawn_local(Client::new(number, access.clone(), plan.clone(), parts).run())
        })
        .collect();
    for client in clients {
        client.await.expect("no client panics");
    }
}
