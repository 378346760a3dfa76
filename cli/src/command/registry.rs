//! `warren registry ...`

use std::collections::BTreeMap;

use warren_client::{Client, Error, NewSecretObject};
use warren_proto::v1;
use warren_types::{Id, Login, SecretObjectId, SecretObjectKind, SecretObjectName};
use zeroize::{Zeroize, Zeroizing};

use crate::args::{GlobalArgs, ListingArgs, OutputFormat, RegistryCommand, RegistryLoginArgs};
use crate::connect::connect;
use crate::failure::{CommandError, ExitKind, from_client};
use crate::output::Listing;
use crate::view::secret_object::CredentialView;
use crate::watch;
use crate::{input, output};

const KIND: SecretObjectKind = SecretObjectKind::Credential;

pub async fn run(global: &GlobalArgs, command: RegistryCommand) -> Result<(), CommandError> {
    match command {
        RegistryCommand::Login(args) => login(global, args).await,
        RegistryCommand::Ls(listing) => ls(global, &listing).await,
        RegistryCommand::Rm { hosts } => rm(global, &hosts).await,
    }
}

async fn login(global: &GlobalArgs, args: RegistryLoginArgs) -> Result<(), CommandError> {
    let RegistryLoginArgs { host, username, password_stdin, token_only } = args;
    let what = format!("the login for {host} was not stored");
    // Checked before the password prompt.
    encode_login(&username, "password", token_only, &what)?;
    let question = format!("Password of {username} at {host}: ");
    let password = input::read_password(password_stdin, &question, &what)?;
    let data = encode_login(&username, &password, token_only, &what)?;
    let client = connect(global, &what).await?;
    let kept = store_login(&client, &host, data).await.map_err(|error| from_client(&what, error))?;
    let mode = if token_only { ", and never get the password" } else { "" };
    eprintln!("nodes now pull from {host} as {username}{mode}");
    match global.output {
        OutputFormat::Table | OutputFormat::Wide => output::print(&format!("{host}\n")),
        OutputFormat::Json | OutputFormat::Yaml => {
            output::print_document(global.output, &CredentialView::from(kept))
        }
    }
}

/// The stored form of a login.
fn encode_login(
    user: &str,
    password: &str,
    is_token_only: bool,
    what: &str,
) -> Result<Zeroizing<Vec<u8>>, CommandError> {
    let mut login = Login { user: user.to_owned(), password: password.to_owned(), is_token_only };
    let text = Zeroizing::new(login.to_text().into_bytes());
    login.password.zeroize();
    match Login::from_data(&text) {
        Ok(mut read) if read.user == user => {
            read.password.zeroize();
            Ok(text)
        }
        _ => {
            let why = "a user name must not contain ':' or a line break; user name and password must not be empty or \
                       contain a NUL byte";
            Err(CommandError::new(
                ExitKind::Usage,
                what,
                why,
                "give the --username and the password of an account at the registry",
            ))
        }
    }
}

/// Replaces the login of the registry, or creates it.
async fn store_login(
    client: &Client,
    host: &SecretObjectName,
    data: Zeroizing<Vec<u8>>,
) -> Result<v1::SecretObject, Error> {
    let objects = client.secret_objects(KIND);
    match objects.update(host.as_str(), data.clone(), None).await {
        Err(error) if error.is_not_found() => {}
        ended => return ended,
    }
    let id = SecretObjectId(Id(rand::random()));
    objects.create(NewSecretObject { id, name: host.clone(), labels: BTreeMap::new(), data }).await
}

async fn ls(global: &GlobalArgs, listing: &ListingArgs) -> Result<(), CommandError> {
    let what = "registries were not listed";
    let list = Listing::new(global.output, listing, what)?;
    let client = connect(global, what).await?;
    let fetch = async || {
        let registries =
            client.secret_objects(KIND).list().await.map_err(|error| from_client(what, error))?;
        Ok(registries.into_iter().map(CredentialView::from).collect::<Vec<_>>())
    };
    watch::show(&list, &client, fetch).await
}

async fn rm(global: &GlobalArgs, hosts: &[SecretObjectName]) -> Result<(), CommandError> {
    let client = connect(global, "no login was removed").await?;
    for host in hosts {
        let removed = client.secret_objects(KIND).remove(host.as_str()).await;
        let removed =
            removed.map_err(|error| from_client(format!("the login for {host} was not removed"), error))?;
        output::print(&format!("{}\n", removed.name))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn login_round_trips() {
        for is_token_only in [false, true] {
            let kept = encode_login("ann", "a\nb:c", is_token_only, "x").unwrap();
            let login = Login::from_data(&kept).unwrap();
            assert_eq!((login.user.as_str(), login.password.as_str()), ("ann", "a\nb:c"));
            assert_eq!(login.is_token_only, is_token_only);
        }
        for (user, password) in [("", "pw"), ("a:b", "pw"), ("a\nb", "pw"), ("ann", "p\0w")] {
            let failure = encode_login(user, password, false, "x").unwrap_err();
            assert!(failure.kind == ExitKind::Usage && !failure.to_string().contains("p\0w"), "{failure}");
        }
    }
}
