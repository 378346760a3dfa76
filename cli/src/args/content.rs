//! `warren secret ...`, `warren config ...` and `warren registry ...`

use std::path::PathBuf;

use clap::{Args, Subcommand};
use warren_types::ContentName;

use super::value;

/// Secrets and configs have the same verbs.
#[derive(Debug, Subcommand)]
pub enum ContentCommand {
    /// Keep the bytes of a file under a name
    Create(ContentCreateArgs),
    /// Give a new version; services that use it follow, task by task
    Update {
        /// A name, an id, or the beginning of one
        #[arg(value_name = "NAME")]
        name: String,
        /// File with at most 1 MiB; - reads standard input
        #[arg(value_name = "FILE|-")]
        file: PathBuf,
    },
    /// List what there is; never its bytes
    Ls,
    /// Show all of it: of configs also what they hold, of secrets never
    Inspect {
        /// Names, ids, or beginnings of ids
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
    },
    /// Remove what no service uses
    Rm {
        /// Names, ids, or beginnings of ids
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
    },
}

#[derive(Debug, Args)]
pub struct ContentCreateArgs {
    /// What it is called
    #[arg(value_name = "NAME")]
    pub name: ContentName,
    /// File with at most 1 MiB; - reads standard input
    #[arg(value_name = "FILE|-")]
    pub file: PathBuf,
    /// Label (repeatable)
    #[arg(long, value_name = "KEY=VALUE", value_parser = value::label)]
    pub label: Vec<(String, String)>,
}

#[derive(Debug, Subcommand)]
pub enum RegistryCommand {
    /// Keep a user and password for a registry; images are pulled from it with them
    Login(LoginArgs),
    /// List the registries that have a user and password
    Ls,
    /// Forget the user and password of registries
    Rm {
        /// Hosts, as in references of images
        #[arg(required = true, value_name = "HOST[:PORT]", value_parser = value::registry)]
        hosts: Vec<ContentName>,
    },
}

#[derive(Debug, Args)]
pub struct LoginArgs {
    /// The registry, as in references of images; docker.io is that of references without one
    #[arg(value_name = "HOST[:PORT]", value_parser = value::registry)]
    pub host: ContentName,
    /// Who to be there
    #[arg(long, short, value_name = "USER")]
    pub username: String,
    /// Read the password, or a token, from standard input; else it is asked for
    #[arg(long)]
    pub password_stdin: bool,
}
