//! `warren secret ...` and `warren config ...`

use warren_client::{Client, NewContent};
use warren_proto::v1;
use warren_types::{ContentId, ContentKind, Id, Violations};

use super::pairs;
use crate::args::{ContentCommand, ContentCreateArgs, Format, Global};
use crate::connect::connect;
use crate::failure::{Failure, of_client, of_refusal};
use crate::view::content::ContentView;
use crate::view::now;
use crate::{input, output};

pub async fn run(global: &Global, kind: ContentKind, command: ContentCommand) -> Result<(), Failure> {
    match command {
        ContentCommand::Create(args) => create(global, kind, args).await,
        ContentCommand::Update { name, file } => update(global, kind, &name, &file).await,
        ContentCommand::Ls => ls(global, kind).await,
        ContentCommand::Inspect { names } => inspect(global, kind, &names).await,
        ContentCommand::Rm { names } => rm(global, kind, &names).await,
    }
}

async fn create(global: &Global, kind: ContentKind, args: ContentCreateArgs) -> Result<(), Failure> {
    let ContentCreateArgs { name, file, label } = args;
    let what = format!("{kind} {name} was not created");
    let labels = pairs("labels", label).and_then(|labels| {
        let mut wrong = Violations::default();
        warren_types::spec::validate_labels(&labels, &mut wrong);
        wrong.into_result(labels)
    });
    let labels = labels.map_err(|fields| Failure::invalid(&what, fields))?;
    let data = input::content(kind, &file, &what)?;
    let client = connect(global, &what).await?;
    // Made once: a create that is sent again is the same create.
    let id = ContentId(Id(rand::random()));
    let wish = NewContent { id, name: name.clone(), labels, data };
    let created = client.contents(kind).create(wish).await.map_err(|error| {
        let hint =
            format!("choose another name, or give it a new version: `warren {kind} update {name} FILE`");
        of_refusal(&what, error, "ALREADY_EXISTS", hint)
    })?;
    eprintln!("{kind} {name} created");
    shown(global, created)
}

async fn update(
    global: &Global,
    kind: ContentKind,
    name: &str,
    file: &std::path::Path,
) -> Result<(), Failure> {
    let what = format!("{kind} {name} was not updated");
    let data = input::content(kind, file, &what)?;
    let client = connect(global, &what).await?;
    let failed = |error| of_client(&what, error);
    let before = client.contents(kind).get(name).await.map_err(failed)?;
    // Whatever it held before: sent again it changes nothing.
    let updated = client.contents(kind).update(&before.id, data, None).await.map_err(failed)?;
    match updated.number == before.number {
        true => eprintln!("{kind} {} holds that already: version {}", updated.name, updated.number),
        false => eprintln!("{}", news(kind, &updated)),
    }
    shown(global, updated)
}

/// What a new version means for those that use it.
fn news(kind: ContentKind, updated: &v1::Content) -> String {
    let v1::Content { name, number, services, .. } = updated;
    let told = format!("{kind} {name} updated: version {number}");
    match services.as_slice() {
        [] => told,
        [one] => format!("{told}; the tasks of service {one} are replaced"),
        many => format!("{told}; the tasks of services {} are replaced", many.join(", ")),
    }
}

fn shown(global: &Global, content: v1::Content) -> Result<(), Failure> {
    match global.output {
        Format::Table | Format::Wide => output::print(&format!("{}\n", content.id)),
        Format::Json | Format::Yaml => output::document(global.output, &ContentView::from(content)),
    }
}

async fn ls(global: &Global, kind: ContentKind) -> Result<(), Failure> {
    let what = format!("{kind}s were not listed");
    let client = connect(global, &what).await?;
    let contents = client.contents(kind).list().await.map_err(|error| of_client(&what, error))?;
    let contents: Vec<ContentView> = contents.into_iter().map(Into::into).collect();
    output::list(global.output, &contents, now())
}

async fn inspect(global: &Global, kind: ContentKind, names: &[String]) -> Result<(), Failure> {
    let client = connect(global, &format!("no {kind} was found")).await?;
    let mut views = Vec::new();
    for name in names {
        views.push(look(&client, kind, name).await?);
    }
    output::documents(global.output, &views)
}

async fn look(client: &Client, kind: ContentKind, name: &str) -> Result<ContentView, Failure> {
    let failed = |error| of_client(format!("{kind} {name} was not found"), error);
    let found = client.contents(kind).get(name).await.map_err(failed)?;
    if kind != ContentKind::Config {
        return Ok(found.into());
    }
    // The version that was found, also when there is a newer one meanwhile.
    let failed = |error| of_client(format!("config {name} was not read"), error);
    let bytes = client.contents(kind).read(&found.id, Some(found.number)).await.map_err(failed)?;
    Ok(ContentView::from(found).with_data(&bytes.data))
}

async fn rm(global: &Global, kind: ContentKind, names: &[String]) -> Result<(), Failure> {
    let client = connect(global, &format!("no {kind} was removed")).await?;
    for name in names {
        let what = format!("{kind} {name} was not removed");
        let removed = client.contents(kind).remove(name).await.map_err(|error| {
            let update = format!("`warren service update SERVICE --{kind}-rm {name}`");
            of_refusal(what, error, "CONTENT_IN_USE", format!("take it from those first: {update}"))
        })?;
        output::print(&format!("{}\n", removed.name))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_version_says_whose_tasks_it_replaces() {
        let news = |services: &[&str]| {
            let services = services.iter().map(|name| (*name).to_owned()).collect();
            let updated = v1::Content { name: "db".into(), number: 2, services, ..Default::default() };
            news(ContentKind::Secret, &updated)
        };
        assert_eq!(news(&[]), "secret db updated: version 2");
        let one = "secret db updated: version 2; the tasks of service web are replaced";
        assert_eq!(news(&["web"]), one);
        let two = "secret db updated: version 2; the tasks of services api, web are replaced";
        assert_eq!(news(&["api", "web"]), two);
    }
}
