//! `warren user ...`, `warren login`

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use warren_types::{ManagerAddress, UserName, UserRole};

use super::listing::ListingArgs;
use super::value::{self, TokenTtl};

#[derive(Debug, Subcommand)]
pub enum UserCommand {
    /// Create a user, and print a token to log in once
    Create(UserCreateArgs),
    /// List users
    #[command(alias = "list")]
    Ls(ListingArgs),
    /// Show a user with its logins
    Inspect {
        /// User
        #[arg(value_name = "USER")]
        name: String,
    },
    /// Change the role of a user
    Update {
        /// User
        #[arg(value_name = "USER")]
        name: String,
        /// What the user may do: viewer, operator or admin
        #[arg(long, value_name = "ROLE")]
        role: UserRole,
    },
    /// Print a new token to log in once; it replaces an unused one
    Token {
        /// User
        #[arg(value_name = "USER")]
        name: String,
        #[command(flatten)]
        token: LoginTokenArgs,
    },
    /// End all logins of users at once; each needs a new token to log in again
    Logout {
        /// Users
        #[arg(required = true, value_name = "USER")]
        names: Vec<String>,
    },
    /// List the keys of users and of administrators of managers, with those that are revoked
    Keys(ListingArgs),
    /// Revoke single keys: their certificates are refused from then on, other logins of the user stay
    Revoke {
        /// First 8 digits or more of keys
        #[arg(required = true, value_name = "KEY")]
        keys: Vec<String>,
    },
    /// Remove users; their keys are refused at once
    #[command(alias = "remove")]
    Rm {
        /// Users
        #[arg(required = true, value_name = "USER")]
        names: Vec<String>,
    },
}

#[derive(Debug, Args)]
pub struct UserCreateArgs {
    /// Name of a person or a program
    #[arg(value_name = "NAME")]
    pub name: UserName,
    /// What the user may do: viewer, operator or admin
    #[arg(long, value_name = "ROLE")]
    pub role: UserRole,
    /// Lifetime of the user, or never
    #[arg(long, value_name = "DURATION|never", value_parser = value::ttl, default_value = "never")]
    pub expires: TokenTtl,
    #[command(flatten)]
    pub token: LoginTokenArgs,
}

#[derive(Debug, Args)]
pub struct LoginTokenArgs {
    /// Lifetime of the login token, at most 7d
    #[arg(long, value_name = "DURATION", value_parser = value::duration, default_value = "1h")]
    pub token_ttl: Duration,
    /// Print only the token
    #[arg(long, short)]
    pub quiet: bool,
}

#[derive(Debug, Args)]
pub struct LoginArgs {
    /// Address of a manager
    #[arg(value_name = "HOST:PORT")]
    pub manager: ManagerAddress,
    /// File with the login token, or - for standard input [default: asks for it]
    #[arg(long, value_name = "FILE|-")]
    pub token_file: Option<PathBuf>,
    /// Name of the context [default: default, or USER-CLUSTER if there is one]
    #[arg(long, value_name = "NAME")]
    pub context_name: Option<String>,
}
