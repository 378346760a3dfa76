//! `warren volume ...`

use warren_client::{Client, NewVolume, VolumeListOptions};
use warren_proto::v1;
use warren_types::{Id, Violations, Volume, VolumeId};

use super::confirm::confirm;
use super::unique_pairs;
use crate::args::{GlobalArgs, ListingArgs, OutputFormat, VolumeCommand, VolumeCreateArgs};
use crate::connect::connect;
use crate::failure::{CommandError, ExitKind, from_client, from_client_with_hint};
use crate::output::{self, Listing};
use crate::view::document;
use crate::view::volume::VolumeView;
use crate::view::{now, rounded_bytes};
use crate::watch;

pub async fn run(global: &GlobalArgs, command: VolumeCommand) -> Result<(), CommandError> {
    match command {
        VolumeCommand::Create(args) => create(global, args).await,
        VolumeCommand::Ls { size, all, listing } => {
            ls(global, VolumeListOptions { sizes: size || all, all }, &listing).await
        }
        VolumeCommand::Inspect { volumes, pretty, document } => {
            pretty.check(global.output, "nothing was shown")?;
            inspect(global, &volumes, document.as_document).await
        }
        VolumeCommand::Rm { volumes, purge } => rm(global, &volumes, purge).await,
        VolumeCommand::Purge { volumes, node } => self::purge(global, &volumes, node.as_deref()).await,
        VolumeCommand::Prune { purge, force } => prune(global, purge, force).await,
    }
}

async fn create(global: &GlobalArgs, args: VolumeCreateArgs) -> Result<(), CommandError> {
    let VolumeCreateArgs { name, driver, opt, label, node, reuse } = args;
    let what = format!("volume {name} was not created");
    let mut wrong = Violations::default();
    let mut taken = |path: &str, given| {
        unique_pairs(path, given).unwrap_or_else(|twice| {
            wrong.0.extend(twice.0);
            Default::default()
        })
    };
    let (options, labels) = (taken("options", opt), taken("labels", label));
    wrong.0.extend(Volume::validate(driver, &options).0);
    warren_types::spec::validate_labels(&labels, &mut wrong);
    wrong.into_result(()).map_err(|fields| CommandError::invalid_fields(&what, fields))?;

    let client = connect(global, &what).await?;
    // Chosen once: the server recognizes a repeated create by the id.
    let id = VolumeId(Id(rand::random()));
    let driver = driver.as_str().to_owned();
    let created = client.volumes().create(NewVolume { id, name, driver, options, labels, node, reuse }).await;
    let created = created.map_err(|error| from_client(what, error))?;
    eprintln!("volume {} created", created.name);
    match global.output {
        OutputFormat::Table | OutputFormat::Wide => output::print(&format!("{}\n", created.name)),
        OutputFormat::Json | OutputFormat::Yaml => {
            output::print_document(global.output, &VolumeView::from(created))
        }
    }
}

async fn ls(
    global: &GlobalArgs,
    options: VolumeListOptions,
    listing: &ListingArgs,
) -> Result<(), CommandError> {
    let what = "volumes were not listed";
    let list = Listing::new(global.output, listing, what)?;
    let client = connect(global, what).await?;
    watch::show(&list, &client, async || fetch_all(&client, options, what).await).await
}

async fn fetch_all(
    client: &Client,
    options: VolumeListOptions,
    what: &str,
) -> Result<Vec<VolumeView>, CommandError> {
    let volumes = client.volumes().list(options).await.map_err(|error| from_client(what, error))?;
    let mut volumes: Vec<VolumeView> = volumes.into_iter().map(Into::into).collect();
    volumes.sort_by(|one, other| one.name().cmp(other.name()));
    Ok(volumes)
}

async fn inspect(global: &GlobalArgs, volumes: &[String], as_document: bool) -> Result<(), CommandError> {
    let client = connect(global, "no volume was found").await?;
    let mut found = Vec::new();
    for volume in volumes {
        let failed = |error| from_client(format!("volume {volume} was not found"), error);
        found.push(client.volumes().get(volume).await.map_err(failed)?);
    }
    match as_document {
        true => {
            let documents = found.iter().map(document::of_volume).collect::<Result<Vec<_>, _>>()?;
            document::print(global.output, &documents)
        }
        false => output::print_documents(
            global.output,
            &found.into_iter().map(VolumeView::from).collect::<Vec<_>>(),
        ),
    }
}

async fn rm(global: &GlobalArgs, volumes: &[String], purge: bool) -> Result<(), CommandError> {
    let client = connect(global, "no volume was removed").await?;
    for volume in volumes {
        let removed = client.volumes().remove(volume, purge).await;
        let removed = removed.map_err(|error| removal_failure(volume, error))?;
        eprintln!("{}", removal_message(&removed, purge));
        output::print(&format!("{}\n", removed.name))?;
    }
    Ok(())
}

