//! `warren token ...`

use serde::Serialize;
use warren_client::TokenOptions;
use warren_types::{Id, NodeRole, TokenId, Violations, validate_token_labels};

use super::unique_pairs;
use crate::args::{GlobalArgs, ListingArgs, OutputFormat, TokenCommand, TokenCreateArgs};
use crate::connect::connect;
use crate::failure::CommandError;
use crate::output::{self, Listing};
use crate::view::now;
use crate::view::token::TokenView;
use crate::watch;

pub async fn run(global: &GlobalArgs, command: TokenCommand) -> Result<(), CommandError> {
    match command {
        TokenCommand::Create(args) => create(global, args).await,
        TokenCommand::Ls(listing) => ls(global, &listing).await,
        TokenCommand::Rm { tokens } => rm(global, &tokens).await,
    }
}

/// A new token with its secret, which is not stored.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct NewTokenView {
    token: String,
    join_command: String,
    #[serde(flatten)]
    stored: TokenView,
}

async fn create(global: &GlobalArgs, args: TokenCreateArgs) -> Result<(), CommandError> {
    let TokenCreateArgs { role, ttl, uses, label, quiet } = args;
    let what = "no token was created";
    let labels = unique_pairs("labels", label).and_then(|labels| {
        let mut wrong = Violations::default();
        validate_token_labels(role, &labels, &mut wrong);
        wrong.into_result(labels)
    });
    let labels = labels.map_err(|fields| CommandError::invalid_fields(what, fields))?;
    let client = connect(global, what).await?;
    let options = TokenOptions { role, ttl: ttl.0, max_uses: uses, labels };
    // Chosen once: the server recognizes a repeated create by the id.
    let id = TokenId(Id(rand::random()));
    let made = client.tokens().create(id, &options).await;
    let made = made.map_err(|error| crate::failure::from_client(what, error))?;
    let stored = TokenView::try_from(made.token)?;
    let token = made.secret.reveal();
    let join = join_command(role, &client.address(), &token);
    if matches!(global.output, OutputFormat::Table | OutputFormat::Wide) {
        if !quiet {
            eprintln!(
                "valid {}; not shown again. Run on the machine that joins:",
                stored.validity_text(now())
            );
            eprintln!("  {join}");
        }
        return output::print(&format!("{}\n", *token));
    }
    output::print_document(
        global.output,
        &NewTokenView { token: token.to_string(), join_command: join, stored },
    )
}

/// The command for the joining machine. A unix socket does not contain the address of the manager.
fn join_command(role: NodeRole, manager: &str, token: &str) -> String {
    let manager = if manager.starts_with('/') { "MANAGER:8080" } else { manager };
    format!("warren {} join {manager} --token {token}", role.as_str())
}

async fn ls(global: &GlobalArgs, listing: &ListingArgs) -> Result<(), CommandError> {
    let what = "tokens were not listed";
    let list = Listing::new(global.output, listing, what)?;
    let client = connect(global, what).await?;
    let fetch = async || {
        let tokens = client.tokens().list().await;
        let tokens = tokens.map_err(|error| crate::failure::from_client(what, error))?;
        tokens.into_iter().map(TokenView::try_from).collect::<Result<Vec<_>, _>>()
    };
    watch::show(&list, &client, fetch).await
}

async fn rm(global: &GlobalArgs, tokens: &[String]) -> Result<(), CommandError> {
    let client = connect(global, "no token was removed").await?;
    for token in tokens {
        let removed = client.tokens().remove(token).await;
        let what = format!("token {token} was not removed");
        let removed = removed.map_err(|error| crate::failure::from_client(what, error))?;
        output::print(&format!("{}\n", removed.id))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn join_command_has_reachable_manager_address() {
        let (worker, manager) = (NodeRole::Worker, NodeRole::Manager);
        assert_eq!(join_command(worker, "10.0.0.7:8080", "T"), "warren worker join 10.0.0.7:8080 --token T");
        let socket = "/run/warren/warren.sock";
        assert_eq!(join_command(manager, socket, "T"), "warren manager join MANAGER:8080 --token T");
    }
}
