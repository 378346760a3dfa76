//! `warren version`.

use serde::Serialize;

use crate::args::{GlobalArgs, OutputFormat};
use crate::failure::CommandError;
use crate::output;

#[derive(Serialize)]
struct VersionView {
    version: &'static str,
}

pub fn run(global: &GlobalArgs) -> Result<(), CommandError> {
    let version = env!("CARGO_PKG_VERSION");
    match global.output {
        OutputFormat::Table | OutputFormat::Wide => output::print(&format!("warren {version}\n")),
        OutputFormat::Json | OutputFormat::Yaml => {
            output::print_document(global.output, &VersionView { version })
        }
    }
}
