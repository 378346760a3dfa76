//! `warren version`.

use serde::Serialize;

use crate::args::{Format, Global};
use crate::failure::Failure;
use crate::output;

#[derive(Serialize)]
struct VersionView {
    version: &'static str,
}

pub fn run(global: &Global) -> Result<(), Failure> {
    let version = env!("CARGO_PKG_VERSION");
    match global.output {
        Format::Table | Format::Wide => output::print(&format!("warren {version}\n")),
        Format::Json | Format::Yaml => output::document(global.output, &VersionView { version }),
    }
}
