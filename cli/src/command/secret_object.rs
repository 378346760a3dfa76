//! `warren secret ...` and `warren config ...`

use warren_client::{Client, NewSecretObject};
use warren_proto::v1;
use warren_types::{Id, SecretObjectId, SecretObjectKind, Violations};

use super::unique_pairs;
use crate::args::{GlobalArgs, ListingArgs, OutputFormat, SecretObjectCommand, SecretObjectCreateArgs};
use crate::connect::connect;
use crate::failure::{CommandError, from_client, from_client_with_hint};
use crate::output::Listing;
use crate::view::document;
use crate::view::secret_object::SecretObjectView;
use crate::watch;
use crate::{input, output};

pub async fn run(
    global: &GlobalArgs,
    kind: SecretObjectKind,
    command: SecretObjectCommand,
) -> Result<(), CommandError> {
    match command {
        SecretObjectCommand::Create(args) => create(global, kind, args).await,
        SecretObjectCommand::Update { name, file } => update(global, kind, &name, &file).await,
        SecretObjectCommand::Ls(listing) => ls(global, kind, &listing).await,
        SecretObjectCommand::Inspect { names, pretty, document } => {
            pretty.check(global.output, "nothing was shown")?;
            inspect(global, kind, &names, document.as_document).await
        }
        SecretObjectCommand::Rm { names } => rm(global, kind, &names).await,
    }
}

async fn create(
    global: &GlobalArgs,
    kind: SecretObjectKind,
    args: SecretObjectCreateArgs,
) -> Result<(), CommandError> {
    let SecretObjectCreateArgs { name, file, label } = args;
    let what = format!("{kind} {name} was not created");
    let labels = unique_pairs("labels", label).and_then(|labels| {
        let mut wrong = Violations::default();
        warren_types::spec::validate_labels(&labels, &mut wrong);
        wrong.into_result(labels)
    });
    let labels = labels.map_err(|fields| CommandError::invalid_fields(&what, fields))?;
    let data = input::read_secret_object(kind, &file, &what)?;
    let client = connect(global, &what).await?;
    // Chosen once: the server recognizes a repeated create by the id.
    let id = SecretObjectId(Id(rand::random()));
    let request = NewSecretObject { id, name: name.clone(), labels, data };
    let created = client.secret_objects(kind).create(request).await.map_err(|error| {
        let hint =
            format!("choose another name, or store a new version with `warren {kind} update {name} FILE`");
        from_client_with_hint(&what, error, "ALREADY_EXISTS", hint)
    })?;
    eprintln!("{kind} {name} created");
    print_object(global, created)
}

async fn update(
    global: &GlobalArgs,
    kind: SecretObjectKind,
    name: &str,
    file: &std::path::Path,
) -> Result<(), CommandError> {
    let what = format!("{kind} {name} was not updated");
    let data = input::read_secret_object(kind, file, &what)?;
    let client = connect(global, &what).await?;
    let failed = |error| from_client(&what, error);
    let before = client.secret_objects(kind).get(name).await.map_err(failed)?;
    // Without an expected version: a repeated update with the same data changes nothing.
    let updated = client.secret_objects(kind).update(&before.id, data, None).await.map_err(failed)?;
    match updated.version_number == before.version_number {
        true => eprintln!("{kind} {} is unchanged: version {}", updated.name, updated.version_number),
        false => eprintln!("{}", update_message(kind, &updated)),
    }
    print_object(global, updated)
}

/// Names the services whose tasks are replaced.
fn update_message(kind: SecretObjectKind, updated: &v1::SecretObject) -> String {
    let v1::SecretObject { name, version_number: number, services, .. } = updated;
    let message = format!("{kind} {name} updated: version {number}");
    match services.as_slice() {
        [] => message,
        [one] => format!("{message}; the tasks of service {one} are replaced"),
        many => format!("{message}; the tasks of services {} are replaced", many.join(", ")),
    }
}

fn print_object(global: &GlobalArgs, object: v1::SecretObject) -> Result<(), CommandError> {
    match global.output {
        OutputFormat::Table | OutputFormat::Wide => output::print(&format!("{}\n", object.id)),
        OutputFormat::Json | OutputFormat::Yaml => {
            output::print_document(global.output, &SecretObjectView::from(object))
        }
    }
}

async fn ls(global: &GlobalArgs, kind: SecretObjectKind, listing: &ListingArgs) -> Result<(), CommandError> {
    let what = format!("{kind}s were not listed");
    let list = Listing::new(global.output, listing, &what)?;
    let client = connect(global, &what).await?;
    let fetch = async || {
        let objects = client.secret_objects(kind).list().await.map_err(|error| from_client(&what, error))?;
        Ok(objects.into_iter().map(SecretObjectView::from).collect::<Vec<_>>())
    };
    watch::show(&list, &client, fetch).await
}

async fn inspect(
    global: &GlobalArgs,
    kind: SecretObjectKind,
    names: &[String],
    as_document: bool,
) -> Result<(), CommandError> {
    let client = connect(global, &format!("no {kind} was found")).await?;
    let mut found = Vec::new();
    for name in names {
        found.push(fetch(&client, kind, name).await?);
    }
    if as_document {
        let documents = found.iter().map(|(object, data)| {
            document::of_secret_object(kind, object, data.as_ref().map(|data| &data.data[..]))
        });
        return document::print(global.output, &documents.collect::<Vec<_>>());
    }
    let views = found.into_iter().map(|(object, data)| match data {
        Some(data) => SecretObjectView::from(object).with_data(&data.data),
        None => object.into(),
    });
    output::print_documents(global.output, &views.collect::<Vec<_>>())
}

/// The object, and the data of a config.
async fn fetch(
    client: &Client,
    kind: SecretObjectKind,
    name: &str,
) -> Result<(v1::SecretObject, Option<v1::SecretObjectData>), CommandError> {
    let failed = |error| from_client(format!("{kind} {name} was not found"), error);
    let found = client.secret_objects(kind).get(name).await.map_err(failed)?;
    if kind != SecretObjectKind::Config {
        return Ok((found, None));
    }
    // The version found above, even if a newer one exists by now.
    let failed = |error| from_client(format!("config {name} was not read"), error);
    let data = client.secret_objects(kind).read(&found.id, Some(found.version_number)).await;
    Ok((found, Some(data.map_err(failed)?)))
}

async fn rm(global: &GlobalArgs, kind: SecretObjectKind, names: &[String]) -> Result<(), CommandError> {
    let client = connect(global, &format!("no {kind} was removed")).await?;
    for name in names {
        let what = format!("{kind} {name} was not removed");
        let removed = client.secret_objects(kind).remove(name).await.map_err(|error| {
            let update = format!("`warren service update SERVICE --{kind}-rm {name}`");
            from_client_with_hint(what, error, "SECRET_OBJECT_IN_USE", format!("unmount it first: {update}"))
        })?;
        output::print(&format!("{}\n", removed.name))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn update_message_names_affected_services() {
        let message = |services: &[&str]| {
            let services = services.iter().map(|name| (*name).to_owned()).collect();
            let updated =
                v1::SecretObject { name: "db".into(), version_number: 2, services, ..Default::default() };
            update_message(SecretObjectKind::Secret, &updated)
        };
        assert_eq!(message(&[]), "secret db updated: version 2");
        let one = "secret db updated: version 2; the tasks of service web are replaced";
        assert_eq!(message(&["web"]), one);
        let two = "secret db updated: version 2; the tasks of services api, web are replaced";
        assert_eq!(message(&["api", "web"]), two);
    }
}
