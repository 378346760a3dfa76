//! `warren network ...`

use warren_client::NewNetwork;
use warren_types::{Id, NetworkId, NetworkName};

use super::unique_pairs;
use crate::args::{GlobalArgs, ListingArgs, NetworkCommand, OutputFormat};
use crate::connect::connect;
use crate::failure::{CommandError, from_client, from_client_with_hint};
use crate::output::{self, Listing};
use crate::view::document;
use crate::view::network::NetworkInfoView;
use crate::watch;

pub async fn run(global: &GlobalArgs, command: NetworkCommand) -> Result<(), CommandError> {
    match command {
        NetworkCommand::Create { name, internal, label } => create(global, name, internal, label).await,
        NetworkCommand::Ls { listing } => ls(global, &listing).await,
        NetworkCommand::Inspect { networks, pretty, document } => {
            pretty.check(global.output, "nothing was shown")?;
            inspect(global, &networks, document.as_document).await
        }
        NetworkCommand::Rm { networks } => rm(global, &networks).await,
    }
}

async fn create(
    global: &GlobalArgs,
    name: NetworkName,
    internal: bool,
    label: Vec<(String, String)>,
) -> Result<(), CommandError> {
    let what = format!("network {name} was not created");
    let labels = unique_pairs("labels", label).and_then(|labels| {
        let mut wrong = warren_types::Violations::default();
        warren_types::spec::validate_labels(&labels, &mut wrong);
        wrong.into_result(labels)
    });
    let labels = labels.map_err(|fields| CommandError::invalid_fields(&what, fields))?;
    let client = connect(global, &what).await?;
    // Chosen once: the server recognizes a repeated create by the id.
    let id = NetworkId(Id(rand::random()));
    let created = client.networks().create(NewNetwork { id, name, labels, internal }).await;
    let created = created.map_err(|error| from_client(what, error))?;
    eprintln!("network {} created", created.name);
    match global.output {
        OutputFormat::Table | OutputFormat::Wide => output::print(&format!("{}\n", created.name)),
        OutputFormat::Json | OutputFormat::Yaml => {
            output::print_document(global.output, &NetworkInfoView::from(created))
        }
    }
}

async fn ls(global: &GlobalArgs, listing: &ListingArgs) -> Result<(), CommandError> {
    let what = "networks were not listed";
    let list = Listing::new(global.output, listing, what)?;
    let client = connect(global, what).await?;
    let fetch = async || {
        let networks = client.networks().list().await.map_err(|error| from_client(what, error))?;
        Ok(networks.into_iter().map(NetworkInfoView::from).collect::<Vec<_>>())
    };
    watch::show(&list, &client, fetch).await
}

async fn inspect(global: &GlobalArgs, networks: &[String], as_document: bool) -> Result<(), CommandError> {
    let client = connect(global, "no network was found").await?;
    let mut found = Vec::new();
    for network in networks {
        let failed = |error| from_client(format!("network {network} was not found"), error);
        found.push(client.networks().get(network).await.map_err(failed)?);
    }
    match as_document {
        true => document::print(global.output, &found.iter().map(document::of_network).collect::<Vec<_>>()),
        false => output::print_documents(
            global.output,
            &found.into_iter().map(NetworkInfoView::from).collect::<Vec<_>>(),
        ),
    }
}

async fn rm(global: &GlobalArgs, networks: &[String]) -> Result<(), CommandError> {
    let client = connect(global, "no network was removed").await?;
    for network in networks {
        let removed = client.networks().remove(network).await.map_err(|error| {
            let hint = format!("disconnect it first: `warren service update SERVICE --network-rm {network}`");
            from_client_with_hint(format!("network {network} was not removed"), error, "NETWORK_IN_USE", hint)
        })?;
        eprintln!("network {} was removed", removed.name);
        output::print(&format!("{}\n", removed.name))?;
    }
    Ok(())
}
