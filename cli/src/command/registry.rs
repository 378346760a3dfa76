//! `warren registry ...`

use std::collections::BTreeMap;

use warren_client::{Client, Error, NewContent};
use warren_proto::v1;
use warren_types::{ContentId, ContentKind, ContentName, Id, Login};
use zeroize::{Zeroize, Zeroizing};

use crate::args::{Format, Global, LoginArgs, RegistryCommand};
use crate::connect::connect;
use crate::failure::{Exit, Failure, of_client};
use crate::view::content::RegistryView;
use crate::view::now;
use crate::{input, output};

const KIND: ContentKind = ContentKind::Credential;

pub async fn run(global: &Global, command: RegistryCommand) -> Result<(), Failure> {
    match command {
        RegistryCommand::Login(args) => login(global, args).await,
        RegistryCommand::Ls => ls(global).await,
        RegistryCommand::Rm { hosts } => rm(global, &hosts).await,
    }
}

async fn login(global: &Global, args: LoginArgs) -> Result<(), Failure> {
    let LoginArgs { host, username, password_stdin } = args;
    let what = format!("no login for {host} was kept");
    // Before anybody is asked for a password.
    check(&username, "password", &what)?;
    let question = format!("Password of {username} at {host}: ");
    let password = input::password(password_stdin, &question, &what)?;
    let data = check(&username, &password, &what)?;
    let client = connect(global, &what).await?;
    let kept = keep(&client, &host, data).await.map_err(|error| of_client(&what, error))?;
    eprintln!("the machines pull from {host} as {username} from now on");
    match global.output {
        Format::Table | Format::Wide => output::print(&format!("{host}\n")),
        Format::Json | Format::Yaml => output::document(global.output, &RegistryView::from(kept)),
    }
}

/// The login as it is kept.
fn check(user: &str, password: &str, what: &str) -> Result<Zeroizing<Vec<u8>>, Failure> {
    let mut login = Login { user: user.to_owned(), password: password.to_owned() };
    let text = Zeroizing::new(login.to_text().into_bytes());
    login.password.zeroize();
    let read = std::str::from_utf8(&text).map(str::parse::<Login>);
    match read {
        Ok(Ok(mut read)) if read.user == user => {
            read.password.zeroize();
            Ok(text)
        }
        _ => {
            let why = "a user has no ':' and no line break, and neither user nor password is empty or has a NUL byte";
            Err(Failure::new(
                Exit::Usage,
                what,
                why,
                "give --username and the password as the registry knows them",
            ))
        }
    }
}

/// In place of what was known of the registry, or as the first.
async fn keep(client: &Client, host: &ContentName, data: Zeroizing<Vec<u8>>) -> Result<v1::Content, Error> {
    let contents = client.contents(KIND);
    match contents.update(host.as_str(), data.clone(), None).await {
        Err(error) if error.is_not_found() => {}
        ended => return ended,
    }
    let id = ContentId(Id(rand::random()));
    contents.create(NewContent { id, name: host.clone(), labels: BTreeMap::new(), data }).await
}

async fn ls(global: &Global) -> Result<(), Failure> {
    let what = "registries were not listed";
    let client = connect(global, what).await?;
    let registries = client.contents(KIND).list().await.map_err(|error| of_client(what, error))?;
    let registries: Vec<RegistryView> = registries.into_iter().map(Into::into).collect();
    output::list(global.output, &registries, now())
}

async fn rm(global: &Global, hosts: &[ContentName]) -> Result<(), Failure> {
    let client = connect(global, "no login was forgotten").await?;
    for host in hosts {
        let removed = client.contents(KIND).remove(host.as_str()).await;
        let removed =
            removed.map_err(|error| of_client(format!("the login for {host} was not forgotten"), error))?;
        output::print(&format!("{}\n", removed.name))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_login_is_kept_as_it_is_read_again() {
        let kept = check("ann", "a\nb:c", "x").unwrap();
        let login: Login = std::str::from_utf8(&kept).unwrap().parse().unwrap();
        assert_eq!((login.user.as_str(), login.password.as_str()), ("ann", "a\nb:c"));
        for (user, password) in [("", "pw"), ("a:b", "pw"), ("a\nb", "pw"), ("ann", "p\0w")] {
            let failure = check(user, password, "x").unwrap_err();
            assert!(failure.exit == Exit::Usage && !failure.to_string().contains("p\0w"), "{failure}");
        }
    }
}
