//! `warren manager ...`: requests to managers; commands for this machine are in `crate::node`.

mod backup;
mod unlock;

use std::time::Duration;

use tokio::time::{sleep, timeout};
use warren_client::{Client, ManagerChange};
use warren_manager::process::ManagerStartReason;
use warren_proto::v1;
use warren_types::Suffrage;

use crate::args::{GlobalArgs, ListingArgs, ManagerSubcommand, OutputFormat};
use crate::connect::connect;
use crate::failure::{CommandError, ExitKind, from_client, from_client_with_hint};
use crate::output::{ListContent, Listing};
use crate::view::manager::ManagerView;
use crate::watch;
use crate::{node, output};

/// How long `manager rm` waits until the manager has left the raft group.
const REMOVAL_TIMEOUT: Duration = Duration::from_secs(15);
const REMOVAL_POLL: Duration = Duration::from_millis(200);

pub async fn run(global: &GlobalArgs, command: ManagerSubcommand) -> Result<(), CommandError> {
    match command {
        ManagerSubcommand::Init { init, node, .. } if init.force_new_cluster => {
            node::force_new_cluster(node).await
        }
        ManagerSubcommand::Init { mut node, taints, .. } => {
            node.worker.taints = taints.into_taints("no cluster was created")?;
            node::run(node, ManagerStartReason::Init).await
        }
        ManagerSubcommand::Join { join, taints, mut node } => {
            node.worker.taints = taints.into_taints("the cluster was not joined")?;
            node::run(node, ManagerStartReason::Join(join)).await
        }
        ManagerSubcommand::Run(node) => node::run(node, ManagerStartReason::Run).await,
        ManagerSubcommand::Restore { file, passphrase, node } => {
            node::restore(&file, &passphrase, node).await
        }
        ManagerSubcommand::Unlock(dirs) => unlock::run(dirs).await,
        ManagerSubcommand::Ls(listing) => ls(global, &listing).await,
        ManagerSubcommand::Inspect { managers, pretty } => {
            pretty.check(global.output, "nothing was shown")?;
            inspect(global, &managers).await
        }
        ManagerSubcommand::Promote { managers } => set_suffrage(global, &managers, Suffrage::Voter).await,
        ManagerSubcommand::Demote { managers } => set_suffrage(global, &managers, Suffrage::Learner).await,
        ManagerSubcommand::Update { who, advertise } => {
            let what = format!("manager {who} was not updated");
            let change = ManagerChange { address: Some(advertise), ..ManagerChange::default() };
            let client = connect(global, &what).await?;
            let updated = client.managers().update(&who, &change).await;
            let updated = updated.map_err(|error| from_client(&what, error))?;
            eprintln!("manager {} is now reached at {}", updated.name, updated.address);
            print_manager(global, updated)
        }
        ManagerSubcommand::Rm { managers, force } => rm(global, &managers, force).await,
        ManagerSubcommand::TransferLeadership { to } => transfer(global, to.as_deref()).await,
        ManagerSubcommand::Backup { file, passphrase } => backup::backup(global, &file, &passphrase).await,
    }
}

/// All managers sorted by name, and the remaining nodes of removed managers.
async fn fetch_all(client: &Client, what: &str) -> Result<(Vec<ManagerView>, Vec<String>), CommandError> {
    let listed = client.managers().list().await.map_err(|error| from_client(what, error))?;
    let views = listed.managers.into_iter().map(ManagerView::try_from);
    let mut views = views.collect::<Result<Vec<_>, _>>()?;
    views.sort_by(|one, other| one.name().cmp(other.name()));
    Ok((views, listed.remaining_nodes))
}

async fn ls(global: &GlobalArgs, listing: &ListingArgs) -> Result<(), CommandError> {
    let what = "managers were not listed";
    let list = Listing::new(global.output, listing, what)?;
    let client = connect(global, what).await?;
    let fetch = async || {
        let (managers, left) = fetch_all(&client, what).await?;
        let left = left.iter();
        let left =
            left.map(|node| format!("node {node} belongs to a removed manager; {}", remove_node(node)));
        let notes = without_majority(&managers).into_iter().chain(left).collect();
        Ok(ListContent::with_notes(managers, notes))
    };
    watch::show(&list, &client, fetch).await
}

