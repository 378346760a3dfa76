//! `warren man`.

use std::path::{Path, PathBuf};

use clap::CommandFactory;
use clap_mangen::Man;

use crate::args::Cli;
use crate::failure::{CommandError, ExitKind};

/// Writes one page per command to `directory`, which is created, or the page of `warren` itself to standard output.
pub fn run(directory: Option<PathBuf>) -> Result<(), CommandError> {
    match directory {
        Some(directory) => write_pages(&directory),
        None => Man::new(Cli::command()).render(&mut std::io::stdout().lock()),
    }
    .map_err(|error| {
        CommandError::new(ExitKind::Failed, "the manual was not written", error, "check the directory")
    })
}

fn write_pages(directory: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(directory)?;
    clap_mangen::generate_to(Cli::command(), directory)
}
