//! `warren volume ...`

use warren_client::{Client, NewVolume};
use warren_types::{Id, Violations, Volume, VolumeId};

use super::confirm::confirm;
use super::pairs;
use crate::args::{Format, Global, VolumeCommand, VolumeCreateArgs};
use crate::connect::connect;
use crate::failure::{Exit, Failure, of_client, of_refusal};
use crate::output;
use crate::view::now;
use crate::view::volume::VolumeView;

pub async fn run(global: &Global, command: VolumeCommand) -> Result<(), Failure> {
    match command {
        VolumeCommand::Create(args) => create(global, args).await,
        VolumeCommand::Ls { size } => ls(global, size).await,
        VolumeCommand::Inspect { volumes } => inspect(global, &volumes).await,
        VolumeCommand::Rm { volumes, purge } => rm(global, &volumes, purge).await,
        VolumeCommand::Prune { purge, force } => prune(global, purge, force).await,
    }
}

async fn create(global: &Global, args: VolumeCreateArgs) -> Result<(), Failure> {
    let VolumeCreateArgs { name, driver, opt, label, node } = args;
    let what = format!("volume {name} was not created");
    let mut wrong = Violations::default();
    let mut taken = |path: &str, given| {
        pairs(path, given).unwrap_or_else(|twice| {
            wrong.0.extend(twice.0);
            Default::default()
        })
    };
    let (options, labels) = (taken("options", opt), taken("labels", label));
    wrong.0.extend(Volume::validate(driver, &options).0);
    warren_types::spec::validate_labels(&labels, &mut wrong);
    wrong.into_result(()).map_err(|fields| Failure::invalid(&what, fields))?;

    let client = connect(global, &what).await?;
    // Made once: a create that is sent again is the same create.
    let id = VolumeId(Id(rand::random()));
    let driver = driver.as_str().to_owned();
    let created = client.volumes().create(NewVolume { id, name, driver, options, labels, node }).await;
    let created = created.map_err(|error| of_client(&what, error))?;
    eprintln!("volume {} created", created.name);
    match global.output {
        Format::Table | Format::Wide => output::print(&format!("{}\n", created.name)),
        Format::Json | Format::Yaml => output::document(global.output, &VolumeView::from(created)),
    }
}

async fn ls(global: &Global, size: bool) -> Result<(), Failure> {
    let what = "volumes were not listed";
    let client = connect(global, what).await?;
    output::list(global.output, &all(&client, size, what).await?, now())
}

async fn all(client: &Client, size: bool, what: &str) -> Result<Vec<VolumeView>, Failure> {
    let volumes = client.volumes().list(size).await.map_err(|error| of_client(what, error))?;
    let mut volumes: Vec<VolumeView> = volumes.into_iter().map(Into::into).collect();
    volumes.sort_by(|one, other| one.name().cmp(other.name()));
    Ok(volumes)
}

async fn inspect(global: &Global, volumes: &[String]) -> Result<(), Failure> {
    let client = connect(global, "no volume was found").await?;
    let mut views: Vec<VolumeView> = Vec::new();
    for volume in volumes {
        let failed = |error| of_client(format!("volume {volume} was not found"), error);
        views.push(client.volumes().get(volume).await.map_err(failed)?.into());
    }
    output::documents(global.output, &views)
}

async fn rm(global: &Global, volumes: &[String], purge: bool) -> Result<(), Failure> {
    let client = connect(global, "no volume was removed").await?;
    for volume in volumes {
        let removed = client.volumes().remove(volume, purge).await;
        let what = format!("volume {volume} was not removed");
        let removed = removed.map_err(|error| {
            let update = format!("`warren service update SERVICE --volume-rm {volume}`");
            of_refusal(what, error, "VOLUME_IN_USE", format!("take it from those first: {update}"))
        })?;
        eprintln!("{}", ended(&removed.name, &removed.node_name, purge));
        output::print(&format!("{}\n", removed.name))?;
    }
    Ok(())
}

/// What became of the data.
fn ended(name: &str, node: &str, purge: bool) -> String {
    match (purge, node) {
        (true, _) => format!("volume {name} is gone, and its data"),
        (false, "") => format!("volume {name} is gone"),
        (false, node) => {
            format!(
                "volume {name} is forgotten; its data stays on {node}, and a volume of that name finds it there"
            )
        }
    }
}

async fn prune(global: &Global, purge: bool, force: bool) -> Result<(), Failure> {
    let what = "no volume was removed";
    let client = connect(global, what).await?;
    let mut idle = all(&client, false, what).await?;
    // Data that is being deleted was given up before: whoever deletes goes on with it.
    idle.retain(|volume| volume.is_idle() || (purge && volume.is_going()));
    let names: Vec<String> = idle.iter().map(|volume| volume.name().to_owned()).collect();
    if names.is_empty() {
        eprintln!("there is no volume that nothing uses");
        return output::list::<VolumeView>(global.output, &[], now());
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
    eprintln!("{}", swept(gone.len(), purge));
    output::list(global.output, &gone, now())?;
    if failed.is_empty() {
        return Ok(());
    }
    let hint = "see `warren volume ls` and `warren node ls`, then try again";
    Err(Failure::new(Exit::Failed, "not every volume was removed", failed.join("\n"), hint))
}

/// What went.
fn swept(count: usize, purge: bool) -> String {
    let volumes = if count == 1 { "volume" } else { "volumes" };
    match purge {
        true => format!("{count} {volumes} removed, data and all"),
        false => format!("{count} {volumes} forgotten, the data stays on the nodes"),
    }
}

/// What goes. Of what cannot be brought back every name is said.
fn question(names: &[String], purge: bool) -> String {
    let named = crate::view::named(names, purge);
    match purge {
        true => format!("This deletes the data of what nothing uses: {named}. It cannot be brought back."),
        false => format!("This forgets what nothing uses: {named}. The data stays on the nodes."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_is_said_before_and_after() {
        let names = ["a", "b", "c", "d"].map(str::to_owned);
        let forgets = "This forgets what nothing uses: a, b. The data stays on the nodes.";
        assert_eq!(question(&names[..2], false), forgets);
        let deletes = "This deletes the data of what nothing uses: a, b, c, d. It cannot be brought back.";
        assert_eq!(question(&names, true), deletes);
        assert_eq!(ended("a", "n1", true), "volume a is gone, and its data");
        assert_eq!(ended("a", "", false), "volume a is gone");
        assert_eq!(swept(1, true), "1 volume removed, data and all");
        assert_eq!(swept(2, false), "2 volumes forgotten, the data stays on the nodes");
        assert!(ended("a", "n1", false).contains("its data stays on n1"));
    }
}
