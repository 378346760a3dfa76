//! `warren manager ...`: what is asked of the cluster's managers; what is about this machine is in `crate::node`.

mod backup;

use warren_client::{Client, ManagerChange};
use warren_manager::process::Occasion;
use warren_proto::v1;
use warren_types::Suffrage;

use crate::args::{Format, Global, ManagerCommand};
use crate::connect::connect;
use crate::failure::{Exit, Failure, of_client, of_refusal};
use crate::view::manager::ManagerView;
use crate::view::now;
use crate::{node, output};

pub async fn run(global: &Global, command: ManagerCommand) -> Result<(), Failure> {
    match command {
        ManagerCommand::Init { init, node } if init.force_new_cluster => node::force_new_cluster(node).await,
        ManagerCommand::Init { node, .. } => node::run(node, Occasion::Init).await,
        ManagerCommand::Join { join, node } => node::run(node, Occasion::Join(join)).await,
        ManagerCommand::Run(node) => node::run(node, Occasion::Run).await,
        ManagerCommand::Restore { file, passphrase, node } => node::restore(&file, &passphrase, node).await,
        ManagerCommand::Ls => ls(global).await,
        ManagerCommand::Inspect { who } => inspect(global, &who).await,
        ManagerCommand::Promote { who } => want(global, &who, Suffrage::Voter).await,
        ManagerCommand::Demote { who } => want(global, &who, Suffrage::Learner).await,
        ManagerCommand::Update { who, advertise } => {
            let what = format!("manager {who} was not updated");
            let change = ManagerChange { address: Some(advertise), ..ManagerChange::default() };
            let client = connect(global, &what).await?;
            let updated = client.managers().update(&who, &change).await;
            let updated = updated.map_err(|error| of_client(&what, error))?;
            eprintln!("manager {} is reached at {} from now on", updated.name, updated.address);
            tell(global, updated)
        }
        ManagerCommand::Rm { who, force } => rm(global, &who, force).await,
        ManagerCommand::TransferLeadership { to } => transfer(global, to.as_deref()).await,
        ManagerCommand::Backup { file, passphrase } => backup::backup(global, &file, &passphrase).await,
    }
}

/// All managers by name, and the nodes that removed ones have left.
async fn all(client: &Client, what: &str) -> Result<(Vec<ManagerView>, Vec<String>), Failure> {
    let listed = client.managers().list().await.map_err(|error| of_client(what, error))?;
    let views = listed.managers.into_iter().map(ManagerView::try_from);
    let mut views = views.collect::<Result<Vec<_>, _>>()?;
    views.sort_by(|one, other| one.name().cmp(other.name()));
    Ok((views, listed.left_nodes))
}

async fn ls(global: &Global) -> Result<(), Failure> {
    let what = "managers were not listed";
    let client = connect(global, what).await?;
    let (managers, left) = all(&client, what).await?;
    output::list(global.output, &managers, now())?;
    if let Some(note) = without_majority(&managers) {
        eprintln!("{note}");
    }
    for node in left {
        eprintln!("node {node} is left of a manager that was removed; {}", remove_node(&node));
    }
    Ok(())
}

/// What to do where too few of those that vote answer for anything to be written.
fn without_majority(managers: &[ManagerView]) -> Option<String> {
    let voters = managers.iter().filter(|manager| manager.votes());
    let (answer, silent): (Vec<_>, Vec<_>) = voters.partition(|manager| manager.answers());
    if answer.len() > silent.len() || silent.is_empty() {
        return None;
    }
    let names: Vec<&str> = silent.iter().map(|manager| manager.name()).collect();
    Some(format!(
        "managers {} do not answer the one that was asked, and most of the {} that vote have to: start them; if they \
         are lost for good, stop one that is left and make it the cluster: `warren manager init --force-new-cluster` \
         on its machine, with the --data-dir that it has",
        names.join(", "),
        answer.len() + silent.len()
    ))
}

async fn inspect(global: &Global, who: &[String]) -> Result<(), Failure> {
    let what = "no manager was found";
    let client = connect(global, what).await?;
    let (mut all, _) = all(&client, what).await?;
    let mut found = Vec::new();
    for text in who {
        let failed = |exit, why: String| {
            let what = format!("manager {text} was not found");
            Failure::new(exit, what, why, "look at what there is with `warren manager ls`")
        };
        // A name wins over the beginning of an id.
        let by_name = all.iter().position(|manager| manager.name() == text);
        let called: Vec<usize> = (0..all.len()).filter(|place| all[*place].is_called(text)).collect();
        let place = match (by_name, called.as_slice()) {
            (Some(place), _) => place,
            (None, [place]) => *place,
            (None, []) => return Err(failed(Exit::NotFound, "there is none of that name or id".to_owned())),
            (None, several) => {
                return Err(failed(Exit::Usage, format!("{} of them begin so", several.len())));
            }
        };
        found.push(all.remove(place));
    }
    output::documents(global.output, &found)
}

