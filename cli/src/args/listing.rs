//! Flags of every list and of `inspect`, with the meaning of Docker.

use clap::Args;

use super::{OutputFormat, value};
use crate::failure::{CommandError, ExitKind};

/// Selection and format of a list.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Selection and format")]
pub struct ListingArgs {
    /// Print only ids, or the names where commands take names
    #[arg(long, short, conflicts_with = "format")]
    pub quiet: bool,
    /// Show only items that match, like name=web; items match one value of each KEY (repeatable)
    #[arg(long, short, value_name = "KEY=VALUE", value_parser = value::label)]
    pub filter: Vec<(String, String)>,
    /// Print each item with a template like '{{.Name}}: {{.ID}}', as 'table TEMPLATE', or as a line of json
    #[arg(long, value_name = "FORMAT")]
    pub format: Option<String>,
    /// Print full ids and lists
    #[arg(long)]
    pub no_trunc: bool,
    /// Go on: a terminal shows the list as it is now; otherwise the list is printed, then each row that changes
    #[arg(long, short)]
    pub watch: bool,
}

/// The flag by which Docker prints YAML-like text; the default of every `inspect`.
#[derive(Debug, Clone, Default, Args)]
pub struct PrettyArgs {
    /// Print for people, which is the default
    #[arg(long, hide = true)]
    pretty: bool,
}

impl PrettyArgs {
    /// Refuses another format beside it. `what` is the failure summary.
    pub fn check(&self, output: OutputFormat, what: &str) -> Result<(), CommandError> {
        if !self.pretty || output != OutputFormat::Json {
            return Ok(());
        }
        let why = "--pretty prints for people, --output json for programs";
        Err(CommandError::new(ExitKind::Usage, what, why, "give one of them"))
    }
}
