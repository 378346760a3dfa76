//! `warren user ...`

use serde::Serialize;
use warren_client::{JoinToken, NewUser, UserChange};
use warren_proto::v1;
use warren_types::{Id, UserId};

use crate::args::{GlobalArgs, ListingArgs, LoginTokenArgs, OutputFormat, UserCommand, UserCreateArgs};
use crate::connect::connect;
use crate::failure::{CommandError, from_client};
use crate::output::{self, Listing};
use crate::view::user::UserView;
use crate::view::user_key::UserKeyView;
use crate::watch;

pub async fn run(global: &GlobalArgs, command: UserCommand) -> Result<(), CommandError> {
    match command {
        UserCommand::Create(args) => create(global, args).await,
        UserCommand::Ls(listing) => ls(global, &listing).await,
        UserCommand::Inspect { name } => {
            let what = format!("user {name} was not shown");
            let client = connect(global, &what).await?;
            let user = client.users().get(&name).await.map_err(|error| from_client(what, error))?;
            output::print_document(global.output, &UserView::try_from(user)?)
        }
        UserCommand::Update { name, role } => {
            let what = format!("user {name} was not changed");
            let client = connect(global, &what).await?;
            let change = UserChange { role: Some(role), ..UserChange::default() };
            let updated = client.users().update(&name, change).await;
            let (user, _) = updated.map_err(|error| from_client(what, error))?;
            output::print(&format!("{}\n", user.name))
        }
        UserCommand::Token { name, token } => {
            let what = format!("no login token was made for user {name}");
            let client = connect(global, &what).await?;
            let change = UserChange { login_ttl: Some(token.token_ttl), ..UserChange::default() };
            let updated = client.users().update(&name, change).await;
            let (user, secret) = updated.map_err(|error| from_client(what, error))?;
            match secret {
                Some(secret) => show_token(global, &client.address(), user, &secret, &token),
                None => Ok(()),
            }
        }
        UserCommand::Logout { names } => {
            let client = connect(global, "no user was logged out").await?;
            for name in names {
                let change = UserChange { logout: true, ..UserChange::default() };
                let updated = client.users().update(&name, change).await;
                let (user, _) =
                    updated.map_err(|error| from_client(format!("user {name} was not logged out"), error))?;
                output::print(&format!("{}\n", user.name))?;
            }
            Ok(())
        }
        UserCommand::Keys(listing) => keys(global, &listing).await,
        UserCommand::Revoke { keys } => {
            let client = connect(global, "no key was revoked").await?;
            for key in keys {
                let revoked = client.users().revoke_key(&key).await;
                let revoked =
                    revoked.map_err(|error| from_client(format!("key {key} was not revoked"), error))?;
                output::print(&format!("{}\n", revoked.key))?;
            }
            Ok(())
        }
        UserCommand::Rm { names } => {
            let client = connect(global, "no user was removed").await?;
            for name in names {
                let removed = client.users().remove(&name).await;
                let removed =
                    removed.map_err(|error| from_client(format!("user {name} was not removed"), error))?;
                output::print(&format!("{}\n", removed.name))?;
            }
            Ok(())
        }
    }
}

async fn create(global: &GlobalArgs, args: UserCreateArgs) -> Result<(), CommandError> {
    let UserCreateArgs { name, role, expires, token } = args;
    let what = format!("user {name} was not created");
    let client = connect(global, &what).await?;
    let user = NewUser { name, role, ttl: expires.0, login_ttl: token.token_ttl };
    // Chosen once: the server recognizes a repeated create by the id.
    let made = client.users().create(UserId(Id(rand::random())), &user).await;
    let (user, secret) = made.map_err(|error| from_client(what, error))?;
    show_token(global, &client.address(), user, &secret, &token)
}

/// A user with a new login token, which is not stored.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct NewLoginView {
    token: String,
    login_command: String,
    #[serde(flatten)]
    stored: UserView,
}

fn show_token(
    global: &GlobalArgs,
    manager: &str,
    user: v1::User,
    secret: &JoinToken,
    LoginTokenArgs { token_ttl, quiet }: &LoginTokenArgs,
) -> Result<(), CommandError> {
    let stored = UserView::try_from(user)?;
    // A unix socket does not contain the address of the manager.
    let manager = if manager.starts_with('/') { "MANAGER:8080" } else { manager };
    let (token, login) = (secret.reveal(), format!("warren login {manager}"));
    if matches!(global.output, OutputFormat::Table | OutputFormat::Wide) {
        if !quiet {
            let valid = humantime::format_duration(*token_ttl);
            eprintln!(
                "valid once, within {valid}; not shown again. {} runs this command and gives the token:",
                stored.name()
            );
            eprintln!("  {login}");
        }
        return output::print(&format!("{}\n", *token));
    }
    let view = NewLoginView { token: token.to_string(), login_command: login, stored };
    output::print_document(global.output, &view)
}

async fn ls(global: &GlobalArgs, listing: &ListingArgs) -> Result<(), CommandError> {
    let what = "users were not listed";
    let list = Listing::new(global.output, listing, what)?;
    let client = connect(global, what).await?;
    let fetch = async || {
        let users = client.users().list().await.map_err(|error| from_client(what, error))?;
        users.into_iter().map(UserView::try_from).collect::<Result<Vec<_>, _>>()
    };
    watch::show(&list, &client, fetch).await
}

async fn keys(global: &GlobalArgs, listing: &ListingArgs) -> Result<(), CommandError> {
    let what = "keys were not listed";
    let list = Listing::new(global.output, listing, what)?;
    let client = connect(global, what).await?;
    let fetch = async || {
        let keys = client.users().keys().await.map_err(|error| from_client(what, error))?;
        Ok::<_, CommandError>(keys.into_iter().map(UserKeyView::from).collect::<Vec<_>>())
    };
    watch::show(&list, &client, fetch).await
}
