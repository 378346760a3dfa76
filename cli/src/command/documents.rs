//! `warren apply`, `warren diff`, `warren rm` and `warren schema`.

mod apply;
mod diff;
mod files;
mod prepare;
mod remove;

pub use apply::run as apply;
pub use diff::run as diff;
pub use files::read_admission_policy;
pub use remove::run as remove;

use crate::args::GlobalArgs;
use crate::args::OutputFormat;
use crate::failure::CommandError;
use crate::output;

/// Prints the JSON Schema of documents.
pub fn schema(global: &GlobalArgs) -> Result<(), CommandError> {
    let format = if global.output == OutputFormat::Yaml { OutputFormat::Yaml } else { OutputFormat::Json };
    output::print_document(format, &warren_documents::schema())
}
