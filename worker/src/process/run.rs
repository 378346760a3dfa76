//! Running a worker until a signal, or until its cluster removed it: then everything that it runs is stopped first.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use warren_process::{Exit, Failure, Machine, Signals, chain};
use warren_security::{LiveCertificate, MembershipStore, Roots};
use warren_task::Wishes;

use super::{Flags, MAX_ARCHIVE, Shown, Told, WHAT, failed};
use crate::doors::{Doors, Place};
use crate::node::NodeOverrides;
use crate::session::{Outcast, Removal, removal_file};
use crate::worker::{Config, Worker};

/// From nothing to a session takes well under a second; a containerd that starts with it some more.
const READY_WITHIN: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// What finishes a removal that was not finished.
const AGAIN: &str = "warren worker run";

/// Everything that a worker is started with.
#[derive(Debug)]
pub struct Setup {
    /// Holds everything that must survive.
    pub data_dir: PathBuf,
    /// Holds sockets and what need not survive.
    pub run_dir: PathBuf,
    /// Managers that it knows, each `host:port`.
    pub managers: Vec<String>,
    /// Who this node is, as long as it runs.
    pub certificate: Arc<LiveCertificate>,
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
    if setup.membership.is_none() {
        // The machine is a manager: that it was removed is of an earlier life as one.
        super::forget(&removal_file(&setup.data_dir)).map_err(|error| failed(WHAT, &error, ""))?;
    }
    open(setup).await
}

/// As [`start`]; one that is written down to be removed only clears what it ran.
pub(super) async fn open(setup: Setup) -> Result<Worker, Failure> {
    let Setup { data_dir, run_dir, managers, certificate, roots, membership, address, flags } = setup;
    // Nodes on one machine must not sweep each other's cgroups.
    let cgroup_parent = format!("/warren/{}", certificate.identity().id());
    let doors = Doors::open(&Place { cgroup_parent, ..place(&data_dir, &run_dir, &flags) }).await;
    let doors = doors.map_err(|error| failed(WHAT, &error, ""))?;
    let labels = flags.labels();
    let config = Config {
        data_dir,
        run_dir,
        managers,
        certificate,
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

/// How a worker ended that did what it should.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Ended {
    /// It was told to.
    Told,
    /// Its cluster removed it, and nothing of what it ran is left.
    Removed {
        /// What is known of it.
        removal: Removal,
        /// It had been removed before this process ran it.
        before: bool,
    },
    /// It was to resume what it was, and no manager knows it.
    Unknown,
}

/// Why a worker is run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Occasion {
    /// It just joined: what to say once it takes tasks.
    Joined(String),
    /// A person said `join` on a machine that is a member already.
    Resumed,
    /// A person said `run`, or what is left of it is to be cleared.
    Run,
}

/// Runs the worker that joined.
pub(super) async fn run_joined(told: &Told, occasion: Occasion, shown: &Shown) -> Result<Ended, Failure> {
    // Before anything is started, so that no signal finds nobody listening.
    let mut signals = Signals::listen(WHAT)?;
    Machine::look()?.must_be_root("run it as root")?;
    let (credentials, roots) = told.member()?;
    let note = told.note(&credentials)?;
    if let Some(removal) = note.load().filter(|removal| removal.cleared) {
        return Ok(Ended::Removed { removal, before: true });
    }
    let worker = open(Setup {
        data_dir: told.data_dir.clone(),
        run_dir: told.run_dir(),
        managers: told.managers(),
        certificate: LiveCertificate::new(&credentials),
        roots,
        membership: Some(told.membership()),
        address: told.joined.advertise.clone(),
        flags: told.flags.clone(),
    })
    .await?;
    shown.show(&worker);
    let ended = tokio::select! {
        () = signals.next() => {
            tracing::info!("stopping; containers keep running");
            Ok(Ended::Told)
        }
        ended = attend(&worker, occasion) => ended,
        never = keep_known(told, worker.wishes()) => match never {},
    };
    let stopped = worker.stop().await.inspect_err(|error| {
        tracing::warn!(error = chain(error), "the worker did not stop in an orderly way");
    });
    match ended {
        Ok(Ended::Removed { removal, before }) => {
            stopped.map_err(|error| not_cleared(&error, AGAIN))?;
            // Without a note, which a full disk may have prevented, it is not known how many containers there were.
            let removal = note.load().unwrap_or(removal);
            if !removal.cleared {
                return Err(not_cleared(&Returned, AGAIN));
            }
            tracing::info!(
                containers = removal.containers,
                "everything that ran here is stopped and removed"
            );
            Ok(Ended::Removed { removal, before })
        }
        other => other,
    }
}

