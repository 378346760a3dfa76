//! A worker as a program: joining a cluster, running, leaving. `warren-worker` is this alone, `warren worker` the same
//! in the large program, and a hybrid node uses its flags.

mod clear;
mod flags;
mod join;
mod leave;
mod run;
mod shown;

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand};
use serde::{Deserialize, Serialize};
use warren_process::settings::Sections;
use warren_process::{Exit, Failure, MetricsArgs, NodeSection, PlaceArgs, chain};
use warren_security::{Credentials, Membership, MembershipStore, Roots};
use warren_types::ManagerAddress;

use crate::session::RemovalNote;
use crate::worker::identity;

pub use clear::clear;
pub use flags::{Flags, Label};
pub use run::{Setup, check, ready, start};
use shown::Shown;

const WHAT: &str = "the node was not started";
/// Names of the sections of `node.toml`.
const NODE: &str = "node";
const MANAGER: &str = "manager";
const WORKER: &str = "worker";
const JOINED: &str = "joined";
/// What a worker is called among the parts of a node.
pub const PART: &str = "worker";
/// The largest archive that `image import` may bring.
const MAX_ARCHIVE: u64 = 16 << 30;

/// What `warren-worker` can be asked.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Make this machine a worker of a cluster and run it, or resume what an earlier join made; a machine that was
    /// removed from the cluster joins anew
    Join(JoinArgs),
    /// Run what an earlier `join` made
    Run(RunArgs),
    /// Leave the cluster: tasks are replaced elsewhere first, then the node is forgotten, and what it ran is stopped
    Leave(LeaveArgs),
}

/// Flags of `join`.
#[derive(Debug, Args)]
pub struct JoinArgs {
    /// A manager of the cluster
    #[arg(value_name = "HOST:PORT", value_parser = flags::manager)]
    pub address: String,
    /// What lets this machine in: `warren token create --role worker` prints one
    #[arg(long, env = "WARREN_TOKEN", hide_env_values = true, value_name = "TOKEN")]
    pub token: String,
    /// Where other machines reach this one [default: the address it reaches the manager from]
    #[arg(long, env = "WARREN_ADVERTISE", value_name = "HOST")]
    pub advertise: Option<String>,
    /// Where the node keeps what.
    #[command(flatten)]
    pub place: PlaceArgs,
    /// Where it shows whether it is well.
    #[command(flatten)]
    pub metrics: MetricsArgs,
    /// The worker's own.
    #[command(flatten)]
    pub flags: Flags,
}

/// Flags of `run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// Where the node keeps what.
    #[command(flatten)]
    pub place: PlaceArgs,
    /// Where it shows whether it is well.
    #[command(flatten)]
    pub metrics: MetricsArgs,
    /// The worker's own.
    #[command(flatten)]
    pub flags: Flags,
}

/// Flags of `leave`.
#[derive(Debug, Args)]
pub struct LeaveArgs {
    /// Where the node keeps what.
    #[command(flatten)]
    pub place: PlaceArgs,
    /// Give up its tasks at once, instead of waiting until they run elsewhere
    #[arg(long)]
    pub force: bool,
    /// Ask no manager, since the cluster is gone for good: only stop and forget what is on this machine
    #[arg(long)]
    pub offline: bool,
    /// How long its tasks may take to be replaced, and then its containers to stop
    #[arg(long, default_value = "10m", value_parser = flags::duration, value_name = "DURATION")]
    pub deadline: Duration,
}

/// What is remembered of how the machine joined.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
struct JoinedSection {
    /// Managers that it knows, each `host:port`.
    managers: Vec<String>,
    /// Those that managers told of last.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    known: Vec<ManagerAddress>,
    #[serde(skip_serializing_if = "Option::is_none")]
    advertise: Option<String>,
}

/// Everything a worker is started with.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Told {
    data_dir: PathBuf,
    node: NodeSection,
    joined: JoinedSection,
    flags: Flags,
}

impl Told {
    /// What an earlier join was told, and what is said now over it; `None` where there was none.
    fn load(place: PlaceArgs, metrics: MetricsArgs, said: Flags) -> Result<Option<Self>, Failure> {
        let node = NodeSection::said(&place, metrics);
        let data_dir = place.data_dir;
        let Some(kept) = Sections::load(&data_dir)? else { return Ok(None) };
        if kept.section::<toml::Table>(MANAGER)?.is_some() {
            let why = format!("{} is of a manager", data_dir.display());
            let hint = "use `warren manager run`, or choose another --data-dir";
            return Err(Failure::new(Exit::Conflict, WHAT, why, hint));
        }
        let node = node.over(kept.section::<NodeSection>(NODE)?.unwrap_or_default());
        let Some(joined) = kept.section::<JoinedSection>(JOINED)? else { return Ok(None) };
        let flags = said.over(kept.section::<Flags>(WORKER)?.unwrap_or_default());
        Ok(Some(Self { data_dir, node, joined, flags }))
    }