/// The note if no majority of the voters is reachable.
fn without_majority(managers: &[ManagerView]) -> Option<String> {
    let voters = managers.iter().filter(|manager| manager.is_voter());
    let (reachable, unreachable): (Vec<_>, Vec<_>) = voters.partition(|manager| manager.is_reachable());
    if reachable.len() > unreachable.len() || unreachable.is_empty() {
        return None;
    }
    let names: Vec<&str> = unreachable.iter().map(|manager| manager.name()).collect();
    Some(format!(
        "managers {} are unreachable from the manager that answered, and a majority of the {} voters is required: \
         start them; if they are lost for good, stop a remaining manager and run \
         `warren manager init --force-new-cluster` on it with its --data-dir",
        names.join(", "),
        reachable.len() + unreachable.len()
    ))
}

async fn inspect(global: &GlobalArgs, managers: &[String]) -> Result<(), CommandError> {
    let what = "no manager was found";
    let client = connect(global, what).await?;
    let (mut all, _) = fetch_all(&client, what).await?;
    let mut found = Vec::new();
    for text in managers {
        let failed = |exit, why: String| {
            let what = format!("manager {text} was not found");
            CommandError::new(exit, what, why, "run `warren manager ls` to list the managers")
        };
        // A name takes precedence over an id prefix.
        let by_name = all.iter().position(|manager| manager.name() == text);
        let matching: Vec<usize> = (0..all.len()).filter(|index| all[*index].has_name(text)).collect();
        let index = match (by_name, matching.as_slice()) {
            (Some(index), _) => index,
            (None, [index]) => *index,
            (None, []) => {
                return Err(failed(ExitKind::NotFound, "no manager has this name or id".to_owned()));
            }
            (None, several) => {
                return Err(failed(
                    ExitKind::Usage,
                    format!("the id prefix matches {} managers", several.len()),
                ));
            }
        };
        found.push(all.remove(index));
    }
    output::print_documents(global.output, &found)
}

/// Makes managers voters or learners.
pub(super) async fn set_suffrage(
    global: &GlobalArgs,
    managers: &[String],
    desired: Suffrage,
) -> Result<(), CommandError> {
    let not = match desired {
        Suffrage::Voter => "promoted",
        Suffrage::Learner => "demoted",
    };
    let client = connect(global, &format!("no manager was {not}")).await?;
    for manager in managers {
        let what = format!("manager {manager} was not {not}");
        let change = ManagerChange { suffrage: Some(desired), ..ManagerChange::default() };
        let changed = client.managers().update(manager, &change).await;
        let changed = changed.map_err(|error| {
            let hint = "check with `warren manager ls` that the other managers are ready, then retry";
            from_client_with_hint(what, error, "WOULD_LOSE_QUORUM", hint.to_owned())
        })?;
        eprintln!("{}", suffrage_message(&changed, desired));
        print_manager(global, changed)?;
    }
    Ok(())
}

/// How to remove the node of a removed manager.
fn remove_node(node: &str) -> String {
    format!("remove it with `warren node rm {node}`, with --force if it still has tasks")
}

/// The result of a promotion or demotion, which may be pending.
fn suffrage_message(manager: &v1::Manager, desired: Suffrage) -> String {
    let (name, word) = (&manager.name, desired.as_str());
    match (manager.suffrage() == v1::Suffrage::from(desired), manager.reason.as_str()) {
        (true, _) => format!("manager {name} is a {word}"),
        (false, "") => format!("manager {name} will be a {word} in a moment; see `warren manager ls`"),
        (false, reason) => format!("manager {name} will be a {word}: {reason}"),
    }
}