async fn purge(global: &GlobalArgs, volumes: &[String], node: Option<&str>) -> Result<(), CommandError> {
    let client = connect(global, "no volume was removed").await?;
    for volume in volumes {
        let removed = match node {
            Some(node) => client.volumes().purge_on(volume, node).await,
            None => client.volumes().remove(volume, true).await,
        };
        let removed = removed.map_err(|error| removal_failure(volume, error))?;
        eprintln!("{}", removal_message(&removed, true));
        output::print(&format!("{}\n", removed.name))?;
    }
    Ok(())
}

pub(super) fn removal_failure(volume: &str, error: warren_client::Error) -> CommandError {
    let update = format!("`warren service update SERVICE --volume-rm {volume}`");
    let what = format!("volume {volume} was not removed");
    from_client_with_hint(what, error, "VOLUME_IN_USE", format!("unmount it first: {update}"))
}

/// States whether the data was deleted.
pub(super) fn removal_message(removed: &v1::Volume, purge: bool) -> String {
    let v1::Volume { name, node_name, released_at, .. } = removed;
    match (purge, released_at) {
        (true, _) if removed.unrecorded => format!("the data of volume {name} on {node_name} was deleted"),
        (true, _) => format!("volume {name} was removed with its data"),
        (false, None) => format!("volume {name} was removed"),
        (false, Some(_)) => {
            let size = removed.size_bytes.map(|size| format!(" ({})", rounded_bytes(size)));
            format!(
                "volume {name} was removed; its data{} stays on {node_name}: `warren volume ls --all` lists it, \
                 `warren volume create {name} --reuse` uses it again, `warren volume purge {name}` deletes it",
                size.unwrap_or_default()
            )
        }
    }
}

async fn prune(global: &GlobalArgs, purge: bool, force: bool) -> Result<(), CommandError> {
    let what = "no volume was removed";
    let client = connect(global, what).await?;
    let mut idle = fetch_all(&client, VolumeListOptions::default(), what).await?;
    // A deletion of data that is in progress is continued.
    idle.retain(|volume| volume.is_unused() || (purge && volume.is_removing()));
    let names: Vec<String> = idle.iter().map(|volume| volume.name().to_owned()).collect();
    if names.is_empty() {
        eprintln!("there are no unused volumes");
        return output::print_list::<VolumeView>(global.output, &[], now());
    }
    if !force {
        confirm(&question(&names, purge), what)?;
    }
    let (mut gone, mut failed): (Vec<VolumeView>, Vec<String>) = (Vec::new(), Vec::new());
    for name in names {
        match client.volumes().remove(&name, purge).await {
            Ok(removed) => gone.push(removed.into()),
            Err(error) if error.is_not_found() => {}
            Err(error) => failed.push(format!("{name}: {error}")),
        }
    }
    eprintln!("{}", prune_message(gone.len(), purge));
    output::print_list(global.output, &gone, now())?;
    if failed.is_empty() {
        return Ok(());
    }
    let hint = "see `warren volume ls` and `warren node ls`, then try again";
    Err(CommandError::new(ExitKind::Failed, "not every volume was removed", failed.join("\n"), hint))
}

/// States what was removed.
fn prune_message(count: usize, purge: bool) -> String {
    let volumes = if count == 1 { "volume" } else { "volumes" };
    match purge {
        true => format!("{count} {volumes} removed with their data"),
        false => format!("{count} {volumes} removed; the data stays on the nodes"),
    }
}

/// States what will be removed; lists every name if data is deleted.
fn question(names: &[String], purge: bool) -> String {
    let named = crate::view::joined_names(names, purge);
    match purge {
        true => format!("This deletes unused volumes with their data: {named}. It cannot be undone."),
        false => format!("This removes unused volumes: {named}. The data stays on the nodes."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prune_states_volumes_before_and_after() {
        let names = ["a", "b", "c", "d"].map(str::to_owned);
        let forgets = "This removes unused volumes: a, b. The data stays on the nodes.";
        assert_eq!(question(&names[..2], false), forgets);
        let deletes = "This deletes unused volumes with their data: a, b, c, d. It cannot be undone.";
        assert_eq!(question(&names, true), deletes);
        let removed = v1::Volume { name: "a".into(), node_name: "n1".into(), ..v1::Volume::default() };
        assert_eq!(removal_message(&removed, true), "volume a was removed with its data");
        assert_eq!(removal_message(&removed, false), "volume a was removed");
        let released = v1::Volume { released_at: Some(1), size_bytes: Some(3 << 20), ..removed };
        let expected = "volume a was removed; its data (3MiB) stays on n1: `warren volume ls --all` lists it, \
                        `warren volume create a --reuse` uses it again, `warren volume purge a` deletes it";
        assert_eq!(removal_message(&released, false), expected);
        assert_eq!(prune_message(1, true), "1 volume removed with their data");
        assert_eq!(prune_message(2, false), "2 volumes removed; the data stays on the nodes");
    }
}