    /// What is said of joining now, over what was said before. One more manager to dial does no harm.
    fn and(mut self, said: JoinedSection) -> Self {
        let new = said.managers.into_iter().filter(|manager| !self.joined.managers.contains(manager));
        let new: Vec<_> = new.collect();
        self.joined.managers.extend(new);
        self.joined.advertise = said.advertise.or(self.joined.advertise);
        self
    }

    fn remember(&self) -> Result<(), Failure> {
        let sections = Sections::new(&self.data_dir).with(NODE, &self.node).with(JOINED, &self.joined);
        sections.with(WORKER, &self.flags).remember()
    }

    fn run_dir(&self) -> PathBuf {
        self.node.run_dir()
    }

    /// Every manager that a person or a manager told of, each `host:port`.
    fn managers(&self) -> Vec<String> {
        let JoinedSection { managers, known, .. } = &self.joined;
        let known = known.iter().map(ToString::to_string).filter(|known| !managers.contains(known));
        managers.iter().cloned().chain(known).collect()
    }

    /// Holds what makes this machine a member.
    fn membership(&self) -> MembershipStore {
        MembershipStore::new(self.data_dir.join("worker"))
    }

    /// What this machine shows as a member, and whom it trusts.
    fn member(&self) -> Result<(Credentials, Roots), Failure> {
        let member = self.membership().load();
        match member.map_err(|error| failed(WHAT, &error, "check the data directory"))? {
            Membership::Member { credentials, roots } => Ok((credentials, roots)),
            Membership::Begun { .. } | Membership::None => Err(no_worker(&self.data_dir)),
        }
    }

    /// Where it is written down that this member was removed from its cluster.
    fn note(&self, credentials: &Credentials) -> Result<RemovalNote, Failure> {
        let (cluster, node) = identity(credentials.identity())
            .map_err(|error| failed(WHAT, &error, "restore the data directory, or join with another one"))?;
        Ok(RemovalNote::new(&self.data_dir, cluster, node))
    }
}

/// Writes down which managers there are now. What a person said now and not to be kept is left out.
fn remember_known(data_dir: &Path, known: Vec<ManagerAddress>) -> Result<(), Failure> {
    let Some(kept) = Sections::load(data_dir)? else { return Ok(()) };
    let Some(joined) = kept.section::<JoinedSection>(JOINED)? else { return Ok(()) };
    if joined.known == known {
        return Ok(());
    }
    kept.with(JOINED, &JoinedSection { known, ..joined }).remember()
}

/// Removes a file that may not be there.
fn forget(file: &Path) -> std::io::Result<()> {
    match std::fs::remove_file(file) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn no_worker(data_dir: &Path) -> Failure {
    let why = format!("{} holds no worker", data_dir.display());
    Failure::new(
        Exit::NotFound,
        WHAT,
        why,
        "make this machine one with `warren worker join HOST:PORT --token TOKEN`",
    )
}

fn failed(what: &str, error: &dyn std::error::Error, hint: &str) -> Failure {
    Failure::new(Exit::Failed, what, chain(error), hint)
}

/// Does what `command` asks; a worker runs until it is told to stop, or was removed from its cluster.
///
/// # Errors
/// Why not.
pub async fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Join(args) => join::join(args).await,
        Command::Run(RunArgs { place, metrics, flags }) => {
            let data_dir = place.data_dir.clone();
            let told = Told::load(place, metrics, flags)?.ok_or_else(|| no_worker(&data_dir))?;
            let shown = Shown::of(&told).await?;
            match run::run_joined(&told, run::Occasion::Run, &shown).await? {
                run::Ended::Removed { removal, .. } => Err(run::removed(&removal)),
                run::Ended::Told | run::Ended::Unknown => Ok(()),
            }
        }
        Command::Leave(args) => leave::leave(args).await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_managers_of_a_cluster_are_remembered_beside_what_a_person_said() {
        let dir = tempfile::tempdir().unwrap();
        let place = PlaceArgs { data_dir: dir.path().to_owned(), run_dir: None };
        let joined = JoinedSection { managers: vec!["m1:8080".into()], ..JoinedSection::default() };
        let flags = Flags { runtime: Some("crun".into()), ..Flags::default() };
        let node = NodeSection::default();
        let told = Told { data_dir: dir.path().to_owned(), node, joined, flags };
        remember_known(dir.path(), vec!["m2:8080".parse().unwrap()]).unwrap();
        assert!(Sections::load(dir.path()).unwrap().is_none(), "nobody joined here");
        told.remember().unwrap();
        for known in [&["m1:8080", "m2:8080"][..], &["m2:8080", "m3:8080"], &["m2:8080", "m3:8080"]] {
            let known = known.iter().map(|known| known.parse().unwrap()).collect();
            remember_known(dir.path(), known).unwrap();
        }
        let said = Flags { runtime: Some("runc".into()), ..Flags::default() };
        let told = Told::load(place, MetricsArgs::default(), said).unwrap().unwrap();
        assert_eq!(told.managers(), ["m1:8080", "m2:8080", "m3:8080"]);
        let kept = Sections::load(dir.path()).unwrap().unwrap();
        assert_eq!(kept.section::<Flags>(WORKER).unwrap().unwrap().runtime.as_deref(), Some("crun"));
    }
}
