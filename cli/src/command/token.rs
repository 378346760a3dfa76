//! `warren token ...`

use serde::Serialize;
use warren_client::TokenWish;
use warren_types::{Id, NodeRole, TokenId};

use crate::args::{Format, Global, TokenArgs, TokenCommand};
use crate::connect::connect;
use crate::failure::Failure;
use crate::output;
use crate::view::now;
use crate::view::token::TokenView;

pub async fn run(global: &Global, command: TokenCommand) -> Result<(), Failure> {
    match command {
        TokenCommand::Create(args) => create(global, &args).await,
        TokenCommand::Ls => ls(global).await,
        TokenCommand::Rm { tokens } => rm(global, &tokens).await,
    }
}

/// A token that was just made, with what nobody can show again.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct NewTokenView {
    token: String,
    join_command: String,
    #[serde(flatten)]
    stored: TokenView,
}

async fn create(global: &Global, args: &TokenArgs) -> Result<(), Failure> {
    let TokenArgs { role, ttl, uses, quiet } = args;
    let what = "no token was made";
    let client = connect(global, what).await?;
    let wish = TokenWish { role: *role, ttl: ttl.0, max_uses: *uses };
    // Made once: a create that is sent again is the same create.
    let id = TokenId(Id(rand::random()));
    let made = client.tokens().create(id, &wish).await;
    let made = made.map_err(|error| crate::failure::of_client(what, error))?;
    let stored = TokenView::try_from(made.token)?;
    let token = made.secret.reveal();
    let join = join_command(*role, &client.address(), &token);
    if matches!(global.output, Format::Table | Format::Wide) {
        if !quiet {
            eprintln!(
                "good {}; it is not shown again. On the machine that shall join:",
                stored.good_for(now())
            );
            eprintln!("  {join}");
        }
        return output::print(&format!("{}\n", *token));
    }
    output::document(global.output, &NewTokenView { token: token.to_string(), join_command: join, stored })
}

/// What to type on the machine that joins. The socket of a manager says nothing of where others reach it.
fn join_command(role: NodeRole, manager: &str, token: &str) -> String {
    let manager = if manager.starts_with('/') { "MANAGER:8080" } else { manager };
    format!("warren {} join {manager} --token {token}", role.as_str())
}

async fn ls(global: &Global) -> Result<(), Failure> {
    let what = "tokens were not listed";
    let client = connect(global, what).await?;
    let tokens = client.tokens().list().await.map_err(|error| crate::failure::of_client(what, error))?;
    let tokens = tokens.into_iter().map(TokenView::try_from).collect::<Result<Vec<_>, _>>()?;
    output::list(global.output, &tokens, now())
}

async fn rm(global: &Global, tokens: &[String]) -> Result<(), Failure> {
    let client = connect(global, "no token was removed").await?;
    for token in tokens {
        let removed = client.tokens().remove(token).await;
        let what = format!("token {token} was not removed");
        let removed = removed.map_err(|error| crate::failure::of_client(what, error))?;
        output::print(&format!("{}\n", removed.id))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_join_command_names_the_manager_if_others_can_reach_it() {
        let (worker, manager) = (NodeRole::Worker, NodeRole::Manager);
        assert_eq!(join_command(worker, "10.0.0.7:8080", "T"), "warren worker join 10.0.0.7:8080 --token T");
        let socket = "/run/warren/warren.sock";
        assert_eq!(join_command(manager, socket, "T"), "warren manager join MANAGER:8080 --token T");
    }
}