/// Writes down which managers there are, whenever there are others: what else knows them is a cache.
async fn keep_known(told: &Told, mut wishes: watch::Receiver<Wishes>) -> std::convert::Infallible {
    let mut kept = told.joined.known.clone();
    loop {
        let settings = wishes.borrow_and_update().settings.clone();
        let known = settings.map(|settings| settings.managers).unwrap_or_default();
        if !known.is_empty() && known != kept {
            kept.clone_from(&known);
            let data_dir = told.data_dir.clone();
            let remember = move || super::remember_known(&data_dir, known);
            let remembered = tokio::task::spawn_blocking(remember).await;
            if let Err(failure) = remembered.expect("writing a file does not panic") {
                tracing::warn!(why = failure.why, "could not write down which managers there are");
            }
        }
        if wishes.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// A container was there again when the worker ended: its creation was under way.
#[derive(Debug, thiserror::Error)]
#[error("a container came while the others were removed")]
pub(super) struct Returned;

/// Waits until the worker shall end; a signal may come first.
async fn attend(worker: &Worker, occasion: Occasion) -> Result<Ended, Failure> {
    let resumed = occasion == Occasion::Resumed;
    let greet = async {
        if let Occasion::Joined(mut text) = occasion {
            if let Err(lacks) = ready(worker).await {
                text += &format!("this machine takes no tasks yet: {lacks}\n");
            }
            // Whoever started it may not read what it says, and it has other work than that.
            let _ = std::io::Write::write_all(&mut std::io::stdout(), text.as_bytes());
        }
        std::future::pending::<std::convert::Infallible>().await
    };
    let outcast = async {
        let mut known = None;
        loop {
            match worker.outcast(known).await {
                Outcast::Removed { reason, before } => return Some((reason, before)),
                Outcast::Unknown { before: true, .. } if resumed => return None,
                // It may be known again: a manager that was restored from too old a backup, for one.
                unknown @ Outcast::Unknown { .. } => known = Some(unknown),
            }
        }
    };
    let outcast = tokio::select! {
        never = greet => match never {},
        outcast = outcast => outcast,
    };
    let Some((reason, before)) = outcast else { return Ok(Ended::Unknown) };
    worker.cleared().await.map_err(|error| not_cleared(&error, AGAIN))?;
    Ok(Ended::Removed { removal: Removal { reason, containers: 0, cleared: true }, before })
}

/// What a person hears whose machine was removed, and is cleared.
pub(super) fn removed(removal: &Removal) -> Failure {
    let why = format!("{}; {}", removal.reason, cleared(removal));
    let hint = "to make it one again: `warren worker join HOST:PORT --token TOKEN`";
    Failure::new(Exit::NotFound, "this machine is not a node of its cluster any more", why, hint)
}

/// What was done, in words.
pub(super) fn cleared(removal: &Removal) -> String {
    match removal.containers {
        0 => "nothing ran here that had to be stopped".to_owned(),
        1 => "its container was stopped and removed".to_owned(),
        containers => format!("its {containers} containers were stopped and removed"),
    }
}

pub(super) fn not_cleared(error: &dyn std::error::Error, again: &str) -> Failure {
    let what = "this machine was removed from its cluster, and not everything that it ran is gone";
    Failure::new(Exit::Failed, what, chain(error), format!("see to it, then let `{again}` finish it"))
}