async fn want(global: &Global, who: &[String], wanted: Suffrage) -> Result<(), Failure> {
    let not = match wanted {
        Suffrage::Voter => "promoted",
        Suffrage::Learner => "demoted",
    };
    let client = connect(global, &format!("no manager was {not}")).await?;
    for manager in who {
        let what = format!("manager {manager} was not {not}");
        let change = ManagerChange { wanted: Some(wanted), ..ManagerChange::default() };
        let changed = client.managers().update(manager, &change).await;
        let changed = changed.map_err(|error| {
            let hint = "see that the others are ready with `warren manager ls`, then try again";
            of_refusal(what, error, "WOULD_LOSE_QUORUM", hint.to_owned())
        })?;
        eprintln!("{}", will_be(&changed, wanted));
        tell(global, changed)?;
    }
    Ok(())
}

/// What is to be done with the node of a removed manager.
fn remove_node(node: &str) -> String {
    format!("remove it as well with `warren node rm {node}`, with --force if tasks are still counted on it")
}

/// What becomes of it, which need not be at once.
fn will_be(manager: &v1::Manager, wanted: Suffrage) -> String {
    let (name, word) = (&manager.name, wanted.as_str());
    match (manager.suffrage() == v1::Suffrage::from(wanted), manager.reason.as_str()) {
        (true, _) => format!("manager {name} is a {word}"),
        (false, "") => format!("manager {name} will be a {word} in a moment; see `warren manager ls`"),
        (false, reason) => format!("manager {name} will be a {word}: {reason}"),
    }
}

async fn rm(global: &Global, who: &[String], force: bool) -> Result<(), Failure> {
    let client = connect(global, "no manager was removed").await?;
    for manager in who {
        let removed = client.managers().remove(manager, force).await;
        let what = format!("manager {manager} was not removed");
        let removed = removed.map_err(|error| match &error {
            warren_client::Error::Refused { problem } if problem.reason == "MANAGER_ANSWERS" => {
                let hint = format!(
                    "`warren node drain` its node and stop it, or give --force: {manager} stops then"
                );
                of_refusal(what, error, "MANAGER_ANSWERS", hint)
            }
            _ => {
                let hint = "see that the others are ready with `warren manager ls`, then try again";
                of_refusal(what, error, "WOULD_LOSE_QUORUM", hint.to_owned())
            }
        })?;
        eprintln!("manager {} leaves the cluster", removed.name);
        if !removed.node.is_empty() {
            eprintln!("node {} stays in it; {}", removed.node, remove_node(&removed.node));
        }
        output::print(&format!("{}\n", removed.name))?;
    }
    Ok(())
}

async fn transfer(global: &Global, to: Option<&str>) -> Result<(), Failure> {
    let what = "the leadership was not transferred";
    let client = connect(global, what).await?;
    let leader = client.managers().transfer_leadership(to).await;
    let leader = leader.map_err(|error| of_client(what, error))?;
    eprintln!("manager {} leads", leader.name);
    tell(global, leader)
}

/// A name for people, all of it for programs.
fn tell(global: &Global, manager: v1::Manager) -> Result<(), Failure> {
    match global.output {
        Format::Table | Format::Wide => output::print(&format!("{}\n", manager.name)),
        Format::Json | Format::Yaml => output::document(global.output, &ManagerView::try_from(manager)?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_majority_leads_to_force_new_cluster() {
        let manager = |name: &str, suffrage: v1::Suffrage, status: v1::ManagerStatus| {
            let wire = v1::Manager {
                name: name.into(),
                wanted: v1::Suffrage::Voter.into(),
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
        assert!(note.starts_with("managers m2, m3 do not answer") && note.contains("--data-dir"), "{note}");
        assert!(note.contains("`warren manager init --force-new-cluster`"), "{note}");
        three[1] = manager("m2", learner, ready);
        assert!(without_majority(&three).is_some(), "a learner does not count");
        assert_eq!(without_majority(&three[..1]), None);
    }

    #[test]
    fn a_change_that_takes_its_time_says_why() {
        let manager = |suffrage: v1::Suffrage, reason: &str| v1::Manager {
            name: "n2".into(),
            suffrage: suffrage.into(),
            reason: reason.into(),
            ..v1::Manager::default()
        };
        let told = |suffrage, reason| will_be(&manager(suffrage, reason), Suffrage::Voter);
        assert_eq!(told(v1::Suffrage::Voter, "x"), "manager n2 is a voter");
        assert_eq!(
            told(v1::Suffrage::Learner, ""),
            "manager n2 will be a voter in a moment; see `warren manager ls`"
        );
        assert_eq!(told(v1::Suffrage::Learner, "it catches up"), "manager n2 will be a voter: it catches up");
    }
}
