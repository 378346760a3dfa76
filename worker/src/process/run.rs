//! Running a worker until a signal, or until its cluster forgot it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::time::{Instant, sleep};
use warren_process::{Exit, Failure, Machine, Signals, chain};
use warren_security::{Credentials, LiveCertificate, Membership, MembershipStore, Roots};

use super::{Flags, MAX_ARCHIVE, Told, WHAT, failed, no_worker};
use crate::doors::{Doors, Place};
use crate::node::NodeOverrides;
use crate::worker::{Config, Worker};

/// From nothing to a session takes well under a second; a containerd that starts with it some more.
const READY_WITHIN: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Everything that a worker is started with.
#[derive(Debug)]
pub struct Setup {
    /// Holds everything that must survive.
    pub data_dir: PathBuf,
    /// Holds sockets and what need not survive.
    pub run_dir: PathBuf,
    /// Managers that it knows, each `host:port`.
    pub managers: Vec<String>,
    /// Who this node is.
    pub credentials: Credentials,
    /// Whom it trusts.
    pub roots: Roots,
    /// Where renewed certificates go; `None` where somebody else renews them.
    pub membership: Option<MembershipStore>,
    /// Where other machines reach this one; `None` is the address from which it reaches its manager.
    pub address: Option<String>,
    /// What a person said.
    pub flags: Flags,
}

fn place(data_dir: &Path, run_dir: &Path, flags: &Flags) -> Place {
    Place {
        containerd_socket: flags.containerd_socket.clone(),
        runtime: flags.runtime.clone(),
        insecure_registries: flags.insecure_registry.clone(),
        ..Place::new(data_dir, run_dir)
    }
}

/// What this machine lacks to be a worker; changes nothing.
///
/// # Errors
/// What it lacks.
pub async fn check(data_dir: &Path, run_dir: &Path, flags: &Flags) -> Result<(), Failure> {
    let place = place(data_dir, run_dir, flags);
    Doors::check(&place).await.map_err(|error| failed(WHAT, &error, ""))
}

/// Takes over what runs on this machine and looks for a manager. Returns at once: see [`ready`].
///
/// # Errors
/// Why it cannot.
pub async fn start(setup: Setup) -> Result<Worker, Failure> {
    let Setup { data_dir, run_dir, managers, credentials, roots, membership, address, flags } = setup;
    // Nodes on one machine must not sweep each other's cgroups.
    let cgroup_parent = format!("/warren/{}", credentials.identity().id());
    let doors = Doors::open(&Place { cgroup_parent, ..place(&data_dir, &run_dir, &flags) }).await;
    let doors = doors.map_err(|error| failed(WHAT, &error, ""))?;
    let labels = flags.labels();
    let config = Config {
        data_dir,
        managers,
        certificate: LiveCertificate::new(&credentials),
        roots,
        overrides: NodeOverrides { cpu: flags.cpus, memory: flags.memory, address, labels },
        max_archive: MAX_ARCHIVE,
        membership,
    };
    Worker::start(config, doors).await.map_err(|error| failed(WHAT, &error, ""))
}

/// Waits until the worker takes tasks.
///
/// # Errors
/// What it still lacks when it takes too long, in words.
pub async fn ready(worker: &Worker) -> Result<(), String> {
    let deadline = Instant::now() + READY_WITHIN;
    loop {
        match worker.ready() {
            Ok(()) => return Ok(()),
            Err(lacks) if Instant::now() >= deadline => return Err(lacks.to_string()),
            Err(_) => sleep(LOOK_EVERY).await,
        }
    }
}

/// Runs the worker that joined; `greeting` is said once it takes tasks.
pub(super) async fn run_joined(told: &Told, greeting: Option<String>) -> Result<(), Failure> {
    // Before anything is started, so that no signal finds nobody listening.
    let mut signals = Signals::listen(WHAT)?;
    Machine::look()?.must_be_root("run it as root")?;
    let store = told.membership();
    let member = store.load().map_err(|error| failed(WHAT, &error, "check the data directory"))?;
    let Membership::Member { credentials, roots } = member else {
        return Err(no_worker(&told.data_dir));
    };
    let worker = start(Setup {
        data_dir: told.data_dir.clone(),
        run_dir: told.run_dir(),
        managers: told.joined.managers.clone(),
        credentials,
        roots,
        membership: Some(store),
        address: told.joined.advertise.clone(),
        flags: told.flags.clone(),
    })
    .await?;
    let ended = attend(&worker, greeting, &mut signals).await;
    tracing::info!("stopping; containers keep running");
    if let Err(error) = worker.stop().await {
        tracing::warn!(error = chain(&error), "the worker did not stop in an orderly way");
    }
    ended
}

async fn attend(worker: &Worker, greeting: Option<String>, signals: &mut Signals) -> Result<(), Failure> {
    let work = async {
        if let Some(mut text) = greeting {
            if let Err(lacks) = ready(worker).await {
                text += &format!("this machine takes no tasks yet: {lacks}\n");
            }
            // Whoever started it may not read what it says, and it has other work than that.
            let _ = std::io::Write::write_all(&mut std::io::stdout(), text.as_bytes());
        }
        worker.removed().await
    };
    tokio::select! {
        () = signals.next() => Ok(()),
        why = work => {
            let hint = "if it shall be one again: `warren worker leave`, unless that was done, \
                        then `warren worker join HOST:PORT --token TOKEN`";
            Err(Failure::new(Exit::NotFound, "this machine is not a node of its cluster any more", why, hint))
        }
    }
}
