//! `warren manager restore`: makes a manager of a backup, on a machine that has none. Nothing is started.

use std::path::Path;
use std::time::SystemTime;

use warren_manager::ca::Keys;
use warren_manager::process::{Occasion, told_context};
use warren_manager::recovery::backup::{self, Backup};
use warren_manager::recovery::restore::{Restoring, RestoringError, Whom};
use warren_process::{Exit, Failure, Machine, chain};

use super::Node;
use crate::args::{NodeArgs, PassphraseArgs};
use crate::view::{age, now};
use crate::{input, output};

const WHAT: &str = "the backup was not restored";

/// Restores the backup in `file`.
pub async fn restore(file: &Path, passphrase: &PassphraseArgs, args: NodeArgs) -> Result<(), Failure> {
    let machine = Machine::look()?;
    let given = args.manager.cluster_range.clone();
    let mut node = Node::of(args, &machine, &Occasion::Init)?;
    let restoring = Restoring::begin(&node.plan.data_dir).map_err(|error| failed(&error))?;
    let passphrase = input::passphrase(passphrase.passphrase_file.as_deref(), input::Times::Once, WHAT)?;
    let sealed = std::fs::read(file).map_err(|error| unread(file, &error))?;
    let opened = tokio::task::spawn_blocking(move || backup::read(&passphrase, sealed)).await;
    let opened = opened.expect("reading a backup does not panic").map_err(|error| {
        let why = format!("{}: {}", file.display(), chain(&error));
        Failure::new(Exit::Failed, WHAT, why, "check the passphrase, or use another backup")
    })?;
    let cluster = opened.state.cluster().expect("a backup without a cluster is refused");
    if !given.is_empty() && given != cluster.ranges {
        let why = "the cluster's ranges are in the backup, and --cluster-range says others";
        return Err(Failure::new(Exit::Usage, WHAT, why, "leave --cluster-range out"));
    }
    // Remembered as what the cluster was made with, since that is what later flags are held against.
    node.told.flags.cluster_range = cluster.ranges.clone();
    let mut text = told(&opened, &node.plan.data_dir);
    // Before the manager: it is one once its directory is there.
    node.sections().remember()?;
    let advertised = node.plan.advertised_before()?;
    let (name, address) = (node.plan.name.clone(), advertised.to_string());
    let whom = Whom { name, address: advertised };
    let engine = node.plan.log_engine;
    let made = move || restoring.finish(opened, engine, whom, SystemTime::now());
    let made = tokio::task::spawn_blocking(made).await.expect("writing files does not panic");
    made.map_err(|error| failed(&error))?;
    let keys = Keys::open(&node.plan.data_dir.join("manager"), false, SystemTime::now());
    let keys = keys.map_err(|error| failed(&error.into()))?;
    let admin = keys.admin().borrow().clone();
    let context = told_context(&address, &[], keys.cluster, &keys.authority.roots(), &admin);
    text += context.as_deref().unwrap_or_default();
    output::print(&text)
}

/// What came back, and what to do next.
fn told(backup: &Backup, data_dir: &Path) -> String {
    let Backup { state, created_at, .. } = backup;
    let cluster = state.cluster().map(|cluster| cluster.id.to_string()).unwrap_or_default();
    let count = |count: usize, noun: &str| format!("{count} {noun}{}", if count == 1 { "" } else { "s" });
    let tokens = match state.tokens_after(None).count() {
        0 => String::new(),
        found => format!("without its join tokens ({found}): make new ones with `warren token create`\n"),
    };
    format!(
        "cluster {cluster} is restored as it was {} ago: {}, {}\n{tokens}\
         this machine is its only manager; see that no other one of it runs, then start this one with\n  \
         warren manager run{}\n",
        age(*created_at, now()),
        count(state.services().count(), "service"),
        count(state.nodes().count(), "node"),
        place(data_dir),
    )
}

/// Where the manager is, as a flag; nothing where `manager run` looks by itself.
fn place(data_dir: &Path) -> String {
    match data_dir == Path::new(warren_process::DATA_DIR) {
        true => String::new(),
        false => format!(" --data-dir {}", data_dir.display()),
    }
}

fn unread(file: &Path, error: &std::io::Error) -> Failure {
    let exit = if error.kind() == std::io::ErrorKind::NotFound { Exit::NotFound } else { Exit::Failed };
    Failure::new(exit, WHAT, format!("{}: {error}", file.display()), "check the path and who may read it")
}

fn failed(error: &RestoringError) -> Failure {
    let (exit, hint) = if error.is_taken() {
        (Exit::Conflict, "choose another --data-dir, or move that one away")
    } else {
        (Exit::Failed, "check the data directory, then try again")
    };
    Failure::new(exit, WHAT, chain(error), hint)
}