async fn rm(global: &GlobalArgs, managers: &[String], force: bool) -> Result<(), CommandError> {
    let client = connect(global, "no manager was removed").await?;
    for manager in managers {
        let removed = client.managers().remove(manager, force).await;
        let what = format!("manager {manager} was not removed");
        let removed = removed.map_err(|error| match &error {
            warren_client::Error::Refused { problem } if problem.reason == "MANAGER_STILL_ACTIVE" => {
                let hint = format!(
                    "drain its node with `warren node drain` and stop it, or use --force, which stops {manager}"
                );
                from_client_with_hint(what, error, "MANAGER_STILL_ACTIVE", hint)
            }
            _ => {
                let hint = "check with `warren manager ls` that the other managers are ready, then retry";
                from_client_with_hint(what, error, "WOULD_LOSE_QUORUM", hint.to_owned())
            }
        })?;
        if !left_raft_group(&client, &removed.id).await {
            let what = format!("manager {} has not left the raft group yet", removed.name);
            let why =
                format!("it is being removed, and this takes longer than {} s", REMOVAL_TIMEOUT.as_secs());
            let hint = "`warren manager ls` shows it until it has left";
            return Err(CommandError::new(ExitKind::TimedOut, what, why, hint));
        }
        eprintln!("manager {} removed from the cluster", removed.name);
        if !removed.node.is_empty() {
            eprintln!("node {} stays in the cluster; {}", removed.node, remove_node(&removed.node));
        }
        output::print(&format!("{}\n", removed.name))?;
    }
    eprintln!(
        "if somebody may have a copy of its data, replace the key in it: run `warren cluster ca rotate`"
    );
    Ok(())
}

/// Waits until a manager that is being removed has left the raft group, for a limited time: only then may its node be
/// removed.
async fn left_raft_group(client: &Client, id: &str) -> bool {
    let gone = async {
        loop {
            // The leader may be the manager that leaves.
            if let Ok(listed) = client.managers().list().await
                && listed.managers.iter().all(|manager| manager.id != id)
            {
                return;
            }
            sleep(REMOVAL_POLL).await;
        }
    };
    timeout(REMOVAL_TIMEOUT, gone).await.is_ok()
}

async fn transfer(global: &GlobalArgs, to: Option<&str>) -> Result<(), CommandError> {
    let what = "the leadership was not transferred";
    let client = connect(global, what).await?;
    let leader = client.managers().transfer_leadership(to).await;
    let leader = leader.map_err(|error| from_client(what, error))?;
    eprintln!("manager {} is the leader", leader.name);
    print_manager(global, leader)
}

/// Prints the name, or the whole document for JSON and YAML.
fn print_manager(global: &GlobalArgs, manager: v1::Manager) -> Result<(), CommandError> {
    match global.output {
        OutputFormat::Table | OutputFormat::Wide => output::print(&format!("{}\n", manager.name)),
        OutputFormat::Json | OutputFormat::Yaml => {
            output::print_document(global.output, &ManagerView::try_from(manager)?)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_majority_suggests_force_new_cluster() {
        let manager = |name: &str, suffrage: v1::Suffrage, status: v1::ManagerStatus| {
            let wire = v1::Manager {
                name: name.into(),
                desired_suffrage: v1::Suffrage::Voter.into(),
                suffrage: suffrage.into(),
                status: status.into(),
                ..v1::Manager::default()
            };
            ManagerView::try_from(wire).unwrap()
        };
        let (voter, learner) = (v1::Suffrage::Voter, v1::Suffrage::Learner);
        let (ready, gone) = (v1::ManagerStatus::Ready, v1::ManagerStatus::Unreachable);
        let mut three =
            [manager("m1", voter, ready), manager("m2", voter, ready), manager("m3", voter, gone)];
        assert_eq!(without_majority(&three), None);
        three[1] = manager("m2", voter, gone);
        let note = without_majority(&three).unwrap();
        assert!(note.starts_with("managers m2, m3 are unreachable") && note.contains("--data-dir"), "{note}");
        assert!(note.contains("`warren manager init --force-new-cluster`"), "{note}");
        three[1] = manager("m2", learner, ready);
        assert!(without_majority(&three).is_some(), "a learner does not count");
        assert_eq!(without_majority(&three[..1]), None);
    }

    #[test]
    fn pending_change_shows_reason() {
        let manager = |suffrage: v1::Suffrage, reason: &str| v1::Manager {
            name: "n2".into(),
            suffrage: suffrage.into(),
            reason: reason.into(),
            ..v1::Manager::default()
        };
        let message = |suffrage, reason| suffrage_message(&manager(suffrage, reason), Suffrage::Voter);
        assert_eq!(message(v1::Suffrage::Voter, "x"), "manager n2 is a voter");
        assert_eq!(
            message(v1::Suffrage::Learner, ""),
            "manager n2 will be a voter in a moment; see `warren manager ls`"
        );
        assert_eq!(
            message(v1::Suffrage::Learner, "it catches up"),
            "manager n2 will be a voter: it catches up"
        );
    }
}
